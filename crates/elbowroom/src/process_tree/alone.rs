//! A program that uses the library, as a run of one process: so that `elbowroom top` and `ctl` see it.

use super::table::ProcessTree;
use super::{Member, TreeLimits};
use elbowroom_machine::own_pid;
use elbowroom_sync::Arc;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

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
        let pid = own_pid();
        // A process may have several managers, and each has a table.
        for nth in 0..u32::MAX {
            let path = directory.join(format!("elbowroom-run-{pid}-{nth:08x}"));
            match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
                Ok(file) => {
                    let limits = TreeLimits { max: memory, each: None, swap_max: swap };
                    // All blocks are allocated now: on a full tmpfs a store to the mapped table would be a
                    // SIGBUS later.
                    let made = (&file)
                        .write_all(&vec![0; ProcessTree::BYTES as usize])
                        .and_then(|()| ProcessTree::create(&file, &limits));
                    let tree = made.inspect_err(|_| _ = fs::remove_file(&path))?;
                    return Ok(Self { member: Arc::new(Member::enter(Arc::new(tree))), path, maker: pid });
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
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
