//! The file that keeps what is known of chunks from one run of a program to the next ([`Kept`](super::kept)):
//! what its bytes mean. All numbers are little-endian.
//!
//! ```text
//! file:    0 magic, 8 bytes   8 version, 4   12 zero, 4   16 checksum of all behind it, 8
//!         24 turn: how often the file was written, 8     32 entries, one behind the other
//! entry:   0 device, 8        8 inode, 8     16 size, 8   24 mtime, 16      40 ctime, 16
//!         56 turn in which it was written last, 8         64 usual length of its chunks, pages, 8
//!         72 how many chunks agreed on that, 4            76 count of leaves, 4     80 leaves, ascending
//! leaf:    0 number, 8        8 bit n: granule n differs from the one before it, 8
//!         16 granules whose bit is set, 4 each: link, certainty of the mark, its page, reach
//! ```
//!
//! Anybody may have written such a file. So all is checked before any of it is used: a number out of its
//! range, a leaf beyond the end of its file or a byte too many makes the whole file damaged. A file without
//! such faults can make reads useless, and can do nothing else: accesses could have said the same.

use super::{AGREED, GRANULE_ORDER, Granule, LEAF_ORDER, MOST_BALANCE};
use elbowroom_machine::PAGE_SIZE;
use elbowroom_store::{FileId, FileStat};
use std::collections::HashSet;
use std::fmt;
use twox_hash::XxHash3_64;

/// The first bytes of each such file.
pub(super) const MAGIC: &[u8; 8] = b"elbwroom";

/// Another number for each change of the format, and of what a granule, a leaf or a unit of reach is.
const VERSION: u32 = 1;

/// The most bytes of a file.
pub(super) const MOST_BYTES: usize = 4 << 20;

/// The most files that are known at a time.
pub(super) const MOST_FILES: usize = 1024;

/// The last turn: far more than there can be.
const LAST_TURN: u64 = 1 << 48;

const HEAD: usize = 32;
const CHECKED_FROM: usize = 24;
const ENTRY_HEAD: usize = 80;
const LEAF_HEAD: usize = 16;
const GRANULES: usize = 1 << LEAF_ORDER;

/// What is known of a leaf's granules.
pub(super) type Granules = [Granule; GRANULES];

/// By what it is seen that a file is as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Stamp {
    pub(super) size: u64,
    pub(super) mtime_ns: i128,
    pub(super) ctime_ns: i128,
}

impl From<FileStat> for Stamp {
    fn from(stat: FileStat) -> Self {
        let FileStat { size, mtime_ns, ctime_ns, .. } = stat;
        Self { size, mtime_ns, ctime_ns }
    }
}

/// A leaf as the file has it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct PackedLeaf {
    pub(super) number: u64,
    /// When it was used last, in a clock of the process; 0: not by this process.
    pub(super) used: u64,
    /// All is in it that an earlier run has kept of these granules.
    pub(super) is_loaded: bool,
    /// The bits, and the granules that they tell of.
    changes: u64,
    granules: Vec<u8>,
}

/// What is known of a file.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) id: FileId,
    pub(super) stamp: Stamp,
    pub(super) turn: u64,
    /// The usual length of its chunks, in pages, and how many of them agreed on it.
    pub(super) length: u64,
    pub(super) agreed: i8,
    /// Ascending.
    pub(super) leaves: Vec<PackedLeaf>,
}

/// All that a file has.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) turn: u64,
    pub(super) entries: Vec<Entry>,
}

/// Why a file is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// It is a file of another kind.
    Foreign,
    /// It has another version.
    Version(u32),
    /// Bytes of it were changed, or its end is missing.
    Damaged,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("it is a file of another kind"),
            Self::Version(version) => write!(f, "it has version {version}, and not {VERSION}"),
            Self::Damaged => f.write_str("it is damaged"),
        }
    }
}

impl PackedLeaf {
    pub(super) fn pack(number: u64, used: u64, granules: &Granules) -> Self {
        let (mut changes, mut packed, mut before) = (0, Vec::new(), [0; 4]);
        for (nth, granule) in granules.iter().enumerate() {
            let Granule { link, begins, first, reach } = *granule;
            // Of a mark that does not count nothing is worth keeping.
            let bytes = if begins > 0 {
                [link.cast_unsigned(), begins.cast_unsigned(), first, reach]
            } else {
                [link.cast_unsigned(), 0, 0, 0]
            };
            if bytes != before {
                changes |= 1 << nth;
                packed.extend(bytes);
                before = bytes;
            }
        }
        Self { number, used, is_loaded: false, changes, granules: packed }
    }

