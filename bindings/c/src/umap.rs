//! The calls of umap (`include/umap/umap.h`), a library that pages files by userfaultfd.
//!
//! umap has one buffer in a process, of `UMAP_BUFSIZE` pages of `UMAP_PAGESIZE` bytes. Here that is the
//! budget of the manager, which the first mapping starts, unless the program has started one. What is stored
//! reaches the file, although the flag is called UMAP_PRIVATE; other processes' writes to the file are not
//! seen, as with umap. A region inside of another one (UMAP_FIXED) replaces that part of it.

use crate::border::{call, invalid, set_errno};
use crate::manager;
use crate::mappings::pin;
use crate::table::Call;
use elbowroom::{Advice, Config, Place};
use elbowroom_house::caller::Thread;
use elbowroom_house::failure::{Failure, Kind};
use elbowroom_house::held::{FilePart, Held, Mode};
use elbowroom_house::house::{self, Settings};
use elbowroom_machine::PAGE_SIZE;
use std::ffi::{c_char, c_int, c_long, c_void};
use std::str::FromStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A page to be read ahead: an address in it.
#[repr(C)]
pub struct umap_prefetch_item {
    page_base_addr: *mut c_void,
}

/// What umap's variables say.
struct Variables {
    page_size: u64,
    pages: u64,
}

fn variable<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.trim().parse().ok()
}

fn variables() -> &'static Variables {
    // No lock, which another thread could hold at a fork.
    static VARIABLES: AtomicPtr<Variables> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: what is stored was leaked, and nothing changes it.
    if let Some(variables) = unsafe { VARIABLES.load(Ordering::Acquire).as_ref() } {
        return variables;
    }
    let read = Box::into_raw(Box::new(Variables::read()));
    let null = std::ptr::null_mut();
    // SAFETY: as above; what another thread has stored first is used, and ours is nobody else's.
    unsafe {
        match VARIABLES.compare_exchange(null, read, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => &*read,
            Err(first) => {
                drop(Box::from_raw(read));
                &*first
            }
        }
    }
}

impl Variables {
    fn read() -> Self {
        let page = PAGE_SIZE as u64;
        let is_size = |size: &u64| *size > 0 && size.is_multiple_of(page) && *size <= 1 << 40;
        let page_size = variable("UMAP_PAGESIZE").filter(is_size).unwrap_or(page);
        let pages = variable("UMAP_BUFSIZE").filter(|pages| *pages > 0);
        Self { page_size, pages: pages.unwrap_or_else(|| house::default_memory() / page_size) }
    }
}

/// The manager that runs, or one with umap's budget.
fn begin() -> Result<Call, Failure> {
    if let Some(call) = Call::of_any() {
        return Ok(call);
    }
    let Variables { page_size, pages } = *variables();
    let memory = pages.saturating_mul(page_size).max(Config::MIN_MEMORY);
    let started = manager::start(Settings { memory: Some(memory), swap: Some(0), ..Settings::default() });
    match (started, Call::of_any()) {
        // Another thread may have started it before.
        (_, Some(call)) => Ok(call),
        (Err(failure), None) => Err(failure),
        (Ok(_), None) => Err(Failure::new(Kind::State, "the manager was stopped meanwhile".to_owned())),
    }
}

/// Runs a call of umap: 0, or -1 with `errno`.
fn run(f: impl FnOnce() -> Result<(), Failure>) -> c_int {
    match call(f) {
        0 => 0,
        errno => {
            set_errno(errno);
            -1
        }
    }
}

/// As mmap(2), of a file that is open for what `prot` says. `flags`: UMAP_PRIVATE, perhaps with UMAP_FIXED.
#[unsafe(no_mangle)]
pub extern "C" fn umap(
    address: *mut c_void,
    length: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let mut start = libc::MAP_FAILED;
    run(|| {
        let held = map(address as usize, length, (prot, flags), fd, offset)?;
        start = held as *mut c_void;
        Ok(())
    });
    start
}

