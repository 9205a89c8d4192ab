//! Writers that wait for less to be dirty, with no lock held: their store has been served before.
//!
//! `balance` decides who pauses, and for how long. A writer goes on when its pause is over, or earlier,
//! when writers need not be slowed down any more. A thread that serves its own fault sleeps here. A thread
//! that waits in the kernel is woken by a handler when the pause is over, since handlers wait for no disk,
//! or before that by the flusher when it has written enough.

use super::Writeback;
use super::balance::{Level, Pressure};
use crate::group::{Group, GroupId, Pause, Stall, StallKind};
use crate::pause::{Cause, pause};
use crate::platform::Platform;
use crate::stats::Event;
use crate::trace::Happened;
use elbowroom_machine::{FaultEvent, Mmu, PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::Mutant;
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};
use std::ops::Range;

/// No writer waits in the kernel.
const NEVER: u64 = u64::MAX;

/// In tests of the tests: any fault of its thread ends the pause of a writer, an older one as well.
const MUTANT_ANY_FAULT: Mutant = Mutant::new("any_fault");

/// A writer that waits in the kernel.
pub(super) struct Throttled {
    thread: u32,
    page: Range<usize>,
    pause: Pause,
    until_ns: u64,
    /// The writer's stall, for the pressure of groups.
    stall: Option<Stall>,
}

impl Throttled {
    /// Whether a fault of `thread`, whose event was read at `read_ns`, shows that the writer does not wait
    /// any more. A fault that is tried again may be older than the pause: a signal has ended the wait of the
    /// fault, and the thread has gone on since.
    fn is_over(&self, thread: u32, read_ns: u64) -> bool {
        let begun_ns = self.until_ns.saturating_sub(self.pause.time.as_nanos() as u64);
        self.thread == thread && (begun_ns < read_ns || MUTANT_ANY_FAULT.planted())
    }
}

impl<P: Platform> Writeback<P> {
    fn levels(&self, group: GroupId) -> [Level; 2] {
        let groups = &self.groups;
        let of = groups.of(group);
        [
            Level { dirty: groups.dirty_pages(), limits: groups.dirty_limits() },
            Level { dirty: of.dirty_pages(), limits: of.dirty_limits() },
        ]
    }

    /// Whether more is dirty than a background limit, so that the flusher is to write.
    pub(super) fn is_over_background(&self) -> bool {
        let groups = &self.groups;
        let all = Level { dirty: groups.dirty_pages(), limits: groups.dirty_limits() };
        let over = |level: Level| level.pressure() > Pressure::None;
        let of = |group: &Group| Level { dirty: group.dirty_pages(), limits: group.dirty_limits() };
        over(all) || groups.all().any(|group| over(of(group)))
    }

    /// Has the flusher write until less is dirty than the background limit.
    fn flush_down(&self) {
        // The load comes first, so that threads that dirty more while the flusher works write to no shared
        // cache line.
        if !self.flushing.load(Ordering::Relaxed) && !self.flushing.swap(true, Ordering::AcqRel) {
            self.state.lock().background = true;
            self.to_write.bell.ring();
        }
    }

    /// How many pages of a group may be made dirty at once beside the one that must.
    pub(crate) fn dirty_room(&self, group: GroupId) -> usize {
        let [all, group] = self.levels(group).map(|level| level.room());
        all.min(group)
    }

    /// A thread has dirtied pages of a group, by a store to the first of them: has the flusher begin, if much
    /// is dirty, and tells how the thread must wait. Takes a lock for a moment, of the class `queue`, but
    /// only where writers are slowed down.
    pub(crate) fn balance(&self, group: GroupId, event: FaultEvent, pages: usize) -> Option<Pause> {
        let levels = self.levels(group);
        let pressure = levels.iter().map(Level::pressure).max()?;
        if pressure == Pressure::None {
            return None;
        }
        self.flush_down();
        if pressure < Pressure::Balanced {
            return None;
        }
        let now_ns = self.now_ns();
        let ns = {
            let page = (event.addr >> PAGE_SHIFT) as u64;
            self.balance.lock().dirtied(&levels, event.thread, page, pages as u64, now_ns)
        };
        let pause = Pause { time: Duration::from_nanos(ns), group, full: pressure == Pressure::Full };
        (ns > 0).then_some(pause)
    }

    /// Nanoseconds since the manager's start, at least 1.
    fn now_ns(&self) -> u64 {
        self.born.elapsed().as_nanos() as u64 + 1
    }

    /// Whether a writer with this pause need not wait any more.
    fn relieves(&self, pause: &Pause) -> bool {
        let [all, group] = self.levels(pause.group).map(|level| level.pressure());
        let pressure = all.max(group);
        pressure < Pressure::Balanced || pause.full && pressure < Pressure::Full
    }

