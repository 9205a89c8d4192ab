//! The handler of SIGBUS, and of the SIGSEGV that the manager itself may cause.
//!
//! It runs inside of an access to the bytes of a mapping. The code around that access holds no lock of the
//! interpreter's runtime or of the allocator, and so the handler may call what that code could call.
//!
//! Signals of other addresses, and signals that were sent, go to the handler that was there before.

use super::desk::Question;
use super::{ERROR, IMPATIENT, SERVING, SHOW_BOUND, SHOWER, TELL_BOUND, TELL_BOUND_AGAIN, TELLER, spans};
use super::{LOOK_AT, SHOW, YES};
use elbowroom_house::house;
use pyo3::ffi;
use std::cell::Cell;
use std::ffi::{CStr, c_int, c_long, c_void};
use std::io;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// The code of a SIGBUS by an access that cannot be served.
const BUS_ADRERR: c_int = 2;
/// The code of a SIGSEGV by an access for which the rights lack.
const SEGV_ACCERR: c_int = 2;

/// A signal that this module handles, and the handler that was registered before.
struct Front {
    signal: c_int,
    before: AtomicPtr<libc::sigaction>,
    /// The thread that runs that handler now, or has left it by a jump; 0: none.
    passing: AtomicI32,
    /// The context that the kernel has made for that call.
    context: AtomicUsize,
    /// An address in the stack frame of that call.
    frame: AtomicUsize,
}

impl Front {
    const fn of(signal: c_int) -> Self {
        Self {
            signal,
            before: AtomicPtr::new(null_mut()),
            passing: AtomicI32::new(0),
            context: AtomicUsize::new(0),
            frame: AtomicUsize::new(0),
        }
    }
}

static FRONTS: [Front; 2] = [Front::of(libc::SIGBUS), Front::of(libc::SIGSEGV)];

