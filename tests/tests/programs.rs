//! Programs that other people have written, with and without Elbowroom: the same output.
//!
//! Debian's packages for them: python3, ripgrep, git, sqlite3, lmdb-utils. What is not installed is skipped,
//! which is said on standard error past the capture of the test harness; with `ELBOWROOM_REQUIRE_PROGRAMS=1`,
//! as in CI, it is a failure.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use elbowroom_tests::program::require as find;
use elbowroom_tests::{Command, Outcome, Pattern, Scratch, Variant, behaviour};

/// The output of a run under `variant` is that of a plain run. Both runs must do the same twice, so `command`
/// has no effect that the second run would see.
fn same(variant: Variant, command: impl Fn() -> Command) -> Outcome {
    let plain = command().run().success();
    let outcome = command().variant(variant).run().success();
    outcome.same_as(&plain);
    outcome
}

// ---- python3 ----

/// Python's own binary: a shim in PATH may be a shell script.
fn python() -> Option<PathBuf> {
    let python = find("python3", "python3")?;
    let outcome = Command::new(python).args(["-c", "import sys; print(sys.executable)"]).run().success();
    Some(outcome.stdout.trim().into())
}

fn python3_mmap(variant: Variant) {
    let Some(python) = python() else { return };
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, 30 * 1024 * 1024 + 5, 7);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/mapped.py");
    let other = scratch.file("other");
    let command = || Command::new(&python).args([&script.display().to_string(), &file, &other]);
    let plain = command().run().success();
    let left = Pattern::sum(&other);
    command().variant(variant).run().success().same_as(&plain);
    assert_eq!(Pattern::sum(&other), left, "the file that was written differs");
}
behaviour!(python3_mmap: plain, m64, m16, copy, threads, user_mode);

// ---- ripgrep ----

/// Lines of words that follow from the seed, about `bytes` long.
fn text(seed: u64, bytes: usize) -> String {
    let mut state = seed | 1;
    let mut text = String::with_capacity(bytes + 100);
    while text.len() < bytes {
        for _ in 0..8 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            write!(text, "{:x} ", state % 0x1_0000_0000).expect("a string can be written");
        }
        text.push('\n');
    }
    text
}

fn ripgrep(variant: Variant) {
    let Some(rg) = find("rg", "ripgrep") else { return };
    let scratch = Scratch::new();
    for index in 0..4 {
        std::fs::write(scratch.path().join(format!("{index}.txt")), text(index + 1, 8 << 20))
            .expect("files can be made");
    }
    for arguments in [
        &["--mmap", "--sort", "path", "-n", "dead"][..],
        &["--mmap", "--sort", "path", "-c", "[0-9]{7} "],
        &["--mmap", "--sort", "path", "-nob", "a[^ ]{3}e beef?"],
    ] {
        let files = (0..4).map(|index| format!("{index}.txt"));
        let command = || Command::new(&rg).args(arguments).args(files.clone()).directory(scratch.path());
        let outcome = same(variant, command);
        assert!(!outcome.stdout.is_empty(), "{}", outcome.report());
    }
}
behaviour!(ripgrep: plain, m64, m16, copy);

// ---- git ----

/// A repository of a few commits in one pack of about 20 MiB.
fn make_repository(git: &Path, scratch: &Scratch) {
    let run = |arguments: &[&str]| git_command(git, scratch).args(arguments).run().success();
    run(&["init", "-q", "."]);
    for commit in 0..3_u64 {
        for file in 0..20_u64 {
            let seed = if file < 5 { file + 1 } else { (commit + 1) * 1000 + file };
            std::fs::write(scratch.path().join(format!("{file}.txt")), text(seed, 500_000))
                .expect("files can be made");
        }
        run(&["add", "."]);
        run(&["commit", "-q", "-m", &format!("commit {commit}")]);
    }
    run(&["repack", "-adq"]);
}

fn git_command(git: &Path, scratch: &Scratch) -> Command {
    let mut command = Command::new(git).directory(scratch.path());
    for role in ["AUTHOR", "COMMITTER"] {
        command = command
            .env(&format!("GIT_{role}_NAME"), "A Test")
            .env(&format!("GIT_{role}_EMAIL"), "test@localhost")
            .env(&format!("GIT_{role}_DATE"), "2024-01-01T00:00:00Z");
    }
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_PAGER", "cat")
}

fn git(variant: Variant) {
    let Some(git) = find("git", "git") else { return };
    let scratch = Scratch::new();
    make_repository(&git, &scratch);
    for arguments in [
        &["fsck", "--full", "--no-progress"][..],
        &["log", "--stat", "-p", "--", "7.txt"],
        &["show", "HEAD~1:13.txt"],
        &["cat-file", "--batch-all-objects", "--batch-check"],
        &["grep", "-c", "dead", "HEAD~1"],
    ] {
        same(variant, || git_command(&git, &scratch).args(arguments));
    }
    // What it writes under Elbowroom is right for a plain git.
    let repack = git_command(&git, &scratch).args(["repack", "-adfq", "--threads=2"]);
    repack.variant(variant).maybe_unmanaged().run().success();
    git_command(&git, &scratch).args(["fsck", "--full", "--strict", "--no-progress"]).run().success();
}
behaviour!(git: plain, m64, m16, copy);

