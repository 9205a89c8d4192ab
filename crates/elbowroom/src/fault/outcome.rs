//! What a look at a fault has come to, and the one loop that acts on it.
//!
//! Three things are apart: what has become of the fault ([`Verdict`]), what its thread needs to go on
//! ([`Wakeup`]), and, if it has not ended, what it must wait for ([`Reason`]). How to wait is the
//! [`Driver`]'s: a handler puts the fault aside and serves the next one, a thread that serves its own fault
//! sleeps. Linux: `vm_fault_t`, where one set of bits says all of it.

use crate::config::REPEATS_AT_ONCE;
use crate::group::Pause;
use crate::page::{Flag, Folio, Parked};
use crate::stats::Event;
use elbowroom_machine::Denial;
use elbowroom_sync::Arc;
use std::ops::ControlFlow;

/// How one look at a fault ended.
pub(crate) enum Outcome {
    /// The fault is over.
    Ended(Ended),
    /// Something changed meanwhile: look again.
    Again,
    /// Look again when this has been waited for.
    Wait(Reason),
}

/// How a fault ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(super) verdict: Verdict,
    pub(super) wakeup: Wakeup,
}

/// What became of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Its page is mapped, as far as can be known.
    Served,
    /// The access fails so.
    Denied(Denial),
    /// The address is no longer ours: the kernel decides.
    Foreign,
    /// Nobody serves it: the manager ends.
    Stopped,
}

/// What the thread that had a fault needs to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wakeup {
    /// Nothing: whatever ended the fault has woken it.
    None,
    /// It is to be woken.
    Now,
    /// It is to be woken when less is dirty, or after a while.
    Throttled(Pause),
}

/// What a fault must wait for.
pub(crate) enum Reason {
    /// The folio's lock, which a read has, perhaps.
    Folio(Arc<Folio>),
    /// Frames, of which none can be had now.
    Frames,
    /// Memory for page tables, which there is as soon as some frames are free.
    Tables,
    /// What cannot be done with a page just now: it is pinned, or the kernel is busy with it.
    Pinned,
    /// The end of a change of the layout.
    Change,
    /// A handler: only they start reads.
    Handler,
    /// Others: it has looked so often that they are to have their turn.
    Turn,
}

impl Reason {
    /// What of it is counted. A folio is looked at without its lock: it may be in another state by the time
    /// the fault waits.
    pub(super) fn event(&self) -> Event {
        match self {
            Reason::Folio(folio) => {
                if !folio.state.test(Flag::Uptodate) || folio.state.test(Flag::Reading) {
                    Event::WaitsForReads
                } else if folio.state.test(Flag::Writeback) {
                    Event::WaitsForWriteback
                } else {
                    Event::WaitsForLocks
                }
            }
            Reason::Frames => Event::MemoryWaits,
            Reason::Tables => Event::WaitsForTables,
            Reason::Pinned => Event::WaitsForPins,
            Reason::Change => Event::WaitsForChanges,
            Reason::Handler => Event::HandOvers,
            Reason::Turn => Event::Turns,
        }
    }
}

impl Ended {
    /// Its page is mapped.
    pub(super) const fn served(wakeup: Wakeup) -> Self {
        Self { verdict: Verdict::Served, wakeup }
    }

    /// The access fails. Whoever saw to that has woken the thread.
    pub(super) const fn denied(denial: Denial) -> Self {
        Self { verdict: Verdict::Denied(denial), wakeup: Wakeup::None }
    }

    /// How the access fails, if it does.
    pub(super) fn denial(self) -> Option<Denial> {
        if let Verdict::Denied(denial) = self.verdict { Some(denial) } else { None }
    }
}

impl Outcome {
    /// The address is not ours.
    pub(super) const FOREIGN: Self = Self::Ended(Ended { verdict: Verdict::Foreign, wakeup: Wakeup::Now });

    /// The manager ends.
    pub(super) const STOPPED: Self = Self::Ended(Ended { verdict: Verdict::Stopped, wakeup: Wakeup::None });

    /// Its page is mapped.
    pub(super) const fn served(wakeup: Wakeup) -> Self {
        Self::Ended(Ended::served(wakeup))
    }

    /// The access fails.
    pub(super) const fn denied(denial: Denial) -> Self {
        Self::Ended(Ended::denied(denial))
    }

    /// Whether the page was mapped by this look, and its thread goes on at once.
    pub(super) fn is_mapped_now(&self) -> bool {
        matches!(self, Self::Ended(ended) if *ended == Ended::served(Wakeup::None))
    }
}

/// Who serves a fault, and how it waits.
pub(super) trait Driver {
    /// What serving comes to.
    type End;

    /// Counts one of these.
    fn count(&self, event: Event);

    /// One look at the fault.
    fn look(&mut self, fault: &mut Parked) -> Outcome;

    /// Waits, and gives the fault back to look again; or puts it where it waits by itself, or gives it up.
    fn wait(&mut self, fault: Parked, reason: Reason) -> ControlFlow<Self::End, Parked>;

    /// The fault is over.
    fn end(&mut self, fault: Parked, ended: Ended) -> Self::End;

    /// Serves a fault as far as it gets.
    fn drive(&mut self, mut fault: Parked) -> Self::End {
        loop {
            let reason = match self.look(&mut fault) {
                Outcome::Ended(ended) => return self.end(fault, ended),
                Outcome::Wait(reason) => reason,
                Outcome::Again => {
                    fault.repeats += 1;
                    if !fault.repeats.is_multiple_of(REPEATS_AT_ONCE) {
                        continue;
                    }
                    Reason::Turn
                }
            };
            self.count(reason.event());
            match self.wait(fault, reason) {
                ControlFlow::Continue(again) => fault = again,
                ControlFlow::Break(end) => return end,
            }
        }
    }
}
