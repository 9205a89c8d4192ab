//! What happened, when and for how long, to see why a fault took long.
//!
//! Each thread writes records into a ring of its own, over the oldest (`elbowroom_sync::Rings`). What has a
//! duration is written when it ends, with its beginning: so a ring that has lost its oldest records never has
//! an end without a beginning. A fault is on the track of the thread that has it, wherever it is served, and
//! its waits lie inside it. `json` writes all of it in the format that Chrome began and Perfetto reads.
//!
//! Off, it costs a look at an `Option` that does not change.

mod json;

pub use json::TraceAbout;

use crate::stats::WaitCause;
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{LockStats, RECORD_WORDS, Record, Rings, thread};

/// How a fault ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultEnd {
    /// Served without I/O.
    Minor,
    /// Served after I/O.
    Major,
    /// Its access fails.
    Denied,
    /// Its address was not managed.
    Foreign,
    /// It was not served: the manager ended.
    Stopped,
}

impl FaultEnd {
    const ALL: [Self; 5] = [Self::Minor, Self::Major, Self::Denied, Self::Foreign, Self::Stopped];
}

/// A call of the mmap family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// mmap.
    Map,
    /// munmap.
    Unmap,
    /// mprotect.
    Protect,
    /// mremap.
    Remap,
    /// madvise.
    Advise,
    /// msync.
    Sync,
    /// A copy of a space.
    Fork,
    /// A file goes to the kernel.
    GiveBack,
    /// Mappings move to another group.
    Regroup,
}

impl Verb {
    const ALL: [Self; 9] = [
        Self::Map,
        Self::Unmap,
        Self::Protect,
        Self::Remap,
        Self::Advise,
        Self::Sync,
        Self::Fork,
        Self::GiveBack,
        Self::Regroup,
    ];
}

/// What a record is about. Each has up to two numbers of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// A fault, from its being read to its end. Its address, and 1 for a store.
    Fault(FaultEnd),
    /// A wait of a fault. Its address.
    Wait(WaitCause),
    /// A handler was busy with a fault, once. Its address.
    Serve,
    /// A read, from its being queued to its completion. Offset and bytes.
    Read,
    /// A read that failed. Offset and bytes.
    ReadError,
    /// A write. Offset and bytes.
    Write,
    /// A write that failed. Offset and bytes.
    WriteError,
    /// Frames were freed. How many pages were wanted, and were freed.
    Reclaim,
    /// The arena grew. 1 if it did.
    Grow,
    /// A store waited until less was dirty. Its address, if its thread sleeps in the kernel.
    Throttle,
    /// A call of the mmap family, and the errno it gave, or 0. Address and length.
    Verb(Verb, i32),
    /// A wait for a lock, or for the readers inside a VMA. The number of the call site.
    Lock,
}

impl Happened {
    /// Its kind, and what goes with it, in 16 bits each.
    fn encode(self) -> (u16, u16) {
        match self {
            Self::Fault(end) => (0, end as u16),
            Self::Wait(cause) => (1, cause as u16),
            Self::Serve => (2, 0),
            Self::Read => (3, 0),
            Self::ReadError => (4, 0),
            Self::Write => (5, 0),
            Self::WriteError => (6, 0),
            Self::Reclaim => (7, 0),
            Self::Grow => (8, 0),
            Self::Throttle => (9, 0),
            Self::Lock => (10, 0),
            Self::Verb(verb, errno) => (11 + verb as u16, errno as u16),
        }
    }

    fn decode(kind: u16, detail: u16) -> Option<Self> {
        Some(match kind {
            0 => Self::Fault(*FaultEnd::ALL.get(usize::from(detail))?),
            1 => Self::Wait(*WaitCause::ALL.get(usize::from(detail))?),
            2 => Self::Serve,
            3 => Self::Read,
            4 => Self::ReadError,
            5 => Self::Write,
            6 => Self::WriteError,
            7 => Self::Reclaim,
            8 => Self::Grow,
            9 => Self::Throttle,
            10 => Self::Lock,
            verb => Self::Verb(*Verb::ALL.get(usize::from(verb) - 11)?, i32::from(detail)),
        })
    }
}

/// In the place of an inode number: there is no file.
pub const NO_FILE: u64 = 0;

