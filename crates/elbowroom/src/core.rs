//! The lowest layer of a manager, and how its layers stand on each other.
//!
//! Modules, each using only what stands before it: `pause` < `process_tree` < `ablation, config, error,
//! stats, trace` < `group` < `page, object` < `swap, vma, readahead, learned, runs, lru` < `platform` <
//! `core` < `reclaim` < `writeback` < `fault` < `space` < `manager`.
//!
//! From `core` on a layer is a type that owns the one below it, and what belongs to itself alone: [`Core`] is
//! in `Reclaim`, that in `Writeback`, that in `Faults`, that in `Spaces`, of which a manager has one. A layer
//! dereferences to the one below. So its methods can call those of all layers below, and the compiler knows
//! none of those above. What a lower layer wants of a higher one it leaves in a queue: faults that are ready
//! in an [`Inbox`], dirty folios in [`ToWrite`] (docs/decisions/0021).

mod inbox;
mod mappers;
mod stall;

pub(crate) use inbox::{Arrived, Inbox, Inboxes, Job};
pub(crate) use mappers::Mapper;

use crate::ablation::Tuning;
use crate::config::{
    CHANGE_LOOK, Config, FRAME_BYTES, SLOT_BYTES, STILL_BOUND, STILL_PATIENCE, STILL_PATIENCE_MOST,
};
use crate::group::{DirtyLimits, Frames, GroupId, Groups, OverLimit, Payer, limit_of};
use crate::object::ObjectTable;
use crate::page::{Flag, Folio, LockedFolio, Owner, Parked, WaitTable, Woken};
use crate::pause::{Bell, Cause, Gate, pause};
use crate::platform::Platform;
use crate::quiet::{Quiet, Rester};
use crate::readahead::ReadRoom;
use crate::stats::Counters;
use crate::swap::{Cipher, Quota, Released, Swap};
use crate::trace::{Happened, Trace, Verb};
use crate::vma::{Layout, LayoutState, Mm};
use elbowroom_machine::{Errno, Mmu, PAGE_SIZE};
use elbowroom_store::StoreFile;
use elbowroom_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use elbowroom_sync::epoch::{ArcCell, Guard, pin};
use elbowroom_sync::time::Instant;
use elbowroom_sync::{Arc, LockClass, LockStats, Mutex};

/// The lowest layer of a manager, which all others have: the MMU, frames and their groups, files and their
/// folios, the spaces, and where threads leave work for each other.
pub(crate) struct Core<P: Platform> {
    pub(crate) config: Config,
    pub(crate) mmu: P::Mmu,
    pub(crate) locks: LockStats,
    pub(crate) counters: Counters,
    /// What happened last, if that is kept.
    pub(crate) trace: Option<Arc<Trace>>,
    pub(crate) waits: WaitTable,
    pub(crate) objects: ObjectTable,
    pub(crate) spaces: SpaceTable,
    /// The groups to which frames are charged.
    pub(crate) groups: Groups,
    /// Where pages are that are out.
    pub(crate) swap: Swap,
    pub(crate) inboxes: Inboxes,
    pub(crate) to_write: ToWrite,
    pub(crate) born: Instant,
    pub(crate) stop: AtomicBool,
    /// How all threads are made to rest for a fork.
    pub(crate) quiet: Quiet,
}

/// The spaces, by the top 16 bits of their addresses. The process's own, with real pointers, is number 0.
pub(crate) struct SpaceTable {
    by_number: ArcCell<Vec<Option<Arc<Mm>>>>,
    changes: Mutex<()>,
}

impl SpaceTable {
    pub(crate) fn new(locks: &LockStats) -> Self {
        Self { by_number: ArcCell::new(Arc::new(Vec::new())), changes: locks.mutex(LockClass::Spaces, ()) }
    }

    /// The space that has `addr`, for as long as the guard lives.
    pub(crate) fn at<'g>(&'g self, addr: usize, guard: &'g Guard) -> Option<&'g Arc<Mm>> {
        self.by_number.load(guard)?.get(number_of(addr))?.as_ref()
    }

    /// The space that has `addr`.
    pub(crate) fn of(&self, addr: usize) -> Option<Arc<Mm>> {
        self.at(addr, &pin()).cloned()
    }

    /// All spaces.
    pub(crate) fn all(&self) -> Vec<Arc<Mm>> {
        self.by_number.load(&pin()).into_iter().flatten().flatten().cloned().collect()
    }

