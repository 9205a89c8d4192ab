//! The files and mappings that threads stall for most, in a table of fixed size.
//!
//! Plain data. The algorithm is "space saving" (Metwally, Agrawal, El Abbadi 2005): a source without an
//! entry takes over the entry with the least stall time, and begins with the stall time of that entry. It
//! remembers this time as the one by which its own may be too large. So each source with more than a 16th
//! of all stall time has an entry.

use elbowroom_store::FileId;

/// How many sources have an entry.
const ENTRIES: usize = 16;

/// A file or a mapping that threads stall for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Pages of a file.
    File(FileId),
    /// A mapping of memory, by its first address.
    Mapping(usize),
}

/// A file or a mapping of memory that threads stalled for. Only stalls that have ended are counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct StallSource {
    /// The device of the file; 0 for a mapping of memory.
    pub device: u64,
    /// The inode of the file; 0 for a mapping of memory.
    pub inode: u64,
    /// The first address of the mapping; 0 for a file.
    pub address: usize,
    /// How many stalls have ended since the source got its entry in the table. A fault that waits several
    /// times has several stalls.
    pub stalls: u64,
    /// The sum of all threads' stall time for the source, in microseconds. It may be too large by up to
    /// `over_us`.
    pub stall_us: u64,
    /// By how much `stall_us` may be too large, in microseconds. 0: it is exact.
    pub over_us: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    source: Source,
    stalls: u64,
    stall_ns: u64,
    over_ns: u64,
}

/// The sources with the most stall time.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// At most [`ENTRIES`].
    entries: Vec<Entry>,
}

impl Sources {
    /// Adds a stall for `source` that has ended, and took `ns` nanoseconds.
    pub(super) fn add(&mut self, source: Source, ns: u64) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.source == source) {
            entry.stalls += 1;
            entry.stall_ns += ns;
            return;
        }
        if self.entries.len() < ENTRIES {
            return self.entries.push(Entry { source, stalls: 1, stall_ns: ns, over_ns: 0 });
        }
        if let Some(least) = self.entries.iter_mut().min_by_key(|entry| entry.stall_ns) {
            let over_ns = least.stall_ns;
            *least = Entry { source, stalls: 1, stall_ns: over_ns + ns, over_ns };
        }
    }

    /// All entries, those with the most stall time first.
    pub(super) fn most(&self) -> Vec<StallSource> {
        let mut most: Vec<_> = self.entries.iter().map(StallSource::from).collect();
        most.sort_by_key(|source| std::cmp::Reverse(source.stall_us));
        most
    }
}

impl From<&Entry> for StallSource {
    fn from(entry: &Entry) -> Self {
        let Entry { source, stalls, stall_ns, over_ns } = *entry;
        let (device, inode, address) = match source {
            Source::File(FileId { device, inode }) => (device, inode, 0),
            Source::Mapping(address) => (0, 0, address),
        };
        Self { device, inode, address, stalls, stall_us: stall_ns / 1000, over_us: over_ns / 1000 }
    }
}
