//! The file of a table, where `elbowroom top` and `ctl` find it.

use super::TreeLimits;
use super::table::ProcessTree;
use elbowroom_machine::own_pid;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The files that have tables.
#[derive(Debug)]
pub struct TableFile(());

impl TableFile {
    /// The names of tables begin with this. The id of the process that has made the table follows, and a
    /// number.
    pub const PREFIX: &str = "elbowroom-run-";

    /// Makes a table in a new file of `directory`, and returns its path, too. `elbowroom top` looks for
    /// tables in XDG_RUNTIME_DIR, /dev/shm and /tmp.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn make(directory: &Path, limits: &TreeLimits) -> io::Result<(PathBuf, ProcessTree)> {
        // A process may have several managers, and each has a table.
        for nth in 0..u32::MAX {
            let path = directory.join(format!("{}{}-{nth:08x}", Self::PREFIX, own_pid()));
            let mut file =
                match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                    made => made?,
                };
            // All blocks are allocated now: on a full tmpfs a store to the mapped table would be a SIGBUS
            // later.
            let made = file
                .write_all(&vec![0; ProcessTree::BYTES as usize])
                .and_then(|()| ProcessTree::create(&file, limits));
            let tree = made.inspect_err(|_| _ = fs::remove_file(&path))?;
            return Ok((path, tree));
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}
