//! Files.

use crate::border::{call, invalid, path, put};
use crate::manager::er_manager;
use crate::table::{Call, File, with_manager};
use elbowroom_house::caller::Thread;
use elbowroom_house::failure::Failure;
use elbowroom_house::files::{self, Opened};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;

/// An open file.
pub struct er_file {
    _opaque: [u8; 0],
}

/// For er_open and er_map: the bytes can be read.
pub const ER_READ: u32 = 1;
/// For er_open and er_map: the bytes can be stored to.
pub const ER_WRITE: u32 = 2;
/// For er_open: the file is made, with the permissions 0666 less the umask, if it is not there.
pub const ER_CREATE: u32 = 4;
/// For er_open: the file is managed also if other processes may change it meanwhile. What they write is seen
/// late, and of two stores to one page one may be lost. Without it, a file is managed while no other process
/// uses it, which takes CAP_SYS_ADMIN to know.
pub const ER_TRUST: u32 = 8;

const KNOWN: u32 = ER_READ | ER_WRITE | ER_CREATE | ER_TRUST;

fn io(what: &str) -> impl Fn(std::io::Error) -> Failure + '_ {
    move |error| Failure::of_io(&error, what)
}

fn check(flags: u32) -> Result<(), Failure> {
    if flags & !KNOWN != 0 || flags & ER_READ == 0 {
        let text =
            format!("flags are {flags:#x}: they need ER_READ, and may have ER_WRITE, ER_CREATE, ER_TRUST");
        return Err(invalid(text));
    }
    Ok(())
}

/// Opens a file.
///
/// `flags`: ER_READ, with ER_WRITE, ER_CREATE and ER_TRUST if need be. `file`: where the handle goes. The
/// program gets a descriptor more.
///
/// Errors: those of open(2). EINVAL.
///
/// # Safety
/// The pointers are NULL, or as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_open(
    manager: *mut er_manager,
    name: *const c_char,
    flags: u32,
    file: *mut *mut er_file,
) -> c_int {
    with_manager(manager as usize, |call| {
        // SAFETY: the caller's promise.
        let name = unsafe {
            put(file, std::ptr::null_mut(), "file")?;
            path(name, "name")?
        };
        check(flags)?;
        let access = if flags & ER_WRITE != 0 { libc::O_RDWR } else { libc::O_RDONLY };
        let create = if flags & ER_CREATE != 0 { libc::O_CREAT } else { 0 };
        let text = CString::new(name.as_os_str().as_bytes()).map_err(|_| invalid("name has a NUL"))?;
        let fd = open(&text, access | create);
        // SAFETY: the caller's promise.
        unsafe { enter(call, fd, flags, file, &format!("cannot open {}", name.display())) }
    })
}

/// Opens a file without a wait for what a pipe, a terminal or a device may never do.
fn open(path: &CStr, flags: c_int) -> RawFd {
    let flags = flags | libc::O_CLOEXEC | libc::O_NOCTTY;
    let mut more = libc::O_NONBLOCK;
    loop {
        // SAFETY: the text ends.
        let fd = unsafe { libc::open(path.as_ptr(), flags | more, 0o666) };
        match std::io::Error::last_os_error().raw_os_error() {
            _ if fd >= 0 => return fd,
            Some(libc::EINTR) => {}
            // Another process has a lease, which only files have. The kernel ends it after a while.
            Some(libc::EWOULDBLOCK) if more != 0 => more = 0,
            _ => return fd,
        }
    }
}

/// Makes a file of a descriptor that the program has open, which stays the program's. See er_open.
///
/// `flags`: ER_READ, with ER_WRITE and ER_TRUST if need be.
///
/// Errors: EBADF. EINVAL: it has O_APPEND, with which the kernel ignores the offset of a write.
///
/// # Safety
/// The pointers are NULL, or as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_open_fd(
    manager: *mut er_manager,
    fd: c_int,
    flags: u32,
    file: *mut *mut er_file,
) -> c_int {
    with_manager(manager as usize, |call| {
        // SAFETY: the caller's promise.
        unsafe { put(file, std::ptr::null_mut(), "file")? };
        check(flags)?;
        // SAFETY: integers only.
        let status = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        if status >= 0 && status & libc::O_APPEND != 0 {
            let text = format!("descriptor {fd} has O_APPEND: er_file_write could only write at the end");
            return Err(invalid(text));
        }
        // SAFETY: integers only.
        let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        // SAFETY: the caller's promise.
        unsafe { enter(call, own, flags, file, &format!("cannot use descriptor {fd}")) }
    })
}

/// # Safety
/// `file` is not NULL, and has room for a handle.
unsafe fn enter(
    call: &Call,
    fd: RawFd,
    flags: u32,
    file: *mut *mut er_file,
    what: &str,
) -> Result<(), Failure> {
    if fd < 0 {
        return Err(io(what)(std::io::Error::last_os_error()));
    }
    let opened = Opened::look(fd).map_err(|error| {
        // SAFETY: the library has just opened it.
        unsafe { libc::close(fd) };
        io(what)(error)
    });
    let id = opened?.id;
    let handle = call.enter_file(File { fd, id, flags });
    // SAFETY: the caller's promise.
    unsafe { put(file, handle as *mut er_file, "file") }
}

