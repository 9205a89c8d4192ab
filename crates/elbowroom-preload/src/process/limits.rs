//! RLIMIT_AS and RLIMIT_DATA: our reservations must not use up the program's limits.
//!
//! The kernel counts our windows and our arena against these limits, though they hold no memory of the
//! program's. Where a limit is finite, the kernel's is what the program has set plus what we have reserved,
//! and the program reads back what it has set (limit_calls.rs). If the kernel does not allow that (a
//! hard limit that we may not raise), nothing is managed: counted as `address_space_limit`. A program that is
//! executed inherits limits, so before that the kernel gets the program's own.
//!
//! Synchronization: atomics. If two threads set the same limit at once, one of them wins, as always; but
//! the record may then have the soft limit of one and the hard limit of the other.

use crate::agent::map::{Counted, managed_bytes};
use crate::base::state;
use crate::base::sys;
use crate::process::address_use::{Kernels, used};
use crate::rules::map::MapArgs;
use elbowroom_machine::probe::{OWN_BYTES, WINDOW_BYTES};
use libc::{c_int, c_long, rlimit};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The limits that reservations count against.
const RESOURCES: [c_int; 2] = [libc::RLIMIT_AS as c_int, libc::RLIMIT_DATA as c_int];

/// One limit.
struct Limit {
    /// Whether the kernel's limit differs from the program's.
    differs: AtomicBool,
    /// The program's own: soft and hard.
    own: [AtomicU64; 2],
    /// The kernel's limit that was set for it: soft and hard.
    given: [AtomicU64; 2],
}

static LIMITS: [Limit; 2] = [const {
    Limit {
        differs: AtomicBool::new(false),
        own: [const { AtomicU64::new(0) }; 2],
        given: [const { AtomicU64::new(0) }; 2],
    }
}; 2];

fn store(pair: &[AtomicU64; 2], value: rlimit) {
    pair[0].store(value.rlim_cur, Ordering::Release);
    pair[1].store(value.rlim_max, Ordering::Release);
}

fn load(pair: &[AtomicU64; 2]) -> rlimit {
    rlimit { rlim_cur: pair[0].load(Ordering::Acquire), rlim_max: pair[1].load(Ordering::Acquire) }
}

fn same(a: rlimit, b: rlimit) -> bool {
    (a.rlim_cur, a.rlim_max) == (b.rlim_cur, b.rlim_max)
}

impl Limit {
    /// The program's own limit, if the kernel still has what it was given for it.
    fn own(&self, kernel: rlimit) -> Option<rlimit> {
        (self.differs.load(Ordering::Acquire) && same(kernel, load(&self.given))).then(|| load(&self.own))
    }

    fn set(&self, own: rlimit, given: rlimit) {
        store(&self.own, own);
        store(&self.given, given);
        self.differs.store(!same(own, given), Ordering::Release);
    }
}

fn of(resource: c_int) -> Option<&'static Limit> {
    RESOURCES.iter().position(|there| *there == resource).map(|index| &LIMITS[index])
}

/// prlimit(2) of this process. `errno` is kept if it succeeds.
fn exchange(resource: c_int, new: Option<rlimit>) -> Option<rlimit> {
    let kept = sys::errno();
    let mut old = rlimit { rlim_cur: 0, rlim_max: 0 };
    let new = new.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the pointers are null or valid.
    let r =
        unsafe { sys::system_call(libc::SYS_prlimit64, 0 as c_long, resource as c_long, new, &raw mut old) };
    if r != 0 {
        return None;
    }
    sys::set_errno(kept);
    Some(old)
}

fn plus(limit: u64, more: u64) -> u64 {
    if limit == libc::RLIM_INFINITY { limit } else { limit.saturating_add(more) }
}

/// `limit`, with room for `more`.
fn with_room(limit: rlimit, more: u64) -> rlimit {
    rlimit { rlim_cur: plus(limit.rlim_cur, more), rlim_max: plus(limit.rlim_max, more) }
}

/// `limit`, with a hard limit of at most that of `there`: the program has not asked to raise the kernel's
/// hard limit.
fn within(limit: rlimit, there: Option<rlimit>) -> rlimit {
    let hard = there.map_or(limit.rlim_max, |there| there.rlim_max.min(limit.rlim_max));
    rlimit { rlim_cur: limit.rlim_cur.min(hard), rlim_max: hard }
}

