//! Finds the runs of this user, and the run that a command line means.
//!
//! A run is found by the file of its table. `top` and `ctl` read and write that table, and ask no process:
//! docs/decisions/0034-top-reads-the-table.md

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use elbowroom::{ProcessTree, TableFile, TreeSnapshot};
use elbowroom_options::size::Shown;
use serde::Serialize;

use crate::failure::{Failure, NOT_DONE};
use crate::run_table;

/// A run that has at least one process.
pub struct Run {
    /// The id of the process that `elbowroom run` became. It may end before the other processes of the run.
    pub main_pid: u32,
    /// The table.
    pub tree: ProcessTree,
}

/// A run in a few words, for lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Brief {
    /// [`Run::main_pid`].
    pub run: u32,
    /// The name of the main process, or of another process if the main process has ended.
    pub command: String,
    /// Age of the run, in milliseconds.
    pub age_ms: u64,
    /// Bytes that all processes together may have.
    pub max_bytes: u64,
    /// Bytes that the processes have.
    pub bytes: u64,
    /// Bytes that the processes have in swap.
    pub swap_bytes: u64,
    /// The ids of the processes that have not ended.
    pub pids: Vec<u32>,
}

impl Brief {
    /// The run as a snapshot of its table has it.
    fn of(main_pid: u32, snapshot: &TreeSnapshot) -> Self {
        Self {
            run: main_pid,
            command: command(main_pid, snapshot),
            age_ms: milliseconds(snapshot.age),
            max_bytes: snapshot.limits.max,
            bytes: snapshot.bytes,
            swap_bytes: snapshot.swap_bytes,
            pids: snapshot.rows.iter().map(|row| row.pid).collect(),
        }
    }
}

impl std::fmt::Display for Brief {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { run, command, bytes, max_bytes, pids, .. } = self;
        let (processes, bytes, max_bytes) = (count(pids.len() as u64), Shown(*bytes), Shown(*max_bytes));
        write!(f, "{run}  {command}  {processes}, {bytes} of {max_bytes}")
    }
}

/// A number of processes in words.
pub fn count(processes: u64) -> String {
    format!("{processes} process{}", if processes == 1 { "" } else { "es" })
}

/// A duration in whole milliseconds.
pub fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The name of a run: that of its main process, or of the first process in the table if the main process
/// has ended.
pub fn command(main_pid: u32, snapshot: &TreeSnapshot) -> String {
    let main = snapshot.rows.iter().find(|row| row.pid == main_pid);
    main.or(snapshot.rows.first()).map_or_else(|| "?".to_owned(), |row| printable(&row.name))
}

/// A text without characters that a terminal would obey: a program may give its process any name.
pub fn printable(text: &str) -> String {
    // The others change the direction of the text after them.
    let is_obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_obeyed(c) { '?' } else { c }).collect()
}

impl Run {
    /// All runs of this user, the oldest first.
    pub fn all() -> Vec<Self> {
        // One directory may have several names.
        let directories: BTreeSet<_> =
            run_table::directories(None).iter().filter_map(|dir| fs::canonicalize(dir).ok()).collect();
        let tables = directories.iter().flat_map(|dir| run_table::tables(dir));
        let runs = tables.filter_map(|(path, tree)| Some(Self { main_pid: main_pid(&path)?, tree }));
        let mut runs: Vec<_> = runs.filter(|run| !run.is_over()).collect();
        runs.sort_by_cached_key(|run| std::cmp::Reverse(run.snapshot().age));
        runs
    }

    /// The run that a command means. `named`: the id of its main process, or of any process in it; `None`:
    /// the only run that there is.
    ///
    /// # Errors
    /// There is no such run, or none was named where there are several. The message lists the runs.
    pub fn find(named: Option<u32>) -> Result<Self, Failure> {
        let mut runs = Self::all();
        let briefs: Vec<_> = runs.iter().map(Self::brief).collect();
        let at = choose(named, &briefs).map_err(|why| Failure::new(NOT_DONE, why))?;
        Ok(runs.swap_remove(at))
    }

