//! A small file that is read whole, and replaced whole: what is kept from one run of a program to the next.
//!
//! A file is replaced by another one that is renamed over it, so a reader, or a process that is killed
//! meanwhile, finds the one or the other. Processes that replace it at once do so one after the other: each
//! locks the file (flock), and then looks whether the path still leads to the file that it has locked.

use crate::calls::{Descriptor, retry};
use crate::limits;
use elbowroom_machine::Errno;
use elbowroom_sync::atomic::{AtomicU32, Ordering};
use elbowroom_sync::may_block;
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};
use rustix::fs::{self, FileType, FlockOperation, Mode, OFlags};
use rustix::io;
use std::ffi::OsString;
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// How long a thread sleeps before it tries again to lock the file.
const LOCK_POLL: Duration = Duration::from_millis(5);

/// So many names are tried for a new file.
const NAME_TRIES: u32 = 100;

/// Why a file cannot be read or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WholeError {
    /// It is a directory, a FIFO, a device or a socket. It was not opened.
    NotRegular,
    /// It has more bytes than the caller takes.
    TooLarge,
    /// Other processes have had it locked all the time.
    Busy,
    /// It belongs to another user, to whom this process may not give the file that would replace it.
    Owner,
    /// What a system call said.
    System(Errno),
}

impl From<Errno> for WholeError {
    fn from(errno: Errno) -> Self {
        Self::System(errno)
    }
}

impl fmt::Display for WholeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRegular => f.write_str("it is no regular file"),
            Self::TooLarge => f.write_str("it is too large"),
            Self::Busy => f.write_str("other processes keep it locked"),
            Self::Owner => f.write_str("it belongs to another user: name a file of your own"),
            Self::System(errno) => std::io::Error::from(*errno).fmt(f),
        }
    }
}

impl std::error::Error for WholeError {}

/// The first `most` bytes of a regular file; `None`: there is no such file. Waits for no FIFO and no lock.
///
/// # Errors
/// [`WholeError::NotRegular`], or what the system says.
pub fn read_begin(path: &Path, most: usize) -> Result<Option<Vec<u8>>, WholeError> {
    let Some(file) = open_regular(path, OFlags::RDONLY)? else { return Ok(None) };
    read(&file, most).map(Some)
}

/// All bytes of a regular file, at most `most`; `None`: there is no such file. Waits for no FIFO and no lock.
///
/// # Errors
/// [`WholeError::NotRegular`], [`WholeError::TooLarge`], or what the system says.
pub fn read_whole(path: &Path, most: usize) -> Result<Option<Vec<u8>>, WholeError> {
    let Some(bytes) = read_begin(path, most.saturating_add(1))? else { return Ok(None) };
    if bytes.len() > most { Err(WholeError::TooLarge) } else { Ok(Some(bytes)) }
}

/// Replaces a file, or makes it, with the bytes that `change` makes of those that it has; none, if it is new.
/// `None`: it stays as it is. `most` is the most bytes that it may have before: of a larger file `change`
/// gets the error. Waits for other processes that do the same for `patience` at most. A file that
/// is made can be read and written by its owner alone; one that replaces another has its owner, group and
/// permissions. Until it is complete, it is beside the old one, with
/// `.elbowroom-new` and two numbers at the end of its name. It is not forced to the disk: after a power
/// loss it may be cut.
///
/// # Errors
/// [`WholeError::NotRegular`]; [`WholeError::Owner`]; [`WholeError::Busy`], also if another process has
/// replaced it without the lock; or what the system says. The file is as before; if there was none, there
/// is none.
pub fn replace_whole(
    path: &Path,
    most: usize,
    patience: Duration,
    change: impl FnOnce(Result<Vec<u8>, WholeError>) -> Option<Vec<u8>>,
) -> Result<(), WholeError> {
    let Locked { real, file, is_new } = lock(path, patience)?;
    let before = read(&file, most.saturating_add(1))
        .and_then(|bytes| if bytes.len() > most { Err(WholeError::TooLarge) } else { Ok(bytes) });
    let replaced = change(before).map(|bytes| replace(&real, &file, &bytes));
    // The file that was made to be locked is empty. Others that wait for its lock see that it is gone.
    if is_new && !matches!(replaced, Some(Ok(()))) && is_at(&file, &real).unwrap_or(false) {
        let _ = fs::unlink(&real);
    }
    replaced.unwrap_or(Ok(()))
}

/// Makes a new file with these bytes and renames it over the locked one.
fn replace(real: &Path, locked: &Descriptor, bytes: &[u8]) -> Result<(), WholeError> {
    let (new, file) = create_beside(real)?;
    let replaced = own_as(&file, locked).and_then(|()| {
        write_all(&file, bytes)?;
        // Other programs may have moved another file to its place.
        if !is_at(locked, real)? {
            return Err(WholeError::Busy);
        }
        Ok(fs::rename(&new, real)?)
    });
    if replaced.is_err() {
        // The error that counts is that of the write.
        let _ = fs::unlink(&new);
    }
    replaced
}

