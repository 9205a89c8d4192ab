//! mmap.
//!
//! Two rules hold everywhere (docs/decisions/0015-one-owner.md). A file is the manager's or the kernel's:
//! before the kernel maps one that is managed, all of it goes back to the kernel. And where a call concerns
//! addresses of both sides, all that it concerns is made the kernel's first, and the kernel then does the
//! call.
//!
//! A call has two steps: [`decide`] says who makes the mapping (by rules/map.rs, with the facts that it
//! needs), and then [`by_kernel`] or [`by_manager`] has it made.

use super::ranges::hand_back;
use super::request::{self, MAPPED_BY_KERNEL, NO_ADDRESSES, NOT_ALONE, OPEN_FAILED, Op};
use super::stdio;
use crate::base::config::Options;
use crate::base::reason::Reason;
use crate::base::reserve;
use crate::base::said;
use crate::base::state::{self, Process};
use crate::base::sys::{self, ADDRESS_END, PAGE};
use crate::rules::map::{self, FileFacts, First, Last, MapArgs, Surroundings};
use elbowroom::{FileId, Manager};
use elbowroom_machine::aside;
use libc::{c_int, c_long, c_void};
use std::sync::atomic::{Ordering, fence};

pub use super::request::Counted;

/// MAP_32BIT: the kernel chooses an address in the first 2 GiB. Only x86-64 has it.
const MAP_LOW: c_int = if cfg!(target_arch = "x86_64") { 0x40 } else { 0 };

/// The result of a call.
pub enum Mapped {
    /// The kernel's answer, or MAP_FAILED; `errno` says why.
    Answered(*mut c_void),
    /// The manager has made the mapping at this address.
    Managed(usize),
    /// The manager is to make the mapping, and does not run yet.
    NeedsManager,
}

/// mmap(2) of the program.
pub fn map(process: &'static Process, args: &MapArgs) -> Mapped {
    match decide(process, args) {
        Decision::Kernel(reason) => Mapped::Answered(by_kernel(process, args, reason)),
        Decision::Refused(errno) => Mapped::Answered(sys::map_failed(errno)),
        Decision::Managed(_) if process.manager().is_none() => Mapped::NeedsManager,
        Decision::Managed(op) => by_manager(process, args, op),
    }
}

/// How many bytes the manager has mapped for the program; `None`: the manager does not answer.
pub fn managed_bytes(counted: Counted) -> Option<u64> {
    let Some((process, _)) = state::alive() else { return Some(0) };
    request::submit_for_address(process, Op::Mapped(counted)).ok().map(|bytes| bytes as u64)
}

/// Who makes the mapping of a call.
enum Decision {
    /// The kernel; counted under the reason if there is one.
    Kernel(Option<Reason>),
    /// None: the call fails with this errno.
    Refused(c_int),
    /// The manager, by this request.
    Managed(Op),
}

fn decide(process: &'static Process, args: &MapArgs) -> Decision {
    let Some(options) = state::options() else { return Decision::Kernel(None) };
    let around = surroundings(process, options, args);
    let memory = |op| match refused_by_kernel(options, args) {
        Some(errno) => Decision::Refused(errno),
        None => Decision::Managed(op),
    };
    match map::first(args, &around) {
        First::Kernel(reason) => Decision::Kernel(reason),
        First::Memory => memory(Op::MapMemory(*args)),
        First::MemoryThere => memory(Op::MapMemoryThere(*args)),
        First::LookAtFile => decide_by_file(process, args, &around),
    }
}

fn surroundings(process: &Process, options: &Options, args: &MapArgs) -> Surroundings {
    let manager = process.manager();
    Surroundings {
        min_size_bytes: options.min_size_bytes,
        memory_min_bytes: state::manages_private().then(|| options.memory_min_bytes()),
        memory_left: state::PRIVATE_MEMORY_LEFT.get().copied(),
        any_managed: manager.is_some_and(|manager| manager.managed_files() > 0),
        inside_windows: manager.is_some_and(|manager| inside_windows(manager, args)),
    }
}

