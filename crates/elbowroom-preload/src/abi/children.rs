//! The making of children.

use crate::process::children::{self, Start, Strings};
use libc::{FILE, c_char, c_int, c_void};

export! {
    posix_spawn(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        args: Strings, env: Strings) -> c_int = children::spawn;
    posix_spawnp(pid: *mut c_int, name: *const c_char, actions: *const c_void, attributes: *const c_void,
        args: Strings, env: Strings) -> c_int = children::spawn_name;
    system(command: *const c_char) -> c_int = children::run_shell;
    popen(command: *const c_char, mode: *const c_char) -> *mut FILE = children::open_shell;
    fork() -> c_int = children::fork_with_handlers;
    __fork() -> c_int = children::fork_with_handlers;
    _Fork() -> c_int = children::fork_without_handlers;
    __register_atfork(prepare: Start, parent: Start, child: Start, dso: *mut c_void) -> c_int
        = children::register_hooks;
    clone(start: Start, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_tid: *mut c_int,
        tls: *mut c_void, child_tid: *mut c_int) -> c_int = children::make_clone;
    __clone(start: Start, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_tid: *mut c_int,
        tls: *mut c_void, child_tid: *mut c_int) -> c_int = children::make_clone;
}

export_jumps! {
    vfork = children::before_vfork;
    __vfork = children::before_vfork;
}
