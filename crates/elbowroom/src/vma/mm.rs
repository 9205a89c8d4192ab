//! One layout: the index of VMAs, their locks, and the lock of the layout.
//!
//! Linux: `mm_struct` with its maple tree, per-VMA locks and `mmap_lock`.

use super::misses::Misses;
use super::plan::{SplitPart, gaps, merge};
use super::{Vma, VmaSpec, carve};
use crate::group::{GroupCell, GroupId};
use crate::object::{FileObject, MappedRange, Standing};
use crate::page::{AnonPages, HUGE_PAGES, Parked};
use crate::pause::Gate;
use elbowroom_index::RangeMap;
use elbowroom_index::range_map::Writer;
use elbowroom_machine::{Errno, PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::Mutant;
use elbowroom_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use elbowroom_sync::epoch::{Guard, pin};
use elbowroom_sync::{
    Arc, Key, LayoutHeld, LayoutLock, LayoutRead, LayoutWrite, Lines, LockStats, SlotRead, Slots,
    TryReadError,
};
use std::num::NonZeroU64;
use std::ops::Range;

/// The most VMAs of a space.
const MAX_VMAS: u32 = 1 << 20;

/// In tests of the tests: a reader takes whatever the slot has that it found for the VMA, without looking
/// whether it covers the address. (In `Slots` the same mutant leaves out the generation: each of the two
/// checks alone still finds a slot that was used again.)
const MUTANT_SKIP_REVALIDATION: Mutant = Mutant::new("skip_revalidation");

/// In tests of the tests: what is left behind a cut is not listed in the object's reverse map.
const MUTANT_FORGET_RMAP: Mutant = Mutant::new("forget_rmap");

/// What the index has for a range. Addresses without an entry are free.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry(NonZeroU64);

impl Entry {
    /// The addresses are not the manager's to map at, or are being changed.
    const TAKEN: Entry = Entry(NonZeroU64::MAX);

    fn of(key: Key) -> Self {
        Self(NonZeroU64::new(key.to_u64()).expect("a key that a table gave is not 0"))
    }

    fn key(self) -> Option<Key> {
        (self != Self::TAKEN).then(|| Key::from_u64(self.0.get()))
    }
}

/// What the layout lock guards besides the VMAs.
pub(crate) struct LayoutState {
    /// The writer of the index.
    index: Writer<Entry>,
    /// Ranges whose mappings are gone from the index and whose pages are being taken out. Faults there wait.
    pub(crate) changing: Vec<Range<usize>>,
    /// The faults that wait for a change to end.
    pub(crate) stalled: Vec<Parked>,
    /// How many VMAs the changes under way may put in when they end.
    pub(crate) promised: usize,
    /// How many threads wait for a moment at which nothing is being changed: until they have had it, no
    /// change begins.
    pub(crate) still_wanted: usize,
    /// Where threads wait for a change to end, or for changes to be permitted again.
    gate: Option<Arc<Gate>>,
    /// Accesses where nothing was mapped.
    pub(crate) misses: Misses,
}

impl LayoutState {
    fn new(index: Writer<Entry>) -> Self {
        Self {
            index,
            changing: Vec::new(),
            stalled: Vec::new(),
            promised: 0,
            still_wanted: 0,
            gate: None,
            misses: Misses::default(),
        }
    }

    /// Where to wait, without the lock, until a change ends or changes are permitted again.
    pub(crate) fn gate(&mut self) -> Arc<Gate> {
        self.gate.get_or_insert_with(|| Arc::new(Gate::new())).clone()
    }

    /// Takes the gate, for the caller to open: a change has ended, or changes are permitted again.
    pub(crate) fn take_gate(&mut self) -> Option<Arc<Gate>> {
        self.gate.take()
    }
}

/// The layout, locked for changing it.
pub(crate) type Layout<'a> = LayoutWrite<'a, LayoutState>;

/// The layout, locked for looking at it.
pub(crate) type LayoutShared<'a> = LayoutRead<'a, LayoutState>;

/// The right to rely on a VMA: no thread changes it while this lives.
pub(crate) type VmaGuard<'a> = SlotRead<'a, Vma>;

/// Why no VMA could be entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Enter {
    /// The index has no VMA there.
    Miss,
    /// The VMA is being changed.
    Locked,
    /// It changed between being found and being locked: look again.
    Changed,
}

