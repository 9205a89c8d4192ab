//! A run as its table shows it: figures for reports, for `top` and for `ctl`.

use super::gauges::ProcessGauges;
use super::table::{ProcessTree, head, row};
use elbowroom_machine::{PAGE_SIZE, boot_time};
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::time::Duration;

/// What a process has counted so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ProcessUse {
    /// Page faults.
    pub faults: u64,
    /// Of these, faults that needed I/O.
    pub major_faults: u64,
    /// Refaults: pages that came back after they had been evicted.
    pub refaults: u64,
    /// Bytes read from files.
    pub read_bytes: u64,
    /// Bytes written to files.
    pub written_bytes: u64,
    /// Pages that came in from swap.
    pub swapped_in: u64,
    /// Pages that went out to swap.
    pub swapped_out: u64,
}

impl ProcessUse {
    pub(super) const WORDS: usize = 7;

    pub(super) fn words(&self) -> [u64; Self::WORDS] {
        let Self { faults, major_faults, refaults, read_bytes, written_bytes, swapped_in, swapped_out } =
            *self;
        [faults, major_faults, refaults, read_bytes, written_bytes, swapped_in, swapped_out]
    }

    pub(super) fn of(words: [u64; Self::WORDS]) -> Self {
        let [faults, major_faults, refaults, read_bytes, written_bytes, swapped_in, swapped_out] = words;
        Self { faults, major_faults, refaults, read_bytes, written_bytes, swapped_in, swapped_out }
    }

    /// What was counted since `before`: the difference.
    pub(super) fn since(&self, before: &Self) -> Self {
        let (all, before) = (self.words(), before.words());
        Self::of(std::array::from_fn(|at| all[at].saturating_sub(before[at])))
    }

    /// The sum of both.
    pub fn and(&self, other: &Self) -> Self {
        let (one, other) = (self.words(), other.words());
        Self::of(std::array::from_fn(|at| one[at].wrapping_add(other[at])))
    }
}

/// The limits of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeLimits {
    /// Bytes that all processes together may have.
    pub max: u64,
    /// Bytes that one process may have; `None`: as many as all together.
    pub each: Option<u64>,
    /// Bytes that may be in swap.
    pub swap_max: u64,
}

/// A process of a run, as its row in the table describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessRow {
    /// Its id.
    pub pid: u32,
    /// Its name, as the kernel has it.
    pub name: String,
    /// Bytes that it has.
    pub bytes: u64,
    /// The most bytes that it had at a time.
    pub peak_bytes: u64,
    /// Bytes that it has in swap.
    pub swap_bytes: u64,
    /// Bytes of it that other processes do not get.
    pub low_bytes: u64,
    /// Bytes that others have asked of it, and that it has not given yet.
    pub asked_bytes: u64,
    /// For how long it has been there.
    pub age: Duration,
    /// Recent refaults and swap-ins per second, for each 1,024 pages that it has.
    pub cost: u64,
    /// What it has counted.
    pub used: ProcessUse,
    /// What it shows of itself.
    pub gauges: ProcessGauges,
    /// When the process wrote `used` and `gauges`, since the run began. `None`: never, since it has no
    /// manager yet.
    pub noted: Option<Duration>,
}

/// A run at a moment, in a few figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct RunTotals {
    /// Bytes that all processes together may have.
    pub max_bytes: u64,
    /// Bytes that they have.
    pub bytes: u64,
    /// The most bytes that they had at a time.
    pub peak_bytes: u64,
    /// Bytes that they may have in swap.
    pub swap_max_bytes: u64,
    /// Bytes that they have in swap.
    pub swap_bytes: u64,
    /// How many processes there were so far.
    pub processes: u64,
    /// What all processes have counted.
    #[serde(flatten)]
    pub used: ProcessUse,
}

/// A run at a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct TreeSnapshot {
    /// The limits.
    pub limits: TreeLimits,
    /// Bytes that all processes have.
    pub bytes: u64,
    /// The most bytes that all had at a time.
    pub peak_bytes: u64,
    /// Bytes in swap.
    pub swap_bytes: u64,
    /// For how long the run has lasted.
    pub age: Duration,
    /// How many processes there were so far.
    pub processes: u64,
    /// What processes that have ended had counted.
    pub ended: ProcessUse,
    /// The processes that are there, in the order of their rows.
    pub rows: Vec<ProcessRow>,
}

impl ProcessTree {
    /// The run so far, in a few figures. Allocates nothing.
    pub fn totals(&self) -> RunTotals {
        let head = |word| self.head(word).load(Ordering::Relaxed);
        let bytes = |pages: u64| pages.saturating_mul(PAGE_SIZE as u64);
        let ended = ProcessUse::of(std::array::from_fn(|at| head(head::ENDED + at)));
        let rows = self.rows().filter(|row| self.owner(*row) != 0);
        RunTotals {
            max_bytes: bytes(head(head::MAX)),
            bytes: bytes(self.used() as u64),
            peak_bytes: bytes(head(head::PEAK)),
            swap_max_bytes: bytes(head(head::SWAP_MAX)),
            swap_bytes: bytes(self.swap_used() as u64),
            processes: head(head::PROCESSES),
            used: rows.map(|row| self.row_use(row)).fold(ended, |sum, used| sum.and(&used)),
        }
    }

    pub(super) fn row_use(&self, row: usize) -> ProcessUse {
        ProcessUse::of(std::array::from_fn(|at| self.row(row, row::USE + at).load(Ordering::Relaxed)))
    }

    /// The run as it is now. Rows may change while it is taken.
    pub fn snapshot(&self) -> TreeSnapshot {
        let bytes = |pages: u64| pages.saturating_mul(PAGE_SIZE as u64);
        let head = |word| self.head(word).load(Ordering::Relaxed);
        let age = |since: u64| Duration::from_nanos(boot_time().saturating_sub(since));
        let row = |row: usize| {
            let word = |word| self.row(row, word).load(Ordering::Relaxed);
            let pid = self.owner(row);
            (pid != 0).then(|| ProcessRow {
                pid,
                name: name_of([word(row::NAME), word(row::NAME + 1)]),
                bytes: bytes(self.has(row) as u64),
                peak_bytes: bytes(word(row::PEAK)),
                swap_bytes: bytes(word(row::SWAP)),
                low_bytes: bytes(word(row::LOW)),
                asked_bytes: bytes(word(row::ASKED)),
                age: age(word(row::SINCE)),
                cost: word(row::COST),
                used: self.row_use(row),
                gauges: ProcessGauges::of(std::array::from_fn(|at| word(row::GAUGES + at))),
                noted: Some(word(row::NOTED))
                    .filter(|noted| *noted > 0)
                    .map(|noted| Duration::from_nanos(noted.saturating_sub(head(head::BEGAN)))),
            })
        };
        let rows: Vec<_> = self.rows().filter_map(row).collect();
        let each = head(head::EACH);
        TreeSnapshot {
            limits: TreeLimits {
                max: bytes(head(head::MAX)),
                each: (each != u64::MAX).then(|| bytes(each)),
                swap_max: bytes(head(head::SWAP_MAX)),
            },
            bytes: rows.iter().map(|row| row.bytes).sum(),
            peak_bytes: bytes(head(head::PEAK)),
            swap_bytes: rows.iter().map(|row| row.swap_bytes).sum(),
            age: age(head(head::BEGAN)),
            processes: head(head::PROCESSES),
            ended: ProcessUse::of(std::array::from_fn(|at| head(head::ENDED + at))),
            rows,
        }
    }
}

pub(super) fn name_of(words: [u64; 2]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}
