//! Files that are part of this command are put into a directory from which a program's loader can map them.
//!
//! The loader runs with the rights of the program whatever the file has, so nobody else may be able to change
//! it. A directory is used if this user alone can write to it and to what is above it, if programs may be
//! executed from it, and if its path can be named to the loader. Else the next place is tried:
//!
//! 1. `$XDG_CACHE_HOME/elbowroom`
//! 2. `$HOME/.cache/elbowroom`
//! 3. `$XDG_RUNTIME_DIR/elbowroom`
//! 4. `/tmp/elbowroom-UID`
//! 5. `/dev/shm/elbowroom-UID`
//!
//! Each version has a directory of its own there. The bytes of a file that is there already are compared with
//! those that it should have, at each start: a comparison reads no more than a checksum would. A file that
//! differs is replaced, by renaming a new one, so that processes that have mapped the old one keep it, and a
//! second start sees either nothing or all of a file.

use std::env;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, StatVfsMountFlags, statvfs};

use crate::preload;

/// What may be unpacked: names, and contents.
pub type Files<'f> = &'f [(&'f str, &'f [u8])];

/// The mode bits that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// The mode bit of a directory in which each user can remove only files of its own.
const STICKY: u32 = 0o1000;

/// Where files may be put.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// The effective user.
    user: u32,
    /// Directories of this user. The second path, below the first one, is made if it is not there.
    own: Vec<(PathBuf, PathBuf)>,
    /// Directories that all users have.
    common: Vec<PathBuf>,
}

impl Places {
    /// The places that the environment names, and those that are always there.
    pub fn of_environment() -> Self {
        let path = |name: &str| env::var_os(name).map(PathBuf::from);
        let common = ["/tmp", "/dev/shm"].map(PathBuf::from).into();
        let user = rustix::process::geteuid().as_raw();
        Self::new(user, path("XDG_CACHE_HOME"), path("HOME"), path("XDG_RUNTIME_DIR"), common)
    }

    /// A path that is not absolute is ignored, as the specification of the XDG directories has it.
    fn new(
        user: u32,
        cache: Option<PathBuf>,
        home: Option<PathBuf>,
        runtime: Option<PathBuf>,
        common: Vec<PathBuf>,
    ) -> Self {
        let mut own = Vec::new();
        // The cache itself is made if it is not there, but not what it is in.
        own.extend(cache.as_deref().and_then(|cache| {
            Some((cache.parent()?.to_owned(), Path::new(cache.file_name()?).join("elbowroom")))
        }));
        own.extend(home.map(|home| (home, PathBuf::from(".cache/elbowroom"))));
        own.extend(runtime.map(|runtime| (runtime, PathBuf::from("elbowroom"))));
        own.retain(|(base, _)| base.is_absolute());
        Self { user, own, common }
    }

    /// All directories to try, in this order: one that must be there, and one below it.
    fn all(&self) -> Vec<(PathBuf, PathBuf)> {
        let common = self.common.iter().map(|base| (base.clone(), format!("elbowroom-{}", self.user).into()));
        self.own.iter().cloned().chain(common).collect()
    }

    /// Makes sure that the files are in the directory `version` of one of the places. Gives that directory:
    /// absolute, without symbolic links.
    ///
    /// # Errors
    /// For each place, why it cannot be used; in one text with a line for each.
    pub fn unpack(&self, version: &str, files: Files<'_>) -> Result<PathBuf, String> {
        let mut refused = String::new();
        for (base, below) in self.all() {
            match self.unpack_into(&base, &below.join(version), files) {
                Ok(directory) => return Ok(directory),
                Err(why) => refused.push_str(&format!("\n  {}: {why}", base.join(below).display())),
            }
        }
        Err(refused)
    }

