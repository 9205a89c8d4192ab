//! Mappings.

use crate::border::{invalid, put, sized};
use crate::files::{ER_READ, ER_TRUST, ER_WRITE, er_file, length};
use crate::groups::er_group;
use crate::manager::er_manager;
use crate::table::{Call, File, with_manager};
use elbowroom::{Advice, Errno, Place};
use elbowroom_house::caller::Thread;
use elbowroom_house::failure::Failure;
use elbowroom_house::held::{FilePart, Held, Mode, Wishes};
use elbowroom_house::house::House;
use elbowroom_machine::PAGE_SIZE;
use std::ffi::{c_int, c_void};

/// For er_map: stores stay in the mapping. Anonymous memory is always so.
pub const ER_PRIVATE: u32 = 1;
/// For er_map: if the manager cannot manage the file (another process uses it, say), the kernel maps it,
/// beside the budget. Without it that is the error EOPNOTSUPP. er_is_managed tells.
pub const ER_OR_KERNEL: u32 = 2;
/// For er_map: the mapping begins at er_map_options.address. The library takes whole blocks of 2 MiB around
/// it, in which nothing else may be mapped (EEXIST).
pub const ER_FIXED: u32 = 4;

/// For er_advise: no advice; streams of accesses are found, and read ahead.
pub const ER_NORMAL: u32 = 0;
/// For er_advise: single pages are read.
pub const ER_RANDOM: u32 = 1;
/// For er_advise: as much as possible is read at once.
pub const ER_SEQUENTIAL: u32 = 2;
/// For er_advise: the bytes are read now, without a wait for them.
pub const ER_WILLNEED: u32 = 3;
/// For er_advise: of anonymous memory and private copies the bytes are forgotten: they are zeros, or those of
/// the file, when they are read again. Pages of files are only forgotten by this mapping.
pub const ER_DISCARD: u32 = 4;
/// For er_advise: the bytes will not be needed soon: they are the first that go.
pub const ER_COLD: u32 = 5;
/// For er_advise: the bytes leave memory now: to swap, or their file.
pub const ER_PAGEOUT: u32 = 6;
/// For er_advise: the bytes become zeros in the file, too, which frees their blocks. For shared mappings with
/// ER_WRITE.
pub const ER_PUNCH: u32 = 7;

/// What er_map maps. Initialize it with er_map_options_init.
#[repr(C)]
pub struct er_map_options {
    /// Bytes of this struct; er_map_options_init sets it.
    pub size: usize,
    /// The file. NULL: anonymous memory, of zeros.
    pub file: *mut er_file,
    /// Where in the file, in bytes; a multiple of the page size, 4096.
    pub offset: u64,
    /// Bytes. 0, with a file: to its end.
    pub length: usize,
    /// ER_READ, or ER_READ | ER_WRITE, which is the default for anonymous memory.
    pub access: u32,
    /// ER_PRIVATE, ER_OR_KERNEL, ER_FIXED.
    pub flags: u32,
    /// The group that pays for the memory. NULL: the manager's budget alone.
    pub group: *mut er_group,
    /// With ER_FIXED: where it begins, a multiple of the page size.
    pub address: *mut c_void,
}

fn defaults() -> er_map_options {
    er_map_options {
        size: size_of::<er_map_options>(),
        file: std::ptr::null_mut(),
        offset: 0,
        length: 0,
        access: 0,
        flags: 0,
        group: std::ptr::null_mut(),
        address: std::ptr::null_mut(),
    }
}

/// Sets all fields to their defaults. `size`: sizeof(er_map_options).
///
/// # Safety
/// `options` has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_map_options_init(options: *mut er_map_options, size: usize) {
    let mut value = defaults();
    value.size = size;
    // SAFETY: the caller's promise. Too small a size is found by er_map.
    let _ = unsafe { crate::border::fill(options, size, &value, "er_map_options") };
}

/// Maps a file, or anonymous memory. The bytes are reached by the pointer that is stored at `address`, by any
/// thread. They come in when they are touched, within the budget.
///
/// A file is not read beyond its end: such an access is SIGBUS, as is one to bytes that cannot be read.
/// Memory that is promised here is there: what a group cannot have in memory fits into swap, beside what the
/// other groups need there.
///
/// Errors: ENOMEM: memory and swap of the group, or of all, do not have so much. EACCES: the file is not open
/// for that. EOPNOTSUPP: the file cannot be managed, for the reason that er_error gives (see ER_TRUST and
/// ER_OR_KERNEL). ENODEV: this is no regular file. EEXIST: ER_FIXED, and something is there. EINVAL.
///
/// # Safety
/// The pointers are NULL, or as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_map(
    manager: *mut er_manager,
    options: *const er_map_options,
    address: *mut *mut c_void,
) -> c_int {
    with_manager(manager as usize, |call| {
        // SAFETY: the caller's promise.
        let options = unsafe {
            put(address, std::ptr::null_mut(), "address")?;
            let least = std::mem::offset_of!(er_map_options, address) + size_of::<*mut c_void>();
            sized(options, defaults(), least, "er_map_options")?
        };
        let held = map(call, &options)?;
        let start = held.start();
        call.enter_mapping(held);
        // SAFETY: as above.
        unsafe { put(address, start as *mut c_void, "address") }
    })
}

