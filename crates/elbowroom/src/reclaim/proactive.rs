//! Proactive reclaim: pages go before memory is short, and their memory goes to the machine.
//!
//! [`policy::Proactive`](super::policy::Proactive) says how many pages go; here is what the process counts,
//! and how the pages go. Linux: `memory.reclaim`.

use super::policy::{Proactive, Seen};
use super::{Reclaim, Target};
use crate::config::{FRAMES_AT_HAND, FREE_AHEAD_PAGES, GIVE_BOUND};
use crate::group::{GroupId, PressureUse};
use crate::page::Ready;
use crate::platform::Platform;
use crate::quiet::Rester;
use crate::stats::{Event, NeedUse};
use elbowroom_machine::{Mmu, PAGE_SHIFT};
use elbowroom_sync::atomic::{AtomicU64, Ordering};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};

/// How often pages go.
pub(super) const PROACTIVE_LOOK: Duration = Duration::from_millis(100);

/// At most one part in so many of the process's pages goes at a time.
const STEP_SHARE: u64 = 8;

/// The time that an access to a page on standby costs: a fault, two switches of threads, and the copy of the
/// page.
const FAULT_COST: Duration = Duration::from_micros(25);

/// The time that a page from the pool costs for which no thread stalls: its part of a fault, and its
/// decompression.
const POOL_COST: Duration = Duration::from_micros(8);

/// Of the frames in use one part in so many is kept free beside them.
pub(super) const SPARE_SHARE: usize = 32;

/// What a process has allocated, and needed of late, in pages.
#[derive(Default)]
pub(crate) struct Need {
    allocated: AtomicU64,
    needed: AtomicU64,
}

/// What the process has allocated, and needed of late. `None`: that is not found out.
pub(crate) fn need<P: Platform>(reclaim: &Reclaim<P>) -> Option<NeedUse> {
    let bytes = |pages: &AtomicU64| pages.load(Ordering::Relaxed) << PAGE_SHIFT;
    let Need { allocated, needed } = &reclaim.supply.need;
    let need = NeedUse { allocated_bytes: bytes(allocated), needed_bytes: bytes(needed) };
    reclaim.config.slowdown.is_some().then_some(need)
}

/// The proactive reclaim of one manager.
pub(super) struct ProactiveReclaim {
    account: Proactive,
    due: Instant,
    before: Counted,
    lost: Duration,
}

/// What the process has counted at a moment.
#[derive(Clone, Default)]
struct Counted {
    stalled_us: u64,
    /// The time that threads stalled, by whether pages that were gone are the reason, in microseconds.
    swap_us: u64,
    file_us: u64,
    other_us: u64,
    refaults: u64,
    read: u64,
    swap_ins: u64,
    touched: u64,
}

impl ProactiveReclaim {
    /// `None`: the manager does none.
    pub(super) fn of<P: Platform>(reclaim: &Reclaim<P>) -> Option<Self> {
        let slowdown = reclaim.config.slowdown.filter(|_| reclaim.config.member.is_some())?;
        Some(Self {
            account: Proactive::new(f64::from(slowdown) / 1e4),
            due: Instant::now() + PROACTIVE_LOOK,
            before: Counted::default(),
            lost: Duration::ZERO,
        })
    }

    /// Lets pages go if that is due. Returns whether their memory went to the machine.
    pub(super) fn run<P: Platform>(&mut self, reclaim: &Reclaim<P>) -> bool {
        if Instant::now() < self.due {
            return false;
        }
        let seen = self.seen(reclaim);
        let want = self.account.step(seen);
        self.note_need(reclaim);
        let gave = want > 0 && let_go(reclaim, want);
        self.due = Instant::now() + PROACTIVE_LOOK;
        gave
    }

    fn seen<P: Platform>(&mut self, reclaim: &Reclaim<P>) -> Seen {
        let counters = &reclaim.counters;
        let now = Counted::of(reclaim);
        self.lost += now.lost_since(&self.before);
        self.before = now.clone();
        Seen {
            age: reclaim.began.elapsed(),
            lost: self.lost,
            gone: gone(reclaim),
            back: counters.get(Event::ChancePagesTaken) + now.refaults + now.swap_ins,
            has: has(reclaim),
        }
    }

