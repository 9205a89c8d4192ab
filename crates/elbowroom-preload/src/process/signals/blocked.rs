//! Signals that instructions raise, where the program has blocked them.
//!
//! If such a signal is blocked when an instruction raises it, the kernel ends the process and calls no
//! handler. So the kernel's mask does not have them: what the program has blocked is remembered here for each
//! thread, and our handler (mod.rs) does as the kernel would, after writing back. Functions that read or
//! change the mask (process/mask.rs) are told what the program expects.
//!
//! Two sets make the virtual mask of a thread: what it has blocked itself, and what is blocked because
//! handlers run. When a handler is left by siglongjmp(3), the second set is dropped if the jump restores a
//! saved mask; else it stays blocked, as part of the first.
//!
//! A blocked signal that is sent (by kill, for example) must wait: our handler queues it again, and has the
//! kernel block it from then on, until the program unblocks it.
//!
//! A runtime may set the mask by raw calls, of which we learn nothing: Go has libc make a thread while all
//! signals are blocked, and unblocks them in the thread by itself. Two witnesses tell of that. The kernel's
//! mask lacks a signal that the program blocked together with those that are virtual (the set is in
//! [`BESIDE`]); or the handlers that block some were left by a jump that is not libc's ([`witness`]). Then
//! only the kernel's mask counts. In doubt a signal counts as not blocked: its handler is called where the
//! kernel would have killed.
//!
//! Synchronization: values of one thread, which its handlers restore.

use super::kernel::has_own_table;
use crate::base::state;
use crate::base::sys;
use libc::{c_int, c_void, siginfo_t};
use std::cell::Cell;
use std::ops::Range;

/// The signals that instructions raise, as the kernel's set.
pub const SYNCHRONOUS: u64 = bit(libc::SIGSEGV)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGSYS);
/// What no mask of the kernel's ever has.
const NEVER_BLOCKED: u64 = bit(libc::SIGKILL) | bit(libc::SIGSTOP);
/// What libc never lets a program block: its own two signals.
const OF_LIBC: u64 = 0b11 << 31;
/// The offset in a `jmp_buf` of the flag that it has a saved mask: behind the registers.
const MASK_WAS_SAVED_AT: usize = if cfg!(target_arch = "x86_64") { 64 } else { 176 };

thread_local! {
    static OWN: Cell<u64> = const { Cell::new(0) };
    static BY_HANDLERS: Cell<u64> = const { Cell::new(0) };
    /// Signals that the kernel's mask has as long as [`OWN`] is valid: a mask without one of them was set
    /// by a raw call.
    static BESIDE: Cell<u64> = const { Cell::new(0) };
    /// The frame of the innermost handler that blocks some of these signals.
    static FRAME: Cell<usize> = const { Cell::new(0) };
}

const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Which of these signals this thread has blocked, as the program sees it.
pub fn mask() -> u64 {
    own() | BY_HANDLERS.get()
}

/// Which of these signals the thread has blocked itself, and not unblocked by a raw call.
fn own() -> u64 {
    match OWN.get() {
        0 => 0,
        _ => kernel(libc::SIG_BLOCK, None).map_or(0, own_beside),
    }
}

/// As [`own`], if the kernel's mask is `in_kernel`.
fn own_beside(in_kernel: u64) -> u64 {
    if BESIDE.get() & !in_kernel == 0 { OWN.get() } else { 0 }
}

/// The signals of a set that can be witnesses (see [`BESIDE`]).
fn beside(set: u64) -> u64 {
    set & !SYNCHRONOUS & !NEVER_BLOCKED & !OF_LIBC
}

/// In a new thread: sets the virtual mask that it has inherited. Its kernel mask is that of the thread that
/// made it.
pub fn inherit(mask: u64) {
    if mask != 0 {
        BESIDE.set(kernel(libc::SIG_BLOCK, None).map_or(0, beside));
        OWN.set(mask);
    }
}

/// Which of these signals the interrupted thread has blocked. Handlers that do not run any more block
/// nothing.
///
/// # Safety
/// `context` is what the kernel gave our handler.
pub unsafe fn witness(context: *mut c_void) -> u64 {
    if OWN.get() | BY_HANDLERS.get() == 0 {
        return 0;
    }
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the caller's promise; the kernel's set is the first 64 bits.
    let in_kernel = unsafe { (&raw const (*context).uc_sigmask).cast::<u64>().read() };
    // SAFETY: the caller's promise.
    let (sp, alternate) = unsafe { (stack_pointer(context), alternate_stack(context)) };
    if BY_HANDLERS.get() != 0 && is_left(FRAME.get(), sp, &alternate) {
        BY_HANDLERS.set(0);
    }
    own_beside(in_kernel) | BY_HANDLERS.get()
}