/// How many hints a layout has, and the addresses that share one: 1 MiB, and those a multiple of `HINTS` MiB
/// away.
const HINTS: usize = 64;
const HINT_SHIFT: u32 = 20;
/// No hint: what no table gives as a key.
const NO_HINT: u64 = 0;

/// A space's layout.
pub(crate) struct Mm {
    index: RangeMap<Entry>,
    vmas: Slots<Vma>,
    /// The key of the VMA that was entered last, by address. It is tried before the index, whose cache
    /// lines each call that maps something writes. It is as good as a key from the index: a key whose VMA
    /// is gone finds nothing, and a VMA that is found is checked to cover the address. So hints need not be
    /// invalidated, as those of Linux's `vmacache` had to be.
    hints: [Lines<AtomicU64>; HINTS],
    layout: LayoutLock<LayoutState>,
    /// The group of mappings that are made without one of their own.
    pub(crate) group: GroupCell,
    /// The pages that belong to the space alone.
    pub(crate) anon: AnonPages,
    /// The address at which the search for folios to collapse goes on.
    collapsed_up_to: AtomicUsize,
}

fn pages_of(range: &Range<usize>) -> Range<u64> {
    (range.start >> PAGE_SHIFT) as u64..(range.end >> PAGE_SHIFT) as u64
}

fn addresses_of(pages: &Range<u64>) -> Range<usize> {
    (pages.start as usize) << PAGE_SHIFT..(pages.end as usize) << PAGE_SHIFT
}

impl Mm {
    /// A layout without any addresses of its own.
    pub(crate) fn new(group: GroupId, locks: &LockStats) -> Self {
        let (index, mut writer) = RangeMap::new();
        writer.store(0..1 << (usize::BITS - PAGE_SHIFT), Some(Entry::TAKEN), &pin());
        let layout = locks.layout_lock(LayoutState::new(writer));
        let cell = GroupCell::root();
        cell.set(group);
        Self {
            index,
            vmas: Slots::new(&layout, MAX_VMAS),
            hints: std::array::from_fn(|_| Lines(AtomicU64::new(NO_HINT))),
            layout,
            group: cell,
            anon: AnonPages::new(locks),
            collapsed_up_to: AtomicUsize::new(0),
        }
    }