fn decide_by_file(process: &Process, args: &MapArgs, around: &Surroundings) -> Decision {
    let (Some(stat), Some(open_flags), Some(filesystem)) =
        (sys::fstat(args.fd), sys::open_flags(args.fd), sys::filesystem(args.fd))
    else {
        return Decision::Kernel(None);
    };
    let id = FileId { device: stat.st_dev, inode: stat.st_ino };
    let may_be_managed = around.any_managed && process.managed.may_contain(id.device, id.inode);
    let file = FileFacts { mode: stat.st_mode, filesystem, open_flags, may_be_managed };
    match map::last(args, around, &file) {
        Last::Kernel(reason) => Decision::Kernel(reason),
        Last::Manage { writable } if stdio::conflict(id, writable) => Decision::Kernel(Some(Reason::Stdio)),
        Last::Manage { writable } => {
            Decision::Managed(Op::Map { args: *args, id, tid: sys::gettid(), writable })
        }
    }
}

fn by_manager(process: &Process, args: &MapArgs, op: Op) -> Mapped {
    let file = if let Op::Map { id, writable, .. } = op { Some((id, writable)) } else { None };
    match request::submit_for_address(process, op) {
        Ok(at) => {
            if let Some((id, writable)) = file
                && stdio::conflict(id, writable)
                // A stream was opened meanwhile, too early to see this mapping.
                && request::submit(process, Op::HandBackFile(id)).is_err()
            {
                process.count(Reason::NotGiven);
            }
            give_to_fork(process, at, args.rounded());
            Mapped::Managed(at)
        }
        Err(libc::EEXIST) if args.flags & libc::MAP_FIXED_NOREPLACE != 0 => {
            Mapped::Answered(sys::map_failed(libc::EEXIST))
        }
        Err(refusal) => Mapped::Answered(by_kernel(process, args, Some(reason_of(refusal, args)))),
    }
}

/// The reason for an errno with which the manager has refused a mapping.
fn reason_of(refusal: c_int, args: &MapArgs) -> Reason {
    match refusal {
        NO_ADDRESSES if args.fixed() => Reason::FixedOutsideWindow,
        NO_ADDRESSES => Reason::HintOutsideWindow,
        OPEN_FAILED => Reason::OpenFailed,
        MAPPED_BY_KERNEL => Reason::MappedByKernel,
        NOT_ALONE => Reason::NotAlone,
        _ => Reason::ManagerRefused,
    }
}

/// Maps memory that libraries want on our threads (rings, for example), where it does not lie in a hole of
/// the program's.
pub fn map_for_ours(args: &MapArgs) -> *mut c_void {
    let MapArgs { len, prot, flags, fd, offset, .. } = *args;
    // For a ring the kernel refuses every hint (`io_uring_get_unmapped_area`), but follows MAP_32BIT. Few
    // programs map anything in the first 2 GiB.
    let places = [(reserve::place_beside(len), 0), (0, MAP_LOW), (0, 0)];
    let mapped = places.iter().map(|(hint, low)| {
        // SAFETY: a new mapping, which replaces none.
        unsafe { sys::mmap(*hint as *mut c_void, len, prot, flags | low, fd, offset) }
    });
    mapped.into_iter().find(|at| *at != libc::MAP_FAILED).unwrap_or(libc::MAP_FAILED)
}

/// The errno with which the kernel refuses to map so much memory, if it does. It is asked only about more
/// than budget and swap: programs that are refused a terabyte do with less, and programs that get it may
/// count on it. It is asked by mapping the memory, for a moment, wherever there is room. Linux:
/// `__vm_enough_memory`.
fn refused_by_kernel(options: &Options, args: &MapArgs) -> Option<c_int> {
    let moderate = (args.len as u64) <= options.memory_bytes.saturating_add(options.swap.bytes);
    if moderate { None } else { refused_elsewhere(args) }
}

