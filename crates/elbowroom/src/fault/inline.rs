//! Faults that are served by the thread that has them: those of soft spaces, and populating.
//!
//! The thread does all that needs no read; what does, it hands to a handler, and waits for the answer. It
//! waits for folios as verbs do.

use super::{Pass, Step};
use crate::config::{DELAY, PINNED_BOUND, REPEATS_AT_ONCE, THROTTLE_BOUND, THROTTLE_LOOK};
use crate::core::{Core, Job};
use crate::page::{Answer, Parked, Ready, Waiter};
use crate::pause::{Cause, pause};
use crate::platform::Platform;
use crate::stats::Event;
use elbowroom_machine::{Denial, FaultEvent};
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::time::Instant;

/// Why a fault was not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FaultError {
    /// The access must fail so.
    Denied(Denial),
    /// Its page is mapped at another address, where somebody has had it pinned for longer than the bound.
    Pinned,
    /// The manager was dropped.
    Stopped,
}

impl<P: Platform> Core<P> {
    /// Serves a fault of the calling thread. Afterwards the access may be tried again; it may fault again,
    /// since the page can be gone by then.
    ///
    /// # Errors
    /// Why the access cannot be made.
    pub(crate) fn fault(&self, event: FaultEvent) -> Result<(), FaultError> {
        let mut fault = Parked::new(event);
        let mut major = false;
        let served = self.serve_here(&mut fault, &mut major);
        self.count(&mut fault, matches!(served, Err(FaultError::Denied(_))), major);
        served
    }

    fn serve_here(&self, fault: &mut Parked, major: &mut bool) -> Result<(), FaultError> {
        let ready = Ready::default();
        let mut blocked_since = None;
        loop {
            if self.stop.load(Ordering::Acquire) {
                return Err(FaultError::Stopped);
            }
            let step = Pass::new(self, None, &ready).step(fault);
            self.dispatch(ready.take());
            match step {
                Step::Done | Step::Spurious => return Ok(()),
                Step::Again => {
                    fault.repeats += 1;
                    if fault.repeats.is_multiple_of(REPEATS_AT_ONCE) {
                        pause(Cause::Contended, DELAY / 10);
                    }
                }
                Step::Denied(denial) => return Err(FaultError::Denied(denial)),
                Step::Throttled => {
                    self.throttle_here();
                    return Ok(());
                }
                Step::Wait(folio) => {
                    fault.hold(&folio);
                    self.note_wait(fault, &folio);
                    self.waits.wait(&folio);
                }
                Step::Later => {
                    if blocked_since.get_or_insert_with(Instant::now).elapsed() > PINNED_BOUND {
                        return Err(FaultError::Pinned);
                    }
                    pause(Cause::Pinned, DELAY / 10);
                }
                Step::Foreign => return Err(FaultError::Denied(Denial::NotMapped)),
                Step::NeedsHandler | Step::NoMemory | Step::NoTables | Step::Stalled => {
                    fault.let_go();
                    let answer = self.hand_over(fault.event).ok_or(FaultError::Stopped)?;
                    *major |= answer.major;
                    if let Some(denial) = answer.denied {
                        return Err(FaultError::Denied(denial));
                    }
                    if answer.throttle {
                        self.throttle_here();
                    }
                }
            }
        }
    }

    /// Has a handler serve it. `None`: there are none any more.
    fn hand_over(&self, event: FaultEvent) -> Option<Answer> {
        let waiter = Waiter::new(&self.locks);
        let mut fault = Parked::new(event);
        fault.waiter = Some(waiter.clone());
        self.post(Job::Retry(vec![fault]));
        waiter.wait(&self.stop)
    }

    /// Waits until less is dirty, or for a while.
    fn throttle_here(&self) {
        self.counters.add(Event::Throttled, 1);
        let until = Instant::now() + THROTTLE_BOUND;
        let mut state = self.flush.state.lock();
        while self.too_dirty() && Instant::now() < until {
            state.all = true;
            self.flush.changed.notify_all();
            self.flush.relieved.wait_timeout(&mut state, THROTTLE_LOOK);
        }
    }
}
