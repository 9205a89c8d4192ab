//! `elbowroom top` and `ctl` with real runs: their figures are right, and their changes take effect.

use std::time::{Duration, Instant};

use elbowroom_tests::{Command, Outcome, Running, Scratch, Variant, elbowroom_exe, program, skipped};
use rustix::process::Signal;
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// The longest wait for a state that an idle machine reaches within a second.
const BOUND: Duration = Duration::from_secs(20);

/// The command with these words.
fn elbowroom(words: &[&str]) -> Command {
    Command::new(elbowroom_exe()).args(words).env("COLUMNS", "100")
}

fn done(words: &[&str]) -> String {
    elbowroom(words).run().success().stdout
}

/// Checks that the command ends with the exit status `code`, without a panic, and with a message that
/// contains `said`.
fn refused(words: &[&str], code: i32, said: &str) -> Outcome {
    let outcome = elbowroom(words).run();
    assert_eq!(outcome.status.code(), Some(code), "{}", outcome.report());
    let is_ours = outcome.stderr.starts_with("elbowroom: ") && !outcome.stderr.contains("panicked");
    assert!(is_ours && outcome.stderr.contains(said), "no '{said}': {}", outcome.report());
    outcome
}

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&done(words)).expect("it is JSON")
}

/// Starts a run of `keeps`, and waits until it has all of its memory.
fn keeps(mib: u64, manner: &str, options: &[&str]) -> Running {
    let arguments = [mib.to_string(), manner.to_owned()];
    let command = Command::new(program("keeps")).args(arguments).variant(Variant::bare());
    let mut running = command.run_options(options).maybe_unmanaged().start();
    running.wait_for_line("ready");
    running
}

/// Ends a run of `keeps`, which checks that all of its memory is as it was.
fn ends_whole(running: Running) {
    running.signal(Signal::TERM);
    let outcome = running.finish().success();
    assert!(outcome.stdout.ends_with("whole\n"), "{}", outcome.report());
}

/// A figure of a run in `ctl stat`. `id`: that of any process of the run.
fn stat(id: &str, key: &str) -> u64 {
    let run = json(&["ctl", "stat", id, "--json"]);
    run[key].as_u64().unwrap_or_else(|| panic!("no {key} in {run}"))
}

