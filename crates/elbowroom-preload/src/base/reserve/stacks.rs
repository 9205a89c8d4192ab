//! Stacks of the library's own threads, and what else libc would allocate for them.
//!
//! std starts our threads by pthread_create, which is interposed. If libc made the stack, the kernel would
//! place it anywhere. So a thread that one of our threads starts gets a stack from the reserve: [`SLOTS`]
//! of them, each with a guard page below.
//!
//! libc also calls calloc for each thread: on the creating thread, and for the destructors of thread-local
//! variables. A thread's first call of malloc maps memory (an arena), which must not happen once the
//! program can have made holes. So threads that are started before the manager serves call malloc at once,
//! only these threads create others, and destructors are kept here.
//!
//! Synchronization: a slot's word is [`NOBODY`], [`BEING_MADE`], or the id of the thread that has the slot.
//! A thread cannot free its own stack. The slot is free for the next thread once the kernel knows no thread
//! of this process with the id.

use crate::base::real;
use crate::base::regions::{commit, commit_again, reserve};
use crate::base::state::{self, STARTING};
use crate::base::sys::{self, PAGE};
use libc::{c_int, c_long, c_void};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// The number of stacks, more than a manager and its service threads need. A thread for which none is free
/// gets a stack from libc.
const SLOTS: usize = 128;
/// Bytes of a stack with its guard page, beside what libc keeps there.
const STACK_BYTES: usize = 512 << 10;
/// The most destructors of a thread: std has one.
const MAX_DESTRUCTORS: usize = 8;

const NOBODY: u32 = 0;
const BEING_MADE: u32 = u32::MAX;

static OWNERS: [AtomicU32; SLOTS] = [const { AtomicU32::new(NOBODY) }; SLOTS];
/// Slots that have had a thread.
static WAS_USED: [AtomicBool; SLOTS] = [const { AtomicBool::new(false) }; SLOTS];
/// Where the first slot begins; 0: there are none.
static AREA: AtomicUsize = AtomicUsize::new(0);
static SLOT_BYTES: AtomicUsize = AtomicUsize::new(0);

/// A C function for a thread to run.
type Start = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Destructor = unsafe extern "C" fn(*mut c_void);

thread_local! {
    /// Whether this thread has a stack of the reserve.
    static ON_OUR_STACK: Cell<bool> = const { Cell::new(false) };
    static DESTRUCTORS: Cell<[Option<(Destructor, *mut c_void)>; MAX_DESTRUCTORS]> =
        const { Cell::new([None; MAX_DESTRUCTORS]) };
}

pub(super) fn prepare() {
    if AREA.load(Ordering::Acquire) != 0 {
        return;
    }
    let slot = (STACK_BYTES + kept_by_libc()).next_multiple_of(PAGE);
    if let Some(area) = reserve(SLOTS * slot) {
        SLOT_BYTES.store(slot, Ordering::Release);
        AREA.store(area.start, Ordering::Release);
    }
}

/// What libc keeps on each stack: the thread-local variables of the program and of libraries that were
/// loaded with it, its own data about the thread, and its minimum stack size.
pub fn kept_by_libc() -> usize {
    // SAFETY: the name is a string.
    let minimum = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr()) };
    if minimum.is_null() {
        return 0;
    }
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: libc's function of this name takes attributes and gives a size; std uses it, too.
    unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        let minimum: unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize =
            std::mem::transmute(minimum);
        let bytes = minimum(attributes.as_ptr());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        bytes
    }
}

pub(super) fn in_child() {
    OWNERS.iter().for_each(|owner| owner.store(NOBODY, Ordering::Release));
}

/// Takes a free slot, or one whose thread has ended.
fn take() -> Option<usize> {
    let free = |slot: &usize| {
        OWNERS[*slot].compare_exchange(NOBODY, BEING_MADE, Ordering::AcqRel, Ordering::Acquire).is_ok()
    };
    let left = |slot: &usize| {
        let owner = OWNERS[*slot].load(Ordering::Acquire);
        owner != NOBODY
            && owner != BEING_MADE
            && !exists(owner)
            && OWNERS[*slot].compare_exchange(owner, BEING_MADE, Ordering::AcqRel, Ordering::Acquire).is_ok()
    };
    (0..SLOTS).find(free).or_else(|| (0..SLOTS).find(left))
}

/// Whether this process has such a thread. A thread that the kernel does not know has left its stack for
/// good.
fn exists(tid: u32) -> bool {
    let kept = sys::errno();
    // SAFETY: integers only; signal 0 is none.
    let r =
        unsafe { sys::system_call(libc::SYS_tgkill, sys::getpid() as c_long, tid as c_long, 0 as c_long) };
    let gone = r < 0 && sys::errno() == libc::ESRCH;
    sys::set_errno(kept);
    !gone
}

/// The parameters of a new thread, at the low end of its stack.
struct First {
    start: Start,
    argument: *mut c_void,
    slot: usize,
}

/// pthread_create(3): with a stack of ours if a thread of ours calls.
///
/// # Safety
/// As pthread_create(3).
pub unsafe fn create_thread(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: *const c_void,
    argument: *mut c_void,
) -> c_int {
    let area = AREA.load(Ordering::Acquire);
    if area != 0
        && state::is_service_thread()
        && let Some(slot) = take()
    {
        // SAFETY: a thread's function is a `Start`; the slot was just taken.
        match unsafe { create_on(thread, std::mem::transmute::<*const c_void, Start>(start), argument, slot) }
        {
            Some(result) => return result,
            None => OWNERS[slot].store(NOBODY, Ordering::Release),
        }
    }
    // SAFETY: the caller's promise.
    unsafe { real::pthread_create(thread, attributes, start, argument) }
}

