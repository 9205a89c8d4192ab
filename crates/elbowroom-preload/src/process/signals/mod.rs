//! Signals whose default action ends the process.
//!
//! Once a mapping is managed, such an end must not lose stores, nor the report. So we stand in front of the
//! program's dispositions where it matters, with [`dispatch`], without the program noticing: sigaction(2)
//! and its relatives (abi/signal.rs) report what the program has set, which table.rs remembers. We stand in
//! front of
//! * SIG_DFL, of every signal that ends the process: the handler writes back and reports, and lets the signal
//!   happen again by default (fatal.rs);
//! * handlers with SA_RESETHAND: the kernel would make the disposition SIG_DFL behind our back, and a handler
//!   that raises the signal again would end the process. It becomes our SIG_DFL instead;
//! * SIG_IGN of signals that instructions raise: the kernel does not ignore them then, but kills;
//! * handlers of signals that instructions raise, and handlers that block such signals: if they are blocked,
//!   the kernel kills, so it must not know (blocked.rs);
//! * handlers and SIG_IGN of SIGABRT: abort(3) inside libc raises it, and then once more by default.
//!
//! The kernel's disposition has the program's flags and mask, so that a handler is called as the kernel would
//! call it.
//!
//! As process 1 of a PID namespace a process cannot be ended by SIG_DFL, unless an instruction raises the
//! signal; handlers would be called, and interrupt its system calls. There we stand in front of SIG_DFL only
//! for signals that instructions raise.
//!
//! A handler may be installed by a raw call, in the place of ours. While it is there, the kernel calls it.
//! The handler that it has replaced, and may call in turn, is ours, which then does what the program had
//! set before. We look for such a handler, and stand in front of it, when a range is mapped, when the
//! program changes the signal's disposition, and before abort(3). From then on that handler, called by
//! ours, may call ours again (forward.rs).
//!
//! A child that shares our memory (vfork) has dispositions of its own, but not a table of its own: what it
//! sets goes to the kernel as it is.
//!
//! Synchronization: see table.rs.

pub mod blocked;
mod fatal;
mod forward;
pub mod kernel;
pub mod kind;
mod passage;
mod table;

use crate::agent::flush::flush;
use crate::base::real;
use crate::base::sys;
use crate::base::tree;
use kernel::{exchange, has_own_table, set_default};
use kind::{LAST_SIGNAL, is_fatal, is_synchronous};
use libc::{c_int, c_void, siginfo_t};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use table::{Action, Held};

/// What we stand in front of: nothing, signals that instructions raise, or all.
static ARMED: AtomicU32 = AtomicU32::new(NOTHING);
const NOTHING: u32 = 0;
const INSTRUCTIONS: u32 = 1;
const ALL: u32 = 2;
/// The process that called [`arm`] was process 1 of its namespace.
static AS_INIT: AtomicBool = AtomicBool::new(false);
/// Signals that the program ignores, and that we stand in front of (bit n-1 for signal n).
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// Whether the program sees a virtual disposition of the signal now.
fn is_virtual(signal: c_int) -> bool {
    match ARMED.load(Ordering::Acquire) {
        NOTHING => false,
        INSTRUCTIONS => is_synchronous(signal),
        _ => is_fatal(signal),
    }
}

/// Stands in front of the dispositions. Once is enough for a process and its children. Only the children of
/// a process 1 do it again, since it leaves SIG_DFL alone.
pub fn arm() {
    tree::now_managed();
    let armed = ARMED.load(Ordering::Acquire) == ALL;
    if armed && !exchange(libc::SIGSEGV, None).is_some_and(|there| is_ours(&there)) {
        // A raw call has replaced our handler. This signal may be the library's doing.
        adopt(&table::lock(libc::SIGSEGV));
    }
    if armed && !(AS_INIT.load(Ordering::Acquire) && sys::getpid() != 1) {
        return;
    }
    AS_INIT.store(sys::getpid() == 1, Ordering::Release);
    ARMED.store(ALL, Ordering::Release);
    for signal in (1..=LAST_SIGNAL).filter(|signal| is_fatal(*signal)) {
        adopt(&table::lock(signal));
    }
}