type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// The names of a function of the interpreter that is not in the stable ABI: that since Python 3.13, and the
/// one before. It returns the state of the thread that holds the interpreter's lock; since 3.12 that is the
/// calling thread, or no thread. `PyGILState_Check` is no substitute: once a sub-interpreter exists, it says
/// yes to every thread.
const CURRENT_NAMES: [&CStr; 2] = [c"PyThreadState_GetUnchecked", c"_PyThreadState_UncheckedGet"];
type Current = unsafe extern "C" fn() -> *mut ffi::PyThreadState;
static CURRENT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Puts the handler in front of the one that is there, unless it is in front already. With a lock held, so
/// that two threads do not do it at a time.
///
/// # Errors
/// ENOSYS: the interpreter lacks a function. The kernel's.
pub fn stand_in_front() -> io::Result<()> {
    // SAFETY: the names end.
    let find = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    let current = CURRENT_NAMES.into_iter().map(find).find(|found| !found.is_null());
    CURRENT.store(current.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSYS))?, Ordering::Release);
    for front in &FRONTS {
        // SAFETY: the structs are written before they are read, and all zero is one of them.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(front.signal, null(), &raw mut now) != 0 {
                return Err(io::Error::last_os_error());
            }
            if now.sa_sigaction == on_signal as Handler as usize {
                continue;
            }
            // Never freed: another thread may be about to call it.
            front.before.store(Box::leak(Box::new(now)), Ordering::Release);
            let mut ours: libc::sigaction = std::mem::zeroed();
            ours.sa_sigaction = on_signal as Handler as usize;
            // Not deferred: a handler of before may send the signal again, to end the process.
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
            libc::sigemptyset(&raw mut ours.sa_mask);
            if libc::sigaction(front.signal, &raw const ours, null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

unsafe extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a `siginfo_t`, and the address of errno is the thread's.
    let (code, address, errno) =
        unsafe { ((*info).si_code, (*info).si_addr() as usize, *libc::__errno_location()) };
    let served = match (signal, code) {
        (libc::SIGBUS, BUS_ADRERR) => spans::cover(address) && serve(address),
        (libc::SIGSEGV, SEGV_ACCERR) => spans::cover(address) && met_passage(address),
        _ => false,
    };
    if !served {
        // SAFETY: the arguments are the kernel's.
        unsafe { pass_on(signal, code, info, context) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Has the thread of the access get an exception, and its page show zeros for a moment. `false`: the page is
/// none of ours, or cannot be shown.
fn serve(address: usize) -> bool {
    // A forked child that could not go on with the manager has none of the threads.
    if !SERVING.load(Ordering::Acquire) {
        return false;
    }
    // SAFETY: functions without arguments.
    let (thread, state) = unsafe { (libc::pthread_self() as usize, ffi::PyGILState_GetThisThreadState()) };
    if SHOWER.ask([LOOK_AT | address, thread], SHOW_BOUND) != Some(YES) {
        return false;
    }
    if holds_the_interpreter(state) {
        // SAFETY: the thread holds the interpreter's lock.
        unsafe { set_exception(thread) };
    } else {
        // If the interpreter ends, no thread uses what it computes any more.
        ask_teller([thread, usize::from(!state.is_null())]);
    }
    SHOWER.ask([SHOW | address, thread], SHOW_BOUND) == Some(YES)
}

/// When the last wait for the teller that was in vain has ended, in milliseconds of the monotonic clock; 0:
/// none was.
static IN_VAIN: AtomicU64 = AtomicU64::new(0);
/// What `Desk::done` of the teller was before that wait.
static DONE_BEFORE: AtomicU32 = AtomicU32::new(0);

/// Asks the teller. A thread that holds the interpreter's lock may wait for this very access, and for those
/// to all further pages. So only the first of these accesses waits long. While the teller has not got the
/// lock since, the others do not wait at all.
fn ask_teller(question: Question) {
    let (before, at) = (TELLER.done(), IN_VAIN.load(Ordering::Acquire));
    let bound = if at == 0 {
        TELL_BOUND
    } else if DONE_BEFORE.load(Ordering::Acquire) == before {
        Duration::ZERO
    } else if now().saturating_sub(at) < IMPATIENT.as_millis() as u64 {
        TELL_BOUND_AGAIN
    } else {
        TELL_BOUND
    };
    if TELLER.ask(question, bound).is_none() && !bound.is_zero() {
        DONE_BEFORE.store(before, Ordering::Release);
        IN_VAIN.store(now(), Ordering::Release);
    }
}

/// Milliseconds of the monotonic clock.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Whether the calling thread holds the interpreter's lock. `state`: the interpreter's state of this thread,
/// or null.
fn holds_the_interpreter(state: *mut ffi::PyThreadState) -> bool {
    let current = CURRENT.load(Ordering::Acquire);
    if state.is_null() || current.is_null() {
        return false;
    }
    // SAFETY: it was found under the name of a function of this type, which any thread may call.
    unsafe { std::mem::transmute::<*mut c_void, Current>(current)() == state }
}

/// Has a thread raise our exception at its next look.
///
/// # Safety
/// The calling thread holds the interpreter's lock.
pub unsafe fn set_exception(thread: usize) -> bool {
    let error = ERROR.load(Ordering::Acquire);
    // SAFETY: the caller's promise; the class is never freed.
    !error.is_null() && unsafe { ffi::PyThreadState_SetAsyncExc(thread as c_long, error) == 1 }
}

/// Whether the manager was just making the page part of its window again, while it has no rights. Then the
/// access is repeated; if the cause is another one, the signal comes again and is passed on.
fn met_passage(address: usize) -> bool {
    thread_local! {
        static SEEN: Cell<u64> = const { Cell::new(0) };
    }
    let Some(house) = house::started() else { return false };
    let passages = house.manager.passages();
    if passages == SEEN.get() || !house.manager.windows().covers(address, 1) {
        return false;
    }
    if passages.is_multiple_of(2) {
        SEEN.set(passages);
    } else {
        std::thread::yield_now();
    }
    true
}

/// Gives a signal to the handler that was there before, as the kernel would: it is called with its own mask
/// of signals, and once if it has SA_RESETHAND. It runs on an alternative stack even without SA_ONSTACK.
///
/// # Safety
/// The arguments are those of a handler.
#[inline(never)]
unsafe fn pass_on(signal: c_int, code: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(front) = FRONTS.iter().find(|front| front.signal == signal) else { return };
    let here = 0_u8;
    let (frame, at) = ((&raw const here) as usize, context as usize);
    // SAFETY: what was there before is never freed. Its handler is called with the arguments that it was
    // registered for.
    unsafe {
        let this = libc::gettid();
        let registered = front.before.load(Ordering::Acquire);
        let before = registered.as_ref();
        let handler = before.map_or(libc::SIG_DFL, |before| before.sa_sigaction);
        if handler == libc::SIG_IGN && code <= 0 {
            return;
        }
        // The handler of before is still at work, above this frame, and ends the process: it has restored us
        // and sends the signal again, or it calls us with the signal that it got from us. A handler that was
        // left by a jump gets the next signal, too: that signal's frame is not below the one of before.
        let again = front.passing.load(Ordering::Acquire) == this
            && frame < front.frame.load(Ordering::Acquire)
            && (code <= 0 || front.context.load(Ordering::Acquire) == at);
        let Some(before) = before.filter(|_| !again && handler != libc::SIG_DFL && handler != libc::SIG_IGN)
        else {
            let mut default: libc::sigaction = std::mem::zeroed();
            default.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &raw const default, null_mut());
            if code <= 0 {
                libc::raise(signal);
            }
            // Else the access is made again, and ends the process.
            return;
        };
        if before.sa_flags & libc::SA_RESETHAND != 0 {
            let _ =
                front.before.compare_exchange(registered, null_mut(), Ordering::AcqRel, Ordering::Acquire);
        }
        let (mut mask, mut old) = (before.sa_mask, std::mem::zeroed());
        if before.sa_flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&raw mut mask, signal);
        }
        front.context.store(at, Ordering::Release);
        front.frame.store(frame, Ordering::Release);
        front.passing.store(this, Ordering::Release);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, &raw mut old);
        if before.sa_flags & libc::SA_SIGINFO != 0 {
            std::mem::transmute::<usize, Handler>(handler)(signal, info, context);
        } else {
            std::mem::transmute::<usize, unsafe extern "C" fn(c_int)>(handler)(signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, null_mut());
        front.passing.store(0, Ordering::Release);
    }
}
