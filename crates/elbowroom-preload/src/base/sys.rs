//! System calls made directly, `errno`, futexes and signal masks.
//!
//! The interposed functions must not call the libc functions they stand before, so what they need from the
//! kernel is asked for here by [`system_call`], which sets `errno` as libc's own wrappers do. Everything here
//! is async-signal-safe and allocates nothing.

use libc::{c_int, c_long, c_void, off_t, size_t};
use std::sync::atomic::AtomicU32;

unsafe extern "C" {
    /// A system call, as libc's `syscall` makes it. libc's name leads to the interposed function of this
    /// library, which takes a call for one of the program's.
    ///
    /// # Safety
    /// As the call.
    #[link_name = "elbowroom_system_call"]
    pub fn system_call(number: c_long, ...) -> c_long;
}

/// The body of [`system_call`].
///
/// # Safety
/// As the call.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn elbowroom_system_call() -> c_long {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "mov rax, rdi",
        "mov rdi, rsi", "mov rsi, rdx", "mov rdx, rcx", "mov r10, r8", "mov r8, r9", "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 2f",
        "ret",
        "2:",
        "mov edi, eax",
        "neg edi",
        "jmp {fail}",
        fail = sym fail_long,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "mov x8, x0",
        "mov x0, x1", "mov x1, x2", "mov x2, x3", "mov x3, x4", "mov x4, x5", "mov x5, x6",
        "svc 0",
        "cmn x0, 4095",
        "b.hs 2f",
        "ret",
        "2:",
        "neg w0, w0",
        "b {fail}",
        fail = sym fail_long,
    );
}

extern "C" fn fail_long(errno: c_int) -> c_long {
    c_long::from(fail(errno))
}

/// Bytes in a page.
pub const PAGE: usize = 4096;

/// No mapping of a program ends above this (TASK_SIZE).
pub const ADDRESS_END: usize = (1 << 47) - PAGE;

/// Sets the calling thread's `errno`.
pub fn set_errno(errno: c_int) {
    // SAFETY: libc gives every thread a valid errno for as long as the thread runs.
    unsafe { *libc::__errno_location() = errno }
}

/// The calling thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: as in `set_errno`.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno` and gives -1, which is how most of libc's functions say that they failed.
pub fn fail(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// The process id, asked of the kernel: a vfork child's own.
pub fn getpid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { system_call(libc::SYS_getpid) as u32 }
}

/// The thread id, asked of the kernel.
pub fn gettid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { system_call(libc::SYS_gettid) as u32 }
}

/// Lets other threads run first.
pub fn sched_yield() {
    // SAFETY: takes nothing and cannot fail.
    unsafe { system_call(libc::SYS_sched_yield) };
}

/// mmap(2), unchanged.
///
/// # Safety
/// As mmap(2): with MAP_FIXED the caller owns what is replaced.
pub unsafe fn mmap(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        system_call(libc::SYS_mmap, addr, len, prot as c_long, flags as c_long, fd as c_long, offset)
            as *mut c_void
    }
}

/// munmap(2), unchanged.
///
/// # Safety
/// The caller owns the range.
pub unsafe fn munmap(addr: *mut c_void, len: size_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { system_call(libc::SYS_munmap, addr, len) as c_int }
}

/// Ends the process at once, without any of libc's or our work.
pub fn exit_group(status: c_int) -> ! {
    loop {
        // SAFETY: does not return; the loop is for the type only.
        unsafe { system_call(libc::SYS_exit_group, status as c_long) };
    }
}

/// Sets `errno`; gives what mmap(2) and its like give then.
pub fn map_failed(errno: c_int) -> *mut c_void {
    set_errno(errno);
    libc::MAP_FAILED
}

/// The status of a program that could not be started as asked.
pub const CANNOT_RUN_STATUS: c_int = 125;

/// Whether the calling thread has this capability. `errno` is kept.
pub fn has_capability(number: u32) -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    let kept = errno();
    let header = [VERSION_3, 0];
    // Effective, permitted, inheritable: of the first 32 capabilities, then of the others.
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: the header and the sets are as large as this version says.
    let r = unsafe { system_call(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr()) };
    set_errno(kept);
    r == 0 && sets[number as usize / 32][0] & 1 << (number % 32) != 0
}

/// fstat(2) of a descriptor, or `None` with `errno` as it was before.
pub fn fstat(fd: c_int) -> Option<libc::stat> {
    stat_at(fd, c"".as_ptr(), libc::AT_EMPTY_PATH)
}

