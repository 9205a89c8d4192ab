//! The watchdog: a thread that makes sure that no fault waits for ever, and reports why one waited for
//! long.
//!
//! Every wait of a fault has a bound of its own, except for a wait for a device, and waits that never end
//! because something is broken. So a separate thread, which never waits for such things itself, looks at
//! all waiting faults once in [`WATCH_LOOK`]. A fault that has waited for longer than
//! [`Bounds::fault`](crate::Bounds::fault) is reported and ended by SIGBUS, as the kernel does
//! where a page cannot be had. Faults wait in the table of waiters for folios, in the queues of handlers,
//! and in spaces, for the end of a change; fault events that are not read yet have no entry there: that a
//! handler does not read them shows in its beat, which stands still.

use super::Faults;
use crate::config::{DELAY, HighStuck, STUCK_AGAIN, WATCH_LOOK};
use crate::core::Job;
use crate::group::GroupId;
use crate::page::{Beat, Flag, Folio, Parked};
use crate::platform::Platform;
use crate::stats::Event;
use elbowroom_machine::{Mmu, PAGE_SIZE};
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::time::Instant;
use std::collections::HashMap;

/// What the watchdog remembers of a handler: its last beat, since when that stands still, and whether this
/// was reported.
struct Pulse {
    beat: u64,
    since: Instant,
    reported: bool,
}

/// Groups that stay over their `high`, since nothing of them can be reclaimed, with the time at which the
/// program was told of each last.
#[derive(Default)]
struct StuckGroups(HashMap<GroupId, Instant>);

impl StuckGroups {
    /// Tells the program of those of which it was not told lately.
    fn tell<P: Platform>(&mut self, faults: &Faults<P>) {
        for (group, pages) in faults.groups.stuck_over_high() {
            if self.0.get(&group).is_some_and(|told| told.elapsed() < STUCK_AGAIN) {
                continue;
            }
            self.0.insert(group, Instant::now());
            let [usage_bytes, high_bytes] = pages.map(|pages| pages * PAGE_SIZE as u64);
            match &faults.config.hooks.on_high_stuck {
                Some(tell) => tell(HighStuck { group: group.number(), usage_bytes, high_bytes }),
                None => faults.report(&format!(
                    "{group} uses {usage_bytes} bytes, more than its high of {high_bytes}, and nothing of it \
                     can be reclaimed"
                )),
            }
        }
    }
}

impl<P: Platform> Faults<P> {
    /// The watchdog's loop, until the manager stops.
    pub(crate) fn run_watchdog(&self) {
        let begin = Instant::now();
        let pulse = |_| Pulse { beat: 0, since: begin, reported: false };
        let mut pulses: Vec<_> = (0..self.inboxes.len()).map(pulse).collect();
        let mut stuck_groups = StuckGroups::default();
        while !self.stop.load(Ordering::Acquire) {
            self.rest_if_wanted();
            self.watch.wait(&self.stop, WATCH_LOOK);
            stuck_groups.tell(self);
            // The flusher wakes throttled writers, too, but may be busy with a disk.
            self.wake_throttled();
            let stuck = self.feel_pulses(&mut pulses);
            self.end_all_overdue();
            if stuck {
                self.stand_in(&pulses);
            }
        }
    }

    /// Finds the handlers that have been busy with one thing for too long, and gives their jobs and faults
    /// to others. Tells whether handler 0, which the kernel wakes for events, is among them.
    fn feel_pulses(&self, pulses: &mut [Pulse]) -> bool {
        for (number, (inbox, pulse)) in self.inboxes.iter().zip(pulses.iter_mut()).enumerate() {
            let beat = inbox.beat.count();
            if beat != pulse.beat || beat.is_multiple_of(2) {
                *pulse = Pulse { beat, since: Instant::now(), reported: false };
            }
            let stuck = pulse.since.elapsed() >= WATCH_LOOK / 2;
            inbox.stuck.store(stuck, Ordering::Relaxed);
            if stuck && self.waited(pulse.since) > self.config.bounds.fault && !pulse.reported {
                pulse.reported = true;
                self.report_stuck(number, &inbox.beat);
            }
        }
        if self.inboxes.iter().all(|inbox| inbox.stuck.load(Ordering::Relaxed)) {
            // No handler is left that could take over.
            return false;
        }
        for inbox in self.inboxes.iter().filter(|inbox| inbox.stuck.load(Ordering::Relaxed)) {
            let jobs = std::mem::take(&mut *inbox.jobs.lock());
            jobs.into_iter().for_each(|job| self.inboxes.post(job));
            let waiting = inbox.waiting.lock().take_all();
            self.dispatch(waiting);
        }
        self.inboxes[0].stuck.load(Ordering::Relaxed)
    }