    fn note_need<P: Platform>(&self, reclaim: &Reclaim<P>) {
        let need = &reclaim.supply.need;
        need.needed.store(self.account.needed(), Ordering::Relaxed);
        let free = reclaim.mmu.frames_at_hand() + reclaim.swap.frames();
        let in_use = reclaim.mmu.populated_frames().saturating_sub(free) as u64;
        need.allocated.fetch_max(in_use + reclaim.swap.used(), Ordering::Relaxed);
    }
}

impl Counted {
    fn of<P: Platform>(reclaim: &Reclaim<P>) -> Self {
        let counters = &reclaim.counters;
        let PressureUse { some, kinds, .. } = reclaim.groups.of(GroupId::ROOT).pressure().figures();
        Self {
            stalled_us: some.total_us,
            swap_us: kinds.swap_in_us + kinds.frames_us,
            file_us: kinds.file_read_us,
            other_us: kinds.dirty_us,
            refaults: counters.get(Event::RefaultPages),
            read: counters.get(Event::ReadBytes) >> PAGE_SHIFT,
            swap_ins: counters.get(Event::SwapIns),
            touched: counters.get(Event::ChancesTaken),
        }
    }

    /// The time that was lost since `before` because pages were gone. Stalls of reads count by the part of
    /// what was read that had been in memory before; those of several threads at a time count once.
    fn lost_since(&self, before: &Self) -> Duration {
        let since = |of: fn(&Self) -> u64| of(self).saturating_sub(of(before)) as f64;
        let part = |a: f64, b: f64| if b > 0.0 { (a / b).min(1.0) } else { 0.0 };
        let refaulted = part(since(|of| of.refaults), since(|of| of.read));
        let (swap_us, file_us, other_us) =
            (since(|of| of.swap_us), since(|of| of.file_us), since(|of| of.other_us));
        let ours = part(swap_us + file_us * refaulted, swap_us + file_us + other_us);
        let stalled = Duration::from_micros((since(|of| of.stalled_us) * ours) as u64);
        let times = |cost: Duration, count: f64| cost.mul_f64(count);
        stalled + times(FAULT_COST, since(|of| of.touched)) + times(POOL_COST, since(|of| of.swap_ins))
    }
}

/// Pages that went so far: out of their windows or, if they had no second chance, out of memory.
fn gone<P: Platform>(reclaim: &Reclaim<P>) -> u64 {
    let counters = &reclaim.counters;
    counters.get(Event::ChancePages).max(counters.get(Event::EvictedPages) + counters.get(Event::SwapOuts))
}

/// Pages that the process has of the run's budget.
fn has<P: Platform>(reclaim: &Reclaim<P>) -> u64 {
    reclaim.config.member.as_ref().map_or(0, |member| member.has() as u64)
}

/// Lets about so many pages go, as far as they can within [`GIVE_BOUND`], and gives the free frames that are
/// not kept to the run. Returns whether there were any.
fn let_go<P: Platform>(reclaim: &Reclaim<P>, want: u64) -> bool {
    let until = Instant::now() + GIVE_BOUND;
    let enough = gone(reclaim) + want.min(has(reclaim) / STEP_SHARE);
    while Instant::now() < until && gone(reclaim) < enough {
        let leave = reclaim.stop.load(Ordering::Acquire) || reclaim.quiet.is_wanted(Rester::Helper);
        if leave || reclaim.is_writing_enough() {
            break;
        }
        let (ready, before) = (Ready::default(), gone(reclaim));
        let freed = reclaim.shrink(Target::ahead(GroupId::ROOT), FREE_AHEAD_PAGES, &ready);
        reclaim.dispatch(ready.take());
        thread::yield_now();
        if freed == 0 && gone(reclaim) == before {
            break;
        }
    }
    let Some(run) = reclaim.run() else { return false };
    let free = reclaim.mmu.frames_at_hand();
    let in_use = reclaim.mmu.populated_frames().saturating_sub(free);
    run.give(free.saturating_sub((in_use / SPARE_SHARE).max(FRAMES_AT_HAND))) > 0
}