/// As [`arm`], for the signals that instructions raise, even if nothing is managed: the program is about to
/// block some of them.
pub fn arm_synchronous() {
    let armed = ARMED.compare_exchange(NOTHING, INSTRUCTIONS, Ordering::AcqRel, Ordering::Acquire).is_err();
    if armed {
        return;
    }
    for signal in (1..=LAST_SIGNAL).filter(|signal| is_synchronous(*signal)) {
        adopt(&table::lock(signal));
    }
}

/// In a forked child, which has only one thread.
pub fn after_fork() {
    table::after_fork();
    // A child that accesses its parent's managed memory gets an explanation (fatal.rs).
    if is_virtual(libc::SIGSEGV) {
        adopt(&table::lock(libc::SIGSEGV));
    }
}

/// Records the kernel's disposition of a signal as the program's, if it is not ours, and stands in front of
/// it if need be.
fn adopt(held: &Held) {
    let signal = held.signal();
    let mut there = exchange(signal, None);
    for _ in 0..ADOPTIONS {
        let Some(found) = there.filter(|there| !is_ours(there)) else { return };
        let action = Action::of(&found);
        held.adopt(action);
        note_ignored(signal, &found);
        let Some(front) = in_front_of(signal, action) else { return };
        // A raw call may have set something else meanwhile.
        there = exchange(signal, Some(front)).filter(|there| Action::of(there) != action);
    }
}

/// How often this is tried again if raw calls of other threads change the disposition at the same moment.
const ADOPTIONS: usize = 16;

/// The disposition that the kernel gets for the program's; `None`: the program's own.
fn in_front_of(signal: c_int, action: Action) -> Option<Action> {
    let handler = dispatch as *const () as usize;
    let ours = libc::SA_SIGINFO | libc::SA_ONSTACK;
    match action.handler {
        libc::SIG_DFL => (is_synchronous(signal) || sys::getpid() != 1).then_some(Action {
            handler,
            flags: ours,
            mask: !0,
        }),
        libc::SIG_IGN => (is_synchronous(signal) || signal == libc::SIGABRT).then_some(Action {
            handler,
            flags: ours | libc::SA_RESTART,
            mask: 0,
        }),
        _ => {
            let deferred = if is_synchronous(signal) { libc::SA_NODEFER } else { 0 };
            let needed = action.flags & libc::SA_RESETHAND != 0
                || signal == libc::SIGABRT
                || is_synchronous(signal)
                || action.mask & blocked::SYNCHRONOUS != 0;
            needed.then_some(Action {
                handler,
                flags: action.flags & !libc::SA_RESETHAND | libc::SA_SIGINFO | deferred,
                mask: action.mask & !blocked::SYNCHRONOUS,
            })
        }
    }
}

/// Whether a disposition of the kernel's is ours.
fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == dispatch as *const () as usize
}

fn note_ignored(signal: c_int, set: &libc::sigaction) {
    let bit = 1 << (signal - 1);
    if set.sa_sigaction == libc::SIG_IGN && in_front_of(signal, Action::of(set)).is_some() {
        IGNORED.fetch_or(bit, Ordering::AcqRel);
    } else {
        IGNORED.fetch_and(!bit, Ordering::AcqRel);
    }
}

/// sigaction(2) as the program sees it.
///
/// # Safety
/// As sigaction(2): the pointers are null or valid.
pub unsafe fn virtual_sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !is_virtual(signal) {
        // SAFETY: the caller's promise.
        let r = unsafe { real::sigaction(signal, new, old) };
        if is_virtual(signal) && has_own_table() {
            // Another thread has installed our handler of the signal meanwhile.
            adopt(&table::lock(signal));
        }
        return r;
    }
    // SAFETY: the caller's promise. Read before `old` is written: the two may be the same.
    let asked = unsafe { new.as_ref() }.copied();
    let mut there = Action { handler: libc::SIG_DFL, flags: 0, mask: 0 }.to_libc();
    let (before, r);
    if has_own_table() {
        let held = table::lock(signal);
        before = held.load();
        let front = asked.and_then(|asked| in_front_of(signal, Action::of(&asked))).map(Action::to_libc);
        let set = front.as_ref().or(asked.as_ref()).map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: both pointers are null or to our own.
        r = unsafe { real::sigaction(signal, set, &mut there) };
        if let (0, Some(asked)) = (r, asked) {
            held.store(as_reported(Action::of(&asked)));
            note_ignored(signal, &asked);
        }
    } else {
        before = table::load(signal);
        let set = asked.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: as above.
        r = unsafe { real::sigaction(signal, set, &mut there) };
    }
    // SAFETY: the caller's promise.
    if let (0, Some(old)) = (r, unsafe { old.as_mut() }) {
        *old = there;
        if is_ours(&there) {
            tell(before, old);
        }
    }
    r
}

