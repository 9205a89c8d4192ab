//! What the tests of the command from outside share: a directory with an empty library to preload.

// Not each of the files that share this uses all of it.
#![allow(dead_code)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// The command.
pub const ELBOWROOM: &str = env!("CARGO_BIN_EXE_elbowroom");

/// A directory with an empty library to preload.
pub struct Bench {
    pub dir: TempDir,
}

impl Bench {
    /// `None`, said aloud, without a C compiler.
    pub fn new() -> Option<Bench> {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("empty.c");
        std::fs::write(&source, "int elbowroom_empty_library;\n").unwrap();
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([dir.path().join("empty.so"), source])
            .status();
        if built.is_ok_and(|status| status.success()) {
            Some(Bench { dir })
        } else {
            skipped("there is no C compiler");
            None
        }
    }

    pub fn library(&self) -> PathBuf {
        self.dir.path().join("empty.so")
    }

    /// `elbowroom` with the empty library.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(ELBOWROOM);
        command.args(arguments).env("ELBOWROOM_PRELOAD", self.library()).env_remove("LD_PRELOAD");
        command
    }

    pub fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Writes an executable file.
    pub fn script(&self, name: &str, text: &str) -> String {
        let (draft, path) = (self.dir.path().join("draft"), self.dir.path().join(name));
        std::fs::write(&draft, text).unwrap();
        copy(&draft, &path);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    }
}

/// Copies a file that is going to be executed, in another process: a descriptor that this process had open
/// for writing could be inherited for a moment by a program that another test starts, and nobody could
/// execute the file then (ETXTBSY).
pub fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().unwrap().success());
}

/// Says that a test, or the rest of it, cannot be made here: past the harness, which keeps what passing tests
/// print to itself.
pub fn skipped(reason: impl std::fmt::Display) {
    // If nobody can be told, there is nobody to tell.
    let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("SKIPPED: {reason}\n"));
}

/// A bench where programs can run managed; `None`, said aloud, where doctor says they cannot.
pub fn managed_bench() -> Option<Bench> {
    let bench = Bench::new()?;
    if bench.output(&["doctor"]).status.success() {
        return Some(bench);
    }
    skipped("elbowroom doctor says that run cannot work here");
    None
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks the exit code, that nothing was printed, and that the error has the prefix and says `expected`.
pub fn assert_refused(output: &Output, code: i32, expected: &str) {
    let error = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert!(error.starts_with("elbowroom: "), "{error}");
    assert!(error.contains(expected), "no '{expected}' in: {error}");
    assert!(!error.contains("panicked"), "{error}");
    assert_eq!(stdout(output), "");
}
