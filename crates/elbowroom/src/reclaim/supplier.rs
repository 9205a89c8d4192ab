//! The thread that keeps frames at hand: the arena grows ahead of need, frames are freed when few are left,
//! and memory of groups that are at their `max`, and pages are given to the other processes of the run.
//! Linux: `kswapd`.

use super::proactive::{Need, PROACTIVE_LOOK, ProactiveReclaim};
use super::{Reclaim, Target};
use crate::config::{DELAY, FREE_AHEAD_PAGES, GIVE_BOUND, SUPPLY_LOOK};
use crate::group::GroupId;
use crate::page::Ready;
use crate::pause::Bell;
use crate::platform::Platform;
use crate::process_tree::{BLOCK, Member};
use crate::quiet::Rester;
use elbowroom_machine::Mmu;
use elbowroom_sync::atomic::{AtomicBool, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, LockStats, thread};

/// What wakes the thread that keeps frames at hand.
pub(super) enum SupplyBell {
    /// Only threads of this process ring it.
    Own(Bell),
    /// Other processes of the run ring it, too.
    Run(Arc<Member>),
}

impl SupplyBell {
    pub(super) fn new(member: Option<&Arc<Member>>, locks: &LockStats) -> Self {
        member.map_or_else(|| Self::Own(Bell::new(locks)), |member| Self::Run(member.clone()))
    }

    pub(super) fn ring(&self) {
        match self {
            Self::Own(bell) => bell.ring(),
            Self::Run(member) => member.ring(false),
        }
    }

    pub(super) fn ring_for_stop(&self) {
        match self {
            Self::Own(bell) => bell.ring_for_stop(),
            Self::Run(member) => member.ring(true),
        }
    }

    fn wait(&self, stop: &AtomicBool, bound: Duration) {
        match self {
            Self::Own(bell) => bell.wait(stop, bound),
            // A ring after `stop` was set is not missed: the bell stays rung, so the sleep ends at once.
            Self::Run(member) if !stop.load(Ordering::Acquire) => member.sleep(bound),
            Self::Run(_) => {}
        }
    }
}

/// What the thread that keeps frames at hand shares with others.
pub(super) struct Supply {
    /// The bell that wakes it.
    pub(super) bell: SupplyBell,
    /// What the process needs, if that is found out.
    pub(super) need: Need,
}

impl Supply {
    pub(super) fn new(member: Option<&Arc<Member>>, locks: &LockStats) -> Self {
        Self { bell: SupplyBell::new(member, locks), need: Need::default() }
    }
}

/// The work of the thread that keeps frames at hand.
pub(crate) struct Supplier<'r, P: Platform>(pub(super) &'r Reclaim<P>);