    /// Replaces the table by a changed one. The caller has the lock of changes.
    fn change(&self, guard: &Guard, change: impl FnOnce(&mut Vec<Option<Arc<Mm>>>)) {
        let mut spaces = self.by_number.load(guard).cloned().unwrap_or_default();
        change(&mut spaces);
        self.by_number.store(Some(Arc::new(spaces)), guard);
        // The old table may have the last reference to a space.
        guard.flush();
    }

    /// A new space of a group, which has the addresses with the top 16 bits of `addr`.
    pub(crate) fn add(&self, addr: usize, group: GroupId, locks: &LockStats) -> Arc<Mm> {
        let changes = self.changes.lock();
        let guard = pin();
        let mm = Arc::new(Mm::new(group, locks));
        let number = number_of(addr);
        self.change(&guard, |spaces| {
            spaces.resize(spaces.len().max(number + 1), None);
            spaces[number] = Some(mm.clone());
        });
        // Before the guard, whose end drops the old table.
        drop(changes);
        mm
    }

    /// Forgets the space that has `addr`.
    pub(crate) fn remove(&self, addr: usize) {
        let changes = self.changes.lock();
        let guard = pin();
        self.change(&guard, |spaces| {
            if let Some(place) = spaces.get_mut(number_of(addr)) {
                *place = None;
            }
        });
        // Before the guard, whose end drops the old table, and the space with it.
        drop(changes);
    }
}

fn number_of(addr: usize) -> usize {
    addr >> 48
}

/// While it lives, no change of a space's layout begins.
#[must_use = "changes begin again at once"]
pub(crate) struct Still<'m>(&'m Mm);

impl Still<'_> {
    /// Gives up one claim, with the layout lock held. Returns the gate that the caller is to open then.
    fn end(layout: &mut LayoutState) -> Option<Arc<Gate>> {
        layout.still_wanted -= 1;
        if layout.still_wanted == 0 { layout.take_gate() } else { None }
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        let gate = Self::end(&mut self.0.write());
        if let Some(gate) = gate {
            gate.open();
        }
    }
}

/// The folios that the flusher is to write soon: dirty ones, and anonymous ones that are to go out.
pub(crate) struct ToWrite {
    folios: Mutex<Vec<Arc<Folio>>>,
    /// How many pages of anonymous folios were claimed and are not done.
    own: AtomicUsize,
    /// The bell that wakes the flusher.
    pub(crate) bell: Bell,
}

impl ToWrite {
    fn new(locks: &LockStats) -> Self {
        let folios = locks.mutex(LockClass::Flush, Vec::new());
        Self { folios, own: AtomicUsize::new(0), bell: Bell::new(locks) }
    }

    /// Adds the folios that no thread is to write yet. The flusher takes all of them in one turn, so that
    /// pages that go out together lie together in the swap file.
    pub(crate) fn add(&self, folios: impl IntoIterator<Item = Arc<Folio>>) {
        let new = self.claim(folios);
        if !new.is_empty() {
            self.folios.lock().extend(new);
            self.bell.ring();
        }
    }

    /// Marks the folios that no thread is to write yet, and returns them: the caller, or the flusher, is to
    /// write them from now on. Anonymous ones count until they are [`ToWrite::done`].
    pub(crate) fn claim(&self, folios: impl IntoIterator<Item = Arc<Folio>>) -> Vec<Arc<Folio>> {
        let new: Vec<_> = folios.into_iter().filter(|folio| !folio.state.set(Flag::Queued)).collect();
        self.own.fetch_add(own_pages(&new), Ordering::Relaxed);
        new
    }

    /// Whether no folio waits for the flusher.
    pub(crate) fn is_empty(&self) -> bool {
        self.folios.lock().is_empty()
    }

    /// Takes all folios. Those of files can be added again from now on, since they may be stored to while
    /// they are written; anonymous ones only when they are [`ToWrite::done`].
    pub(crate) fn take(&self) -> Vec<Arc<Folio>> {
        let folios = std::mem::take(&mut *self.folios.lock());
        let cached = folios.iter().filter(|folio| folio.is_cached());
        cached.for_each(|folio| _ = folio.state.clear(Flag::Queued));
        folios
    }

    /// Ends the claim of these anonymous folios: they are out, or have to be claimed again.
    pub(crate) fn done(&self, own: &[Arc<Folio>]) {
        own.iter().for_each(|folio| _ = folio.state.clear(Flag::Queued));
        let before = self.own.fetch_sub(own_pages(own), Ordering::Relaxed);
        debug_assert!(before >= own_pages(own), "only what was claimed is done");
    }