fn row(id: &str, pid: &str, key: &str) -> u64 {
    let run = json(&["ctl", "stat", id, "--json"]);
    let rows = run["rows"].as_array().expect("rows are a list").iter();
    let row = rows.clone().find(|row| row["pid"].as_u64() == pid.parse().ok());
    row.and_then(|row| row[key].as_u64()).unwrap_or_else(|| panic!("no {key} of {pid} in {run}"))
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < BOUND, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_run_is_listed_and_described_until_it_ends() {
    let running = keeps(32, "still", &["--memory", "64M", "--swap", "128M"]);
    let id = running.id().to_string();
    let is_there = || {
        let list = json(&["ctl", "list", "--json"]);
        let runs = list.as_array().expect("runs are a list").clone();
        runs.into_iter().find(|run| run["run"].as_u64() == id.parse().ok())
    };
    let run = is_there().expect("the run is listed");
    assert_eq!((&run["command"], &run["pids"]), (&"keeps".into(), &vec![running.id()].into()));
    assert_eq!(run["max_bytes"], 64 * MIB);
    assert!((32 * MIB..=64 * MIB).contains(&run["bytes"].as_u64().unwrap()), "{run}");
    let list = done(&["ctl", "list"]);
    assert!(
        list.lines().next().is_some_and(|titles| titles.trim_start().starts_with("RUN  COMMAND")),
        "{list}"
    );
    assert!(list.lines().any(|line| line.trim_start().starts_with(&id) && line.contains("64 MiB")), "{list}");

    // The run may be named first.
    assert_eq!(json(&["ctl", &id, "stat", "--json"])["run"], running.id());
    let run = json(&["ctl", "stat", &id, "--json"]);
    assert_eq!((&run["run"], &run["swap_max_bytes"]), (&running.id().into(), &(128 * MIB).into()));
    assert_eq!((run["rows"].as_array().map(Vec::len), &run["processes"]), (Some(1), &1.into()));
    let row = &run["rows"][0];
    assert_eq!(
        (&row["pid"], &row["name"], &row["is_gone"]),
        (&running.id().into(), &"keeps".into(), &false.into())
    );
    assert!(row["bytes"].as_u64() >= Some(32 * MIB) && row["peak_bytes"].as_u64() >= row["bytes"].as_u64());
    // The process notes its counters once in a second.
    wait_until("no faults are counted", || stat_row(&id, "faults") > 0);
    let text = done(&["ctl", "stat", &id]);
    assert!(text.contains("max        64 MiB\n") && text.contains("keeps"), "{text}");

    ends_whole(running);
    assert!(is_there().is_none(), "the run has ended");
    let outcome = elbowroom(&["ctl", "stat", &id]).run();
    let said = ["no run has a process", "there is no run"].iter().any(|said| outcome.stderr.contains(said));
    assert!(said && outcome.status.code() == Some(1), "{}", outcome.report());
}

/// A figure of the only process of a run.
fn stat_row(id: &str, key: &str) -> u64 {
    row(id, id, key)
}

#[test]
fn a_smaller_max_is_reached_and_a_larger_one_is_used() {
    let running = keeps(96, "passes", &["--memory", "160M", "--swap", "512M"]);
    let id = running.id().to_string();
    assert!(stat(&id, "bytes") > 96 * MIB);
    let said = done(&["ctl", "set", &id, "max=48M"]);
    assert!(said.starts_with(&format!("run {id}: max 48 MiB (was 160 MiB), ")), "{said}");
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        let run = json(&["ctl", "stat", &id, "--json"]);
        assert_eq!(run["max_bytes"], 48 * MIB);
        assert!(run["bytes"].as_u64() <= Some(48 * MIB) && run["bytes"].as_u64() > Some(8 * MIB), "{run}");
    }
    // Pages come back from swap again and again, and `top` shows that.
    let table = done(&["top", "--once", &id]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with(&format!("run {id}  keeps  up 0:0")), "{table}");
    assert!(lines[1].starts_with("mem  [|") && lines[1].contains(" of 48M, peak "), "{table}");
    let titles = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
    let cell = |line: usize, title: &str| {
        let cells: Vec<&str> = lines[line].split_whitespace().collect();
        cells[titles(line - 1).iter().position(|each| *each == title).unwrap()]
    };
    assert_eq!((titles(5).len(), titles(6).len(), lines.len()), (12, 12, 13), "{table}");
    assert_eq!((cell(6, "PID"), cell(6, "NAME")), (id.as_str(), "keeps"));
    let rate = cell(6, "FLT/S");
    assert!(rate.starts_with(|c: char| c.is_ascii_digit()) && rate != "0", "{table}");
    assert!(cell(6, "SWAP").ends_with('M'), "{table}");
    assert!(!lines[3].starts_with("flt 0/s") && lines[3].contains("  swap in "), "{table}");
    // So its thread waits for memory, and the other tables say so.
    assert!(lines[4].starts_with("some ") && !lines[4].starts_with("some 0.0 0.0"), "{table}");
    assert!(cell(9, "SOME10") != "0.0" && cell(9, "SOME10") != "-", "{table}");
    assert!(["swap-in", "frames"].iter().any(|kind| lines[9].contains(kind)), "{table}");
    assert!(cell(12, "OUT").ends_with('M') && cell(12, "FILE").ends_with('M'), "{table}");

    done(&["ctl", "set", &id, "max=160M"]);
    wait_until("the memory is not used again", || stat(&id, "bytes") > 90 * MIB);
    ends_whole(running);
}