/// One thing that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// What happened.
    pub what: Happened,
    /// The thread, by the kernel's number. Of a fault, the thread that faulted.
    pub thread: u32,
    /// When it began, in nanoseconds since the manager's start.
    pub start_ns: u64,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// The numbers that [`Happened`] describes.
    pub numbers: [u64; 2],
    /// The inode number of the file that is read or written; [`NO_FILE`] for all else.
    pub inode: u64,
}

impl Entry {
    fn encode(&self) -> Record {
        let (kind, detail) = self.what.encode();
        let head = u64::from(kind) << 48 | u64::from(detail) << 32 | u64::from(self.thread);
        let [first, second] = self.numbers;
        let record: [u64; RECORD_WORDS] = [self.start_ns, self.took_ns, head, first, second, self.inode];
        record
    }

    fn decode(record: &Record) -> Option<Self> {
        let [start_ns, took_ns, head, first, second, inode] = *record;
        let what = Happened::decode((head >> 48) as u16, (head >> 32) as u16)?;
        Some(Self { what, thread: head as u32, start_ns, took_ns, numbers: [first, second], inode })
    }
}

/// What happened last in one manager.
pub struct Trace {
    rings: Rings,
    /// When the manager started.
    born: Instant,
}

impl Trace {
    /// A trace that keeps `bytes` of records for each thread.
    pub fn new(bytes: usize, born: Instant) -> Self {
        Self { rings: Rings::new(bytes), born }
    }

    fn at(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.born).as_nanos() as u64
    }

    /// Now, in nanoseconds since the manager's start.
    pub fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    fn push(&self, what: Happened, thread: u32, start_ns: u64, end_ns: u64, numbers: [u64; 2], inode: u64) {
        let took_ns = end_ns.saturating_sub(start_ns);
        self.rings.push(&Entry { what, thread, start_ns, took_ns, numbers, inode }.encode());
    }

    /// Notes what the calling thread has done since `since`.
    pub fn add(&self, what: Happened, since: Instant, numbers: [u64; 2]) {
        self.push(what, thread::id(), self.at(since), self.now(), numbers, NO_FILE);
    }

    /// Notes, for another thread, what began at `start_ns` and has just ended.
    pub fn add_for(&self, thread: u32, what: Happened, start_ns: u64, numbers: [u64; 2]) {
        self.push(what, thread, start_ns, self.now(), numbers, NO_FILE);
    }

    /// Notes a fault of `thread` that has just ended.
    pub fn fault(&self, thread: u32, end: FaultEnd, since: Instant, numbers: [u64; 2]) {
        self.push(Happened::Fault(end), thread, self.at(since), self.now(), numbers, NO_FILE);
    }

    /// Notes a transfer between a file and memory that has just ended.
    pub fn transfer(&self, what: Happened, start_ns: u64, offset_and_bytes: [u64; 2], inode: u64) {
        self.push(what, thread::id(), start_ns, self.now(), offset_and_bytes, inode);
    }

    /// Notes a wait of the calling thread for a lock, which has just ended.
    pub fn lock_wait(&self, site: usize, waited: Duration) {
        let end_ns = self.now();
        let start_ns = end_ns.saturating_sub(waited.as_nanos() as u64);
        self.push(Happened::Lock, thread::id(), start_ns, end_ns, [site as u64, 0], NO_FILE);
    }

    /// A copy of all records that are there.
    pub fn snapshot(&self, locks: &LockStats) -> TraceSnapshot {
        let mut all = TraceSnapshot {
            entries: Vec::new(),
            lost: 0,
            rings: Vec::new(),
            locks: locks.clone(),
            end_ns: self.now(),
        };
        for ring in self.rings.copies() {
            let entries = ring.records.iter().filter_map(Entry::decode);
            let oldest = ring.records.first().map_or(0, |record| record[0] + record[1]);
            all.entries.extend(entries);
            all.lost += ring.lost;
            if ring.lost > 0 {
                all.rings.push((oldest, ring.lost));
            }
        }
        all
    }
}

/// What happened last in a manager, as far as it was kept.
pub struct TraceSnapshot {
    entries: Vec<Entry>,
    lost: u64,
    /// For each ring that has lost records: when the oldest one that is there ended, and how many were
    /// lost.
    rings: Vec<(u64, u64)>,
    locks: LockStats,
    end_ns: u64,
}

impl TraceSnapshot {
    /// How many things that happened are in it.
    pub fn kept(&self) -> u64 {
        self.entries.len() as u64
    }

    /// How many happened besides, and were overwritten.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests;
