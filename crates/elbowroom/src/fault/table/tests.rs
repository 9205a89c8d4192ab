//! The table, enumerated; and the diagram that docs/fault.md has of it.

use super::*;
use std::collections::BTreeSet;
use std::fmt::Write;

/// An environment variable: if it is set, the diagram in the document is rewritten.
const REWRITE: &str = "ELBOWROOM_WRITE_DOCS";

const BEGIN: &str = "<!-- made from crates/elbowroom/src/fault/table.rs: do not edit -->\n";
const END: &str = "<!-- end of what is made -->\n";

fn waits() -> impl Iterator<Item = State> {
    WaitCause::ALL.into_iter().map(State::Wait)
}

fn states() -> Vec<State> {
    use State::{Aside, Closely, Completed, Denied, Done, Foreign, Look, Stopped};
    [Look, Closely]
        .into_iter()
        .chain(waits())
        .chain([Aside, Done, Completed, Denied, Foreign, Stopped])
        .collect()
}

fn all_on() -> Vec<On> {
    use On::{Again, Aside, Completed, Denied, Done, Fallback, Foreign, Over, Stopped};
    let plain = [Done, Completed, Denied, Foreign, Stopped, Again, Fallback, Over, Aside];
    plain.into_iter().chain(WaitCause::ALL.map(On::Wait)).collect()
}

/// Whether `on` can happen in `state`, written a second time, independently of the table, from what the
/// drivers do.
fn can_happen(state: State, on: On) -> bool {
    match state {
        // A look never waits, so all but the two results of a wait are possible.
        State::Look => !matches!(on, On::Over | On::Aside),
        // There is nothing to fall back to any more.
        State::Closely => !matches!(on, On::Over | On::Aside | On::Fallback),
        State::Wait(cause) => match on {
            On::Over | On::Aside => true,
            // Only where a page is pinned may the thread be woken to try again.
            On::Done => cause == WaitCause::Pin,
            On::Denied => !matches!(cause, WaitCause::Turn | WaitCause::High),
            On::Stopped => {
                matches!(cause, WaitCause::Frame | WaitCause::Tables | WaitCause::Writer | WaitCause::Handler)
            }
            _ => false,
        },
        State::Aside => matches!(on, On::Over | On::Done | On::Denied),
        _ => false,
    }
}

#[test]
fn what_can_happen_has_one_row_and_nothing_else_has_any() {
    let mut arrows = 0;
    for state in states() {
        for on in all_on() {
            let rows = TABLE.iter().filter(|row| row.from.contains(&state) && row.on == on).count();
            assert_eq!(rows, usize::from(can_happen(state, on)), "{state:?} on {on:?}");
            assert_eq!(NEXT[state.index()][on.index()].is_some(), rows == 1, "{state:?} on {on:?}");
            arrows += rows;
        }
    }
    assert_eq!(arrows, TABLE.iter().map(|row| row.from.len()).sum::<usize>());
}

#[test]
fn states_and_outcomes_have_numbers_of_their_own() {
    let numbers: BTreeSet<_> = states().into_iter().map(State::index).collect();
    assert_eq!(numbers, (0..State::COUNT).collect());
    let numbers: BTreeSet<_> = all_on().into_iter().map(On::index).collect();
    assert_eq!(numbers, (0..On::COUNT).collect());
}

#[test]
fn every_state_is_reached_and_reaches_an_end() {
    let next = |state: State| all_on().into_iter().filter_map(move |on| NEXT[state.index()][on.index()]);
    let mut reached = vec![State::START];
    while let Some(new) = reached.iter().flat_map(|&state| next(state)).find(|new| !reached.contains(new)) {
        reached.push(new);
    }
    assert_eq!(reached.len(), State::COUNT);
    let mut ending: Vec<_> = states().into_iter().filter(|state| state.is_end()).collect();
    let leads = |state: &State, ending: &[State]| next(*state).any(|next| ending.contains(&next));
    while let Some(new) = states().into_iter().find(|s| !ending.contains(s) && leads(s, &ending)) {
        ending.push(new);
    }
    assert_eq!(ending.len(), State::COUNT);
    // Nothing follows an end, and something follows all else.
    states()
        .into_iter()
        .for_each(|state| assert_eq!(next(state).next().is_none(), state.is_end(), "{state:?}"));
}