/// Creates a thread on the stack of a slot. `None`: this is not possible, and libc is to make the stack.
///
/// # Safety
/// As pthread_create(3); the slot is the caller's.
unsafe fn create_on(
    thread: *mut libc::pthread_t,
    start: Start,
    argument: *mut c_void,
    slot: usize,
) -> Option<c_int> {
    let slot_bytes = SLOT_BYTES.load(Ordering::Acquire);
    let base = AREA.load(Ordering::Acquire) + slot * slot_bytes;
    // The lowest page stays without rights.
    let stack = base + PAGE..base + slot_bytes;
    let committed = match WAS_USED[slot].load(Ordering::Acquire) {
        true => commit_again(&stack),
        false => commit(&stack),
    };
    if !committed {
        return None;
    }
    WAS_USED[slot].store(true, Ordering::Release);
    let first = stack.start as *mut First;
    // SAFETY: the slot's memory is ours; a stack grows down, so its low end is used last.
    unsafe { first.write(First { start, argument, slot }) };
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: the attributes are made, used and destroyed here; the stack is nobody else's.
    unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        let set =
            libc::pthread_attr_setstack(attributes.as_mut_ptr(), stack.start as *mut c_void, stack.len());
        let begin = begin as *const c_void;
        let result =
            (set == 0).then(|| real::pthread_create(thread, attributes.as_ptr(), begin, first.cast()));
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        // EINVAL: libc needs more of the stack than we know of.
        result.filter(|result| *result == 0 || *result == libc::EAGAIN).inspect(|result| {
            if *result != 0 {
                OWNERS[slot].store(NOBODY, Ordering::Release);
            }
        })
    }
}

/// The first function of a thread of ours.
unsafe extern "C" fn begin(first: *mut c_void) -> *mut c_void {
    // SAFETY: written for this thread by its creator.
    let First { start, argument, slot } = unsafe { first.cast::<First>().read() };
    OWNERS[slot].store(sys::gettid(), Ordering::Release);
    state::set_service_thread(true);
    ON_OUR_STACK.set(true);
    if state::process().is_some_and(|process| process.phase.load(Ordering::Acquire) == STARTING) {
        // This thread may start others later, for which libc then allocates on it. The first malloc maps an
        // arena: now, not then.
        // SAFETY: freed as it was made.
        unsafe { libc::free(std::hint::black_box(libc::malloc(1))) };
    }
    // SAFETY: what the creator was asked to call, and with what.
    let result = unsafe { start(argument) };
    run_destructors();
    result
}

fn run_destructors() {
    loop {
        let mut all = DESTRUCTORS.get();
        let Some((destructor, object)) = all.iter_mut().rev().find_map(Option::take) else { return };
        DESTRUCTORS.set(all);
        // SAFETY: registered for this thread's end, which this is; each runs once.
        unsafe { destructor(object) };
    }
}

/// __cxa_thread_atexit_impl: libc's own allocates a record, so what a thread of ours registers is kept here.
///
/// # Safety
/// As that function.
pub unsafe fn at_thread_exit(destructor: *const c_void, object: *mut c_void, dso: *mut c_void) -> c_int {
    if !ON_OUR_STACK.get() {
        // SAFETY: the caller's promise.
        return unsafe { real::__cxa_thread_atexit_impl(destructor, object, dso) };
    }
    let mut all = DESTRUCTORS.get();
    // In the order of registration: the free places are behind the last that is taken.
    let last = all.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    let Some(place) = all.get_mut(last) else { return -1 };
    // SAFETY: the caller's promise: a destructor takes one pointer.
    *place = Some((unsafe { std::mem::transmute::<*const c_void, Destructor>(destructor) }, object));
    DESTRUCTORS.set(all);
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::regions;
    use std::sync::atomic::AtomicU64;

    static RAN: AtomicU64 = AtomicU64::new(0);

    unsafe extern "C" fn note(object: *mut c_void) {
        RAN.store(RAN.load(Ordering::Relaxed) * 10 + object as u64, Ordering::Relaxed);
    }

    unsafe extern "C" fn body(argument: *mut c_void) -> *mut c_void {
        let here = &raw const argument as usize;
        assert!(regions::touches(&(here..here + 1)), "the stack is elsewhere");
        for object in 1..4_usize {
            // SAFETY: the function takes any pointer.
            unsafe { at_thread_exit(note as *const c_void, object as *mut c_void, std::ptr::null_mut()) };
        }
        argument
    }

    #[test]
    fn stacks_are_used_again_and_destructors_run_backwards() {
        prepare();
        let lent = || regions::elbowroom_own.lent.load(Ordering::Relaxed);
        assert_eq!(lent(), 0);
        state::set_service_thread(true);
        for round in 0..2 * SLOTS {
            let mut thread = 0;
            let argument = (round + 1) as *mut c_void;
            RAN.store(0, Ordering::Relaxed);
            // SAFETY: the thread is joined, and its function is one for threads.
            unsafe {
                let made = create_thread(&mut thread, std::ptr::null(), body as *const c_void, argument);
                assert_eq!(made, 0);
                let mut result = std::ptr::null_mut();
                assert_eq!(libc::pthread_join(thread, &mut result), 0);
                assert_eq!(result, argument);
            }
            assert_eq!((RAN.load(Ordering::Relaxed), lent()), (321, 1));
        }
        state::set_service_thread(false);
        assert_eq!(lent(), 0);
    }
}
