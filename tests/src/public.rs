//! Programs that other people have written, run plainly and under `elbowroom run`: they say the same, end the
//! same, and leave the same behind.
//!
//! A [`Program`] is a row of a table: what it needs, how its data is made, what is run and what is looked at
//! afterwards, as scripts for bash. The scripts run in an empty directory of the same name each time. What
//! stands behind the function `run` in the script is run under Elbowroom, and plainly where the plain kernel
//! is asked:
//!
//! ```sh
//! run sqlite3 data.db 'SELECT 1' & sqlite3 data.db 'SELECT 2'; wait    # one process managed, one not
//! ```
//!
//! `serve` is `run` for the
//! background: the job is then the program itself. There are also `words`, `bytes` and `user`
//! ([`FUNCTIONS`]). `other` is a second one of the kind, for programs of two processes: it is plain in
//! [`Second::Plain`], and managed in [`Second::Managed`].

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::place::{Scratch, elbowroom_exe};
use crate::program;
use crate::run::{Command, Outcome};
use crate::variant::Variant;

/// The kinds of runs that a row is compared under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Under {
    /// `--memory 16M --min-size 4K --swap 400M` and `--memory 64M`.
    Both,
    /// The first alone: what it maps is small, or it takes long.
    Small,
    /// `--memory 16M --min-size 4K --swap 0`: it maps small files, and would need hours with so little memory
    /// of its own.
    Files,
    /// `--memory 64M`.
    Usual,
    /// `--memory 64M --swap 256M` with `--heap all` and `--heap large`: anonymous memory is managed.
    Memory,
}

/// What the function `other` of a script does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Second {
    /// The same as `run`.
    Managed,
    /// Runs it under the plain kernel.
    Plain,
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// Its name in messages.
    pub name: &'static str,
    /// Commands (or, with a slash, files) that must be there, and Debian's packages for them, or what makes
    /// them.
    pub needs: &'static [(&'static str, &'static str)],
    /// Makes the data, once for all runs.
    pub prepare: &'static str,
    /// What is run: its output and status are compared.
    pub script: &'static str,
    /// What is looked at afterwards, by plain programs: its output is compared, too.
    pub check: &'static str,
    /// Which runs there are.
    pub under: Under,
    /// What `other` does.
    pub second: Second,
    /// Whether something must have been managed.
    pub maps: bool,
    /// Words of the line that Elbowroom says of it. It must say this line, and no other.
    pub said: Option<&'static str>,
}

impl Program {
    /// A row that needs nothing and does nothing.
    pub const NONE: Program = Program {
        name: "",
        needs: &[],
        prepare: "",
        script: "",
        check: "",
        under: Under::Both,
        second: Second::Managed,
        maps: true,
        said: None,
    };

    /// Runs it plainly and in its variants.
    ///
    /// # Panics
    /// If they differ, if the plain run fails, or if a program is missing that must be there.
    pub fn compare(&self) {
        if !self.is_installed() {
            return;
        }
        let scratch = Scratch::new();
        let prepared = scratch.path().join("prepared");
        std::fs::create_dir(&prepared).expect("a directory can be made");
        self.bash(&prepared, &script_of("", "", self.prepare)).run().success();
        let plain = self.run_in(&scratch, &prepared, Variant::plain());
        assert!(plain.run.status.success(), "under the plain kernel: {}", plain.run.report());
        assert!(plain.check.status.success(), "after a plain run: {}", plain.check.report());
        let variants: &[Variant] = match self.under {
            Under::Both => &[Variant::small(), Variant::m64()],
            Under::Small => &[Variant::small()],
            Under::Files => &[Variant::files()],
            Under::Usual => &[Variant::m64()],
            Under::Memory => &[Variant::heap_all(), Variant::heap_large()],
        };
        let mut problems = String::new();
        for &variant in variants {
            let seen = self.run_in(&scratch, &prepared, variant);
            self.describe_differences(&plain, &seen, variant, &mut problems);
        }
        assert!(problems.is_empty(), "{}: {problems}", self.name);
    }

    fn is_installed(&self) -> bool {
        self.needs.iter().all(|(command, package)| match command.contains('/') {
            true => program::require_file(Path::new(command), package).is_some(),
            false => program::require(command, package).is_some(),
        })
    }

    fn bash(&self, directory: &Path, script: &str) -> Command {
        // rustup looks for its toolchains in the home directory.
        let rustup = std::env::var("RUSTUP_HOME")
            .unwrap_or_else(|_| format!("{}/.rustup", std::env::var("HOME").unwrap_or_default()));
        Command::new("bash")
            .env("RUSTUP_HOME", &rustup)
            .args(["-c", script, self.name])
            .directory(directory)
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC")
            .env("HOME", &directory.display().to_string())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .maybe_unmanaged()
            .time_limit(TIME_LIMIT)
    }