    /// How many pages of anonymous folios were claimed, and are on their way out.
    pub(crate) fn own(&self) -> usize {
        self.own.load(Ordering::Relaxed)
    }
}

/// How many pages the anonymous ones among these folios have.
fn own_pages(folios: &[Arc<Folio>]) -> usize {
    folios.iter().filter(|folio| !folio.is_cached()).map(|folio| folio.pages() as usize).sum()
}

/// For threads that are not handlers: a handler gets the faults.
impl<P: Platform> Woken for Core<P> {
    fn wake(&self, faults: Vec<Parked>) {
        self.dispatch(faults);
    }
}

impl<P: Platform> Core<P> {
    /// The lowest layer of a new manager. `inboxes`: one for each handler.
    pub(crate) fn new(
        config: Config,
        mmu: P::Mmu,
        objects: ObjectTable,
        inboxes: Vec<Inbox>,
        swap_file: Option<(Arc<StoreFile>, Option<Cipher>)>,
        locks: &LockStats,
    ) -> Self {
        let born = Instant::now();
        let trace =
            (config.records.trace_bytes > 0).then(|| Arc::new(Trace::new(config.records.trace_bytes, born)));
        if let Some(trace) = trace.clone() {
            locks.watch(move |site, waited| trace.lock_wait(site, waited));
        }
        let quiet = Quiet::new(locks, config.bounds.fork, config.hooks.on_late_fork.clone());
        let dirty = DirtyLimits::for_arena(&config, mmu.frames());
        let (swap, pool) = config.swap_pages(mmu.frames());
        let quota = Quota::new(swap, config.member.clone());
        let (frames, sizing) = (mmu.frames() as u64, config.ablation.pool_sizing);
        Self {
            config,
            mmu,
            locks: locks.clone(),
            counters: Counters::default(),
            trace,
            waits: WaitTable::new(locks),
            objects,
            spaces: SpaceTable::new(locks),
            groups: Groups::new(dirty, usize::from(cfg!(test)), locks),
            swap: Swap::new(locks, quota, [frames, pool], swap_file, sizing),
            inboxes: Inboxes::new(inboxes),
            to_write: ToWrite::new(locks),
            born,
            stop: AtomicBool::new(false),
            quiet,
        }
    }

    /// The constants that were chosen by measuring.
    pub(crate) fn tuning(&self) -> &Tuning {
        &self.config.ablation.tuning
    }

    /// Runs the body of a verb, and notes in the trace which verb it was and how long it took.
    #[inline]
    pub(crate) fn verb<T>(
        &self,
        verb: Verb,
        addr: usize,
        len: usize,
        body: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let Some(trace) = &self.trace else { return body() };
        let since = Instant::now();
        let result = body();
        let errno = result.as_ref().err().map_or(0, |errno| errno.raw_os_error());
        trace.add(Happened::Verb(verb, errno), since, [addr as u64, len as u64]);
        result
    }

    /// Runs `body`, and notes in the trace that `what` happened; `of` gives the record's numbers from the
    /// result.
    #[inline]
    pub(crate) fn noted<T>(
        &self,
        what: Happened,
        of: impl FnOnce(&T) -> [u64; 2],
        body: impl FnOnce() -> T,
    ) -> T {
        let Some(trace) = &self.trace else { return body() };
        let since = Instant::now();
        let result = body();
        trace.add(what, since, of(&result));
        result
    }

    /// A run of 2^`order` frames, charged to the payer's group.
    ///
    /// # Errors
    /// None is free in what the arena has so far, or the group whose limit does not permit it.
    pub(crate) fn alloc(&self, payer: impl Into<Payer>, order: u8) -> Result<Frames, OverLimit> {
        self.groups.alloc(&self.mmu, payer, order)
    }

    /// Gives frames back, none of which is mapped.
    pub(crate) fn free(&self, frames: Frames) {
        self.groups.free(&self.mmu, frames);
    }