    /// The run in a few words.
    pub fn brief(&self) -> Brief {
        Brief::of(self.main_pid, &self.snapshot())
    }

    /// The run as it is now, without processes that are gone. The processes of a run look for those
    /// themselves, but a process without managed memory does not.
    pub fn snapshot(&self) -> TreeSnapshot {
        static TURNS: AtomicU32 = AtomicU32::new(0);
        let turn = TURNS.fetch_add(1, Ordering::Relaxed);
        self.tree.free_the_dead(u64::from(std::process::id()) << 32 | u64::from(turn));
        self.tree.snapshot()
    }

    /// Whether all processes of the run have ended.
    pub fn is_over(&self) -> bool {
        !self.tree.is_in_use()
    }
}

/// The main process's id, from the name of a table's file.
fn main_pid(path: &Path) -> Option<u32> {
    let rest = path.file_name()?.to_str()?.strip_prefix(TableFile::PREFIX)?;
    rest.split('-').next()?.parse().ok()
}

/// The index of the run that `named` means. `Err`: the message for the user.
fn choose(named: Option<u32>, runs: &[Brief]) -> Result<usize, String> {
    let list = || runs.iter().map(|run| format!("\n  {run}")).collect::<String>();
    let none = "there is no run of this user: start one with `elbowroom run --memory 512M -- PROGRAM`";
    match (named, runs.len()) {
        (_, 0) => Err(none.to_owned()),
        (None, 1) => Ok(0),
        (None, several) => Err(format!("there are {several} runs; name one by its id:{}", list())),
        (Some(pid), _) => {
            // A process that has executed `elbowroom run` again is the main process of two runs, but has a
            // row only in the newer one.
            let is_main = |run: &Brief| run.run == pid;
            let has = |run: &Brief| run.pids.contains(&pid);
            let at = runs.iter().rposition(has).or_else(|| runs.iter().rposition(is_main));
            at.ok_or_else(|| format!("no run has a process {pid}; the runs are:{}", list()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(main: u32, pids: &[u32]) -> Brief {
        Brief {
            run: main,
            command: "make".to_owned(),
            age_ms: 5,
            max_bytes: 1 << 30,
            bytes: 1 << 20,
            swap_bytes: 0,
            pids: pids.to_vec(),
        }
    }

    #[test]
    fn a_run_is_named_by_any_of_its_processes_and_needs_no_name_alone() {
        let runs = [run(10, &[10, 11]), run(20, &[21]), run(10, &[30])];
        for (pid, at) in [(10, 0), (11, 0), (20, 1), (21, 1), (30, 2)] {
            assert_eq!(choose(Some(pid), &runs), Ok(at), "{pid}");
        }
        assert_eq!(choose(None, &runs[1..2]), Ok(0));
        let several = choose(None, &runs).unwrap_err();
        assert!(several.starts_with("there are 3 runs; name one"), "{several}");
        assert!(several.contains("\n  20  make  1 process, 1 MiB of 1 GiB"), "{several}");
        assert!(several.contains("\n  10  make  2 processes, 1 MiB of 1 GiB"), "{several}");
        let other = choose(Some(99), &runs).unwrap_err();
        assert!(other.contains("no run has a process 99") && other.contains("\n  20  make"), "{other}");
        for named in [None, Some(99)] {
            assert!(choose(named, &[]).unwrap_err().contains("elbowroom run --memory"));
        }
    }

    #[test]
    fn the_name_of_a_table_has_the_main_process() {
        let of = |name: &str| main_pid(&Path::new("/dev/shm").join(name));
        assert_eq!(of("elbowroom-run-123-0a0b0c0d"), Some(123));
        assert_eq!((of("elbowroom-run-x-0a"), of("elbowroom-123-0")), (None, None));
    }
}
