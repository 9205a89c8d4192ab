//! One slot: its state word, its mark, and its value.
//!
//! The word is `generation << 32 | DETACHED | WAKE | readers`. It is changed by read-modify-writes only,
//! because a reader that is turned away is in the count for a moment at any time. What orders word, mark and
//! sequence is explained in `slots`.

use super::TryReadError;
use crate::LayoutLock;
use crate::Mutant;
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::cell::UnsafeCell;

const READERS: u64 = (1 << 24) - 1;
/// More read locks at a time are refused, so that the count cannot run into the flags, even if guards are
/// forgotten: the readers that are being turned away are at most one for each thread, and the kernel has at
/// most 2^22 threads. Linux: `VMA_REF_LIMIT`.
const MAX_READERS: u64 = 1 << 23;
/// The last reader to leave wakes the writer.
const WAKE: u64 = 1 << 30;
/// No reader enters this generation any more. Set in vacant slots too.
const DETACHED: u64 = 1 << 31;
const GENERATION: u64 = 1 << 32;

/// In tests of the tests: a reader enters although the value is detached.
const MUTANT_SKIP_DETACHED_CHECK: Mutant = Mutant::new("skip_detached_check");
/// In tests of the tests: a reader does not compare the mark with the sequence.
const MUTANT_SKIP_SEQUENCE_CHECK: Mutant = Mutant::new("skip_sequence_check");
/// In tests of the tests: a reader enters whatever the slot has now.
const MUTANT_NO_GENERATION: [Mutant; 2] = [Mutant::new("no_generation"), Mutant::new("skip_revalidation")];
/// In tests of the tests: the last reader does not wake the writer.
const MUTANT_NO_WAKE: Mutant = Mutant::new("no_wake");
/// On cache lines of its own: readers of different VMAs do not slow each other down.
#[repr(align(64))]
pub(super) struct Slot<T> {
    word: AtomicU64,
    /// The sequence in which its value was put in; 0: it never had one.
    mark: AtomicU64,
    /// The next of the vacant slots. Changed under the layout lock only.
    pub(super) next_vacant: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the table gives `&T` to several threads at a time (`T: Sync`), and takes a `T` out in another
// thread than the one that put it in (`T: Send`); who may do which when is a condition of the unsafe methods
// below.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

/// What [`Slot::retire`] found.
pub(super) struct Retired {
    /// There are readers to wait for.
    pub(super) busy: bool,
    /// The slot has another generation. Otherwise it must stay vacant, since a key would come again.
    pub(super) reusable: bool,
}

impl<T> Slot<T> {
    /// A vacant one.
    pub(super) fn new() -> Self {
        Self {
            word: AtomicU64::new(GENERATION | DETACHED),
            mark: AtomicU64::new(0),
            next_vacant: AtomicU32::new(0),
            value: UnsafeCell::new(None),
        }
    }