/// The errno with which the kernel refuses a mapping wherever it is, if it does. The kernel is asked by
/// mapping it, for a moment, where there is room.
fn refused_elsewhere(args: &MapArgs) -> Option<c_int> {
    // The kernel would populate the whole mapping at once, to lock it.
    if state::LOCKS_FUTURE_MEMORY.load(Ordering::Acquire) {
        return None;
    }
    let placed = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE | libc::MAP_LOCKED;
    let flags = args.flags & !placed;
    let hint = aside() as *mut c_void;
    // SAFETY: it replaces nothing.
    let tried = unsafe { sys::mmap(hint, args.len, args.prot, flags, args.fd, args.offset) };
    if tried == libc::MAP_FAILED {
        return Some(sys::errno());
    }
    // SAFETY: it was just mapped, and nobody knows it.
    unsafe { sys::munmap(tried, args.len) };
    None
}

/// Whether the manager can map at the wanted place. Addresses inside a window that were given to the kernel
/// can be taken back if the call replaces what is there, or if they are free.
fn inside_windows(manager: &Manager, args: &MapArgs) -> bool {
    let windows = manager.windows();
    let Some(end) = (args.addr & !(PAGE - 1)).checked_add(args.rounded()) else { return false };
    if args.flags & libc::MAP_FIXED_NOREPLACE != 0 {
        return windows.covers(args.addr, args.rounded());
    }
    windows.windows().any(|window| window.start <= args.addr && end <= window.end)
}

/// Hands a mapping that was made, or has moved, while another thread forks back to the kernel, so that the
/// child has it.
pub fn give_to_fork(process: &Process, at: usize, len: usize) {
    if process.is_forking() && hand_back(process, at..at + len).is_err() {
        process.count(Reason::NotGiven);
    }
}

/// Has the kernel make the mapping; it is counted under `reason` if it was made.
pub fn by_kernel(process: &Process, args: &MapArgs, reason: Option<Reason>) -> *mut c_void {
    let file = if args.flags & libc::MAP_ANONYMOUS == 0 { kernel_file(args) } else { None };
    if let Some(file) = &file {
        // Added before the check whether the file is managed: a thread that makes it managed meanwhile
        // looks at this list afterwards.
        state::KERNEL_MAPPED.add(file.id.device, file.id.inode);
        fence(Ordering::SeqCst);
    }
    if let Some(manager) = process.manager()
        && let Err(errno) = make_way(process, manager, args, file.as_ref())
    {
        sys::set_errno(errno);
        return libc::MAP_FAILED;
    }
    let addr = args.addr as *mut c_void;
    // SAFETY: the program's own call, as it made it.
    let call = || unsafe { sys::mmap(addr, args.len, args.prot, args.flags, args.fd, args.offset) };
    let takes_long = args.flags & (libc::MAP_POPULATE | libc::MAP_LOCKED) != 0;
    let at = if takes_long { call() } else { state::change_mappings(call) };
    if at == libc::MAP_FAILED {
        return at;
    }
    if args.flags & libc::MAP_GROWSDOWN != 0 {
        make_room_to_grow(process, at as usize);
    }
    if let Some(file) = &file {
        // Added again, so that a thread looks again which found before that the kernel does not map the
        // file.
        state::KERNEL_MAPPED.add(file.id.device, file.id.inode);
        fence(Ordering::SeqCst);
        // The file may have become managed since `make_way`.
        if let Err(errno) = give_back(process, file) {
            process.count(Reason::NotGiven);
            if args.flags & libc::MAP_FIXED == 0 {
                // Rather no mapping than two owners of the file.
                // SAFETY: it was made just now, and nobody knows of it.
                unsafe { sys::munmap(at, args.len) };
                sys::set_errno(errno);
                return libc::MAP_FAILED;
            }
        }
    }
    if let Some(reason) = reason
        && process.count_bytes(reason, args.rounded())
        && reason.is_lack()
    {
        let words = reason.words();
        said::say(format_args!("left to the kernel: {words} (this is said once)"));
    }
    at
}