    /// A new folio of anonymous memory with the extent, uptodate and locked.
    pub(crate) fn anon_folio<'a>(
        &'a self,
        page: u64,
        extent: Frames,
        woken: &'a dyn Woken,
    ) -> LockedFolio<'a> {
        self.new_folio(Owner::Anon, page, extent, woken)
    }

    /// A new folio with the extent, uptodate and locked.
    pub(crate) fn new_folio<'a>(
        &'a self,
        owner: Owner,
        page: u64,
        extent: Frames,
        woken: &'a dyn Woken,
    ) -> LockedFolio<'a> {
        self.groups.folios.add();
        LockedFolio::new(Folio::filled(owner, page, extent), &self.waits, woken)
    }

    /// Frees the frames of a folio that no other thread can find any more and that is home.
    pub(crate) fn free_folio(&self, mut folio: LockedFolio<'_>) {
        folio.state.set(Flag::Dead);
        if let Some(extent) = folio.body_mut().extent.take() {
            self.free(extent);
        }
        self.forget_kept(&mut folio);
        self.groups.folios.remove();
    }

    /// Gives back what swap has of a locked folio.
    pub(crate) fn forget_kept(&self, folio: &mut LockedFolio<'_>) {
        for copy in folio.body_mut().kept.take_all() {
            self.swap.forget(copy.slot).into_iter().for_each(|frames| self.free(frames));
        }
    }

    /// Gives up a space's count of a swap slot.
    pub(crate) fn release_slot(&self, slot: u64) {
        self.take_released(self.swap.release(slot));
    }

    /// Takes back the frames and the charge that a swap slot has given up.
    pub(crate) fn take_released(&self, released: Released) {
        released.frames.into_iter().for_each(|frames| self.free(frames));
        released.group.into_iter().for_each(|group| self.groups.uncharge_swap(group, 1));
    }

    /// What hands the faults that have waited for a folio's lock to a handler. For threads that are not
    /// handlers.
    pub(crate) fn handlers(&self) -> &dyn Woken {
        self
    }

    /// Locks a folio, waiting until it can. Not for handlers.
    #[track_caller]
    pub(crate) fn lock(&self, folio: &Arc<Folio>) -> LockedFolio<'_> {
        self.waits.lock(folio, self)
    }

    /// Waits for the changes of a space's layout that are under way, and keeps new ones from beginning,
    /// except for those that take free addresses. Not for handlers, nor for a thread that has begun a
    /// change.
    ///
    /// A change that is under way may wait for a thread that has to make another one first. So each time
    /// that this has waited in vain, it lets changes begin for [`STILL_PATIENCE`], and then keeps them
    /// waiting for twice as long as before: changes that follow each other cannot keep it from its moment.
    /// `None`: there was no such moment within [`STILL_BOUND`].
    #[track_caller]
    pub(crate) fn keep_still<'m>(&self, mm: &'m Mm) -> Option<Still<'m>> {
        let deadline = Instant::now() + STILL_BOUND;
        let mut patience = STILL_PATIENCE;
        loop {
            let until = Instant::now() + patience;
            mm.write().still_wanted += 1;
            let still = Still(mm);
            loop {
                let mut layout = mm.write();
                if layout.changing.is_empty() {
                    return Some(still);
                }
                let gate = layout.gate();
                drop(layout);
                let now = Instant::now();
                if now >= until {
                    break;
                }
                gate.wait(&self.locks, until.saturating_duration_since(now).min(CHANGE_LOOK));
            }
            // The change that is under way waits for something, perhaps for a thread that has to make a
            // change first.
            drop(still);
            if Instant::now() > deadline {
                return None;
            }
            pause(Cause::Contended, STILL_PATIENCE);
            patience = (2 * patience).min(STILL_PATIENCE_MOST);
        }
    }

    /// A space's layout lock, at a moment when nothing of it is being changed.
    #[track_caller]
    pub(crate) fn still_layout<'m>(&self, mm: &'m Mm) -> Option<Layout<'m>> {
        loop {
            let still = self.keep_still(mm)?;
            let mut layout = mm.write();
            // From here on the lock keeps changes from beginning, as `still` did.
            let gate = Still::end(&mut layout);
            std::mem::forget(still);
            if let Some(gate) = gate {
                gate.open();
            }
            if layout.changing.is_empty() {
                return Some(layout);
            }
        }
    }

    /// Hands faults that became ready to a handler. For threads that are not handlers.
    pub(crate) fn dispatch(&self, ready: Vec<Parked>) {
        if !ready.is_empty() {
            self.inboxes.post(Job::Retry(ready));
        }
    }

    /// Rests while a fork is made, if one is wanted. For a thread that works by itself and has nothing in
    /// hand.
    pub(crate) fn rest_if_wanted(&self) {
        if self.quiet.is_wanted(Rester::Helper) {
            self.quiet.rest(Rester::Helper);
        }
    }

    /// The most pages one read of a group's file may take now, a power of two: if all the faults that wait
    /// for I/O, and one more, took as many, they would take half of the arena, or of what the group may have.
    /// Faults that came when few waited may have taken more.
    pub(crate) fn read_cap(&self, group: GroupId) -> u64 {
        let waiting = self.groups.waiting() as u64 + 1;
        let frames = self.mmu.populated_frames().max(self.tuning().early_read_frames).min(self.mmu.frames());
        let (frames, _) = limit_of(&self.groups, group, frames as u64);
        let cap = (frames / (self.tuning().waiting_share * waiting)).max(1);
        1 << cap.ilog2()
    }

    /// Whether at least 1/`one_in` of the budget is free. A guess. Of the budget of a run what the run has
    /// left counts, too.
    pub(crate) fn has_free(&self, one_in: usize) -> bool {
        self.mmu.has_free(one_in, self.config.member.as_ref().map_or(0, |member| member.room()))
    }

    /// How many pages may be read at a fault, in a file of so many pages that belongs to a group.
    pub(crate) fn read_room(&self, group: GroupId, file_pages: u64) -> ReadRoom {
        let frames = self.mmu.frames() as u64;
        // A group that is full reclaims its own pages, however much memory the others leave.
        let (most, group_is_free) = limit_of(&self.groups, group, frames);
        let is_free = match &self.config.member {
            Some(member) => (member.room() + self.mmu.frames_at_hand()) as u64 > frames / 4,
            None => self.groups.charged_pages() < frames / 4 * 3,
        };
        let is_free = is_free && group_is_free && file_pages / 4 <= most;
        let free = if is_free { self.tuning().free_read_pages } else { 1 };
        ReadRoom { most: self.read_cap(group), free }
    }

    /// Bytes of frames and of what describes pages, at their most. For the process of a run: what it had of
    /// the run's budget.
    pub(crate) fn peak_bytes(&self) -> u64 {
        match &self.config.member {
            Some(member) => (member.peak() * PAGE_SIZE) as u64,
            None => self.bytes_with(self.mmu.populated_frames()),
        }
    }

    /// Bytes of frames that are in use now, and of what describes pages.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.bytes_with(self.mmu.populated_frames().saturating_sub(self.mmu.frames_at_hand()))
    }

    /// Bytes of so many frames, and of what describes pages.
    fn bytes_with(&self, frames: usize) -> u64 {
        (frames * PAGE_SIZE + self.mmu.metadata_bytes()) as u64 + self.described_bytes()
    }

    /// Bytes of what describes pages. It never shrinks: what is free is kept for the next pages.
    fn described_bytes(&self) -> u64 {
        // The folio, its entry in a list, its places in the index, and what the allocator adds.
        const FOLIO_BYTES: usize = size_of::<Folio>() + 96;
        let folios = self.groups.folios.most() * FOLIO_BYTES;
        // The process of a run has addresses for the whole budget, and uses a part.
        let most = self.config.member.as_ref().map_or(usize::MAX, |member| member.peak());
        let frames = self.mmu.frames().min(most) * FRAME_BYTES;
        (folios + frames) as u64 + self.swap.described() * SLOT_BYTES
    }

    /// How many frames more the arena should give up for what describes pages, and for the soft MMU's
    /// tables. Of tables that are more than an eighth of the arena the rest comes on top of the budget:
    /// their number depends on the spaces that the program makes.
    pub(crate) fn owed_frames(&self) -> usize {
        if cfg!(shuttle) {
            return 0;
        }
        let described = (self.described_bytes() / PAGE_SIZE as u64) as usize;
        let tables = (self.mmu.metadata_bytes() / PAGE_SIZE).min(self.mmu.frames() / 8);
        (described + tables).saturating_sub(self.mmu.allowance().withheld())
    }

    /// Has the arena give up the frames that it owes ([`Core::owed_frames`]), at most `most`, and only free
    /// ones. The process of a run takes as many pages from the run, if that has them: the arena gives up
    /// addresses only, of which each process has enough for all of the budget.
    pub(crate) fn pay_frames(&self, most: usize) {
        let owed = self.owed_frames().min(most);
        if owed == 0 {
            return;
        }
        let paid = match &self.config.member {
            Some(member) if !member.take(owed) => self.mmu.allowance().give(owed),
            _ => owed,
        };
        let withheld = self.mmu.allowance().withhold(paid);
        if let Some(member) = &self.config.member {
            member.give(paid - withheld);
            member.note_paid(withheld);
        }
    }
}
