//! The arithmetic of pressure: totals and averages of the time in which threads stall.
//!
//! Plain data. The caller passes the time in, in nanoseconds since some fixed moment; a time earlier than
//! the last one counts as the last one. Between two calls no stall begins or ends, so the time since the
//! last call can be accounted for exactly, and no thread has to look in between. Linux: kernel/sched/psi.c,
//! which samples once in 2 s instead.

use super::sources::{Source, Sources, StallSource};
use std::collections::VecDeque;

/// For how long a thread counts as running after the end of its last stall, in nanoseconds.
pub const RUNNING_NS: u64 = 1_000_000_000;

/// How many running threads are remembered at most. With more, the one whose stall ended first is
/// forgotten.
const MOST_RUNNING: usize = 64;

/// Averages are settled in steps of this length, in nanoseconds. Linux: `psi_period`.
pub const PERIOD_NS: u64 = 2_000_000_000;

/// The times over which averages are taken, in nanoseconds.
pub const AVERAGED_NS: [u64; 3] = [10_000_000_000, 60_000_000_000, 300_000_000_000];

/// What a thread stalls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StallKind {
    /// A page is read from its file.
    FileRead,
    /// A page of anonymous memory is read from swap.
    SwapIn,
    /// Memory: frames are freed or waited for, or memory for page tables is waited for.
    Frames,
    /// Too many pages are dirty: a writer is throttled, or a fault waits for a write-back.
    Dirty,
}

impl StallKind {
    /// How many kinds there are.
    const COUNT: usize = 4;
}

/// Which threads must stall for a time to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StallExtent {
    /// At least one thread stalls.
    Some,
    /// At least one thread stalls, and none is known to run.
    Full,
}

/// The stall time of one extent.
#[derive(Debug, Clone, Copy, Default)]
struct Series {
    total_ns: u64,
    /// The total when the averages were settled last.
    settled_ns: u64,
    /// The averages over [`AVERAGED_NS`], as parts of 1.
    averages: [f64; 3],
}

impl Series {
    /// The averages `ns` nanoseconds after they were settled last, as if the stall time since then were
    /// spread evenly over the `ns`.
    fn after(&self, ns: u64) -> [f64; 3] {
        let grown = (self.total_ns - self.settled_ns) as f64;
        let part = if ns == 0 { 0.0 } else { grown / ns as f64 };
        std::array::from_fn(|nth| decayed(self.averages[nth], part, ns, AVERAGED_NS[nth]))
    }

    fn settle(&mut self) {
        self.averages = self.after(PERIOD_NS);
        self.settled_ns = self.total_ns;
    }

    /// Accounts for whole periods, in all of which threads stall, or in none.
    fn skip(&mut self, periods: u64, stalls: bool) {
        let (ns, part) = (periods * PERIOD_NS, f64::from(u8::from(stalls)));
        self.total_ns += if stalls { ns } else { 0 };
        for (average, over) in self.averages.iter_mut().zip(AVERAGED_NS) {
            *average = decayed(*average, part, ns, over);
        }
        self.settled_ns = self.total_ns;
    }
}

/// The new value of an exponentially decaying average over `over_ns`, after `ns` more nanoseconds of which
/// the part `part` was stall time, evenly spread.
fn decayed(average: f64, part: f64, ns: u64, over_ns: u64) -> f64 {
    let kept = (-(ns as f64) / over_ns as f64).exp();
    average * kept + part * (1.0 - kept)
}

/// The stall times of one group.
pub struct Meter {
    /// The time up to which stall time is accounted for.
    now_ns: u64,
    /// When the averages are settled next.
    period_end_ns: u64,
    /// How many threads stall now, by kind.
    stalled: [u32; StallKind::COUNT],
    /// Threads that have stalled and do not now, each with the time at which its last stall ended, in the
    /// order of these times.
    running: VecDeque<(u32, u64)>,
    some: Series,
    full: Series,
    /// The sum of all threads' stall time, by kind, in nanoseconds.
    kinds_ns: [u64; StallKind::COUNT],
    sources: Sources,
}

impl Meter {
    /// A meter at the time 0, at which no thread stalls.
    pub fn new() -> Self {
        Self {
            now_ns: 0,
            period_end_ns: PERIOD_NS,
            stalled: [0; StallKind::COUNT],
            running: VecDeque::with_capacity(MOST_RUNNING),
            some: Series::default(),
            full: Series::default(),
            kinds_ns: [0; StallKind::COUNT],
            sources: Sources::default(),
        }
    }

