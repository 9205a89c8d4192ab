//! What happens around fork(2).
//!
//! A forked child has neither the service threads nor the windows, and finds [`crate::state::Process`] wiped.
//! Before the fork, dirty pages are written back, so that the child reads the files as its parent left them.

use crate::end;
use crate::interpose;
use crate::signals;
use crate::split::{self, Side};
use crate::state;
use crate::sys::{self, PAGE};
use libc::c_int;

/// No address of a program is above this.
const ADDRESS_END: usize = 1 << 47;

/// Registers the handlers. Called by the constructor.
pub fn set_up() {
    unsafe extern "C" {
        fn __register_atfork(
            prepare: Option<unsafe extern "C" fn()>,
            parent: Option<unsafe extern "C" fn()>,
            child: Option<unsafe extern "C" fn()>,
            dso: *mut libc::c_void,
        ) -> c_int;
    }
    // SAFETY: the handlers stay valid: this library is never unloaded.
    unsafe { __register_atfork(Some(before), None, Some(in_child), std::ptr::null_mut()) };
}

unsafe extern "C" fn before() {
    before_fork();
}

/// What comes before a child that gets a copy of this process: it must read the files as its parent left them, and the two
/// must see each other's stores where the kernel lets them.
pub fn before_fork() {
    interpose::hand_back_before_fork();
    end::flush();
}

unsafe extern "C" fn in_child() {
    // SAFETY: this is the child's only thread, before it does anything else.
    unsafe { elbowroom_sync::epoch::after_fork() };
    // The child of a thread of ours would be a bug, but its mark is not for a child's only thread.
    state::set_service_thread(false);
    let Some(process) = state::process() else { return };
    process.is_home();
    if state::last_manager().is_some() {
        signals::arm_for_child();
        keep_windows_closed();
    }
}

/// Reserves the addresses of the parent's windows without access, so that nothing the child maps can lie
/// where a stale pointer of the parent's points: such an access must fail, not read something else.
fn keep_windows_closed() {
    let Some(windows) = state::last_manager().map(|manager| manager.windows()) else { return };
    let _ = split::parts::<()>(
        PAGE..ADDRESS_END,
        PAGE,
        &|range| windows.intersects(range.start, range.len()),
        &|range| windows.covers(range.start, range.len()),
        &mut |side, range| {
            if side == Side::Managed {
                let flags =
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
                let at = range.start as *mut libc::c_void;
                // SAFETY: NOREPLACE: nothing that is mapped is changed. If it fails, the addresses are in use
                // already.
                unsafe { sys::mmap(at, range.len(), libc::PROT_NONE, flags, -1, 0) };
            }
            Ok(())
        },
    );
}
