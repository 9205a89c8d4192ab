//! The C programs of `tests/programs` and `tests/cases`, compiled when they are first needed and kept for
//! later runs.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::place::{root, workspace};
use crate::run::Command;

/// Where programs are, and how they are compiled.
struct Kind {
    directory: &'static str,
    flags: &'static [&'static str],
}

/// Programs that check themselves.
const PROGRAMS: Kind =
    Kind { directory: "tests/programs", flags: &["-O2", "-Wall", "-Wextra", "-Werror", "-g", "-pthread"] };
/// Small programs that once differed: each access is made as it is written.
const CASES: Kind = Kind { directory: "tests/cases", flags: &["-O0", "-w", "-pthread"] };

/// The libraries of programs that need any.
const LIBRARIES: [(&str, &[&str]); 2] = [("random", &["-luring"]), ("ring_forks", &["-luring"])];

/// The compiled program `name`, from `tests/programs/name.c`.
///
/// # Panics
/// If it does not compile.
pub fn program(name: &str) -> PathBuf {
    static COMPILED: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    // A test that panicked while it compiled leaves a map that is still right.
    let mut compiled = COMPILED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let libraries = LIBRARIES.iter().find(|entry| entry.0 == name).map_or(&[][..], |entry| entry.1);
    let compile = || compile(&PROGRAMS, name, &[], libraries);
    compiled.get_or_insert_default().entry(name.to_owned()).or_insert_with(compile).clone()
}

/// The compiled case `name`, from `tests/cases/name.c`, linked with libraries.
///
/// # Panics
/// If it does not compile.
pub fn case(name: &str, libraries: &[&str]) -> PathBuf {
    compile(&CASES, name, &[], libraries)
}

/// The program `name`, from `tests/programs/name.c`, compiled and linked with further flags.
///
/// # Panics
/// If it does not compile.
pub fn program_with(name: &str, flags: &[&str]) -> PathBuf {
    compile(&PROGRAMS, name, flags, &[])
}

fn compile(kind: &Kind, name: &str, flags: &[&str], libraries: &[&str]) -> PathBuf {
    let sources = workspace().join(kind.directory);
    let source = sources.join(format!("{name}.c"));
    let mut hash = DefaultHasher::new();
    // A case may use what the programs have in common.
    let shared = headers(&workspace().join(PROGRAMS.directory));
    for path in headers(&sources).iter().chain(&shared).chain([&source]) {
        std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).hash(&mut hash);
    }
    (kind.directory, kind.flags, flags, libraries).hash(&mut hash);
    // The name ends in the program's name, so that what argv[0] says about it does not change with the
    // source.
    let directory = root().join("programs").join(format!("{:016x}", hash.finish()));
    let compiled = directory.join(name);
    if compiled.is_file() {
        return compiled;
    }
    std::fs::create_dir_all(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    // Another test binary, or thread, may do the same at this moment: a rename makes the program whole or
    // absent.
    let thread = format!("{:?}", std::thread::current().id());
    let partial = directory.join(format!("{name}.{}.{thread}", std::process::id()));
    let output = std::process::Command::new("cc")
        .args(kind.flags)
        .args(flags)
        .arg(&source)
        .arg("-o")
        .arg(&partial)
        .args(libraries)
        .output()
        .unwrap_or_else(|error| panic!("the tests need a C compiler: cc: {error}"));
    assert!(output.status.success(), "{name}.c:\n{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&partial, &compiled).unwrap_or_else(|error| panic!("{}: {error}", compiled.display()));
    compiled
}

/// Where a command is, or the loud skip of a test: on standard error, past the capture of the test harness.
///
/// # Panics
/// If it is not installed and `ELBOWROOM_REQUIRE_PROGRAMS` is 1, as in CI.
pub fn require(command: &str, package: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&path).map(|directory| directory.join(command)).find(|path| path.is_file());
    if found.is_none() {
        skip(command, package);
    }
    found
}

/// The same for a file of a package.
///
/// # Panics
/// If it is not there and `ELBOWROOM_REQUIRE_PROGRAMS` is 1, as in CI.
pub fn require_file(path: &Path, package: &str) -> Option<PathBuf> {
    if !path.exists() {
        skip(&path.display().to_string(), package);
        return None;
    }
    Some(path.to_owned())
}

fn skip(what: &str, package: &str) {
    let required = std::env::var_os("ELBOWROOM_REQUIRE_PROGRAMS").is_some_and(|value| value == "1");
    // What is made here has a path.
    let how = if package.contains('/') { package.to_owned() } else { format!("apt-get install {package}") };
    assert!(!required, "{what} is not there: {how}");
    let skip = format!("SKIPPED: {what} is not there ({how})\n");
    std::io::stderr().write_all(skip.as_bytes()).expect("standard error can be written");
}

/// What programs may include, in an order that does not change.
fn headers(sources: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(sources).unwrap_or_else(|error| panic!("{}: {error}", sources.display()));
    let mut headers: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap_or_else(|error| panic!("{}: {error}", sources.display())).path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "h"))
        .collect();
    headers.sort();
    headers
}

/// Files whose every byte follows from a seed and its offset, made and checked by plain writes and reads.
pub struct Pattern;

impl Pattern {
    /// Makes a file of the pattern, on the disk.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn create(path: &str, bytes: u64, seed: u64) {
        Command::new(program("pattern")).args(["create", path]).args([bytes, seed]).run().success();
    }

    /// Makes `count` files `prefix0`, `prefix1`, ..., whose seeds are 0, 1, ...
    ///
    /// # Panics
    /// If they cannot be made.
    pub fn create_many(prefix: &str, count: u64, bytes: u64) {
        Command::new(program("pattern")).args(["many", prefix]).args([count, bytes]).run().success();
    }

    /// The file is exactly that of this seed.
    ///
    /// # Panics
    /// If it is not.
    pub fn check(path: &str, bytes: u64, seed: u64) {
        Command::new(program("pattern")).args(["check", path]).args([bytes, seed]).run().success();
    }

    /// Whether the file is exactly that of this seed.
    pub fn holds(path: &str, bytes: u64, seed: u64) -> bool {
        let outcome = Command::new(program("pattern")).args(["check", path]).args([bytes, seed]).run();
        outcome.status.success()
    }

    /// The file's size and checksum, as text.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn sum(path: &str) -> String {
        Command::new(program("pattern")).args(["sum", path]).run().success().stdout
    }

    /// A file of `bytes` zeros (a hole).
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn zeros(path: &str, bytes: u64) {
        let file = std::fs::File::create(Path::new(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        file.set_len(bytes).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}