#[test]
fn a_process_gives_memory_back_also_below_its_protection() {
    // What describes pages that go out needs memory, which the process takes by blocks of 2 MiB.
    const AGAIN: u64 = 4 * MIB;
    let running = keeps(96, "still", &["--memory", "256M", "--swap", "512M"]);
    let id = running.id().to_string();
    // The process takes memory ahead of need until it has some at hand. The thread that does so looks once a
    // second at the latest, also if other programs delay it.
    let (mut before, mut since) = (0, Instant::now());
    wait_until("it takes ever more", || {
        let now = stat(&id, "bytes");
        if now != std::mem::replace(&mut before, now) {
            since = Instant::now();
        }
        since.elapsed() > Duration::from_millis(1_500)
    });
    let said = done(&["ctl", "reclaim", &id, "40M"]);
    assert!(said.starts_with(&format!("process {id}: ")) && said.ends_with(" before\n"), "{said}");
    let after = stat(&id, "bytes");
    assert!(before - after >= 40 * MIB - AGAIN && after >= 40 * MIB, "{before} {after}");
    let said = done(&["ctl", "set", &id, "low=80M"]);
    assert!(said.starts_with(&format!("process {id}: low 80 MiB, ")), "{said}");
    assert_eq!(stat_row(&id, "low_bytes"), 80 * MIB);
    done(&["ctl", "reclaim", &id, "20M"]);
    let then = stat(&id, "bytes");
    assert!(then <= after - 20 * MIB + AGAIN, "{after} {then}");
    // Each process keeps 4 MiB and what describes its pages. To ask for more than the rest is no error.
    done(&["ctl", "reclaim", &id, "1G"]);
    let rest = stat(&id, "bytes");
    assert!((4 * MIB..=22 * MIB + AGAIN).contains(&rest), "{rest}");
    // An idle process does not take any of it again.
    std::thread::sleep(Duration::from_secs(2));
    let later = stat(&id, "bytes");
    assert!(later <= rest + AGAIN, "{rest} {later}");
    ends_whole(running);
}

/// A process gives memory to another process of its run, but not its protected memory.
#[test]
fn protected_memory_stays() {
    for low in [false, true] {
        let scratch = Scratch::new();
        let (keeps, go) = (program("keeps").display().to_string(), scratch.file("go"));
        let script =
            format!("{keeps} 64 still & while [ ! -e {go} ]; do sleep 0.05; done\n{keeps} 256 passes & wait");
        let options = ["--memory", "128M", "--swap", "1G"];
        let command = Command::new("sh").args(["-c", &script]).variant(Variant::bare());
        let mut running = command.run_options(&options).maybe_unmanaged().start();
        running.wait_for_line("ready");
        let id = running.id().to_string();
        let named = |nth: usize| {
            let run = json(&["ctl", "stat", &id, "--json"]);
            let rows = run["rows"].as_array().expect("rows are a list").iter();
            let mut all = rows.filter(|row| row["name"] == "keeps").map(|row| row["pid"].to_string());
            all.nth(nth)
        };
        let quiet = named(0).expect("the first process is there");
        if low {
            done(&["ctl", "set", &quiet, "low=64M"]);
        }
        std::fs::write(&go, "").unwrap();
        wait_until("the second process is not there", || named(1).is_some());
        let least = || row(&id, &quiet, "bytes");
        if low {
            let until = Instant::now() + Duration::from_secs(4);
            while Instant::now() < until {
                assert!(least() >= 64 * MIB, "{}", least());
            }
        } else {
            wait_until("the quiet process gives nothing", || least() < 40 * MIB);
        }
        // Any process of a run stands for the run.
        assert_eq!(stat(&quiet, "run"), u64::from(running.id()));
        drop(running);
    }
}

#[test]
fn a_stopped_process_gives_nothing_and_is_seen() {
    let running = keeps(64, "still", &["--memory", "128M", "--swap", "256M"]);
    let id = running.id().to_string();
    running.signal(Signal::STOP);
    refused(&["ctl", "set", &id, "max=32M"], 1, "still has");
    refused(&["ctl", "reclaim", &id, "16M"], 1, "within 2 s");
    assert!(stat(&id, "bytes") > 64 * MIB && stat(&id, "max_bytes") == 32 * MIB);
    assert!(done(&["top", "--once", &id]).contains("keeps"));
    running.signal(Signal::CONT);
    wait_until("the budget is not kept", || stat(&id, "bytes") <= 32 * MIB);
    ends_whole(running);
}

