//! The table of a run that the lab has started.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use elbowroom::ProcessTree;

/// The table of the run whose main process is `pid`; `None`: there is none yet. `swap_dir`: where the run's
/// swap is.
pub fn of_run(pid: u64, swap_dir: &Path) -> Option<ProcessTree> {
    let prefix = format!("elbowroom-run-{pid}-");
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let fixed = ["/dev/shm", "/tmp"].map(PathBuf::from);
    let dirs = runtime.into_iter().chain(fixed).chain([swap_dir.to_owned()]);
    let entries = dirs.filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
    let mut named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
    named.find_map(|entry| {
        let file = OpenOptions::new().read(true).write(true).open(entry.path()).ok()?;
        ProcessTree::open(&file).ok()
    })
}
