//! What a trace keeps, and the JSON that is made of it.

use super::json::TraceAbout;
use super::*;

fn entry(what: Happened, thread: u32, start_ns: u64, took_ns: u64) -> Entry {
    Entry { what, thread, start_ns, took_ns, numbers: [0x1000, 1], inode: NO_FILE }
}

fn json(entries: Vec<Entry>) -> String {
    let rings = vec![(1_500, 7)];
    let all = TraceSnapshot { entries, lost: 7, rings, locks: LockStats::new(), end_ns: 9_000 };
    let name = |id| (id == 2).then(|| "a \"b\"\n".to_owned());
    let mut out = Vec::new();
    all.write_json(&mut out, &TraceAbout { program: "p\\q", pid: 9, thread_name: &name }).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn all_that_can_happen_is_read_as_it_was_written() {
    let ends = FaultEnd::ALL.map(Happened::Fault);
    let waits = WaitCause::ALL.map(Happened::Wait);
    let verbs = Verb::ALL.map(|verb| Happened::Verb(verb, 28));
    use Happened::{Grow, Lock, Read, ReadError, Reclaim, Serve, Throttle, Write, WriteError};
    let others = [Serve, Read, ReadError, Write, WriteError, Reclaim, Grow, Throttle, Lock];
    let all: Vec<Happened> = ends.into_iter().chain(waits).chain(verbs).chain(others).collect();
    for (number, what) in all.into_iter().enumerate() {
        let numbers = [u64::MAX, number as u64];
        let entry = Entry { what, thread: u32::MAX, start_ns: 1 << 50, took_ns: 3, numbers, inode: 1 << 63 };
        assert_eq!(Entry::decode(&entry.encode()), Some(entry));
    }
    assert_eq!(Happened::decode(0, 9), None);
    assert_eq!(Happened::decode(11 + Verb::ALL.len() as u16, 0), None);
}

#[test]
fn events_have_their_times_and_names() {
    let text = json(vec![
        entry(Happened::Fault(FaultEnd::Major), 2, 1_234, 5_000),
        entry(Happened::Wait(WaitCause::Io), 2, 2_000, 1_000),
        entry(Happened::Read, 3, 1_900, 900),
        entry(Happened::Verb(Verb::Unmap, 16), 4, 0, 12),
        entry(Happened::Lock, 4, 3, 4),
    ]);
    for part in [
        r#""otherData":{"program":"p\\q","pid":9,"kept_events":5,"lost_events":7,"traced_ns":9000}"#,
        r#"{"ph":"M","pid":9,"tid":9,"name":"process_name","args":{"name":"p\\q"}}"#,
        r#"{"ph":"M","pid":9,"tid":2,"name":"thread_name","args":{"name":"a \"b\"\u000a"}}"#,
        r#""ts":1.500,"cat":"lost","name":"7 events of a thread lost before","args":{"lost":7}}"#,
        r#"{"ph":"X","pid":9,"tid":2,"cat":"fault","name":"major fault","ts":1.234,"dur":5.000,"#,
        r#""args":{"addr":"0x1000","access":"store"}}"#,
        r#""name":"wait for a read","ts":2.000,"dur":1.000,"args":{"addr":"0x1000"}}"#,
        r#"{"ph":"b","id":"0x2","pid":9,"tid":3,"cat":"io","name":"read","ts":1.900,"#,
        r#""args":{"offset":4096,"bytes":1}}"#,
        r#"{"ph":"e","id":"0x2","pid":9,"tid":3,"cat":"io","name":"read","ts":2.800}"#,
        r#""name":"munmap","ts":0.000,"dur":0.012,"args":{"addr":"0x1000","bytes":1,"errno":16}}"#,
        r#""name":"wait for lock of many""#,
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

/// The viewer drops what neither lies inside another event of its track nor beside it.
#[test]
fn events_of_a_track_are_nested() {
    let fault = Happened::Fault(FaultEnd::Minor);
    let text = json(vec![
        entry(fault, 2, 0, 1_100),
        // The second fault has begun a moment before the first was counted.
        entry(fault, 2, 1_000, 1_000),
        entry(Happened::Wait(WaitCause::Frame), 2, 1_500, 600),
        // Another track, and one that comes later.
        entry(fault, 3, 500, 5_000),
        entry(fault, 2, 2_000, 10),
    ]);
    let times: Vec<_> = text
        .lines()
        .filter(|line| line.contains("\"ph\":\"X\""))
        .map(|line| {
            let of = |key: &str| line.split_once(key).unwrap().1.split(',').next().unwrap().to_owned();
            (of("\"tid\":"), of("\"ts\":"), of("\"dur\":"))
        })
        .collect();
    let expected = [
        ("2", "0.000", "1.000"),
        ("2", "1.000", "1.000"),
        ("2", "1.500", "0.500"),
        ("2", "2.000", "0.010"),
        ("3", "0.500", "5.000"),
    ];
    assert_eq!(times, expected.map(|(tid, ts, dur)| (tid.to_owned(), ts.to_owned(), dur.to_owned())));
}

#[cfg(not(shuttle))]
#[test]
fn a_full_ring_says_what_it_lost() {
    let locks = LockStats::new();
    let born = Instant::now();
    let trace = Trace::new(48 * 8, born);
    (0..20).for_each(|n| trace.add(Happened::Reclaim, born, [n, 0]));
    let all = trace.snapshot(&locks);
    assert_eq!((all.kept(), all.lost(), all.rings.len()), (8, 12, 1));
    assert_eq!(
        all.entries.iter().map(|entry| entry.numbers[0]).collect::<Vec<_>>(),
        (12..20).collect::<Vec<_>>()
    );
    assert!(all.entries.iter().all(|entry| entry.thread == thread::id()));
}
