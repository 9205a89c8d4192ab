//! Faults that are served by the thread that has them: those of soft spaces, and populating.
//!
//! The thread does all that needs no read; what does, it hands to a handler, and waits for the answer. It waits for folios as
//! verbs do.

use super::{Pass, Step};
use crate::config::{DELAY, THROTTLE_BOUND};
use crate::core::{Core, Job};
use crate::page::{Outcome, Parked, Waiter};
use crate::platform::Platform;
use elbowroom_machine::{Denial, FaultEvent};
use elbowroom_sync::thread;
use elbowroom_sync::time::Instant;

impl<P: Platform> Core<P> {
    /// Serves a fault of the calling thread. Afterwards the access may be tried again; it may fault again, since the page can be gone by then.
    ///
    /// # Errors
    /// How the access must fail.
    pub(crate) fn fault(&self, event: FaultEvent) -> Result<(), Denial> {
        let mut fault = Parked::new(event);
        let mut ready = Vec::new();
        let served = loop {
            let step = Pass { core: self, io: None, ready: &mut ready }.step(&mut fault);
            self.dispatch(std::mem::take(&mut ready));
            match step {
                Step::Done | Step::Spurious => break Ok(()),
                Step::Again => {}
                Step::Denied(denial) => break Err(denial),
                Step::Throttled => {
                    self.throttle_here();
                    break Ok(());
                }
                Step::Wait(folio) => {
                    fault.hold(&folio);
                    self.note_wait(&mut fault, &folio);
                    self.waits.lock(&folio);
                    self.unlock(&folio);
                }
                Step::Later => thread::sleep(DELAY / 10),
                Step::Foreign => break Err(Denial::NotMapped),
                Step::NeedsHandler | Step::NoMemory | Step::Stalled => match self.hand_over(event) {
                    Outcome::Again => {}
                    Outcome::Denied(denial) => break Err(denial),
                },
            }
        };
        self.count(&mut fault, served.is_err());
        served
    }

    /// Has a handler serve it.
    fn hand_over(&self, event: FaultEvent) -> Outcome {
        let waiter = Waiter::new(&self.locks);
        let mut fault = Parked::new(event);
        fault.waiter = Some(waiter.clone());
        self.post(Job::Retry(vec![fault]));
        waiter.wait()
    }

    /// Waits until less is dirty, or for a while.
    fn throttle_here(&self) {
        self.counters.throttled.add(1);
        let until = Instant::now() + THROTTLE_BOUND;
        while self.too_dirty() && Instant::now() < until {
            self.flush.state.lock().all = true;
            self.flush.changed.notify_all();
            thread::sleep(DELAY);
        }
    }
}