fn map(call: &Call, options: &er_map_options) -> Result<Held, Failure> {
    let er_map_options { file, offset, length: asked, access, flags, group, address, .. } = *options;
    if access & !(ER_READ | ER_WRITE) != 0 || access == ER_WRITE {
        return Err(invalid(format!("access is {access:#x}: it is ER_READ or ER_READ | ER_WRITE")));
    }
    if flags & !(ER_PRIVATE | ER_OR_KERNEL | ER_FIXED) != 0 {
        return Err(invalid(format!(
            "flags are {flags:#x}: only ER_PRIVATE, ER_OR_KERNEL and ER_FIXED are known"
        )));
    }
    let place = match (flags & ER_FIXED != 0, address as usize) {
        (true, 0) => return Err(invalid("ER_FIXED needs an address")),
        (true, at) => Place::FixedNoReplace(at),
        (false, 0) => Place::Anywhere,
        (false, _) => return Err(invalid("an address needs ER_FIXED")),
    };
    let group = if group.is_null() { None } else { Some(Call::of_group(group as usize)?) };
    let group = group.as_ref().map(|(_, group)| group);
    if file.is_null() {
        if offset != 0 || access == ER_READ || asked == 0 {
            let text = "anonymous memory has a length, no offset, and is stored to: it has no file";
            return Err(invalid(text));
        }
        return Held::of_memory(Thread, call.house, asked, place, Wishes::default(), group);
    }
    let (_file_call, file) = Call::of_file(file as usize)?;
    let mode = match (access & ER_WRITE != 0, flags & ER_PRIVATE != 0) {
        (true, true) => Mode::Copy,
        (true, false) => Mode::Write,
        (false, _) => Mode::Read,
    };
    map_file(call.house, &file, mode, (offset, asked), place, flags & ER_OR_KERNEL != 0, group)
}

fn map_file(
    house: &'static House,
    file: &File,
    mode: Mode,
    (offset, len): (u64, usize),
    place: Place,
    or_kernel: bool,
    group: Option<&std::sync::Arc<elbowroom_house::budget::Budget>>,
) -> Result<Held, Failure> {
    if !offset.is_multiple_of(PAGE_SIZE as u64) {
        return Err(invalid(format!("offset is {offset}: it must be a multiple of {PAGE_SIZE}")));
    }
    let len = match len {
        0 => length(file)?.saturating_sub(offset) as usize,
        len => len,
    };
    if len == 0 {
        return Err(invalid("the file has no bytes there, and nothing cannot be mapped"));
    }
    let trust = file.flags & ER_TRUST != 0;
    let part = FilePart { or_kernel, place, ..FilePart::new(file.fd()?, offset, len, mode, trust) };
    Ok(Held::of_file(Thread, house, part, group)?.0)
}

/// Unmaps a mapping, all of it. What was stored to a file is written before this returns; whether that
/// worked, er_sync tells before. No thread may use its bytes any more.
///
/// `address`: where it begins, as er_map gave it.
///
/// Errors: EINVAL: no mapping begins there.
#[unsafe(no_mangle)]
pub extern "C" fn er_unmap(manager: *mut er_manager, address: *mut c_void) -> c_int {
    with_manager(manager as usize, |call| {
        drop(call.take_mapping(address as usize)?);
        Ok(())
    })
}

/// Writes what was stored to these bytes of a shared mapping to the file, and waits until it is durable. Does
/// nothing for anonymous memory.
///
/// `address`, `length`: inside of one mapping; whole pages are written.
///
/// Errors: the first error of a write-back since the last call: EIO, ENOSPC. EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn er_sync(manager: *mut er_manager, address: *mut c_void, length: usize) -> c_int {
    with_manager(manager as usize, |call| {
        let at = address as usize;
        let held = call.mapping(at, length)?;
        let from = at - held.start();
        held.flush(Thread, from, length)
    })
}

/// How the range of a call is cut to pages.
enum Pages {
    /// All pages with a byte of it.
    Touched,
    /// The pages that are all in it: no byte beside the range may change.
    Whole,
}

