//! shmat(2): segments of System V shared memory are the kernel's, also where managed memory was.

use crate::agent::ranges::{hand_back, managed_range};
use crate::agent::request::{self, Op};
use crate::base::changes;
use crate::base::reason::Reason;
use crate::base::reserve;
use crate::base::sys;
use libc::{c_int, c_long, c_void};

/// shmat(2).
///
/// # Safety
/// As shmat(2).
pub unsafe fn attach(segment: c_int, addr: *const c_void, flags: c_int) -> *mut c_void {
    if !addr.is_null()
        && let Some(len) = size_of_segment(segment)
    {
        let at = if flags & libc::SHM_RND != 0 { addr.addr() & !(sys::PAGE - 1) } else { addr.addr() };
        if reserve::refuses(at, len) {
            return sys::map_failed(libc::EINVAL);
        }
        changes::note(at, len);
        if let Err(errno) = make_way(at, len, flags & libc::SHM_REMAP != 0) {
            return sys::map_failed(errno);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { sys::system_call(libc::SYS_shmat, segment as c_long, addr, flags as c_long) as *mut c_void }
}

/// Makes the range the kernel's: all of it if the segment replaces what is there, else only the free
/// addresses.
fn make_way(at: usize, len: usize, replaces: bool) -> Result<(), c_int> {
    let Some((process, _, range)) = managed_range(at, len) else { return Ok(()) };
    if replaces {
        process.count_bytes(Reason::KernelCall, range.len());
        return hand_back(process, range);
    }
    // Where something is mapped, the kernel says so.
    let _ = request::submit(process, Op::MakeRoom(range));
    Ok(())
}

/// The size in bytes; `None`: there is no such segment, or the caller has no right to ask.
fn size_of_segment(segment: c_int) -> Option<usize> {
    let kept = sys::errno();
    let mut about = std::mem::MaybeUninit::<libc::shmid_ds>::uninit();
    // SAFETY: the kernel writes one `shmid_ds`, whose layout is libc's on 64-bit machines.
    let r = unsafe {
        sys::system_call(libc::SYS_shmctl, segment as c_long, libc::IPC_STAT as c_long, about.as_mut_ptr())
    };
    sys::set_errno(kept);
    // SAFETY: the kernel has filled it.
    (r == 0).then(|| unsafe { about.assume_init() }.shm_segsz)
}
