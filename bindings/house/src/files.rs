//! Reads, writes and changes of size of files: the manager's cache, and what was stored through mappings, are
//! the same bytes.
//!
//! A write is framed as `elbowroom run` frames one: the manager holds write-back off, the kernel writes, the
//! manager takes the new bytes. A read is preceded by the write-back of what it will see. The bytes of the
//! program's buffer pass through a buffer of the worker's: the program's may be managed memory, whose fault
//! could need what the frame holds.

use crate::caller::Caller;
use crate::failure::Failure;
use crate::fork::is_child;
use crate::house::{self, House};
use elbowroom::{Errno, FileId, Origin};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// Bytes of one transfer, at most.
pub const CHUNK: usize = 1 << 20;

/// What an open file is.
#[derive(Debug, Clone, Copy)]
pub struct Opened {
    /// Which file.
    pub id: FileId,
    /// Whether it has blocks, and no device stands behind it.
    pub is_regular: bool,
    /// Bytes of it.
    pub len: u64,
    /// O_RDONLY, O_WRONLY or O_RDWR.
    access: libc::c_int,
}

impl Opened {
    /// Looks at a descriptor of the calling thread's table.
    ///
    /// # Errors
    /// EBADF: it is none, or permits neither loads nor stores.
    pub fn look(fd: RawFd) -> io::Result<Self> {
        let stat = stat(fd)?;
        // SAFETY: integers only.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        match flags {
            ..0 => return Err(io::Error::last_os_error()),
            _ if flags & libc::O_PATH != 0 => return Err(io::Error::from(Errno::BADF)),
            _ => {}
        }
        let is_regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
        Ok(Self { id: id_of(&stat), is_regular, len: stat.st_size as u64, access: flags & libc::O_ACCMODE })
    }

    /// Whether it is open for loads and stores.
    pub fn is_for_both(&self) -> bool {
        self.access == libc::O_RDWR
    }

    /// Whether it is open for loads.
    pub fn is_for_loads(&self) -> bool {
        self.access != libc::O_WRONLY
    }
}

/// What fstat(2) says of a descriptor of the calling thread's table.
fn stat(fd: RawFd) -> io::Result<libc::stat> {
    // SAFETY: the kernel writes one `stat`; all zero is one.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &raw mut stat) == 0 { Ok(stat) } else { Err(io::Error::last_os_error()) }
    }
}

fn id_of(stat: &libc::stat) -> FileId {
    FileId { device: stat.st_dev, inode: stat.st_ino }
}

