//! The trace of a whole run: `--trace`, against the statistics, and both against what a program has counted.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use elbowroom_tests::source::Source;
use elbowroom_tests::{Command, Outcome, Pattern, Scratch, Variant, behaviour, program};
use serde_json::Value;

/// So few that no store is throttled: a store whose page is written back while it waits faults once more.
const PAGES: u64 = 601;
const BYTES: u64 = PAGES * 4096;

/// What a trace file has.
struct Trace {
    kept: u64,
    lost: u64,
    events: Vec<Value>,
}

fn text<'e>(event: &'e Value, key: &str) -> &'e str {
    event[key].as_str().unwrap_or_default()
}

impl Trace {
    fn of(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let text = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let all: Value = serde_json::from_slice(&text).expect("the trace is JSON");
        let other = |key: &str| all["otherData"][key].as_u64().unwrap_or_else(|| panic!("no number {key}"));
        let events = all["traceEvents"].as_array().expect("there is a list of events").clone();
        Self { kept: other("kept_events"), lost: other("lost_events"), events }
    }

    /// The events of a category, but for the ends of those in two parts.
    fn of_kind(&self, category: &str) -> Vec<&Value> {
        let begins = |event: &&Value| text(event, "cat") == category && text(event, "ph") != "e";
        self.events.iter().filter(begins).collect()
    }

    fn named(&self, name: &str) -> Vec<&Value> {
        self.events.iter().filter(|event| text(event, "name") == name && text(event, "ph") != "e").collect()
    }

    fn sum(&self, name: &str, argument: &str) -> u64 {
        self.named(name).iter().map(|event| event["args"][argument].as_u64().unwrap()).sum()
    }
}

/// A run of `touched`, traced.
fn touched(
    scratch: &Scratch,
    variant: Variant,
    threads: u64,
    mode: &str,
    options: &[&str],
) -> (Outcome, Trace) {
    let (file, trace) = (scratch.file("data"), scratch.file("trace.json"));
    Pattern::create(&file, BYTES, 5);
    let mut all = vec!["--trace", &trace];
    all.extend(options);
    let command = Command::new(program("touched")).args([&file, &threads.to_string(), mode]);
    let outcome = command.variant(variant).run_options(&all).run();
    assert_eq!(outcome.stdout.lines().next(), Some(PAGES.to_string().as_str()), "{}", outcome.report());
    let trace = Trace::of(&trace);
    (outcome, trace)
}