/// Whether the handler with this frame does not run any more when the stack pointer is `sp`.
fn is_left(frame: usize, sp: usize, alternate: &Range<usize>) -> bool {
    match (alternate.contains(&frame), alternate.contains(&sp)) {
        (true, false) => true,
        // Another handler runs, of a signal that we do not stand in front of.
        (false, true) => false,
        (true, true) | (false, false) => sp > frame,
    }
}

/// # Safety
/// The context is valid.
unsafe fn stack_pointer(context: *const libc::ucontext_t) -> usize {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    return unsafe { (*context).uc_mcontext.gregs[libc::REG_RSP as usize] as usize };
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller's promise.
    return unsafe { (*context).uc_mcontext.sp as usize };
}

/// The alternate stack of the thread.
///
/// # Safety
/// The context is valid.
unsafe fn alternate_stack(context: *const libc::ucontext_t) -> Range<usize> {
    // SAFETY: the caller's promise.
    let stack = unsafe { (*context).uc_stack };
    let start = stack.ss_sp as usize;
    start..start.saturating_add(stack.ss_size)
}

/// Whether the caller's mask is virtual. A child that shares our memory has a mask of its own, but not these
/// values.
fn is_virtual() -> bool {
    state::for_program().is_some() && has_own_table()
}

/// Whether a change of the mask blocks signals that instructions raise, and the caller's mask is virtual:
/// then our handler must stand in front of them before ([`super::arm_synchronous`]).
pub fn blocks_more(how: c_int, set: Option<u64>) -> bool {
    set.is_some_and(|set| set & SYNCHRONOUS != 0 && how != libc::SIG_UNBLOCK) && is_virtual()
}

/// rt_sigprocmask(2) as the program sees it: gives the mask before. If it [`blocks_more`], our handler stands
/// in front by now.
pub fn change(how: c_int, set: Option<u64>) -> Result<u64, c_int> {
    let set = set.map(|set| set & !OF_LIBC);
    // Read before the kernel's mask changes.
    let (own, by_handlers) = (own(), BY_HANDLERS.get());
    let blocked = own | by_handlers;
    if blocked == 0 && !blocks_more(how, set) || !is_virtual() {
        return kernel(how, set).map(|before| before | blocked);
    }
    let Some(set) = set else { return kernel(how, None).map(|before| before | blocked) };
    let asked = set & SYNCHRONOUS;
    let given = match how {
        libc::SIG_BLOCK => set & !SYNCHRONOUS,
        // Signals that were postponed are blocked in the kernel, and stay so.
        libc::SIG_SETMASK => set & !SYNCHRONOUS | asked & kernel(libc::SIG_BLOCK, None)?,
        _ => set,
    };
    // Set before the kernel's mask changes: pending signals are delivered within that call. Until then, a
    // signal is a witness only if the masks before and after have it.
    let beside_before = if own == 0 { 0 } else { BESIDE.get() };
    let beside_after = match how {
        libc::SIG_BLOCK => beside_before | beside(given),
        libc::SIG_UNBLOCK => beside_before & !given,
        _ => beside(given),
    };
    BESIDE.set(beside_before & beside_after);
    match how {
        libc::SIG_BLOCK => OWN.set(own | asked),
        libc::SIG_UNBLOCK => {
            OWN.set(own & !asked);
            BY_HANDLERS.set(by_handlers & !asked);
        }
        libc::SIG_SETMASK => {
            OWN.set(asked);
            BY_HANDLERS.set(0);
        }
        _ => {}
    }
    let changed = kernel(how, Some(given));
    if changed.is_ok() {
        BESIDE.set(beside_after);
    } else {
        OWN.set(own);
        BY_HANDLERS.set(by_handlers);
        BESIDE.set(beside_before);
    }
    changed.map(|before| before | blocked)
}

fn kernel(how: c_int, set: Option<u64>) -> Result<u64, c_int> {
    let kept = sys::errno();
    let mut before = 0u64;
    let set = set.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the pointers are null, or to 8 bytes, the size of the kernel's set.
    let r = unsafe {
        sys::system_call(
            libc::SYS_rt_sigprocmask,
            libc::c_long::from(how),
            set,
            &raw mut before,
            8 as libc::c_long,
        )
    };
    let errno = sys::errno();
    sys::set_errno(kept);
    if r == 0 { Ok(before) } else { Err(errno) }
}

