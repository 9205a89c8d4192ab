//! Proactive reclaim: pages go before memory is short, and their memory goes to the machine.
//!
//! [`policy::Proactive`](super::policy::Proactive) says how many pages go; here is what the process counts,
//! and how the pages go. Linux: `memory.reclaim`.

use super::policy::{Policy, Proactive, Seen};
use super::scan;
use super::{Reclaim, Target};
use crate::config::{FRAMES_AT_HAND, FREE_AHEAD_PAGES, GIVE_BOUND};
use crate::group::{GroupId, Kind, PressureUse};
use crate::page::Ready;
use crate::platform::Platform;
use crate::quiet::Rester;
use crate::stats::{Event, NeedUse};
use elbowroom_machine::{Mmu, PAGE_SHIFT, processor_time, run_delay};
use elbowroom_sync::atomic::{AtomicU64, Ordering};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};
use std::collections::VecDeque;

/// How often it is looked whether pages are to go.
pub(super) const PROACTIVE_LOOK: Duration = Duration::from_millis(100);

/// How many looks in a row a frame must be free before its memory goes: a program that allocates and frees
/// again and again would need it back at once.
const FREE_LOOKS: usize = 10;

/// Processors are busy if this thread waits for one for so large a part of the time: one in so many.
const BUSY_WAIT: f64 = 16.0;

/// So many pages beyond those that standby has may be taken out of their windows before one is freed.
const MOST_IN_VAIN: u64 = 1024;

/// Where nothing could be freed, it is tried again after so long.
const IN_VAIN: Duration = Duration::from_secs(2);

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
    note_allocated(reclaim);
    let bytes = |pages: &AtomicU64| pages.load(Ordering::Relaxed) << PAGE_SHIFT;
    let Need { allocated, needed } = &reclaim.supply.need;
    let allocated_bytes = bytes(allocated);
    let needed_bytes = match bytes(needed) {
        // It ends before the first look.
        0 => allocated_bytes,
        // What it needed has the free frames that were kept.
        needed => needed.min(allocated_bytes),
    };
    let need = NeedUse { allocated_bytes, needed_bytes };
    reclaim.config.reclaim.slowdown.is_some().then_some(need)
}

/// The proactive reclaim of one manager.
pub(super) struct ProactiveReclaim {
    account: Proactive,
    began: Instant,
    due: Instant,
    /// No page is to go before that.
    rests_until: Instant,
    at_start: Counted,
    before: Counted,
    lost: Duration,
    /// The time for which pages were put out while the process's threads needed all processors.
    worked: Duration,
    looked: Looked,
    /// Of what was read last, the part that had been in memory before.
    refaulted: f64,
    /// How many frames were free at the last looks.
    free: VecDeque<usize>,
}

/// What was known of processors at a look.
#[derive(Clone, Copy)]
struct Looked {
    at: Instant,
    /// The processor time that the process had used, and for how long the calling thread had waited for a
    /// processor, in nanoseconds.
    used: u64,
    waited: u64,
}

impl Looked {
    fn now() -> Self {
        Self { at: Instant::now(), used: processor_time(), waited: run_delay() }
    }
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
    gone: u64,
    back: u64,
}

impl ProactiveReclaim {
    /// `None`: the manager does none.
    pub(super) fn of<P: Platform>(reclaim: &Reclaim<P>) -> Option<Self> {
        let slowdown = reclaim.config.reclaim.slowdown.filter(|_| reclaim.config.member.is_some())?;
        let (now, counted) = (Instant::now(), Counted::of(reclaim));
        // A forked child has its parent's counts, and begins anew.
        let need = &reclaim.supply.need;
        [&need.allocated, &need.needed].into_iter().for_each(|pages| pages.store(0, Ordering::Relaxed));
        Some(Self {
            account: Proactive::new(f64::from(slowdown) / 1e4),
            began: now,
            due: now + PROACTIVE_LOOK,
            rests_until: now,
            at_start: counted.clone(),
            before: counted,
            lost: Duration::ZERO,
            worked: Duration::ZERO,
            looked: Looked::now(),
            refaulted: 1.0,
            free: VecDeque::with_capacity(FREE_LOOKS),
        })
    }

    /// Lets pages go if that is due. Returns whether their memory went to the machine.
    pub(super) fn run<P: Platform>(&mut self, reclaim: &Reclaim<P>) -> bool {
        if Instant::now() < self.due {
            return false;
        }
        let seen = self.seen(reclaim);
        let want = self.account.step(seen);
        note_allocated(reclaim);
        reclaim.supply.need.needed.store(self.account.needed(), Ordering::Relaxed);
        let (began, is_busy) = (Instant::now(), self.is_busy());
        if want > 0 && began >= self.rests_until && let_go(reclaim, want) == Went::Nowhere {
            self.rests_until = began + IN_VAIN;
        }
        let gave = self.give(reclaim);
        let now = Instant::now();
        if is_busy {
            self.worked += now.saturating_duration_since(began) / thread::parallelism() as u32;
        }
        self.due = now + PROACTIVE_LOOK;
        gave
    }

    /// Whether all processors were in use since the last look: the process left less than half of one idle,
    /// or this thread waited for one for some time.
    fn is_busy(&mut self) -> bool {
        let now = Looked::now();
        let before = std::mem::replace(&mut self.looked, now);
        let elapsed = now.at.saturating_duration_since(before.at).as_nanos() as f64;
        let used = now.used.saturating_sub(before.used) as f64;
        let waited = now.waited.saturating_sub(before.waited) as f64;
        used > elapsed * (thread::parallelism() as f64 - 0.5) || waited * BUSY_WAIT > elapsed
    }