/// The program knows how many pages it has touched first, and stored to first: the statistics and the trace
/// say the same.
fn agrees_with_the_program(variant: Variant) {
    let (outcome, trace) = touched(&Scratch::new(), variant, 3, "store", &[]);
    let outcome = outcome.success();
    assert_eq!(trace.lost, 0);
    // Every page is read once, and faults twice: the first time and for its first store. A fault that another
    // has overtaken may be one more.
    let spurious = outcome.stat("faults_spurious");
    assert_eq!((outcome.stat("reads"), outcome.stat("read_bytes")), (PAGES, BYTES));
    assert_eq!(outcome.stat("throttled_writers"), 0);
    assert_eq!(outcome.stat("pgfault"), 2 * PAGES + spurious, "{:?}", spurious);
    assert_eq!(outcome.stat("pgmajfault"), PAGES);
    assert_eq!((outcome.stat("faults_denied"), outcome.stat("faults_foreign")), (0, 0));
    assert_eq!(outcome.stat("written_bytes"), BYTES);
    // The latencies are of the same faults.
    let latency = |kind: &str| outcome.stats.as_ref().unwrap()["latency"][kind].clone();
    let count = |kind: &str| latency(kind)["count"].as_u64().unwrap();
    assert_eq!((count("minor"), count("major"), count("pin")), (PAGES + spurious, PAGES, 0));
    for kind in ["minor", "major"] {
        let of = |key: &str| latency(kind)[key].as_u64().unwrap();
        let rising = ["p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"].map(of);
        assert!(rising.is_sorted() && rising[0] > 0 && of("mean_ns") <= of("max_ns"), "{:?}", latency(kind));
    }
    // And so is the trace.
    let faults = trace.of_kind("fault");
    assert_eq!(faults.len() as u64, outcome.stat("pgfault"));
    assert_eq!(trace.named("major fault").len() as u64, PAGES);
    let addresses: BTreeSet<&str> = faults.iter().map(|fault| text(&fault["args"], "addr")).collect();
    assert_eq!(addresses.len() as u64, PAGES);
    let stores = faults.iter().filter(|fault| text(&fault["args"], "access") == "store").count() as u64;
    assert_eq!(stores, PAGES + faults.len() as u64 - 2 * PAGES);
    assert_eq!((trace.named("read").len() as u64, trace.sum("read", "bytes")), (PAGES, BYTES));
    assert_eq!(trace.sum("write", "bytes"), BYTES);
    let offsets: BTreeSet<u64> =
        trace.named("read").iter().map(|read| read["args"]["offset"].as_u64().unwrap()).collect();
    assert_eq!(offsets, (0..PAGES).map(|page| page * 4096).collect());
    assert_eq!(trace.named("wait for a read").len() as u64, outcome.stat("retry_mmap_drop"));
    assert_eq!(
        (trace.named("mmap").len(), trace.named("madvise").len(), trace.named("msync").len()),
        (1, 1, 1)
    );
    // Three threads have faulted, and each of their major faults has its wait inside it.
    let threads: BTreeSet<u64> = faults.iter().map(|fault| fault["tid"].as_u64().unwrap()).collect();
    assert!(threads.len() >= 3 && threads.len() <= 6, "{threads:?}");
    assert_nested(&trace);
}
behaviour!(agrees_with_the_program: m64, copy, threads, handlers1);

/// What is on one track lies inside each other or beside each other, or the viewer drops it; and each part of
/// an event in two parts has the other.
fn assert_nested(trace: &Trace) {
    let mut tracks: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    let mut open: BTreeMap<String, i64> = BTreeMap::new();
    let ns = |value: &Value| (value.as_f64().unwrap() * 1000.0).round() as u64;
    for event in &trace.events {
        match text(event, "ph") {
            "X" => {
                let start = ns(&event["ts"]);
                let tracks = tracks.entry(event["tid"].as_u64().unwrap()).or_default();
                tracks.push((start, start + ns(&event["dur"])));
            }
            "b" => *open.entry(text(event, "id").to_owned()).or_default() += 1,
            "e" => *open.entry(text(event, "id").to_owned()).or_default() -= 1,
            _ => {}
        }
    }
    assert!(!open.is_empty() && open.values().all(|&left| left == 0));
    for (track, mut spans) in tracks {
        spans.sort_by_key(|&(start, end)| (start, u64::MAX - end));
        let mut around: Vec<u64> = Vec::new();
        for (start, end) in spans {
            while around.last().is_some_and(|&outer| outer <= start) {
                around.pop();
            }
            assert!(around.last().is_none_or(|&outer| end <= outer), "track {track}: {start}..{end}");
            around.push(end);
        }
    }
}

/// What there is no room for is said to be lost.
fn overflow_is_told(variant: Variant) {
    let (outcome, trace) = touched(&Scratch::new(), variant, 1, "load", &["--trace-buffer", "4K"]);
    outcome.success();
    assert_eq!(trace.kept, trace.of_kind("fault").len() as u64 + kept_besides(&trace));
    // A fault, its wait, its read, and a handler that serves it, twice.
    assert!(trace.lost > 4 * PAGES - trace.kept && trace.kept + trace.lost < 12 * PAGES, "{}", trace.lost);
    let told: u64 = trace.of_kind("lost").iter().map(|event| event["args"]["lost"].as_u64().unwrap()).sum();
    assert_eq!(told, trace.lost);
    // 85 records of 48 bytes, of each of a few threads.
    assert!(trace.kept <= 85 * 20, "{}", trace.kept);
    assert_nested(&trace);
}
behaviour!(overflow_is_told: m64);