/// Each exit of a look has a counter of its own, but for the two ends of a served fault (Done and
/// Completed), which share theirs: throttling is counted where it is decided.
#[test]
fn each_exit_has_its_counter() {
    let mut seen: Vec<Event> = Vec::new();
    for state in states() {
        match state.counts() {
            Counts::Nothing => assert!(matches!(state, State::Look | State::Aside), "{state:?}"),
            Counts::One(event) => {
                assert!(!seen.contains(&event), "{event:?} is counted for {state:?} and for another");
                seen.push(event);
            }
            counts => assert_eq!(counts, State::Done.counts()),
        }
    }
    // All that a look can come to, but for looking again, is counted.
    let silent = |on: &On| NEXT[0][on.index()].is_some_and(|next| next.counts() == Counts::Nothing);
    assert_eq!(all_on().into_iter().filter(silent).collect::<Vec<_>>(), [On::Again]);
}

/// The key in the statistics.
fn key(event: Event) -> &'static str {
    match event {
        Event::LayoutLockFaults => "layout_lock_faults",
        Event::WaitsForReads => "retry_mmap_drop",
        Event::WaitsForWriteback => "waits_for_writeback",
        Event::WaitsForLocks => "waits_for_locks",
        Event::MemoryWaits => "memory_waits",
        Event::WaitsForTables => "waits_for_tables",
        Event::WaitsForChanges => "waits_for_changes",
        Event::WaitsForPins => "waits_for_pins",
        Event::HandOvers => "hand_overs",
        Event::Turns => "turns",
        Event::HighWaits => "high_waits of the group",
        Event::FaultsMinor => "pgfault",
        Event::FaultsMajor => "pgmajfault",
        Event::FaultsDenied => "faults_denied",
        Event::FaultsForeign => "faults_foreign",
        Event::FaultsStopped => "faults_stopped",
        other => panic!("{other:?} is in no row"),
    }
}

fn name(state: State) -> String {
    if let State::Wait(cause) = state { format!("{cause:?}") } else { format!("{state:?}") }
}

fn node(out: &mut String, state: State) {
    let counted = match state.counts() {
        Counts::Nothing => String::new(),
        Counts::One(event) => format!("<br>{}", key(event)),
        Counts::Fault(_, with_io) => format!("<br>pgfault; after I/O {}, too", key(with_io)),
    };
    let label = name(state) + &counted;
    let (open, close) = if state.is_end() { ("([\"", "\"])") } else { ("[\"", "\"]") };
    writeln!(out, "    {}{open}{label}{close}", name(state)).unwrap();
}

/// The rows as a Mermaid flowchart. What all of a group have begins at the group.
fn diagram() -> String {
    let mut out = "```mermaid\nflowchart LR\n".to_owned();
    for (title, group) in [("looks", LOOKS), ("waits", WAITS)] {
        writeln!(out, "  subgraph {title}").unwrap();
        group.iter().for_each(|&state| node(&mut out, state));
        out.push_str("  end\n");
    }
    states().into_iter().filter(|s| !LOOKS.contains(s) && !WAITS.contains(s)).for_each(|s| node(&mut out, s));
    for Row { from, on, to } in TABLE {
        let label = if let On::Wait(_) = on { "Wait".to_owned() } else { format!("{on:?}") };
        let mut left: Vec<State> = from.to_vec();
        let mut sources = Vec::new();
        for (title, group) in [("looks", LOOKS), ("waits", WAITS)] {
            if group.iter().all(|state| left.contains(state)) {
                sources.push(title.to_owned());
                left.retain(|state| !group.contains(state));
            }
        }
        sources.extend(left.into_iter().map(name));
        writeln!(out, "  {} -->|{label}| {}", sources.join(" & "), name(*to)).unwrap();
    }
    out + "```\n"
}

#[test]
fn the_document_has_the_diagram() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fault.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the document has a place for it");
    let (there, after) = rest.split_once(END).expect("the place ends");
    let made = diagram();
    if std::env::var_os(REWRITE).is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{made}{END}{after}")).unwrap();
    } else {
        assert!(there == made, "docs/fault.md has another diagram: run this test with {REWRITE}=1\n{made}");
    }
}
