//! What a look at a fault has come to, and the one loop that acts on it.
//!
//! Three things are apart: what has become of the fault ([`Verdict`]), what its thread needs to go on
//! ([`Wakeup`]), and, if it has not ended, what it must wait for ([`Reason`]). How to wait is the
//! [`Driver`]'s: a handler puts the fault aside and serves the next one, a thread that serves its own fault
//! sleeps. Linux: `vm_fault_t`, where one set of bits says all of it.
//!
//! Which state of a fault follows which, and what is counted, is in `table`.

use super::table::{Counts, On, State};
use crate::config::REPEATS_AT_ONCE;
use crate::group::Pause;
use crate::page::{Flag, Folio, Parked};
use crate::stats::{Event, WaitCause};
use crate::trace::{Happened, Trace};
use elbowroom_machine::Denial;
use elbowroom_sync::Arc;
use elbowroom_sync::time::Duration;

/// How one look at a fault ended.
pub(crate) enum Outcome {
    /// The fault is over.
    Ended(Ended),
    /// Something changed meanwhile: look again.
    Again,
    /// Looks without the layout lock have failed too often: look with it.
    Fallback,
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
    /// The page is mapped, as far as can be known.
    Served,
    /// The access fails in this way.
    Denied(Denial),
    /// The access cannot be made: the page has been pinned for longer than the bound. Only a thread that
    /// serves its own fault can be told so.
    Pinned,
    /// The address is no longer ours: the kernel decides.
    Foreign,
    /// The fault is not served: the manager ends.
    Stopped,
}

/// What the thread that had a fault needs to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wakeup {
    /// Nothing: the call that mapped the page, or denied the access, has woken it.
    None,
    /// It is still to be woken.
    Now,
    /// It is to be woken when fewer pages are dirty, or after a while.
    Throttled(Pause),
}

/// What a fault must wait for.
pub(crate) enum Reason {
    /// The folio's lock; perhaps a read under way has it.
    Folio(Arc<Folio>),
    /// Frames, of which none can be had now.
    Frames,
    /// So much time, since its group is over its `high`.
    High(Duration),
    /// Memory for page tables, which the kernel has as soon as some frames are free.
    Tables,
    /// A page that is pinned, or that the kernel is busy with.
    Pinned,
    /// The end of a change of the layout.
    Change,
    /// A handler: only handlers start reads.
    Handler,
    /// Other threads' turn: this fault has looked very often without getting on.
    Turn,
}

impl Reason {
    /// The cause of the wait, for statistics and the state table. The folio is looked at without its lock,
    /// so it may be in another state by the time the fault waits.
    pub(super) fn cause(&self) -> WaitCause {
        match self {
            Reason::Folio(folio) => {
                if !folio.state.test(Flag::Uptodate) || folio.state.test(Flag::Reading) {
                    WaitCause::Io
                } else if folio.state.test(Flag::Writeback) {
                    WaitCause::Writeback
                } else {
                    WaitCause::FolioLock
                }
            }
            Reason::Frames => WaitCause::Frame,
            Reason::High(_) => WaitCause::High,
            Reason::Tables => WaitCause::Tables,
            Reason::Pinned => WaitCause::Pin,
            Reason::Change => WaitCause::Writer,
            Reason::Handler => WaitCause::Handler,
            Reason::Turn => WaitCause::Turn,
        }
    }
}

impl Ended {
    /// The address is not ours.
    pub(super) const FOREIGN: Self = Self { verdict: Verdict::Foreign, wakeup: Wakeup::Now };

    /// The manager ends.
    pub(super) const STOPPED: Self = Self { verdict: Verdict::Stopped, wakeup: Wakeup::None };

    /// Its page has been pinned for too long.
    pub(super) const PINNED: Self = Self { verdict: Verdict::Pinned, wakeup: Wakeup::None };

    /// Its page is mapped.
    pub(super) const fn served(wakeup: Wakeup) -> Self {
        Self { verdict: Verdict::Served, wakeup }
    }

    /// The access fails. The call that denied it has woken the thread.
    pub(super) const fn denied(denial: Denial) -> Self {
        Self { verdict: Verdict::Denied(denial), wakeup: Wakeup::None }
    }

    /// How the access fails, if it does.
    pub(super) fn denial(self) -> Option<Denial> {
        if let Verdict::Denied(denial) = self.verdict { Some(denial) } else { None }
    }

