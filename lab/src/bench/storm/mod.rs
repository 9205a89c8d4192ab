//! thread-storm: many threads start at once, and map while others fault.
//!
//! Each run of an engine has four phases. *Starts*: all threads are let go together; each maps what a thread
//! has (a stack with a guard page, thread-local storage, a signal stack, a table) and stores to its working
//! set; again and again with new threads. *Alone*: one thread faults pages in while nobody maps. *Among
//! others*: the same, while all other threads map and unmap without pause. *Beside others*: the same, with no
//! guard pages around the faulting thread's memory, so that what the others map merges with its VMA and
//! splits it again: then its own VMA changes all the time.

mod faults;
mod starts;

use std::time::Duration;

use anyhow::Result;
use elbowroom::Stats;
use elbowroom_sync::ClassStats;
use serde_json::Value;

use self::faults::{Border, Faults, Keys};
use super::Stage;
use super::area::Ground;
use super::compare::{Comparison, Record, Row, Unit};
use super::turns::Turns;
use crate::cli::TurnArgs;
use crate::interrupt::Interrupt;
use crate::size::Size;

const PAGE: usize = crate::PAGE_BYTES as usize;
/// The threads do little, and are many.
const REAL_STACK_BYTES: usize = 128 << 10;

const ALONE: Faults = Faults {
    others: false,
    border: Border::Guards,
    keys: Keys {
        p50: "fault_alone_p50_ns",
        p99: "fault_alone_p99_ns",
        p999: "fault_alone_p999_ns",
        count: "faults_alone",
        churn: "churn_alone_per_second",
        layout_lock: "layout_lock_faults_alone",
    },
};

const AMONG: Faults = Faults {
    others: true,
    border: Border::Guards,
    keys: Keys {
        p50: "fault_among_p50_ns",
        p99: "fault_among_p99_ns",
        p999: "fault_among_p999_ns",
        count: "faults_among",
        churn: "churn_per_second",
        layout_lock: "layout_lock_faults",
    },
};

const BESIDE: Faults = Faults {
    others: true,
    border: Border::Neighbours,
    keys: Keys {
        p50: "fault_beside_p50_ns",
        p99: "fault_beside_p99_ns",
        p999: "fault_beside_p999_ns",
        count: "faults_beside",
        churn: "churn_beside_per_second",
        layout_lock: "layout_lock_faults_beside",
    },
};

const ROWS: &[Row] = &[
    Row::new("all_ready_ns", "all threads ready", Unit::Nanoseconds),
    Row::new("start_p50_ns", "start of a thread, p50", Unit::Nanoseconds),
    Row::new("start_p99_ns", "start of a thread, p99", Unit::Nanoseconds),
    Row::new("start_max_ns", "start of a thread, max", Unit::Nanoseconds),
    Row::new("storms", "storms", Unit::Count),
    Row::new("layout_lock_faults_starts", "starts: layout lock taken by faults", Unit::Count),
    Row::new("fault_alone_p50_ns", "fault, nobody maps, p50", Unit::Nanoseconds),
    Row::new("fault_alone_p99_ns", "fault, nobody maps, p99", Unit::Nanoseconds),
    Row::new("fault_alone_p999_ns", "fault, nobody maps, p99.9", Unit::Nanoseconds),
    Row::new("faults_alone", "faults measured", Unit::Count),
    Row::new("layout_lock_faults_alone", "layout lock taken by faults (0)", Unit::Count),
    Row::new("fault_among_p50_ns", "fault among others that map, p50", Unit::Nanoseconds),
    Row::new("fault_among_p99_ns", "fault among others that map, p99", Unit::Nanoseconds),
    Row::new("fault_among_p999_ns", "fault among others that map, p99.9", Unit::Nanoseconds),
    Row::new("fault_p99_ratio", "p99 among others / alone (<= 1.5)", Unit::Ratio),
    Row::new("faults_among", "faults measured", Unit::Count),
    Row::new("churn_per_second", "map + unmap per second by the others", Unit::Count),
    Row::new("layout_lock_faults", "layout lock taken by faults (0)", Unit::Count),
    Row::new("fault_beside_p50_ns", "fault, the others' areas merge with its VMA, p50", Unit::Nanoseconds),
    Row::new("fault_beside_p99_ns", "fault, the others' areas merge with its VMA, p99", Unit::Nanoseconds),
    Row::new("fault_beside_p999_ns", "fault, the others' areas merge with its VMA, p99.9", Unit::Nanoseconds),
    Row::new("faults_beside", "faults measured", Unit::Count),
    Row::new("churn_beside_per_second", "map + unmap per second by the others", Unit::Count),
    Row::new("layout_lock_faults_beside", "layout lock taken by faults", Unit::Count),
    Row::new("vma_lock_success", "all phases: VMA lock: success", Unit::Count),
    Row::new("vma_lock_abort", "all phases: VMA lock: abort", Unit::Count),
    Row::new("vma_lock_retry", "all phases: VMA lock: retry", Unit::Count),
    Row::new("vma_lock_miss", "all phases: VMA lock: miss", Unit::Count),
    Row::new("layout_acquisitions", "all phases: layout lock acquisitions", Unit::Count),
    Row::new("layout_waits", "all phases: layout lock waits", Unit::Count),
    Row::new("layout_wait_ns", "all phases: layout lock wait, sum", Unit::Nanoseconds),
    Row::new("layout_wait_average_ns", "all phases: layout lock wait, average", Unit::Nanoseconds),
];

