//! Whether another process has a file open.

use crate::file::FileId;
use crate::limits;
use elbowroom_machine::Errno;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether another process has the file open, or maps it. `true` also where that cannot be known.
///
/// All processes are looked at. (A write lease on the program's description would tell of other descriptions
/// at once, but not of a process that shares this one since a fork.) Not seen is what no process shows: a
/// loop device, a file server in the kernel, processes outside of our PID namespace.
pub(super) fn have_open(id: FileId) -> bool {
    let own = std::process::id().to_string();
    let Ok(processes) = limits::open_briefly(|| fs::read_dir("/proc")) else { return true };
    processes.flatten().any(|process| {
        let name = process.file_name();
        let is_process = name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
        is_process && name != own.as_str() && has_open(&process.path(), id)
    })
}

fn has_open(process: &Path, id: FileId) -> bool {
    match limits::open_briefly(|| fs::read_dir(process.join("fd"))) {
        Ok(fds) => {
            let same = |file: fs::Metadata| (file.dev(), file.ino()) == (id.device, id.inode);
            fds.flatten().any(|fd| fs::metadata(fd.path()).is_ok_and(same)) || maps(process, id.inode)
        }
        // It has ended meanwhile, or we may not look.
        Err(_) => process.exists(),
    }
}

/// By the inode number alone: the device that /proc shows is not always the one that fstat(2) gives. A
/// process whose descriptors we may see and whose mappings we may not (the first one of some containers) is
/// taken to map nothing.
fn maps(process: &Path, inode: u64) -> bool {
    let maps = match limits::open_briefly(|| fs::read_to_string(process.join("maps"))) {
        Ok(maps) => maps,
        Err(error) => {
            let gone = matches!(Errno::from_io_error(&error), Some(Errno::SRCH | Errno::NOENT));
            return !gone && error.kind() != ErrorKind::PermissionDenied;
        }
    };
    maps.lines()
        .any(|line| line.split_ascii_whitespace().nth(4).and_then(|field| field.parse().ok()) == Some(inode))
}
