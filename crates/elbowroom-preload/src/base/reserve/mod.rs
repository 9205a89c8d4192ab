//! Where the library's own memory lies: its heap, the stacks of its threads, and buffers.
//!
//! A mapping at an address of the kernel's choice may lie in a hole that the program made in a window, and
//! the program may map something of its own over that hole at any time. So the library reserves addresses
//! of its own, far from where the kernel places mappings, and takes all that it needs while the program
//! runs from there:
//! * the heap ([`heap`]): what describes frames, files and mappings grows with the budget, and with how much
//!   of the files was seen;
//! * stacks ([`stacks`]) of all threads that the library and the manager start;
//! * a few buffers for transfers ([`buffers`]), used by the program's own threads.
//!
//! Reserved addresses have no memory and no rights until they are used, but count against RLIMIT_AS:
//! [`heap::INITIAL_HEAP_BYTES`] in every program, the rest once the manager starts. Without room for it,
//! the library asks the kernel for each thing, as any program does.
//!
//! A forked child has a copy of the heap, which it goes on using if it is complete; it has none of the
//! threads, so their stacks are free there.
//!
//! Synchronization: the table of regions is append-only and read without a lock. Calls of the program that
//! name addresses in it are refused ([`refuses`]) before they do harm.

mod buffers;
mod heap;
mod lent;
mod stacks;

pub use super::regions::{committed_bytes, place_beside, touches};
pub use buffers::{BOUNCE_BYTES, Buffer};
pub use heap::Heap;
pub use stacks::{at_thread_exit, create_thread, kept_by_libc};

use crate::base::reason::Reason;
use crate::base::regions;
use crate::base::state;
use crate::base::sys::PAGE;

/// The first bytes of a manager's heap where RLIMIT_AS is set; the rest is reserved when it is needed.
const LIMITED_HEAP_BYTES: usize = 8 << 20;
/// 1/16 of the budget is added to [`heap::HEAP_BYTES`]: about four times what describes the frames of files
/// that are no larger than the budget.
const HEAP_PART_OF_BUDGET: usize = 16;

/// Reserves what a manager with such a budget needs. Called before the manager starts; earlier reservations
/// stay.
pub fn prepare(budget_bytes: u64) {
    stacks::prepare();
    buffers::prepare();
    let part = usize::try_from(budget_bytes).unwrap_or(usize::MAX) / HEAP_PART_OF_BUDGET;
    let heap =
        if addresses_are_limited() { LIMITED_HEAP_BYTES } else { heap::HEAP_BYTES + part.min(1 << 40) };
    heap::prepare(heap.next_multiple_of(PAGE));
}

/// Whether there is an RLIMIT_AS.
fn addresses_are_limited() -> bool {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the kernel writes one `rlimit`.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
    limit.rlim_cur != libc::RLIM_INFINITY
}

/// In a forked child, before it does anything else: it has none of the parent's threads.
pub fn in_child() {
    regions::only_thread_is_ours(state::is_service_thread());
    heap::in_child();
    stacks::in_child();
    buffers::in_child();
}

/// Whether a call of the program on these addresses is refused, since memory of the library is among them.
/// A refusal is counted.
pub fn refuses(addr: usize, len: usize) -> bool {
    // A range that wraps, and an address that is not aligned, are refused by the kernel itself.
    if !addr.is_multiple_of(PAGE) {
        return false;
    }
    let end = len.checked_next_multiple_of(PAGE).and_then(|len| addr.checked_add(len));
    let Some(range) = end.map(|end| addr..end).filter(|range| !range.is_empty()) else {
        return false;
    };
    let Some(process) = state::for_program() else { return false };
    let ours =
        touches(&range) || process.manager().is_some_and(|manager| manager.has_memory_of_its_own_in(&range));
    if ours {
        process.count(Reason::LibraryMemory);
    }
    ours
}