/// newfstatat(2), or `None` with `errno` as it was before. `path` may be any pointer: the kernel checks it.
pub fn stat_at(dir: c_int, path: *const libc::c_char, flags: c_int) -> Option<libc::stat> {
    let before = errno();
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel checks `path` and writes at most one `stat`, whose layout is libc's on 64-bit
    // machines.
    let r =
        unsafe { system_call(libc::SYS_newfstatat, dir as c_long, path, stat.as_mut_ptr(), flags as c_long) };
    if r == 0 {
        // SAFETY: the kernel filled it.
        return Some(unsafe { stat.assume_init() });
    }
    set_errno(before);
    None
}

/// The beginning of the file at `path`, a string with its final 0, as far as it fits into `buffer`. For small
/// files of /proc, which one read gives whole.
pub fn read_file<'a>(path: &[u8], buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    debug_assert!(path.contains(&0));
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path ends, and the kernel writes no more than fits.
    unsafe {
        let fd = system_call(libc::SYS_openat, libc::AT_FDCWD as c_long, path.as_ptr(), flags as c_long, 0);
        if fd < 0 {
            return None;
        }
        let n = system_call(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len());
        system_call(libc::SYS_close, fd);
        buffer.get(..usize::try_from(n).ok()?)
    }
}

/// The magic number of the filesystem that `fd` is on.
pub fn filesystem(fd: c_int) -> Option<u64> {
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel writes at most one `statfs`.
    let r = unsafe { system_call(libc::SYS_fstatfs, fd as c_long, stat.as_mut_ptr()) };
    // SAFETY: it is filled if the call succeeded.
    (r == 0).then(|| unsafe { stat.assume_init() }.f_type as u64)
}

/// The open flags of a descriptor (O_ACCMODE, O_APPEND, O_PATH, ...). `errno` is kept.
pub fn open_flags(fd: c_int) -> Option<c_int> {
    let kept = errno();
    // SAFETY: takes integers only.
    let r = unsafe { system_call(libc::SYS_fcntl, fd as c_long, libc::F_GETFL as c_long) };
    set_errno(kept);
    (r >= 0).then_some(r as c_int)
}

/// Moves the file position of a descriptor back. `errno` is kept.
pub fn move_back(fd: c_int, bytes: usize) {
    let kept = errno();
    // SAFETY: integers only.
    unsafe { system_call(libc::SYS_lseek, fd as c_long, -(bytes as c_long), libc::SEEK_CUR as c_long) };
    set_errno(kept);
}

/// The file position of a descriptor. `errno` is kept.
pub fn position(fd: c_int) -> Option<u64> {
    let kept = errno();
    // SAFETY: takes integers only; SEEK_CUR by 0 changes nothing.
    let r = unsafe { system_call(libc::SYS_lseek, fd as c_long, 0 as c_long, libc::SEEK_CUR as c_long) };
    set_errno(kept);
    (r >= 0).then_some(r as u64)
}

/// Copies between ranges of this process without ever raising a signal, and gives how many bytes: fewer than
/// `len` at a bad address on either side. `errno` is kept.
pub fn copy_checked(from: usize, to: usize, len: usize) -> usize {
    let kept = errno();
    let range = |at: usize, len: usize| libc::iovec { iov_base: at as *mut c_void, iov_len: len };
    let copied = match vm_call(libc::SYS_process_vm_readv, range(to, len), range(from, len)) {
        // process_vm_readv needs PROT_READ on the remote memory. Loads, and other system calls, also work
        // where memory may only be executed or written; process_vm_writev loads as they do.
        Some(done) if done < len => {
            let (to, from) = (range(to + done, len - done), range(from + done, len - done));
            done + vm_call(libc::SYS_process_vm_writev, from, to).unwrap_or(0)
        }
        Some(done) => done,
        // A sandbox forbids the call.
        None => copy_probed(from, to, len),
    };
    set_errno(kept);
    copied
}

/// Copies between two ranges of this process by `process_vm_readv` or `process_vm_writev`, of which the
/// first accesses `local` as any system call does. Gives how many bytes were copied: none at a bad address.
/// `None`: the call fails in another way.
fn vm_call(call: c_long, local: libc::iovec, remote: libc::iovec) -> Option<usize> {
    let pid = getpid() as c_long;
    // SAFETY: the kernel checks both ranges; the one that is written is given by the caller for that.
    let done = unsafe {
        system_call(call, pid, &raw const local, 1 as c_long, &raw const remote, 1 as c_long, 0 as c_long)
    };
    match usize::try_from(done) {
        Ok(done) => Some(done),
        Err(_) => (errno() == libc::EFAULT).then_some(0),
    }
}

