//! The state machine of a fault, as one table: what can follow what, and what is counted.
//!
//! Pure. [`Driver::drive`](super::outcome::Driver::drive) takes each of its steps from [`TABLE`]; the
//! diagram in docs/fault.md is made from the same rows (`diagram` in the tests), so that neither can say what
//! the other does not. A row that is there twice does not compile.
//!
//! What is counted depends on the state that is entered. A wait is counted when it begins, a fault when it
//! ends, the look with the layout lock before it is made.

use super::outcome::Outcome;
use crate::stats::{Event, WaitCause};

/// The state of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It is looked at without the layout lock.
    Look,
    /// It is looked at with the layout lock: looks without it have found no VMA too often.
    Closely,
    /// Its driver (the thread that serves it) waits.
    Wait(WaitCause),
    /// It waits in a queue. Its driver serves other faults; when the wait is over, a driver takes it up
    /// again from the start.
    Aside,
    /// Its page is mapped, as far as can be known.
    Done,
    /// A store is served, and its thread waits until less is dirty. It does not fault again.
    Completed,
    /// The access fails.
    Denied,
    /// The address is no longer ours: the kernel decides.
    Foreign,
    /// It is not served: the manager ends.
    Stopped,
}

/// What a look, or a wait, has come to: an [`Outcome`] without what it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum On {
    /// Its page is mapped.
    Done,
    /// Its page is mapped for a store, whose thread is to be throttled.
    Completed,
    /// The access must fail.
    Denied,
    /// The address is not ours.
    Foreign,
    /// The manager ends.
    Stopped,
    /// Something changed meanwhile.
    Again,
    /// Looks without the layout lock have failed too often.
    Fallback,
    /// It must wait.
    Wait(WaitCause),
    /// The wait is over.
    Over,
    /// The driver has queued it to wait.
    Aside,
}

/// What is counted when a state is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counts {
    /// Nothing: it is neither a wait nor an end.
    Nothing,
    /// This event.
    One(Event),
    /// A fault that has ended: the first if it has not waited for I/O, else the second.
    Fault(Event, Event),
}

/// A row of the table: from any of the states `from`, the result `on` leads to the state `to`.
pub(super) struct Row {
    from: &'static [State],
    on: On,
    to: State,
}

const fn row(from: &'static [State], on: On, to: State) -> Row {
    Row { from, on, to }
}

/// Both ways of looking.
const LOOKS: &[State] = &[State::Look, State::Closely];

/// All waits.
const WAITS: &[State] = &[
    State::Wait(WaitCause::Io),
    State::Wait(WaitCause::Writeback),
    State::Wait(WaitCause::FolioLock),
    State::Wait(WaitCause::Frame),
    State::Wait(WaitCause::Tables),
    State::Wait(WaitCause::Writer),
    State::Wait(WaitCause::Pin),
    State::Wait(WaitCause::Handler),
    State::Wait(WaitCause::High),
    State::Wait(WaitCause::Turn),
];

/// Waits that may end with the thread being woken though its page is not mapped: the thread tries again,
/// and finds out itself.
const PIN: &[State] = &[State::Wait(WaitCause::Pin), State::Aside];

/// States in which a fault can wait for too long, and is denied then.
const LATE: &[State] = &[
    State::Wait(WaitCause::Io),
    State::Wait(WaitCause::Writeback),
    State::Wait(WaitCause::FolioLock),
    State::Wait(WaitCause::Pin),
    // Waits for a handler's answer, which may be a denial.
    State::Wait(WaitCause::Frame),
    State::Wait(WaitCause::Tables),
    State::Wait(WaitCause::Writer),
    State::Wait(WaitCause::Handler),
    State::Aside,
];

/// Waits of a thread for a handler's answer, which never comes if the handlers have stopped.
const ANSWERS: &[State] = &[
    State::Wait(WaitCause::Frame),
    State::Wait(WaitCause::Tables),
    State::Wait(WaitCause::Writer),
    State::Wait(WaitCause::Handler),
];