/// `umap` with a store, of which only NULL is supported: the file is the store.
#[unsafe(no_mangle)]
pub extern "C" fn umap_ex(
    address: *mut c_void,
    length: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
    store: *mut c_void,
) -> *mut c_void {
    if !store.is_null() {
        run(|| {
            let text = "umap_ex: stores of the program's own are not supported, only files";
            Err(Failure { errno: libc::ENOTSUP, ..invalid(text) })
        });
        return libc::MAP_FAILED;
    }
    umap(address, length, prot, flags, fd, offset)
}

fn map(
    at: usize,
    len: usize,
    (prot, flags): (c_int, c_int),
    fd: c_int,
    offset: libc::off_t,
) -> Result<usize, Failure> {
    let page = variables().page_size as usize;
    if len == 0 || !len.is_multiple_of(page) {
        return Err(invalid(format!("umap: {len} bytes are not whole pages of UMAP_PAGESIZE ({page})")));
    }
    if !at.is_multiple_of(PAGE_SIZE) {
        return Err(invalid(format!("umap: the address {at:#x} is no multiple of {PAGE_SIZE}")));
    }
    if prot & !(libc::PROT_READ | libc::PROT_WRITE) != 0 || prot == 0 {
        return Err(invalid("umap: prot is PROT_READ, or PROT_READ | PROT_WRITE"));
    }
    if flags & libc::MAP_PRIVATE == 0 || flags & !(libc::MAP_PRIVATE | libc::MAP_FIXED) != 0 {
        return Err(invalid("umap: flags are UMAP_PRIVATE, perhaps with UMAP_FIXED"));
    }
    let offset = u64::try_from(offset).ok().filter(|offset| offset.is_multiple_of(PAGE_SIZE as u64));
    let offset = offset.ok_or_else(|| invalid(format!("umap: the offset is no multiple of {PAGE_SIZE}")))?;
    let is_fixed = flags & libc::MAP_FIXED != 0;
    if is_fixed && at == 0 {
        return Err(invalid("umap: UMAP_FIXED needs an address"));
    }
    let mode = if prot & libc::PROT_WRITE != 0 { Mode::Write } else { Mode::Read };
    let call = begin()?;
    let map = |place: Place| {
        let part = FilePart { or_kernel: false, place, ..FilePart::new(fd, offset, len, mode, true) };
        Held::of_file(Thread, call.house, part, None).map(|(held, _)| held)
    };
    let held = match is_fixed {
        true => call.replacing(at..at.saturating_add(len), map)?,
        false => map(Place::Anywhere)?,
    };
    let start = held.start();
    call.enter_mapping(held);
    Ok(start)
}

/// Unmaps the whole region that begins at an address; what was stored is in the file then. `length` is not
/// used, as in umap.
#[unsafe(no_mangle)]
pub extern "C" fn uunmap(address: *mut c_void, _length: usize) -> c_int {
    run(|| {
        let call = running()?;
        drop(call.take_mapping(address as usize)?);
        Ok(())
    })
}

fn running() -> Result<Call, Failure> {
    Call::of_any().ok_or_else(|| invalid("nothing was mapped by umap"))
}

/// Writes all that was stored through all regions to their files. -1: the first error is in `errno`.
#[unsafe(no_mangle)]
pub extern "C" fn umap_flush() -> c_int {
    run(|| {
        let Some(call) = Call::of_any() else { return Ok(()) };
        let flushed = call.house.ask(Thread, |house| house.manager.flush_all())?;
        flushed.map_err(|errno| Failure::of(errno, "cannot write a file back"))
    })
}

