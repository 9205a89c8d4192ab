//! How much time threads lose because memory is short: pressure, as Linux has it (PSI,
//! Documentation/accounting/psi.rst).
//!
//! [`Pressure`] has the stalls of a group. A thread that stalls has a [`Stall`]: the stall ends when that
//! value is dropped, so that no stall is left on by mistake. Stalls of a group are stalls of its ancestors,
//! too. `meter` is the arithmetic, `window` that of triggers, `sources` the table of the files and mappings
//! that threads stall for. All three are plain data, to which the caller passes the time. docs/groups.md
//! has the rules.
//!
//! Synchronization: a mutex of the class `pressure` for each group, taken at the beginning and at the end of
//! a stall, and by readers. A fault that does not wait takes none.

mod meter;
mod sources;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod window;

pub use meter::{StallExtent, StallKind};
pub use sources::{Source, StallSource};
pub use window::Trigger;

use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, Condvar, LockClass, LockStats, Mutant, Mutex};
use meter::Meter;
use window::Window;

/// In tests of the tests: stalls never end.
const MUTANT_STALL_ON: Mutant = Mutant::new("stall_on");

/// The pressure of a group.
pub struct Pressure {
    born: Instant,
    parent: Option<Arc<Pressure>>,
    state: Mutex<State>,
    /// Signaled when a stall begins, if a thread waits at a watch.
    begun: Condvar,
}

struct State {
    meter: Meter,
    /// How many threads wait at a watch.
    watching: u32,
}

impl Pressure {
    /// The pressure of a new group, in which no thread stalls. Its stalls are stalls of `parent`, too.
    pub(super) fn new(parent: Option<&Arc<Pressure>>, locks: &LockStats) -> Arc<Self> {
        let state = State { meter: Meter::new(), watching: 0 };
        Arc::new(Self {
            born: Instant::now(),
            parent: parent.cloned(),
            state: locks.mutex(LockClass::Pressure, state),
            begun: Condvar::new(),
        })
    }

    fn now_ns(&self) -> u64 {
        self.ns_at(Instant::now())
    }

    /// The time `at`, in nanoseconds since the group was made.
    fn ns_at(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.born).as_nanos() as u64
    }

    /// The pressure of the group, of its parent, and so on up to the root.
    fn with_ancestors(&self) -> impl Iterator<Item = &Pressure> {
        std::iter::successors(Some(self), |pressure| pressure.parent.as_deref())
    }

    /// The figures of the group at this moment.
    pub fn figures(&self) -> PressureUse {
        let mut state = self.state.lock();
        let now_ns = self.now_ns();
        let meter = &mut state.meter;
        meter.advance(now_ns);
        let time = |extent| {
            let [avg10, avg60, avg300] = meter.averages(extent).map(|part| part * 100.0);
            StallTime { avg10, avg60, avg300, total_us: meter.total_ns(extent) / 1000 }
        };
        let kind_us = |kind| meter.kind_ns(kind) / 1000;
        PressureUse {
            elapsed_us: now_ns / 1000,
            some: time(StallExtent::Some),
            full: time(StallExtent::Full),
            kinds: StallKinds {
                file_read_us: kind_us(StallKind::FileRead),
                swap_in_us: kind_us(StallKind::SwapIn),
                frames_us: kind_us(StallKind::Frames),
                dirty_us: kind_us(StallKind::Dirty),
            },
            sources: meter.sources(),
        }
    }

    /// Begins to watch for a trigger's event. `None`: the trigger's stall or window is out of range.
    pub fn watch(self: &Arc<Self>, trigger: Trigger) -> Option<Watch> {
        if !trigger.is_valid() {
            return None;
        }
        let mut state = self.state.lock();
        let now_ns = self.now_ns();
        state.meter.advance(now_ns);
        let window = Window::new(&trigger, now_ns, state.meter.total_ns(trigger.extent));
        drop(state);
        Some(Watch { pressure: self.clone(), extent: trigger.extent, window })
    }
}

/// A stall of one thread. It ends when this value is dropped.
pub struct Stall {
    pressure: Arc<Pressure>,
    thread: u32,
    kind: StallKind,
    source: Source,
    since: Instant,
}

