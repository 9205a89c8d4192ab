//! How much room a directory has for a swap file.

use crate::file::StoreFile;
use crate::limits;
use elbowroom_machine::{Errno, PAGE_SIZE};
use rustix::fs;
use std::path::Path;

/// Room for a swap file in a directory, as far as can be seen without writing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Free bytes of the file system for this user; `u64::MAX`: the file system does not tell.
    pub free_bytes: u64,
    /// The largest size of a file of this process, in bytes (the hard RLIMIT_FSIZE); `None`: no limit.
    pub file_limit_bytes: Option<u64>,
    /// Whether the file system supports O_DIRECT, which bypasses the kernel's page cache.
    pub direct: bool,
    /// Whether the file system is itself in memory.
    pub in_memory: bool,
}

impl Room {
    /// Looks at the directory, with a temporary file that has no name.
    ///
    /// # Errors
    /// What open(2) says, of the directory or of its file system.
    pub fn look(dir: &Path) -> Result<Room, Errno> {
        let file = StoreFile::temporary(dir, 0, None)?;
        let (system, space) = (fs::statfs(dir)?, fs::statvfs(dir)?);
        // A file system without blocks, such as some of FUSE's, reports sizes of zero.
        let free_bytes =
            if space.f_blocks == 0 { u64::MAX } else { space.f_bavail.saturating_mul(space.f_frsize) };
        Ok(Room {
            free_bytes,
            file_limit_bytes: limits::highest_file_limit(),
            direct: file.direct(),
            in_memory: matches!(system.f_type as u64, TMPFS | RAMFS),
        })
    }

    /// How large a file can be, in bytes: whole pages.
    pub fn bytes(&self) -> u64 {
        let bytes = self.free_bytes.min(self.file_limit_bytes.unwrap_or(u64::MAX));
        bytes / PAGE_SIZE as u64 * PAGE_SIZE as u64
    }
}

const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_room_and_keeps_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let room = Room::look(dir.path()).unwrap();
        assert!(room.bytes() > 0 && room.bytes().is_multiple_of(PAGE_SIZE as u64), "{room:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(Room::look(&dir.path().join("no")), Err(Errno::NOENT));
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(Room::look(&dir.path().join("file")), Err(Errno::NOTDIR));
    }

    #[test]
    fn memory_is_no_disk() {
        let shm = Path::new("/dev/shm");
        if fs::statfs(shm).is_ok_and(|system| system.f_type as u64 == TMPFS) {
            assert!(Room::look(shm).unwrap().in_memory);
        }
        assert!(Room::look(Path::new("/proc")).is_err());
    }

    #[test]
    fn the_smaller_limit_counts() {
        let room = Room { free_bytes: 10_000, file_limit_bytes: None, direct: true, in_memory: false };
        assert_eq!(room.bytes(), 8192);
        assert_eq!(Room { file_limit_bytes: Some(5000), ..room }.bytes(), 4096);
        assert_eq!(Room { file_limit_bytes: Some(50_000), ..room }.bytes(), 8192);
    }
}