/// [`Held::verb`] for a range of a mapping.
fn on_range(
    call: &Call,
    at: usize,
    len: usize,
    pages: Pages,
    ours: impl FnOnce(&'static House, usize, usize) -> Result<(), Errno> + Send + 'static,
    kernels: impl FnOnce(usize, usize) -> c_int + Send,
    what: &str,
) -> Result<(), Failure> {
    let held = call.mapping(at, len)?;
    let (first, end) = match pages {
        Pages::Touched => (at / PAGE_SIZE * PAGE_SIZE, (at + len).next_multiple_of(PAGE_SIZE)),
        Pages::Whole => {
            // The last page of a mapping ends with it.
            let is_last = at + len == held.start() + held.len();
            let end = if is_last { (at + len).next_multiple_of(PAGE_SIZE) } else { at + len };
            (at.next_multiple_of(PAGE_SIZE), end / PAGE_SIZE * PAGE_SIZE)
        }
    };
    let len = end.saturating_sub(first);
    held.verb(Thread, (first - held.start(), len), ours, kernels, what)
}

/// Gives advice about a range of a mapping.
///
/// `address`, `length`: inside of one mapping. `advice`: ER_NORMAL, ER_RANDOM, ER_SEQUENTIAL, ER_WILLNEED,
/// ER_DISCARD, ER_COLD, ER_PAGEOUT, ER_PUNCH. What forgets bytes (ER_DISCARD, ER_PUNCH) forgets whole pages,
/// none of which has a byte beside the range.
///
/// Errors: EINVAL: the advice is none for this mapping. EACCES: ER_PUNCH without ER_WRITE. EBUSY: a device
/// uses the pages.
#[unsafe(no_mangle)]
pub extern "C" fn er_advise(
    manager: *mut er_manager,
    address: *mut c_void,
    length: usize,
    advice: u32,
) -> c_int {
    with_manager(manager as usize, |call| {
        let (own, kernels) = match advice {
            ER_NORMAL => (Advice::Normal, libc::MADV_NORMAL),
            ER_RANDOM => (Advice::Random, libc::MADV_RANDOM),
            ER_SEQUENTIAL => (Advice::Sequential, libc::MADV_SEQUENTIAL),
            ER_WILLNEED => (Advice::WillNeed, libc::MADV_WILLNEED),
            ER_DISCARD => (Advice::DontNeed, libc::MADV_DONTNEED),
            ER_COLD => (Advice::Cold, libc::MADV_COLD),
            ER_PAGEOUT => (Advice::PageOut, libc::MADV_PAGEOUT),
            ER_PUNCH => (Advice::Remove, libc::MADV_REMOVE),
            other => return Err(invalid(format!("advice {other} is not known"))),
        };
        let forgets = matches!(advice, ER_DISCARD | ER_PUNCH);
        let pages = if forgets { Pages::Whole } else { Pages::Touched };
        on_range(
            call,
            address as usize,
            length,
            pages,
            move |house, at, len| house.space.advise(at, len, own),
            // SAFETY: the range is in a mapping of the program's, which has asked for it.
            |at, len| unsafe { libc::madvise(at as *mut _, len, kernels) },
            "the advice cannot be followed",
        )
    })
}

/// Brings the bytes of a range in now, and keeps advice from taking them out until er_unpin. The budget comes
/// first: where it is short of memory, pages go out all the same, and come in again when they are touched.
///
/// `address`, `length`: inside of one mapping.
///
/// Errors: ENOMEM: they do not all fit, or cannot be read. EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn er_pin(manager: *mut er_manager, address: *mut c_void, length: usize) -> c_int {
    with_manager(manager as usize, |call| pin(call, address as usize, length))
}

/// [`er_pin`].
pub fn pin(call: &Call, at: usize, length: usize) -> Result<(), Failure> {
    on_range(
        call,
        at,
        length,
        Pages::Touched,
        |house, at, len| house.space.lock(at, len, false),
        // SAFETY: locking changes no bytes.
        |at, len| unsafe { libc::mlock(at as *const _, len) },
        "the pages cannot all be brought in: give the budget more memory, or pin less",
    )
}

/// Undoes er_pin.
///
/// Errors: EINVAL.
#[unsafe(no_mangle)]
pub extern "C" fn er_unpin(manager: *mut er_manager, address: *mut c_void, length: usize) -> c_int {
    with_manager(manager as usize, |call| {
        on_range(
            call,
            address as usize,
            length,
            Pages::Touched,
            |house, at, len| house.space.unlock(at, len),
            // SAFETY: unlocking changes no bytes.
            |at, len| unsafe { libc::munlock(at as *const _, len) },
            "the pages cannot be unpinned",
        )
    })
}

/// Whether the manager manages a mapping now, within the budget: 1, or 0 if the kernel does. A file goes to
/// the kernel when another process comes to use it, unless it was opened with ER_TRUST, and at a fork.
///
/// Errors: EINVAL: the address is in no mapping.
///
/// # Safety
/// `managed` is NULL, or has room for an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn er_is_managed(
    manager: *mut er_manager,
    address: *mut c_void,
    managed: *mut c_int,
) -> c_int {
    with_manager(manager as usize, |call| {
        let held = call.mapping(address as usize, 1)?;
        // SAFETY: the caller's promise.
        unsafe { put(managed, c_int::from(held.is_managed()), "managed") }
    })
}
