//! One slot: its state word, its mark, and its value.
//!
//! The word is `generation << 32 | DETACHED | WAKE | readers`. It is changed by read-modify-writes only,
//! because a reader that is turned away may be counted for a moment at any time. `slots` explains how word,
//! mark and sequence are ordered.

use super::TryReadError;
use crate::LayoutLock;
use crate::Mutant;
use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::cell::UnsafeCell;

const READERS: u64 = (1 << 24) - 1;
/// The most read locks at a time; more are refused, so that the count cannot overflow into the flags, even
/// if guards are forgotten. Readers that are being turned away are counted beyond that, but there is at
/// most one for each thread, and the kernel has at most 2^22 threads. Linux: `VMA_REF_LIMIT`.
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
/// In tests of the tests: a reader does not compare the generation.
const MUTANT_NO_GENERATION: [Mutant; 2] = [Mutant::new("no_generation"), Mutant::new("skip_revalidation")];
/// In tests of the tests: the last reader does not wake the writer.
const MUTANT_NO_WAKE: Mutant = Mutant::new("no_wake");
/// On cache lines of its own: readers of different VMAs do not slow each other down.
#[repr(align(64))]
pub(super) struct Slot<T> {
    word: AtomicU64,
    /// The sequence number of the layout's write that inserted the value; 0: the slot never had one.
    mark: AtomicU64,
    /// The next of the vacant slots. Changed under the layout lock only.
    pub(super) next_vacant: AtomicU32,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the table gives `&T` to several threads at a time (`T: Sync`), and takes a `T` out in another
// thread than the one that put it in (`T: Send`); the conditions for that are those of the unsafe methods
// below.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

/// The result of [`Slot::retire`].
pub(super) struct Retired {
    /// There are readers to wait for.
    pub(super) busy: bool,
    /// Whether the slot has a new generation. If not (the last one was used), it must stay vacant, since a
    /// key would come again.
    pub(super) reusable: bool,
}

impl<T> Slot<T> {
    /// A vacant slot.
    pub(super) fn new() -> Self {
        Self {
            word: AtomicU64::new(GENERATION | DETACHED),
            mark: AtomicU64::new(0),
            next_vacant: AtomicU32::new(0),
            value: UnsafeCell::new(None),
        }
    }

    /// The word, relaxed: it may be out of date.
    #[inline]
    pub(super) fn load(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    /// Counts a reader; returns the word before that. Acquire: if the value was attached, the reader sees
    /// its mark.
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
        // A reader that counted itself in this generation has acquired its mark, and sees a sequence that
        // is not older than the mark.
        let marked =
            !MUTANT_SKIP_SEQUENCE_CHECK.planted() && self.mark.load(Ordering::Relaxed) == layout.sequence();
        if marked || word & READERS >= MAX_READERS {
            return Err(TryReadError::Locked);
        }
        Ok(())
    }

    /// Turns readers away for good; tells whether there are any to wait for. Acquire: the accesses of readers
    /// that have left are before this call.
    #[inline]
    pub(super) fn detach(&self) -> bool {
        self.word.fetch_or(DETACHED, Ordering::AcqRel) & READERS != 0
    }

    /// Lets readers in once the layout's write with the number `sequence` has ended; returns the
    /// generation. The slot was vacant, and its value has just been put in.
    #[inline]
    pub(super) fn attach(&self, sequence: u64) -> u32 {
        self.mark.store(sequence, Ordering::Relaxed);
        // Release: a reader that counts itself after this sees the mark. A subtraction, since the flag is
        // set: one instruction, no loop.
        let word = self.word.fetch_sub(DETACHED, Ordering::Release);
        (word / GENERATION) as u32
    }

    /// Detaches the value if need be, and makes its key stale, in one step. Acquire as in [`Slot::detach`].
    /// The caller has the layout lock for writing, so only the count of readers changes meanwhile.
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

    /// Lets tests reach the last generation at once. The slot is vacant, and no other thread uses the
    /// table.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) fn set_generation(&self, generation: u32) {
        self.word.store((u64::from(generation) * GENERATION) | DETACHED, Ordering::Relaxed);
    }

    /// Whether the slot has the value of that generation. The caller has the layout lock.
    #[inline]
    pub(super) fn holds(&self, generation: u32) -> bool {
        // SAFETY: the value is put in and taken out under the layout lock only; readers have only shared
        // references to it.
        let there = self.value.with(|value| unsafe { (*value).is_some() });
        there && self.load() / GENERATION == u64::from(generation)
    }

    /// Whether no reader is inside. Acquire: all that the readers did happened before.
    #[inline]
    pub(super) fn is_unread(&self) -> bool {
        self.word.load(Ordering::Acquire) & READERS == 0
    }

    /// Asks the last reader to wake the caller; `true` if none is inside.
    pub(super) fn ask_for_wake(&self) -> bool {
        self.word.fetch_or(WAKE, Ordering::AcqRel) & READERS == 0
    }

    /// Withdraws that request.
    pub(super) fn awake(&self) {
        self.word.fetch_and(!WAKE, Ordering::Relaxed);
    }

    /// The value.
    ///
    /// # Safety
    /// As long as the reference lives, no thread calls the two methods below: because the caller is a
    /// reader that was let in, or has the layout lock, whose writer borrows its guard mutably to call them.
    #[inline]
    pub(super) unsafe fn value(&self) -> Option<&T> {
        // SAFETY: the caller's promise.
        self.value.with(|value| unsafe { (*value).as_ref() })
    }

    /// Puts a value in.
    ///
    /// # Safety
    /// There is no reference to the value: no reader is inside, none enters, and no other thread has the
    /// layout lock.
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
