//! The paths of files that a process maps, for a name on the screen. A manager keeps no paths, but has the
//! files open: their descriptors are in the file table of its threads.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// How many answers are kept: then all are forgotten.
const MOST: usize = 4096;

/// A process, a device and an inode.
type Key = (u32, u64, u64);

/// The files that were found before, so that a process's descriptors are listed once for each file.
static FOUND: Mutex<Option<HashMap<Key, Option<String>>>> = Mutex::new(None);

/// The path of a file that a process has open. `None`: it has it open no more, or cannot be looked at.
pub fn path_of(pid: u32, device: u64, inode: u64) -> Option<String> {
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    let found = found.get_or_insert_default();
    if found.len() >= MOST {
        found.clear();
    }
    found.entry((pid, device, inode)).or_insert_with(|| look(pid, device, inode)).clone()
}

fn look(pid: u32, device: u64, inode: u64) -> Option<String> {
    let process = Path::new("/proc").join(pid.to_string());
    let tasks = fs::read_dir(process.join("task")).into_iter().flatten().flatten().map(|task| task.path());
    // All threads of the manager have one file table.
    let is_managers = |task: &std::path::PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("elbowroom-fault"))
    };
    let tables = tasks.filter(is_managers).take(1).chain([process.clone()]);
    let descriptors = tables.flat_map(|table| fs::read_dir(table.join("fd")).into_iter().flatten().flatten());
    let is_it = |path: &std::path::PathBuf| {
        fs::metadata(path).is_ok_and(|file| (file.dev(), file.ino()) == (device, inode))
    };
    let path = descriptors.map(|descriptor| descriptor.path()).find(is_it)?;
    Some(fs::read_link(path).ok()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_has_its_path() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of = file.as_file().metadata().unwrap();
        let path = file.path().to_string_lossy().into_owned();
        assert_eq!(path_of(std::process::id(), of.dev(), of.ino()), Some(path));
        assert_eq!(path_of(std::process::id(), of.dev(), u64::MAX), None);
        assert_eq!(path_of(u32::MAX, of.dev(), of.ino()), None);
    }
}
