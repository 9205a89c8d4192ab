//! Idle processors are kept from sleeping deeply while faults come often, and only then.

use elbowroom_tests::{Command, Running, Variant, program, skipped};
use std::fs::{OpenOptions, read_dir, read_link};
use std::path::Path;
use std::time::{Duration, Instant};

const DEVICE: &str = "/dev/cpu_dma_latency";

/// Why it cannot be kept here, if that is so.
fn obstacle() -> Option<String> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    // They are numbered from 0.
    let last = online.trim().rsplit(['-', ',']).next().and_then(|number| number.parse::<u32>().ok());
    if last.is_none_or(|last| last >= 16) {
        return Some(format!("there may be more than 16 processors: {}", online.trim()));
    }
    OpenOptions::new().write(true).open(DEVICE).err().map(|error| format!("{DEVICE}: {error}"))
}

/// Whether any thread has the device open: service threads have a table of descriptors of their own.
fn holds(running: &Running) -> bool {
    let tasks = read_dir(format!("/proc/{}/task", running.id())).into_iter().flatten().flatten();
    let files = tasks.flat_map(|task| read_dir(task.path().join("fd")).into_iter().flatten().flatten());
    files.into_iter().any(|file| read_link(file.path()).is_ok_and(|target| target == Path::new(DEVICE)))
}

/// Runs a program that has many faults and then none; tells whether processors were kept from sleeping, and
/// what the statistics say of that.
fn run(options: &[&str]) -> (bool, u64) {
    let command = Command::new(program("idle")).variant(Variant::m64()).run_options(options);
    let mut running = command.start();
    let mut held = false;
    while !running.stdout().contains("quiet") {
        held |= holds(&running);
        running.check("it was quiet");
        std::thread::sleep(Duration::from_millis(5));
    }
    let quiet = Instant::now();
    while holds(&running) {
        assert!(
            quiet.elapsed() < Duration::from_secs(10),
            "processors may not sleep although nothing happens"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    running.signal(rustix::process::Signal::TERM);
    (held, running.finish().success().stat("shallow_idles"))
}

#[test]
fn processors_stay_awake_while_faults_come_often() {
    if let Some(why) = obstacle() {
        return skipped(format_args!("idle processors cannot be kept awake here: {why}"));
    }
    let (held, times) = run(&[]);
    assert!(held && times > 0, "held: {held}, {times} times");
}

#[test]
fn processors_may_sleep_if_that_is_asked_for() {
    assert_eq!(run(&["--idle", "deep"]), (false, 0));
}