/// As [`copy_checked`], by a plain copy after a check of each page. Another thread that unmaps a page after
/// its check can still make the copy fault.
fn copy_probed(from: usize, to: usize, len: usize) -> usize {
    const WORD: usize = size_of::<u64>();
    let mut done = 0;
    while done < len {
        let to_page_end = |at: usize| PAGE - (at + done) % PAGE;
        let n = (len - done).min(to_page_end(from)).min(to_page_end(to));
        // Neither word crosses a page. The second check stores to `to`, which the copy then overwrites: so
        // it is made only after the first has passed.
        if !probe((from + done) & !(WORD - 1), std::ptr::null_mut()) {
            break;
        }
        if n >= WORD && !probe(0, (to + done) as *mut u64) {
            break;
        }
        // SAFETY: the caller gives `to` for writing; both were there just now.
        unsafe { std::ptr::copy((from + done) as *const u8, (to + done) as *mut u8, n) };
        done += n;
    }
    done
}

/// Whether the kernel can read a word at `from` (not if 0) and write one at `to` (not if null): it does both
/// in a change of the signal mask that changes nothing.
fn probe(from: usize, to: *mut u64) -> bool {
    const NO_CHANGE: c_long = -1;
    let how = if from == 0 { libc::SIG_BLOCK as c_long } else { NO_CHANGE };
    // SAFETY: the kernel checks both addresses, and refuses the change after it has read the word.
    let r = unsafe { system_call(libc::SYS_rt_sigprocmask, how, from, to, 8 as c_long) };
    r == 0 || errno() != libc::EFAULT
}

/// Copies a value that the program gave a pointer to; `false` if the pointer is bad. `errno` is kept.
pub fn copy_in<T: Copy>(from: *const T, to: &mut T) -> bool {
    copy_checked(from as usize, std::ptr::from_mut(to) as usize, size_of::<T>()) == size_of::<T>()
}

/// Copies a value to where the program asked for it; `false` if the pointer is bad. `errno` is kept.
pub fn copy_out<T: Copy>(from: &T, to: *mut T) -> bool {
    copy_checked(std::ptr::from_ref(from) as usize, to as usize, size_of::<T>()) == size_of::<T>()
}

/// Waits until `word` is not `seen`, a wake, a signal, or `timeout_ms` (`None`: no limit).
pub fn futex_wait(word: &AtomicU32, seen: u32, timeout_ms: Option<u32>) {
    wait(word, seen, timeout_ms, libc::FUTEX_PRIVATE_FLAG);
}

/// As [`futex_wait`], for a word in memory that processes share.
pub fn futex_wait_shared(word: &AtomicU32, seen: u32, timeout_ms: u32) {
    wait(word, seen, Some(timeout_ms), 0);
}

fn wait(word: &AtomicU32, seen: u32, timeout_ms: Option<u32>, private: c_int) {
    let timeout = timeout_ms
        .map(|ms| libc::timespec { tv_sec: (ms / 1000).into(), tv_nsec: (ms % 1000 * 1_000_000).into() });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word outlives the call and the timeout is null or valid.
    unsafe {
        system_call(
            libc::SYS_futex,
            word.as_ptr(),
            (libc::FUTEX_WAIT | private) as c_long,
            seen as c_long,
            timeout,
        )
    };
}

/// Wakes up to `count` waiters of the word at this address. The word need not exist any more: waking looks at
/// the address only.
pub fn futex_wake(word: *const u32, count: i32) {
    wake(word, count, libc::FUTEX_PRIVATE_FLAG);
}

/// As [`futex_wake`], for a word in memory that processes share.
pub fn futex_wake_shared(word: *const u32, count: i32) {
    wake(word, count, 0);
}

fn wake(word: *const u32, count: i32, private: c_int) {
    // SAFETY: FUTEX_WAKE does not access the word.
    unsafe { system_call(libc::SYS_futex, word, (libc::FUTEX_WAKE | private) as c_long, count as c_long) };
}