    fn note_throttled(&self, pause: &Pause) {
        self.counters.add(Event::Throttled, 1);
        self.counters.add(Event::ThrottledNs, pause.time.as_nanos() as u64);
    }

    /// Lets the writer of a fault, which waits in the kernel, go on when its pause is over, or earlier.
    pub(crate) fn throttle(&self, event: &FaultEvent, pause: Pause) {
        self.note_throttled(&pause);
        let page = event.addr..event.addr + PAGE_SIZE;
        let stall = self.begin_stall(StallKind::Dirty, event.thread, event.addr, Some(pause.group));
        let until_ns = self.now_ns() + pause.time.as_nanos() as u64;
        let mut state = self.state.lock();
        state.throttled.push(Throttled { thread: event.thread, page, pause, until_ns, stall });
        self.next_throttled.fetch_min(until_ns, Ordering::Relaxed);
    }

    /// Notes that a thread has a fault, whose event was read at `read`: the thread does not wait any more for
    /// less to be dirty, as it did before. A write-back of its page may have woken it.
    pub(crate) fn note_fault_of(&self, thread: u32, read: Instant) {
        if self.next_throttled.load(Ordering::Relaxed) != NEVER {
            let read_ns = read.saturating_duration_since(self.born).as_nanos() as u64 + 1;
            let mut state = self.state.lock();
            let awake: Vec<_> = state.throttled.extract_if(.., |t| t.is_over(thread, read_ns)).collect();
            drop(state);
            drop(awake);
        }
    }

    /// Sleeps until a pause for a store to `addr` is over, or less is dirty. Not for handlers.
    pub(crate) fn throttle_here(&self, addr: usize, how: Pause) {
        self.note_throttled(&how);
        let _stall = self.begin_stall(StallKind::Dirty, thread::id(), addr, Some(how.group));
        self.noted(Happened::Throttle, |()| [0, 0], || self.wait_for_relief(how));
    }

    fn wait_for_relief(&self, how: Pause) {
        if cfg!(shuttle) {
            // In a model a wait with a bound has none, but a sleep takes time.
            return pause(Cause::Dirty, how.time);
        }
        let until = Instant::now() + how.time;
        let mut state = self.state.lock();
        while !self.relieves(&how) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            self.relieved.wait_timeout(&mut state, left);
        }
    }

    /// In how long a handler is to call [`Writeback::wake_throttled`]; `None`: no writer waits.
    pub(crate) fn throttle_due(&self) -> Option<Duration> {
        match self.next_throttled.load(Ordering::Relaxed) {
            NEVER => None,
            due_ns => Some(Duration::from_nanos(due_ns.saturating_sub(self.now_ns()))),
        }
    }

    /// Lets writers go on whose pause is over, or that need not wait any more.
    pub(crate) fn wake_throttled(&self) {
        let now_ns = self.now_ns();
        let mut state = self.state.lock();
        let goes_on = |t: &mut Throttled| t.until_ns <= now_ns || self.relieves(&t.pause);
        let ready: Vec<_> = state.throttled.extract_if(.., goes_on).collect();
        let next = state.throttled.iter().map(|t| t.until_ns).min().unwrap_or(NEVER);
        self.next_throttled.store(next, Ordering::Relaxed);
        drop(state);
        self.relieved.notify_all();
        for Throttled { page, pause, until_ns, stall, .. } in ready {
            // Before the thread is woken: from then on it may have another stall.
            drop(stall);
            if let Some(trace) = &self.trace {
                let waited_ns = now_ns.saturating_sub(until_ns.saturating_sub(pause.time.as_nanos() as u64));
                let since_ns = trace.now().saturating_sub(waited_ns);
                trace.add_for(0, Happened::Throttle, since_ns, [page.start as u64, 0]);
            }
            self.mmu.wake(page);
        }
    }

    /// Notes that pages were written in the time since `since`.
    pub(super) fn note_written(&self, pages: u64, since: Instant) {
        self.flushed.fetch_add(pages, Ordering::Relaxed);
        self.balance.lock().written(pages, since.elapsed().as_nanos() as u64);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// A thread waits at page 1, a signal ends the wait, another handler serves the thread, and the thread
    /// is throttled at page 2: if the retry of the fault at page 1 ended the pause, nothing would wake the
    /// thread.
    #[test]
    fn only_a_later_fault_of_its_thread_ends_a_pause() {
        let pause = Pause { time: Duration::from_nanos(100), group: GroupId::ROOT, full: false };
        let throttled = Throttled { thread: 7, page: 0..PAGE_SIZE, pause, until_ns: 1100, stall: None };
        let is_over = |thread, read_ns| throttled.is_over(thread, read_ns);
        assert_eq!([999, 1000, 1001, 5000].map(|read_ns| is_over(7, read_ns)), [false, false, true, true]);
        assert!(!is_over(8, 5000), "another thread's fault");
    }
}
