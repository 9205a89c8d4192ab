//! What a run says on standard error: the summary, whatever the program does to its descriptor 2, and what is
//! not managed, also with `--quiet`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use elbowroom_tests::{Scratch, elbowroom_exe, program};

/// The budget of all runs.
const BUDGET: &str = "64M";

/// What a run has written, and how it ended.
struct Said {
    stdout: String,
    stderr: String,
    code: Option<i32>,
}

fn run(options: &[&str], command: &[&str]) -> Said {
    let output = Command::new(elbowroom_exe())
        .args(["run", "--memory", BUDGET])
        .args(options)
        .arg("--")
        .args(command)
        .stdin(Stdio::null())
        .output()
        .expect("it can be run");
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    Said { stdout, stderr, code: output.status.code() }
}

fn path(of: &Path) -> &str {
    of.to_str().expect("paths of tests are text")
}

/// How many lines of the text begin a summary.
fn summaries(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with("elbowroom: ") && line.ends_with(')')).count()
}

#[test]
fn the_summary_outlives_descriptor_2() {
    let said = program("said");
    for mode in ["end", "close", "exit", "all"] {
        let Said { stdout, stderr, code } = run(&[], &[path(&said), mode]);
        assert_eq!((stdout.as_str(), code), ("used 1\n", Some(0)), "{mode}: {stderr}");
        assert!(stderr.starts_with("elbowroom: said (pid ") && summaries(&stderr) == 1, "{mode}: {stderr}");
        assert!(stderr.contains(" at most, of 64.0 MiB\n"), "{mode}: {stderr}");
        assert_eq!(run(&["--quiet"], &[path(&said), mode]).stderr, "", "{mode}");
    }
}

#[test]
fn gnu_programs_have_a_summary() {
    let scratch = Scratch::new();
    let file = scratch.file("lines");
    let lines: String = (0..300_000_u64).map(|n| format!("{}\n", n * 7919 % 1_000_003)).collect();
    std::fs::write(&file, lines).expect("a scratch file can be written");
    for (command, managed) in
        [(vec!["sort", "-n", &file], true), (vec!["wc", &file], false), (vec!["ls", "/"], false)]
    {
        let Said { stderr, code, .. } = run(&[], &command);
        assert_eq!((code, summaries(&stderr)), (Some(0), 1), "{command:?}: {stderr}");
        assert_eq!(stderr.contains("nothing was managed"), !managed, "{command:?}: {stderr}");
    }
    // In a pipeline each process that has managed something says so.
    let Said { stderr, .. } = run(&[], &["sh", "-c", "sort -n \"$0\" | tail -n 1", &file]);
    assert!(stderr.contains("elbowroom: sort (pid ") && stderr.contains("elbowroom: sh (pid "), "{stderr}");
}

/// The program's own file on descriptor 2 is not for us.
#[test]
fn a_file_that_the_program_puts_on_descriptor_2_has_no_line_of_ours() {
    let scratch = Scratch::new();
    let file = scratch.file("own");
    assert_eq!(run(&[], &[path(&program("said")), "replaced", &file]).stderr, "");
    assert_eq!(std::fs::read_to_string(&file).expect("the program has made it"), "");
}

/// How long a child lives that has let go of standard error, and how long its reader may wait: two looks at
/// the descriptor, one a second, on a busy machine.
const CHILD_SECONDS: u64 = 40;
const READER_LIMIT: Duration = Duration::from_secs(20);

