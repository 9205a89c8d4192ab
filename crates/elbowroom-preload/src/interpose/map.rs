//! mmap, munmap and mremap.
//!
//! Two rules hold everywhere (docs/decisions/0015-one-owner.md). A file is the manager's or the kernel's:
//! before the kernel maps one that is managed, all of it goes back to the kernel. And where a call concerns
//! addresses of both sides, all that it concerns is made the kernel's first, and the kernel then does the
//! call.

use crate::config::Options;
use crate::limits;
use crate::policy::{self, FileFacts, First, Last, MapArgs, Surroundings};
use crate::reason::Reason;
use crate::request::{self, Op};
use crate::reserve;
use crate::serve;
use crate::service;
use crate::signals;
use crate::state::{self, Process};
use crate::sys::{self, PAGE};
use elbowroom::{FileId, Manager, Remap, Side};
use elbowroom_machine::aside;
use libc::{c_int, c_long, c_void, off_t, size_t};
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use super::ranges::{ADDRESS_END, each_part, hand_back, managed_range};
use super::stdio;

/// MAP_32BIT: the kernel chooses an address in the first 2 GiB. Only x86-64 has it.
const MAP_LOW: c_int = if cfg!(target_arch = "x86_64") { 0x40 } else { 0 };

export! {
    mmap(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void
        = map;
    mmap64(addr: *mut c_void, len: size_t, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void
        = map;
    munmap(addr: *mut c_void, len: size_t) -> c_int = unmap;
    mremap(old: *mut c_void, old_len: size_t, new_len: size_t, flags: c_int, new: *mut c_void) -> *mut c_void
        = remap;
}

unsafe fn map(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let args = MapArgs { addr: addr as usize, len, prot, flags, fd, offset };
    if flags & libc::MAP_FIXED != 0 && reserve::refuses(args.addr, len) {
        sys::set_errno(libc::ENOMEM);
        return libc::MAP_FAILED;
    }
    match state::for_program() {
        Some(process) => map_for_program(process, &args),
        None if addr.is_null() && state::is_service_thread() => map_for_ours(&args),
        // SAFETY: the caller's promise.
        None => unsafe { sys::mmap(addr, len, prot, flags, fd, offset) },
    }
}

/// What libraries map for our threads, rings and the like, wherever it does not come into a hole of the
/// program's.
fn map_for_ours(args: &MapArgs) -> *mut c_void {
    let MapArgs { len, prot, flags, fd, offset, .. } = *args;
    // For a ring the kernel refuses every hint (`io_uring_get_unmapped_area`), but MAP_32BIT it follows. Few
    // programs map anything there.
    let places = [(reserve::place_beside(len), 0), (0, MAP_LOW), (0, 0)];
    let mapped = places.iter().map(|(hint, low)| {
        // SAFETY: a new mapping, which replaces none.
        unsafe { sys::mmap(*hint as *mut c_void, len, prot, flags | low, fd, offset) }
    });
    mapped.into_iter().find(|at| *at != libc::MAP_FAILED).unwrap_or(libc::MAP_FAILED)
}

fn map_for_program(process: &'static Process, args: &MapArgs) -> *mut c_void {
    let Some(options) = state::options() else { return map_by_kernel(process, args, None) };
    let manager = process.manager();
    let around = Surroundings {
        min_size_bytes: options.min_size_bytes,
        memory_min_bytes: state::manages_private().then_some(options.memory_min_bytes),
        own_allocator: state::OWN_ALLOCATOR.load(Ordering::Acquire),
        any_managed: manager.is_some_and(|manager| manager.managed_files() > 0),
        inside_windows: manager.is_some_and(|manager| inside_windows(manager, args)),
    };
    match policy::first(args, &around) {
        First::Kernel(reason) => return map_by_kernel(process, args, reason),
        which @ (First::Memory | First::MemoryThere) => {
            if let Some(errno) = refused_by_kernel(options, args) {
                sys::set_errno(errno);
                return libc::MAP_FAILED;
            }
            let there = matches!(which, First::MemoryThere);
            let op = if there { Op::MapMemoryThere(*args) } else { Op::MapMemory(*args) };
            return map_memory(process, args, op);
        }
        First::LookAtFile => {}
    }
    let (Some(stat), Some(open_flags), Some(filesystem)) =
        (sys::fstat(args.fd), sys::open_flags(args.fd), sys::filesystem(args.fd))
    else {
        return map_by_kernel(process, args, None);
    };
    let id = FileId { device: stat.st_dev, inode: stat.st_ino };
    let file = FileFacts {
        mode: stat.st_mode,
        filesystem,
        open_flags,
        may_be_managed: around.any_managed && process.managed.may_contain(id.device, id.inode),
    };
    match policy::last(args, &around, &file) {
        Last::Kernel(reason) => map_by_kernel(process, args, reason),
        Last::Manage { writable } if stdio::conflict(id, writable) => {
            map_by_kernel(process, args, Some(Reason::Stdio))
        }
        Last::Manage { writable } => map_by_manager(process, args, id, writable),
    }
}

/// The errno with which the kernel refuses so much memory, of which there may be more than budget and swap,
/// if it does: programs that are refused a terabyte do with less, and those that get it may count on it.
/// Asked by mapping it, for a moment, wherever there is room. Linux: `__vm_enough_memory`.
fn refused_by_kernel(options: &Options, args: &MapArgs) -> Option<c_int> {
    let moderate = (args.len as u64) <= options.memory_bytes.saturating_add(options.swap_bytes);
    if moderate { None } else { refused_elsewhere(args) }
}

/// The errno with which the kernel refuses a mapping wherever it is, if it does. Asked by mapping it, for a
/// moment, where there is room.
fn refused_elsewhere(args: &MapArgs) -> Option<c_int> {
    // What is locked comes at once, all of it.
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

/// Whether the manager can map at the wanted place. What was given to the kernel inside a window can be taken
/// back if it is replaced anyway, or free.
fn inside_windows(manager: &Manager, args: &MapArgs) -> bool {
    let windows = manager.windows();
    let Some(end) = (args.addr & !(PAGE - 1)).checked_add(args.rounded()) else { return false };
    if args.flags & libc::MAP_FIXED_NOREPLACE != 0 {
        return windows.covers(args.addr, args.rounded());
    }
    windows.windows().any(|window| window.start <= args.addr && end <= window.end)
}

/// Starts the manager, if there is none. `Err`: the kernel maps, counted under the reason.
fn start_manager(process: &'static Process) -> Result<(), Option<Reason>> {
    if process.manager().is_some() {
        return Ok(());
    }
    if !process.is_home() {
        return Err(Some(Reason::ChildProcess));
    }
    if state::LOCKS_FUTURE_MEMORY.load(Ordering::Acquire) {
        return Err(Some(Reason::LockedMemory));
    }
    if !limits::make_room() {
        return Err(Some(Reason::AddressSpaceLimit));
    }
    service::manager(process).map(drop).ok_or(None)
}

/// Private memory without a file, by the operation.
fn map_memory(process: &'static Process, args: &MapArgs, op: Op) -> *mut c_void {
    if let Err(reason) = start_manager(process) {
        return map_by_kernel(process, args, reason);
    }
    if !state::manages_private() {
        // So the manager has found as it started.
        return map_by_kernel(process, args, Some(Reason::Anonymous));
    }
    match request::submit(process, op) {
        Ok(at) => {
            signals::arm();
            limits::settle();
            give_to_fork(process, at, args.rounded());
            at as *mut c_void
        }
        Err(libc::EEXIST) if args.flags & libc::MAP_FIXED_NOREPLACE != 0 => {
            sys::set_errno(libc::EEXIST);
            libc::MAP_FAILED
        }
        Err(serve::NO_ADDRESSES) => {
            let fixed = args.flags & libc::MAP_FIXED_NOREPLACE != 0;
            let reason = if fixed { Reason::FixedOutsideWindow } else { Reason::HintOutsideWindow };
            map_by_kernel(process, args, Some(reason))
        }
        Err(_) => map_by_kernel(process, args, Some(Reason::ManagerRefused)),
    }
}

/// What was mapped, or has moved, while another thread forks goes back to the kernel, too: the child has it.
fn give_to_fork(process: &Process, at: usize, len: usize) {
    if process.is_forking() && hand_back(process, at..at + len).is_err() {
        process.count(Reason::NotGiven);
    }
}

fn map_by_manager(process: &'static Process, args: &MapArgs, id: FileId, writable: bool) -> *mut c_void {
    if let Err(reason) = start_manager(process) {
        return map_by_kernel(process, args, reason);
    }
    if args.shared() == Some(false) && args.prot & libc::PROT_WRITE != 0 && !state::manages_private() {
        return map_by_kernel(process, args, Some(Reason::PrivateWritable));
    }
    let op = Op::Map { args: *args, id, tid: sys::gettid(), writable };
    match request::submit(process, op) {
        Ok(at) => {
            signals::arm();
            limits::settle();
            if stdio::conflict(id, writable) {
                // A stream was opened meanwhile, too early to see this mapping.
                if request::submit(process, Op::HandBackFile(id)).is_err() {
                    process.count(Reason::NotGiven);
                }
            }
            give_to_fork(process, at, args.rounded());
            at as *mut c_void
        }
        Err(libc::EEXIST) if args.flags & libc::MAP_FIXED_NOREPLACE != 0 => {
            sys::set_errno(libc::EEXIST);
            libc::MAP_FAILED
        }
        Err(serve::OPEN_FAILED) => map_by_kernel(process, args, Some(Reason::OpenFailed)),
        Err(serve::MAPPED_BY_KERNEL) => map_by_kernel(process, args, Some(Reason::MappedByKernel)),
        Err(serve::NOT_ALONE) => map_by_kernel(process, args, Some(Reason::NotAlone)),
        Err(_) => map_by_kernel(process, args, Some(Reason::ManagerRefused)),
    }
}

/// The kernel's mapping, counted under `reason` if it was made.
fn map_by_kernel(process: &Process, args: &MapArgs, reason: Option<Reason>) -> *mut c_void {
    let file = if args.flags & libc::MAP_ANONYMOUS == 0 { kernel_file(args) } else { None };
    if let Some(file) = &file {
        // Before it is looked whether it is managed: who has it managed meanwhile looks here afterwards.
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
    if let Some(file) = &file {
        // Who has found before that the kernel does not map it looks again.
        state::KERNEL_MAPPED.add(file.id.device, file.id.inode);
        fence(Ordering::SeqCst);
        // It may have become managed since `make_way`.
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
    if let Some(reason) = reason {
        process.count(reason);
    }
    at
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

/// If the file is managed, and one of the two sides can store to it, it goes back to the kernel.
fn give_back(process: &Process, file: &KernelFile) -> Result<(), c_int> {
    let managed = process.manager().is_some_and(|manager| manager.managed_files() > 0)
        && process.managed.may_contain(file.id.device, file.id.inode);
    if !managed {
        return Ok(());
    }
    request::submit(process, Op::KernelMaps(file.id, file.writes)).map(drop)
}

/// Before the kernel maps something: its file is not managed any more, and what it may replace, or find free,
/// is the kernel's own.
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
    // What the kernel refuses changes nothing, but what was handed back for it would be a mapping of its own
    // from then on. Only here there may be no memory for both. What the file's own operation refuses comes
    // too late: then nothing is mapped there any more. MAP_SYNC is mostly refused so.
    match refused_elsewhere(args) {
        None | Some(libc::ENOMEM | libc::EOPNOTSUPP) => hand_back(process, at..end),
        Some(errno) => Err(errno),
    }
}

/// Before a fork: files that the child could store to, or see stored to, go back to the kernel. The child has
/// the descriptors of its parent, and inherits the kernel's mappings, not ours.
pub fn hand_back_shared() {
    let Some((process, manager)) = state::alive() else { return };
    let private = state::options().is_some_and(|options| options.swap_bytes > 0);
    if manager.managed_files() > 0 || private {
        // What cannot go back is written back all the same.
        if request::submit(process, Op::HandBackShared).is_err() {
            process.count(Reason::NotGiven);
        }
    }
}

unsafe fn unmap(addr: *mut c_void, len: size_t) -> c_int {
    if reserve::refuses(addr as usize, len) {
        return sys::fail(libc::EINVAL);
    }
    let possible = managed_range(addr as usize, len).filter(|(_, _, range)| range.end <= ADDRESS_END);
    let Some((process, manager, range)) = possible else {
        // SAFETY: the caller's promise.
        return state::change_mappings(|| unsafe { sys::munmap(addr, len) });
    };
    loop {
        match unmap_parts(process, manager, &range) {
            Ok(()) => return 0,
            // A part of it went to the kernel since it was looked. What went there does not come back, so
            // this ends.
            Err(serve::NOT_OURS) => {}
            Err(errno) => return sys::fail(errno),
        }
    }
}

/// Unmaps a range that the program gives up: the manager does its parts, the kernel the others.
fn unmap_parts(process: &Process, manager: &Manager, range: &Range<usize>) -> Result<(), c_int> {
    each_part(manager, range.clone(), &mut |side, part| match side {
        Side::Managed => request::submit(process, Op::Unmap(part)).map(drop),
        Side::Kernel => {
            let at = part.start as *mut c_void;
            // SAFETY: the program gives up this range.
            match state::change_mappings(|| unsafe { sys::munmap(at, part.len()) }) {
                0 => Ok(()),
                _ => Err(sys::errno()),
            }
        }
    })
}

unsafe fn remap(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let target_len = if flags & libc::MREMAP_FIXED != 0 { new_len } else { 0 };
    if reserve::refuses(old as usize, old_len) || reserve::refuses(new as usize, target_len) {
        sys::set_errno(libc::EINVAL);
        return libc::MAP_FAILED;
    }
    if let Some((process, manager)) = state::alive() {
        match remap_managed(process, manager, old as usize, old_len, new_len, flags, new as usize) {
            Some(Ok(at)) => return at as *mut c_void,
            Some(Err(errno)) => {
                sys::set_errno(errno);
                return libc::MAP_FAILED;
            }
            None => {}
        }
    }
    let flags = flags as c_long;
    // SAFETY: the caller's promise.
    state::change_mappings(|| unsafe { libc::syscall(libc::SYS_mremap, old, old_len, new_len, flags, new) })
        as *mut c_void
}

/// `None`: the kernel does it, and nothing of it is managed any more.
fn remap_managed(
    process: &Process,
    manager: &Manager,
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: usize,
) -> Option<Result<usize, c_int>> {
    let windows = manager.windows();
    let page_up = |len: usize| len.checked_add(PAGE - 1).map(|len| len & !(PAGE - 1));
    let (Some(from_len), Some(to_len)) = (page_up(old_len), page_up(new_len)) else { return None };
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    if !old.is_multiple_of(PAGE) || to_len == 0 || flags & !known != 0 {
        return None;
    }
    let (fixed, may_move, keeps) = (
        flags & libc::MREMAP_FIXED != 0,
        flags & libc::MREMAP_MAYMOVE != 0,
        flags & libc::MREMAP_DONTUNMAP != 0,
    );
    // A length of 0 asks for a second mapping of the same pages. What grows may grow in place.
    let source = old..old.checked_add(from_len.max(to_len).max(PAGE))?.min(ADDRESS_END);
    // Without MREMAP_FIXED the address of MREMAP_DONTUNMAP is a hint.
    let hinted = !fixed && keeps && new != 0;
    let target = if fixed || hinted { new..new.checked_add(to_len)? } else { 0..0 };
    // The kernel refuses these, and changes nothing.
    if old.checked_add(from_len)? > ADDRESS_END || target.end.max(to_len) > ADDRESS_END {
        return None;
    }
    let concerns = |range: &Range<usize>| !range.is_empty() && windows.intersects(range.start, range.len());
    if !concerns(&source) && !concerns(&target) {
        return None;
    }
    // Both look at the new address, which is 0 without one.
    let onto_itself =
        (fixed || keeps) && (!new.is_multiple_of(PAGE) || (old < target.end && new < old + from_len));
    if onto_itself || (fixed || keeps) && !may_move || keeps && from_len != to_len {
        return Some(Err(libc::EINVAL));
    }
    // What may move need not have room behind it.
    let needed = if may_move { from_len.max(PAGE) } else { source.len() };
    let covered =
        || windows.covers(source.start, needed) && (!fixed || windows.covers(target.start, target.len()));
    let all_managed = covered();
    if all_managed && !hinted && (from_len > 0 || may_move) {
        let how = match (fixed, keeps, may_move) {
            (true, true, _) => Remap::FixedDontUnmap(new),
            (true, false, _) => Remap::Fixed(new),
            (false, true, _) => Remap::DontUnmap(0),
            (false, false, true) => Remap::MayMove,
            (false, false, false) => Remap::InPlace,
        };
        let done = if to_len < from_len && !fixed {
            cut_off(process, old..old + from_len, to_len)
        } else {
            request::submit(process, Op::Remap { old: old..old + from_len, new_len: to_len, how })
        };
        if let Ok(at) = done {
            give_to_fork(process, at, to_len);
        }
        let still_managed = covered();
        if done.is_ok() || (still_managed && done != Err(serve::NOT_OURS)) {
            return Some(done);
        }
        // It went to the kernel meanwhile, with its file: the manager found nothing there, or cut nothing.
    }
    if !is_mapped(process, manager, old) {
        // What the kernel refuses changes nothing, but what was handed back for it would be a mapping of its
        // own from then on.
        return Some(Err(libc::EFAULT));
    }
    process.count(Reason::Remapped);
    let target = if hinted { Wanted::IfFree(target) } else { Wanted::Replaced(target) };
    let done = hand_back_for_remap(process, manager, old..old + from_len.max(PAGE), source, target);
    done.err().map(Err)
}

/// Whether anything is mapped at a page.
fn is_mapped(process: &Process, manager: &Manager, at: usize) -> bool {
    let covered = || manager.windows().covers(at, PAGE);
    if covered() {
        // As long as it is: only asks.
        let asked = Op::Remap { old: at..at + PAGE, new_len: PAGE, how: Remap::InPlace };
        return request::submit(process, asked).is_ok() || !covered();
    }
    let mut resident = 0_u8;
    // SAFETY: room for one page's answer.
    let answer = unsafe { libc::syscall(libc::SYS_mincore, at, PAGE, &raw mut resident) };
    answer == 0 || sys::errno() != libc::ENOMEM
}

/// Makes a mapping shorter where it is. What is cut off is free in the moment in which the manager has cut
/// it, and may be another thread's in the next: so nothing is looked at, or unmapped, after that. If a part
/// is the kernel's by then, nothing is changed.
fn cut_off(process: &Process, mapping: Range<usize>, len: usize) -> Result<usize, c_int> {
    let (start, tail) = (mapping.start, mapping.start + len..mapping.end);
    // As long as it is: only asks whether something is mapped there.
    request::submit(process, Op::Remap { old: start..tail.start, new_len: len, how: Remap::InPlace })?;
    request::submit(process, Op::Unmap(tail)).map(|_| start)
}

/// Where an mremap wants to go.
enum Wanted {
    /// There, if that is free.
    IfFree(Range<usize>),
    /// There, whatever is there. Empty: nowhere in particular.
    Replaced(Range<usize>),
}

/// Makes all that an mremap concerns the kernel's: the mapping with its bytes, the free addresses behind it
/// that it may grow into, and the target.
fn hand_back_for_remap(
    process: &Process,
    manager: &Manager,
    mapping: Range<usize>,
    grown: Range<usize>,
    target: Wanted,
) -> Result<(), c_int> {
    let windows = manager.windows();
    let concerns = |range: &Range<usize>| !range.is_empty() && windows.intersects(range.start, range.len());
    let growth = mapping.end..grown.end;
    if concerns(&mapping) {
        hand_back(process, mapping)?;
    }
    let free = match target {
        Wanted::IfFree(range) => range,
        Wanted::Replaced(range) if concerns(&range) => {
            hand_back(process, range)?;
            0..0
        }
        Wanted::Replaced(_) => 0..0,
    };
    for range in [growth, free].into_iter().filter(concerns) {
        // If something is mapped there, the kernel finds no room, as it should.
        let _ = request::submit(process, Op::MakeRoom(range));
    }
    Ok(())
}