impl Stall {
    /// A thread begins to stall in a group. `thread`: its number; 0: not known. A thread has one stall at a
    /// time.
    pub fn begin(pressure: &Arc<Pressure>, thread: u32, kind: StallKind, source: Source) -> Self {
        let since = Instant::now();
        for of in pressure.with_ancestors() {
            let mut state = of.state.lock();
            state.meter.begin(of.ns_at(since), thread, kind);
            if state.watching > 0 {
                of.begun.notify_all();
            }
        }
        Self { pressure: pressure.clone(), thread, kind, source, since }
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        if MUTANT_STALL_ON.planted() {
            return;
        }
        let now = Instant::now();
        let ns = now.saturating_duration_since(self.since).as_nanos() as u64;
        for of in self.pressure.with_ancestors() {
            let mut state = of.state.lock();
            state.meter.end(of.ns_at(now), self.thread, self.kind);
            state.meter.add_source(self.source, ns);
        }
    }
}

/// Watches for the events of one trigger in one group. Linux: a file of /proc/pressure that was written to.
pub struct Watch {
    pressure: Arc<Pressure>,
    extent: StallExtent,
    window: Window,
}

impl Watch {
    /// Waits for an event, for `bound` at most. `true`: there was one, the first for at least a window's
    /// length. Stall time while no thread waits here counts as if it were spread evenly over the time since
    /// the last wait.
    pub fn wait(&mut self, bound: Duration) -> bool {
        let of = &*self.pressure;
        let deadline_ns = of.now_ns() + bound.as_nanos() as u64;
        let mut state = of.state.lock();
        state.watching += 1;
        let fired = loop {
            let now_ns = of.now_ns();
            state.meter.advance(now_ns);
            let total_ns = state.meter.total_ns(self.extent);
            if self.window.fires(now_ns, total_ns) {
                break true;
            }
            if now_ns >= deadline_ns {
                break false;
            }
            let grows_from_ns = state.meter.grows_from_ns(self.extent);
            let look_at_ns = self.window.look_at_ns(now_ns, total_ns, grows_from_ns);
            // A stall that begins meanwhile ends the wait sooner.
            let next_ns = look_at_ns.map_or(deadline_ns, |look_at_ns| look_at_ns.min(deadline_ns));
            of.begun.wait_timeout(&mut state, Duration::from_nanos(next_ns - now_ns));
        };
        state.watching -= 1;
        fired
    }
}

/// The pressure of a group in figures, since the group was made.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
pub struct PressureUse {
    /// How long ago the group was made, in microseconds.
    pub elapsed_us: u64,
    /// The time in which at least one thread stalled.
    pub some: StallTime,
    /// The time in which at least one thread stalled, and no thread was known to run; docs/groups.md says
    /// when a thread is.
    pub full: StallTime,
    /// The stall time by what threads stalled for.
    pub kinds: StallKinds,
    /// The files and mappings that threads stalled for most, the most first; 16 at most.
    pub sources: Vec<StallSource>,
}

/// How long threads stalled.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize)]
pub struct StallTime {
    /// Percent of the time that was stall time, averaged over the last 10 s: an average that decays
    /// exponentially.
    pub avg10: f64,
    /// Percent of the time that was stall time, averaged over 60 s.
    pub avg60: f64,
    /// Percent of the time that was stall time, averaged over 300 s.
    pub avg300: f64,
    /// All stall time so far, in microseconds.
    pub total_us: u64,
}

/// The stall time by what threads stalled for, in microseconds. These are sums over threads: if two threads
/// stall for a second at the same time, the sum grows by two seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct StallKinds {
    /// For pages that were read from files, for the first time or again.
    pub file_read_us: u64,
    /// For pages of anonymous memory that were read from swap.
    pub swap_in_us: u64,
    /// For memory: for frames that were being freed, or were to become free, and for memory for page
    /// tables.
    pub frames_us: u64,
    /// Because too many pages were dirty: throttled writers, and faults that waited for a write-back.
    pub dirty_us: u64,
}