/// All that can happen to a fault.
pub(super) const TABLE: &[Row] = &[
    row(LOOKS, On::Done, State::Done),
    row(LOOKS, On::Completed, State::Completed),
    row(LOOKS, On::Denied, State::Denied),
    row(LOOKS, On::Foreign, State::Foreign),
    row(LOOKS, On::Stopped, State::Stopped),
    row(LOOKS, On::Again, State::Look),
    row(&[State::Look], On::Fallback, State::Closely),
    row(LOOKS, On::Wait(WaitCause::Io), State::Wait(WaitCause::Io)),
    row(LOOKS, On::Wait(WaitCause::Writeback), State::Wait(WaitCause::Writeback)),
    row(LOOKS, On::Wait(WaitCause::FolioLock), State::Wait(WaitCause::FolioLock)),
    row(LOOKS, On::Wait(WaitCause::Frame), State::Wait(WaitCause::Frame)),
    row(LOOKS, On::Wait(WaitCause::Tables), State::Wait(WaitCause::Tables)),
    row(LOOKS, On::Wait(WaitCause::Writer), State::Wait(WaitCause::Writer)),
    row(LOOKS, On::Wait(WaitCause::Pin), State::Wait(WaitCause::Pin)),
    row(LOOKS, On::Wait(WaitCause::Handler), State::Wait(WaitCause::Handler)),
    row(LOOKS, On::Wait(WaitCause::High), State::Wait(WaitCause::High)),
    row(LOOKS, On::Wait(WaitCause::Turn), State::Wait(WaitCause::Turn)),
    row(WAITS, On::Over, State::Look),
    row(WAITS, On::Aside, State::Aside),
    row(&[State::Aside], On::Over, State::Look),
    row(PIN, On::Done, State::Done),
    row(LATE, On::Denied, State::Denied),
    row(ANSWERS, On::Stopped, State::Stopped),
];

const CAUSES: usize = WaitCause::ALL.len();

impl State {
    /// Where every fault begins, and begins anew.
    pub(super) const START: Self = Self::Look;

    const COUNT: usize = 8 + CAUSES;

    const fn index(self) -> usize {
        match self {
            Self::Look => 0,
            Self::Closely => 1,
            Self::Aside => 2,
            Self::Done => 3,
            Self::Completed => 4,
            Self::Denied => 5,
            Self::Foreign => 6,
            Self::Stopped => 7,
            Self::Wait(cause) => 8 + cause as usize,
        }
    }

    /// Whether nothing follows.
    #[inline]
    pub(super) const fn is_end(self) -> bool {
        matches!(self, Self::Done | Self::Completed | Self::Denied | Self::Foreign | Self::Stopped)
    }

    /// What is counted when a fault enters it.
    pub(super) const fn counts(self) -> Counts {
        match self {
            Self::Look | Self::Aside => Counts::Nothing,
            Self::Closely => Counts::One(Event::LayoutLockFaults),
            Self::Wait(cause) => Counts::One(cause.event()),
            Self::Done | Self::Completed => Counts::Fault(Event::FaultsMinor, Event::FaultsMajor),
            Self::Denied => Counts::One(Event::FaultsDenied),
            Self::Foreign => Counts::One(Event::FaultsForeign),
            Self::Stopped => Counts::One(Event::FaultsStopped),
        }
    }

    /// The state that follows this one on `on`.
    ///
    /// # Panics
    /// If the table has no row for that: the driver has a bug.
    #[inline]
    pub(super) fn after(self, on: On) -> Self {
        match NEXT[self.index()][on.index()] {
            Some(next) => next,
            None => no_such_row(self, on),
        }
    }
}

#[cold]
fn no_such_row(state: State, on: On) -> ! {
    panic!("a fault in {state:?} cannot have {on:?}")
}

impl On {
    const COUNT: usize = 9 + CAUSES;

    const fn index(self) -> usize {
        match self {
            Self::Done => 0,
            Self::Completed => 1,
            Self::Denied => 2,
            Self::Foreign => 3,
            Self::Stopped => 4,
            Self::Again => 5,
            Self::Fallback => 6,
            Self::Over => 7,
            Self::Aside => 8,
            Self::Wait(cause) => 9 + cause as usize,
        }
    }
}

impl Outcome {
    /// The kind of outcome, as the table has it, without the data that the outcome carries.
    #[inline]
    pub(super) fn on(&self) -> On {
        match self {
            Self::Ended(ended) => ended.on(),
            Self::Again => On::Again,
            Self::Fallback => On::Fallback,
            Self::Wait(reason) => On::Wait(reason.cause()),
        }
    }
}

/// The table, by state and by what happens.
const NEXT: [[Option<State>; On::COUNT]; State::COUNT] = by_state();

const fn by_state() -> [[Option<State>; On::COUNT]; State::COUNT] {
    let mut next = [[None; On::COUNT]; State::COUNT];
    let mut number = 0;
    while number < TABLE.len() {
        let Row { from, on, to } = &TABLE[number];
        let mut state = 0;
        while state < from.len() {
            let place = &mut next[from[state].index()][on.index()];
            assert!(place.is_none(), "two rows of the table are for the same state and outcome");
            *place = Some(*to);
            state += 1;
        }
        number += 1;
    }
    next
}

#[cfg(all(test, not(shuttle)))]
mod tests;