// ---- sqlite3 ----

const MAKE_TABLES: &str = "
PRAGMA page_size=4096;
CREATE TABLE words(id INTEGER PRIMARY KEY, key INTEGER, text TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 120000)
  INSERT INTO words SELECT i, (i * 7919) % 120011, printf('%064x', i * 123457) || hex(i) FROM n;
CREATE INDEX by_key ON words(key);
";

const USE_TABLES: &str = "
PRAGMA mmap_size=268435456;
SELECT count(*), sum(key), max(text) FROM words;
SELECT text FROM words WHERE key BETWEEN 500 AND 510 ORDER BY key;
SELECT count(*) FROM words a JOIN words b ON a.key = b.id WHERE b.text LIKE '%f00%';
UPDATE words SET text = text || 'changed' WHERE id % 7 = 0;
DELETE FROM words WHERE id % 11 = 0;
INSERT INTO words SELECT id + 1000000, key, text FROM words WHERE id % 5 = 0;
SELECT count(*), sum(length(text)) FROM words;
BEGIN; DELETE FROM words WHERE id % 2 = 0; ROLLBACK;
SELECT count(*), sum(length(text)) FROM words;
PRAGMA integrity_check;
VACUUM;
PRAGMA integrity_check;
SELECT count(*), sum(length(text)), sum(key) FROM words;
";

fn sqlite3_in(variant: Variant, journal: &str) {
    let Some(sqlite3) = find("sqlite3", "sqlite3") else { return };
    let scratch = Scratch::new();
    let script = |name: &str, text: &str| {
        let path = scratch.file(name);
        std::fs::write(&path, text).expect("a script can be made");
        path
    };
    let (make, work) = (
        script("make.sql", MAKE_TABLES),
        script("work.sql", &format!("PRAGMA journal_mode={journal};{USE_TABLES}")),
    );
    let run = |name: &str, variant: Variant| {
        let database = scratch.file(name);
        Command::new(&sqlite3).args(["-batch", &database]).input(&make).run().success();
        let outcome =
            Command::new(&sqlite3).args(["-batch", &database]).input(&work).variant(variant).run().success();
        // A plain sqlite3 finds the same rows.
        let rows = Command::new(&sqlite3).args([
            "-batch",
            &database,
            "PRAGMA integrity_check; SELECT * FROM words;",
        ]);
        (outcome.stdout, rows.run().success().stdout)
    };
    let (plain, managed) = (run("plain.db", Variant::plain()), run("managed.db", variant));
    assert_eq!(managed.0, plain.0, "sqlite3 says something else");
    assert!(managed.1 == plain.1, "the rows differ");
    assert!(managed.1.starts_with("ok\n"), "{}", managed.1.lines().next().unwrap_or(""));
}

fn sqlite3(variant: Variant) {
    sqlite3_in(variant, "DELETE");
}
behaviour!(sqlite3: plain, m64, m16, copy, user_mode);

fn sqlite3_wal(variant: Variant) {
    sqlite3_in(variant, "WAL");
}
behaviour!(sqlite3_wal: plain, m16);

// ---- lmdb ----

/// LMDB maps far beyond the end of its file, lets the file grow by pwrite, and reads what it has written
/// through the mapping.
fn lmdb(variant: Variant) {
    let (Some(load), Some(dump)) = (find("mdb_load", "lmdb-utils"), find("mdb_dump", "lmdb-utils")) else {
        return;
    };
    let scratch = Scratch::new();
    let mut records = String::from(
        "VERSION=3\nformat=print\ntype=btree\nmapsize=134217728\nmaxreaders=126\n\
         db_pagesize=4096\nHEADER=END\n",
    );
    // Large records, since mdb_load syncs after every hundred.
    let text = text(9, 20 << 20);
    let lines: Vec<&str> = text.lines().collect();
    for (index, lines) in lines.chunks(25).enumerate() {
        let key = (index as u64).wrapping_mul(2_654_435_761) % 0xffff_ffff;
        writeln!(records, " {key:08x}\n {}", lines.join(" ")).expect("a string can be written");
    }
    records.push_str("DATA=END\n");
    let input = scratch.file("records");
    std::fs::write(&input, records).expect("a file can be made");
    let database = |name: &str| {
        let path = scratch.file(name);
        std::fs::create_dir(&path).expect("a directory can be made");
        path
    };
    let (plain, managed) = (database("plain"), database("managed"));
    let load_into = |path: &str| Command::new(&load).args(["-f", &input, path]);
    let dump_of = |path: &str| Command::new(&dump).args([path]);
    load_into(&plain).run().success();
    load_into(&managed).variant(variant).maybe_unmanaged().run().success();
    let right = dump_of(&plain).run().success().stdout;
    assert!(right.len() > 20 << 20, "the database has {} bytes", right.len());
    assert!(dump_of(&managed).run().success().stdout == right, "what was loaded under Elbowroom differs");
    assert!(
        dump_of(&managed).variant(variant).run().success().stdout == right,
        "what is dumped under Elbowroom differs"
    );
}
behaviour!(lmdb: plain, m64, m16, copy);
