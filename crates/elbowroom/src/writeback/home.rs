//! Taking a folio home: the one way to get its lock with none of its pages mapped.
//!
//! Linux: `folio_lock`, `try_to_unmap` and `folio_wait_writeback`, as truncation and reclaim call them.

use super::Writeback;
use crate::config::{DELAY, PINNED_BOUND};
use crate::page::{Flag, Folio, LockedFolio};
use crate::pause::{Cause, pause};
use crate::platform::Platform;
use elbowroom_machine::{Errno, Mmu, UnmapError};
use elbowroom_sync::Arc;
use elbowroom_sync::time::{Duration, Instant};
use std::cell::Cell;

/// How long an operation may wait, in all, for pages that are pinned: by direct I/O of the program, which
/// ends, or by a pin of a soft space, which may not. What the work itself takes does not count: a verb that
/// works for long has as much patience left for the last page as for the first.
pub(crate) struct Patience {
    left: Cell<Duration>,
}

impl Patience {
    /// Does not wait at all.
    pub(crate) const fn none() -> Self {
        Self { left: Cell::new(Duration::ZERO) }
    }

    /// Waits for [`PINNED_BOUND`] at most.
    pub(crate) fn bounded() -> Self {
        Self::of(PINNED_BOUND)
    }

    /// Waits for `bound` at most.
    pub(crate) fn of(bound: Duration) -> Self {
        Self { left: Cell::new(bound) }
    }

    /// Waits for a moment and returns true; returns false at once if no time is left.
    pub(crate) fn wait(&self) -> bool {
        let left = self.left.get();
        if left.is_zero() {
            return false;
        }
        let began = Instant::now();
        pause(Cause::Pinned, DELAY.min(left));
        // In a model a pause may take no time.
        self.left.set(left.saturating_sub(began.elapsed().max(DELAY)));
        true
    }
}

/// Where a folio is to be unmapped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leave {
    /// Wherever it is mapped.
    Everywhere,
    /// In the place where its page 0 is at this address.
    At(usize),
}

/// What became of a folio that was to be taken home.
pub(crate) enum Home<'a> {
    /// It is locked, and the pages that were to be unmapped are at home.
    Here(LockedFolio<'a>),
    /// It is locked, and the pages that are left are at home. Others are no longer where they were mapped:
    /// they were unmapped behind our back, and what was stored in them is lost.
    Damaged(LockedFolio<'a>),
    /// It is gone, or not wanted.
    Not,
}

impl<P: Platform> Writeback<P> {
    /// Locks a folio and takes its pages home, or out of one place, if it is still `wanted` then. Waits for
    /// its lock; but if it is to leave one place only, does not wait for a device that has it, since it is
    /// mapped nowhere then. Not for handlers.
    ///
    /// # Errors
    /// EBUSY: a page has been pinned for longer than patience lasts.
    pub(crate) fn take_home(
        &self,
        folio: &Arc<Folio>,
        leave: Leave,
        patience: &Patience,
        wanted: impl Fn(&LockedFolio<'_>) -> bool,
    ) -> Result<Home<'_>, Errno> {
        loop {
            let locked = match leave {
                Leave::Everywhere => Some(self.lock(folio)),
                Leave::At(_) => {
                    self.waits.lock_while(folio, self.handlers(), || folio.state.test(Flag::Mapped))
                }
            };
            let Some(mut locked) = locked else { return Ok(Home::Not) };
            if locked.state.test(Flag::Dead) || !wanted(&locked) {
                return Ok(Home::Not);
            }
            let extent = locked.body_mut().extent();
            let unmapped = match leave {
                Leave::Everywhere => self.mmu.unmap(extent),
                Leave::At(base) => self.mmu.unmap_at(extent, base),
            };
            match unmapped {
                Ok(()) => {
                    if leave == Leave::Everywhere {
                        self.settle_guesses(&mut locked);
                    }
                    return Ok(Home::Here(locked));
                }
                Err(UnmapError::Lost) => return Ok(Home::Damaged(locked)),
                Err(UnmapError::Busy) => drop(locked),
            }
            if !patience.wait() {
                return Err(Errno::BUSY);
            }
        }
    }

    /// Runs `f` with the folio of a file locked and all its pages at home, if there is a folio still.
    ///
    /// # Errors
    /// EBUSY: a page has been pinned for longer than patience lasts; `f` is not run.
    pub(crate) fn with_home(
        &self,
        folio: &Arc<Folio>,
        patience: &Patience,
        f: impl FnOnce(&Writeback<P>, &mut LockedFolio<'_>),
    ) -> Result<(), Errno> {
        match self.take_home(folio, Leave::Everywhere, patience, |_| true)? {
            Home::Here(mut folio) => f(self, &mut folio),
            Home::Damaged(mut folio) => self.lose(&mut folio),
            Home::Not => {}
        }
        Ok(())
    }
}
