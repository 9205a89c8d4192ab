//! `elbowroom run` and `doctor` from outside: bad input, exit codes, and that the program gets this process
//! as it was.
//!
//! The preloaded library is an empty one, compiled here: these tests are about what happens before the
//! program starts. Tests that need a C compiler or a userfaultfd and have none say so and pass.

mod bench;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use elbowroom_options::{Faults, Io, KernelOptions, Mmu, Options, ReportOptions, Sharing, TestOptions};

use self::bench::{Bench, ELBOWROOM, assert_refused, copy, managed_bench, skipped, stderr, stdout};

#[test]
fn bad_options_are_errors_of_usage_before_the_program_starts() {
    let Some(bench) = Bench::new() else { return };
    let started = bench.dir.path().join("started");
    let program = bench.script("program", &format!("#!/bin/sh\ntouch {}\n", started.display()));
    for (options, expected) in [
        (&["--memory", "0"][..], "at least 16M"),
        (&["--memory", "lots"], "no number: write a size as 512M or 1.5G"),
        (&["-m", "1,5G"], "1,5G: write 1.5G"),
        (&["--memory", ""], "no number"),
        (&["--memory", "15M"], "at least 16M"),
        (&["--memory", "1023"], "at least 16M"),
        (&["--memory", "99999999T"], "too large"),
        (&["--memory=-5M"], "a size cannot be below 0: write 5M"),
        (&["--memory"], "--memory"),
        (&["--min-size", "0"], "at least 1"),
        (&["--min-size", "1 furlong"], "'furlong' is not a unit"),
        (&["--io", "aio"], "[possible values: auto, uring, threads]"),
        (&["--mmu", "soft"], "[possible values: auto, move, copy]"),
        (&["--fallback", "yes"], "[possible values: none, kernel]"),
        (&["--handlers", "17"], "'17' is not a whole number from 0 to 16"),
        (&["--dirty", "8191"], "at least 8K"),
        (&["--memory", "16M", "--swap", "1G"], "too much for a budget of 16 MiB: at most 655.4 MiB"),
        (&["--swap", "0", "--swap-encrypt"], "with --swap 0 is none"),
        (&["--swap", "10"], "is a unit missing?"),
        (&["--writeback-interval", "5"], "needs a unit"),
        (&["--writeback-interval", "1ms"], "it must be 10ms to 60m"),
        (&["--inject", "a;b"], "`a;b` is no operation"),
        (&["--ablate", "vma_locks,speed"], "there is no improvement \"speed\"; there are vma_locks"),
        (&["--stats", "/no/such/directory/s.json"], "cannot be written"),
        (&["--stats", "/"], "is a directory"),
        (&["--frobnicate"], "unexpected argument '--frobnicate'"),
        (&["-x"], "unexpected argument '-x'"),
    ] {
        let arguments = [&["run"], options, &["--", &program]].concat();
        assert_refused(&bench.output(&arguments), 2, expected);
        assert!(!started.exists(), "{options:?} started the program");
    }
    assert_refused(&bench.output(&["run"]), 2, "PROGRAM");
    assert_refused(&bench.output(&["walk"]), 2, "walk");
    for (arguments, tip) in [
        (&["python3", "x.py", "a b"][..], "  tip: to run a program: elbowroom run -- python3 x.py 'a b'\n"),
        (&["-m", "64M", "ls"], "  tip: it is an option of run: elbowroom run -m 64M ls\n"),
        (&["--memory=64M", "ls"], "  tip: it is an option of run: elbowroom run --memory=64M ls\n"),
        (&["docter"], "tip: a similar subcommand exists: 'doctor'"),
        (&["run", "--memroy", "1G", "ls"], "tip: a similar argument exists: '--memory'"),
    ] {
        assert_refused(&bench.output(arguments), 2, tip);
    }
    for arguments in [&["run", "-x", "ls"][..], &["run", "--frobnicate", "ls"]] {
        let output = bench.output(arguments);
        assert_refused(&output, 2, "unexpected argument");
        assert!(!stderr(&output).contains("tip:"), "{}", stderr(&output));
    }
}