fn kept_besides(trace: &Trace) -> u64 {
    let other = |event: &&Value| {
        let [kind, phase] = ["cat", "ph"].map(|key| text(event, key));
        !matches!(kind, "fault" | "lost") && !matches!(phase, "M" | "e")
    };
    trace.events.iter().filter(other).count() as u64
}

/// A process that a signal ends writes its trace, as it writes its statistics.
fn written_when_a_signal_ends_it(variant: Variant) {
    let (outcome, trace) = touched(&Scratch::new(), variant, 1, "signal", &[]);
    assert_eq!(outcome.status.signal(), Some(15), "{}", outcome.report());
    assert_eq!(trace.of_kind("fault").len() as u64, outcome.stat("pgfault"));
}
behaviour!(written_when_a_signal_ends_it: m64);

/// A child that gets a manager has a trace of its own.
fn children_have_their_own(variant: Variant) {
    let scratch = Scratch::new();
    let (outcome, trace) = touched(&scratch, variant, 1, "fork", &[]);
    let child = outcome.success().stdout.lines().last().expect("it says who").to_owned();
    let of_child = Trace::of(format!("{}.{child}", scratch.file("trace.json")));
    assert!(trace.of_kind("fault").len() as u64 >= PAGES);
    let pids =
        |trace: &Trace| trace.events.iter().map(|e| e["pid"].as_u64().unwrap()).collect::<BTreeSet<_>>();
    assert_eq!(pids(&of_child), [child.parse().unwrap()].into());
    assert_ne!(pids(&trace), pids(&of_child));
    assert!(of_child.of_kind("fault").len() as u64 >= PAGES);
}
behaviour!(children_have_their_own: m64);

/// A program of which nothing is managed has an empty trace.
#[test]
fn nothing_managed() {
    let scratch = Scratch::new();
    let path = scratch.file("trace.json");
    let command = Command::new("true").variant(Variant::m16()).run_options(&["--trace", &path]);
    command.maybe_unmanaged().run().success();
    let trace = Trace::of(path);
    assert_eq!((trace.kept, trace.lost, trace.events.len()), (0, 0, 0));
}

/// A file that cannot be written is an error before the program has done anything.
#[test]
fn what_cannot_be_written_is_said_first() {
    let scratch = Scratch::new();
    let (beyond, same) = (scratch.file("no/trace"), scratch.file("both"));
    for (options, words) in [
        (vec!["--trace", &beyond], "--trace: "),
        (vec!["--trace", "/proc"], "is a directory"),
        (vec!["--trace", &same, "--trace-buffer", "1"], "4K to 1G"),
        (vec!["--trace-buffer", "1M"], "--trace <FILE>"),
    ] {
        let command = Command::new("echo").args(["started"]).variant(Variant::m16()).run_options(&options);
        let outcome = command.maybe_unmanaged().run();
        assert_eq!(outcome.status.code(), Some(2), "{}", outcome.report());
        assert!(
            outcome.stderr.starts_with("elbowroom: ") && outcome.stderr.contains(words),
            "{}",
            outcome.report()
        );
        assert_eq!(outcome.stdout, "");
    }
}

/// docs/trace.md has every event.
#[test]
fn events_are_documented() {
    let document = Source::read("docs/trace.md").text;
    let code = Source::read("crates/elbowroom/src/trace/json.rs").text;
    let names: Vec<&str> = code
        .lines()
        .filter(|line| line.trim_start().starts_with("Happened::") && line.contains("=> \""))
        .filter_map(|line| line.split('"').nth(1))
        .collect();
    assert!(names.len() > 25, "{names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !document.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/trace.md does not have {missing:?}");
}
