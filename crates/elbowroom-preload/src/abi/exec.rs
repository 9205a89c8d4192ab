//! The ends of a process, and its replacement by another program.

use crate::process::exec::{self, Strings};
use libc::{c_char, c_int};

export! {
    _exit(status: c_int) -> ! = exec::exit_now;
    _Exit(status: c_int) -> ! = exec::exit_now;
    abort() -> ! = exec::abort_now;
    execve(path: *const c_char, args: Strings, env: Strings) -> c_int = exec::exec_path_env;
    execv(path: *const c_char, args: Strings) -> c_int = exec::exec_path;
    execvp(name: *const c_char, args: Strings) -> c_int = exec::exec_name;
    execvpe(name: *const c_char, args: Strings, env: Strings) -> c_int = exec::exec_name_env;
    fexecve(fd: c_int, args: Strings, env: Strings) -> c_int = exec::exec_fd;
    execveat(dir: c_int, path: *const c_char, args: Strings, env: Strings, flags: c_int) -> c_int
        = exec::exec_at;
}

export_lists! {
    execl = exec::exec_path_list;
    execlp = exec::exec_name_list;
    execle = exec::exec_path_list_env;
}