/// Calls a handler that blocks `more` of these signals while it runs, in a thread that has blocked
/// `before`. The handler sees `before` in its context as well, and may change there what is blocked after
/// it.
///
/// # Safety
/// `context` is what the kernel gave our handler, and `before` what [`witness`] said of it.
pub unsafe fn during(more: u64, before: u64, context: *mut c_void, handler: impl FnOnce()) {
    let more = more & SYNCHRONOUS;
    // The kernel's mask has more signals while the handler runs, so an [`OWN`] that is not valid any more
    // would look valid again.
    OWN.set(before & !BY_HANDLERS.get());
    if more | before == 0 {
        return handler();
    }
    // SAFETY: the caller's promise; the kernel's set is the first 64 bits.
    let saved = unsafe { (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>() };
    let (by_handlers, beside, frame) = (BY_HANDLERS.get(), BESIDE.get(), FRAME.get());
    // SAFETY: as above.
    let waiting = unsafe { *saved } & SYNCHRONOUS;
    // SAFETY: as above.
    unsafe { *saved |= before };
    BY_HANDLERS.set(by_handlers | more);
    FRAME.set((&raw const more) as usize);
    handler();
    // SAFETY: as above.
    let after = unsafe { *saved };
    BY_HANDLERS.set(after & SYNCHRONOUS & by_handlers);
    OWN.set(after & SYNCHRONOUS & !by_handlers);
    BESIDE.set(beside & after);
    FRAME.set(frame);
    // SAFETY: as above.
    unsafe { *saved = after & !SYNCHRONOUS | after & waiting };
}

/// Queues a blocked signal that was sent once more, to the thread or to the process, as it came: it waits
/// there until it is unblocked.
///
/// # Safety
/// `info` and `context` are what the kernel gave our handler.
pub unsafe fn postpone(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let kept = sys::errno();
    // Blocked now, so that the signal does not come before this handler has returned; and, by the context,
    // afterwards.
    sys::block(bit(signal));
    let (pid, tid) = (sys::getpid() as libc::c_long, sys::gettid() as libc::c_long);
    let number = libc::c_long::from(signal);
    // SAFETY: the caller's promise; to itself a process may queue any.
    unsafe {
        let saved = (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast::<u64>();
        *saved |= bit(signal);
        if (*info).si_code == libc::SI_TKILL {
            sys::system_call(libc::SYS_rt_tgsigqueueinfo, pid, tid, number, info);
        } else {
            let queued = sys::system_call(libc::SYS_rt_sigqueueinfo, pid, number, info);
            if queued < 0 {
                // Only the main thread may queue a signal with another sender's siginfo. Sent by kill
                // instead, it loses only the sender.
                sys::system_call(libc::SYS_kill, pid, number);
            }
        }
    }
    sys::set_errno(kept);
}

/// To be called before a jump to `env`, which leaves the handlers that run.
///
/// # Safety
/// `env` is a `jmp_buf` that was set.
pub unsafe fn jumps(env: *const c_void) {
    let left = BY_HANDLERS.get();
    if left == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    let restores = unsafe { env.byte_add(MASK_WAS_SAVED_AT).cast::<c_int>().read() } != 0;
    if !restores {
        OWN.set(own() | left);
        // The jump does not change the kernel's mask: no signal is a witness any more.
        BESIDE.set(0);
    }
    BY_HANDLERS.set(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_is_left_when_the_stack_above_it_is_in_use() {
        let (alternate, none) = (0x1000..0x2000, 0..0);
        assert!(!is_left(0x9000, 0x8ff0, &none));
        assert!(is_left(0x9000, 0x9010, &none));
        // On the alternate stack, and left for the thread's own.
        assert!(is_left(0x1800, 0x9000, &alternate));
        assert!(!is_left(0x1800, 0x1700, &alternate));
        assert!(!is_left(0x9000, 0x1700, &alternate));
    }

    #[test]
    fn a_jump_buffer_says_whether_it_has_a_mask() {
        unsafe extern "C" {
            #[link_name = "__sigsetjmp"]
            fn sigsetjmp(env: *mut c_void, save: c_int) -> c_int;
        }
        let mut env = [0u64; 64];
        let at = env.as_mut_ptr().cast::<c_void>();
        for save in [0, 1] {
            // SAFETY: the buffer is larger than any `jmp_buf`, and nobody jumps to it.
            unsafe { sigsetjmp(at, save) };
            // SAFETY: inside the buffer.
            let saved = unsafe { at.byte_add(MASK_WAS_SAVED_AT).cast::<c_int>().read() };
            assert_eq!(saved, save);
        }
    }
}
