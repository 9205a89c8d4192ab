//! The lock statistics of a whole run: `--contention`, and the key `locks` of `--stats`.

use std::collections::BTreeSet;

use elbowroom_tests::source::Source;
use elbowroom_tests::{Command, Outcome, Pattern, Scratch, Variant, behaviour, program};
use serde_json::Value;

/// More threads that wait for reads than the budget has room for.
fn crowd(scratch: &Scratch, variant: Variant, options: &[&str]) -> Outcome {
    let prefix = scratch.file("data");
    Pattern::create_many(&prefix, 60, 1_500_000);
    let command = Command::new(program("many_threads")).args([&prefix, "60", "2"]);
    command.variant(variant).run_options(options).run().success()
}

fn rows<'o>(outcome: &'o Outcome, key: &str) -> &'o [Value] {
    let stats = outcome.stats.as_ref().unwrap_or_else(|| panic!("no statistics\n{}", outcome.report()));
    stats["locks"][key].as_array().unwrap_or_else(|| panic!("no locks.{key} in {stats}"))
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {row}"))
}

fn sum(rows: &[Value], key: &str, of: impl Fn(&Value) -> bool) -> u64 {
    rows.iter().filter(|row| of(row)).map(|row| number(row, key)).sum()
}

fn assert_consistent(rows: &[Value]) {
    for row in rows {
        let decades: u64 =
            row["waits_by_decade"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(decades, number(row, "contended"), "{row}");
        let [average, most, total] =
            ["wait_average_ns", "wait_max_ns", "wait_ns"].map(|key| number(row, key));
        assert!(average <= most && most <= total, "{row}");
        assert!(number(row, "hold_average_ns") <= number(row, "hold_max_ns"), "{row}");
    }
    let waits: Vec<_> = rows.iter().map(|row| number(row, "wait_ns")).collect();
    assert!(waits.is_sorted_by(|one, next| one >= next), "{waits:?}");
}

fn locks_are_in_the_statistics(variant: Variant) {
    let scratch = Scratch::new();
    let outcome = crowd(&scratch, variant, &["--contention"]);
    let (by_lock, by_caller) = (rows(&outcome, "by_lock"), rows(&outcome, "by_caller"));
    assert_consistent(by_lock);
    assert_consistent(by_caller);
    // 60 threads have mapped a file and unmapped it.
    let of = |name: &'static str| move |row: &Value| row["lock"] == name;
    assert!(sum(by_lock, "acquisitions", |row| row["lock"] == "layout" && row["mode"] == "write") >= 120);
    for key in ["contended", "wait_ns"] {
        let parts = sum(by_caller, key, |_| true);
        assert_eq!(sum(by_lock, key, |_| true), parts, "{key}");
    }
    // The same waits, counted by the fault path: a few of those end before they begin.
    let folio = |row: &Value| row["lock"] == "folio" || row["lock"] == "folio-io";
    let by_faults =
        |row: &Value| folio(row) && row["caller"].as_str().is_some_and(|at| at.contains("/fault/"));
    let waits = sum(by_caller, "contended", by_faults);
    let counted = ["retry_mmap_drop", "waits_for_writeback", "waits_for_locks", "uptodate_waits"];
    let counted = counted.map(|key| outcome.stat(key));
    let counted = counted.iter().sum::<u64>();
    assert!(waits > 100 && waits <= counted && waits > counted / 2, "{waits} of {counted}: {by_caller:?}");
    assert!(sum(by_lock, "wait_ns", of("folio-io")) > 1_000_000, "{by_lock:?}");
    let (taken, measured) = ("acquisitions", "holds_measured");
    assert!(sum(by_lock, measured, of("cache")) > sum(by_lock, taken, of("cache")) / 2, "{by_lock:?}");
    // The summary is left out, the table is not.
    let said = &outcome.stderr;
    assert!(said.starts_with("elbowroom: locks of many_threads (pid "), "{said}");
    for part in ["most total wait first", "how long they waited", "folio-io", "layout (write)", " ms "] {
        assert!(said.contains(part), "no {part} in {said}");
    }
    assert!(said.lines().any(|line| line.contains("folio-io, crates/elbowroom/src/")), "{said}");
}
behaviour!(locks_are_in_the_statistics: m16, copy);

/// Without the option the table is not printed; counts and waits are there, and few holds are measured.
fn nobody_asked(variant: Variant) {
    let outcome = crowd(&Scratch::new(), variant, &[]);
    assert_eq!(outcome.stderr, "");
    let by_lock = rows(&outcome, "by_lock");
    assert_consistent(by_lock);
    let all = |key| sum(by_lock, key, |_| true);
    assert!(all("contended") > 0 && all("holds_measured") < all("acquisitions") / 100, "{by_lock:?}");
}
behaviour!(nobody_asked: m16);

/// A program of which nothing is managed has no locks.
fn nothing_managed(variant: Variant) {
    let outcome = Command::new("true").variant(variant).run_options(&["--contention"]);
    let outcome = outcome.maybe_unmanaged().run().success();
    assert_eq!(outcome.stderr, "elbowroom: no locks were used: nothing was managed\n");
    assert!(rows(&outcome, "by_lock").is_empty() && rows(&outcome, "by_caller").is_empty());
}
behaviour!(nothing_managed: m16);

/// All keys of an object and of what is in it, but for those that are names of something.
fn keys(value: &Value, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                all.insert(key.clone());
                keys(value, all);
            }
        }
        Value::Array(elements) => elements.iter().for_each(|element| keys(element, all)),
        _ => {}
    }
}

/// docs/stats.md has every key, and says so in the part that is about `--stats`.
fn keys_are_documented(variant: Variant) {
    let outcome = crowd(&Scratch::new(), variant, &[]);
    let mut all = BTreeSet::new();
    keys(outcome.stats.as_ref().expect("there are statistics"), &mut all);
    assert!(all.len() > 50, "{all:?}");
    let document = Source::read("docs/stats.md").text;
    let part = document.split("\n## ").find(|part| part.contains("`elbowroom run --stats FILE`"));
    let part = part.expect("the document has a part about --stats");
    let missing: Vec<_> = all.iter().filter(|key| !part.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "docs/stats.md does not have {missing:?}");
}
behaviour!(keys_are_documented: m16);
