//! On real files: programs of the system, programs compiled here, scripts.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::*;

/// What [`Binary`] says of the program at `path`.
fn checked(path: &Path, target: Target) -> Result<(), Obstacle> {
    Binary::of(path)?.check(target)
}

fn own_target() -> Target {
    read_elf(File::open("/proc/self/exe").unwrap()).unwrap().target
}

fn write(path: &Path, bytes: &[u8], mode: u32) {
    std::fs::write(path, bytes).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn unmanageable(result: Result<(), Obstacle>) -> String {
    match result {
        Err(Obstacle::Unmanageable(why)) => why,
        other => panic!("{other:?}"),
    }
}

fn failure(result: Result<(), Obstacle>) -> Failure {
    match result {
        Err(Obstacle::Broken(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

/// Compiles an empty program; `None` if there is no C compiler or it cannot do that.
fn compile(dir: &Path, flags: &[&str]) -> Option<PathBuf> {
    let (source, program) = (dir.join("empty.c"), dir.join("empty"));
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let status = Command::new("cc").args(flags).arg("-o").arg(&program).arg(&source).output().ok()?.status;
    status.success().then_some(program)
}

#[test]
fn programs_of_the_system_are_dynamic() {
    for name in ["ls", "sh", "cat"] {
        let path = find(OsStr::new(name), Some(OsStr::new("/nonexistent:/usr/bin:/bin"))).unwrap();
        checked(&path, own_target()).unwrap_or_else(|why| panic!("{name}: {why:?}"));
    }
    let shell = read_elf(File::open("/bin/sh").unwrap()).unwrap();
    assert!(shell.dynamic && shell.interpreter.is_some());
}

/// Says that a test, or the rest of it, cannot be made here: past the harness, which keeps what passing tests
/// print to itself.
fn skipped(reason: impl std::fmt::Display) {
    // If nobody can be told, there is nobody to tell.
    let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("SKIPPED: {reason}\n"));
}

#[test]
fn static_programs_are_refused_and_the_loader_is_not() {
    let dir = tempfile::tempdir().unwrap();
    for flags in [["-static"], ["-static-pie"]] {
        let Some(program) = compile(dir.path(), &flags) else {
            skipped(format_args!("cc {flags:?} does not work here"));
            continue;
        };
        let why = unmanageable(checked(&program, own_target()));
        assert!(why.contains("statically linked"), "{flags:?}: {why}");
    }
    let loader = read_elf(File::open("/bin/sh").unwrap()).unwrap().interpreter.unwrap();
    checked(&loader, own_target()).unwrap();
}

#[test]
fn another_machine_is_refused() {
    // Our own program with another machine in its header (at byte 18), and with another class (at byte 4).
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read("/bin/sh").unwrap();
    let other: u16 = if cfg!(target_arch = "x86_64") { elf::EM_AARCH64.0 } else { elf::EM_X86_64.0 };
    bytes[18..20].copy_from_slice(&other.to_ne_bytes());
    let program = dir.path().join("foreign");
    write(&program, &bytes, 0o755);
    let why = unmanageable(checked(&program, own_target()));
    assert!(why.contains("is for") && why.contains("64 bits"), "{why}");
}

#[test]
fn a_torn_program_is_broken() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("torn");
    write(&program, &std::fs::read("/bin/sh").unwrap()[..40], 0o755);
    let failure = failure(checked(&program, own_target()));
    assert_eq!(failure.code, CANNOT_RUN);
    assert!(failure.message.contains("not a usable ELF file"), "{failure}");
}

#[test]
fn scripts_are_followed_to_their_interpreter() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("script");
    for text in
        ["#!/bin/sh\n", "#! /bin/sh -e\n", "#!/usr/bin/env python3\n", "echo no first line\n", "", "#!\n"]
    {
        write(&script, text.as_bytes(), 0o755);
        checked(&script, own_target()).unwrap_or_else(|why| panic!("{text:?}: {why:?}"));
    }
    write(&script, b"#!/no/such/interpreter\n", 0o755);
    let failed = failure(checked(&script, own_target()));
    assert_eq!(failed.code, NOT_FOUND);
    assert!(failed.message.contains("/no/such/interpreter"), "{failed}");

    write(&script, format!("#!{}\n", script.display()).as_bytes(), 0o755);
    assert!(failure(checked(&script, own_target())).message.contains("too many interpreters"));

    let Some(program) = compile(dir.path(), &["-static"]) else { return };
    write(&script, format!("#!{}\n", program.display()).as_bytes(), 0o755);
    assert!(unmanageable(checked(&script, own_target())).contains("statically linked"));
}

#[test]
fn what_gains_rights_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    if rights_are_ignored(dir.path()) || !rustix::process::getuid().is_root() {
        skipped("only root can give a program to another user");
        return;
    }
    let program = dir.path().join("program");
    let owned = |uid: u32, gid: u32, mode: u32| {
        write(&program, &std::fs::read("/bin/sh").unwrap(), 0o755);
        std::os::unix::fs::chown(&program, Some(uid), Some(gid)).unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        checked(&program, own_target())
    };
    assert!(unmanageable(owned(1234, 0, 0o4755)).contains("is setuid"));
    assert!(unmanageable(owned(0, 1234, 0o2755)).contains("is setgid"));
    // Rights that the caller has already are no gain, and a setgid bit without execution by the group means
    // locking.
    owned(0, 0, 0o6755).unwrap();
    owned(0, 1234, 0o2745).unwrap();
    owned(1234, 1234, 0o755).unwrap();
}

#[test]
fn found_as_execvp_finds() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    std::fs::create_dir_all(first.join("tool-dir")).unwrap();
    std::fs::create_dir_all(&second).unwrap();
    let search = OsString::from(format!("{}:/nonexistent:{}", first.display(), second.display()));
    let look = |name: &str| find(OsStr::new(name), Some(&search));

    write(&first.join("tool"), b"", 0o644);
    let refused = look("tool").unwrap_err();
    assert_eq!(refused.code, CANNOT_RUN);
    assert!(refused.message.contains("Permission denied"), "{refused}");
    write(&second.join("tool"), b"", 0o755);
    assert_eq!(look("tool").unwrap(), second.join("tool"));

    assert_eq!(look("tool-dir").unwrap_err().code, CANNOT_RUN);
    assert_eq!(look("no-tool").unwrap_err().code, NOT_FOUND);
    assert_eq!(look("").unwrap_err().code, NOT_FOUND);
    assert_eq!(look("./no-tool").unwrap_err().code, NOT_FOUND);
    assert_eq!(look("/bin/sh").unwrap(), Path::new("/bin/sh"));
    assert_eq!(look(&first.display().to_string()).unwrap_err().code, CANNOT_RUN);
    assert_eq!(look("/bin/sh/x").unwrap_err().code, NOT_FOUND);
}

/// As Go's linker makes programs, as far as it matters: a note of Go's, with mmap from libc or without.
#[test]
fn a_go_program_that_maps_by_itself_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let note = "__asm__(\".pushsection .note.go.buildid, \\\"a\\\", @note\\n.long 3, 4, 4\\n.asciz \
                \\\"Go\\\"\\n\"\n \".balign 4\\n.long 7\\n.popsection\");\n";
    for (uses_c, body) in [(false, "return 0;"), (true, "return mmap(0, 4096, 0, 34, -1, 0) == (void *)-1;")]
    {
        let (source, program) = (dir.path().join("go.c"), dir.path().join("go"));
        std::fs::write(&source, format!("#include <sys/mman.h>\n{note}int main(void) {{ {body} }}\n"))
            .unwrap();
        let built = Command::new("cc").arg("-o").arg(&program).arg(&source).output();
        if !built.is_ok_and(|built| built.status.success()) {
            return skipped("there is no C compiler that makes notes");
        }
        let checked = checked(&program, own_target());
        if uses_c {
            checked.unwrap();
        } else {
            assert!(unmanageable(checked).contains("built by Go without C"));
        }
    }
}