/// What a line about one run shows.
const HIGHLIGHTS: &[&str] =
    &["all_ready_ns", "fault_alone_p99_ns", "fault_among_p99_ns", "fault_beside_p99_ns"];

/// The least budget for so many threads: their working sets and the tables for them, twice.
pub fn least_memory(threads: usize) -> Size {
    Size::from_bytes((8 << 20) + threads as u64 * (512 << 10))
}

/// Runs the engines in turn; the table and the JSON object.
///
/// # Errors
/// If no engine can run here, a wrong byte was read, or a signal came.
pub fn measure(args: &TurnArgs, stage: &mut Stage) -> Result<(String, Value)> {
    let description = format!(
        "thread-storm: {} threads, {} runs of 4 x {} s, budget {}",
        args.threads, args.repeat.runs, args.repeat.seconds, args.memory
    );
    let comparison = Comparison::new("thread-storm", description, args, ROWS, HIGHLIGHTS)?;
    Turns::of(args)
        .take(comparison, stage, |ground, stage| Storm { ground, args, interrupt: &stage.interrupt }.run())
}

/// One run of one engine.
struct Storm<'a> {
    ground: &'a Ground,
    args: &'a TurnArgs,
    interrupt: &'a Interrupt,
}

impl Storm<'_> {
    fn run(&self) -> Result<Record> {
        let time = Duration::from_secs_f64(self.args.repeat.seconds);
        // Memory that was never used, and threads that never ran: not what is measured.
        self.start_all()?;
        let (stats, layout) = (self.ground.stats(), self.ground.layout_lock());
        let mut record = Record::new();
        self.starts(time, &mut record)?;
        if let Some((before, after)) = stats.as_ref().zip(self.ground.stats()) {
            let taken = after.layout_lock_faults - before.layout_lock_faults;
            record.insert("layout_lock_faults_starts", taken as f64);
        }
        let alone = self.faults(time, &ALONE, &mut record)?;
        let among = self.faults(time, &AMONG, &mut record)?;
        record.insert("fault_p99_ratio", among.p99_ns as f64 / alone.p99_ns.max(1) as f64);
        self.faults(time, &BESIDE, &mut record)?;
        if let Some((before, after)) = stats.zip(self.ground.stats()) {
            note_vma_locks(&before, &after, &mut record);
        }
        if let Some((before, after)) = layout.zip(self.ground.layout_lock()) {
            note_layout_lock(&before, &after, &mut record);
        }
        Ok(record)
    }
}

fn note_vma_locks(before: &Stats, after: &Stats, record: &mut Record) {
    for (key, count) in [
        ("vma_lock_success", after.vma_lock_success - before.vma_lock_success),
        ("vma_lock_abort", after.vma_lock_abort - before.vma_lock_abort),
        ("vma_lock_retry", after.vma_lock_retry - before.vma_lock_retry),
        ("vma_lock_miss", after.vma_lock_miss - before.vma_lock_miss),
    ] {
        record.insert(key, count as f64);
    }
}

fn note_layout_lock(before: &ClassStats, after: &ClassStats, record: &mut Record) {
    let waits = after.contended - before.contended;
    let wait_ns = after.wait_ns - before.wait_ns;
    record.insert("layout_acquisitions", (after.acquisitions - before.acquisitions) as f64);
    record.insert("layout_waits", waits as f64);
    record.insert("layout_wait_ns", wait_ns as f64);
    record.insert("layout_wait_average_ns", wait_ns as f64 / waits.max(1) as f64);
}

fn stamp(number: usize, page: usize) -> u64 {
    ((number as u64) << 32) + page as u64 + 1
}
