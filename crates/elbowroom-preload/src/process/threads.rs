//! The start and the end of a thread of the program's.
//!
//! When a thread ends, the kernel stores to memory: to the robust mutexes that the thread holds, and to the
//! word that tells of its end (CLONE_CHILD_CLEARTID). No userfault is served for these stores: a store to a
//! page that is not there is left out, and a thread that waits for it waits for ever. So such memory
//! becomes the kernel's before:
//! * where libc keeps a thread's words, if the program gives the stack: when the thread is made;
//! * the word that clone(2) is given: before the call;
//! * held robust mutexes, which are few: when the thread ends, in a destructor of thread-specific data. Those
//!   run at a return, pthread_exit and a cancellation, and not at a raw exit(2).
//!
//! Synchronization: what belongs to a thread is used by it alone.

use crate::agent::ranges::hand_back;
use crate::base::real;
use crate::base::reason::Reason;
use crate::base::reserve;
use crate::base::state;
use crate::base::sys::{self, Except, PAGE, SignalsBlocked};
use crate::process::signals::blocked;
use libc::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

type Start = *const c_void;
/// The type of function that pthread_create runs.
type Function = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;
/// The type of function that thrd_create runs.
type IntFunction = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// How many entries of a robust list the kernel looks at.
const MAX_HELD: usize = 2048;
/// How often the destructor runs: after other destructors, too, which may lock and unlock.
const ROUNDS: usize = 2;
/// Bytes at an address that the kernel stores to.
const WORD: usize = size_of::<u64>();

/// The key of the thread-specific data whose destructor looks for held robust mutexes.
static KEY: AtomicU32 = AtomicU32::new(NO_KEY);
const NO_KEY: u32 = u32::MAX;

/// The kernel's `robust_list_head`: the beginning of a list of held mutexes, which ends here, too.
#[repr(C)]
#[derive(Clone, Copy)]
struct RobustList {
    /// The next entry: the address of a pointer to the one after it. Its lowest bit is a flag.
    next: usize,
    /// From an entry to the word of its mutex, in bytes.
    offset: isize,
    /// An entry that is being added or removed.
    pending: usize,
}

/// Makes the key, and sets it for the first thread. Called before there are other threads.
pub fn set_up() {
    let mut key = 0;
    // SAFETY: the key is this library's, and the destructor takes what `watch_end` gives.
    if unsafe { libc::pthread_key_create(&mut key, Some(at_end)) } == 0 {
        KEY.store(key, Ordering::Release);
        watch_end(1);
    }
}

/// Has [`at_end`] called when this thread ends.
fn watch_end(round: usize) {
    let key = KEY.load(Ordering::Acquire);
    if key != NO_KEY {
        // SAFETY: the key was made; the value is a number.
        unsafe { libc::pthread_setspecific(key, round as *const c_void) };
    }
}

unsafe extern "C" fn at_end(round: *mut c_void) {
    give_held();
    let round = round as usize;
    if round < ROUNDS {
        watch_end(round + 1);
    }
}

/// Makes the pages the kernel's in which the robust mutexes lie that the calling thread holds.
pub fn give_held() {
    if state::alive().is_none() {
        return;
    }
    let kept = sys::errno();
    let (mut head, mut len) = (0usize, 0usize);
    // SAFETY: the kernel writes two words.
    let r = unsafe {
        sys::system_call(libc::SYS_get_robust_list, 0 as c_long, &raw mut head, &raw mut len) as c_int
    };
    if r == 0 && head != 0 && len == size_of::<RobustList>() {
        give_list(head);
    }
    sys::set_errno(kept);
}

fn give_list(head: usize) {
    let mut list = RobustList { next: 0, offset: 0, pending: 0 };
    if !sys::copy_in(head as *const RobustList, &mut list) {
        return;
    }
    if list.pending != 0 {
        give_entry(list.pending & !1, list.offset);
    }
    let mut entry = list.next & !1;
    for _ in 0..MAX_HELD {
        // The head points to itself if nothing is held.
        if entry == head || entry == 0 {
            return;
        }
        give_entry(entry, list.offset);
        let mut next = 0usize;
        if !sys::copy_in(entry as *const usize, &mut next) {
            return;
        }
        entry = next & !1;
    }
}

fn give_entry(entry: usize, offset: isize) {
    give(entry, WORD);
    give(entry.wrapping_add_signed(offset), WORD);
}

