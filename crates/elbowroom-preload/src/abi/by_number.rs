//! syscall(2): a call by its number is the call of that name, if this library stands before that name.

use super::{advise, children, exec, lend, limit_calls, map, open, ranges, read, receive, resize, seek};
use super::{sync, transfer, write};
use crate::agent::aio::submit_by_number;
use crate::agent::bring;
use crate::agent::resize::without_cancellation;
use crate::base::state;
use crate::base::sys;
use crate::process::by_number::{Handler, NUMBERS, before};
use libc::c_long;

/// Calls a function of libc's that is a cancellation point without cancellation: libc's syscall is no
/// cancellation point, so a call by number must not end the thread.
macro_rules! without_end {
    ([] $call:expr) => {
        $call
    };
    ([ends] $call:expr) => {
        without_cancellation(|| $call)
    };
}

/// The function for each number. The list after a function has the indices of the call's six words that the
/// function gets. `ends` marks a cancellation point.
macro_rules! handlers {
    ($($(#[$only:meta])? $number:ident = $function:path [$($word:literal)*] $($ends:ident)?;)*) => {
        const fn handlers() -> [Option<Handler>; NUMBERS] {
            let mut handlers: [Option<Handler>; NUMBERS] = [None; NUMBERS];
            $(
                $(#[$only])?
                {
                    /// # Safety
                    /// As the function.
                    #[allow(clippy::unnecessary_cast, unused_variables)]
                    unsafe extern "C-unwind" fn handler(
                        a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long,
                    ) -> c_long {
                        let words = [a, b, c, d, e, f];
                        // SAFETY: the caller's promise.
                        without_end!([$($ends)?] unsafe { $function($(words[$word] as _),*) as c_long })
                    }
                    handlers[libc::$number as usize] = Some(handler);
                }
            )*
            handlers
        }
    };
}

handlers! {
    SYS_mmap = map::mmap [0 1 2 3 4 5];
    SYS_munmap = map::munmap [0 1];
    SYS_mremap = map::mremap [0 1 2 3 4];
    SYS_shmat = map::shmat [0 1 2];
    SYS_mprotect = ranges::mprotect [0 1 2];
    SYS_pkey_mprotect = ranges::pkey_mprotect [0 1 2 3];
    SYS_msync = ranges::msync [0 1 2] ends;
    SYS_madvise = ranges::madvise [0 1 2];
    SYS_mincore = ranges::mincore [0 1 2];
    SYS_mlock = ranges::mlock [0 1];
    SYS_mlock2 = ranges::mlock2 [0 1 2];
    SYS_munlock = ranges::munlock [0 1];
    SYS_mlockall = ranges::mlockall [0];
    SYS_munlockall = ranges::munlockall [];
    SYS_mseal = ranges::mseal [0 1 2];
    SYS_remap_file_pages = ranges::remap_file_pages [0 1 2 3 4];
    SYS_process_madvise = advise::process_madvise [0 1 2 3 4];
    #[cfg(target_arch = "x86_64")]
    SYS_open = open::open64 [0 1 2] ends;
    #[cfg(target_arch = "x86_64")]
    SYS_creat = open::creat64 [0 1] ends;
    SYS_openat = open::openat64 [0 1 2 3] ends;
    SYS_open_by_handle_at = open::open_by_handle_at [0 1 2] ends;
    SYS_close = sync::close [0] ends;
    SYS_read = read::read [0 1 2] ends;
    SYS_pread64 = read::pread64 [0 1 2 3] ends;
    SYS_readv = read::readv [0 1 2] ends;
    SYS_preadv = read::preadv64 [0 1 2 3] ends;
    SYS_preadv2 = read::preadv64v2 [0 1 2 3 5] ends;
    SYS_write = write::write [0 1 2] ends;
    SYS_pwrite64 = write::pwrite64 [0 1 2 3] ends;
    SYS_writev = write::writev [0 1 2] ends;
    SYS_pwritev = write::pwritev64 [0 1 2 3] ends;
    SYS_pwritev2 = write::pwritev64v2 [0 1 2 3 5] ends;
    SYS_lseek = seek::lseek64 [0 1 2];
    SYS_ioctl = seek::ioctl [0 1 2];
    SYS_ftruncate = resize::ftruncate64 [0 1];
    SYS_truncate = resize::truncate64 [0 1];
    SYS_fallocate = resize::fallocate64 [0 1 2 3] ends;
    SYS_copy_file_range = transfer::copy_file_range [0 1 2 3 4 5] ends;
    SYS_sendfile = transfer::sendfile64 [0 1 2 3];
    SYS_splice = transfer::splice [0 1 2 3 4 5] ends;
    SYS_vmsplice = lend::vmsplice [0 1 2 3] ends;
    SYS_recvfrom = receive::recvfrom [0 1 2 3 4 5] ends;
    SYS_recvmsg = receive::recvmsg [0 1 2] ends;
    SYS_recvmmsg = receive::recvmmsg [0 1 2 3 4] ends;
    SYS_sendto = lend::sendto [0 1 2 3 4 5] ends;
    SYS_sendmsg = lend::sendmsg [0 1 2] ends;
    SYS_sendmmsg = lend::sendmmsg [0 1 2 3] ends;
    SYS_fsync = sync::fsync [0] ends;
    SYS_fdatasync = sync::fdatasync [0] ends;
    SYS_sync_file_range = sync::sync_file_range [0 1 2 3];
    SYS_syncfs = sync::syncfs [0];
    SYS_io_submit = submit_by_number [0 1 2];
    #[cfg(target_arch = "x86_64")]
    SYS_fork = children::_Fork [];
    SYS_exit_group = exec::_exit [0];
    SYS_execve = exec::execve [0 1 2];
    SYS_execveat = exec::execveat [0 1 2 3 4];
    SYS_setrlimit = limit_calls::setrlimit64 [0 1];
    SYS_getrlimit = limit_calls::getrlimit64 [0 1];
    SYS_prlimit64 = limit_calls::prlimit64 [0 1 2 3];
}

static HANDLERS: [Option<Handler>; NUMBERS] = handlers();

/// The function that takes a call; `None`: the kernel itself.
extern "C" fn choose(number: c_long, a: c_long, b: c_long) -> Option<Handler> {
    before(number, a, b).or(HANDLERS.get(number as usize).copied().flatten()).or_else(|| {
        let repeated = state::serves_user_mode_only() && bring::can_be_repeated(number);
        // SAFETY: the stub takes the six words in the registers of six parameters, and the number in one more
        // register, in which `syscall` has it.
        repeated.then(|| unsafe { std::mem::transmute::<unsafe extern "C" fn() -> c_long, Handler>(repeat) })
    })
}

/// Calls [`bring::by_number`] with the call's number as its seventh parameter.
#[unsafe(naked)]
unsafe extern "C" fn repeat() -> c_long {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "push rax",
        "call {by_number}",
        "add rsp, 8",
        "ret",
        by_number = sym bring::by_number,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("mov x6, x8", "b {by_number}", by_number = sym bring::by_number);
}

/// libc's function of this name. It looks first for numbers without a handler, since most calls have such a
/// number. It makes no stack frame: a child of vfork or clone may return from the call on another stack.
///
/// # Safety
/// As libc's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall() -> c_long {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "cmp rdi, {numbers}",
        "jae {kernel}",
        "lea rax, [rip + {watched}]",
        "cmp byte ptr [rax + rdi], 0",
        "jne 2f",
        "cmp byte ptr [rip + {user_mode}], 0",
        "je {kernel}",
        "2:",
        "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
        "call {choose}",
        "mov r11, rax",
        "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
        "test r11, r11",
        "jz {kernel}",
        "mov rax, rdi",
        "mov rdi, rsi", "mov rsi, rdx", "mov rdx, rcx", "mov rcx, r8", "mov r8, r9", "mov r9, [rsp + 8]",
        "jmp r11",
        numbers = const NUMBERS,
        watched = sym WATCHED,
        user_mode = sym state::SERVES_USER_MODE_ONLY,
        choose = sym choose,
        kernel = sym sys::elbowroom_system_call,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "cmp x0, {numbers}",
        "b.hs 1f",
        "adrp x16, {watched}",
        "add x16, x16, :lo12:{watched}",
        "ldrb w16, [x16, x0]",
        "cbnz w16, 2f",
        "adrp x16, {user_mode}",
        "ldrb w16, [x16, :lo12:{user_mode}]",
        "cbz w16, 1f",
        "2:",
        "stp x29, x30, [sp, #-80]!",
        "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "str x6, [sp, #64]",
        "bl {choose}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]", "ldp x4, x5, [sp, #48]", "ldr x6, [sp, #64]",
        "ldp x29, x30, [sp], #80",
        "cbz x16, 1f",
        "mov x8, x0",
        "mov x0, x1", "mov x1, x2", "mov x2, x3", "mov x3, x4", "mov x4, x5", "mov x5, x6",
        "br x16",
        "1: b {kernel}",
        numbers = const NUMBERS,
        watched = sym WATCHED,
        user_mode = sym state::SERVES_USER_MODE_ONLY,
        choose = sym choose,
        kernel = sym sys::elbowroom_system_call,
    );
}

/// The numbers that have a handler, and those before which the library has something to do.
static WATCHED: [bool; NUMBERS] = {
    let mut watched = [false; NUMBERS];
    let mut number = 0;
    while number < NUMBERS {
        watched[number] =
            HANDLERS[number].is_some() || crate::process::by_number::is_awaited(number as c_long);
        number += 1;
    }
    watched
};
