//! Core dumps have what is managed, and a debugger can read it.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use elbowroom_tests::{Scratch, elbowroom_exe, program, skipped};

/// The word at this place of the memory of the program `cores`.
fn word(n: u32) -> u32 {
    let mut n = (n ^ 61) ^ (n >> 16);
    n = n.wrapping_mul(9);
    n ^= n >> 4;
    n = n.wrapping_mul(0x27d4_eb2d);
    n ^ n >> 15
}

/// Whether a core dump of the program goes to its working directory.
fn dumps_go_here() -> bool {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let here = pattern.starts_with("core") && !pattern.contains('/');
    if !here {
        skipped(format_args!("core dumps go to {:?}", pattern.trim()));
    }
    here
}

/// What a run that ended by a signal has said and dumped.
struct Dumped {
    stderr: String,
    signal: Option<i32>,
    /// How many words are right in the core dump; those that it does not have are not.
    right: u32,
    core_bytes: u64,
}

fn dumped(options: &[&str], limit: &str, mib: u32, mode: &str) -> Dumped {
    let scratch = Scratch::new();
    let directory = scratch.file("here");
    std::fs::create_dir(&directory).expect("a scratch directory can be made");
    let script = format!("ulimit -c {limit}; exec \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(elbowroom_exe()).args(["run", "--quiet"]).args(options).arg("--");
    command.arg(program("cores")).args([&mib.to_string(), mode]).current_dir(&directory);
    let output = command.stdin(Stdio::null()).output().expect("it can be run");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let address = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let address = u64::from_str_radix(&address, 16).unwrap_or_else(|_| panic!("{address:?}: {stderr}"));
    let mut files = std::fs::read_dir(&directory).expect("it is there").flatten();
    let (mut right, mut core_bytes) = (0, 0);
    if let Some(core) = files.find(|file| file.file_name().to_string_lossy().starts_with("core")) {
        core_bytes = core.metadata().expect("it is there").len();
        right = right_words(&core.path(), address, mib);
    }
    Dumped { stderr, signal: output.status.signal(), right, core_bytes }
}

/// How many words of the program's memory are right in a core dump.
fn right_words(core: &std::path::Path, address: u64, mib: u32) -> u32 {
    let bytes = read_core(core, address, u64::from(mib) << 20);
    let words = bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().expect("4 bytes")));
    words.zip(0..).filter(|(there, n)| *there == word(*n)).count() as u32
}

/// The bytes of a range of addresses in an ELF core dump; zeros where it has none.
fn read_core(path: &std::path::Path, address: u64, len: u64) -> Vec<u8> {
    let mut file = std::fs::File::open(path).expect("it is there");
    let mut head = [0; 64];
    file.read_exact(&mut head).expect("it has an ELF header");
    let half = |at: usize| u16::from_ne_bytes(head[at..at + 2].try_into().expect("2 bytes"));
    let headers = u64::from_ne_bytes(head[32..40].try_into().expect("8 bytes"));
    let (size, count) = (usize::from(half(54)), usize::from(half(56)));
    let mut all = vec![0; size * count];
    file.seek(SeekFrom::Start(headers)).expect("it can be read");
    file.read_exact(&mut all).expect("it has program headers");
    let mut bytes = vec![0; len as usize];
    for header in all.chunks_exact(size) {
        let long = |at: usize| u64::from_ne_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let (kind, offset, at, in_file) = (header[0], long(8), long(16), long(32));
        let (from, to) = (at.max(address), (at + in_file).min(address + len));
        if kind == 1 && from < to {
            file.seek(SeekFrom::Start(offset + from - at)).expect("it can be read");
            // A dump that was cut off has less.
            let part = &mut bytes[(from - address) as usize..(to - address) as usize];
            let mut got = 0;
            while let Ok(n) = file.read(&mut part[got..])
                && n > 0
            {
                got += n;
            }
        }
    }
    bytes
}

const WORDS_OF_MIB: u32 = 1 << 18;