    /// A thread begins to stall. `thread`: its number; 0: not known.
    pub fn begin(&mut self, now_ns: u64, thread: u32, kind: StallKind) {
        self.advance(now_ns);
        self.forget_running(thread);
        self.stalled[kind as usize] += 1;
    }

    /// The stall of a thread ends.
    pub fn end(&mut self, now_ns: u64, thread: u32, kind: StallKind) {
        self.advance(now_ns);
        self.stalled[kind as usize] -= 1;
        if thread == 0 {
            return;
        }
        self.forget_running(thread);
        if self.running.len() == MOST_RUNNING {
            self.running.pop_front();
        }
        self.running.push_back((thread, self.now_ns));
    }

    /// Adds a stall for `source` that took `ns` nanoseconds.
    pub fn add_source(&mut self, source: Source, ns: u64) {
        self.sources.add(source, ns);
    }

    fn forget_running(&mut self, thread: u32) {
        if let Some(at) = self.running.iter().position(|(running, _)| *running == thread) {
            self.running.remove(at);
        }
    }

    /// Whether any thread stalls.
    fn stalls(&self) -> bool {
        self.stalled != [0; StallKind::COUNT]
    }

    /// The time from which on stall time counts as full, if no stall ends meanwhile.
    fn idle_from_ns(&self) -> u64 {
        self.running.back().map_or(0, |(_, ended_ns)| ended_ns + RUNNING_NS)
    }

    /// The time from which on the stall time of an extent grows, if no stall begins or ends meanwhile.
    /// `None`: it does not grow.
    pub fn grows_from_ns(&self, extent: StallExtent) -> Option<u64> {
        let from_ns = match extent {
            StallExtent::Some => self.now_ns,
            StallExtent::Full => self.idle_from_ns().max(self.now_ns),
        };
        self.stalls().then_some(from_ns)
    }

    /// Accounts for the time up to `now_ns`.
    pub fn advance(&mut self, now_ns: u64) {
        while now_ns >= self.period_end_ns {
            self.run_to(self.period_end_ns);
            self.some.settle();
            self.full.settle();
            self.period_end_ns += PERIOD_NS;
            if self.idle_from_ns() <= self.now_ns {
                self.skip_periods((now_ns - self.now_ns) / PERIOD_NS);
            }
        }
        if now_ns > self.now_ns {
            self.run_to(now_ns);
        }
    }

    /// Accounts for whole periods in which nothing changes.
    fn skip_periods(&mut self, periods: u64) {
        let (ns, stalls) = (periods * PERIOD_NS, self.stalls());
        self.some.skip(periods, stalls);
        self.full.skip(periods, stalls);
        self.add_kinds(ns);
        self.now_ns += ns;
        self.period_end_ns += ns;
    }

    /// Accounts for the time up to `to_ns`, at most the end of the period.
    fn run_to(&mut self, to_ns: u64) {
        if self.stalls() {
            let idle_from_ns = self.idle_from_ns().max(self.now_ns);
            self.some.total_ns += to_ns - self.now_ns;
            self.full.total_ns += to_ns.saturating_sub(idle_from_ns);
            self.add_kinds(to_ns - self.now_ns);
        }
        self.now_ns = to_ns;
    }

    fn add_kinds(&mut self, ns: u64) {
        for (total_ns, threads) in self.kinds_ns.iter_mut().zip(self.stalled) {
            *total_ns += u64::from(threads) * ns;
        }
    }

    /// The stall time of an extent so far, in nanoseconds.
    pub fn total_ns(&self, extent: StallExtent) -> u64 {
        self.series(extent).total_ns
    }

    /// The averages of an extent at this moment, parts of 1.
    pub fn averages(&self, extent: StallExtent) -> [f64; 3] {
        self.series(extent).after(self.now_ns + PERIOD_NS - self.period_end_ns)
    }

    fn series(&self, extent: StallExtent) -> &Series {
        match extent {
            StallExtent::Some => &self.some,
            StallExtent::Full => &self.full,
        }
    }

    /// The sum of all threads' stall time of a kind so far, in nanoseconds.
    pub fn kind_ns(&self, kind: StallKind) -> u64 {
        self.kinds_ns[kind as usize]
    }

    /// How many threads stall now.
    #[cfg(all(test, not(shuttle)))]
    pub fn stalled(&self) -> u32 {
        self.stalled.iter().sum()
    }

    /// The sources with the most stall time, the most first. Only stalls that have ended are counted.
    pub fn sources(&self) -> Vec<StallSource> {
        self.sources.most()
    }
}
