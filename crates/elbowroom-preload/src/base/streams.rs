//! The files behind the program's open stdio streams, fixed-size, lock-free and without allocation.
//!
//! stdio reads and writes with calls of its own inside libc, which cannot be interposed. So a file that a
//! stream may write, or reads while its mappings may be stored to, is the kernel's (agent/stdio.rs). This
//! table tells whether a file has such a stream. When the table is full the answer is always "yes".
//!
//! Synchronization: any thread may do anything at any time. A slot belongs to the thread that changed its
//! `stream` from 0, until it is 0 again; `kind` is stored last. A thread that enters a stream's file looks
//! afterwards whether the file is managed, and a thread that has mapped a file looks afterwards whether it
//! has a stream: one of the two sees the other.

use elbowroom::FileId;
use libc::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// How many streams are known at a time.
const SLOTS: usize = 4096;
/// `stream` of a slot that is free.
const FREE: usize = 0;
/// `stream` of a slot whose stream is being opened or closed. No stream is at this address.
const NAMELESS: usize = 1;
/// `stream` of a slot for a file that is used for good, and not by a stream. No stream is at this address.
pub const LASTING: usize = 2;

/// What a stream does with its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// It reads.
    Reader = 1,
    /// It writes, and may read.
    Writer = 2,
}

impl Kind {
    /// The kind of a stream that is opened with this mode of fopen.
    pub fn of_mode(mode: &[u8]) -> Self {
        if mode.first() == Some(&b'r') && !mode.contains(&b'+') { Self::Reader } else { Self::Writer }
    }

    /// Whether such a stream and managed mappings of its file exclude each other. `writable`: the mappings
    /// may be stored to.
    pub fn conflicts(self, writable: bool) -> bool {
        self == Self::Writer || writable
    }
}

/// A slot that the caller has claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry(usize);

/// The table. All zero is empty.
pub struct Streams {
    slots: [Slot; SLOTS],
    /// Slots from this index on were never used.
    used: AtomicUsize,
    overflowed: AtomicBool,
}

struct Slot {
    /// The address of the FILE, [`FREE`] or [`NAMELESS`].
    stream: AtomicUsize,
    device: AtomicU64,
    inode: AtomicU64,
    /// The stream's descriptor.
    fd: AtomicI32,
    /// A [`Kind`], or 0: the stream's file is not regular, or not known yet.
    kind: AtomicU32,
}

impl Slot {
    const fn new() -> Self {
        Self {
            stream: AtomicUsize::new(FREE),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            fd: AtomicI32::new(-1),
            kind: AtomicU32::new(0),
        }
    }

    fn kind(&self) -> Option<Kind> {
        match self.kind.load(Ordering::Acquire) {
            0 => None,
            kind if kind == Kind::Reader as u32 => Some(Kind::Reader),
            _ => Some(Kind::Writer),
        }
    }

    fn id(&self) -> FileId {
        FileId { device: self.device.load(Ordering::Relaxed), inode: self.inode.load(Ordering::Relaxed) }
    }
}

impl Streams {
    /// The empty table.
    pub const fn new() -> Self {
        Self {
            slots: [const { Slot::new() }; SLOTS],
            used: AtomicUsize::new(0),
            overflowed: AtomicBool::new(false),
        }
    }