/// Begins to read pages of UMAP_PAGESIZE bytes, each at an address in it. Errors are ignored, as in umap.
///
/// # Safety
/// `pages` has `n` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn umap_prefetch(n: c_int, pages: *const umap_prefetch_item) {
    run(|| {
        if n <= 0 || pages.is_null() {
            return Ok(());
        }
        let page = variables().page_size as usize;
        // SAFETY: the caller's promise.
        let items = unsafe { std::slice::from_raw_parts(pages, n as usize) };
        let call = running()?;
        let page_of = |item: &umap_prefetch_item| {
            let at = item.page_base_addr as usize;
            let held = call.mapping(at, 1).ok()?;
            // A region begins at any page of the machine, and its pages are counted from there.
            let from = (at - held.start()) / page * page;
            Some((held.start() + from, page.min(held.len() - from)))
        };
        let pages: Vec<_> = items.iter().filter_map(page_of).collect();
        call.house.ask(Thread, move |house| {
            for (at, len) in pages {
                let _ = house.space.advise(at, len, Advice::WillNeed);
            }
        })
    });
}

/// Reads a range now. Pages leave memory all the same where the budget is short (`er_pin`).
#[unsafe(no_mangle)]
pub extern "C" fn umap_fetch_and_pin(address: *mut c_char, size: u64) {
    run(|| pin(&running()?, address as usize, usize::try_from(size).unwrap_or(usize::MAX)));
}

/// 1: regions can be stored to.
#[unsafe(no_mangle)]
pub extern "C" fn umap_has_write_support() -> c_int {
    1
}

/// The size of a page of the machine, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn umapcfg_get_system_page_size() -> c_long {
    PAGE_SIZE as c_long
}

/// UMAP_PAGESIZE, in bytes: the machine's page by default.
#[unsafe(no_mangle)]
pub extern "C" fn umapcfg_get_umap_page_size() -> u64 {
    variables().page_size
}

/// UMAP_BUFSIZE: how many such pages may be in memory.
#[unsafe(no_mangle)]
pub extern "C" fn umapcfg_get_max_pages_in_buffer() -> u64 {
    variables().pages
}

/// UMAP_MAX_FAULT_EVENTS, which has no effect here; 256 by default.
#[unsafe(no_mangle)]
pub extern "C" fn umapcfg_get_max_fault_events() -> u64 {
    variable("UMAP_MAX_FAULT_EVENTS").unwrap_or(256)
}

fn processors() -> u64 {
    std::thread::available_parallelism().map_or(1, |number| number.get() as u64)
}

/// UMAP_PAGE_FILLERS, which has no effect here; the number of processors by default.
#[unsafe(no_mangle)]
pub extern "C" fn umapcfg_get_num_fillers() -> u64 {
    variable("UMAP_PAGE_FILLERS").unwrap_or_else(processors)
}

/// UMAP_PAGE_EVICTORS, which has no effect here; the number of processors by default.
#[unsafe(no_mangle)]
pub extern "C" fn umapcfg_get_num_evictors() -> u64 {
    variable("UMAP_PAGE_EVICTORS").unwrap_or_else(processors)
}

/// UMAP_READ_AHEAD, which has no effect here: what is read ahead follows from the accesses. 0 by default.
#[unsafe(no_mangle)]
pub extern "C" fn umapcfg_get_read_ahead() -> u64 {
    variable("UMAP_READ_AHEAD").unwrap_or(0)
}

/// UMAP_EVICT_LOW_WATER_THRESHOLD, in percent, which has no effect here; 70 by default.
#[unsafe(no_mangle)]
pub extern "C" fn umapcfg_get_evict_low_water_threshold() -> c_int {
    variable("UMAP_EVICT_LOW_WATER_THRESHOLD").unwrap_or(70)
}

/// UMAP_EVICT_HIGH_WATER_THRESHOLD, in percent, which has no effect here; 90 by default.
#[unsafe(no_mangle)]
pub extern "C" fn umapcfg_get_evict_high_water_threshold() -> c_int {
    variable("UMAP_EVICT_HIGH_WATER_THRESHOLD").unwrap_or(90)
}
