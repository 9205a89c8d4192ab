//! A run at a moment, as `top` shows, records and prints it.

use std::time::{SystemTime, UNIX_EPOCH};

use elbowroom::{ProcessGauges, ProcessPressure, ProcessRow, ProcessUse, StallAverages, StalledFor};
use elbowroom_machine::process_exists;
use serde::{Deserialize, Serialize};

use crate::runs::{self, Run, milliseconds, printable};
use crate::top::names;

/// A process that has noted nothing for so many milliseconds is stopped, or ends: what it noted is no longer
/// so.
pub const SILENT_MS: u64 = 3_000;

/// A run at a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When it was taken, in milliseconds since 1970.
    pub at_ms: u64,
    /// The id of the run's main process.
    pub run: u32,
    /// The name of the main process.
    pub command: String,
    /// Age of the run, in milliseconds.
    pub age_ms: u64,
    /// Bytes that all processes together may have.
    pub max_bytes: u64,
    /// Bytes that one process may have; `None`: as many as all together.
    pub each_bytes: Option<u64>,
    /// Bytes that may be in swap.
    pub swap_max_bytes: u64,
    /// Bytes that the processes have.
    pub bytes: u64,
    /// The most bytes that the processes had at a time.
    pub peak_bytes: u64,
    /// Bytes that the processes have in swap.
    pub swap_bytes: u64,
    /// How many processes the run has had so far.
    pub processes: u64,
    /// The counters of all processes that have ended, added up.
    pub ended: ProcessUse,
    /// The pressure of the process that has the most, by each figure.
    #[serde(default)]
    pub pressure: RunPressure,
    /// The processes that have a row, in the order of the table.
    pub rows: Vec<Row>,
}

/// A process at a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its id.
    pub pid: u32,
    /// Its name, as the kernel has it.
    pub name: String,
    /// The process was killed, and no other process has freed its row yet: its memory counts until then.
    pub is_gone: bool,
    /// How long it has been in the run, in milliseconds.
    pub age_ms: u64,
    /// Bytes that it has.
    pub bytes: u64,
    /// The most bytes that it had at a time.
    pub peak_bytes: u64,
    /// Bytes that it has in swap.
    pub swap_bytes: u64,
    /// Bytes of it that are protected from other processes.
    pub low_bytes: u64,
    /// Bytes that other processes want of it.
    pub asked_bytes: u64,
    /// Pages that came back lately, for each 1,024 that it has, in a second.
    pub cost: u64,
    /// When the process noted what it has counted, in milliseconds since the run began. `None`: never, since
    /// it has no manager.
    pub noted_ms: Option<u64>,
    /// Its counters.
    #[serde(flatten)]
    pub used: ProcessUse,
    /// What it shows of itself.
    #[serde(flatten)]
    pub shown: Shown,
}

/// What a process shows of itself beside its counters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    /// Its pressure. `None`: it has noted none in the last [`SILENT_MS`].
    #[serde(default)]
    pub pressure: Option<ProcessPressure>,
    /// Where its pages are.
    #[serde(default)]
    pub tiers: Tiers,
    /// What its threads waited for, of locks.
    #[serde(default)]
    pub contention: Contention,
    /// What its threads stalled for longest. `None`: they never stalled.
    #[serde(default)]
    pub stalls: Option<Stalls>,
    /// Accesses that found a group over its `high`, and nothing that could be reclaimed.
    #[serde(default)]
    pub high_stuck: u64,
}

/// The pressure of the process of a run that has the most. A run has at least so much of `some`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RunPressure {
    /// At least one thread stalled.
    pub some: StallAverages,
    /// At least one thread stalled, and none of its process was known to run.
    pub full: StallAverages,
}

/// Where the pages of a process are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tiers {
    /// Bytes that it has: `bytes` of its row.
    pub memory_bytes: u64,
    /// Bytes of these in which compressed pages are.
    pub pool_bytes: u64,
    /// Bytes of the swap file that it uses.
    pub swap_file_bytes: u64,
    /// Bytes of its pages that are out, as large as they are in memory.
    pub out_bytes: u64,
}

/// Waits for locks of a process's manager.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contention {
    /// The name of the lock with the longest sum of waits: docs/locking.md. `None`: no thread waited.
    pub lock: Option<String>,
    /// That sum, in microseconds.
    pub wait_us: u64,
    /// The sum of the waits for the lock of the LRU lists, in microseconds.
    pub lru_wait_us: u64,
}

