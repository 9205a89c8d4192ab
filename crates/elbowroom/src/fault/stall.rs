//! Which waits of faults are stalls: those for memory, and for what is to be in it.
//!
//! A fault that waits for another thread's lock, for a pin or for the end of a change does not stall: more
//! memory would not help it. The lock statistics have these waits.

use super::outcome::Reason;
use crate::core::Core;
use crate::group::StallKind;
use crate::page::Parked;
use crate::platform::Platform;
use crate::stats::WaitCause;

/// The kind of stall that a wait is. `None`: it is none.
fn kind_of(reason: &Reason) -> Option<StallKind> {
    match (reason.cause(), reason) {
        (WaitCause::Io, Reason::Folio(folio)) if !folio.is_cached() => Some(StallKind::SwapIn),
        (WaitCause::Io, _) => Some(StallKind::FileRead),
        (WaitCause::Frame | WaitCause::Tables, _) => Some(StallKind::Frames),
        (WaitCause::Writeback, _) => Some(StallKind::Dirty),
        _ => None,
    }
}

/// Begins the stall of a fault that is about to wait, if the wait is one. It ends when the fault is looked
/// at again, or with the fault.
pub(super) fn begin<P: Platform>(core: &Core<P>, fault: &mut Parked, reason: &Reason) {
    let Some(kind) = kind_of(reason) else { return };
    let group = match reason {
        Reason::Folio(folio) => Some(folio.group),
        _ => None,
    };
    fault.wait.stall = core.begin_stall(kind, fault.track, fault.event.addr, group);
}
