//! The ends of a process that run no exit handlers, and its replacement by another program: before all of
//! them, stores through mappings go to their files.

use crate::agent::flush::flush;
use crate::base::real;
use crate::base::run;
use crate::base::state;
use crate::base::sys::{self, Except, SignalsBlocked};
use crate::base::tree;
use crate::process::core_dump;
use crate::process::end;
use crate::process::limits;
use crate::process::sanitizer::Environment;
pub use crate::process::sanitizer::Strings;
use crate::process::signals;
use crate::process::unmanaged;
use libc::{c_char, c_int, c_long};

pub unsafe fn exit_now(status: c_int) -> ! {
    end::process_ends();
    // SAFETY: integers only.
    unsafe { real::_exit(status) };
    sys::exit_group(status)
}

/// First the program's disposition of SIGABRT takes effect, as in libc's abort(3). If its handler returns,
/// or it is SIG_IGN, libc would set SIG_DFL itself and raise the signal once more, and nothing of ours
/// would run: so the report is made before.
pub unsafe fn abort_now() -> ! {
    if state::alive().is_some_and(|(process, _)| process.is_home()) {
        signals::abort_first();
        end::process_ends();
        core_dump::prepare(libc::SIGABRT, None);
        signals::kernel::set_default(libc::SIGABRT);
    }
    // SAFETY: takes nothing.
    unsafe { real::abort() };
    sys::exit_group(ABORT_STATUS)
}

/// What libc's abort(3) ends with when nothing else ends the process.
const ABORT_STATUS: c_int = 127;

/// Runs an exec, for which all is prepared as at the process's end if it is expected to succeed. If it
/// fails all the same, that is undone, and the report is made again at the real end.
fn replaced(expected: bool, exec: impl FnOnce() -> c_int) -> c_int {
    let exec = || with_own_descriptor_limit(exec);
    if !expected {
        flush();
        return exec();
    }
    let reported = end::process_is_replaced();
    signals::before_exec();
    limits::before_exec();
    let left = (tree::about_to_exec(), run::about_to_exec());
    let r = exec();
    let kept = sys::errno();
    tree::came_back(left.0);
    run::came_back(left.1);
    limits::after_exec();
    signals::after_exec();
    end::process_goes_on(reported);
    sys::set_errno(kept);
    r
}

/// Runs an exec while our threads do not raise the limit on descriptors, since the other program inherits
/// it. (The limit of a child that shares our memory is its own.)
fn with_own_descriptor_limit(exec: impl FnOnce() -> c_int) -> c_int {
    if !state::alive().is_some_and(|(process, _)| process.is_home()) {
        return exec();
    }
    let blocked = SignalsBlocked::new(Except::Nothing);
    let (r, blocked) = elbowroom::with_own_limit(|| {
        // The other program inherits the signal mask, too.
        drop(blocked);
        (exec(), SignalsBlocked::new(Except::Nothing))
    });
    drop(blocked);
    r
}

/// Whether the file can be executed. `errno` is kept.
fn executable(dir: c_int, path: *const c_char) -> bool {
    let kept = sys::errno();
    let (mode, flags) = (libc::X_OK as c_long, libc::AT_EACCESS as c_long);
    // SAFETY: the kernel checks the path.
    let access = |call| unsafe { sys::system_call(call, dir as c_long, path, mode, flags) };
    let mut r = access(libc::SYS_faccessat2);
    if r != 0 && sys::errno() == libc::ENOSYS {
        r = access(libc::SYS_faccessat);
    }
    sys::set_errno(kept);
    r == 0 && sys::stat_at(dir, path, 0).is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFREG)
}

/// Where execvp looks if there is no PATH (glibc's `CS_PATH`).
const DEFAULT_PATH: &std::ffi::CStr = c"/bin:/usr/bin";

/// Looks for a program as execvp does, and calls `look` with its path. Tells whether it was found.
unsafe fn found(name: *const c_char, look: impl FnOnce(*const c_char)) -> bool {
    // SAFETY: the caller's promise: a string.
    let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes_with_nul();
    if name.contains(&b'/') {
        let there = executable(libc::AT_FDCWD, name.as_ptr().cast());
        if there {
            look(name.as_ptr().cast());
        }
        return there;
    }
    // SAFETY: the name is a string; programs that change their environment meanwhile are at fault themselves.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    let path = if path.is_null() { DEFAULT_PATH.as_ptr() } else { path };
    // SAFETY: the environment holds strings.
    let path = unsafe { std::ffi::CStr::from_ptr(path) }.to_bytes();
    let mut full = [0u8; libc::PATH_MAX as usize];
    let there = path.split(|byte| *byte == b':').any(|dir| {
        let dir = if dir.is_empty() { b"." } else { dir };
        let len = dir.len() + 1 + name.len();
        if len > full.len() {
            return false;
        }
        full[..dir.len()].copy_from_slice(dir);
        full[dir.len()] = b'/';
        full[dir.len() + 1..len].copy_from_slice(name);
        executable(libc::AT_FDCWD, full.as_ptr().cast())
    });
    if there {
        look(full.as_ptr().cast());
    }
    there
}