/// Closes a file. Its mappings stay.
///
/// Errors: EINVAL: this is no open file.
#[unsafe(no_mangle)]
pub extern "C" fn er_close(file: *mut er_file) -> c_int {
    call(|| {
        let (call, file_of) = Call::of_file(file as usize)?;
        drop((call.take_file(file as usize), file_of));
        Ok(())
    })
}

/// The size of a file, in bytes.
///
/// Errors: EBADF: the program has closed its descriptor. EINVAL.
///
/// # Safety
/// `size` is NULL, or has room for a uint64_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_file_size(file: *mut er_file, size: *mut u64) -> c_int {
    call(|| {
        let (_call, file) = Call::of_file(file as usize)?;
        let len = length(&file)?;
        // SAFETY: the caller's promise.
        unsafe { put(size, len, "size") }
    })
}

/// The size of a file.
pub fn length(file: &File) -> Result<u64, Failure> {
    let opened = Opened::look(file.fd()?).map_err(io("cannot find the size of the file"))?;
    Ok(opened.len)
}

/// Makes a file `size` bytes long. Bytes that are new are zeros. An access to a mapping beyond the end of its
/// file is SIGBUS.
///
/// Errors: those of ftruncate(2). EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn er_file_resize(file: *mut er_file, size: u64) -> c_int {
    call(|| {
        let (_call, file) = Call::of_file(file as usize)?;
        files::resize(Thread, file.fd()?, size)
    })
}

/// Reads bytes, also those that were just stored through a mapping. An I/O error is an error here, where it
/// is SIGBUS in a mapping.
///
/// `offset`, `length`: in bytes. `done`: how many bytes were read: less than `length` only where the file
/// ends, or an error came; may be NULL.
///
/// Errors: those of pread(2); EIO. EINVAL.
///
/// # Safety
/// `to` has room for `length` bytes. `done` is NULL, or has room for a size_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_file_read(
    file: *mut er_file,
    offset: u64,
    to: *mut c_void,
    length: usize,
    done: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let result = unsafe { done.as_mut() };
        transfer(file, to.is_null(), length, result, |call, fd, count| {
            let bytes = files::read(Thread, call.house, fd, at(offset, count), length - count)?;
            // SAFETY: the caller's promise. Not more bytes were read than were asked for.
            unsafe { to.cast::<u8>().add(count).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            Ok(bytes.len())
        })
    })
}

fn at(offset: u64, count: usize) -> u64 {
    offset.saturating_add(count as u64)
}

/// Moves `length` bytes by several steps, each of which is told how many bytes were moved before. A step that
/// moves none is the last one.
fn transfer(
    file: *mut er_file,
    is_null: bool,
    length: usize,
    done: Option<&mut usize>,
    step: impl Fn(&Call, RawFd, usize) -> Result<usize, Failure>,
) -> Result<(), Failure> {
    let mut ignored = 0;
    let count = done.unwrap_or(&mut ignored);
    *count = 0;
    let (call, file) = Call::of_file(file as usize)?;
    if is_null && length > 0 {
        return Err(invalid("the pointer to the bytes is NULL"));
    }
    while *count < length {
        match step(&call, file.fd()?, *count)? {
            0 => break,
            moved => *count += moved,
        }
    }
    Ok(())
}

/// Writes bytes. Mappings of the file in this process have them when the call returns. Durable after
/// er_file_sync only.
///
/// `offset`, `length`: in bytes. `done`: how many bytes were written, also if an error came; may be NULL.
///
/// Errors: those of pwrite(2): ENOSPC, EIO, EBADF without ER_WRITE. EINVAL.
///
/// # Safety
/// `from` has `length` bytes. `done` is NULL, or has room for a size_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_file_write(
    file: *mut er_file,
    offset: u64,
    from: *const c_void,
    length: usize,
    done: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise.
        let result = unsafe { done.as_mut() };
        transfer(file, from.is_null(), length, result, |call, fd, count| {
            let len = (length - count).min(files::CHUNK);
            // SAFETY: the caller's promise.
            let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(count), len) };
            match files::write(Thread, call.house, fd, at(offset, count), bytes.to_vec())? {
                0 => Err(io("the file takes no more bytes")(std::io::Error::from_raw_os_error(libc::EIO))),
                written => Ok(written),
            }
        })
    })
}

/// Writes all that was stored to the file, and waits until it is durable.
///
/// Errors: the first error of a write-back since the last call: EIO, ENOSPC. EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn er_file_sync(file: *mut er_file) -> c_int {
    call(|| {
        let (call, file) = Call::of_file(file as usize)?;
        files::sync(Thread, call.house, file.fd()?)
    })
}
