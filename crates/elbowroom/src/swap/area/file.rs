//! The file of the swap area: where its pages are, which of them are free, and which children of a fork
//! read them. docs/decisions/0025-fork.md

use super::{CameIn, Swap, SwapSlot, Tier};
use crate::page::{Spot, checksum};
use crate::swap::cipher::Cipher;
use crate::swap::packed::unpack;
use crate::swap::positions::Positions;
use crate::swap::tier::Corrupt;
use elbowroom_machine::{PAGE_SHIFT, PAGE_SIZE};
use elbowroom_store::StoreFile;
#[cfg(not(shuttle))]
use elbowroom_store::{Handed, Lifeline};
use elbowroom_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use elbowroom_sync::epoch::{ArcCell, pin};
use elbowroom_sync::{Arc, LockClass, LockStats, Mutex};
use std::ops::Range;
#[cfg(not(shuttle))]
use std::os::fd::RawFd;

/// The file, and which of its pages are free.
///
/// The child of a fork has a file of its own, and reads those of its ancestors. Pages are numbered through
/// all these files, the ancestors' first, [`SwapFile::stride`] numbers to a file.
pub(super) struct SwapFile {
    /// The process's own file is the last.
    files: ArcCell<Vec<Arc<StoreFile>>>,
    /// The number of the first page of the process's own file.
    base: AtomicU64,
    stride: u64,
    /// What its pages are sealed with, if they are.
    cipher: Option<Cipher>,
    positions: Mutex<Positions>,
    /// The last write has failed.
    refuses: AtomicBool,
}

impl SwapFile {
    /// An empty file, for so many pages.
    pub(super) fn new(locks: &LockStats, pages: u64, file: Arc<StoreFile>, cipher: Option<Cipher>) -> Self {
        Self {
            files: ArcCell::new(Arc::new(vec![file])),
            base: AtomicU64::new(0),
            // A gap: pages of two files are never neighbours.
            stride: pages + 1,
            positions: locks.mutex(LockClass::SwapFile, Positions::new(pages)),
            cipher,
            refuses: AtomicBool::new(false),
        }
    }
}

/// Whether a spot is in the process's own file, and not in an ancestor's.
pub(super) fn is_own_spot(swap: &Swap, spot: Spot) -> bool {
    swap.file.as_ref().is_some_and(|own| spot.position() >= own.base.load(Ordering::Relaxed))
}

impl Swap {
    /// Whether there is a file.
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// The file that has a page, and where, in bytes.
    pub fn place(&self, position: u64) -> Option<(Arc<StoreFile>, u64)> {
        let own = self.file.as_ref()?;
        let guard = pin();
        let file = own.files.load(&guard)?.get((position / own.stride) as usize)?.clone();
        Some((file, (position % own.stride) << PAGE_SHIFT))
    }

    /// The files of the ancestors and this process's own, which a child reads from now on.
    #[cfg(not(shuttle))]
    pub fn lend(&self) -> Vec<Arc<StoreFile>> {
        let Some(own) = &self.file else { return Vec::new() };
        own.positions.lock().lend();
        own.files.load(&pin()).cloned().unwrap_or_default()
    }

    /// Notes that a child is made, which may read the file until its lifeline is over.
    #[cfg(not(shuttle))]
    pub fn watch(&self, child: Lifeline) {
        self.children.lock().push(child);
    }

    /// The lifelines that this process has open so that its ancestors keep what it reads. Its children need
    /// them, too.
    #[cfg(not(shuttle))]
    pub fn lifelines(&self) -> Vec<Handed> {
        self.held.lock().iter().map(|number| Handed::lifeline(*number)).collect()
    }

    /// In the child of a fork: notes the lifelines, which it has open until it ends.
    #[cfg(not(shuttle))]
    pub fn keep_lifelines(&self, numbers: Vec<RawFd>) {
        *self.held.lock() = numbers;
    }

    /// Takes back what was lent, if no child is left that reads the file.
    #[cfg(not(shuttle))]
    pub fn look_after_children(&self) {
        // Closed without the lock.
        let over: Vec<Lifeline>;
        let last_is_gone = {
            let mut children = self.children.lock();
            over = children.extract_if(.., |child| child.is_over()).collect();
            !over.is_empty() && children.is_empty()
        };
        drop(over);
        if last_is_gone && let Some(own) = &self.file {
            own.positions.lock().take_back();
        }
    }

    /// In the child of a fork: whether it has its ancestors' files.
    #[cfg(not(shuttle))]
    pub fn has_what_it_had(&self) -> bool {
        let guard = pin();
        let files = self.file.as_ref().and_then(|own| own.files.load(&guard));
        files.into_iter().flatten().all(|file| file.is_there())
    }

