//! A run at a moment, as `top` shows, records and prints it.

use std::time::{SystemTime, UNIX_EPOCH};

use elbowroom::{ProcessRow, ProcessUse};
use elbowroom_machine::process_exists;
use serde::{Deserialize, Serialize};

use crate::runs::{self, Run, milliseconds, printable};

/// A run at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The processes that have a row, in the order of the table.
    pub rows: Vec<Row>,
}

/// A process at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
}

impl Sample {
    /// The run as it is now.
    pub fn take(run: &Run) -> Self {
        let snapshot = run.tree.snapshot();
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
            rows: snapshot.rows.iter().map(Row::of).collect(),
        }
    }
}

impl Row {
    fn of(row: &ProcessRow) -> Self {
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
            noted_ms: row.noted.map(milliseconds),
            used: row.used,
        }
    }
}