impl<P: Platform> Supplier<'_, P> {
    /// The main loop of the thread that keeps frames at hand. Runs `chores` about once in [`SUPPLY_LOOK`],
    /// and `serve`, which serves requests of other processes, after each sleep.
    pub(crate) fn run(&self, chores: impl Fn(), serve: impl Fn()) {
        let (mut due, mut look) = (Instant::now() + SUPPLY_LOOK, SUPPLY_LOOK);
        // Half of the free frames that were left when pages were given to other processes. The arena does not
        // grow ahead of need before threads use that many: an idle process would take the pages again.
        let mut spare = usize::MAX;
        let mut proactive = ProactiveReclaim::of(self.0);
        while !self.0.stop.load(Ordering::Acquire) {
            self.0.rest_if_wanted();
            let is_idle = self.0.mmu.frames_at_hand() >= spare;
            if !is_idle && self.0.wants_to_grow() && self.0.grow_arena() {
                spare = usize::MAX;
            } else {
                self.0.supply.bell.wait(&self.0.stop, look);
                self.free_ahead();
                self.free_in_groups();
            }
            let shared = self.0.run().and_then(|run| run.member.count_shared());
            look = shared.map_or(SUPPLY_LOOK, |next| next.min(SUPPLY_LOOK));
            if proactive.is_some() {
                look = look.min(PROACTIVE_LOOK);
            }
            let gave = proactive.as_mut().is_some_and(|proactive| proactive.run(self.0));
            if self.give_to_others() || gave {
                spare = self.0.mmu.frames_at_hand() / 2;
            }
            serve();
            if Instant::now() >= due {
                // Folios that were split take more metadata than before, and perhaps no thread asks for
                // frames now and so pays for it.
                self.0.pay_frames(self.0.mmu.frames_at_hand() / 2);
                if self.0.owed_frames() > 0 {
                    let ready = Ready::default();
                    self.0.shrink(GroupId::ROOT, FREE_AHEAD_PAGES, &ready);
                    self.0.dispatch(ready.take());
                }
                // Reclaim is to find the folios in the batches of idle threads.
                self.0.lists.drain();
                chores();
                due = Instant::now() + SUPPLY_LOOK;
            }
        }
    }

    /// Gives pages to the other processes of the run: those that they want, as far as they can be freed
    /// within [`GIVE_BOUND`]. Returns whether they want any.
    fn give_to_others(&self) -> bool {
        let Some(run) = self.0.run() else { return false };
        let mut left = run.member.wanted();
        let wants = left > 0;
        let until = Instant::now() + GIVE_BOUND;
        while left > 0 {
            left -= run.give(left);
            let leave = self.0.stop.load(Ordering::Acquire) || self.0.quiet.is_wanted(Rester::Helper);
            if left == 0 || leave || Instant::now() > until {
                break;
            }
            let ready = Ready::default();
            let freed = self.0.shrink(GroupId::ROOT, left.clamp(FREE_AHEAD_PAGES, BLOCK), &ready);
            self.0.dispatch(ready.take());
            if freed == 0 {
                // Pages that are being written can be freed later: wait for them.
                if self.0.to_write.own() == 0 {
                    return wants;
                }
                self.0.supply.bell.wait(&self.0.stop, DELAY);
            }
        }
        if left > 0 {
            run.member.ring(true);
        }
        wants
    }

    /// Frees as much memory of a group that was refused some at its `max` as its threads will need soon, so
    /// that the threads need not do that themselves. At the next refusal a thread rings again.
    fn free_in_groups(&self) {
        let groups = &self.0.groups;
        let Some(group) = groups.near_max.take(groups, self.0.began.elapsed()) else { return };
        let until = Instant::now() + GIVE_BOUND;
        while Instant::now() < until && self.0.tuning().low_share != usize::MAX {
            let leave = self.0.stop.load(Ordering::Acquire) || self.0.quiet.is_wanted(Rester::Helper);
            let others = self.0.is_low() || self.0.run().is_some_and(|run| run.member.wanted() > 0);
            // Pages that are on their way to the swap file are free soon.
            let left = (groups.near_max.beyond(groups, group) as usize).saturating_sub(self.0.to_write.own());
            if leave || others || left == 0 {
                return;
            }
            let ready = Ready::default();
            let freed = self.0.shrink(Target::ahead(group), FREE_AHEAD_PAGES.min(left), &ready);
            self.0.dispatch(ready.take());
            thread::yield_now();
            if freed == 0 {
                return;
            }
        }
    }

    /// Frees frames up to the high mark, twice the low mark, if fewer than the low mark are free and the
    /// arena has its size. Stops after as many batches as that should take: if other threads allocate as
    /// fast, they ring again, and the chores are to run.
    fn free_ahead(&self) {
        if !self.0.is_low() {
            return;
        }
        let low = self.0.low_mark();
        for _ in 0..(2 * low).div_ceil(FREE_AHEAD_PAGES) {
            let leave = self.0.stop.load(Ordering::Acquire) || self.0.quiet.is_wanted(Rester::Helper);
            if self.0.mmu.frames_at_hand() >= 2 * low || leave {
                return;
            }
            // The woken faults are dispatched at the end of a batch, so that a handler is kicked once.
            let ready = Ready::default();
            let freed = self.0.shrink(GroupId::ROOT, FREE_AHEAD_PAGES, &ready);
            self.0.dispatch(ready.take());
            // A thread that was just woken runs for a short time before it waits again: let it run first.
            thread::yield_now();
            if freed == 0 {
                // All pages that are left are in use: a thread that needs frames reclaims them itself.
                return self.0.supply.bell.wait(&self.0.stop, 10 * DELAY);
            }
        }
    }
}