    /// Claims an entry for a stream that is about to be opened. `None`: there is no room, and from now on
    /// every file counts as one that a stream writes.
    pub fn claim(&self) -> Option<Entry> {
        for (index, slot) in self.slots.iter().enumerate() {
            let free = slot.stream.load(Ordering::Relaxed) == FREE;
            let taken = free
                && slot.stream.compare_exchange(FREE, NAMELESS, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if taken {
                self.used.fetch_max(index + 1, Ordering::AcqRel);
                return Some(Entry(index));
            }
        }
        self.overflowed.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        None
    }

    /// Enters the file of the stream; `None` if it is not a regular file.
    pub fn name(&self, entry: Entry, id: Option<FileId>, kind: Kind) {
        let slot = &self.slots[entry.0];
        slot.kind.store(0, Ordering::Release);
        if let Some(id) = id {
            slot.device.store(id.device, Ordering::Relaxed);
            slot.inode.store(id.inode, Ordering::Relaxed);
            slot.kind.store(kind as u32, Ordering::Release);
        }
        fence(Ordering::SeqCst);
    }

    /// Enters the stream itself: the address of its FILE, and its descriptor.
    pub fn bind(&self, entry: Entry, stream: usize, fd: c_int) {
        let slot = &self.slots[entry.0];
        slot.fd.store(fd, Ordering::Relaxed);
        slot.stream.store(stream, Ordering::Release);
    }

    /// Takes the stream's address out of its entry: the stream is about to be closed. The entry still
    /// counts, but another stream may soon have the address.
    pub fn unbind(&self, stream: usize) -> Option<Entry> {
        let found = self.used().iter().position(|slot| slot.stream.load(Ordering::Acquire) == stream);
        let entry = found.filter(|_| stream > LASTING)?;
        self.slots[entry].stream.store(NAMELESS, Ordering::Release);
        Some(Entry(entry))
    }

    /// Frees the entry: its stream is closed, or was not opened.
    pub fn release(&self, entry: Entry) {
        let slot = &self.slots[entry.0];
        slot.kind.store(0, Ordering::Release);
        slot.fd.store(-1, Ordering::Relaxed);
        slot.stream.store(FREE, Ordering::Release);
    }

    /// The file and the kind of an entry.
    pub fn file(&self, entry: Entry) -> Option<(FileId, Kind)> {
        let slot = &self.slots[entry.0];
        slot.kind().map(|kind| (slot.id(), kind))
    }

    /// The entry of the stream that uses a descriptor.
    pub fn with_fd(&self, fd: c_int) -> Option<Entry> {
        let uses = |slot: &Slot| {
            slot.stream.load(Ordering::Acquire) > LASTING && slot.fd.load(Ordering::Relaxed) == fd
        };
        self.used().iter().position(uses).map(Entry)
    }

    /// Whether the file is in the table for good, for a use of this kind or a stricter one.
    pub fn has_lasting(&self, id: FileId, kind: Kind) -> bool {
        let stricter = |slot: &Slot| slot.kind().is_some_and(|is| is == kind || is == Kind::Writer);
        let lasts = |slot: &Slot| slot.stream.load(Ordering::Acquire) == LASTING;
        self.used().iter().any(|slot| lasts(slot) && stricter(slot) && slot.id() == id)
    }

    /// Whether a stream of the file excludes managed mappings of it. `writable`: they may be stored to.
    pub fn conflict(&self, id: FileId, writable: bool) -> bool {
        fence(Ordering::SeqCst);
        self.overflowed.load(Ordering::Acquire)
            || self
                .used()
                .iter()
                .any(|slot| slot.kind().is_some_and(|kind| kind.conflicts(writable)) && slot.id() == id)
    }

    fn used(&self) -> &[Slot] {
        &self.slots[..self.used.load(Ordering::Acquire)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId { device: 7, inode: 9 };

    fn open(streams: &Streams, at: usize, id: FileId, kind: Kind) {
        let entry = streams.claim().expect("there is room");
        streams.name(entry, Some(id), kind);
        streams.bind(entry, at, at as c_int);
    }

    fn close(streams: &Streams, at: usize) {
        let entry = streams.unbind(at).expect("it is open");
        streams.release(entry);
    }

    #[test]
    fn readers_exclude_mappings_that_are_stored_to_and_writers_all() {
        let streams = Box::new(Streams::new());
        open(&streams, 100, FILE, Kind::Reader);
        assert!(streams.conflict(FILE, true) && !streams.conflict(FILE, false));
        open(&streams, 200, FILE, Kind::Writer);
        assert!(streams.conflict(FILE, false));
        assert!(!streams.conflict(FileId { device: 8, inode: 9 }, true));
        close(&streams, 200);
        assert!(streams.conflict(FILE, true) && !streams.conflict(FILE, false));
        close(&streams, 100);
        assert!(!streams.conflict(FILE, true));
    }

    #[test]
    fn modes() {
        for mode in ["r", "rb", "re", "rm", "r,ccs=UTF-8"] {
            assert_eq!(Kind::of_mode(mode.as_bytes()), Kind::Reader, "{mode}");
        }
        for mode in ["w", "a", "r+", "rb+", "w+", "wx", ""] {
            assert_eq!(Kind::of_mode(mode.as_bytes()), Kind::Writer, "{mode}");
        }
    }

    #[test]
    fn a_stream_at_the_address_of_one_that_is_being_closed_is_another() {
        let streams = Box::new(Streams::new());
        open(&streams, 100, FILE, Kind::Writer);
        let old = streams.unbind(100).expect("it is open");
        assert!(streams.conflict(FILE, false));
        let other = FileId { device: 7, inode: 10 };
        open(&streams, 100, other, Kind::Writer);
        streams.release(old);
        assert!(!streams.conflict(FILE, true) && streams.conflict(other, false));
        assert!(streams.with_fd(100).is_some() && streams.with_fd(101).is_none());
        close(&streams, 100);
        assert!(streams.unbind(100).is_none() && streams.unbind(1).is_none());
    }

    #[test]
    fn what_lasts_is_listed_once_and_by_its_strictest_use() {
        let streams = Box::new(Streams::new());
        assert!(!streams.has_lasting(FILE, Kind::Reader));
        open(&streams, LASTING, FILE, Kind::Reader);
        assert!(streams.has_lasting(FILE, Kind::Reader) && !streams.has_lasting(FILE, Kind::Writer));
        open(&streams, LASTING, FILE, Kind::Writer);
        assert!(streams.has_lasting(FILE, Kind::Reader) && streams.has_lasting(FILE, Kind::Writer));
        assert!(streams.conflict(FILE, false) && streams.unbind(LASTING).is_none());
    }

    #[test]
    fn a_full_table_says_yes() {
        let streams = Box::new(Streams::new());
        let entries: Vec<_> = (0..SLOTS).map(|_| streams.claim().expect("there is room")).collect();
        assert!(!streams.conflict(FILE, true));
        assert_eq!(streams.claim(), None);
        assert!(streams.conflict(FILE, false));
        entries.into_iter().for_each(|entry| streams.release(entry));
    }
}