/// Makes an open file `len` bytes long. If the file is managed, the manager is told before and after: what
/// was stored beyond a new end must not be written back.
///
/// # Errors
/// The kernel's.
pub fn resize<C: Caller>(caller: C, fd: RawFd, len: u64) -> Result<(), C::Error> {
    let failed =
        |error: io::Error| caller.error(Failure::of_io(&error, "cannot change the size of the file"));
    let id = id_of(&stat(fd).map_err(failed)?);
    let size = libc::off_t::try_from(len).map_err(|_| failed(io::Error::from_raw_os_error(libc::EFBIG)))?;
    // SAFETY: integers only.
    let cut = move |fd: RawFd| match unsafe { libc::ftruncate(fd, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    let Some(house) = house::started().filter(|_| !is_child()) else {
        return cut(fd).map_err(failed);
    };
    // SAFETY: a system call without arguments.
    let tid = unsafe { libc::gettid() } as u32;
    let resized = house.ask(caller, move |house| {
        let origin = own(tid, fd, id)?;
        let fd = origin.as_fd().as_raw_fd();
        let Some(object) = house.manager.find(id) else { return cut(fd) };
        let ticket = house.manager.write_begin(&object, len..u64::MAX);
        let resized = cut(fd);
        // A call that failed may have changed the size all the same.
        let changed = if resized.is_ok() { len..u64::MAX } else { 0..0 };
        house.manager.resized(&object, changed);
        house.manager.write_end(ticket, 0..0);
        resized
    })?;
    resized.map_err(failed)
}

/// The program's own descriptor, in the worker's table.
fn own(tid: u32, fd: RawFd, id: FileId) -> io::Result<Origin> {
    let origin = Origin::take_or_open(tid, fd, 0)?;
    // Another thread may have closed the descriptor, and opened another file under its number.
    if id_of(&stat(origin.as_fd().as_raw_fd())?) != id {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    Ok(origin)
}

/// Reads at most [`CHUNK`] bytes from `offset` on of an open file. Less than `len`, and less than that: the
/// file ends there.
///
/// # Errors
/// The kernel's, and those of writing back what was stored.
pub fn read<C: Caller>(
    caller: C,
    house: &'static House,
    fd: RawFd,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>, C::Error> {
    let failed = |error: io::Error| caller.error(Failure::of_io(&error, "cannot read the file"));
    let id = id_of(&stat(fd).map_err(failed)?);
    let (at, len) = place(offset, len).map_err(failed)?;
    // SAFETY: a system call without arguments.
    let tid = unsafe { libc::gettid() } as u32;
    let read = house.ask(caller, move |house| {
        let origin = own(tid, fd, id)?;
        if let Some(object) = house.manager.find(id) {
            house.manager.write_back(&object, offset..offset + len as u64)?;
        }
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            let to = &mut bytes[done..];
            let (fd, at) = (origin.as_fd().as_raw_fd(), at + done as libc::off_t);
            // SAFETY: the buffer has room for as many bytes as are asked for.
            match unsafe { libc::pread(fd, to.as_mut_ptr().cast(), to.len(), at) } {
                0 => break,
                n if n > 0 => done += n as usize,
                _ => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    })?;
    read.map_err(failed)
}

/// Writes bytes, at most [`CHUNK`] of them, from `offset` on to an open file. Returns how many were written:
/// fewer only if a later part failed, or the file takes no more.
///
/// # Errors
/// The kernel's, if nothing was written.
pub fn write<C: Caller>(
    caller: C,
    house: &'static House,
    fd: RawFd,
    offset: u64,
    bytes: Vec<u8>,
) -> Result<usize, C::Error> {
    let failed = |error: io::Error| caller.error(Failure::of_io(&error, "cannot write the file"));
    let id = id_of(&stat(fd).map_err(failed)?);
    let (at, len) = place(offset, bytes.len()).map_err(failed)?;
    // SAFETY: a system call without arguments.
    let tid = unsafe { libc::gettid() } as u32;
    let written = house.ask(caller, move |house| {
        let origin = own(tid, fd, id)?;
        let object = house.manager.find(id);
        let ticket =
            object.as_ref().map(|object| house.manager.write_begin(object, offset..offset + len as u64));
        let written = write_all(origin.as_fd().as_raw_fd(), at, &bytes[..len]);
        if let Some(ticket) = ticket {
            let done = *written.as_ref().unwrap_or(&0) as u64;
            house.manager.write_end(ticket, if done == 0 { 0..0 } else { offset..offset + done });
        }
        written
    })?;
    written.map_err(failed)
}

fn write_all(fd: RawFd, at: libc::off_t, bytes: &[u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        let from = &bytes[done..];
        // SAFETY: the buffer has as many bytes as are written.
        match unsafe { libc::pwrite(fd, from.as_ptr().cast(), from.len(), at + done as libc::off_t) } {
            0 => break,
            n if n > 0 => done += n as usize,
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error if done == 0 => return Err(error),
                _ => break,
            },
        }
    }
    Ok(done)
}

/// Offset and length of one transfer, as the kernel takes them.
fn place(offset: u64, len: usize) -> io::Result<(libc::off_t, usize)> {
    let len = len.min(CHUNK);
    let end = offset.checked_add(len as u64).filter(|end| *end <= i64::MAX as u64);
    match end {
        Some(_) => Ok((offset as libc::off_t, len)),
        None => Err(io::Error::from(Errno::INVAL)),
    }
}

/// Writes all that was stored to an open file, and waits until it is durable.
///
/// # Errors
/// Those of the write-back, and the kernel's.
pub fn sync<C: Caller>(caller: C, house: &'static House, fd: RawFd) -> Result<(), C::Error> {
    let failed = |error: io::Error| caller.error(Failure::of_io(&error, "cannot write the file back"));
    let id = id_of(&stat(fd).map_err(failed)?);
    // SAFETY: a system call without arguments.
    let tid = unsafe { libc::gettid() } as u32;
    let synced = house.ask(caller, move |house| {
        let origin = own(tid, fd, id)?;
        if let Some(object) = house.manager.find(id) {
            house.manager.write_back(&object, 0..u64::MAX)?;
        }
        // SAFETY: integers only.
        match unsafe { libc::fsync(origin.as_fd().as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    })?;
    synced.map_err(failed)
}
