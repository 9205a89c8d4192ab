//! The watchdog: no fault waits for ever, and nobody is in the dark about why one waited for long.
//!
//! Every wait of a fault has a bound of its own, but for those for a device and for what is broken. So a
//! thread of its own, which does nothing that could wait itself, looks at all faults that wait, once in
//! [`WATCH_LOOK`]. One that has waited for longer than [`Config::fault_bound`](crate::Config::fault_bound) is
//! reported and ended by SIGBUS, as the kernel does where a page cannot be had. Faults wait in the table of
//! waiters for folios, in the queues of handlers, and in spaces, for the end of a change; what the kernel has
//! not told us of yet shows in the beat of the handler that should have asked.

use super::Faults;
use crate::config::{DELAY, WATCH_LOOK};
use crate::core::Job;
use crate::page::{Beat, Flag, Folio, Parked};
use crate::platform::Platform;
use crate::stats::Event;
use elbowroom_machine::{Mmu, PAGE_SIZE};
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::time::Instant;

/// What the watchdog knows of a handler.
struct Pulse {
    beat: u64,
    since: Instant,
    reported: bool,
}

impl<P: Platform> Faults<P> {
    /// The watchdog's thread.
    pub(crate) fn run_watchdog(&self) {
        let begin = Instant::now();
        let pulse = |_| Pulse { beat: 0, since: begin, reported: false };
        let mut pulses: Vec<_> = (0..self.inboxes.len()).map(pulse).collect();
        while !self.stop.load(Ordering::Acquire) {
            self.rest_if_wanted();
            self.watch.wait(&self.stop, WATCH_LOOK);
            // The flusher may be busy with a disk.
            self.wake_throttled();
            let stuck = self.feel_pulses(&mut pulses);
            self.end_all_overdue();
            if stuck {
                self.stand_in(&pulses);
            }
        }
    }

    /// Finds the handlers that do not get on. Tells whether the one that the kernel wakes is among them.
    fn feel_pulses(&self, pulses: &mut [Pulse]) -> bool {
        for (number, (inbox, pulse)) in self.inboxes.iter().zip(pulses.iter_mut()).enumerate() {
            let beat = inbox.beat.count();
            if beat != pulse.beat || beat.is_multiple_of(2) {
                *pulse = Pulse { beat, since: Instant::now(), reported: false };
            }
            let stuck = pulse.since.elapsed() >= WATCH_LOOK / 2;
            inbox.stuck.store(stuck, Ordering::Relaxed);
            if stuck && self.waited(pulse.since) > self.config.fault_bound && !pulse.reported {
                pulse.reported = true;
                self.report_stuck(number, &inbox.beat);
            }
        }
        if self.inboxes.iter().all(|inbox| inbox.stuck.load(Ordering::Relaxed)) {
            // Nobody could take over.
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
        let bound = self.config.fault_bound;
        self.report(&format!("fault handler {number} has been busy with {what} for {bound:?}"));
        if let Some(addr) = beat.serves() {
            // So that signals get at its thread.
            self.mmu.wake(addr..addr + PAGE_SIZE);
        }
    }

    /// Has others look for new faults, for a while, instead of the handler that the kernel wakes.
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
        let bound = self.config.fault_bound;
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

    /// Counts a fault that has waited for too long, and says what for.
    pub(super) fn report_overdue(&self, fault: &Parked, for_what: &str) {
        self.counters.add(Event::OverdueFaults, 1);
        let what = if fault.event.write { "store" } else { "load" };
        let (thread, addr, waited) = (fault.event.thread, fault.event.addr, fault.since.elapsed());
        self.report(&format!(
            "a {what} at {addr:#x} by thread {thread} has waited {waited:.0?} for {for_what}"
        ));
    }

    /// What a folio is, and why it is locked. Takes no lock: whatever has gone wrong may have them.
    pub(super) fn what_keeps(&self, folio: &Folio) -> String {
        let name = match folio.object().filter(|object| !object.is_memory()).map(|object| object.id()) {
            Some(id) => format!("page {} of inode {} on device {:#x}", folio.index, id.inode, id.device),
            None => "a page of memory".to_owned(),
        };
        let state = if folio.state.test(Flag::Uptodate) { "is in use" } else { "is being read" };
        format!("{name}, which {state}")
    }
}