#[test]
fn a_bad_file_of_groups_is_an_error_of_usage_before_the_program_starts() {
    let Some(bench) = Bench::new() else { return };
    let started = bench.dir.path().join("started");
    let program = bench.script("program", &format!("#!/bin/sh\ntouch {}\n", started.display()));
    let spec = bench.dir.path().join("spec.toml");
    let path = spec.display().to_string();
    let rule = "[[rule]]\ngroup = \"a\"\n";
    for (text, options, said) in [
        ("[group.a]\nmax = \"100M\n", &[][..], "2: this is no TOML: "),
        (
            "# a\n[group.a]\nmaximum = \"100M\"\n",
            &[],
            "3: group.a.maximum: there is no such key; a group may have",
        ),
        ("[group.a]\nmax = \"1023K\"\n", &[], "2: group.a.max: it must be at least 1M\n"),
        ("[group.a]\nhigh = \"9M\"\nmax = \"8M\"\n", &[], "2: group.a.high: 9M is more than max, 8M\n"),
        ("[[rule]]\ngroup = \"b\"\n", &[], "2: rule.group: there is no group 'b'; there are root\n"),
        (
            &format!("[group.a]\nlow = \"40M\"\n{rule}"),
            &["--each", "39M"],
            "2: group.a.low: up to here 40M are protected, more than the budget of a process, 39M\n",
        ),
        (
            &format!("[group.a]\n{rule}kind = \"heap\"\n"),
            &["--heap", "off"],
            "4: rule.kind: the rule never fits: with --heap off the heap is the kernel's\n",
        ),
        (
            &format!("[group.a]\n{rule}kind = \"anonymous\"\n"),
            &["--swap", "0"],
            "4: rule.kind: the rule never fits: with --swap 0 this memory is the kernel's\n",
        ),
    ] {
        std::fs::write(&spec, text).unwrap();
        let arguments = [&["run", "--memory", "64M", "--group", &path], options, &["--", &program]].concat();
        assert_refused(&bench.output(&arguments), 2, &format!("elbowroom: {path}:{said}"));
        assert!(!started.exists(), "{text} started the program");
    }
    let arguments = ["run", "--memory", "64M", "--group", "/no/such/file", "--", &program];
    assert_refused(&bench.output(&arguments), 2, "elbowroom: --group: /no/such/file: No such file");
}

#[test]
fn programs_that_cannot_be_run() {
    let Some(bench) = Bench::new() else { return };
    let dir = bench.dir.path();
    assert_refused(&bench.output(&["run", "--", "no-such-program-here"]), 127, "not found in PATH");
    assert_refused(&bench.output(&["run", "--", "./no/such"]), 127, "No such file");
    assert_refused(&bench.output(&["run", "--", &dir.display().to_string()]), 126, "is a directory");
    let plain = bench.script("plain", "#!/bin/sh\n");
    std::fs::set_permissions(&plain, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_refused(&bench.output(&["run", "--", &plain]), 126, "Permission denied");
    let orphan = bench.script("orphan", "#!/no/such/interpreter\n");
    assert_refused(&bench.output(&["run", "--", &orphan]), 127, "/no/such/interpreter");
}

#[test]
fn a_static_program_is_refused_or_run_unmanaged() {
    let Some(bench) = Bench::new() else { return };
    let source =
        bench.script("hello.c", "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 7; }\n");
    let program = bench.dir.path().join("hello").display().to_string();
    if !Command::new("cc").args(["-static", "-o", &program, &source]).output().unwrap().status.success() {
        skipped("there is no static libc");
        return;
    }
    assert_refused(&bench.output(&["run", "--", &program]), 126, "statically linked");
    let output = bench.output(&["run", "--fallback", "kernel", "--", &program]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(7), "hello\n"));
    assert_eq!(stderr(&output).lines().count(), 1);
    assert!(stderr(&output).starts_with("elbowroom: warning: running unmanaged: "));
}