    /// One run on a copy of the data, in a directory whose name is always the same.
    fn run_in(&self, scratch: &Scratch, prepared: &Path, variant: Variant) -> Seen {
        let (work, stats) =
            (scratch.path().join("work"), scratch.path().join(format!("stats-{}", variant.name)));
        Command::new("cp")
            .args(["-a", &prepared.display().to_string(), &work.display().to_string()])
            .run()
            .success();
        std::fs::create_dir(&stats).expect("a directory can be made");
        let managed = under(variant, &stats);
        let other = if self.second == Second::Plain { "" } else { &managed };
        let mut run = self.bash(&work, &script_of(&managed, other, self.script)).run();
        let said = match self.said {
            Some(words) if !managed.is_empty() => take_lines(&mut run.stderr, words) > 0,
            _ => true,
        };
        let check = self.bash(&work, &script_of("", "", self.check)).run();
        std::fs::remove_dir_all(&work).expect("a directory can be removed");
        Seen { run, check, faults: faults(&stats), said }
    }

    fn describe_differences(&self, plain: &Seen, seen: &Seen, variant: Variant, problems: &mut String) {
        for (what, plain, seen) in
            [("the run", &plain.run, &seen.run), ("what it left", &plain.check, &seen.check)]
        {
            let same =
                seen.status == plain.status && seen.stdout == plain.stdout && seen.stderr == plain.stderr;
            if !same {
                let (seen, plain) = (short(seen), short(plain));
                let _ = write!(
                    problems,
                    "\n{what} differs under {}:\n{seen}\n--- but under the plain kernel:\n{plain}\n",
                    variant.name
                );
            }
        }
        if !seen.said {
            let _ = write!(problems, "\nElbowroom has not said {:?} under {}", self.said, variant.name);
        }
        if self.maps && seen.faults == 0 {
            let _ = write!(problems, "\nElbowroom has served no fault under {}", variant.name);
        }
    }
}

/// How long a script may take, on two cores that others use too.
const TIME_LIMIT: Duration = Duration::from_secs(100);

/// What was seen of one run.
struct Seen {
    run: Outcome,
    check: Outcome,
    /// Page faults that Elbowroom has served, in all its processes.
    faults: u64,
    /// Whether Elbowroom has said what it must say.
    said: bool,
}

/// Takes Elbowroom's lines with these words out of a text. How many they were.
fn take_lines(text: &mut String, words: &str) -> usize {
    let is_taken = |line: &&str| line.starts_with("elbowroom: ") && line.contains(words);
    let taken = text.lines().filter(is_taken).count();
    *text = text.split_inclusive('\n').filter(|line| !is_taken(line)).collect();
    taken
}

/// The words before a command that put it under Elbowroom; each process has a statistics file of its own.
fn under(variant: Variant, stats: &Path) -> String {
    let Some(options) = variant.options else { return String::new() };
    format!(
        "'{}' run {} --quiet --stats '{}'/$BASHPID.$RANDOM --",
        elbowroom_exe().display(),
        options.join(" "),
        stats.display()
    )
}

/// What every script can use: `words BYTES SEED FILE` and `bytes BYTES SEED FILE` make files that follow from
/// the seed, and `user` is what drops root's rights, but for what Elbowroom needs, before a command that
/// refuses them.
const FUNCTIONS: &str = r#"
set -euo pipefail
words() {
    /usr/bin/python3 -c 'import random, sys; n, seed, path = sys.argv[1:]
r = random.Random(int(seed)); n = int(n)
with open(path, "w") as f:
    while n > 0: n -= f.write(" ".join("%x" % r.getrandbits(36) for i in range(8)) + "\n")' "$@"
}
bytes() {
    /usr/bin/python3 -c 'import random, sys; n, seed, path = sys.argv[1:]
open(path, "wb").write(random.Random(int(seed)).randbytes(int(n)))' "$@"
}
user=()
if [ "$(id -u)" = 0 ]; then
    user=(setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=+sys_ptrace,+dac_read_search
        --ambient-caps=+sys_ptrace,+dac_read_search)
fi
"#;

fn script_of(managed: &str, other: &str, script: &str) -> String {
    format!(
        "{FUNCTIONS}run() {{ {managed} \"$@\"; }}\nother() {{ {other} \"$@\"; }}\n\
         serve() {{ exec {managed} \"$@\"; }}\n{script}\n"
    )
}

/// The faults of all statistics that were left.
fn faults(stats: &Path) -> u64 {
    let files = std::fs::read_dir(stats).expect("the directory of statistics is there");
    let of = |path: PathBuf| -> Option<u64> {
        let value: serde_json::Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        value.get("pgfault")?.as_u64()
    };
    files.flatten().filter_map(|file| of(file.path())).sum()
}

/// Status and output without the script.
fn short(outcome: &Outcome) -> String {
    let report = outcome.report();
    match report.rfind("\nended with ") {
        Some(at) => report[at + 1..].to_owned(),
        None => report,
    }
}
