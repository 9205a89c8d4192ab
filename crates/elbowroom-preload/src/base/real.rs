//! libc's own functions behind the names that this library stands before.
//!
//! Some are cancellation points or keep state of libc, so that a bare system call would not do. They are
//! looked up by the constructor. Until then (other libraries' constructors, the program's malloc) the system
//! call stands in, where there is one that does the same.
//!
//! Synchronization: all threads that write a pointer write the same value.

use super::{stderr, sys};
use libc::{FILE, c_char, c_int, c_long, c_uint, c_void, iovec, mode_t, off_t, size_t, ssize_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that fits a register.
trait Word {
    fn word(self) -> c_long;
}

macro_rules! words {
    ($($t:ty),*) => { $(impl Word for $t { fn word(self) -> c_long { self as c_long } })* };
}
words!(c_int, c_uint, off_t, size_t);

impl<T> Word for *const T {
    fn word(self) -> c_long {
        self as c_long
    }
}

impl<T> Word for *mut T {
    fn word(self) -> c_long {
        self as c_long
    }
}

fn look_up(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a valid string.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// libc's function of this name. Ends the program if there is none.
pub fn next(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a string.
    let real = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if real.is_null() {
        stderr::write_first(b"elbowroom: libc does not have ");
        stderr::write_first(name.to_bytes());
        stderr::write_first(b"\n");
        sys::exit_group(sys::CANNOT_RUN_STATUS);
    }
    real
}

/// # Safety
/// As the system call with these parameters.
unsafe fn by_system_call(call: c_long, words: &[c_long]) -> c_long {
    let mut all = [0; 6];
    all[..words.len()].copy_from_slice(words);
    let [a, b, c, d, e, f] = all;
    // SAFETY: the caller's promise; parameters that a call does not have are ignored.
    unsafe { sys::system_call(call, a, b, c, d, e, f) }
}

macro_rules! real {
    ($($name:ident($($a:ident: $t:ty),*) -> $r:ty $(= $call:ident)?;)*) => {
        /// Looks all the functions up.
        pub fn resolve() {
            $(pointers::$name.store(look_up(names::$name), Ordering::Release);)*
        }

        #[allow(non_upper_case_globals)]
        mod pointers {
            use super::*;
            $(pub static $name: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)*
        }

        #[allow(non_upper_case_globals)]
        mod names {
            use super::CStr;
            $(pub const $name: &CStr =
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name with a 0 byte"),
                };)*
        }

        $(
            /// libc's function of this name.
            ///
            /// # Safety
            /// As that function.
            #[allow(non_snake_case)]
            pub unsafe fn $name($($a: $t),*) -> $r {
                #[allow(unused_mut)]
                let mut pointer = pointers::$name.load(Ordering::Acquire);
                if pointer.is_null() {
                    let _words: &[c_long] = &[$($a.word()),*];
                    $(
                        // SAFETY: the system call has the same parameters; the caller's promise.
                        return unsafe { by_system_call(libc::$call, _words) as $r };
                    )?
                    #[allow(unreachable_code)]
                    {
                        pointer = look_up(names::$name);
                        if pointer.is_null() {
                            stderr::write_first(
                                concat!("elbowroom: libc has no ", stringify!($name), "\n").as_bytes(),
                            );
                            crate::base::sys::exit_group(125);
                        }
                        pointers::$name.store(pointer, Ordering::Release);
                    }
                }
                type Function = unsafe extern "C-unwind" fn($($t),*) -> $r;
                // SAFETY: libc's function of this name has this type.
                let function: Function = unsafe { std::mem::transmute(pointer) };
                // SAFETY: the caller's promise.
                unsafe { function($($a),*) }
            }
        )*
    };
}

type Handler = usize;

real! {
    read(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t = SYS_read;
    pread64(fd: c_int, to: *mut c_void, len: size_t, offset: off_t) -> ssize_t = SYS_pread64;
    readv(fd: c_int, to: *const iovec, n: c_int) -> ssize_t = SYS_readv;
    preadv64(fd: c_int, to: *const iovec, n: c_int, offset: off_t) -> ssize_t = SYS_preadv;
    preadv64v2(fd: c_int, to: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t;
    __read_chk(fd: c_int, to: *mut c_void, len: size_t, room: size_t) -> ssize_t;
    __pread64_chk(fd: c_int, to: *mut c_void, len: size_t, offset: off_t, room: size_t) -> ssize_t;
    write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t = SYS_write;
    pwrite64(fd: c_int, from: *const c_void, len: size_t, offset: off_t) -> ssize_t = SYS_pwrite64;
    writev(fd: c_int, from: *const iovec, n: c_int) -> ssize_t = SYS_writev;
    pwritev64(fd: c_int, from: *const iovec, n: c_int, offset: off_t) -> ssize_t = SYS_pwritev;
    pwritev64v2(fd: c_int, from: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t;
    ftruncate64(fd: c_int, len: off_t) -> c_int = SYS_ftruncate;
    truncate64(path: *const c_char, len: off_t) -> c_int = SYS_truncate;
    fallocate64(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int = SYS_fallocate;
    posix_fallocate64(fd: c_int, offset: off_t, len: off_t) -> c_int;
    copy_file_range(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t,
        flags: c_uint) -> ssize_t = SYS_copy_file_range;
    sendfile64(to: c_int, from: c_int, from_at: *mut off_t, len: size_t) -> ssize_t = SYS_sendfile;
    splice(from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: c_uint)
        -> ssize_t = SYS_splice;
    open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int = SYS_openat;
    __open64_2(path: *const c_char, flags: c_int) -> c_int;
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int) -> c_int;
    open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int = SYS_open_by_handle_at;
    close(fd: c_int) -> c_int = SYS_close;
    msync(addr: *mut c_void, len: size_t, flags: c_int) -> c_int = SYS_msync;
    fsync(fd: c_int) -> c_int = SYS_fsync;
    fdatasync(fd: c_int) -> c_int = SYS_fdatasync;
    sync_file_range(fd: c_int, offset: off_t, len: off_t, flags: c_uint) -> c_int = SYS_sync_file_range;
    fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE;
    fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE;
    tmpfile64() -> *mut FILE;
    fclose(file: *mut FILE) -> c_int;
    dup(fd: c_int) -> c_int = SYS_dup;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int = SYS_dup3;
    aio_read64(block: *mut c_void) -> c_int;
    aio_write64(block: *mut c_void) -> c_int;
    aio_fsync64(operation: c_int, block: *mut c_void) -> c_int;
    lio_listio64(mode: c_int, blocks: *const *mut c_void, n: c_int, event: *mut c_void) -> c_int;
    process_madvise(pidfd: c_int, parts: *const iovec, n: size_t, advice: c_int, flags: c_uint) -> ssize_t
        = SYS_process_madvise;
    vmsplice(fd: c_int, from: *const iovec, n: size_t, flags: c_uint) -> ssize_t = SYS_vmsplice;
    send(socket: c_int, from: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto(socket: c_int, from: *const c_void, len: size_t, flags: c_int, to: *const c_void, to_len: c_uint)
        -> ssize_t = SYS_sendto;
    sendmsg(socket: c_int, message: *const c_void, flags: c_int) -> ssize_t = SYS_sendmsg;
    sendmmsg(socket: c_int, messages: *mut c_void, n: c_uint, flags: c_int) -> c_int = SYS_sendmmsg;
    recv(socket: c_int, to: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    __recv_chk(socket: c_int, to: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t;
    recvfrom(socket: c_int, to: *mut c_void, len: size_t, flags: c_int, from: *mut c_void,
        from_len: *mut c_uint) -> ssize_t = SYS_recvfrom;
    recvmsg(socket: c_int, message: *mut c_void, flags: c_int) -> ssize_t = SYS_recvmsg;
    recvmmsg(socket: c_int, messages: *mut c_void, n: c_uint, flags: c_int, timeout: *mut c_void) -> c_int
        = SYS_recvmmsg;
    fread(to: *mut c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t;
    fread_unlocked(to: *mut c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t;
    __fread_chk(to: *mut c_void, room: size_t, size: size_t, n: size_t, file: *mut FILE) -> size_t;
    __fread_unlocked_chk(to: *mut c_void, room: size_t, size: size_t, n: size_t, file: *mut FILE) -> size_t;
    fwrite(from: *const c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t;
    fwrite_unlocked(from: *const c_void, size: size_t, n: size_t, file: *mut FILE) -> size_t;
    fputs(text: *const c_char, file: *mut FILE) -> c_int;
    fputs_unlocked(text: *const c_char, file: *mut FILE) -> c_int;
    setbuf(file: *mut FILE, buffer: *mut c_char) -> ();
    __recvfrom_chk(socket: c_int, to: *mut c_void, len: size_t, room: size_t, flags: c_int,
        from: *mut c_void, from_len: *mut c_uint) -> ssize_t;
    puts(text: *const c_char) -> c_int;
    setvbuf(file: *mut FILE, buffer: *mut c_char, mode: c_int, len: size_t) -> c_int;
    setbuffer(file: *mut FILE, buffer: *mut c_char, len: size_t) -> ();
    getrandom(to: *mut c_void, len: size_t, flags: c_uint) -> ssize_t = SYS_getrandom;
    getentropy(to: *mut c_void, len: size_t) -> c_int;
    _exit(status: c_int) -> c_int = SYS_exit_group;
    execve(path: *const c_char, args: *const *const c_char, env: *const *const c_char) -> c_int = SYS_execve;
    execv(path: *const c_char, args: *const *const c_char) -> c_int;
    execvp(name: *const c_char, args: *const *const c_char) -> c_int;
    execvpe(name: *const c_char, args: *const *const c_char, env: *const *const c_char) -> c_int;
    fexecve(fd: c_int, args: *const *const c_char, env: *const *const c_char) -> c_int;
    execveat(dir: c_int, path: *const c_char, args: *const *const c_char, env: *const *const c_char,
        flags: c_int) -> c_int = SYS_execveat;
    posix_spawn(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        args: *const *const c_char, env: *const *const c_char) -> c_int;
    posix_spawnp(pid: *mut c_int, name: *const c_char, actions: *const c_void, attributes: *const c_void,
        args: *const *const c_char, env: *const *const c_char) -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    prlimit64(pid: c_int, resource: c_uint, new: *const libc::rlimit, old: *mut libc::rlimit) -> c_int
        = SYS_prlimit64;
    siglongjmp(env: *mut c_void, value: c_int) -> c_int;
    longjmp(env: *mut c_void, value: c_int) -> c_int;
    _longjmp(env: *mut c_void, value: c_int) -> c_int;
    __longjmp_chk(env: *mut c_void, value: c_int) -> c_int;
    abort() -> c_int;
    fork() -> c_int;
    _Fork() -> c_int;
    _IO_list_lock() -> ();
    _IO_list_unlock() -> ();
    _IO_iter_begin() -> *mut c_void;
    _IO_iter_end() -> *mut c_void;
    _IO_iter_next(iterator: *mut c_void) -> *mut c_void;
    __register_atfork(prepare: *mut c_void, parent: *mut c_void, child: *mut c_void, dso: *mut c_void)
        -> c_int;
    clone(start: *mut c_void, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent_tid: *mut c_int,
        tls: *mut c_void, child_tid: *mut c_int) -> c_int;
    sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
    signal(signal: c_int, handler: Handler) -> Handler;
    bsd_signal(signal: c_int, handler: Handler) -> Handler;
    ssignal(signal: c_int, handler: Handler) -> Handler;
    sysv_signal(signal: c_int, handler: Handler) -> Handler;
    __sysv_signal(signal: c_int, handler: Handler) -> Handler;
    sigset(signal: c_int, handler: Handler) -> Handler;
    pthread_create(thread: *mut libc::pthread_t, attributes: *const libc::pthread_attr_t,
        start: *const c_void, argument: *mut c_void) -> c_int;
    thrd_create(thread: *mut libc::pthread_t, start: *const c_void, argument: *mut c_void) -> c_int;
    __cxa_thread_atexit_impl(destructor: *const c_void, object: *mut c_void, dso: *mut c_void) -> c_int;
}