    /// Whether some granule has a link or a mark that counts. A leaf without any says no more than no leaf.
    pub(super) fn is_useful(&self) -> bool {
        self.granules.chunks_exact(4).any(|granule| granule[0].cast_signed() > 0 || granule[1] > 0)
    }

    /// Whether both leaves say the same of the same granules.
    fn says_as(&self, other: &Self) -> bool {
        (self.number, self.changes, &self.granules) == (other.number, other.changes, &other.granules)
    }

    pub(super) fn unpack(&self) -> Granules {
        let mut granules = [Granule::default(); GRANULES];
        let (mut rest, mut now) = (self.granules.chunks_exact(4), Granule::default());
        for (nth, granule) in granules.iter_mut().enumerate() {
            if self.changes >> nth & 1 == 1
                && let Some(&[link, begins, first, reach]) = rest.next()
            {
                now = Granule { link: link.cast_signed(), begins: begins.cast_signed(), first, reach };
            }
            *granule = now;
        }
        granules
    }

    /// Adds what another process knows of granules of which this one knows nothing.
    pub(super) fn add(&mut self, theirs: &Self) {
        let mut granules = self.unpack();
        for (ours, theirs) in granules.iter_mut().zip(theirs.unpack()) {
            if ours.link == 0 && ours.begins == 0 {
                *ours = theirs;
            }
        }
        *self = Self::pack(self.number, self.used, &granules);
    }

    fn bytes(&self) -> usize {
        LEAF_HEAD + self.granules.len()
    }
}

impl Contents {
    /// Reads all bytes of a file; none: nothing is known.
    pub(super) fn unpack(bytes: &[u8]) -> Result<Self, Refused> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        check_magic(bytes)?;
        let mut rest = Bytes(&bytes[MAGIC.len()..]);
        let damaged = Refused::Damaged;
        let version = rest.u32().ok_or(damaged)?;
        if version != VERSION {
            return Err(Refused::Version(version));
        }
        let (zero, sum) = (rest.u32().ok_or(damaged)?, rest.u64().ok_or(damaged)?);
        if bytes.len() < HEAD || bytes.len() > MOST_BYTES || zero != 0 || sum != checksum(bytes) {
            return Err(damaged);
        }
        let mut contents = Self { turn: rest.u64().ok_or(damaged)?, entries: Vec::new() };
        // No program has run so often, and turns could not go on.
        if contents.turn > LAST_TURN {
            return Err(damaged);
        }
        let mut ids = HashSet::new();
        while !rest.0.is_empty() {
            let entry = rest.entry().ok_or(damaged)?;
            // An entry of a turn to come would be taken for the most recent one of all for ever.
            if contents.entries.len() >= MOST_FILES || entry.turn > contents.turn || !ids.insert(entry.id) {
                return Err(damaged);
            }
            contents.entries.push(entry);
        }
        Ok(contents)
    }

    /// The bytes of a file with these entries, at most [`MOST_BYTES`] of them and [`MOST_FILES`] entries.
    /// What has no room is missing: of entries those that were written longest ago, or that are behind others
    /// of the same turn; of an entry the leaves that were used longest ago. An entry has at most half of the
    /// room that those before it have left, or what is its part.
    pub(super) fn pack(mut self) -> Vec<u8> {
        self.entries.sort_by_key(|entry| std::cmp::Reverse(entry.turn));
        self.entries.truncate(MOST_FILES);
        let mut bytes = Vec::new();
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 4 + 8]);
        bytes.extend(self.turn.to_le_bytes());
        let count = self.entries.len();
        for (nth, mut entry) in self.entries.into_iter().enumerate() {
            let room = MOST_BYTES - bytes.len();
            // One entry of a large file leaves room for the others.
            let room = (room / 2).max(room / (count - nth));
            let Some(room) = room.checked_sub(ENTRY_HEAD) else { break };
            entry.fit(room);
            if !entry.leaves.is_empty() {
                entry.pack(&mut bytes);
            }
        }
        let sum = checksum(&bytes);
        bytes[CHECKED_FROM - 8..CHECKED_FROM].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

