//! Calls that make children, which may read the files: before them, stores through mappings are written
//! back. fork itself runs libc's own hooks (fork.rs), and is interposed only because hooks cannot make it
//! fail.

use crate::agent::flush::flush;
use crate::base::real;
use crate::base::state;
use crate::base::sys;
use crate::process::exec;
use crate::process::fork;
use crate::process::inherit::{self, refuse};
use crate::process::threads;
use libc::{FILE, c_char, c_int, c_long, c_void};

pub type Strings = *const *const c_char;
pub type Start = *mut c_void;

pub unsafe extern "C" fn before_vfork() -> *mut c_void {
    before_child();
    real::next(c"vfork")
}

/// pthread_atfork(3). Ours are registered before all others, so that they run first in a child, and last
/// before a fork.
pub unsafe fn register_hooks(prepare: Start, parent: Start, child: Start, dso: *mut c_void) -> c_int {
    fork::register();
    // SAFETY: the caller's promise.
    unsafe { real::__register_atfork(prepare, parent, child, dso) }
}

pub unsafe fn fork_with_handlers() -> c_int {
    // SAFETY: takes nothing.
    let fork = || unsafe { real::fork() };
    if state::alive().is_some() { inherit::fork(fork) } else { fork() }
}

pub unsafe fn fork_without_handlers() -> c_int {
    if state::process().is_none() {
        // SAFETY: takes nothing.
        return unsafe { real::_Fork() };
    }
    if let Some(errno) = refuse::without_hooks() {
        return sys::fail(errno);
    }
    if !fork::before_fork() {
        return fails_now();
    }
    // SAFETY: as above.
    let pid = unsafe { real::_Fork() };
    if pid == 0 {
        in_child_without_handlers();
    } else {
        fork::after_fork();
    }
    pid
}

/// Fails a fork: some managed memory does not go back to the kernel, and the child would lack it.
fn fails_now() -> c_int {
    fork::after_fork();
    sys::fail(refuse::say(refuse::STAYS_MANAGED))
}

/// libc's hooks do not run around this fork: another thread of the parent may have held one of libc's locks.
/// So the child gets no manager.
fn in_child_without_handlers() {
    fork::in_child();
    if let Some(process) = state::process() {
        process.phase.store(state::FAILED, std::sync::atomic::Ordering::Release);
    }
}

/// The function that a cloned child with memory of its own is to run, and its argument. It lies on the
/// stack of clone's caller, of which the child has a copy.
struct Cloned {
    start: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
}

unsafe extern "C-unwind" fn cloned(what: *mut c_void) -> c_int {
    in_child_without_handlers();
    // SAFETY: `make_clone` gave it, and its frame was alive when the memory was copied.
    let Cloned { start, argument } = unsafe { what.cast::<Cloned>().read() };
    // SAFETY: the program's own function and argument.
    unsafe { start(argument) }
}

/// clone(2) of libc, which takes the last three arguments only if the flags ask for them: the registers and
/// the stack hold something else otherwise, which is passed on unread.
pub unsafe fn make_clone(
    start: Start,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut c_int,
    tls: *mut c_void,
    child_tid: *mut c_int,
) -> c_int {
    let own_memory = flags & libc::CLONE_VM == 0;
    if state::process().is_some() && own_memory && !start.is_null() {
        if let Some(errno) = refuse::without_hooks() {
            return sys::fail(errno);
        }
        if !fork::before_fork() {
            return fails_now();
        }
        // SAFETY: a function pointer of the program's, which is not null.
        let start =
            unsafe { std::mem::transmute::<Start, unsafe extern "C-unwind" fn(*mut c_void) -> c_int>(start) };
        let mut what = Cloned { start, argument };
        let what = (&raw mut what).cast();
        let start = cloned as *mut c_void;
        // SAFETY: the caller's promise; the child has a copy of `what`.
        let pid = unsafe { real::clone(start, stack, flags, what, parent_tid, tls, child_tid) };
        fork::after_fork();
        return pid;
    }
    if flags & libc::CLONE_THREAD == 0 {
        before_child();
    }
    if flags & libc::CLONE_CHILD_CLEARTID != 0 {
        threads::give(child_tid as usize, size_of::<c_int>());
    }
    // SAFETY: the caller's promise.
    unsafe { real::clone(start, stack, flags, argument, parent_tid, tls, child_tid) }
}

/// clone(2) by its number, without CLONE_VM, on the caller's stack.
///
/// # Safety
/// As the call.
pub unsafe extern "C-unwind" fn clone_by_number(
    flags: c_long,
    stack: c_long,
    parent_tid: c_long,
    child_tid: c_long,
    tls: c_long,
    _: c_long,
) -> c_long {
    if let Some(errno) = refuse::without_hooks() {
        return sys::fail(errno).into();
    }
    if !fork::before_fork() {
        return fails_now().into();
    }
    // SAFETY: the caller's promise; the child has a copy of this frame.
    let pid = unsafe { sys::system_call(libc::SYS_clone, flags, stack, parent_tid, child_tid, tls) };
    if pid == 0 {
        in_child_without_handlers();
    } else {
        fork::after_fork();
    }
    pid
}

/// To be called before a child is made that may read the files: writes back.
fn before_child() {
    if state::alive().is_some() {
        flush();
    }
}

pub unsafe fn spawn(
    pid: *mut c_int,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    args: Strings,
    env: Strings,
) -> c_int {
    before_child();
    // SAFETY: the caller's promise; what is executable has a path that is a string.
    unsafe {
        let program = exec::note_path(path, env);
        real::posix_spawn(pid, path, actions, attributes, args, program.env().unwrap_or(env))
    }
}

pub unsafe fn spawn_name(
    pid: *mut c_int,
    name: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    args: Strings,
    env: Strings,
) -> c_int {
    before_child();
    // SAFETY: the caller's promise.
    unsafe {
        let program = exec::note_name(name, env);
        real::posix_spawnp(pid, name, actions, attributes, args, program.env().unwrap_or(env))
    }
}

pub unsafe fn run_shell(command: *const c_char) -> c_int {
    before_child();
    // SAFETY: the caller's promise.
    unsafe { real::system(command) }
}

pub unsafe fn open_shell(command: *const c_char, mode: *const c_char) -> *mut FILE {
    before_child();
    // SAFETY: the caller's promise.
    unsafe { real::popen(command, mode) }
}
