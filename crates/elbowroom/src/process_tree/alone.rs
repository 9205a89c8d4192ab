//! A program that uses the library, as a run of one process: so that `elbowroom top` and `ctl` see it.

use super::file::TableFile;
use super::{Member, TreeLimits};
use elbowroom_machine::own_pid;
use elbowroom_sync::Arc;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A table of a run of one process, in a file. The file is removed when this value is dropped; if the process
/// is killed, the next `elbowroom run` of the same user removes it.
///
/// ```no_run
/// # use elbowroom_manager::{Config, Manager, ShownAlone, Soft};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::with_memory(64 << 20);
/// let shown = ShownAlone::new("/dev/shm".as_ref(), config.memory, config.swap)?;
/// let manager = Manager::<Soft>::start_on(Config { member: Some(shown.member()), ..config })?;
/// # Ok(())
/// # }
/// ```
pub struct ShownAlone {
    member: Arc<Member>,
    path: PathBuf,
    /// The process that made the file. A forked child has this value, too, and does not remove the file.
    maker: u32,
}

impl ShownAlone {
    /// Makes the table. `directory`: where `elbowroom top` looks: XDG_RUNTIME_DIR, /dev/shm or /tmp.
    /// `memory` and `swap`: those of the manager's `Config`, in bytes. The table is for one manager.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn new(directory: &Path, memory: u64, swap: u64) -> io::Result<Self> {
        let limits = TreeLimits { max: memory, each: None, swap_max: swap };
        let (path, tree) = TableFile::make(directory, &limits)?;
        Ok(Self { member: Arc::new(Member::enter(Arc::new(tree))), path, maker: own_pid() })
    }

    /// The process as the one of its run, for [`Config::member`](crate::Config::member).
    pub fn member(&self) -> Arc<Member> {
        self.member.clone()
    }
}

impl Drop for ShownAlone {
    fn drop(&mut self) {
        // The manager may live on, and goes on with its mapping of the table.
        if self.maker == own_pid() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
