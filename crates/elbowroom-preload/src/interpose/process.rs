//! The ends of a process that run no exit handlers, its replacement by another program, and the making of
//! children: before all of them, stores through mappings go to their files.

use crate::end;
use crate::real;
use crate::state;
use crate::sys;
use libc::{FILE, c_char, c_int, c_long, c_void};

type Strings = *const *const c_char;

export! {
    _exit(status: c_int) -> ! = exit_now;
    _Exit(status: c_int) -> ! = exit_now;
    execve(path: *const c_char, args: Strings, env: Strings) -> c_int = exec_path_env;
    execv(path: *const c_char, args: Strings) -> c_int = exec_path;
    execvp(name: *const c_char, args: Strings) -> c_int = exec_name;
    execvpe(name: *const c_char, args: Strings, env: Strings) -> c_int = exec_name_env;
    fexecve(fd: c_int, args: Strings, env: Strings) -> c_int = exec_fd;
    execveat(dir: c_int, path: *const c_char, args: Strings, env: Strings, flags: c_int) -> c_int = exec_at;
    posix_spawn(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        args: Strings, env: Strings) -> c_int = spawn;
    posix_spawnp(pid: *mut c_int, name: *const c_char, actions: *const c_void, attributes: *const c_void,
        args: Strings, env: Strings) -> c_int = spawn_name;
    system(command: *const c_char) -> c_int = run_shell;
    popen(command: *const c_char, mode: *const c_char) -> *mut FILE = open_shell;
}

/// execl and relatives take any number of arguments, so what stands before them saves the argument registers,
/// calls [`before_child`] through [`before_list`], and jumps to libc's function with everything as it was.
macro_rules! export_list {
    ($($name:ident = $before:ident: $real:literal;)*) => {
        $(
            unsafe extern "C" fn $before() -> *mut c_void {
                before_list($real)
            }

            /// libc's function of this name.
            ///
            /// # Safety
            /// As libc's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[cfg_attr(test, allow(dead_code))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() -> c_int {
                #[cfg(target_arch = "x86_64")]
                core::arch::naked_asm!(
                    "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                    "call {before}",
                    "mov r11, rax",
                    "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                    "jmp r11",
                    before = sym $before,
                );
                #[cfg(target_arch = "aarch64")]
                core::arch::naked_asm!(
                    "stp x29, x30, [sp, #-80]!",
                    "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]",
                    "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                    "bl {before}",
                    "mov x16, x0",
                    "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]",
                    "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
                    "ldp x29, x30, [sp], #80",
                    "br x16",
                    before = sym $before,
                );
            }
        )*
    };
}

export_list! {
    execl = before_execl: c"execl";
    execlp = before_execlp: c"execlp";
    execle = before_execle: c"execle";
}

/// Writes back, and gives libc's function.
fn before_list(name: &std::ffi::CStr) -> *mut c_void {
    before_child();
    // SAFETY: the name is a string.
    let real = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if real.is_null() {
        sys::write_stderr(b"elbowroom: libc has no execl family\n");
        sys::exit_group(crate::service::CANNOT_RUN_STATUS);
    }
    real
}

unsafe fn exit_now(status: c_int) -> ! {
    end::process_ends();
    // SAFETY: integers only.
    unsafe { real::_exit(status) };
    sys::exit_group(status)
}

/// An exec that is expected to succeed or not. If it does, nothing after it runs; a report that was made for
/// nothing is made again at the real end.
fn replaced(expected: bool, exec: impl FnOnce() -> c_int) -> c_int {
    if expected {
        end::process_is_replaced();
    } else {
        end::flush();
    }
    let r = exec();
    if expected {
        let kept = sys::errno();
        end::process_goes_on();
        sys::set_errno(kept);
    }
    r
}

/// Whether the file can be executed. `errno` is kept.
fn executable(dir: c_int, path: *const c_char) -> bool {
    let kept = sys::errno();
    // SAFETY: the kernel checks the path.
    let r = unsafe { libc::syscall(libc::SYS_faccessat, dir as c_long, path, libc::X_OK as c_long) };
    sys::set_errno(kept);
    r == 0
}

/// Whether execvp would find the program.
unsafe fn found(name: *const c_char) -> bool {
    // SAFETY: the caller's promise: a string.
    let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes_with_nul();
    if name.contains(&b'/') {
        return executable(libc::AT_FDCWD, name.as_ptr().cast());
    }
    // SAFETY: the name is a string; programs that change their environment meanwhile are at fault themselves.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    if path.is_null() {
        return false;
    }
    // SAFETY: the environment holds strings.
    let path = unsafe { std::ffi::CStr::from_ptr(path) }.to_bytes();
    path.split(|byte| *byte == b':').any(|dir| {
        let mut full = [0u8; libc::PATH_MAX as usize];
        let dir = if dir.is_empty() { b"." } else { dir };
        let len = dir.len() + 1 + name.len();
        if len > full.len() {
            return false;
        }
        full[..dir.len()].copy_from_slice(dir);
        full[dir.len()] = b'/';
        full[dir.len() + 1..len].copy_from_slice(name);
        executable(libc::AT_FDCWD, full.as_ptr().cast())
    })
}

unsafe fn exec_path_env(path: *const c_char, args: Strings, env: Strings) -> c_int {
    // SAFETY: the caller's promise.
    replaced(executable(libc::AT_FDCWD, path), || unsafe { real::execve(path, args, env) })
}

unsafe fn exec_path(path: *const c_char, args: Strings) -> c_int {
    // SAFETY: the caller's promise.
    replaced(executable(libc::AT_FDCWD, path), || unsafe { real::execv(path, args) })
}

unsafe fn exec_name(name: *const c_char, args: Strings) -> c_int {
    // SAFETY: the caller's promise.
    replaced(unsafe { found(name) }, || unsafe { real::execvp(name, args) })
}

unsafe fn exec_name_env(name: *const c_char, args: Strings, env: Strings) -> c_int {
    // SAFETY: the caller's promise.
    replaced(unsafe { found(name) }, || unsafe { real::execvpe(name, args, env) })
}

unsafe fn exec_fd(fd: c_int, args: Strings, env: Strings) -> c_int {
    // SAFETY: the caller's promise.
    replaced(true, || unsafe { real::fexecve(fd, args, env) })
}

unsafe fn exec_at(dir: c_int, path: *const c_char, args: Strings, env: Strings, flags: c_int) -> c_int {
    let expected = flags & libc::AT_EMPTY_PATH != 0 || executable(dir, path);
    // SAFETY: the caller's promise.
    replaced(expected, || unsafe { real::execveat(dir, path, args, env, flags) })
}

/// A child is made that may read the files.
fn before_child() {
    if state::alive().is_some() {
        end::flush();
    }
}

unsafe fn spawn(
    pid: *mut c_int,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    args: Strings,
    env: Strings,
) -> c_int {
    before_child();
    // SAFETY: the caller's promise.
    unsafe { real::posix_spawn(pid, path, actions, attributes, args, env) }
}

unsafe fn spawn_name(
    pid: *mut c_int,
    name: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    args: Strings,
    env: Strings,
) -> c_int {
    before_child();
    // SAFETY: the caller's promise.
    unsafe { real::posix_spawnp(pid, name, actions, attributes, args, env) }
}

unsafe fn run_shell(command: *const c_char) -> c_int {
    before_child();
    // SAFETY: the caller's promise.
    unsafe { real::system(command) }
}

unsafe fn open_shell(command: *const c_char, mode: *const c_char) -> *mut FILE {
    before_child();
    // SAFETY: the caller's promise.
    unsafe { real::popen(command, mode) }
}
