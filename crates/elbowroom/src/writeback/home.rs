//! Taking a folio home: the one way to get its lock with none of its pages mapped.
//!
//! Linux: `folio_lock`, `try_to_unmap` and `folio_wait_writeback`, as truncation and reclaim call them.

use crate::config::{DELAY, PINNED_BOUND};
use crate::core::Core;
use crate::object::FileObject;
use crate::page::{Flag, Folio, LockedFolio};
use crate::pause::{Cause, pause};
use crate::platform::Platform;
use elbowroom_machine::{Errno, Mmu, UnmapError};
use elbowroom_sync::Arc;
use elbowroom_sync::time::{Duration, Instant};

/// Until when to wait for pages that are pinned: by direct I/O of the program, which ends, or by a pin of a
/// soft space, which may not.
#[derive(Clone, Copy)]
pub(crate) struct Patience(Option<Instant>);

impl Patience {
    /// Not at all.
    pub(crate) const NONE: Self = Self(None);

    /// For [`PINNED_BOUND`] from now on, in all that is done with it.
    pub(crate) fn bounded() -> Self {
        Self::of(PINNED_BOUND)
    }

    /// For so long from now on.
    pub(crate) fn of(bound: Duration) -> Self {
        Self(Some(Instant::now() + bound))
    }

    /// Waits for a moment; `false`: that was long enough.
    pub(crate) fn wait(self) -> bool {
        let again = self.0.is_some_and(|deadline| Instant::now() < deadline);
        if again {
            pause(Cause::Pinned, DELAY);
        }
        again
    }
}

/// A folio that was to be taken home.
pub(crate) enum Home<'a> {
    /// All its pages are at home, and stay there until somebody touches them.
    Here(LockedFolio<'a>),
    /// So are those that are left. Others are no longer where they were mapped: somebody unmapped them behind
    /// our back, and what was stored in them is lost.
    Damaged(LockedFolio<'a>),
    /// It is gone, or not wanted.
    Not,
}

impl<P: Platform> Core<P> {
    /// Locks a folio and takes all its pages home, if it is still `wanted` then. Waits for its lock. Not for
    /// handlers.
    ///
    /// # Errors
    /// EBUSY: a page has been pinned for longer than patience lasts.
    pub(crate) fn take_home(
        &self,
        folio: &Arc<Folio>,
        patience: Patience,
        wanted: impl Fn(&LockedFolio<'_>) -> bool,
    ) -> Result<Home<'_>, Errno> {
        loop {
            let mut locked = self.lock(folio);
            if locked.state.test(Flag::Dead) || !wanted(&locked) {
                return Ok(Home::Not);
            }
            match self.mmu.unmap(locked.body_mut().extent()) {
                Ok(()) => return Ok(Home::Here(locked)),
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
        object: &FileObject,
        folio: &Arc<Folio>,
        patience: Patience,
        f: impl FnOnce(&Core<P>, &mut LockedFolio<'_>),
    ) -> Result<(), Errno> {
        match self.take_home(folio, patience, |_| true)? {
            Home::Here(mut folio) => f(self, &mut folio),
            Home::Damaged(mut folio) => self.lose(object, &mut folio),
            Home::Not => {}
        }
        Ok(())
    }
}