    /// In the child of a fork: pages that go out from now on go to `file`, if there was a swap file before.
    #[cfg(not(shuttle))]
    pub fn renew(&self, file: Option<StoreFile>) {
        // Not dropped: the descriptors are those of the parent.
        std::mem::forget(std::mem::take(&mut *self.children.lock()));
        let (Some(own), Some(file)) = (&self.file, file) else { return };
        let guard = pin();
        let mut files = own.files.load(&guard).cloned().unwrap_or_default();
        own.base.store(files.len() as u64 * own.stride, Ordering::Relaxed);
        files.push(Arc::new(file));
        // The old list is not dropped with open files: the new one has them, too.
        own.files.store(Some(Arc::new(files)), &guard);
        own.positions.lock().renew();
        own.refuses.store(false, Ordering::Relaxed);
    }

    fn cipher(&self) -> Option<&Cipher> {
        self.file.as_ref()?.cipher.as_ref()
    }

    /// Encrypts a page for page `position` of the file, if the file is encrypted.
    pub fn seal(&self, page: &mut [u8], position: u64) {
        if let Some(cipher) = self.cipher() {
            cipher.seal(page, position);
        }
    }

    /// Undoes [`Swap::seal`].
    pub fn unseal(&self, page: &mut [u8], position: u64) {
        if let Some(cipher) = self.cipher() {
            cipher.open(page, position);
        }
    }

    /// Expands, in place, what was read from the file for the slots of neighbouring pages, of each of which
    /// the caller has a count. At the beginning of `pages` is what was read: the pages of the file from
    /// that of the first slot's spot to that of the last one's.
    ///
    /// # Errors
    /// The bytes are not those that went out. The pages must not be mapped then.
    pub fn arrive(&self, numbers: &[u64], pages: &mut [u8]) -> Result<Vec<CameIn>, Corrupt> {
        let slot = |number: &u64| match self.with(*number, |stripe, at| stripe.slots[at]) {
            slot @ SwapSlot { tier: Tier::File(spot), .. } => Ok((spot, slot)),
            _ => Err(Corrupt),
        };
        let slots = numbers.iter().map(slot).collect::<Result<Vec<_>, _>>()?;
        let spots: Vec<_> = slots.iter().map(|slot| slot.0).collect();
        unpack(pages, &spots, |page, position| self.unseal(page, position))?;
        let pages = pages.chunks(PAGE_SIZE).zip(slots);
        let came = pages.map(|(page, (_, slot))| {
            let sum = checksum(page);
            let distance = self.distance(&slot);
            if sum as u32 == slot.sum { Ok(CameIn { sum, distance }) } else { Err(Corrupt) }
        });
        came.collect()
    }

    /// Pages of the file that are taken.
    pub fn file_pages(&self) -> u64 {
        self.file.as_ref().map_or(0, |own| own.positions.lock().taken())
    }

    /// Notes whether a write to the file has succeeded.
    pub fn note_written(&self, succeeded: bool) {
        if let Some(own) = &self.file {
            own.refuses.store(!succeeded, Ordering::Relaxed);
        }
    }

    pub(super) fn file_refuses(&self) -> bool {
        self.file.as_ref().is_some_and(|own| own.refuses.load(Ordering::Relaxed))
    }

    /// Takes up to so many free pages of the file that follow each other. If there is none, copies of pages
    /// that are in memory are dropped: else these copies could fill the file, and pages that have to go out
    /// would wait for ever.
    pub fn take_positions(&self, most: u64) -> Option<Range<u64>> {
        let own = self.file.as_ref()?;
        let base = own.base.load(Ordering::Relaxed);
        let taken = loop {
            let taken = own.positions.lock().take(most);
            if taken.is_some() || !self.drop_kept_in_file(most as usize) {
                break taken?;
            }
        };
        Some(base + taken.start..base + taken.end)
    }

    /// Notes that these spots, of pages of the file that were taken, are in use from now on.
    pub fn use_spots(&self, spots: impl IntoIterator<Item = Spot>) {
        if let Some(own) = &self.file {
            let base = own.base.load(Ordering::Relaxed);
            own.positions.lock().fill(spots.into_iter().map(|spot| spot.less(base)));
        }
    }

    /// Gives a spot of the file back.
    pub fn free_spot(&self, spot: Spot) {
        if let Some(own) = &self.file {
            let base = own.base.load(Ordering::Relaxed);
            // Spots of an ancestor's file are freed by the ancestor.
            if spot.position() >= base {
                own.positions.lock().free_spot(spot.less(base));
            }
        }
    }

    /// Gives pages of the file back that were taken, and of which nothing is in use.
    pub fn free_positions(&self, pages: Range<u64>) {
        if let Some(own) = &self.file {
            let base = own.base.load(Ordering::Relaxed);
            own.positions.lock().free_unused(pages.start - base..pages.end - base);
        }
    }
}
