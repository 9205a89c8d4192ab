//! Programs that were compiled with a sanitizer end as plain ones do, and report the same errors: the kernel
//! has all their memory, and a line says so.

use std::path::Path;

use elbowroom_tests::program::program_with;
use elbowroom_tests::{Command, Outcome, Variant, behaviour, program, skipped};

/// What the program ends with if nothing was wrong.
const STATUS: i32 = 7;
const LINE: &str = "beside which no manager can be: nothing of it";

/// A way to compile the program, and the errors that its sanitizer reports.
struct Sanitizer {
    flags: &'static [&'static str],
    errors: &'static [&'static str],
}

/// GCC has the sanitizers that it links as a library first, or as a part of the executable.
const ADDRESS: Sanitizer =
    Sanitizer { flags: &["-Wno-use-after-free", "-fsanitize=address"], errors: &["none", "freed", "lost"] };
const ADDRESS_LINKED: Sanitizer = Sanitizer {
    flags: &["-Wno-use-after-free", "-fsanitize=address", "-static-libasan"],
    errors: &["none", "freed", "lost"],
};
const THREAD: Sanitizer =
    Sanitizer { flags: &["-Wno-use-after-free", "-fsanitize=thread"], errors: &["none", "race"] };
const THREAD_LINKED: Sanitizer = Sanitizer {
    flags: &["-Wno-use-after-free", "-fsanitize=thread", "-static-libtsan"],
    errors: &["none", "race"],
};
const LEAK: Sanitizer =
    Sanitizer { flags: &["-Wno-use-after-free", "-fsanitize=leak"], errors: &["none", "lost"] };
const UNDEFINED: Sanitizer =
    Sanitizer { flags: &["-Wno-use-after-free", "-fsanitize=undefined"], errors: &["none", "overflow"] };

/// How the reports of errors end, or what they are.
fn reports(outcome: &Outcome) -> Vec<&str> {
    let is_report = |line: &&str| line.starts_with("SUMMARY: ") || line.contains(": runtime error: ");
    outcome.stderr.lines().filter(is_report).collect()
}

fn said(outcome: &Outcome) -> usize {
    outcome.stderr.lines().filter(|line| line.contains(LINE)).count()
}

/// Whether the runtime of ThreadSanitizer finds its addresses: not all do where the kernel places mappings at
/// random in more than 28 bits.
fn thread_sanitizer_works() -> bool {
    let plain = Command::new(program_with("sanitized", THREAD.flags)).args(["none"]).run();
    plain.status.code() == Some(STATUS)
}

/// The same as plain, whichever error; the line is said `times`, and not with `--fallback kernel`.
fn the_same(sanitizer: &Sanitizer, variant: Variant, times: usize) {
    let exe = program_with("sanitized", sanitizer.flags);
    for error in sanitizer.errors {
        let command = || Command::new(&exe).args([error]).maybe_unmanaged();
        let plain = command().run();
        assert_eq!(reports(&plain).is_empty(), *error == "none", "{}", plain.report());
        let check = |outcome: &Outcome, times: usize| {
            assert_eq!(outcome.stdout, plain.stdout, "{}", outcome.report());
            assert_eq!(outcome.status, plain.status, "{}", outcome.report());
            assert_eq!(reports(outcome), reports(&plain), "{}", outcome.report());
            assert_eq!(said(outcome), times, "{}", outcome.report());
        };
        check(&command().variant(variant).run(), times);
        if *error == "none" {
            check(&command().variant(variant).run_options(&["--fallback", "kernel"]).run(), 0);
        }
    }
}

fn address(variant: Variant) {
    the_same(&ADDRESS, variant, 1);
    the_same(&ADDRESS_LINKED, variant, 1);
}
behaviour!(address: m16, m64, heap_all);

fn thread(variant: Variant) {
    if !thread_sanitizer_works() {
        return skipped("ThreadSanitizer does not work here: see vm.mmap_rnd_bits");
    }
    the_same(&THREAD, variant, 1);
    the_same(&THREAD_LINKED, variant, 1);
}
behaviour!(thread: m16, m64, heap_all);

fn leak(variant: Variant) {
    the_same(&LEAK, variant, 1);
}
behaviour!(leak: m16, heap_all);

/// Its runtime only prints, so it is managed.
fn undefined(variant: Variant) {
    the_same(&UNDEFINED, variant, 0);
    let exe = program_with("sanitized", UNDEFINED.flags);
    let outcome = Command::new(exe).args(["none"]).variant(variant).run();
    assert!(outcome.stat("pgfault") > 0, "{}", outcome.report());
}
behaviour!(undefined: m16, heap_all);

/// A managed process executes such a program, by each call that there is for that.
fn as_children(variant: Variant) {
    const SPAWN: &str = "import os, sys; exe = sys.argv[1]\n\
                         p = os.posix_spawn(exe, [exe, 'freed'], os.environ)\n\
                         sys.exit(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))";
    const EXEC: &str = "import os, sys; os.execvp(sys.argv[1], [sys.argv[1], 'freed'])";
    for sanitizer in [ADDRESS, ADDRESS_LINKED] {
        let exe = program_with("sanitized", sanitizer.flags);
        let exe = exe.display().to_string();
        for command in [
            vec!["sh", "-c", "\"$0\" freed", &exe],
            vec!["sh", "-c", "exec \"$0\" freed", &exe],
            vec!["/usr/bin/python3", "-c", SPAWN, &exe],
            vec!["/usr/bin/python3", "-c", EXEC, &exe],
        ] {
            let run = |variant| {
                Command::new(command[0]).args(&command[1..]).maybe_unmanaged().variant(variant).run()
            };
            let (plain, ours) = (run(Variant::plain()), run(variant));
            assert_eq!(plain.status.code(), Some(1), "{}", plain.report());
            assert_eq!(ours.status, plain.status, "{}", ours.report());
            assert_eq!(ours.stdout, plain.stdout, "{}", ours.report());
            assert_eq!(reports(&ours), reports(&plain), "{}", ours.report());
            assert_eq!(said(&ours), 1, "{}", ours.report());
        }
    }
}
behaviour!(as_children: m16, heap_all);

/// A runtime that the user preloads stays before our libraries.
#[test]
fn a_runtime_that_is_preloaded() {
    let named = std::process::Command::new("cc").arg("-print-file-name=libasan.so").output();
    let path = String::from_utf8(named.expect("there is a compiler").stdout).expect("a path is text");
    let path = Path::new(path.trim()).canonicalize().expect("the compiler has it");
    let command = Command::new(program("said")).args(["end"]).variant(Variant::m16()).maybe_unmanaged();
    let path = path.display().to_string();
    let outcome = command.env("LD_PRELOAD", &path).env("ASAN_OPTIONS", "detect_leaks=0").run().success();
    assert_eq!(outcome.stdout, "used 1\n", "{}", outcome.report());
    assert_eq!(said(&outcome), 1, "{}", outcome.report());
}