    /// The word as it is about now.
    #[inline]
    pub(super) fn load(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// Counts a reader; gives the word from before. Acquire: if it was attached before, its mark is seen.
    #[inline]
    pub(super) fn count_reader(&self) -> u64 {
        self.word.fetch_add(1, Ordering::Acquire)
    }

    /// Undoes one [`Slot::count_reader`]; tells whether to wake a writer. Release: the writer sees that this
    /// reader has read.
    #[inline]
    pub(super) fn uncount_reader(&self) -> bool {
        let word = self.word.fetch_sub(1, Ordering::Release);
        !MUTANT_NO_WAKE.planted() && word & WAKE != 0 && word & READERS == 1
    }

    /// Why a reader that met `word` must not stay.
    #[inline]
    pub(super) fn refusal<L>(
        &self,
        word: u64,
        generation: u32,
        layout: &LayoutLock<L>,
    ) -> Result<(), TryReadError> {
        if !MUTANT_NO_GENERATION.iter().any(|mutant| mutant.planted())
            && word / GENERATION != u64::from(generation)
        {
            return Err(TryReadError::Reused);
        }
        if !MUTANT_SKIP_DETACHED_CHECK.planted() && word & DETACHED != 0 {
            return Err(TryReadError::Detached);
        }
        // Who counted itself in this generation has acquired its mark, and a sequence not older than that.
        let marked =
            !MUTANT_SKIP_SEQUENCE_CHECK.planted() && self.mark.load(Ordering::Relaxed) == layout.sequence();
        if marked || word & READERS >= MAX_READERS {
            return Err(TryReadError::Locked);
        }
        Ok(())
    }

    /// Turns readers away for good; tells whether there are any to wait for. Acquire: what those did who have
    /// left is done.
    #[inline]
    pub(super) fn detach(&self) -> bool {
        self.word.fetch_or(DETACHED, Ordering::AcqRel) & READERS != 0
    }

    /// Lets readers in once the layout's write number `sequence` has ended; gives the generation. The slot
    /// was vacant and has a value.
    #[inline]
    pub(super) fn attach(&self, sequence: u64) -> u32 {
        self.mark.store(sequence, Ordering::Relaxed);
        // Release: who counts itself after this sees the mark. A subtraction, since the flag is set: one
        // instruction, no loop.
        let word = self.word.fetch_sub(DETACHED, Ordering::Release);
        (word / GENERATION) as u32
    }

    /// Detaches it if need be, and makes all its keys stale, in one step. Acquire as in [`Slot::detach`]. The
    /// caller has the layout lock for writing, so only the count of readers changes meanwhile.
    #[inline]
    pub(super) fn retire(&self) -> Retired {
        let before = self.load();
        let mut step = !before & DETACHED;
        let reusable = before / GENERATION < u64::from(u32::MAX);
        if reusable {
            step += GENERATION;
        }
        let busy = self.word.fetch_add(step, Ordering::AcqRel) & READERS != 0;
        Retired { busy, reusable }
    }

    /// Lets tests come to the last generation at once. The slot is vacant, and nobody else uses the table.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn set_generation(&self, generation: u32) {
        self.word.store((u64::from(generation) * GENERATION) | DETACHED, Ordering::Relaxed);
    }

    /// Whether it has the value of that generation. The caller has the layout lock.
    #[inline]
    pub(super) fn holds(&self, generation: u32) -> bool {
        // SAFETY: the value is put in and taken out under the layout lock only; whether it is there is no
        // part of what is borrowed.
        let there = self.value.with(|value| unsafe { (*value).is_some() });
        there && self.load() / GENERATION == u64::from(generation)
    }

    /// Whether no reader is inside. Acquire: what they did is done.
    #[inline]
    pub(super) fn is_unread(&self) -> bool {
        self.word.load(Ordering::Acquire) & READERS == 0
    }

    /// Asks the last reader to wake the caller; `true` if none is inside.
    pub(super) fn ask_for_wake(&self) -> bool {
        self.word.fetch_or(WAKE, Ordering::AcqRel) & READERS == 0
    }

    /// Nobody need be woken any more.
    pub(super) fn awake(&self) {
        self.word.fetch_and(!WAKE, Ordering::Relaxed);
    }

    /// The value.
    ///
    /// # Safety
    /// As long as the reference lives, nobody calls the two methods below: because the caller is a reader
    /// who was let in, or has the layout lock, whose writer borrows its guard mutably to call them.
    #[inline]
    pub(super) unsafe fn value(&self) -> Option<&T> {
        // SAFETY: the caller's promise.
        self.value.with(|value| unsafe { (*value).as_ref() })
    }

    /// Puts a value in.
    ///
    /// # Safety
    /// Nobody has a reference to the value: no reader is inside, none enters, and nobody else has the layout
    /// lock.
    #[inline]
    pub(super) unsafe fn put(&self, new: T) {
        // SAFETY: the caller's promise.
        self.value.with_mut(|value| unsafe { *value = Some(new) });
    }

    /// Takes the value out.
    ///
    /// # Safety
    /// As for [`Slot::put`].
    #[inline]
    pub(super) unsafe fn take(&self) -> Option<T> {
        // SAFETY: the caller's promise.
        self.value.with_mut(|value| unsafe { (*value).take() })
    }
}