    fn unpack_into(&self, base: &Path, below: &Path, files: Files<'_>) -> Result<PathBuf, String> {
        // Before anything is made there: root makes nothing in the home that `sudo` has left in HOME.
        let mut directory = canonical(base)?;
        self.trust(&directory)?;
        for part in below {
            directory.push(part);
            match DirBuilder::new().mode(0o755).create(&directory) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(format!("{} cannot be made: {error}", directory.display()));
                }
                _ => {}
            }
            // Links are followed here, and never again: what the loader gets has none.
            directory = canonical(&directory)?;
            self.trust(&directory)?;
        }
        self.has_alone(&directory)?;
        if let Some(byte) = preload::unfit(&directory) {
            let loader = preload::LOADER_VARIABLE;
            return Err(format!("the path contains '{}', which {loader} cannot hold", char::from(byte)));
        }
        let mount = statvfs(&directory).map_err(|error| io::Error::from(error).to_string())?;
        if mount.f_flag.contains(StatVfsMountFlags::NOEXEC) {
            return Err("programs may not be executed there (it is mounted noexec)".to_owned());
        }
        for (name, contents) in files {
            let path = directory.join(name);
            if !self.has(&path, contents) {
                replace(&path, contents).map_err(|error| format!("{name} cannot be written: {error}"))?;
            }
        }
        Ok(directory)
    }

    /// Checks that only root and this user can put another directory into the place of this one.
    fn trust(&self, directory: &Path) -> Result<(), String> {
        for part in directory.ancestors() {
            let (shown, found) = (part.display(), metadata(part)?);
            let owner = found.uid();
            if owner != self.user && owner != 0 && !is_unmapped(owner) {
                return Err(format!("{shown} belongs to another user (uid {owner})"));
            }
            if found.mode() & OTHERS_WRITE != 0 && found.mode() & STICKY == 0 {
                return Err(format!("other users may write to {shown}"));
            }
        }
        Ok(())
    }

    /// Checks that only this user can put files into the directory.
    fn has_alone(&self, directory: &Path) -> Result<(), String> {
        let (shown, found) = (directory.display(), metadata(directory)?);
        if found.uid() != self.user {
            return Err(format!("{shown} belongs to another user (uid {})", found.uid()));
        }
        if found.mode() & OTHERS_WRITE != 0 {
            return Err(format!("other users may write to {shown}"));
        }
        Ok(())
    }

    /// Whether the file is there, is this user's alone, and has these contents.
    fn has(&self, path: &Path, contents: &[u8]) -> bool {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
        let Ok(file) = file else { return false };
        let is_ours = |found: &Metadata| {
            found.is_file()
                && found.uid() == self.user
                && found.mode() & OTHERS_WRITE == 0
                && found.len() == contents.len() as u64
        };
        file.metadata().is_ok_and(|found| is_ours(&found)) && are(file, contents).unwrap_or(false)
    }
}

fn canonical(path: &Path) -> Result<PathBuf, String> {
    path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))
}

fn metadata(path: &Path) -> Result<Metadata, String> {
    fs::symlink_metadata(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Whether a file has these contents.
fn are(mut file: File, mut contents: &[u8]) -> io::Result<bool> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        let read = file.read(&mut buffer)?;
        match contents.split_at_checked(read) {
            _ if read == 0 => return Ok(contents.is_empty()),
            Some((same, rest)) if same == &buffer[..read] => contents = rest,
            _ => return Ok(false),
        }
    }
}

/// Writes a file under another name, and gives it its name when it is complete.
fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let draft = path.with_extension(format!("{}-{:x}", std::process::id(), fastrand::u64(..)));
    let written =
        OpenOptions::new().write(true).create_new(true).mode(0o644).open(&draft).and_then(|mut file| {
            file.write_all(contents)?;
            drop(file);
            fs::rename(&draft, path)
        });
    if written.is_err() {
        // There may be none, or the disk may be gone: the first error is the one to tell.
        let _ = fs::remove_file(&draft);
    }
    written
}

/// Whether the owner of a file may be root, of whom a user namespace knows nothing: all users that it does
/// not know have the same number there.
fn is_unmapped(owner: u32) -> bool {
    let number = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let unknown = number("/proc/sys/kernel/overflowuid").trim().parse() == Ok(owner);
    unknown && number("/proc/self/uid_map").split_whitespace().next() != Some("0")
}

#[cfg(test)]
mod tests;