    /// Gives the memory of frames to the run that have been free for some time, but for those that are kept.
    /// Returns whether there were any.
    fn give<P: Platform>(&mut self, reclaim: &Reclaim<P>) -> bool {
        let Some(run) = reclaim.run() else { return false };
        let free = reclaim.mmu.frames_at_hand();
        if self.free.len() == FREE_LOOKS {
            self.free.pop_front();
        }
        self.free.push_back(free);
        let least = self.free.iter().copied().min().unwrap_or(0);
        let in_use = reclaim.mmu.populated_frames().saturating_sub(free);
        let spare = least.saturating_sub((in_use / SPARE_SHARE).max(FRAMES_AT_HAND));
        let most = run.member.has().saturating_sub(run.member.keeps());
        let given = if self.free.len() == FREE_LOOKS { run.give(spare.min(most)) } else { 0 };
        self.free.iter_mut().for_each(|free| *free = free.saturating_sub(given));
        given > 0
    }

    fn seen<P: Platform>(&mut self, reclaim: &Reclaim<P>) -> Seen {
        let now = Counted::of(reclaim);
        let lost = self.lost_until(&now);
        self.lost += lost;
        self.before = now;
        let (now, at_start) = (&self.before, &self.at_start);
        // Pages of files that are gone, and did not come back, may be wanted no more: their file may be gone.
        let files = reclaim.counters.get(Event::FileOuts).saturating_sub(now.refaults);
        Seen {
            age: self.began.elapsed(),
            lost: self.lost,
            worked: self.worked,
            gone: now.gone.saturating_sub(at_start.gone),
            back: now.back.saturating_sub(at_start.back),
            out: reclaim.swap.used() + files,
            has: has(reclaim),
        }
    }

    /// The time that was lost since the last look because pages were gone. Stalls of reads count by the part
    /// of what was read that had been in memory before; those of several threads at a time count once.
    fn lost_until(&mut self, now: &Counted) -> Duration {
        let since = |of: fn(&Counted) -> u64| of(now).saturating_sub(of(&self.before)) as f64;
        let part = |a: f64, b: f64| if b > 0.0 { (a / b).min(1.0) } else { 0.0 };
        // Threads may stall for a read that takes longer than a look.
        if since(|of| of.read) > 0.0 {
            self.refaulted = part(since(|of| of.refaults), since(|of| of.read));
        }
        let (swap_us, file_us, other_us) =
            (since(|of| of.swap_us), since(|of| of.file_us), since(|of| of.other_us));
        let ours = part(swap_us + file_us * self.refaulted, swap_us + file_us + other_us);
        let stalled = Duration::from_micros((since(|of| of.stalled_us) * ours) as u64);
        let times = |cost: Duration, count: f64| cost.mul_f64(count);
        stalled + times(FAULT_COST, since(|of| of.touched)) + times(POOL_COST, since(|of| of.swap_ins))
    }
}

/// Notes how many pages the process has, with those that are out.
fn note_allocated<P: Platform>(reclaim: &Reclaim<P>) {
    let free = reclaim.mmu.frames_at_hand() + reclaim.swap.frames();
    let in_use = reclaim.mmu.populated_frames().saturating_sub(free) as u64;
    reclaim.supply.need.allocated.fetch_max(in_use + reclaim.swap.used(), Ordering::Relaxed);
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
            gone: counters.get(Event::GonePages),
            back: counters.get(Event::ChancePagesTaken)
                + counters.get(Event::RefaultPages)
                + counters.get(Event::SwapIns),
        }
    }
}

/// Pages that the process has of the run's budget.
fn has<P: Platform>(reclaim: &Reclaim<P>) -> u64 {
    reclaim.config.member.as_ref().map_or(0, |member| member.has() as u64)
}

/// What became of pages that were to go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Went {
    /// Some are gone, or wait on standby or for the flusher.
    Out,
    /// None can go: swap is full.
    Nowhere,
}

/// Lets about so many pages go, as far as they can within [`GIVE_BOUND`].
fn let_go<P: Platform>(reclaim: &Reclaim<P>, want: u64) -> Went {
    let until = Instant::now() + GIVE_BOUND;
    let gone = || reclaim.counters.get(Event::GonePages);
    let (began, mut freed) = (gone(), 0);
    let enough = began + want.min(has(reclaim) / STEP_SHARE);
    // Standby is filled before any page of it goes.
    let standby = 2 * reclaim.policy.standby_share(scan::all_of(reclaim, Kind::File)) as u64 + MOST_IN_VAIN;
    while Instant::now() < until && gone() < enough {
        let leave = reclaim.stop.load(Ordering::Acquire) || reclaim.quiet.is_wanted(Rester::Helper);
        if leave || reclaim.is_writing_enough() {
            break;
        }
        let (ready, before) = (Ready::default(), gone());
        let more = reclaim.shrink(Target::ahead(GroupId::ROOT), FREE_AHEAD_PAGES, &ready);
        reclaim.dispatch(ready.take());
        thread::yield_now();
        freed += more;
        if more == 0 && gone() == before {
            break;
        }
        if freed == 0 && reclaim.to_write.own() == 0 && gone() - began > standby {
            return Went::Nowhere;
        }
    }
    Went::Out
}
