//! How much swap a budget gets if the user does not say how much.

use crate::config::Config;
use elbowroom_machine::{Errno, PAGE_SIZE};
use elbowroom_store::Room;
use std::fmt;
use std::path::Path;

/// The default swap is so many times the budget.
const TIMES: u64 = 4;

/// How much swap a budget gets if the user does not say how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DefaultSwap {
    /// For [`Config::swap`], in bytes; 0: none, and private memory is better left to the kernel.
    pub bytes: u64,
    /// What the directory lacks, if anything: there may be less swap than there should be, or none.
    pub lack: Option<Lack>,
}

/// What a directory lacks for a swap file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// No file can be made there.
    File(Errno),
    /// Its file system is in memory itself.
    Disk,
    /// What is written there stays in the kernel's page cache, beside the budget.
    Direct,
    /// There is no more free space than this, in bytes.
    Space(u64),
    /// No file of this process may be larger, in bytes.
    FileLimit(u64),
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        match self {
            Lack::File(errno) => {
                write!(f, "no file can be made there ({})", std::io::Error::from(*errno))
            }
            Lack::Disk => f.write_str("its file system is in memory"),
            Lack::Direct => f.write_str("its file system has no O_DIRECT"),
            Lack::Space(bytes) => write!(f, "{} MiB are free there", mib(*bytes)),
            Lack::FileLimit(bytes) => {
                write!(f, "no file may be larger than {} KiB (`ulimit -f`)", bytes >> 10)
            }
        }
    }
}

impl DefaultSwap {
    /// For a budget of `memory` bytes, with the swap file in `dir`: four times the budget. Less, if the
    /// directory has no room for that: the file takes blocks only as pages go there, but a program that was
    /// given so much memory counts on it. None, if there is less room than the budget, or no proper place for
    /// a file at all: what neither compresses nor has a place on a disk has to stay in the budget, and a
    /// program that needs more would fail where the kernel lets it go on.
    pub fn of(memory: u64, dir: &Path) -> Self {
        Self::decide(memory, Room::look(dir))
    }

    /// [`DefaultSwap::of`] for a directory that the user has named: a file in memory, or one that goes
    /// through the page cache, is accepted, since the user asked for it. `lack` still says that it is no
    /// file on a disk.
    pub fn in_named(memory: u64, dir: &Path) -> Self {
        let room = Room::look(dir);
        let lack = room.as_ref().ok().and_then(lack_of_disk);
        let decided = Self::decide(memory, room.map(|room| Room { direct: true, in_memory: false, ..room }));
        Self { lack: decided.lack.or(lack), ..decided }
    }

    fn decide(memory: u64, room: Result<Room, Errno>) -> Self {
        let wanted = memory.saturating_mul(TIMES).min(Config::with_memory(memory).most_swap());
        let wanted = wanted / PAGE_SIZE as u64 * PAGE_SIZE as u64;
        match room {
            Err(errno) => Self { bytes: 0, lack: Some(Lack::File(errno)) },
            Ok(room) if lack_of_disk(&room).is_some() => Self { bytes: 0, lack: lack_of_disk(&room) },
            Ok(room) => {
                let lack = lack_of_room(&room, wanted);
                let bytes = if room.bytes() < memory { 0 } else { room.bytes().min(wanted) };
                Self { bytes, lack }
            }
        }
    }
}

/// Why a file there is not on a disk alone, if so.
fn lack_of_disk(room: &Room) -> Option<Lack> {
    match room {
        Room { in_memory: true, .. } => Some(Lack::Disk),
        Room { direct: false, .. } => Some(Lack::Direct),
        _ => None,
    }
}

/// Why a file of so many bytes does not fit, if so.
fn lack_of_room(room: &Room, bytes: u64) -> Option<Lack> {
    match room.file_limit_bytes {
        _ if room.bytes() >= bytes => None,
        Some(limit) if limit < room.free_bytes => Some(Lack::FileLimit(limit)),
        _ => Some(Lack::Space(room.free_bytes)),
    }
}