/// Gives the kernel the free addresses in windows below a mapping that grows down: as much as the mapping
/// may grow, and the gap that the kernel wants between it and any other.
fn make_room_to_grow(process: &Process, at: usize) {
    /// Linux: `stack_guard_gap`, as it is by default.
    const GAP: usize = 256 * PAGE;
    /// The most that it is expected to grow, where there is no limit.
    const MOST: usize = 1 << 30;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one `rlimit`.
    unsafe { sys::system_call(libc::SYS_getrlimit, libc::RLIMIT_STACK as c_long, &raw mut limit) };
    let below = at.saturating_sub(usize::try_from(limit.rlim_cur).unwrap_or(MOST).min(MOST) + GAP)..at;
    let windows = process.manager().map(|manager| manager.windows());
    if windows.is_some_and(|windows| windows.intersects(below.start, below.len())) {
        // Where that fails, the mapping cannot grow as far.
        let _ = request::submit(process, Op::MakeRoomBelow(below));
    }
}

/// A regular file that the kernel is to map.
struct KernelFile {
    id: FileId,
    /// Whether the kernel's mapping can store to it, now or after mprotect.
    writes: bool,
}

fn kernel_file(args: &MapArgs) -> Option<KernelFile> {
    let stat = sys::fstat(args.fd)?;
    let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
    let writes = args.shared() == Some(true)
        && sys::open_flags(args.fd).is_some_and(|flags| flags & libc::O_ACCMODE == libc::O_RDWR);
    regular.then_some(KernelFile { id: FileId { device: stat.st_dev, inode: stat.st_ino }, writes })
}

/// Gives the file back to the kernel if it is managed, and one of the two sides can store to it.
fn give_back(process: &Process, file: &KernelFile) -> Result<(), c_int> {
    let managed = process.manager().is_some_and(|manager| manager.managed_files() > 0)
        && process.managed.may_contain(file.id.device, file.id.inode);
    if !managed {
        return Ok(());
    }
    request::submit(process, Op::KernelMaps(file.id, file.writes)).map(drop)
}

/// Prepares for a mapping of the kernel's: gives its file back if need be, and makes the addresses the
/// kernel's that it replaces, or needs free.
fn make_way(
    process: &Process,
    manager: &Manager,
    args: &MapArgs,
    file: Option<&KernelFile>,
) -> Result<(), c_int> {
    if let Some(file) = file {
        give_back(process, file)?;
    }
    let at = args.addr & !(PAGE - 1);
    let Some(end) = at.checked_add(args.rounded()).filter(|end| *end <= ADDRESS_END) else { return Ok(()) };
    if args.addr == 0 || args.len == 0 || !manager.windows().intersects(at, end - at) {
        return Ok(());
    }
    if args.flags & libc::MAP_FIXED == 0 || args.flags & libc::MAP_FIXED_NOREPLACE != 0 {
        // If something of ours is there, or there is no room, the kernel finds the addresses taken, as it
        // should.
        let _ = request::submit(process, Op::MakeRoom(at..end));
        return Ok(());
    }
    if args.addr != at {
        return Ok(());
    }
    // A call that the kernel refuses must change nothing, but a range that was handed back for it would be
    // split from its mapping: so the kernel is asked first. ENOMEM may come only since there is no memory
    // for both mappings. EOPNOTSUPP comes from the file's own operation, when the kernel has unmapped the
    // range already: so it is unmapped here, too (MAP_SYNC is mostly refused so).
    match refused_elsewhere(args) {
        None | Some(libc::ENOMEM | libc::EOPNOTSUPP) => hand_back(process, at..end),
        Some(errno) => Err(errno),
    }
}