/// What is out is brought in for the dump, whichever signal ends the program.
#[test]
fn a_core_dump_has_all_managed_memory() {
    if !dumps_go_here() {
        return;
    }
    let options = ["--memory", "16M", "--swap", "200M"];
    for (mode, signal) in [("abort", 6), ("segv", 11), ("quit", 3), ("thread", 11)] {
        let Dumped { stderr, signal: ended, right, .. } = dumped(&options, "unlimited", 48, mode);
        assert_eq!((ended, stderr.as_str()), (Some(signal), ""), "{mode}");
        assert_eq!(right, 48 * WORDS_OF_MIB, "{mode}");
    }
}

/// What does not fit into the dump is not brought in, and that is said. What is in memory is in it.
#[test]
fn what_a_core_dump_does_not_have_is_said() {
    if !dumps_go_here() {
        return;
    }
    // Blocks of 1 KiB, in some shells of 512 bytes: less than one step of what is given, and more than all
    // else that the program has.
    let Dumped { stderr, signal, core_bytes, .. } =
        dumped(&["--memory", "16M", "--swap", "200M"], "16384", 48, "abort");
    assert_eq!(signal, Some(6), "{stderr}");
    assert!(core_bytes > 0, "{stderr}");
    assert!(stderr.contains(" MiB of managed memory are out and not in the core dump"), "{stderr}");
    // What the user does not want is not brought in, or not dumped.
    let run = |core| dumped(&["--memory", "16M", "--swap", "200M", "--core", core], "unlimited", 48, "abort");
    let Dumped { stderr, right, .. } = run("resident");
    assert!(right > 0 && right < 40 * WORDS_OF_MIB, "{right}: {stderr}");
    assert!(stderr.contains(" MiB of managed memory are out and not in the core dump"), "{stderr}");
    let Dumped { stderr, right, core_bytes, .. } = run("none");
    // A word of the program's that is 0 is found where the dump has nothing.
    assert!(stderr.is_empty() && right <= 1, "{right}: {stderr}");
    assert!(core_bytes > 0);
    // No dump, no line.
    let Dumped { stderr, core_bytes, .. } = dumped(&["--memory", "16M", "--swap", "200M"], "0", 48, "abort");
    assert_eq!((stderr.as_str(), core_bytes), ("", 0));
}

/// A debugger reads what is in memory as it is, and all else after a call.
#[test]
fn gdb_reads_what_is_out_after_a_call() {
    let Some(gdb) = elbowroom_tests::program::require("gdb", "gdb") else { return };
    let mut command = Command::new(elbowroom_exe());
    command.args(["run", "--quiet", "--memory", "16M", "--swap", "200M", "--"]).arg(program("cores"));
    let mut child = command.args(["48", "pause"]).stdout(Stdio::piped()).spawn().expect("it can be started");
    let mut line = String::new();
    let stdout = child.stdout.as_mut().expect("it is a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("it says where its memory is");
    let pid = child.id().to_string();
    let first: u32 = 1 << 18;
    let print = |n: u32| format!("printf \"word %u is %u\\n\", {n}, words[{n}]");
    let (a, b) = (print(first), print(40 << 18));
    let scratch = Scratch::new();
    let core = scratch.file("core");
    let debugged = Command::new(gdb)
        .args([
            "-p",
            &pid,
            "-batch",
            "-ex",
            &a,
            "-ex",
            "print ((int (*)())elbowroom_core)()",
            "-ex",
            &a,
            "-ex",
            &b,
        ])
        .args(["-ex", &format!("gcore {core}")])
        .stdin(Stdio::null())
        .output()
        .expect("gdb can be run");
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    let text = String::from_utf8_lossy(&debugged.stdout).into_owned();
    let errors = String::from_utf8_lossy(&debugged.stderr).into_owned();
    if errors.contains("Couldn't write extended state status") {
        return skipped(
            "this gdb cannot call functions on a processor with so much state (Debian 12's and AMX)",
        );
    }
    let says = |n: u32| text.matches(&format!("word {n} is {}\n", word(n))).count();
    assert!(text.contains("= 0\n"), "{text}{errors}");
    assert_eq!((says(first), says(40 << 18)), (1, 1), "{text}{errors}");
    let address = u64::from_str_radix(line.trim(), 16).expect("it says an address");
    assert_eq!(right_words(core.as_ref(), address, 48), 48 * WORDS_OF_MIB, "{text}{errors}");
    assert!(errors.contains("Cannot access memory"), "the first print had it all the same: {text}{errors}");
}