/// Who reads standard error to its end does not wait for a child that has closed it and lives on.
#[test]
fn a_child_that_lives_on_keeps_no_reader_waiting() {
    for mode in ["stays", "daemon"] {
        let (mut reader, writer) = std::io::pipe().expect("a pipe can be made");
        let mut command = Command::new(elbowroom_exe());
        command.args(["run", "--memory", BUDGET, "--"]).arg(program("said"));
        command
            .args([mode, &CHILD_SECONDS.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(writer);
        let started = Instant::now();
        let mut child = command.spawn().expect("it can be started");
        drop(command);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("a pipe can be read");
        let took = started.elapsed();
        assert!(child.wait().expect("it can be waited for").success(), "{mode}: {text}");
        assert!(took < READER_LIMIT, "{mode}: the reader waited for {took:?}: {text}");
        assert_eq!(summaries(&text), 1, "{mode}: {text}");
    }
}

/// `run` tries whether as many threads can be started before anything is managed.
#[test]
fn there_are_as_many_threads_as_doctor_tries() {
    // Service threads come as calls do: three at the start, and one more for a second call at a time.
    const SERVICE: u64 = 4;
    let doctor = Command::new(elbowroom_exe()).args(["doctor", "--json"]).output().expect("it can be run");
    let found: serde_json::Value = serde_json::from_slice(&doctor.stdout).expect("it is JSON");
    let tried = found["probe"]["start"]["thread_count"].as_u64().expect("it is there");
    let scratch = Scratch::new();
    let file = scratch.file("mapped");
    elbowroom_tests::Pattern::zeros(&file, 4 << 20);
    // Those that guard files start with the first file.
    let script = "import glob, mmap, sys\nb = bytearray(b'1') * (32 << 20)\n\
                  f = open(sys.argv[1], 'r+')\nm = mmap.mmap(f.fileno(), 0)\n\
                  names = [open(name).read().strip() for name in glob.glob('/proc/self/task/*/comm')]\n\
                  print(sum(n.startswith('elbowroom-') and n != 'elbowroom-svc' for n in names))";
    let Said { stdout, stderr, .. } = run(&[], &["/usr/bin/python3", "-c", script, &file]);
    let others: u64 = stdout.trim().parse().unwrap_or_else(|_| panic!("{stdout:?}: {stderr}"));
    assert!((tried - 1..=tried).contains(&(others + SERVICE)), "{others} and {SERVICE} of {tried}: {stderr}");
}

/// Workers that a pool terminates, at whatever moment, have their summary.
#[test]
fn terminated_workers_have_a_summary() {
    const WORKERS: usize = 3;
    let script = format!(
        "import multiprocessing, time\n\
         all = multiprocessing.get_context('fork').Barrier({WORKERS})\n\
         def work(n):\n    b = bytearray(4 << 20)\n    all.wait()\n    time.sleep(0.3)\n    return len(b)\n\
         if __name__ == '__main__':\n\
         \x20   with multiprocessing.get_context('fork').Pool({WORKERS}) as pool:\n\
         \x20       print(sum(pool.map(work, range({WORKERS}), 1)))\n"
    );
    for _ in 0..5 {
        let Said { stdout, stderr, .. } = run(&[], &["/usr/bin/python3", "-c", &script]);
        assert_eq!(stdout, format!("{}\n", WORKERS << 22), "{stderr}");
        assert_eq!(summaries(&stderr), WORKERS + 1, "{stderr}");
    }
}

/// A program that the loader does not load our library into.
fn static_program(scratch: &Scratch) -> PathBuf {
    let (source, exe) = (scratch.file("fixed.c"), scratch.file("fixed"));
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("a scratch file can be written");
    let made =
        Command::new("cc").args(["-static", "-o", &exe, &source]).status().expect("there is a compiler");
    assert!(made.success(), "a static program cannot be linked");
    exe.into()
}

/// The lines of ours, without the name and number of the process.
fn lines(stderr: &str) -> Vec<&str> {
    stderr.lines().map(|line| line.split_once("): ").map_or(line, |(_, rest)| rest)).collect()
}

#[test]
fn static_children_are_named_once() {
    const LINE: &str = "fixed is static: nothing of it is managed";
    let scratch = Scratch::new();
    let (fixed, said) = (static_program(&scratch), program("said"));
    let (fixed, said) = (path(&fixed), path(&said));
    let three = format!("{fixed}; {fixed}; {fixed}");
    let script = scratch.file("script");
    std::fs::write(&script, format!("#!{fixed} x\n")).expect("a scratch file can be written");
    let hidden = format!("{fixed} 2>/dev/null; {fixed} 2>/dev/null");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("it is ours");
    let commands: [&[&str]; 6] = [
        &["sh", "-c", &three],
        // Said by the shell: what the children have on descriptor 2 is the program's business.
        &["sh", "-c", &hidden],
        &[said, "exec", fixed],
        &[said, "spawn", fixed],
        &[said, "exec", &script],
        &["/usr/bin/python3", "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", fixed],
    ];
    for command in commands {
        let Said { stderr, code, .. } = run(&["--quiet"], command);
        assert_eq!((lines(&stderr), code), (vec![LINE], Some(0)), "{command:?}: {stderr}");
        let silent = run(&["--quiet", "--fallback", "kernel"], command);
        assert_eq!((silent.stderr.as_str(), silent.code), ("", Some(0)), "{command:?}");
    }
    // What a program's own file gets is the program's.
    let own = scratch.file("own");
    let Said { stderr, .. } = run(&["--quiet"], &["sh", "-c", &format!("{fixed} 2>\"$0\"; exit 0"), &own]);
    assert_eq!(lines(&stderr), [LINE]);
    assert_eq!(std::fs::read_to_string(&own).expect("the shell has made it"), "");
}

#[test]
fn a_program_without_our_environment_is_named() {
    let said = program("said");
    let Said { stdout, stderr, .. } = run(&["--quiet"], &[path(&said), "bare", "/usr/bin/true"]);
    assert_eq!(stdout, "used 1\n");
    let why = "is executed without LD_PRELOAD or ELBOWROOM_OPTIONS in its environment";
    assert_eq!(lines(&stderr), [format!("true {why}: nothing of it is managed")]);
}

#[test]
fn a_go_program_is_named() {
    let go = program("go_note");
    // The command refuses one that was built without C, as this program seems to be; a shell runs it.
    let command = ["sh", "-c", path(&go)];
    let Said { stdout, stderr, .. } = run(&["--quiet"], &command);
    assert_eq!(stdout, "go\n");
    assert!(lines(&stderr).len() == 1 && lines(&stderr)[0].starts_with("a Go program: "), "{stderr}");
    assert_eq!(run(&["--quiet", "--fallback", "kernel"], &command).stderr, "");
}

/// Where nothing can be managed any more when the program starts to need it, a line says why.
#[test]
fn what_the_environment_lacks_is_said_once() {
    let said = program("said");
    let said = path(&said);
    // The limits are set within, after the command has tried what it needs.
    let within = |limit: &str| format!("ulimit {limit}; exec {said} end");
    for (limit, words) in
        [("-v 3000000", "limits on address space"), ("-d 200000", "limits on address space")]
    {
        let script = within(limit);
        let Said { stdout, stderr, code } = run(&["--quiet"], &["sh", "-c", &script]);
        assert_eq!((stdout.as_str(), code), ("used 1\n", Some(0)), "{limit}: {stderr}");
        assert!(lines(&stderr).len() == 1 && lines(&stderr)[0].contains(words), "{limit}: {stderr}");
        assert_eq!(run(&["--quiet", "--fallback", "kernel"], &["sh", "-c", &script]).stderr, "", "{limit}");
        // Limits that were raised for the manager are as the program has set them.
        let script = format!("ulimit {limit}; exec {said} limits");
        let plain = Command::new("sh").args(["-c", &script]).output().expect("it can be run");
        let ours = run(&["--quiet"], &["sh", "-c", &script]);
        assert_eq!(
            (ours.stdout.as_bytes(), ours.code),
            (&*plain.stdout, Some(0)),
            "{limit}: {}",
            ours.stderr
        );
    }
}

#[test]
fn swap_is_not_counted_as_files_and_what_was_left_has_a_size() {
    let scratch = Scratch::new();
    let stats = scratch.file("stats");
    // Random, so that it is not compressed; read again after it was out.
    let script = "import os, mmap\nb = bytearray(os.urandom(160 << 20))\n\
                  s = sum(b[::4096]) + sum(b[::4096])\n\
                  m = mmap.mmap(-1, 3 << 20, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)\nprint(s > 0)";
    let options = ["--swap", "400M", "--stats", &stats];
    let Said { stdout, stderr, .. } = run(&options, &["/usr/bin/python3", "-c", script]);
    assert_eq!(stdout, "True\n", "{stderr}");
    let text = std::fs::read_to_string(&stats).expect("there are statistics");
    let json: serde_json::Value = serde_json::from_str(&text).expect("they are JSON");
    let stat = |key: &str| json[key].as_u64().unwrap_or_else(|| panic!("{key}: {text}"));
    assert!(stat("swap_written_bytes") > 64 << 20 && stat("swap_read_bytes") > 64 << 20, "{text}");
    assert_eq!((stat("written_bytes"), stat("writes")), (0, 0), "{text}");
    assert!(stderr.contains(" 0 B written\n") && stderr.contains("\n  swap file "), "{stderr}");
    assert_eq!(json["left_to_kernel_bytes"]["anonymous"], 3 << 20, "{text}");
    assert!(json["left_to_kernel"]["anonymous"] == 1, "{text}");
    let line = "3.0 MiB in 1 call: shared memory without a file, or private memory without swap (anonymous)";
    assert!(stderr.contains(line), "{stderr}");
}

/// A file that another process may write is left to the kernel, and the summary says for whom.
#[test]
fn the_other_user_of_a_file_is_named() {
    let scratch = Scratch::new();
    let file = scratch.file("shared");
    std::fs::write(&file, vec![7; 4 << 20]).expect("a scratch file can be written");
    let mut other = Command::new("sh")
        .args(["-c", "exec 3<>\"$0\"; echo; exec sleep 60", &file])
        .stdout(Stdio::piped())
        .spawn()
        .expect("there is a shell");
    other.stdout.as_mut().expect("it is a pipe").read_exact(&mut [0]).expect("the shell has said so");
    let script = "import mmap, sys\nf = open(sys.argv[1], 'r+b')\nm = mmap.mmap(f.fileno(), 0)\nprint(m[5])";
    let Said { stdout, stderr, .. } = run(&[], &["/usr/bin/python3", "-c", script, &file]);
    other.kill().expect("it is ours");
    other.wait().expect("it is ours");
    assert_eq!(stdout, "7\n", "{stderr}");
    let expected = [
        "4.0 MiB in 1 call: another process uses",
        &format!("open in sleep (pid {})", other.id()),
        "--sharing trust",
    ];
    assert!(expected.iter().all(|part| stderr.contains(part)), "{stderr}");
}
