//! What a process shows of itself beside its counters: pressure, the places of its pages, waits for locks.
//! Plain data, which a row of the table has as words.

use serde::{Deserialize, Serialize};

/// How long threads of a process, or of a group, stalled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct StallAverages {
    /// Percent of the last 10 s, with two decimals.
    pub avg10: f64,
    /// Percent of the last 60 s.
    pub avg60: f64,
    /// Percent of the last 300 s.
    pub avg300: f64,
    /// All stall time so far, in microseconds.
    pub total_us: u64,
}

impl StallAverages {
    /// The averages in one word, as hundredths of a percent of 16 bits each, and the total in another.
    pub(super) fn words(&self) -> [u64; 2] {
        let hundredths = |percent: f64| (percent * 100.0).round().clamp(0.0, 10_000.0) as u64;
        let averages = hundredths(self.avg10) | hundredths(self.avg60) << 16 | hundredths(self.avg300) << 32;
        [averages, self.total_us]
    }

    pub(super) fn of([averages, total_us]: [u64; 2]) -> Self {
        let percent = |at: u32| f64::from((averages >> at) as u16).min(10_000.0) / 100.0;
        Self { avg10: percent(0), avg60: percent(16), avg300: percent(32), total_us }
    }

    /// Of each average and of the total the larger one.
    pub fn most(&self, other: &Self) -> Self {
        Self {
            avg10: self.avg10.max(other.avg10),
            avg60: self.avg60.max(other.avg60),
            avg300: self.avg300.max(other.avg300),
            total_us: self.total_us.max(other.total_us),
        }
    }
}

/// The time that threads of a process lost because memory lacks: docs/groups.md.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessPressure {
    /// At least one thread stalled.
    pub some: StallAverages,
    /// At least one thread stalled, and none was known to run.
    pub full: StallAverages,
    /// Stall time of threads for pages of files, in microseconds.
    pub file_read_us: u64,
    /// Stall time of threads for pages in swap, in microseconds.
    pub swap_in_us: u64,
    /// Stall time of threads for free frames, in microseconds.
    pub frames_us: u64,
    /// Stall time of threads because too many pages were dirty, in microseconds.
    pub dirty_us: u64,
}

/// The file, or the mapping of memory, for which threads of a process stalled longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StalledFor {
    /// A file.
    File {
        /// Its device.
        device: u64,
        /// Its inode.
        inode: u64,
    },
    /// A mapping of memory.
    Memory {
        /// Its first address.
        address: u64,
    },
}

/// The figures of a process that go up and down, as its row has them. They are as old as its last note.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ProcessGauges {
    /// Its pressure.
    pub pressure: ProcessPressure,
    /// Bytes of its memory in which compressed pages are.
    pub pool_bytes: u64,
    /// Bytes of the swap file that it uses.
    pub swap_file_bytes: u64,
    /// Bytes of its pages that are out: compressed in the pool or in the swap file. As large as they are
    /// once they are in again.
    pub out_bytes: u64,
    /// The name of the lock for which its threads waited longest, cut to 16 bytes. All zeros: they waited
    /// for none.
    pub lock: [u8; 16],
    /// The sum of the waits for that lock, in microseconds.
    pub lock_wait_us: u64,
    /// The sum of the waits for the lock of the LRU lists, in microseconds.
    pub lru_wait_us: u64,
    /// The source of the longest stall time, with that time of threads in microseconds.
    pub stalled_for: Option<(StalledFor, u64)>,
    /// Accesses that found a group over its `high`, and nothing that could be reclaimed.
    pub high_stuck: u64,
}

impl ProcessGauges {
    pub(super) const WORDS: usize = 20;

    /// A name in the form of [`ProcessGauges::lock`].
    pub fn name(text: &str) -> [u8; 16] {
        let mut name = [0; 16];
        name.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
        name
    }

    pub(super) fn words(&self) -> [u64; Self::WORDS] {
        let [some, some_us] = self.pressure.some.words();
        let [full, full_us] = self.pressure.full.words();
        let ProcessPressure { file_read_us, swap_in_us, frames_us, dirty_us, .. } = self.pressure;
        let half = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| self.lock[at + byte]));
        let (kind, device, at, stall_us) = match self.stalled_for {
            None => (0, 0, 0, 0),
            Some((StalledFor::File { device, inode }, us)) => (1, device, inode, us),
            Some((StalledFor::Memory { address }, us)) => (2, 0, address, us),
        };
        [
            some,
            some_us,
            full,
            full_us,
            file_read_us,
            swap_in_us,
            frames_us,
            dirty_us,
            self.pool_bytes,
            self.swap_file_bytes,
            self.out_bytes,
            half(0),
            half(8),
            self.lock_wait_us,
            self.lru_wait_us,
            kind,
            device,
            at,
            stall_us,
            self.high_stuck,
        ]
    }

    /// The figures that these words are. Any words are some figures, since another process can write them.
    pub(super) fn of(words: [u64; Self::WORDS]) -> Self {
        let stalled_for = match words[15] {
            1 => Some(StalledFor::File { device: words[16], inode: words[17] }),
            2 => Some(StalledFor::Memory { address: words[17] }),
            _ => None,
        };
        let byte = |at: usize| words[11 + at / 8].to_le_bytes()[at % 8];
        Self {
            pressure: ProcessPressure {
                some: StallAverages::of([words[0], words[1]]),
                full: StallAverages::of([words[2], words[3]]),
                file_read_us: words[4],
                swap_in_us: words[5],
                frames_us: words[6],
                dirty_us: words[7],
            },
            pool_bytes: words[8],
            swap_file_bytes: words[9],
            out_bytes: words[10],
            lock: std::array::from_fn(byte),
            lock_wait_us: words[13],
            lru_wait_us: words[14],
            stalled_for: stalled_for.map(|source| (source, words[18])),
            high_stuck: words[19],
        }
    }
}