/// The file, or the mapping of memory, for which threads of a process stalled longest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stalls {
    /// The path of the file. `None`: it is no file, or the process has it open no more.
    pub path: Option<String>,
    /// The device of the file; 0: it is no file.
    pub device: u64,
    /// The inode of the file; 0: it is no file.
    pub inode: u64,
    /// The first address of the mapping of memory; 0: it is a file.
    pub address: u64,
    /// The stall time of threads for it, in microseconds.
    pub stall_us: u64,
}

impl Sample {
    /// The run as it is now.
    pub fn take(run: &Run) -> Self {
        let snapshot = run.snapshot();
        let rows: Vec<Row> =
            snapshot.rows.iter().map(|row| Row::of(row, milliseconds(snapshot.age))).collect();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            at_ms: milliseconds(since_1970),
            run: run.main_pid,
            command: runs::command(run.main_pid, &snapshot),
            age_ms: milliseconds(snapshot.age),
            max_bytes: snapshot.limits.max,
            each_bytes: snapshot.limits.each,
            swap_max_bytes: snapshot.limits.swap_max,
            bytes: snapshot.bytes,
            peak_bytes: snapshot.peak_bytes,
            swap_bytes: snapshot.swap_bytes,
            processes: snapshot.processes,
            ended: snapshot.ended,
            pressure: RunPressure::most(rows.iter().filter_map(|row| row.shown.pressure)),
            rows,
        }
    }
}

impl Row {
    /// The process of a row of a run that has lasted for `run_age_ms` milliseconds.
    fn of(row: &ProcessRow, run_age_ms: u64) -> Self {
        let noted_ms = row.noted.map(milliseconds);
        let is_silent = noted_ms.is_none_or(|noted| run_age_ms.saturating_sub(noted) > SILENT_MS);
        Self {
            pid: row.pid,
            name: printable(&row.name),
            is_gone: !process_exists(row.pid),
            age_ms: milliseconds(row.age),
            bytes: row.bytes,
            peak_bytes: row.peak_bytes,
            swap_bytes: row.swap_bytes,
            low_bytes: row.low_bytes,
            asked_bytes: row.asked_bytes,
            cost: row.cost,
            noted_ms,
            used: row.used,
            shown: Shown::of(row, is_silent),
        }
    }
}

impl Shown {
    /// What the process of a row shows. `is_silent`: it has noted nothing for some time.
    fn of(row: &ProcessRow, is_silent: bool) -> Self {
        let ProcessGauges { pressure, pool_bytes, swap_file_bytes, out_bytes, .. } = row.gauges;
        let ProcessGauges { lock, lock_wait_us, lru_wait_us, stalled_for, high_stuck, .. } = row.gauges;
        let lock = printable(String::from_utf8_lossy(&lock).trim_end_matches('\0'));
        Self {
            pressure: (!is_silent).then_some(pressure),
            tiers: Tiers { memory_bytes: row.bytes, pool_bytes, swap_file_bytes, out_bytes },
            contention: Contention {
                lock: Some(lock).filter(|lock| !lock.is_empty()),
                wait_us: lock_wait_us,
                lru_wait_us,
            },
            stalls: stalled_for.map(|(source, stall_us)| Stalls::of(row.pid, source, stall_us)),
            high_stuck,
        }
    }
}

impl RunPressure {
    fn most(processes: impl Iterator<Item = ProcessPressure>) -> Self {
        processes.fold(Self::default(), |most, process| Self {
            some: most.some.most(&process.some),
            full: most.full.most(&process.full),
        })
    }
}

impl Stalls {
    fn of(pid: u32, source: StalledFor, stall_us: u64) -> Self {
        match source {
            StalledFor::File { device, inode } => {
                let path = names::path_of(pid, device, inode).map(|path| printable(&path));
                Self { path, device, inode, stall_us, ..Self::default() }
            }
            StalledFor::Memory { address } => Self { address, stall_us, ..Self::default() },
        }
    }

    /// What it is, in a few characters: the file's name without its directories, or `memory`.
    pub fn short(&self) -> String {
        match &self.path {
            Some(path) => path.rsplit('/').next().unwrap_or(path).to_owned(),
            None if self.inode != 0 => format!("inode {}", self.inode),
            None => "memory".to_owned(),
        }
    }
}

/// The kind of stall of which a process has the most, in a few characters. `None`: it has none.
pub fn stall_kind(pressure: &ProcessPressure) -> Option<&'static str> {
    let ProcessPressure { file_read_us, swap_in_us, frames_us, dirty_us, .. } = *pressure;
    let kinds = [("read", file_read_us), ("swap-in", swap_in_us), ("frames", frames_us), ("dirty", dirty_us)];
    let most = kinds.into_iter().max_by_key(|(_, us)| *us).filter(|(_, us)| *us > 0);
    most.map(|(kind, _)| kind)
}