    /// The kind of end, as the state table has it, without the data that it carries.
    pub(super) fn on(self) -> On {
        match (self.verdict, self.wakeup) {
            (Verdict::Served, Wakeup::Throttled(_)) => On::Completed,
            (Verdict::Served, _) => On::Done,
            (Verdict::Denied(_) | Verdict::Pinned, _) => On::Denied,
            (Verdict::Foreign, _) => On::Foreign,
            (Verdict::Stopped, _) => On::Stopped,
        }
    }

    /// The final state of a fault that has ended so.
    pub(super) fn state(self) -> State {
        State::START.after(self.on())
    }
}

impl Outcome {
    /// The address is not ours.
    pub(super) const FOREIGN: Self = Self::Ended(Ended::FOREIGN);

    /// The manager ends.
    pub(super) const STOPPED: Self = Self::Ended(Ended::STOPPED);

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

/// What a wait has come to.
pub(super) enum Waited<End> {
    /// The wait is over: look again.
    Over(Parked),
    /// The wait ends the fault.
    Ended(Parked, Ended),
    /// The fault waits in a queue, from which another thread, or the handler itself later, takes it up
    /// again.
    Aside(End),
}

/// A thread that serves a fault, and its way to wait.
pub(super) trait Driver {
    /// The result of serving a fault.
    type End;

    /// Counts an event.
    fn count(&self, event: Event);

    /// The trace, if one is kept.
    fn trace(&self) -> Option<&Trace>;

    /// One look at the fault.
    fn look(&mut self, fault: &mut Parked) -> Outcome;

    /// One look with the layout lock held; waits for the lock.
    fn look_closely(&mut self, fault: &mut Parked) -> Outcome;

    /// Waits for `reason`, or queues the fault where it is taken up again when the wait is over.
    fn wait(&mut self, fault: Parked, reason: Reason) -> Waited<Self::End>;

    /// The fault is over.
    fn end(&mut self, fault: Parked, ended: Ended) -> Self::End;

    /// Serves a fault until it ends or is queued to wait.
    fn drive(&mut self, mut fault: Parked) -> Self::End {
        let mut state = State::START;
        loop {
            // Before the look, which may wake the thread: from then on it may have another stall.
            fault.wait.stall = None;
            if let Some(trace) = self.trace() {
                note_waited(trace, &mut fault);
            }
            let outcome = match state {
                State::Closely => self.look_closely(&mut fault),
                _ => self.look(&mut fault),
            };
            let outcome = in_turn(outcome, &mut fault);
            state = state.after(outcome.on());
            // Final states are counted by `end`, which knows whether the fault has waited for I/O.
            if let Counts::One(event) = state.counts()
                && !state.is_end()
            {
                self.count(event);
            }
            let reason = match outcome {
                Outcome::Ended(ended) => return self.end(fault, ended),
                Outcome::Again | Outcome::Fallback => continue,
                Outcome::Wait(reason) => reason,
            };
            if let (State::Wait(cause), Some(trace)) = (state, self.trace()) {
                fault.wait.traced = Some((cause, trace.now()));
            }
            match self.wait(fault, reason) {
                Waited::Over(again) => (fault, state) = (again, state.after(On::Over)),
                Waited::Ended(fault, ended) => {
                    state.after(ended.on());
                    return self.end(fault, ended);
                }
                Waited::Aside(end) => {
                    state.after(On::Aside);
                    return end;
                }
            }
        }
    }
}

/// Writes the wait that a fault has just ended, if any, into the trace.
pub(super) fn note_waited(trace: &Trace, fault: &mut Parked) {
    if let Some((cause, since_ns)) = fault.wait.traced.take() {
        trace.add_for(fault.track, Happened::Wait(cause), since_ns, [fault.event.addr as u64, 0]);
    }
}

/// Turns [`Outcome::Again`] into a wait for other threads' turn after many looks that each found something
/// changed.
fn in_turn(outcome: Outcome, fault: &mut Parked) -> Outcome {
    if !matches!(outcome, Outcome::Again) {
        return outcome;
    }
    fault.looks.repeated += 1;
    if fault.looks.repeated.is_multiple_of(REPEATS_AT_ONCE) { Outcome::Wait(Reason::Turn) } else { outcome }
}