/// What sigaction(2) reports for what was set by libc's sigaction: the flag that libc adds is in it.
fn as_reported(action: Action) -> Action {
    let added = if cfg!(target_arch = "x86_64") { table::SA_RESTORER } else { 0 };
    Action { flags: action.flags | added, ..action }
}

/// Replaces our disposition, in what sigaction(2) reports, by the program's behind it.
fn tell(action: Action, old: &mut libc::sigaction) {
    // siginterrupt(3) changes this flag in the kernel's disposition, without our knowing.
    let restart = if action.is_handler() { libc::SA_RESTART } else { 0 };
    let flags = action.flags & !restart | old.sa_flags & restart;
    Action { flags, ..action }.write_to(old);
    if flags & table::SA_RESTORER == 0 {
        old.sa_restorer = None;
    }
}

/// libc's signal(3) or a relative of it, as the program sees it.
///
/// # Safety
/// As that function.
pub unsafe fn virtual_signal(real: unsafe fn(c_int, usize) -> usize, signal: c_int, handler: usize) -> usize {
    let before = is_fatal(signal).then(|| table::load(signal).handler);
    // SAFETY: the caller's promise. Not under the lock, which blocks signals: some of these functions read
    // the mask, and change it.
    let was = unsafe { real(signal, handler) };
    let Some(before) = before else { return was };
    if is_virtual(signal) && has_own_table() {
        let kept = sys::errno();
        adopt(&table::lock(signal));
        sys::set_errno(kept);
    }
    if was == dispatch as *const () as usize { before } else { was }
}

/// Before another program replaces this one: it inherits which signals are ignored, and which are blocked.
pub fn before_exec() {
    // A child that shares our memory may have set its own mask, which is the kernel's.
    if has_own_table() {
        sys::block(blocked::mask());
    }
    each_ignored(Some);
}

/// The other program did not start.
pub fn after_exec() {
    if has_own_table() {
        sys::unblock(blocked::mask());
    }
    each_ignored(|_| None);
}

/// Sets, for the ignored signals that we stand in front of, the kernel's disposition to `given(SIG_IGN)`;
/// if that is `None`, to ours.
fn each_ignored(given: impl Fn(Action) -> Option<Action>) {
    let ignored = IGNORED.load(Ordering::Acquire);
    let action = Action { handler: libc::SIG_IGN, flags: 0, mask: 0 };
    for signal in (1..=LAST_SIGNAL).filter(|signal| ignored & 1 << (signal - 1) != 0) {
        // A child that shares our memory may have set something else in the kernel.
        let expected = |there: &libc::sigaction| is_ours(there) || there.sa_sigaction == libc::SIG_IGN;
        if exchange(signal, None).is_some_and(|there| expected(&there)) {
            exchange(signal, given(action).or(in_front_of(signal, action)));
        }
    }
}

/// The first step of abort(3): raises SIGABRT, so that the program's disposition takes effect. With SIG_DFL
/// it is not raised: the alternate stack of a handler that has called abort may have no room for another.
pub fn abort_first() {
    adopt(&table::lock(libc::SIGABRT));
    if table::load(libc::SIGABRT).handler == libc::SIG_DFL {
        return;
    }
    sys::unblock(1 << (libc::SIGABRT - 1));
    // SAFETY: integers only.
    unsafe {
        sys::system_call(
            libc::SYS_tgkill,
            libc::c_long::from(sys::getpid()),
            libc::c_long::from(sys::gettid()),
            libc::SIGABRT as libc::c_long,
        )
    };
}