    fn report_stuck(&self, number: usize, beat: &Beat) {
        let what = match beat.serves() {
            Some(addr) => format!("a fault at {addr:#x}"),
            None => "what was read".to_owned(),
        };
        let bound = self.config.bounds.fault;
        self.report(&format!("fault handler {number} has been busy with {what} for {bound:?}"));
        if let Some(addr) = beat.serves() {
            // So that the faulting thread can take signals.
            self.mmu.wake(addr..addr + PAGE_SIZE);
        }
    }

    /// Has other handlers read new fault events, for a while, since handler 0, which the kernel wakes for
    /// them, is stuck.
    fn stand_in(&self, pulses: &[Pulse]) {
        let until = Instant::now() + WATCH_LOOK;
        while Instant::now() < until
            && self.inboxes[0].beat.count() == pulses[0].beat
            && !self.stop.load(Ordering::Acquire)
        {
            self.inboxes.post(Job::Retry(Vec::new()));
            self.watch.wait(&self.stop, 10 * DELAY);
        }
    }

    /// Ends the faults that have waited for too long.
    fn end_all_overdue(&self) {
        let bound = self.config.bounds.fault;
        let overdue = |fault: &Parked| self.waited(fault.since) > bound;
        for (folio, fault) in self.waits.take_faults(overdue) {
            self.end_reported(fault, &self.what_keeps(&folio));
        }
        for mm in self.spaces.all() {
            let stalled: Vec<_> = mm.write().stalled.extract_if(.., |fault| overdue(fault)).collect();
            for fault in stalled {
                self.end_reported(fault, "the end of a change of the mappings there");
            }
        }
        for inbox in self.inboxes.iter() {
            let mut late = inbox.waiting.lock().take_if(overdue);
            for job in inbox.jobs.lock().iter_mut() {
                if let Job::Retry(faults) = job {
                    late.extend(faults.extract_if(.., |fault| overdue(fault)));
                }
            }
            late.into_iter().for_each(|fault| self.end_reported(fault, "a handler, or memory"));
        }
    }

    fn end_reported(&self, fault: Parked, for_what: &str) {
        self.report_overdue(&fault, for_what);
        self.end_overdue(fault);
    }

    /// Counts a fault that has waited for too long, and reports what it waited for.
    pub(super) fn report_overdue(&self, fault: &Parked, for_what: &str) {
        self.counters.add(Event::OverdueFaults, 1);
        let what = if fault.event.write { "store" } else { "load" };
        let (thread, addr, waited) = (fault.event.thread, fault.event.addr, fault.since.elapsed());
        self.report(&format!(
            "a {what} at {addr:#x} by thread {thread} has waited {waited:.0?} for {for_what}"
        ));
    }

    /// Describes a folio, and why it is locked, for a report. Takes no lock: a thread that is stuck may
    /// hold it.
    pub(super) fn what_keeps(&self, folio: &Folio) -> String {
        let name = match folio.object().filter(|object| !object.is_memory()).map(|object| object.id()) {
            Some(id) => format!("page {} of inode {} on device {:#x}", folio.index, id.inode, id.device),
            None => "a page of memory".to_owned(),
        };
        let state = if folio.state.test(Flag::Uptodate) { "is in use" } else { "is being read" };
        format!("{name}, which {state}")
    }
}