/// The least limit under which all that is managed can go back to the kernel: what the kernel counts now, and
/// as much again as is managed, since memory is mapped aside first.
fn least(resource: c_int) -> u64 {
    let counted = if resource == libc::RLIMIT_AS as c_int { Counted::All } else { Counted::Data };
    Kernels::now().of(counted).unwrap_or(0) + managed_bytes(Counted::All).unwrap_or(0)
}

/// The kernel's limit for one of the program's, with room for `more`, and at least [`least`]: a limit below
/// what is mapped would also refuse the mappings by which memory and files go back to the kernel.
fn for_kernel(resource: c_int, limit: rlimit, more: u64) -> rlimit {
    let room = with_room(limit, more);
    let least = if more > 0 && limit.rlim_cur != libc::RLIM_INFINITY { least(resource) } else { 0 };
    rlimit { rlim_cur: room.rlim_cur.max(least), rlim_max: room.rlim_max.max(least) }
}

/// How many bytes this process has reserved that count against the limit.
fn reserved(resource: c_int) -> u64 {
    let alive = state::alive().is_some();
    // A forked child keeps the addresses of its parent's windows closed, without the right to write.
    let counted = alive || resource == libc::RLIMIT_AS as c_int;
    let Some(manager) = state::last_manager().filter(|_| counted) else { return 0 };
    let windows: u64 = manager.windows().windows().map(|window| window.len() as u64).sum();
    windows + if alive { arena_bytes() } else { 0 }
}

fn arena_bytes() -> u64 {
    state::options().map_or(0, |options| options.memory_bytes) + OWN_BYTES
}

/// Before a manager starts: makes room in the limits for what it reserves. `false`: that is not allowed.
pub fn make_room() -> bool {
    let kept = sys::errno();
    let made = RESOURCES.iter().all(|resource| make_room_in(*resource));
    sys::set_errno(kept);
    if !made {
        give_back();
    }
    made
}

fn make_room_in(resource: c_int) -> bool {
    let (Some(limit), Some(there)) = (of(resource), exchange(resource, None)) else { return true };
    let own = limit.own(there).unwrap_or(there);
    if own.rlim_cur == libc::RLIM_INFINITY {
        return true;
    }
    let more = WINDOW_BYTES + arena_bytes();
    let both = with_room(own, more);
    let soft_only = rlimit { rlim_cur: both.rlim_cur, rlim_max: own.rlim_max };
    let given = [both, soft_only].into_iter().find(|given| exchange(resource, Some(*given)).is_some());
    if let Some(given) = given {
        limit.set(own, given);
    }
    given.is_some()
}

/// After a mapping was made: the kernel's soft limits leave the program what it has set, and no more.
pub fn settle() {
    for (resource, limit) in RESOURCES.into_iter().zip(&LIMITS) {
        if !limit.differs.load(Ordering::Acquire) {
            continue;
        }
        let (own, given) = (load(&limit.own), load(&limit.given));
        let wanted = plus(own.rlim_cur, reserved(resource));
        let least = if wanted < given.rlim_cur { least(resource).min(given.rlim_cur) } else { 0 };
        let soft = wanted.max(least).min(given.rlim_max);
        let settled = rlimit { rlim_cur: soft, rlim_max: given.rlim_max };
        if !same(settled, given)
            && limit.own(exchange(resource, None).unwrap_or(own)).is_some()
            && exchange(resource, Some(settled)).is_some()
        {
            limit.set(own, settled);
        }
    }
}

/// Whether the program's own limits refuse a mapping. The kernel would not refuse it: its limits have room
/// for our windows, in which the mapping would lie. What a mapping at a fixed place replaces is not looked
/// at, so such a mapping is not refused here.
pub fn refuse(args: &MapArgs) -> bool {
    let is_data = args.shared() == Some(false)
        && args.prot & libc::PROT_WRITE != 0
        && args.flags & libc::MAP_GROWSDOWN == 0;
    let replaces = args.flags & libc::MAP_FIXED != 0 && args.flags & libc::MAP_FIXED_NOREPLACE == 0;
    let exceeds = |counted: Counted, limit: &Limit| {
        let own = load(&limit.own).rlim_cur;
        let counts = limit.differs.load(Ordering::Acquire) && own != libc::RLIM_INFINITY;
        counts && used(counted).is_some_and(|used| used.saturating_add(args.rounded() as u64) > own)
    };
    if replaces || state::alive().is_none() {
        return false;
    }
    exceeds(Counted::All, &LIMITS[0]) || is_data && exceeds(Counted::Data, &LIMITS[1])
}