#[test]
fn a_recording_is_made_until_the_run_ends_and_can_be_replayed() {
    let scratch = Scratch::new();
    let file = scratch.file("night.top");
    let running = keeps(32, "passes", &["--memory", "16M", "--swap", "128M"]);
    let id = running.id().to_string();
    let recorder = elbowroom(&["top", &id, "--record", &file, "--interval", "100ms"]).start();
    std::thread::sleep(Duration::from_secs(3));
    ends_whole(running);
    let outcome = recorder.finish().success();
    assert_eq!(outcome.stdout, "");
    assert!(
        outcome.stderr.starts_with(&format!("elbowroom: run {id} has ended after 0:0")),
        "{}",
        outcome.stderr
    );

    let lines = done(&["top", "--replay", &file, "--json"]);
    let samples: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!((15..60).contains(&samples.len()), "{} samples", samples.len());
    assert!(samples.windows(2).all(|pair| pair[0]["at_ms"].as_u64() < pair[1]["at_ms"].as_u64()));
    let faults = |sample: &Value| sample["rows"][0]["faults"].as_u64().unwrap();
    assert!(faults(&samples[0]) < faults(&samples[samples.len() - 2]));
    let table = done(&["top", "--replay", &file, "--once"]);
    assert!(table.starts_with(&format!("run {id}  ")), "{table}");
    // The peak is that of the run, and what the last block of memory lacks may be in it.
    let peak = table.split_once(" of 16M, peak ").and_then(|(_, rest)| rest.split_once('M'));
    let peak: f64 = peak.and_then(|(peak, _)| peak.parse().ok()).unwrap_or_else(|| panic!("{table}"));
    assert!((14.0..=16.0).contains(&peak), "{table}");
    let one: Value = serde_json::from_str(&done(&["top", "--replay", &file, "--once", "--json"])).unwrap();
    assert_eq!(&one, samples.last().unwrap());
    refused(&["top", "--replay", &file], 2, "say --once");
}

#[test]
fn json_goes_on_until_the_run_ends() {
    let running = keeps(32, "still", &["--memory", "64M", "--swap", "128M"]);
    let id = running.id().to_string();
    let top = elbowroom(&["top", &id, "--json", "--interval", "200ms"]).start();
    wait_until("there are no samples", || top.stdout().lines().count() > 3);
    ends_whole(running);
    let outcome = top.finish().success();
    assert_eq!(outcome.stderr, "");
    for line in outcome.stdout.lines() {
        let sample: Value = serde_json::from_str(line).expect("each line is an object");
        assert_eq!((sample["run"].to_string(), &sample["max_bytes"]), (id.clone(), &(64 * MIB).into()));
    }
}