/// Whether a file begins as those do that keep what is known of chunks.
pub(super) fn check_magic(bytes: &[u8]) -> Result<(), Refused> {
    if bytes.is_empty() || bytes.starts_with(MAGIC) {
        return Ok(());
    }
    // Of a file that was cut right behind its begin.
    if MAGIC.starts_with(bytes) { Err(Refused::Damaged) } else { Err(Refused::Foreign) }
}

impl Entry {
    /// Whether both entries say the same of the same file, whenever they were written.
    pub(super) fn says_as(&self, other: &Self) -> bool {
        let head = |entry: &Self| (entry.id, entry.stamp, entry.length, entry.agreed, entry.leaves.len());
        let mut leaves = self.leaves.iter().zip(&other.leaves);
        head(self) == head(other) && leaves.all(|(one, other)| one.says_as(other))
    }

    /// Leaves out what does not fit into so many bytes.
    fn fit(&mut self, room: usize) {
        if self.leaves.iter().map(PackedLeaf::bytes).sum::<usize>() <= room {
            return;
        }
        self.leaves.sort_by_key(|leaf| std::cmp::Reverse(leaf.used));
        let mut bytes = 0;
        let fits = |leaf: &&PackedLeaf| {
            bytes += leaf.bytes();
            bytes <= room
        };
        let count = self.leaves.iter().take_while(fits).count();
        self.leaves.truncate(count);
        self.leaves.sort_by_key(|leaf| leaf.number);
    }

    /// The entry as the file has it.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ENTRY_HEAD);
        self.pack(&mut bytes);
        bytes
    }

    /// The entry of which these are the bytes.
    pub(super) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        Bytes(bytes).entry()
    }

    fn pack(&self, bytes: &mut Vec<u8>) {
        let Self { id, stamp, turn, length, agreed, leaves } = self;
        for number in [id.device, id.inode, stamp.size] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(stamp.mtime_ns.to_le_bytes());
        bytes.extend(stamp.ctime_ns.to_le_bytes());
        bytes.extend(turn.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(u32::from(agreed.unsigned_abs()).to_le_bytes());
        bytes.extend((leaves.len() as u32).to_le_bytes());
        for leaf in leaves {
            bytes.extend(leaf.number.to_le_bytes());
            bytes.extend(leaf.changes.to_le_bytes());
            bytes.extend(&leaf.granules);
        }
    }
}

/// Bytes that are read from their begin on. Each function gives `None` where there are too few, or what they
/// say cannot be.
struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn i128(&mut self) -> Option<i128> {
        self.array().map(i128::from_le_bytes)
    }

    fn entry(&mut self) -> Option<Entry> {
        let id = FileId { device: self.u64()?, inode: self.u64()? };
        let stamp = Stamp { size: self.u64()?, mtime_ns: self.i128()?, ctime_ns: self.i128()? };
        let (turn, length, agreed, count) = (self.u64()?, self.u64()?, self.u32()?, self.u32()?);
        let agreed = i8::try_from(agreed).ok().filter(|agreed| *agreed <= 2 * AGREED)?;
        let pages = stamp.size.div_ceil(PAGE_SIZE as u64);
        if length > pages || length == 0 && agreed > 0 {
            return None;
        }
        let mut leaves = Vec::new();
        let mut least = 0;
        for _ in 0..count {
            let leaf = self.leaf()?;
            let begins_at = leaf.number.checked_mul(1 << (LEAF_ORDER + GRANULE_ORDER))?;
            if leaf.number < least || begins_at >= pages {
                return None;
            }
            least = leaf.number + 1;
            leaves.push(leaf);
        }
        Some(Entry { id, stamp, turn, length, agreed, leaves })
    }

    fn leaf(&mut self) -> Option<PackedLeaf> {
        let (number, changes) = (self.u64()?, self.u64()?);
        let granules = self.take(4 * changes.count_ones() as usize)?;
        let is_right = |granule: &[u8]| {
            let (link, begins, first) = (granule[0].cast_signed(), granule[1].cast_signed(), granule[2]);
            let balance = -MOST_BALANCE..=MOST_BALANCE;
            balance.contains(&link) && (0..=MOST_BALANCE).contains(&begins) && first >> GRANULE_ORDER == 0
        };
        let is_whole = changes != 0 && granules.chunks_exact(4).all(is_right);
        is_whole.then(|| PackedLeaf {
            number,
            used: 0,
            is_loaded: false,
            changes,
            granules: granules.to_vec(),
        })
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(&bytes[CHECKED_FROM..])
}

#[cfg(all(test, not(shuttle)))]
mod tests;
