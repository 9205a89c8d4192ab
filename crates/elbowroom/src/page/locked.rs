//! The lock of a folio as a guard that owns what the lock guards.
//!
//! The owner of a [`LockedFolio`] owns the folio's frames and its set of dirty pages; no other thread may
//! use them. When it is dropped, the folio is unlocked and the faults that waited for it go to a [`Woken`].
//! Linux: `folio_lock`, `folio_unlock`, mm/filemap.c.

use crate::page::{Body, Flag, Folio, Parked, WaitTable};
use elbowroom_sync::Mutant;
use elbowroom_sync::{Arc, FlagGuard, thread};
use std::cell::RefCell;
use std::ops::Deref;

/// In tests of the tests: a folio is unlocked, and none of its waiters is woken.
const MUTANT_WAKE_NOBODY: Mutant = Mutant::new("unlock_wakes_nobody");

/// Takes the faults that have waited for a folio's lock.
pub trait Woken {
    /// Takes faults that are to be served again, soon.
    fn wake(&self, faults: Vec<Parked>);
}

/// The faults that a thread serves again itself.
#[derive(Default)]
pub struct Ready(RefCell<Vec<Parked>>);

impl Ready {
    /// Adds some.
    pub fn extend(&self, faults: impl IntoIterator<Item = Parked>) {
        self.0.borrow_mut().extend(faults);
    }

    /// Takes the last one.
    pub fn pop(&self) -> Option<Parked> {
        self.0.borrow_mut().pop()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }

    /// Changes the faults from number `first` on.
    pub fn change_from(&self, first: usize, change: impl FnMut(&mut Parked)) {
        self.0.borrow_mut()[first..].iter_mut().for_each(change);
    }

    /// Takes all, in the order in which [`Ready::pop`] would: [`Woken::wake`] of them keeps that order.
    pub fn take(&self) -> Vec<Parked> {
        let mut faults = self.0.take();
        faults.reverse();
        faults
    }
}

impl Woken for Ready {
    fn wake(&self, faults: Vec<Parked>) {
        // Those that have waited for longest are served first: the folio was read for the first one, and
        // where chunks begin is learned from the first access to a folio.
        self.extend(faults.into_iter().rev());
    }
}

/// A locked folio: the owner of this value holds the folio's lock.
#[must_use = "the folio is unlocked at once"]
pub struct LockedFolio<'a> {
    /// `None` only while this value is dropped.
    guard: Option<FlagGuard<Folio, Body>>,
    waits: &'a WaitTable,
    woken: &'a dyn Woken,
    /// The thread was already unwinding from a panic when it locked the folio: it completes its work on the
    /// folio, so the folio is unlocked. The locks of the standard library do the same.
    unwinding: bool,
}

impl<'a> LockedFolio<'a> {
    /// Locks a folio, or gives it back if another thread holds its lock.
    #[track_caller]
    pub fn try_lock(
        folio: Arc<Folio>,
        waits: &'a WaitTable,
        woken: &'a dyn Woken,
    ) -> Result<Self, Arc<Folio>> {
        let guard = FlagGuard::try_lock(folio, |folio| folio.state.flag_lock())?;
        waits.took();
        Ok(Self { guard: Some(guard), waits, woken, unwinding: thread::panicking() })
    }

    /// Locks a new folio, which no other thread can find yet.
    pub fn new(folio: Folio, waits: &'a WaitTable, woken: &'a dyn Woken) -> Self {
        let guard = FlagGuard::locked(folio, |folio| folio.state.flag_lock());
        Self { guard: Some(guard), waits, woken, unwinding: thread::panicking() }
    }

    fn guard(&self) -> &FlagGuard<Folio, Body> {
        self.guard.as_ref().expect("it is being dropped")
    }

    /// What the lock guards.
    pub fn body(&self) -> &Body {
        self.guard()
    }

    /// What the lock guards, to be changed.
    pub fn body_mut(&mut self) -> &mut Body {
        self.guard.as_mut().expect("it is being dropped")
    }

    /// The folio, and what the lock guards.
    pub fn parts(&mut self) -> (&Folio, &mut Body) {
        self.guard.as_mut().expect("it is being dropped").parts()
    }

