//! Another process that has a file open, for the summary.

use crate::base::reason::Reason;
use crate::base::state::Process;
use crate::base::sys;
use elbowroom::FileId;
use elbowroom_store::open_briefly;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;

/// On a service thread, when a file is left to the kernel because other processes use it: remembers one of
/// these processes. Only for the first such file, since a look at all processes takes long.
pub fn note(process: &Process, id: FileId) {
    if process.left.has_met(Reason::NotAlone) {
        return;
    }
    if let Some(user) = find(id) {
        process.user_of_file.store(Box::into_raw(Box::new(user)), Ordering::Release);
    }
}

/// Name and number of a process that has the file open, as far as we may look.
fn find(id: FileId) -> Option<String> {
    let own = sys::getpid().to_string();
    let processes = open_briefly(|| std::fs::read_dir("/proc")).ok()?;
    for process in processes.flatten() {
        let number = process.file_name().into_string().unwrap_or_default();
        if number == own || !number.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let Ok(files) = open_briefly(|| std::fs::read_dir(process.path().join("fd"))) else { continue };
        if files.flatten().any(|file| is(&file.path(), id)) {
            let name = open_briefly(|| std::fs::read_to_string(process.path().join("comm")));
            return Some(format!("{} (pid {number})", name.unwrap_or_default().trim_end()));
        }
    }
    None
}

fn is(path: &Path, id: FileId) -> bool {
    std::fs::metadata(path).is_ok_and(|file| (file.dev(), file.ino()) == (id.device, id.inode))
}
