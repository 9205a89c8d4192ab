//! What people see of groups and of waits for memory while a run goes on, and at its end: pressure, tiers,
//! the groups inside of processes and `ctl` on them, a `high` that cannot be kept, the largest processes.

use std::time::{Duration, Instant};

use elbowroom_tests::{Command, Running, Scratch, Variant, elbowroom_exe, program};
use rustix::process::Signal;
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// The longest wait for a state that an idle machine reaches within a second.
const BOUND: Duration = Duration::from_secs(20);

fn done(words: &[&str]) -> String {
    Command::new(elbowroom_exe()).args(words).env("COLUMNS", "60").run().success().stdout
}

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&done(words)).expect("it is JSON")
}

/// Checks that the command fails with a message that contains `said`.
fn refused(words: &[&str], said: &str) {
    let outcome = Command::new(elbowroom_exe()).args(words).run();
    assert_eq!(outcome.status.code(), Some(1), "{}", outcome.report());
    let is_ours = outcome.stderr.starts_with("elbowroom: ") && !outcome.stderr.contains("panicked");
    assert!(is_ours && outcome.stderr.contains(said), "no '{said}': {}", outcome.report());
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < BOUND, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Starts a shell that runs `script`, with `$KEEPS` as the program `keeps`; a spec is the file of --group.
/// Waits until one process says that it has its memory.
fn starts(script: &str, spec: &str, options: &[&str], scratch: &Scratch) -> Running {
    let path = scratch.file("spec.toml");
    std::fs::write(&path, spec).expect("the spec can be written");
    let keeps = program("keeps").display().to_string();
    let command = Command::new("sh").args(["-c", script]).env("KEEPS", &keeps).variant(Variant::bare());
    let options = [options, &["--group", &path]].concat();
    let mut running = command.run_options(&options).maybe_unmanaged().start();
    running.wait_for_line("ready");
    running
}

const SPEC: &str =
    "[group.data.inner]\nmax = \"512M\"\n[[rule]]\ngroup = \"data.inner\"\nprogram = \"keeps\"\n";

/// The groups of the run with this name, as `ctl stat` has them.
fn groups(id: &str, name: &str) -> Vec<Value> {
    let groups = json(&["ctl", "stat", id, name, "--json"]);
    groups.as_array().expect("groups are a list").clone()
}

fn figure(group: &Value, key: &str) -> u64 {
    group[key].as_u64().unwrap_or_else(|| panic!("no {key} in {group}"))
}

#[test]
fn groups_inside_of_a_process_are_seen_and_changed() {
    let scratch = Scratch::new();
    let options = ["--memory", "256M", "--swap", "512M"];
    let running = starts("exec $KEEPS 96 still", SPEC, &options, &scratch);
    let id = running.id().to_string();
    let group = format!("{id}/data.inner");
    let one = || {
        let [group] = &groups(&id, "data.inner")[..] else { panic!("there is not one group") };
        group.clone()
    };
    let before = one();
    assert_eq!((&before["pid"], &before["name"]), (&running.id().into(), &"data.inner".into()));
    assert!((96 * MIB..100 * MIB).contains(&figure(&before, "usage_bytes")), "{before}");
    assert_eq!((figure(&before, "max_bytes"), before["high_bytes"].is_null()), (512 * MIB, true));
    assert!(figure(&before, "noted_ms_ago") < 1000 && figure(&before, "pgfault") > 0, "{before}");
    let run = json(&["ctl", "stat", &id, "--json"]);
    let names: Vec<_> = run["groups"].as_array().unwrap().iter().map(|group| group["name"].clone()).collect();
    assert_eq!(names, ["data", "data.inner"]);
    assert!(done(&["ctl", &id, "list"]).contains(&group));
    assert!(done(&["ctl", "stat", &id]).contains(&group));
    assert!(done(&["ctl", "pressure", &id]).contains(&group));

    // A smaller max of the group above holds for the one below, and is reached before the command ends.
    let said = done(&["ctl", "set", &format!("{id}/data"), "max=40M"]);
    assert!(said.starts_with(&format!("group {id}/data: max 40 MiB (was -), ")), "{said}");
    assert!(figure(&one(), "usage_bytes") <= 40 * MIB, "{}", one());
    let before = figure(&one(), "usage_bytes");
    let said = done(&["ctl", "reclaim", &group, "16M"]);
    assert!(said.starts_with(&format!("group {group}: ")) && said.ends_with(" used\n"), "{said}");
    let after = figure(&one(), "usage_bytes");
    assert!(after <= before - 16 * MIB && after >= MIB, "{before} {after}");
    done(&["ctl", &id, "set", "data", "max=none"]);
    for change in ["high=128M", "low=8M", "min=4M"] {
        done(&["ctl", "set", &group, change]);
    }
    let now = one();
    let limits = ["high_bytes", "low_bytes", "min_bytes"].map(|key| figure(&now, key));
    assert_eq!(limits, [128 * MIB, 8 * MIB, 4 * MIB]);

    refused(&["ctl", "set", &group, "max=100M"], "high, 128M, would be more than max, 100M");
    refused(
        &["ctl", "set", &format!("{id}/other"), "max=100M"],
        &format!("no group {id}/other; its groups are:"),
    );
    refused(&["ctl", "stat", &id, "other"], &format!("\n  {id}/data.inner"));
    // A stopped process does nothing, and shows what it has noted before.
    running.signal(Signal::STOP);
    refused(&["ctl", "set", &group, "max=none"], "has not done it within 2 s");
    assert!(done(&["ctl", "stat", &id, "data"]).contains(" s old)"));
    running.signal(Signal::CONT);
    wait_until("it does not answer again", || figure(&one(), "noted_ms_ago") < 1000);
    assert_eq!(figure(&one(), "max_bytes"), 512 * MIB, "a request that was given up is not done later");
    running.signal(Signal::TERM);
    let outcome = running.finish().success();
    assert!(outcome.stdout.ends_with("whole\n"), "{}", outcome.report());
}

#[test]
fn a_name_stands_for_the_groups_of_all_processes() {
    let scratch = Scratch::new();
    let script = "$KEEPS 32 still & a=$!; $KEEPS 40 still & b=$!; trap \"kill $a $b\" TERM; wait; wait";
    let running = starts(script, SPEC, &["--memory", "256M", "--swap", "512M"], &scratch);
    let id = running.id().to_string();
    let usages =
        || groups(&id, "data").iter().map(|group| figure(group, "usage_bytes") / MIB).collect::<Vec<_>>();
    wait_until("there are not both", || {
        let known = Command::new(elbowroom_exe()).args(["ctl", "stat", &id, "data"]).run().status.success();
        known && usages().iter().filter(|mib| **mib >= 32).count() == 2
    });
    refused(
        &["ctl", "reclaim", &id, "data", "1M"],
        "2 processes have such a group; name one with its process:",
    );
    let said = done(&["ctl", "set", &id, "data", "max=16M"]);
    assert_eq!(said.lines().filter(|line| line.contains("/data: max 16 MiB (was -)")).count(), 2, "{said}");
    assert!(usages().iter().all(|mib| *mib <= 16), "{:?}", usages());
    running.signal(Signal::TERM);
    let outcome = running.finish();
    assert_eq!(outcome.stdout.matches("whole\n").count(), 2, "{}", outcome.report());
}

/// A run whose process does not have its memory at once waits for it, and `top` says for what.
#[test]
fn pressure_and_tiers_are_seen() {
    let scratch = Scratch::new();
    let running = starts("exec $KEEPS 64 passes", SPEC, &["--memory", "24M", "--swap", "256M"], &scratch);
    let id = running.id().to_string();
    let row = || json(&["top", &id, "--once", "--json"])["rows"][0].clone();
    wait_until("nothing stalls", || row()["pressure"]["some"]["avg10"].as_f64() > Some(1.0));
    let (row, sample) = (row(), json(&["top", &id, "--once", "--json"]));
    let tier = |key: &str| row["tiers"][key].as_u64().unwrap_or_else(|| panic!("no {key} in {row}"));
    assert!(tier("memory_bytes") <= 24 * MIB && tier("out_bytes") >= 32 * MIB, "{row}");
    assert!(tier("swap_file_bytes") >= 16 * MIB && tier("pool_bytes") <= tier("memory_bytes"), "{row}");
    let pressure = &row["pressure"];
    let kinds = ["swap_in_us", "frames_us"].map(|key| pressure[key].as_u64().unwrap());
    assert!(kinds.iter().sum::<u64>() > 0 && pressure["file_read_us"] == 0, "{row}");
    assert!(
        row["stalls"]["address"].as_u64() > Some(0) && row["stalls"]["stall_us"].as_u64() > Some(0),
        "{row}"
    );
    assert!(sample["pressure"]["some"]["avg10"].as_f64() > Some(0.0), "{sample}");
    // The group is the only one that stalls.
    let group = &groups(&id, "data.inner")[0];
    assert!(group["some"]["avg10"].as_f64() > Some(0.0), "{group}");
    let text = done(&["ctl", "pressure", &id]);
    assert!(text.lines().any(|line| line.contains("keeps") && line.ends_with(" memory")), "{text}");
    // In 60 columns no line is longer, and all tables are there.
    let table = done(&["top", &id, "--once"]);
    assert!(table.lines().all(|line| line.chars().count() <= 60), "{table}");
    assert!(table.contains("STALLS FOR") && table.contains("POOL") && table.contains("FLT/S"), "{table}");
    running.signal(Signal::TERM);
    running.finish().success();
}

/// The file for which threads stall most has its name, although the program has closed it.
#[test]
fn the_file_that_stalls_is_named() {
    let scratch = Scratch::new();
    let file = scratch.file("tokens.bin");
    let command = Command::new(program("rereads")).args([&file, "64"]).variant(Variant::bare());
    let options = ["--memory", "16M", "--swap", "0"];
    let mut running = command.run_options(&options).maybe_unmanaged().start();
    running.wait_for_line("ready");
    let id = running.id().to_string();
    let row = || json(&["top", &id, "--once", "--json"])["rows"][0].clone();
    wait_until("no file stalls", || row()["stalls"]["path"].as_str().is_some_and(|path| path == file));
    let row = row();
    assert!(row["pressure"]["file_read_us"].as_u64() > Some(0), "{row}");
    assert!(done(&["top", &id, "--once"]).contains(" read tokens.bin\n"));
    running.signal(Signal::TERM);
    running.finish().success();
}

#[test]
fn a_high_that_cannot_be_kept_is_said_once() {
    let scratch = Scratch::new();
    let spec = "[group.data]\nhigh = \"8M\"\n[[rule]]\ngroup = \"data\"\nprogram = \"keeps\"\n";
    // Only 4 MiB can go out.
    let running = starts("exec $KEEPS 48 still", spec, &["--memory", "128M", "--swap", "4M"], &scratch);
    let id = running.id().to_string();
    // It is looked at once a second, the first time perhaps while the program still fills its memory.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(figure(&groups(&id, "data")[0], "high_stuck") > 4);
    let row = json(&["top", &id, "--once", "--json"])["rows"][0].clone();
    assert!(row["high_stuck"].as_u64() > Some(4), "{row}");
    running.signal(Signal::TERM);
    let outcome = running.finish().success();
    let said = format!("elbowroom: keeps (pid {id}): group data has ");
    assert_eq!(outcome.stderr.matches(&said).count(), 1, "{}", outcome.report());
    assert!(outcome.stderr.contains(", more than its high of 8.0 MiB, and nothing"), "{}", outcome.report());
}

#[test]
fn the_largest_processes_are_in_the_summary_if_asked_for() {
    let scratch = Scratch::new();
    let groups = program("groups").display().to_string();
    let [a, b] = ["a.bin", "b.bin"].map(|name| scratch.file(name));
    let script = format!("for mib in 4 12 8; do {groups} {a} {b} $mib; done; {groups} {a} {b} 2; exit 0");
    for verbose in [false, true] {
        let options = if verbose { &["--memory", "64M", "--verbose"][..] } else { &["--memory", "64M"] };
        let command = Command::new("sh").args(["-c", &script]).variant(Variant::bare());
        let outcome = command.run_options(options).with_summary().maybe_unmanaged().run().success();
        let at = |mib: usize| {
            // The programs have 4 * MIB each, and some have free frames at hand.
            let lines =
                outcome.stderr.lines().filter(|line| line.contains(" groups  ") && line.contains("MiB"));
            lines.filter(|line| line.ends_with(" s")).nth(mib).map(str::to_owned)
        };
        assert_eq!(outcome.stderr.contains("  largest         "), verbose, "{}", outcome.report());
        assert_eq!(at(0).is_some(), verbose, "{}", outcome.report());
        if verbose {
            let peaks: Vec<f64> = (0..)
                .map_while(at)
                .map(|line| line.split_whitespace().nth(2).and_then(|peak| peak.parse().ok()).expect(&line))
                .collect();
            assert_eq!(peaks.len(), 4, "{}", outcome.report());
            assert!(peaks.is_sorted_by(|one, next| one >= next) && peaks[0] >= 40.0, "{peaks:?}");
        }
    }
    let both = Command::new(elbowroom_exe()).args(["run", "--quiet", "--verbose", "--", "true"]).run();
    assert_eq!(both.status.code(), Some(2), "{}", both.report());
}