/// On a terminal the view is drawn, and the terminal is as before after a key or a signal has ended the
/// view.
#[test]
fn the_terminal_is_put_back() {
    if !std::path::Path::new("/usr/bin/script").exists() {
        return skipped("there is no `script`, which makes terminals");
    }
    let running = keeps(32, "still", &["--memory", "64M", "--swap", "128M"]);
    let (id, exe) = (running.id(), elbowroom_exe().display().to_string());
    for (keys, before, colour) in
        [("?xq", "", true), ("\u{3}", "", true), ("", "timeout --foreground 2 ", true), ("q", "", false)]
    {
        let inside =
            format!("stty rows 30 cols 80; stty -g; {before}{exe} top {id}; echo status $?; stty -g");
        let script = format!("(sleep 1; printf '{keys}'; sleep 4) | script -qec '{inside}' /dev/null");
        let no_colour = if colour { "" } else { "1" };
        let command =
            Command::new("sh").args(["-c", &script]).env("TERM", "xterm").env("NO_COLOR", no_colour);
        let outcome = command.run();
        let text = outcome.stdout.replace('\r', "");
        let lines: Vec<&str> = text.lines().collect();
        let (first, last) = (lines[0], lines[lines.len() - 1]);
        assert!(first.len() > 20 && first == last, "{keys:?}: {text:?}");
        let (enter, leave) = ("\u{1b}[?1049h", "\u{1b}[?1049l");
        let drawn = text.split(enter).nth(1).and_then(|rest| rest.split(leave).next()).expect("a screen");
        for word in ["keeps", "mem", "FLT/S", "64M", "filter"] {
            assert!(drawn.contains(word), "no {word}: {drawn:?}");
        }
        assert_eq!(drawn.contains("\u{1b}[38;5;"), colour, "{drawn:?}");
        // `timeout` exits with 124 if it had to end the command.
        let status = if before.is_empty() { "status 0" } else { "status 124" };
        assert!(text.contains(status) && !text.contains("panicked"), "{text:?}");
        assert_eq!(text.contains("refaults"), keys.contains('?'));
    }
    ends_whole(running);
}

#[test]
fn what_cannot_be_done_is_said() {
    let none = "4194000";
    for words in [&["ctl", "stat", none][..], &["ctl", "set", none, "max=1G"], &["top", "--once", none]] {
        let outcome = elbowroom(words).run();
        let said = ["no run has a process 4194000", "there is no run of this user: start one with"];
        assert!(said.iter().any(|said| outcome.stderr.contains(said)), "{}", outcome.report());
        assert_eq!(outcome.status.code(), Some(1));
    }
    let runs = [(); 2].map(|()| keeps(32, "still", &["--memory", "64M", "--swap", "128M"]));
    let [id, other] = [0, 1].map(|at: usize| runs[at].id().to_string());
    for words in [&["ctl", "stat"][..], &["ctl", "set", "max=1G"], &["top", "--once"]] {
        let said = refused(words, 1, " runs; name one by its id:").stderr;
        let is_listed =
            |id: &str| said.lines().any(|line| line.starts_with(&format!("  {id}  keeps  1 process, ")));
        assert!(is_listed(&id) && is_listed(&other), "{said}");
    }
    refused(&["ctl", "set", &id, "low=1T"], 1, &format!("elbowroom ctl set {id} max=1T"));
    refused(&["ctl", "set", &id, "max=15M"], 2, "it must be at least 16M");
    refused(&["ctl", "set", "low=1M"], 2, "elbowroom ctl set PID low=1M");
    refused(&["ctl", "set", &id, "high=1M"], 2, "high is of a group");
    refused(&["ctl", "set", &id, "swiftness=1"], 2, "there is no limit 'swiftness'");
    refused(&["ctl", "stat", &id, "cache"], 1, "no process of run");
    refused(&["ctl", "set", &id], 2, "max=SIZE");
    refused(&["ctl", "reclaim", &id], 2, "SIZE");
    refused(&["ctl", "reclaim", &id, "1 furlong"], 2, "not a unit");
    let help = elbowroom(&["ctl"]).run();
    assert!(
        help.status.code() == Some(2) && help.stderr.contains("elbowroom ctl reclaim"),
        "{}",
        help.report()
    );
    assert_eq!((stat(&id, "max_bytes"), stat_row(&id, "low_bytes")), (64 * MIB, 0), "nothing was changed");
    refused(&["top", &id], 2, "standard output is no terminal: say --once");
    refused(&["top", &id, "--interval", "5"], 2, "needs a unit");
    refused(&["top", &id, "--interval", "1ms"], 2, "100ms to 1h");
    refused(&["top", &id, "--record", "/no/such/file"], 2, "cannot be written");
    refused(&["top", "--replay", "/etc/passwd", "--once"], 1, "this is no recording");
    refused(&["top", "--replay", "/no/such/file", "--once"], 1, "No such file");
    runs.into_iter().for_each(ends_whole);
}