    /// Locks the layout for changing it.
    #[track_caller]
    pub(crate) fn write(&self) -> Layout<'_> {
        self.layout.write()
    }

    /// Locks the layout for looking at it.
    #[track_caller]
    pub(crate) fn read(&self) -> LayoutShared<'_> {
        self.layout.read()
    }

    /// Makes addresses free that were not ours, or were being changed.
    pub(crate) fn release(&self, layout: &mut Layout<'_>, range: &Range<usize>) {
        layout.index.erase(pages_of(range), &pin());
    }

    /// Makes the range taken: it is not free, and no VMA has it.
    pub(crate) fn take(&self, layout: &mut Layout<'_>, range: &Range<usize>) {
        layout.index.store(pages_of(range), Some(Entry::TAKEN), &pin());
    }

    /// The VMA that covers `addr`, locked for reading. Waits for nothing.
    pub(crate) fn enter(&self, addr: usize) -> Result<VmaGuard<'_>, Enter> {
        let hint = &self.hints[addr >> HINT_SHIFT & (HINTS - 1)];
        let hinted = hint.load(Ordering::Relaxed);
        if hinted != NO_HINT
            && let Ok(vma) = self.lock_at(Key::from_u64(hinted), addr)
        {
            return Ok(vma);
        }
        let found = self.index.get((addr >> PAGE_SHIFT) as u64, &pin());
        let key = found.and_then(|(_, entry)| entry.key()).ok_or(Enter::Miss)?;
        let vma = self.lock_at(key, addr)?;
        hint.store(key.to_u64(), Ordering::Relaxed);
        Ok(vma)
    }

    /// The VMA that `key` names, locked for reading, if it covers `addr`.
    #[inline]
    fn lock_at(&self, key: Key, addr: usize) -> Result<VmaGuard<'_>, Enter> {
        match self.vmas.try_read(key, &self.layout) {
            Ok(vma) if MUTANT_SKIP_REVALIDATION.planted() || vma.range.contains(&addr) => Ok(vma),
            Ok(_) | Err(TryReadError::Detached | TryReadError::Reused) => Err(Enter::Changed),
            Err(TryReadError::Locked) => Err(Enter::Locked),
        }
    }

    /// The VMAs that overlap `range`, in order, for a caller that holds the layout lock.
    pub(crate) fn overlapping<'g>(&'g self, range: &Range<usize>, held: &'g impl LayoutHeld) -> Vec<&'g Vma> {
        let keys: Vec<_> = self.keys_in(range).collect();
        keys.into_iter().filter_map(|key| self.vmas.read_locked(key, held)).collect()
    }

    fn keys_in(&self, range: &Range<usize>) -> std::vec::IntoIter<Key> {
        let guard = pin();
        let entries = self.index.overlapping(pages_of(range), &guard);
        entries.filter_map(|(_, entry)| entry.key()).collect::<Vec<_>>().into_iter()
    }

    /// The range, extended to the ends of the VMAs that reach out of it, for a caller that holds the layout
    /// lock.
    pub(crate) fn whole(&self, range: &Range<usize>, held: &impl LayoutHeld) -> Range<usize> {
        let vmas = self.overlapping(range, held);
        let start = vmas.first().map_or(range.start, |vma| vma.range.start.min(range.start));
        start..vmas.last().map_or(range.end, |vma| vma.range.end.max(range.end))
    }

    /// What is mapped in `range`, cut to it, as ranges of addresses, the object's first page and the spec,
    /// for a caller that holds the layout lock.
    pub(crate) fn parts_held(
        &self,
        range: &Range<usize>,
        held: &impl LayoutHeld,
    ) -> Vec<(Range<usize>, u64, VmaSpec)> {
        let vmas = self.overlapping(range, held);
        let part = |vma: &&Vma| {
            let inside = carve(&vma.range, vma.first_page, range)?.inside;
            Some((inside.range, inside.first_page, vma.spec.clone()))
        };
        vmas.iter().filter_map(part).collect()
    }

    /// The objects that the space maps.
    pub(crate) fn objects(&self) -> Vec<Arc<FileObject>> {
        let layout = self.read();
        let all = self.overlapping(&(0..!(PAGE_SIZE - 1)), &layout);
        all.iter().filter_map(|vma| vma.spec.object.as_deref().cloned()).collect()
    }

    /// The first pages of 2 MiB blocks that lie in one private anonymous mapping, in the next `looks`
    /// mappings from where the last call ended.
    pub(crate) fn blocks_to_collapse(&self, looks: usize) -> Vec<u64> {
        let from = self.collapsed_up_to.load(Ordering::Relaxed);
        let layout = self.read();
        let guard = pin();
        let all = pages_of(&(from..!(PAGE_SIZE - 1)));
        let (mut blocks, mut end) = (Vec::new(), 0);
        for (range, entry) in self.index.overlapping(all, &guard).take(looks) {
            end = (range.end as usize) << PAGE_SHIFT;
            let vma = entry.key().and_then(|key| self.vmas.read_locked(key, &layout));
            if vma.is_some_and(|vma| vma.spec.is_private() && vma.spec.object.is_none()) {
                let first = range.start.next_multiple_of(HUGE_PAGES);
                blocks.extend(
                    (first..range.end).step_by(HUGE_PAGES as usize).filter(|b| b + HUGE_PAGES <= range.end),
                );
            }
        }
        // Wraps to the beginning after the last.
        self.collapsed_up_to.store(if end == from { 0 } else { end }, Ordering::Relaxed);
        blocks
    }

    /// The free parts of `range`.
    pub(crate) fn free_in(&self, range: &Range<usize>, _layout: &Layout<'_>) -> Vec<Range<usize>> {
        let guard = pin();
        let pages = pages_of(range);
        let taken = self.index.overlapping(pages.clone(), &guard).map(|(taken, _)| taken);
        gaps(&pages, taken).iter().map(addresses_of).collect()
    }

    /// Whether all of `range` is free.
    pub(crate) fn is_free(&self, range: &Range<usize>, _layout: &Layout<'_>) -> bool {
        let pages = pages_of(range);
        self.index.overlapping(pages, &pin()).next().is_none()
    }

    /// The highest free place for `len` bytes within `within` at an address that is `phase` modulo `align` (a
    /// power of two). Linux: `vm_unmapped_area` top-down.
    pub(crate) fn place(
        &self,
        len: usize,
        align: usize,
        phase: usize,
        within: &Range<usize>,
        layout: &Layout<'_>,
    ) -> Option<Range<usize>> {
        let (len, align, phase) = (len >> PAGE_SHIFT, align >> PAGE_SHIFT, phase >> PAGE_SHIFT);
        let within = pages_of(within);
        let start = layout.index.gap_down(len as u64, align as u64, phase as u64, within, &pin())?;
        Some(addresses_of(&(start..start + len as u64)))
    }

    /// ENOMEM if so many more VMAs would be too many.
    pub(crate) fn room_for(&self, more: usize, layout: &Layout<'_>) -> Result<(), Errno> {
        let most = self.vmas.len() + layout.promised + more;
        if most <= MAX_VMAS as usize { Ok(()) } else { Err(Errno::NOMEM) }
    }

    /// Promises room for cutting `range`, and for putting back afterwards what was cut out, or `adds` VMAs if
    /// that is more. Returns how many are promised.
    ///
    /// # Errors
    /// ENOMEM: too many VMAs. Never for a range that cuts no VMA in two and to which none is added.
    pub(crate) fn promise(
        &self,
        layout: &mut Layout<'_>,
        range: &Range<usize>,
        adds: usize,
    ) -> Result<usize, Errno> {
        let (cut, left_over) = {
            let vmas = self.overlapping(range, layout);
            let before = vmas.first().is_some_and(|vma| vma.range.start < range.start);
            let after = vmas.last().is_some_and(|vma| vma.range.end > range.end);
            (vmas.len(), usize::from(before) + usize::from(after))
        };
        let back = cut.max(adds);
        self.room_for(left_over + back - cut, layout)?;
        layout.promised += back;
        Ok(back)
    }

    /// Puts a VMA in where none is, and merges it with the neighbours that it continues. The caller has
    /// made sure that there is room for it ([`Mm::room_for`]).
    pub(crate) fn insert(&self, layout: &mut Layout<'_>, vma: Vma) {
        let guard = pin();
        let key_at = |addr: usize| self.index.get((addr >> PAGE_SHIFT) as u64, &guard)?.1.key();
        let before = (vma.range.start > 0).then(|| key_at(vma.range.start - PAGE_SIZE)).flatten();
        let after = key_at(vma.range.end);
        let plan = {
            let side = |key: Option<Key>| self.vmas.read_locked(key?, layout).map(Vma::side);
            merge(side(before).as_ref(), &vma.side(), side(after).as_ref())
        };
        if vma.spec.object.is_none() && !plan.with_before() && !plan.with_after() {
            // With the guard that there is: making another one costs more than holding one.
            return self.put(layout, vma, &guard);
        }
        // Taking a neighbour out waits for its readers, and listing the VMA waits for a lock: neither is to
        // be done with a guard.
        drop(guard);
        let before = before.filter(|_| plan.with_before());
        let after = after.filter(|_| plan.with_after());
        self.insert_merged(layout, vma, before, after);
    }

    /// Puts a VMA in, merged with the VMA `before` it and with the one `after` it, as far as keys of them
    /// are given.
    #[inline(never)]
    fn insert_merged(&self, layout: &mut Layout<'_>, mut vma: Vma, before: Option<Key>, after: Option<Key>) {
        let mut take = |key: Option<Key>| self.vmas.remove(key?, layout);
        let (left, right) = (take(before), take(after));
        if let Some(left) = &left {
            (vma.range.start, vma.first_page) = (left.range.start, left.first_page);
        }
        if let Some(right) = &right {
            vma.range.end = right.range.end;
        }
        // This is not the last reference to the object: the VMA in the index has one, and unmapping that
        // needs the layout lock.
        let object = vma.spec.object.as_deref().cloned();
        let old = [left, right];
        let old = old.iter().flatten().map(Vma::listed);
        let _kept = object.as_ref().and_then(|o| o.rmap.replace(vma.range.start, old, [vma.listed()]));
        self.put(layout, vma, &pin());
    }

    /// Puts a VMA in that is merged with nothing.
    fn put(&self, layout: &mut Layout<'_>, vma: Vma, guard: &Guard) {
        let pages = pages_of(&vma.range);
        layout.misses.mapped(&vma.range);
        let key = self.vmas.insert(layout, vma).expect("the caller has asked for room");
        layout.index.store(pages, Some(Entry::of(key)), guard);
    }

    /// Makes `range` free if it is that of one VMA without any page in the cache or of its own, and no
    /// thread waits for a moment without changes; else nothing is changed, and the result is `None`. The VMA
    /// may have the last reference to its file, which is closed then: the caller drops it without the lock.
    pub(crate) fn cut_untouched(&self, layout: &mut Layout<'_>, range: &Range<usize>) -> Option<Vma> {
        if layout.still_wanted > 0 {
            return None;
        }
        let pages = pages_of(range);
        let (found, entry) = self.index.get(pages.start, &pin())?;
        let key = entry.key().filter(|_| found == pages)?;
        let touched = |layout: &Layout<'_>| {
            self.vmas.read_locked(key, layout).is_none_or(|vma| {
                let cached = vma.spec.object.as_ref().is_some_and(|object| object.has_any(vma.pages()));
                cached || vma.spec.is_private() && self.anon.has_any(pages.clone())
            })
        };
        if touched(layout) {
            return None;
        }
        // A reader that is inside may be bringing a page in. No reader comes in after this.
        self.vmas.detach(key, layout);
        if touched(layout) {
            return None;
        }
        // It is detached, so removing it waits for no reader.
        let vma = self.vmas.remove(key, layout);
        let wide = vma.as_ref().filter(|vma| vma.is_listed_widely()).and_then(|vma| vma.unlist());
        layout.index.erase(pages, &pin());
        if wide.is_none() {
            // Not before: it is listed for as long as the index has it.
            vma.as_ref().and_then(|vma| vma.unlist());
        }
        drop(wide);
        vma
    }

    /// Takes what is mapped in `range` out of the layout, and makes the range taken ([`Mm::take`]). When
    /// this returns, no reader relies on what was mapped there. The reverse maps of files list what was cut
    /// out as being changed, until the caller replaces that.
    pub(crate) fn cut(&self, layout: &mut Layout<'_>, range: &Range<usize>) {
        for key in self.keys_in(range) {
            let Some(vma) = self.vmas.remove(key, layout) else { continue };
            let Some(carved) = carve(&vma.range, vma.first_page, range) else { continue };
            let mut _kept = None;
            if let Some(object) = &vma.spec.object {
                let listed = |piece: &SplitPart, standing| {
                    let (range, first_page) = (piece.range.clone(), piece.first_page);
                    MappedRange { range, first_page, private: vma.spec.is_private(), standing }
                };
                let after = carved.after.as_ref().filter(|_| !MUTANT_FORGET_RMAP.planted());
                let stay = [carved.before.as_ref(), after].into_iter().flatten();
                let new = stay.map(|piece| listed(piece, Standing::Mapped));
                let inside = listed(&carved.inside, Standing::InChange);
                _kept = object.rmap.replace(vma.range.start, [vma.listed()], new.chain([inside]));
            }
            for piece in [carved.before, carved.after].into_iter().flatten() {
                let pages = pages_of(&piece.range);
                let kept = Vma::new(piece.range, piece.first_page, vma.spec.clone());
                let key = self.vmas.insert(layout, kept).expect("the caller has asked for room");
                layout.index.store(pages, Some(Entry::of(key)), &pin());
            }
        }
        self.take(layout, range);
    }
}