#[test]
fn a_library_that_is_missing_or_cannot_be_named() {
    let Some(bench) = Bench::new() else { return };
    let with = |library: &Path| {
        let mut command = bench.command(&["run", "--", "true"]);
        command.env("ELBOWROOM_PRELOAD", library).output().unwrap()
    };
    assert_refused(&with(&bench.dir.path().join("none.so")), 125, "cannot open the library");
    assert_refused(&with(Path::new("/bin/sh -x")), 125, "cannot hold");
    assert_refused(&with(&bench.dir.path().join("empty.c")), 125, "not a shared library");

    // A copy of the command far from any library; a copy, because the path of a link is that of its target.
    let lonely = bench.dir.path().join("elbowroom");
    copy(Path::new(ELBOWROOM), &lonely);
    let output =
        Command::new(lonely).args(["run", "--", "true"]).env_remove("ELBOWROOM_PRELOAD").output().unwrap();
    assert_refused(&output, 125, "cargo build --release");
    assert!(stderr(&output).contains(&bench.dir.path().display().to_string()));
}

#[test]
fn the_program_has_our_process_id_and_our_parent() {
    let Some(bench) = managed_bench() else { return };
    let mut command = bench.command(&["run", "--", "sh", "-c", "echo $$ $PPID"]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), format!("{id} {}\n", std::process::id()));
    assert_eq!(stderr(&output), "");
}