/// Gives a new file the owner, the group and the permissions of the old one, so that a run by root (sudo)
/// does not take a user's file away. If it cannot be given to that group, no group has rights.
fn own_as(new: &Descriptor, old: &Descriptor) -> Result<(), WholeError> {
    let (is, was) = (fs::fstat(new)?, fs::fstat(old)?);
    let mut mode = Mode::from_raw_mode(was.st_mode) & (Mode::RWXU | Mode::RWXG | Mode::RWXO);
    if (is.st_uid, is.st_gid) != (was.st_uid, was.st_gid) {
        let (owner, group) = (fs::Uid::from_raw(was.st_uid), fs::Gid::from_raw(was.st_gid));
        if fs::fchown(new, Some(owner), Some(group)).is_err() {
            if is.st_uid != was.st_uid {
                return Err(WholeError::Owner);
            }
            mode -= Mode::RWXG;
        }
    }
    Ok(fs::fchmod(new, mode)?)
}

/// A new file beside another one, under a name that no file has.
fn create_beside(real: &Path) -> Result<(PathBuf, Descriptor), Errno> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut tries = 0;
    loop {
        let mut name = OsString::from(real);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        name.push(format!(".elbowroom-new.{}.{count}", std::process::id()));
        let new = PathBuf::from(name);
        match create(&new) {
            // A process with the same number that was killed, or one in another container, has made it.
            Err(Errno::EXIST) if tries < NAME_TRIES => tries += 1,
            made => return Ok((new, made?)),
        }
    }
}

/// A file that this process has locked.
struct Locked {
    /// Its path without symbolic links.
    real: PathBuf,
    file: Descriptor,
    /// It was made to be locked.
    is_new: bool,
}

/// Locks the file, which is made if there is none.
fn lock(path: &Path, patience: Duration) -> Result<Locked, WholeError> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some((file, is_new)) = open_to_lock(path)? {
            match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let real = std::fs::canonicalize(path).map_err(errno_of)?;
                    if is_at(&file, &real)? {
                        return Ok(Locked { real, file, is_new });
                    }
                    // Another process has replaced it since it was opened.
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if Instant::now() >= deadline {
            return Err(WholeError::Busy);
        }
        may_block();
        thread::sleep(LOCK_POLL);
    }
}

/// Opens the file to lock it, or makes it, and tells whether it is new; `None`: another process has made or
/// removed it just now.
fn open_to_lock(path: &Path) -> Result<Option<(Descriptor, bool)>, WholeError> {
    // To lock a file on a network file system takes the right to write.
    let opened = match open_regular(path, OFlags::RDWR) {
        Err(WholeError::System(Errno::ACCESS | Errno::ROFS | Errno::PERM)) => {
            open_regular(path, OFlags::RDONLY)?
        }
        opened => opened?,
    };
    if let Some(file) = opened {
        return Ok(Some((file, false)));
    }
    match create(path) {
        Ok(file) => Ok(Some((file, true))),
        Err(Errno::EXIST) if fs::lstat(path).is_ok_and(|stat| is_link(stat.st_mode)) => {
            // A symbolic link to nothing.
            Err(WholeError::System(Errno::NOENT))
        }
        Err(Errno::EXIST) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens a regular file; `None`: there is none. The path is opened with O_PATH first, so that a FIFO or a
/// device does not notice, and the opening does not wait.
fn open_regular(path: &Path, access: OFlags) -> Result<Option<Descriptor>, WholeError> {
    may_block();
    let open = |path: &Path, flags: OFlags| {
        limits::open_briefly(|| retry(|| fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())))
    };
    let place = match open(path, OFlags::PATH) {
        Err(Errno::NOENT) => return Ok(None),
        place => Descriptor::from(place?),
    };
    if FileType::from_raw_mode(fs::fstat(&place)?.st_mode) != FileType::RegularFile {
        return Err(WholeError::NotRegular);
    }
    Ok(Some(Descriptor::from(open(Path::new(&place.proc_path()), access)?)))
}

/// A new file for its owner alone.
fn create(path: &Path) -> Result<Descriptor, Errno> {
    may_block();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || -> Result<OwnedFd, Errno> { retry(|| fs::open(path, flags, Mode::RUSR | Mode::WUSR)) };
    limits::open_briefly(open).map(Descriptor::from)
}

fn read(file: &Descriptor, most: usize) -> Result<Vec<u8>, WholeError> {
    let size = fs::fstat(file)?.st_size as usize;
    // One byte more, so that a file that grows meanwhile is read on.
    let mut bytes = vec![0; most.min(size.saturating_add(1))];
    let mut done = 0;
    while done < bytes.len() {
        match retry(|| io::pread(file, &mut bytes[done..], done as u64))? {
            0 => break,
            n => done += n,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

fn write_all(file: &Descriptor, bytes: &[u8]) -> Result<(), Errno> {
    // The limit on file sizes that the program may have set is for its own files.
    limits::with_highest_file_limit(|limit| {
        if bytes.len() as u64 > limit {
            return Err(Errno::FBIG);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            match retry(|| io::write(file, rest))? {
                0 => return Err(Errno::NOSPC),
                n => rest = &rest[n..],
            }
        }
        Ok(())
    })
}

/// Whether the path leads to this file.
fn is_at(file: &Descriptor, path: &Path) -> Result<bool, Errno> {
    let ours = fs::fstat(file)?;
    match fs::stat(path) {
        Ok(there) => Ok((there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_link(mode: u32) -> bool {
    FileType::from_raw_mode(mode) == FileType::Symlink
}

fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(all(test, not(shuttle)))]
mod tests;
