//! `elbowroom lab seeds` and `lab report` from outside.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const ELBOWROOM: &str = env!("CARGO_BIN_EXE_elbowroom");

fn lab(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(ELBOWROOM);
    command.arg("lab").args(arguments).current_dir(directory);
    command
}

/// A directory on a disk, for files of workloads.
fn on_disk() -> tempfile::TempDir {
    let target = Path::new(ELBOWROOM).parent().unwrap();
    tempfile::tempdir_in(target).unwrap()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn seeds_writes_figures_of_which_report_makes_the_same_page() {
    let dir = on_disk();
    let arguments = ["--only", "map-unmap,in-memory", "--runs", "1", "--seconds", "0.05"];
    let files = ["--json", "seeds.json", "-o", "seeds.html"];
    let output = lab(dir.path(), &[&["seeds"] as &[_], &arguments, &files].concat()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("map-unmap") && stdout.contains("took "), "{stdout}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("2/2 map-unmap, about ") && stderr.contains(" left"), "{stderr}");
    let figures = json(&dir.path().join("seeds.json"));
    assert_eq!(
        (figures["workloads"].as_array().unwrap().len(), &figures["failed"]),
        (2, &Value::Array(vec![]))
    );
    assert!(figures["command"].as_str().unwrap().starts_with("elbowroom lab seeds --only"), "{figures}");
    let made = lab(dir.path(), &["report", "seeds.json", "-o", "again.html"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let page = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    assert_eq!(page("seeds.html"), page("again.html"));
}

#[test]
fn report_names_the_file_that_it_cannot_use() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("wrong.json"), "[").unwrap();
    let output = lab(dir.path(), &["report", "wrong.json", "missing.json"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("wrong.json: it is not JSON") && stderr.contains("missing.json: "), "{stderr}");
    assert!(!dir.path().join("report.html").exists());
    let nothing = lab(dir.path(), &["report"]).output().unwrap();
    assert_eq!(nothing.status.code(), Some(2), "{nothing:?}");
}

/// Whatever a directory has.
fn names(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn after_a_signal_what_was_measured_is_written_and_all_else_is_gone() {
    if !Path::new(ELBOWROOM).with_file_name("elbowroom-lab-worker").is_file() {
        eprintln!("SKIPPED: elbowroom-lab-worker is not built");
        return;
    }
    let dir = on_disk();
    let arguments =
        ["seeds", "--only", "in-memory,file-map-churn", "--seconds", "0.3", "--json", "seeds.json"];
    let mut command = lab(dir.path(), &[&arguments as &[_], &["--dir", "."]].concat());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut said = String::new();
    // The first run of the first workload is there.
    while !said.contains("file-map-churn: run 1/") {
        assert!(lines.read_line(&mut said).unwrap() > 0, "it has ended: {said}");
        if said.contains("FAILED") {
            eprintln!("SKIPPED: this machine cannot run it: {said}");
            return child.wait().map(drop).unwrap();
        }
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    lines.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    let figures = json(&dir.path().join("seeds.json"));
    let churn = &figures["workloads"][0];
    assert_eq!((&churn["workload"], &figures["interrupted"]), (&"file-map-churn".into(), &true.into()));
    assert!(!churn["runs"].as_array().unwrap().is_empty() && churn["problem"].is_string(), "{figures}");
    // What had not begun.
    assert_eq!(figures["failed"][0]["workload"], "in-memory");
    assert_eq!(names(dir.path()), [dir.path().join("seeds.json")]);
}

#[test]
fn a_routing_that_was_recorded_is_what_the_next_model_uses() {
    if !Path::new(ELBOWROOM).with_file_name("elbowroom-lab-worker").is_file() {
        eprintln!("SKIPPED: elbowroom-lab-worker is not built");
        return;
    }
    let dir = on_disk();
    let model = ["--layers", "2", "--experts", "4", "--used", "2", "--expert-size", "64K", "--dense", "64K"];
    let short = ["--memory", "16M", "--seconds", "0.4", "--runs", "1", "--engines", "soft,device"];
    let run = |more: &[&str]| {
        let line = [&["run", "moe", "--dir", ".", "--json", "moe.json"], &model as &[_], &short, more];
        let output = lab(dir.path(), &line.concat()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        json(&dir.path().join("moe.json"))
    };
    let figures = run(&["--tokens", "10", "--record", "routing.txt"]);
    let soft = &figures["medians"]["soft"];
    assert!(soft["tokens_per_second"].as_f64() > Some(0.0), "{figures}");
    // All of it fits, so an LRU cache misses no more than each chunk once.
    let run_of_soft = &figures["runs"][0];
    assert!(run_of_soft["lru_missed_bytes"].as_u64() <= Some(10 * (64 << 10)), "{run_of_soft}");
    assert!(soft["got_of_device"].as_f64() > Some(0.0), "{figures}");
    let routing = std::fs::read_to_string(dir.path().join("routing.txt")).unwrap();
    assert_eq!(routing.lines().filter(|line| !line.starts_with('#')).count(), 2 * 10, "{routing}");
    run(&["--routing", "routing.txt"]);
    std::fs::write(dir.path().join("routing.txt"), "0 1\n2 4\n").unwrap();
    let line = [&["run", "moe", "--dir", ".", "--routing", "routing.txt"], &model as &[_], &short].concat();
    let output = lab(dir.path(), &line).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && stderr.contains("line 2: \"4\""), "{stderr}");
}

/// Options of a short usemem of the kernel and of soft spaces, with its swap files in this directory.
const USEMEM: [&str; 13] = [
    "run",
    "usemem",
    "--threads",
    "2",
    "--size",
    "80M",
    "--memory",
    "64M",
    "--engines",
    "kernel,soft",
    "--runs",
    "1",
    "--dir=.",
];

#[test]
fn the_kernel_has_its_limit_in_a_process_of_its_own() {
    let dir = on_disk();
    let more = ["--seconds", "0.5", "--json", "usemem.json"];
    let output = lab(dir.path(), &[&USEMEM as &[_], &more].concat()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let figures = json(&dir.path().join("usemem.json"));
    let of = |engine: &str, key: &str| figures["medians"][engine][key].as_f64();
    assert!(of("soft", "swapped_in_per_second") > Some(0.0), "{figures}");
    assert_eq!(names(dir.path()), [dir.path().join("usemem.json")]);
    if of("kernel", "touches_per_second").is_none() {
        eprintln!("SKIPPED: {}", figures["skipped"][0]["reason"]);
        return;
    }
    // No worker has all its pages in memory.
    let share = of("kernel", "refaults_per_second").unwrap() / of("kernel", "touches_per_second").unwrap();
    assert!(share > 0.1 && share < 3.0, "{share}: {figures}");
}

#[test]
fn a_signal_takes_the_kernels_swap_file_away() {
    let dir = on_disk();
    let arguments = [&USEMEM as &[_], &["--seconds", "60"]].concat();
    let mut command = lab(dir.path(), &arguments);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let swaps = || std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let ours = format!("elbowroom-lab-swap-{}", child.id());
    // It has none where it may not have one.
    let until = Instant::now() + Duration::from_secs(10);
    while !swaps().contains(&ours) && child.try_wait().unwrap().is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(300));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted: the threads are stopped"), "{stderr}");
    assert!(!swaps().contains(&ours) && names(dir.path()).is_empty(), "{:?}", names(dir.path()));
}

#[test]
fn a_heap_larger_than_the_budget_is_the_same_in_every_engine() {
    let beside = |name: &str| Path::new(ELBOWROOM).with_file_name(name);
    let needed = ["elbowroom-lab-worker", "libelbowroom_preload.so", "libelbowroom_heap.so"];
    if let Some(missing) = needed.into_iter().find(|name| !beside(name).is_file()) {
        eprintln!("SKIPPED: {missing} is not built");
        return;
    }
    let dir = on_disk();
    let arguments =
        "run heap --threads 2 --size 96M --memory 64M --seconds 0.5 --runs 1 --dir=. --json heap.json";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let output = lab(dir.path(), &arguments).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("userfaultfd") {
        eprintln!("SKIPPED: {stderr}");
        return;
    }
    assert!(output.status.success(), "{stderr}");
    let figures = json(&dir.path().join("heap.json"));
    let of = |engine: &str, key: &str| figures["medians"][engine][key].as_f64();
    for engine in ["plain", "elbowroom-large", "elbowroom"] {
        assert!(of(engine, "operations_per_second") > Some(0.0), "{engine}: {figures}");
        // The blocks are the same.
        assert_eq!(of(engine, "live_bytes"), of("plain", "live_bytes"), "{engine}");
    }
    // What the budget is for; the rest is the program and what describes the frames.
    let (peak, all) = (of("elbowroom", "peak_rss_bytes").unwrap(), of("plain", "peak_rss_bytes").unwrap());
    assert!(peak < f64::from(84 << 20) && all > peak, "{peak} {all}");
    assert_eq!(names(dir.path()), [dir.path().join("heap.json")]);
}
