//! One budget for several processes: the table of a run ([`ProcessTree`]), in a file that the processes map.
//!
//! The process that makes the budget makes the file, and puts its path into the environment of the processes
//! that it starts (python/elbowroom/_budget.py). The manager of each process is a member of the run: it takes
//! memory from the table, and gives memory back that another process needs more
//! (docs/decisions/0033-one-budget-for-a-tree.md). `elbowroom top` and `elbowroom ctl` find the table by its
//! name and directory.

use elbowroom::{Member, ProcessTree, TableFile, TreeLimits};
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Makes a table for processes that have so many bytes of memory and of swap together. Returns its path.
/// `last`: a directory for it where the usual ones in memory cannot have it.
///
/// # Errors
/// No directory can have it; why the last one cannot.
pub fn make(memory: u64, swap: u64, last: &Path) -> io::Result<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let usual = ["/dev/shm", "/tmp"].map(PathBuf::from);
    let mut failed = io::Error::from(io::ErrorKind::NotFound);
    let limits = TreeLimits { max: memory, each: None, swap_max: swap };
    for dir in runtime.into_iter().chain(usual).chain([last.to_path_buf()]) {
        match TableFile::make(&dir, &limits) {
            Ok((path, _)) => return Ok(path),
            Err(error) => failed = io::Error::new(error.kind(), format!("{}: {error}", dir.display())),
        }
    }
    Err(failed)
}

/// Opens a table.
///
/// # Errors
/// The reason.
pub fn open(path: &Path) -> Result<Arc<ProcessTree>, String> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    let tree = opened.and_then(|file| ProcessTree::open(&file).map_err(io::Error::from));
    tree.map(Arc::new).map_err(|error| {
        format!(
            "the budget that this process is to share cannot be opened ({}: {error}): the process that has \
             made it has ended, or is another user's",
            path.display()
        )
    })
}

/// Enters the run of a table.
pub fn enter(tree: Arc<ProcessTree>) -> Arc<Member> {
    Arc::new(Member::enter(tree))
}