/// Sets the kernel's limits to the program's own again. `errno` is kept.
pub fn give_back() {
    let kept = sys::errno();
    for (resource, limit) in RESOURCES.into_iter().zip(&LIMITS) {
        let own = exchange(resource, None).and_then(|there| limit.own(there));
        if let Some(own) = own
            && exchange(resource, Some(own)).is_some()
        {
            limit.differs.store(false, Ordering::Release);
        }
    }
    sys::set_errno(kept);
}

/// Before an exec: sets the kernel's limits to the program's own, which the other program is to inherit.
/// The record stays as it is: it may be that of a parent whose memory the caller shares.
pub fn before_exec() {
    swap(|limit| (load(&limit.given), load(&limit.own)));
}

/// After a failed exec: undoes [`before_exec`].
pub fn after_exec() {
    swap(|limit| (load(&limit.own), load(&limit.given)));
}

/// Replaces the first of two limits by the second where the kernel has the first.
fn swap(pair: impl Fn(&Limit) -> (rlimit, rlimit)) {
    let kept = sys::errno();
    for (resource, limit) in RESOURCES.into_iter().zip(&LIMITS) {
        if !limit.differs.load(Ordering::Acquire) {
            continue;
        }
        let (from, to) = pair(limit);
        if exchange(resource, None).is_some_and(|there| same(there, from)) {
            exchange(resource, Some(to));
        }
    }
    sys::set_errno(kept);
}

/// prlimit(2) of this process as the program sees it; `errno` says why it failed.
pub fn virtual_limit(resource: c_int, new: Option<rlimit>) -> Option<rlimit> {
    let limit = of(resource)?;
    let shares_memory = !state::process().is_some_and(|process| process.is_home());
    let more = if shares_memory { 0 } else { reserved(resource) };
    let now = exchange(resource, None)?;
    let old = limit.own(now).unwrap_or(now);
    let asked = new.map(|new| match new.rlim_cur > new.rlim_max {
        true => new,
        false => within(for_kernel(resource, new, more), (new.rlim_max <= old.rlim_max).then_some(now)),
    });
    exchange(resource, asked)?;
    if let (Some(own), Some(given)) = (new, asked)
        && !shares_memory
    {
        limit.set(own, given);
    }
    Some(old)
}

/// Whether [`virtual_limit`] is responsible for a limit.
pub fn is_virtual(resource: c_int) -> bool {
    of(resource).is_some_and(|limit| limit.differs.load(Ordering::Acquire))
        || (of(resource).is_some() && state::last_manager().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_added_to_what_is_finite() {
        let given = with_room(rlimit { rlim_cur: 10, rlim_max: libc::RLIM_INFINITY }, 5);
        assert!(same(given, rlimit { rlim_cur: 15, rlim_max: libc::RLIM_INFINITY }));
        assert_eq!(plus(u64::MAX - 2, 5), u64::MAX);
        let there = rlimit { rlim_cur: 7, rlim_max: 12 };
        assert!(same(
            within(rlimit { rlim_cur: 15, rlim_max: 20 }, Some(there)),
            rlimit { rlim_cur: 12, rlim_max: 12 }
        ));
    }

    #[test]
    fn the_own_limit_is_told_while_the_kernel_has_what_it_was_given() {
        let limit = Limit {
            differs: AtomicBool::new(false),
            own: [const { AtomicU64::new(0) }; 2],
            given: [const { AtomicU64::new(0) }; 2],
        };
        let (own, given) = (rlimit { rlim_cur: 1, rlim_max: 2 }, rlimit { rlim_cur: 11, rlim_max: 12 });
        assert!(limit.own(given).is_none());
        limit.set(own, given);
        assert!(limit.own(given).is_some_and(|told| same(told, own)));
        assert!(limit.own(own).is_none());
    }
}