#[test]
fn exit_status_and_signals_are_the_programs() {
    let Some(bench) = managed_bench() else { return };
    for code in [0, 1, 2, 42, 125, 127, 255] {
        let output = bench.output(&["run", "--", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code), "{}", output.status);
        assert_eq!(stderr(&output), "");
    }
    for signal in [2, 9, 13, 15] {
        let output = bench.output(&["run", "--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(output.status.signal(), Some(signal));
    }
}

#[test]
fn signal_dispositions_are_the_usual() {
    let Some(bench) = managed_bench() else { return };
    let lines = |output: Output| -> Vec<String> {
        let wanted = |line: &&str| ["SigIgn", "SigBlk", "SigCgt"].iter().any(|key| line.starts_with(key));
        stdout(&output).lines().filter(wanted).map(str::to_owned).collect()
    };
    let direct = lines(Command::new("cat").arg("/proc/self/status").output().unwrap());
    assert_eq!(direct.len(), 3);
    assert_eq!(lines(bench.output(&["run", "--", "cat", "/proc/self/status"])), direct);
}

#[test]
fn streams_and_descriptors_are_untouched() {
    let Some(bench) = managed_bench() else { return };
    let mut command = bench.command(&["run", "--", "sh", "-c", "cat; echo done >&2"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // More than a pipe holds and not text, so that anything that read or changed a part of it would be seen.
    let sent: Vec<u8> = (0..300_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut stdin = child.stdin.take().unwrap();
    let bytes = sent.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&bytes).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.stdout == sent, "{} bytes came back", output.stdout.len());
    assert_eq!(stderr(&output), "done\n");

    // `ls` lists the descriptors it has, its own for the directory included.
    let direct = Command::new("ls").arg("/proc/self/fd").output().unwrap();
    assert_eq!(stdout(&bench.output(&["run", "--", "ls", "/proc/self/fd"])), stdout(&direct));
}

#[test]
fn arguments_and_name_are_passed_unchanged() {
    let Some(bench) = managed_bench() else { return };
    let script = bench.script("show", "#!/bin/sh\nfor a; do echo \"[$a]\"; done\n");
    for separator in [&["--"][..], &[]] {
        let arguments =
            [&["run", "--memory", "64M"], separator, &[&script, "--memory", "", "a  b", "--", "-h"]];
        let output = bench.output(&arguments.concat());
        assert_eq!(stdout(&output), "[--memory]\n[]\n[a  b]\n[--]\n[-h]\n");
    }
    let output = bench.output(&["run", "--", "sh", "-c", "echo $0"]);
    assert_eq!(stdout(&output), "sh\n");
}

#[test]
fn the_environment_tells_the_library_everything() {
    let Some(bench) = managed_bench() else { return };
    let show = "echo \"$ELBOWROOM_OPTIONS\"; echo \"$LD_PRELOAD\"";
    let stats = bench.dir.path().join("a;b.json").display().to_string();
    let mut command = bench.command(&["run", "--memory", "240MB", "--min-size", "2M", "--io", "threads"]);
    command.args(["--mmu", "copy", "--handlers", "3", "--writeback-interval", "250ms", "--quiet"]);
    command.args(["--dirty", "1M", "--swap", "0"]);
    command.args([
        "--sharing",
        "trust",
        "--inject",
        "read:eio",
        "--ablate",
        "given_way",
        "--stats",
        &stats,
        "--",
        "sh",
        "-c",
        show,
    ]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let output = child.wait_with_output().unwrap();
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    let given = Options::parse(lines[0].as_ref()).unwrap();
    let table = given.tree.clone().unwrap();
    let name = table.file_name().unwrap().to_string_lossy();
    assert!(name.starts_with(&format!("elbowroom-run-{id}-")), "{name}");
    assert_ne!(given.kernel.faults, Faults::Auto, "the command has decided");
    let expected = Options {
        memory_bytes: 240 << 20,
        min_size_bytes: 2 << 20,
        kernel: KernelOptions { io: Io::Threads, mmu: Mmu::Copy, faults: given.kernel.faults },
        handlers: 3,
        writeback_interval: Duration::from_millis(250),
        dirty_bytes: Some(1 << 20),
        sharing: Sharing::Trust,
        tests: TestOptions {
            inject: Some("read:eio".to_owned()),
            ablate: Some("given_way".to_owned()),
            ..Options::default().tests
        },
        main_pid: id,
        tree: Some(table),
        report: ReportOptions { quiet: true, stats: Some(stats.into()), ..Options::default().report },
        ..Options::default()
    };
    assert_eq!(given, expected);
    assert_eq!(lines[1..], [bench.library().display().to_string()]);

    let other = bench.dir.path().join("other.so");
    std::fs::copy(bench.library(), &other).unwrap();
    let mut command = bench.command(&["run", "--swap", "0", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let output = command.env("LD_PRELOAD", &other).output();
    let expected = format!("{}:{}\n", bench.library().display(), other.display());
    assert_eq!(stdout(&output.unwrap()), expected);
}

#[test]
fn anonymous_memory_is_managed_by_default() {
    let Some(bench) = managed_bench() else { return };
    let (dir, heap) = (bench.dir.path().to_owned(), bench.dir.path().join("libelbowroom_heap.so"));
    copy(&bench.library(), &heap);
    let run = |options: &[&str]| {
        let show = "echo \"$ELBOWROOM_OPTIONS\"; echo \"$LD_PRELOAD\"";
        let output =
            bench.output(&[&["run", "--memory", "16M"], options, &["--", "sh", "-c", show]].concat());
        let text = stdout(&output);
        let (options, preloaded) = text.split_once('\n').unwrap();
        (Options::parse(options.as_ref()).unwrap(), preloaded.trim_end().to_owned(), stderr(&output))
    };
    let (options, preloaded, said) = run(&["--swap-dir", dir.to_str().unwrap()]);
    assert_eq!((options.swap.bytes, options.swap.by_default), (64 << 20, true));
    assert_eq!((options.swap.dir.as_deref(), options.memory_min_bytes()), (Some(dir.as_path()), 256 << 10));
    assert_eq!(preloaded, format!("{}:{}", bench.library().display(), heap.display()));
    assert_eq!(said, "");
    // What was asked for is not by default.
    let (options, ..) = run(&["--swap", "32M", "--swap-dir", dir.to_str().unwrap()]);
    assert_eq!((options.swap.bytes, options.swap.by_default), (32 << 20, false));
    let (options, preloaded, _) = run(&["--swap", "0"]);
    assert_eq!((options.swap.bytes, preloaded.contains("heap")), (0, false));
    // There is nothing left of trying.
    let names = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().contains("swap")));
}

#[test]
fn swap_that_cannot_be_had_is_refused_or_done_without() {
    let Some(bench) = managed_bench() else { return };
    let file = bench.script("file", "");
    let show = ["--", "sh", "-c", "echo \"$ELBOWROOM_OPTIONS\""];
    for (options, expected) in [
        (&["--swap", "64M", "--swap-dir", &file][..], "no place for a swap file in"),
        (&["--swap-dir", &file], "Not a directory"),
        (&["--swap-dir", "/no/such/directory"], "No such file or directory"),
        (&["--memory", "1G", "--swap", "40G", "--swap-dir", "/proc"], "name another directory"),
    ] {
        let arguments = [&["run"], options, &show].concat();
        assert_refused(&bench.output(&arguments), 125, expected);
        // With a fallback the program runs all the same, and without anything of ours.
        let output = bench.output(&[&["run", "--fallback", "kernel"], &arguments[1..]].concat());
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "\n"));
        assert!(stderr(&output).contains("running unmanaged") && stderr(&output).contains(expected));
    }
    // A limit of file sizes leaves room for less, which is said, or for nothing, which is as no directory.
    let limited = |blocks: &str, options: &[&str]| {
        let line = format!("ulimit -f {blocks}; exec \"$@\"");
        let mut command = Command::new("bash");
        command.args(["-c", &line, "bash", ELBOWROOM, "run", "--memory", "32M"]).args(options).args(show);
        command.env("ELBOWROOM_PRELOAD", bench.library()).env_remove("LD_PRELOAD").output().unwrap()
    };
    std::fs::copy(bench.library(), bench.dir.path().join("libelbowroom_heap.so")).unwrap();
    let less = limited("65536", &[]);
    assert!(less.status.success() && stderr(&less).contains("less than usual"), "{}", stderr(&less));
    let options = Options::parse(stdout(&less).trim_end().as_ref()).unwrap();
    assert_eq!((options.swap.bytes, stderr(&less).lines().count()), (64 << 20, 1));
    assert_refused(&limited("4", &[]), 125, "`ulimit -f`");
    let left = limited("4", &["--fallback", "kernel"]);
    assert!(stderr(&left).contains("anonymous memory stays with the kernel"), "{}", stderr(&left));
    assert_eq!(Options::parse(stdout(&left).trim_end().as_ref()).unwrap().swap.bytes, 0);
}

#[test]
fn without_the_second_library_anonymous_memory_cannot_be_managed() {
    let Some(bench) = managed_bench() else { return };
    // Far from any other library.
    let lonely = bench.dir.path().join("elbowroom");
    copy(Path::new(ELBOWROOM), &lonely);
    let run = |options: &[&str]| {
        let mut command = Command::new(&lonely);
        command.arg("run").args(options).args(["--", "sh", "-c", "echo $ELBOWROOM_OPTIONS"]);
        command.env("ELBOWROOM_PRELOAD", bench.library()).env_remove("LD_PRELOAD").output().unwrap()
    };
    assert_refused(&run(&["--memory", "16M"]), 125, "libelbowroom_heap.so was not found");
    let output = run(&["--memory", "16M", "--fallback", "kernel"]);
    assert!(output.status.success() && stdout(&output).contains(";swap=0;"), "{}", stdout(&output));
    assert!(stderr(&output).contains("libelbowroom_heap.so was not found"), "{}", stderr(&output));
    assert_refused(&run(&["--memory", "16M", "--swap", "64M"]), 125, "libelbowroom_heap.so was not found");
}

#[test]
fn the_default_budget_is_at_least_the_minimum() {
    let Some(bench) = managed_bench() else { return };
    let output = stdout(&bench.output(&["run", "--", "sh", "-c", "echo $ELBOWROOM_OPTIONS"]));
    let memory: u64 = output.strip_prefix("memory=").unwrap().split(';').next().unwrap().parse().unwrap();
    assert!(memory >= 16 << 20 && memory.is_multiple_of(1 << 20), "{memory}");
}

#[test]
fn doctor_prints_a_table_and_an_object_that_agree() {
    let text = Command::new(ELBOWROOM).arg("doctor").output().unwrap();
    let json = Command::new(ELBOWROOM).args(["doctor", "--json"]).output().unwrap();
    assert_eq!((stderr(&text).as_str(), stderr(&json).as_str()), ("", ""));
    assert_eq!(text.status, json.status);
    let object: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(object["can_run"].as_bool(), Some(json.status.success()));
    assert_eq!(object["mode"].is_null(), !json.status.success());
    let required = object["advice"].as_array().unwrap().iter().any(|line| line["required"] == true);
    assert_eq!(required, !json.status.success(), "what must change is said exactly if something must");
    assert_eq!(stdout(&text).contains("works here"), json.status.success());
    let release = object["probe"]["kernel_release"].as_str().unwrap();
    assert!(!release.is_empty() && stdout(&text).contains(release));
    let help = stdout(&Command::new(ELBOWROOM).args(["doctor", "--help"]).output().unwrap());
    for key in object.as_object().unwrap().keys().chain(object["probe"].as_object().unwrap().keys()) {
        assert!(help.contains(key.as_str()), "{key} is not documented");
    }
}

/// `run` shows its options, of the command line `arguments`, in a world with these variables.
fn options_of(variables: &[(&str, &str)], arguments: &[&str]) -> Result<Options, Output> {
    let bench = Bench::new().unwrap();
    let show = ["--", "sh", "-c", "echo \"$ELBOWROOM_OPTIONS\""];
    let mut command = bench.command(&[&["run"], arguments, &show].concat());
    for name in ["HOME", "XDG_CONFIG_HOME", "ELBOWROOM_CONFIG"] {
        command.env_remove(name);
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    match output.status.success() {
        true => Ok(Options::parse(stdout(&output).trim_end().as_ref()).unwrap()),
        false => Err(output),
    }
}

#[test]
fn the_command_line_is_before_the_environment_and_that_before_the_file() {
    if managed_bench().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join(".config/elbowroom.toml");
    std::fs::create_dir(dir.path().join(".config")).unwrap();
    std::fs::write(&config, "memory = \"64M\"\nmin-size = \"2M\"\nhandlers = 2\nswap = 0\nverbose = true\n")
        .unwrap();
    let home = ("HOME", dir.path().to_str().unwrap());
    let of = |variables: &[(&str, &str)], arguments: &[&str]| {
        let options = options_of(&[&[home], variables].concat(), arguments).unwrap();
        (options.memory_bytes >> 20, options.min_size_bytes >> 10, options.handlers)
    };
    assert_eq!(of(&[], &[]), (64, 2048, 2));
    assert_eq!(of(&[("ELBOWROOM_MEMORY", "48M")], &[]), (48, 2048, 2));
    assert_eq!(of(&[("ELBOWROOM_MEMORY", "48M")], &["-m", "32M", "--min-size=1M"]), (32, 1024, 2));
    assert_eq!(of(&[("ELBOWROOM_HANDLERS", "")], &[]), (64, 2048, 2), "an empty variable is none");
    let other = dir.path().join("other file");
    std::fs::write(&other, "handlers = 3").unwrap();
    let other = other.to_str().unwrap();
    let small = ("ELBOWROOM_SWAP", "0");
    assert_eq!(of(&[small], &["-m", "32M", "--config", other]), (32, 1024, 3));
    assert_eq!(of(&[small, ("ELBOWROOM_CONFIG", other)], &["-m", "32M"]), (32, 1024, 3));
    assert_eq!(of(&[small, ("ELBOWROOM_CONFIG", other)], &["-m", "32M", "--config", "none"]), (32, 1024, 0));
    // What the command line says is not contradicted by the file.
    let quiet = options_of(&[home], &["-q"]).unwrap().report;
    assert!(quiet.quiet && !quiet.verbose);
    let verbose = options_of(&[("ELBOWROOM_CONFIG", "none"), small], &["-m", "16M", "-v"]).unwrap().report;
    assert!(verbose.verbose && !verbose.quiet);
}

#[test]
fn mistakes_elsewhere_than_on_the_command_line_are_errors_of_usage() {
    if Bench::new().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("elbowroom.toml");
    std::fs::write(&config, "# mine\nmemory = \"64M\"\nmemroy = \"1G\"\n").unwrap();
    let usual = ("XDG_CONFIG_HOME", dir.path().to_str().unwrap());
    let refused = |variables: &[(&str, &str)], arguments: &[&str], said: &str| {
        assert_refused(&options_of(variables, arguments).unwrap_err(), 2, said);
    };
    refused(&[usual], &[], &format!("elbowroom: {}:3: memroy: there is no such option", config.display()));
    refused(&[("ELBOWROOM_MIN_SIZE", "x")], &[], "elbowroom: ELBOWROOM_MIN_SIZE: no number");
    refused(&[], &["--config", "/no/such"], "elbowroom: --config: /no/such: No such file");
    refused(&[("ELBOWROOM_CONFIG", "/no/such")], &[], "ELBOWROOM_CONFIG: /no/such: No such file");
    std::fs::write(&config, "quiet = true\nverbose = true\n").unwrap();
    refused(&[usual], &[], "--quiet leaves it out");
}

#[test]
fn options_behind_the_program_are_the_programs() {
    let Some(bench) = managed_bench() else { return };
    let output =
        bench.output(&["run", "-m", "32M", "-q", "-s0", "echo", "-m", "-q", "-v", "--config", "none"]);
    assert_eq!(stdout(&output), "-m -q -v --config none\n", "{}", stderr(&output));
}

#[test]
fn help_and_version_go_to_standard_output() {
    for (arguments, expected) in [
        (&["--help"][..], "Examples:"),
        (&["--version"], concat!("elbowroom ", env!("CARGO_PKG_VERSION"), " (commit ")),
        (&["version"], "\nclap 4."),
        (&["version"], "Licence: MIT OR Apache-2.0\n"),
        (&["run", "--help"], "240 * 1048576"),
        (&["run", "--help"], "--contention"),
    ] {
        let output = Command::new(ELBOWROOM).args(arguments).output().unwrap();
        assert!(output.status.success());
        assert!(stdout(&output).contains(expected), "{arguments:?}: {}", stdout(&output));
        assert!(!stdout(&output).contains("--inject"));
    }
}

#[test]
fn help_that_cannot_be_printed_is_a_failure() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for arguments in [&["--help"][..], &["--version"], &["version"], &["run", "--help"]] {
        let output = Command::new(ELBOWROOM).args(arguments).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.starts_with("elbowroom: ") && said.contains("No space left"), "{said}");
    }
}

#[test]
fn help_fits_the_terminal() {
    for arguments in [&["--help"][..], &["run", "--help"], &["run", "-h"], &["doctor"]] {
        let output = Command::new(ELBOWROOM).args(arguments).env("COLUMNS", "60").output().unwrap();
        let text = stdout(&output);
        // A path is not broken.
        let breakable = |line: &&str| line.chars().count() > 60 && line.trim().contains(' ');
        let long: Vec<_> = text.lines().filter(breakable).collect();
        assert!(long.is_empty(), "{arguments:?}: {long:#?}");
    }
}
