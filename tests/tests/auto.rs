//! `--memory auto`: a run has as much memory as it needs.

use elbowroom_tests::{Scratch, elbowroom_exe, program};
use std::process::{Command, Output, Stdio};

const MIB: u64 = 1 << 20;

fn run(options: &[&str], arguments: &[&str]) -> Output {
    run_program(options, "needs", arguments)
}

fn run_program(options: &[&str], name: &str, arguments: &[&str]) -> Output {
    let scratch = Scratch::new();
    let mut command = Command::new(elbowroom_exe());
    command.args(["run", "--config", "none", "--swap-dir", &scratch.file("")]).args(options);
    command.arg("--").arg(program(name)).args(arguments);
    command.stdin(Stdio::null()).output().expect("it can be run")
}

/// The statistics of a run that must succeed, and how often the program used a page.
fn stats(options: &[&str], arguments: &[&str]) -> (serde_json::Value, u64) {
    let scratch = Scratch::new();
    let file = scratch.file("stats");
    let all: Vec<_> = options.iter().copied().chain(["--quiet", "--stats", &file]).collect();
    let Output { status, stdout, stderr } = run(&all, arguments);
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
    let said = String::from_utf8(stdout).unwrap();
    let uses = said.strip_suffix(" uses\n").and_then(|uses| uses.parse().ok());
    let text = std::fs::read(&file).expect("the statistics are there");
    (serde_json::from_slice(&text).unwrap(), uses.unwrap_or_else(|| panic!("{said:?}")))
}

/// What a program does not use goes out, and what it uses stays; what went out comes back with its bytes.
#[test]
fn a_run_has_what_it_needs() {
    // Much may be lost, and there is more time if that was not enough: while all processors have other work,
    // pages go slowly.
    let options = ["--memory", "auto", "--memory-max", "512M", "--slowdown", "50%"];
    for seconds in ["8", "16", "32"] {
        let (stats, _) = stats(&options, &["192", "24", seconds]);
        let bytes = |key: &str| stats[key].as_u64().unwrap_or_else(|| panic!("{key}"));
        let (allocated, needed) = (bytes("allocated_bytes"), bytes("needed_bytes"));
        assert!((192 * MIB..220 * MIB).contains(&allocated), "{allocated}");
        assert!(bytes("budget_bytes") == 512 * MIB && stats["run"]["max_bytes"] == 512 * MIB);
        if needed < allocated / 4 * 3 {
            assert!(needed > 24 * MIB && bytes("pswpout") > 10_000, "{needed}");
            return;
        }
        eprintln!("{needed} of {allocated} bytes in {seconds} s");
    }
    panic!("pages that are not used stay");
}

/// The limit is hard.
#[test]
fn a_run_never_has_more_than_it_may() {
    let (stats, _) = stats(&["--memory", "auto", "--memory-max", "64M"], &["128", "24", "2"]);
    for key in ["peak_bytes", "needed_bytes"] {
        assert!(stats[key].as_u64().unwrap() <= 64 * MIB, "{key}: {}", stats[key]);
    }
}

/// Without a slowdown nothing goes that fits.
#[test]
fn a_run_that_may_lose_nothing_keeps_all() {
    let options = ["--memory", "auto", "--memory-max", "256M", "--slowdown", "0"];
    let (stats, _) = stats(&options, &["96", "8", "2"]);
    assert_eq!(stats["pswpout"], 0);
    // The mean has the time in which the memory is filled.
    let needed = stats["needed_bytes"].as_u64().unwrap();
    assert!(needed > 64 * MIB, "{needed}");
}

/// Pages go while processes fork, execute programs and are killed, and while files are cut and grow; and also
/// where nothing can go but pages of files (there a forked child may not touch mapped files: docs/limits.md).
#[test]
fn programs_do_what_they_do_without() {
    let auto = ["--memory", "auto", "--memory-max", "256M", "--slowdown", "50%", "--quiet"];
    let no_swap: Vec<_> = auto.into_iter().chain(["--swap", "0"]).collect();
    let dir = Scratch::new();
    let file = dir.file("data");
    type Case<'a> = (&'a str, &'a [&'a str], &'a [&'a [&'a str]]);
    let cases: [Case<'_>; 3] = [
        ("tree", &["random", "1", "24", "2"], &[&auto, &no_swap]),
        ("tree", &["workers", "2", "64"], &[&auto, &no_swap]),
        ("chunks", &[&file, "7", "24"], &[&auto]),
    ];
    for (name, arguments, runs) in cases {
        let plain = Command::new(program(name)).args(arguments).output().expect("it can be run");
        assert!(plain.status.success(), "{name}: {plain:?}");
        for options in runs {
            let output = run_program(options, name, arguments);
            assert_eq!(output, plain, "{name} {arguments:?} with {options:?}");
        }
    }
}

#[test]
fn the_summary_says_what_was_needed() {
    let output = run(&["--memory", "auto", "--memory-max", "256M"], &["48", "8", "2"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(" MiB allocated, ") && said.contains(" MiB needed\n"), "{said}");
    let output = run(&["--memory", "256M"], &["48", "8", "0"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains(" needed"), "{said}");
}

#[test]
fn options_of_auto_are_for_auto() {
    let cases: [(&[&str], &str); 5] = [
        (&["--memory", "256M", "--slowdown", "5%"], "--slowdown is an option of --memory auto: say both"),
        (&["--memory-max", "256M"], "--memory-max is an option of --memory auto: say both"),
        (&["--memory", "auto", "--slowdown", "51%"], "'51%' is not a part of 0% to 50%, as 5% or 0.5%"),
        (&["--memory", "auto", "--slowdown", "-1"], "unexpected argument"),
        (&["--memory", "automatic"], "'automatic'"),
    ];
    for (options, why) in cases {
        let output = run(options, &["1", "1", "0"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{options:?}: {said}");
    }
}
