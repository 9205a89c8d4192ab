//! Faults that the faulting thread serves itself: those of soft spaces, and those that populate a range.
//!
//! The thread does everything that needs no read. If the fault needs one (or must wait for frames, page
//! tables or a change of the layout), the thread hands it to a handler, and waits for the answer. For a
//! folio's lock it sleeps itself, as verbs do.

use super::Faults;
use super::Pass;
use super::outcome::{Driver, Ended, Outcome, Reason, Verdict, Waited, Wakeup};
use super::stall;
use crate::config::{DELAY, PINNED_BOUND};
use crate::core::Job;
use crate::page::{Answer, Parked, Ready, Waiter};
use crate::pause::{Cause, pause};
use crate::platform::Platform;
use crate::stats::Event;
use crate::trace::Trace;
use elbowroom_machine::{Denial, FaultEvent};
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::thread;
use elbowroom_sync::time::Instant;

/// Why a fault was not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultError {
    /// The access must fail so.
    Denied(Denial),
    /// The page is mapped at another address, where it has been pinned for longer than the bound.
    Pinned,
    /// The manager was dropped.
    Stopped,
}

/// A thread that serves a fault of its own.
struct Here<'a, P: Platform> {
    core: &'a Faults<P>,
    ready: Ready,
    /// When the thread first found its page pinned, or the kernel busy with it.
    blocked_since: Option<Instant>,
    /// Whether a handler has waited for I/O for this fault.
    major: bool,
}

impl<P: Platform> Here<'_, P> {
    /// Waits; an error is how the fault ends.
    fn wait_for(&mut self, fault: &mut Parked, reason: Reason) -> Result<(), Ended> {
        let core = self.core;
        match reason {
            Reason::Folio(ref folio) => {
                stall::begin(core, fault, &reason);
                let hold = core.note_wait(fault, folio);
                fault.waits_for(folio, hold);
                let in_time = || core.waited(fault.since) <= core.config.bounds.fault;
                let stopped = || core.stop.load(Ordering::Acquire);
                if !core.waits.wait_while(folio, || in_time() && !stopped()) && !stopped() {
                    core.report_overdue(fault, &core.what_keeps(folio));
                    return Err(Ended::denied(Denial::Bus));
                }
            }
            Reason::Pinned => {
                if self.blocked_since.get_or_insert_with(Instant::now).elapsed() > PINNED_BOUND {
                    return Err(Ended::PINNED);
                }
                pause(Cause::Pinned, DELAY / 10);
            }
            Reason::Turn => pause(Cause::Contended, DELAY / 10),
            Reason::High(time) => pause(Cause::High, time),
            // The handler's fault stalls in place of this one.
            Reason::Frames | Reason::Tables | Reason::Change | Reason::Handler => {
                fault.let_go();
                let answer = core.hand_over(fault.event).ok_or(Ended::STOPPED)?;
                self.major |= answer.major;
                if let Some(denial) = answer.denied {
                    return Err(Ended::denied(denial));
                }
                if let Some(pause) = answer.throttle {
                    core.throttle_here(fault.event.addr, pause);
                }
            }
        }
        Ok(())
    }
}

/// The thread sleeps until what it waits for has happened.
impl<P: Platform> Driver for Here<'_, P> {
    type End = Result<(), FaultError>;

    fn count(&self, event: Event) {
        self.core.counters.add(event, 1);
    }

    fn trace(&self) -> Option<&Trace> {
        self.core.trace.as_deref()
    }

    fn look(&mut self, fault: &mut Parked) -> Outcome {
        if self.core.stop.load(Ordering::Acquire) {
            return Outcome::STOPPED;
        }
        let outcome = Pass::new(self.core, None, &self.ready).step(fault);
        self.core.dispatch(self.ready.take());
        outcome
    }

    fn look_closely(&mut self, fault: &mut Parked) -> Outcome {
        self.core.look_with_layout(fault)
    }

    fn end(&mut self, mut fault: Parked, ended: Ended) -> Self::End {
        if let Wakeup::Throttled(pause) = ended.wakeup {
            self.core.throttle_here(fault.event.addr, pause);
        }
        self.core.count(&mut fault, ended.state(), self.major);
        match ended.verdict {
            Verdict::Served => Ok(()),
            Verdict::Denied(denial) => Err(FaultError::Denied(denial)),
            Verdict::Pinned => Err(FaultError::Pinned),
            Verdict::Foreign => Err(FaultError::Denied(Denial::NotMapped)),
            Verdict::Stopped => Err(FaultError::Stopped),
        }
    }

    fn wait(&mut self, mut fault: Parked, reason: Reason) -> Waited<Self::End> {
        match self.wait_for(&mut fault, reason) {
            Ok(()) => Waited::Over(fault),
            Err(ended) => Waited::Ended(fault, ended),
        }
    }
}

impl<P: Platform> Faults<P> {
    /// Serves a fault of the calling thread. Afterwards the access may be tried again; it may fault again,
    /// since the page can be gone by then.
    ///
    /// # Errors
    /// Why the access cannot be made.
    pub(crate) fn fault(&self, event: FaultEvent) -> Result<(), FaultError> {
        let mut here = Here { core: self, ready: Ready::default(), blocked_since: None, major: false };
        here.drive(self.of_this_thread(event))
    }

    /// A fault of the calling thread.
    fn of_this_thread(&self, event: FaultEvent) -> Parked {
        let mut fault = Parked::new(event);
        fault.track = thread::id();
        fault
    }

    /// Has a handler serve the fault, and waits for the answer. `None`: the handlers have been stopped.
    fn hand_over(&self, event: FaultEvent) -> Option<Answer> {
        let waiter = Waiter::new(&self.locks);
        let mut fault = self.of_this_thread(event);
        fault.waiter = Some(waiter.clone());
        self.inboxes.post(Job::Retry(vec![fault]));
        waiter.wait(&self.stop)
    }
}