/// Our handler, which the kernel calls instead of the program's.
unsafe extern "C-unwind" fn dispatch(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a valid siginfo, in which all signals that instructions raise have an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let by_instruction = is_synchronous(signal) && code > 0;
    if signal == libc::SIGSEGV && code == passage::SEGV_ACCERR && passage::met(address) {
        // The instruction is done again.
        return;
    }
    // SAFETY: the kernel's own.
    let interrupted = unsafe { blocked::witness(context) };
    if is_synchronous(signal) && interrupted & 1 << (signal - 1) != 0 {
        match by_instruction {
            true => fatal::happens(signal, info),
            // SAFETY: the kernel's own.
            false => unsafe { blocked::postpone(signal, info, context) },
        }
        return;
    }
    let frame = (&raw const by_instruction) as usize;
    let this = forward::Call::new(signal, context, frame);
    let mut action = this.action();
    if action.is_handler() && action.flags & libc::SA_RESETHAND != 0 {
        action = reset(signal);
    }
    let by_itself = signal == libc::SIGABRT && code == libc::SI_TKILL;
    match action.handler {
        libc::SIG_DFL => fatal::happens(signal, info),
        libc::SIG_IGN if by_instruction => fatal::happens(signal, info),
        libc::SIG_IGN => {}
        // SAFETY: the kernel's own.
        _ => this.during(|| unsafe { call(action, interrupted, signal, info, context) }),
    }
    if by_itself {
        // If abort(3) inside libc has raised the signal, it now raises it again, after setting SIG_DFL.
        flush();
    }
}

/// Calls the program's handler as the kernel would, in a thread that has blocked `interrupted`.
unsafe fn call(action: Action, interrupted: u64, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the program gave this function for this signal; one that takes only the number ignores the
    // rest.
    let handler: unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
        unsafe { std::mem::transmute(action.handler) };
    let itself = if action.flags & libc::SA_NODEFER == 0 { 1 << (signal - 1) } else { 0 };
    // SAFETY: as above.
    unsafe {
        blocked::during(action.mask | itself, interrupted, context, || handler(signal, info, context));
    };
}

/// Resets the disposition before a handler with SA_RESETHAND is called: to SIG_DFL, with the same flags and
/// mask. Gives the disposition before.
fn reset(signal: c_int) -> Action {
    if !has_own_table() {
        set_default(signal);
        return table::load(signal);
    }
    let held = table::lock(signal);
    let before = held.load();
    // Of two threads that get the signal at once, the second finds the first one's SIG_DFL.
    if before.is_handler() && before.flags & libc::SA_RESETHAND != 0 {
        let after = Action { handler: libc::SIG_DFL, ..before };
        held.store(after);
        // A handler that a raw call has installed instead of ours stays.
        if exchange(signal, None).is_some_and(|there| is_ours(&there)) {
            exchange(signal, Some(in_front_of(signal, after).unwrap_or(after)));
        }
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_keeps_its_flags_and_mask_behind_ours() {
        let once = Action { handler: 0x1000, flags: libc::SA_RESETHAND | libc::SA_NODEFER, mask: 5 };
        let front = in_front_of(libc::SIGTERM, once).unwrap();
        assert_eq!((front.flags, front.mask), (libc::SA_NODEFER | libc::SA_SIGINFO, 5));
        assert_eq!(in_front_of(libc::SIGTERM, Action { flags: 0, ..once }), None);
        assert!(in_front_of(libc::SIGABRT, Action { flags: 0, ..once }).is_some());
        assert_eq!(in_front_of(libc::SIGTERM, Action { handler: libc::SIG_IGN, ..once }), None);
        assert!(in_front_of(libc::SIGBUS, Action { handler: libc::SIG_IGN, ..once }).is_some());
        assert!(in_front_of(libc::SIGTERM, Action { handler: libc::SIG_DFL, ..once }).is_some());
    }
}