/// A program that is about to be executed.
pub struct Program {
    /// The file is there, and can be executed.
    expected: bool,
    /// The environment that the program must have instead of the caller's.
    instead: Option<Environment>,
}

impl Program {
    /// The program at a path. A line names it if nothing of it will be managed.
    unsafe fn at(dir: c_int, path: *const c_char, env: Option<Strings>) -> Self {
        let expected = executable(dir, path);
        // SAFETY: the caller's promise: the program is there, so the path is a string.
        let instead = if expected { unsafe { unmanaged::note(dir, path, env) } } else { None };
        Self { expected, instead }
    }

    /// As [`Program::at`], for a program that execvp looks for.
    unsafe fn named(name: *const c_char, env: Option<Strings>) -> Self {
        let mut instead = None;
        // SAFETY: the caller's promise.
        let expected = unsafe { found(name, |path| instead = unmanaged::note(libc::AT_FDCWD, path, env)) };
        Self { expected, instead }
    }

    /// The environment that the program gets instead of the caller's own.
    pub fn env(&self) -> Option<Strings> {
        self.instead.as_ref().map(Environment::list)
    }
}

/// Looks at a program that is about to be spawned.
///
/// # Safety
/// As posix_spawn(3).
pub unsafe fn note_path(path: *const c_char, env: Strings) -> Program {
    // SAFETY: the caller's promise.
    unsafe { Program::at(libc::AT_FDCWD, path, Some(env)) }
}

/// As [`note_path`], for a program that is looked for in PATH.
///
/// # Safety
/// As posix_spawnp(3).
pub unsafe fn note_name(name: *const c_char, env: Strings) -> Program {
    // SAFETY: the caller's promise.
    unsafe { Program::named(name, Some(env)) }
}

pub unsafe fn exec_path_env(path: *const c_char, args: Strings, env: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let program = Program::at(libc::AT_FDCWD, path, Some(env));
        let env = program.env().unwrap_or(env);
        replaced(program.expected, || real::execve(path, args, env))
    }
}

pub unsafe fn exec_path(path: *const c_char, args: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let program = Program::at(libc::AT_FDCWD, path, None);
        replaced(program.expected, || match program.env() {
            Some(env) => real::execve(path, args, env),
            None => real::execv(path, args),
        })
    }
}

pub unsafe fn exec_name(name: *const c_char, args: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let program = Program::named(name, None);
        replaced(program.expected, || match program.env() {
            Some(env) => real::execvpe(name, args, env),
            None => real::execvp(name, args),
        })
    }
}

pub unsafe fn exec_name_env(name: *const c_char, args: Strings, env: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let program = Program::named(name, Some(env));
        let env = program.env().unwrap_or(env);
        replaced(program.expected, || real::execvpe(name, args, env))
    }
}

pub unsafe extern "C" fn exec_path_list(path: *const c_char, args: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { exec_path(path, args) }
}

pub unsafe extern "C" fn exec_name_list(name: *const c_char, args: Strings) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { exec_name(name, args) }
}

/// The environment follows the end of the arguments.
pub unsafe extern "C" fn exec_path_list_env(path: *const c_char, args: Strings) -> c_int {
    let mut end = args;
    // SAFETY: the caller's promise: the list ends with a null pointer, and one pointer more follows.
    let env = unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        end.add(1).cast::<Strings>().read()
    };
    // SAFETY: the caller's promise.
    unsafe { exec_path_env(path, args, env) }
}

pub unsafe fn exec_fd(fd: c_int, args: Strings, env: Strings) -> c_int {
    // SAFETY: the caller's promise; the path is a string.
    unsafe {
        let instead = unmanaged::note(fd, c"".as_ptr(), Some(env));
        let env = instead.as_ref().map_or(env, Environment::list);
        replaced(true, || real::fexecve(fd, args, env))
    }
}

pub unsafe fn exec_at(dir: c_int, path: *const c_char, args: Strings, env: Strings, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let by_descriptor = flags & libc::AT_EMPTY_PATH != 0 && unmanaged::path_is_empty(path);
        let program = match by_descriptor {
            true => Program { expected: true, instead: unmanaged::note(dir, c"".as_ptr(), Some(env)) },
            false => Program::at(dir, path, Some(env)),
        };
        let env = program.env().unwrap_or(env);
        replaced(program.expected, || real::execveat(dir, path, args, env, flags))
    }
}