/// Which signals [`SignalsBlocked`] does not block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Except {
    /// None: for program threads, for the time of a request. A cancellation must not unwind the stack that
    /// the request lives on.
    Nothing,
    /// The two that libc uses between its threads: for threads that live long. setuid(2) waits until every
    /// thread has taken one of them.
    LibcInternal,
}

/// All signals are blocked for this thread until it is dropped. `errno` is kept.
pub struct SignalsBlocked {
    before: u64,
}

impl SignalsBlocked {
    /// Blocks all signals but those excepted.
    pub fn new(except: Except) -> Self {
        let mask: u64 = match except {
            Except::Nothing => !0,
            Except::LibcInternal => !(0b11 << 31),
        };
        Self { before: set_mask(mask) }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        set_mask(self.before);
    }
}

/// Sets the thread's signal mask (bit n-1 for signal n) and gives the one before. `errno` is kept.
pub fn set_mask(mask: u64) -> u64 {
    change_mask(libc::SIG_SETMASK, mask)
}

/// Adds to the thread's signal mask and gives the one before. `errno` is kept.
pub fn block(mask: u64) -> u64 {
    change_mask(libc::SIG_BLOCK, mask)
}

/// Takes from the thread's signal mask and gives the one before. `errno` is kept.
pub fn unblock(mask: u64) -> u64 {
    change_mask(libc::SIG_UNBLOCK, mask)
}

fn change_mask(how: c_int, mask: u64) -> u64 {
    let kept = errno();
    let mut before = 0u64;
    // SAFETY: both point to 8 bytes, the size of the kernel's signal set.
    unsafe {
        system_call(libc::SYS_rt_sigprocmask, how as c_long, &raw const mask, &raw mut before, 8 as c_long)
    };
    set_errno(kept);
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a system call does: what can be loaded can be copied, whatever rights the mapping has.
    #[test]
    fn memory_that_may_not_be_read_is_copied_where_it_can_be() {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        for prot in [libc::PROT_NONE, libc::PROT_WRITE, libc::PROT_EXEC, libc::PROT_READ | libc::PROT_EXEC] {
            // SAFETY: a new mapping.
            let at = unsafe {
                mmap(std::ptr::null_mut(), 3 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
            } as usize;
            // SAFETY: this test's own pages.
            unsafe {
                std::ptr::write_bytes(at as *mut u8, 5, 2 * PAGE);
                assert_eq!(libc::mprotect((at + PAGE) as *mut c_void, PAGE, prot), 0);
                assert_eq!(munmap((at + 2 * PAGE) as *mut c_void, PAGE), 0);
            }
            let mut pipe = [0; 2];
            // SAFETY: two descriptors fit; the kernel checks the other addresses.
            let can = unsafe {
                assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
                let written = libc::write(pipe[1], (at + PAGE) as *const c_void, 1);
                libc::close(pipe[0]);
                libc::close(pipe[1]);
                written == 1
            };
            let mut bytes = vec![0_u8; 3 * PAGE];
            let copied = copy_checked(at, bytes.as_mut_ptr() as usize, 3 * PAGE);
            assert_eq!(copied, if can { 2 * PAGE } else { PAGE }, "prot {prot}");
            assert!(bytes[..copied].iter().all(|byte| *byte == 5), "prot {prot}");
            // SAFETY: as above.
            assert_eq!(unsafe { munmap(at as *mut c_void, 2 * PAGE) }, 0);
        }
    }

    #[test]
    fn a_copy_ends_where_memory_does() {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping.
        let at = unsafe { mmap(std::ptr::null_mut(), 3 * PAGE, prot, flags, -1, 0) } as usize;
        // SAFETY: the page in the middle is this test's own.
        assert_eq!(unsafe { munmap((at + PAGE) as *mut c_void, PAGE) }, 0);
        let mut bytes = vec![7u8; 2 * PAGE];
        let there = bytes.as_mut_ptr() as usize;
        for copy in [copy_checked, copy_probed] {
            set_errno(5);
            assert_eq!(copy(there, at + PAGE - 100, 2000), 100);
            assert_eq!(copy(at + PAGE - 50, there, 2000), 50);
            assert_eq!(copy(at + PAGE, there, 8), 0);
            assert_eq!(copy(there, at + PAGE, 8), 0);
            assert_eq!(copy(there + 1, at + 2 * PAGE + 3, 1001), 1001);
            assert_eq!(copy(there, at, 0), 0);
        }
        assert_eq!(bytes[..51], [vec![7; 50], vec![7]].concat());
    }
}