impl Lack {
    /// What `dir` lacks for a swap file of `bytes`, that the user has asked for: a file in memory, or one
    /// that goes through the page cache, is accepted.
    pub fn for_file(dir: &Path, bytes: u64) -> Option<Lack> {
        match Room::look(dir) {
            Err(errno) => Some(Lack::File(errno)),
            Ok(room) => lack_of_room(&room, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn decide(memory_mib: u64, free_mib: u64, limit_mib: Option<u64>) -> (u64, Option<Lack>) {
        let room = Room {
            free_bytes: free_mib * MIB,
            file_limit_bytes: limit_mib.map(|limit| limit * MIB),
            direct: true,
            in_memory: false,
        };
        let DefaultSwap { bytes, lack } = DefaultSwap::decide(memory_mib * MIB, Ok(room));
        (bytes / MIB, lack)
    }

    #[test]
    fn it_is_four_times_the_budget_where_there_is_room() {
        assert_eq!(decide(16, 64, None), (64, None));
        assert_eq!(decide(512, 1 << 20, Some(1 << 20)), (2048, None));
        assert_eq!(decide(512, 2047, None), (2047, Some(Lack::Space(2047 * MIB))));
        assert_eq!(decide(512, 512, None), (512, Some(Lack::Space(512 * MIB))));
        assert_eq!(decide(512, 511, None), (0, Some(Lack::Space(511 * MIB))));
        assert_eq!(decide(512, 9999, Some(600)), (600, Some(Lack::FileLimit(600 * MIB))));
        assert_eq!(decide(512, 9999, Some(0)), (0, Some(Lack::FileLimit(0))));
    }

    #[test]
    fn every_budget_can_describe_it() {
        for memory in (4..44).map(|bits| Config::MIN_MEMORY.max(1 << bits)) {
            let free = Room { free_bytes: u64::MAX, file_limit_bytes: None, direct: true, in_memory: false };
            let DefaultSwap { bytes, lack } = DefaultSwap::decide(memory, Ok(free));
            assert!(0 < bytes && bytes <= Config::with_memory(memory).most_swap(), "{memory}");
            assert_eq!(lack, None);
        }
    }

    #[test]
    fn there_is_none_without_a_proper_place() {
        let good = Room { free_bytes: u64::MAX, file_limit_bytes: None, direct: true, in_memory: false };
        for (room, lack) in [
            (Err(Errno::ROFS), Lack::File(Errno::ROFS)),
            (Ok(Room { direct: false, ..good }), Lack::Direct),
            (Ok(Room { in_memory: true, ..good }), Lack::Disk),
        ] {
            let expected = DefaultSwap { bytes: 0, lack: Some(lack) };
            assert_eq!(DefaultSwap::decide(64 * MIB, room), expected);
        }
    }

    #[test]
    fn a_directory_in_memory_that_was_named_is_used() {
        let shm = Path::new("/dev/shm");
        if !Room::look(shm).is_ok_and(|room| room.in_memory && room.bytes() >= 16 * MIB) {
            return;
        }
        assert_eq!(DefaultSwap::of(16 * MIB, shm), DefaultSwap { bytes: 0, lack: Some(Lack::Disk) });
        let named = DefaultSwap::in_named(16 * MIB, shm);
        assert!(named.bytes >= 16 * MIB && named.lack.is_some(), "{named:?}");
        let none = DefaultSwap::in_named(16 * MIB, Path::new("/no/such/directory"));
        assert_eq!(none, DefaultSwap { bytes: 0, lack: Some(Lack::File(Errno::NOENT)) });
    }

    #[test]
    fn what_was_asked_for_must_fit() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Lack::for_file(dir.path(), 4096), None);
        assert!(matches!(Lack::for_file(dir.path(), 1 << 60), Some(Lack::Space(_) | Lack::FileLimit(_))));
        assert_eq!(Lack::for_file(&dir.path().join("no"), 4096), Some(Lack::File(Errno::NOENT)));
    }
}