/// Makes the pages of these bytes the kernel's.
pub fn give(at: usize, len: usize) {
    let Some((process, manager)) = state::alive() else { return };
    let Some(end) = at.checked_add(len) else { return };
    if !manager.windows().intersects(at, len) {
        return;
    }
    process.count(Reason::KernelCall);
    if hand_back(process, at & !(PAGE - 1)..end.next_multiple_of(PAGE)).is_err() {
        process.count(Reason::NotGiven);
    }
}

/// What a thread is to run, and the virtual mask that it inherits.
struct Created {
    start: Start,
    argument: *mut c_void,
    mask: u64,
}

impl Created {
    /// Allocates the parameters of a thread that the caller makes.
    fn leak(start: Start, argument: *mut c_void) -> *mut c_void {
        let mask = blocked::mask();
        alone(|| Box::into_raw(Box::new(Self { start, argument, mask })).cast())
    }

    /// Takes the parameters back, in the thread, or if it was not made.
    ///
    /// # Safety
    /// [`Created::leak`] gave it, and this is the only call for it.
    unsafe fn take(what: *mut c_void) -> Self {
        // SAFETY: the caller's promise.
        alone(|| *unsafe { Box::from_raw(what.cast::<Self>()) })
    }

    /// Takes the parameters at the start of the thread, and sets up its mask and its end.
    ///
    /// # Safety
    /// As [`Created::take`].
    unsafe fn begin(what: *mut c_void) -> Self {
        // SAFETY: the caller's promise.
        let created = unsafe { Self::take(what) };
        blocked::inherit(created.mask);
        watch_end(1);
        created
    }
}

/// Runs a call that uses the library's heap on a thread of the program's. No signal handler may interrupt
/// it: the handler could wait for a thread of ours that waits for the heap's lock.
fn alone<R>(call: impl FnOnce() -> R) -> R {
    let _blocked = SignalsBlocked::new(Except::Nothing);
    call()
}

unsafe extern "C-unwind" fn run(what: *mut c_void) -> *mut c_void {
    // SAFETY: `create` made it for this thread.
    let Created { start, argument, .. } = unsafe { Created::begin(what) };
    // SAFETY: the program's own function, of this type, and argument.
    unsafe { std::mem::transmute::<Start, Function>(start)(argument) }
}

unsafe extern "C-unwind" fn run_int(what: *mut c_void) -> c_int {
    // SAFETY: `create_int` made it for this thread.
    let Created { start, argument, .. } = unsafe { Created::begin(what) };
    // SAFETY: the program's own function, of this type, and argument.
    unsafe { std::mem::transmute::<Start, IntFunction>(start)(argument) }
}

/// pthread_create(3).
///
/// # Safety
/// As pthread_create(3).
pub unsafe fn create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    if start.is_null() || state::for_program().is_none() {
        // Threads of ours get their stacks from the reserve.
        // SAFETY: the caller's promise.
        return unsafe { reserve::create_thread(thread, attributes, start, argument) };
    }
    // SAFETY: the caller's promise.
    unsafe { give_stack(attributes) };
    let what = Created::leak(start, argument);
    // SAFETY: the caller's promise; the thread takes `what`.
    let r = unsafe { real::pthread_create(thread, attributes, run as *const c_void, what) };
    if r != 0 {
        // SAFETY: no thread has taken it.
        unsafe { Created::take(what) };
    }
    r
}

/// thrd_create(3), which in libc does not call pthread_create.
///
/// # Safety
/// As thrd_create(3).
pub unsafe fn create_int(thread: *mut libc::pthread_t, start: Start, argument: *mut c_void) -> c_int {
    if start.is_null() || state::for_program().is_none() {
        // SAFETY: the caller's promise.
        return unsafe { real::thrd_create(thread, start, argument) };
    }
    let what = Created::leak(start, argument);
    // SAFETY: the caller's promise; the thread takes `what`.
    let r = unsafe { real::thrd_create(thread, run_int as *const c_void, what) };
    if r != 0 {
        // SAFETY: no thread has taken it.
        unsafe { Created::take(what) };
    }
    r
}

/// Makes the end of a stack that the program gives the kernel's: libc keeps the words there that the kernel
/// stores to.
///
/// # Safety
/// `attributes` is null or valid.
unsafe fn give_stack(attributes: *const libc::pthread_attr_t) {
    if attributes.is_null() || state::alive().is_none() {
        return;
    }
    let (mut stack, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: the caller's promise.
    if unsafe { libc::pthread_attr_getstack(attributes, &mut stack, &mut len) } != 0 {
        return;
    }
    // Without a stack of the program's only the length is set, and the end is address 0.
    let Some(end) = (stack as usize).checked_add(len).filter(|end| *end != 0) else { return };
    let kept = reserve::kept_by_libc().min(len);
    give(end - kept, kept);
}