    /// The folio, which stays locked.
    pub fn arc(&self) -> &Arc<Folio> {
        self.guard().holder()
    }

    /// Lets the lock go, and returns the folio.
    pub fn into_folio(mut self) -> Arc<Folio> {
        self.end().expect("it is not being dropped")
    }

    /// Keeps the folio locked for a read into its frames, which another thread may complete.
    pub fn begin_read(mut self) -> Reading {
        self.state.set(Flag::Reading);
        Reading(self.guard.take().expect("it is not being dropped"))
    }

    /// Runs `io`, which does I/O on the folio's frames; `flag` tells which kind. None of its pages is
    /// mapped.
    pub fn during<R>(&mut self, flag: Flag, io: impl FnOnce(&mut Self) -> R) -> R {
        self.begin_io(flag);
        let result = io(self);
        self.end_io(flag);
        result
    }

    /// Begins I/O on the folio's frames; `flag` tells which kind. None of its pages is mapped.
    pub fn begin_io(&self, flag: Flag) {
        debug_assert!(!self.is_mapped(), "a page is mapped while a device has the folio");
        self.state.clear(Flag::Mapped);
        self.state.set(flag);
    }

    /// Ends the I/O that [`LockedFolio::begin_io`] has begun.
    pub fn end_io(&self, flag: Flag) {
        self.state.clear(flag);
    }

    /// Whether any page is mapped: what [`Flag::Mapped`] is to say.
    fn is_mapped(&self) -> bool {
        self.body().extent.as_ref().is_some_and(|extent| !extent.is_home())
    }

    fn has_its_groups_frames(&self) -> bool {
        self.body().extent.as_ref().is_none_or(|extent| extent.group() == self.group)
    }

    fn end(&mut self) -> Option<Arc<Folio>> {
        debug_assert!(
            self.guard.is_none() || self.has_its_groups_frames(),
            "another group pays for its frames"
        );
        let mapped = self.guard.is_some() && self.is_mapped();
        let (set, clear) = if mapped { (Flag::Mapped as u64, 0) } else { (0, Flag::Mapped as u64) };
        let (folio, waited_for) = self.guard.take()?.unlock(set, clear);
        if waited_for && !MUTANT_WAKE_NOBODY.planted() {
            let faults = self.waits.wake(&folio);
            if !faults.is_empty() {
                self.woken.wake(faults);
            }
        }
        Some(folio)
    }
}

impl Deref for LockedFolio<'_> {
    type Target = Folio;

    fn deref(&self) -> &Folio {
        self.arc()
    }
}

impl Drop for LockedFolio<'_> {
    #[inline]
    fn drop(&mut self) {
        // A thread that panics may have done only half of its work on the folio, so no other thread may use
        // it: it stays locked, and threads that wait for it panic, too. If the thread is the manager's, the
        // process is about to end.
        if thread::panicking() && !self.unwinding {
            self.state.set(Flag::Abandoned);
        } else {
            self.end();
        }
    }
}

/// A locked folio whose frames a device has.
#[must_use = "nobody who waits for it is told"]
pub struct Reading(FlagGuard<Folio, Body>);

impl Reading {
    /// The read is done.
    pub fn end<'a>(self, waits: &'a WaitTable, woken: &'a dyn Woken) -> LockedFolio<'a> {
        let folio = LockedFolio { guard: Some(self.0), waits, woken, unwinding: thread::panicking() };
        folio.state.clear(Flag::Reading);
        folio
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use elbowroom_machine::FaultEvent;

    #[test]
    fn the_fault_that_has_waited_for_longest_is_served_first() {
        let fault = |thread| Parked::new(FaultEvent { addr: 0, thread, write: false, present: false });
        let ready = Ready::default();
        ready.wake(vec![fault(1), fault(2), fault(3)]);
        let order = [(); 3].map(|()| ready.pop().unwrap().event.thread);
        assert_eq!(order, [1, 2, 3]);
        // Also if another thread serves them.
        ready.wake(vec![fault(1), fault(2), fault(3)]);
        let other = Ready::default();
        other.wake(ready.take());
        assert_eq!([(); 3].map(|()| other.pop().unwrap().event.thread), order);
    }
}
