//! What all parts of a manager share.
//!
//! Layers inside the manager, each using only what stands before it: `config, error, stats` < `page, pause` <
//! `object` < `vma, readahead, lru` < `platform` < `core` < `reclaim` < `writeback` < `fault` < `space` <
//! `manager`. The methods of [`Core`] are spread over these by what they do.

use crate::config::{
    CHANGE_LOOK, Config, GROW_AT_ONCE_FRAMES, STILL_BOUND, STILL_PATIENCE, STILL_PATIENCE_MOST, WAITING_SHARE,
};
use crate::lru::{Chances, Lru, Shadows};
use crate::object::{FileObject, ObjectTable};
use crate::page::{Beat, Folio, LockedFolio, Parked, Ready, WaitTable, Waiting, Woken};
use crate::pause::{Cause, Gate, pause};
use crate::platform::Platform;
use crate::readahead::Streams;
use crate::stats::Counters;
use crate::vma::{Layout, LayoutState, Mm};
use elbowroom_machine::{Mmu, PAGE_SHIFT, PAGE_SIZE};
use elbowroom_store::{Guards, Kicker};
use elbowroom_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use elbowroom_sync::epoch::{ArcCell, Guard, pin};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, Condvar, Lines, LockClass, LockStats, Mutex};
use std::ops::Range;

/// The shared state of one manager.
pub(crate) struct Core<P: Platform> {
    pub(crate) config: Config,
    pub(crate) mmu: P::Mmu,
    pub(crate) locks: LockStats,
    pub(crate) counters: Counters,
    pub(crate) waits: WaitTable,
    pub(crate) objects: ObjectTable,
    /// Who keeps files ours alone.
    pub(crate) guards: Option<Arc<Guards>>,
    pub(crate) lru: Mutex<Lru>,
    pub(crate) shadows: Shadows,
    pub(crate) chances: Chances,
    /// Whose turn it is to get a job.
    pub(crate) turn: AtomicUsize,
    /// How many accessors of soft spaces were made.
    pub(crate) cpus: AtomicU32,
    /// How many refaults came too late to be activated for that.
    pub(crate) late_refaults: AtomicU64,
    pub(crate) streams: Mutex<Streams>,
    pub(crate) spaces: SpaceTable,
    pub(crate) flush: FlushQueue,
    pub(crate) supply: Supply,
    /// What the watchdog sleeps at.
    pub(crate) watch: Supply,
    pub(crate) inboxes: Vec<Inbox>,
    /// Pages that differ from their file.
    pub(crate) dirty_pages: AtomicUsize,
    /// Faults that wait for I/O.
    pub(crate) waiting: AtomicUsize,
    /// Folios that have frames.
    pub(crate) folios: Lines<AtomicUsize>,
    pub(crate) folios_peak: Lines<AtomicUsize>,
    /// When faults began to wait for memory without any getting some, in nanoseconds since `born`; 0: none
    /// waits.
    pub(crate) starving_since: AtomicU64,
    pub(crate) born: Instant,
    /// When somebody last looked at the clock for a bound, and when the process last went on after it had
    /// been stopped; nanoseconds since `born`.
    pub(crate) alive: AtomicU64,
    pub(crate) resumed: AtomicU64,
    /// Counts the looks of whoever settles aliases.
    pub(crate) seconds: AtomicU32,
    pub(crate) stop: AtomicBool,
    /// Folios that left their caches without reclaim since the queues were last purged.
    pub(crate) dead: AtomicUsize,
}

/// The spaces, by the top 16 bits of their addresses. The process's own, with real pointers, is number 0.
pub(crate) struct SpaceTable {
    by_number: ArcCell<Vec<Option<Arc<Mm>>>>,
    changes: Mutex<u64>,
}

impl SpaceTable {
    pub(crate) fn new(locks: &LockStats) -> Self {
        Self { by_number: ArcCell::new(Arc::new(Vec::new())), changes: locks.mutex(LockClass::Spaces, 0) }
    }

    /// The space that has `addr`, for as long as the guard lives.
    pub(crate) fn at<'g>(&'g self, addr: usize, guard: &'g Guard) -> Option<&'g Arc<Mm>> {
        self.by_number.load(guard)?.get(number_of(addr))?.as_ref()
    }

    /// The space that has `addr`.
    pub(crate) fn of(&self, addr: usize) -> Option<Arc<Mm>> {
        self.at(addr, &pin()).cloned()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Mm>> {
        self.by_number.load(&pin()).into_iter().flatten().flatten().cloned().collect()
    }

    /// Replaces the table by a changed one. The caller has the lock of changes.
    fn change(&self, guard: &Guard, change: impl FnOnce(&mut Vec<Option<Arc<Mm>>>)) {
        let mut spaces = self.by_number.load(guard).cloned().unwrap_or_default();
        change(&mut spaces);
        self.by_number.store(Some(Arc::new(spaces)), guard);
        // The old table may be the last to have a space.
        guard.flush();
    }

    /// A new space that has the addresses with the top 16 bits of `addr`.
    pub(crate) fn add(&self, addr: usize, locks: &LockStats) -> Arc<Mm> {
        let mut serial = self.changes.lock();
        let guard = pin();
        *serial += 1;
        // The top bit keeps the numbers of spaces apart from those of objects.
        let mm = Arc::new(Mm::new(*serial | 1 << 63, locks));
        let number = number_of(addr);
        self.change(&guard, |spaces| {
            spaces.resize(spaces.len().max(number + 1), None);
            spaces[number] = Some(mm.clone());
        });
        // Before the guard, whose end drops the old table.
        drop(serial);
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
    /// Gives up one claim under the lock; what is to be opened then.
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

/// Work for the flusher.
pub(crate) struct FlushQueue {
    pub(crate) state: Mutex<FlushState>,
    pub(crate) changed: Condvar,
    /// Less is dirty again.
    pub(crate) relieved: Condvar,
}

#[derive(Default)]
pub(crate) struct FlushState {
    pub(crate) folios: Vec<(Arc<FileObject>, Arc<Folio>)>,
    /// Writers that wait for less to be dirty: where to wake, and until when at the latest.
    pub(crate) throttled: Vec<(Range<usize>, Instant)>,
    /// Something wants all that is dirty written soon.
    pub(crate) all: bool,
    /// Pages whose accesses were made to fail since there was no memory: there may be some later.
    pub(crate) refused: Vec<Range<usize>>,
}

/// The bell of a thread: of the one that keeps frames at hand, and of the watchdog.
pub(crate) struct Supply {
    /// It has rung since that thread looked last.
    asked: AtomicBool,
    sleeping: Mutex<()>,
    changed: Condvar,
}

impl Supply {
    pub(crate) fn new(locks: &LockStats) -> Self {
        let sleeping = locks.mutex(LockClass::Queue, ());
        Self { asked: AtomicBool::new(false), sleeping, changed: Condvar::new() }
    }

    /// Rings it.
    pub(crate) fn ask(&self) {
        // The look before the exchange spares those who ask again and again.
        if !self.asked.load(Ordering::Relaxed) && !self.asked.swap(true, Ordering::AcqRel) {
            // With the lock: the thread is either asleep, or has not looked yet.
            let _sleeping = self.sleeping.lock();
            self.changed.notify_all();
        }
    }

    /// Waits until it has rung, or for `bound`, or not at all once `stop` is set.
    pub(crate) fn wait(&self, stop: &AtomicBool, bound: Duration) {
        let mut sleeping = self.sleeping.lock();
        if !self.asked.load(Ordering::Acquire) && !stop.load(Ordering::Acquire) {
            self.changed.wait_timeout(&mut sleeping, bound);
        }
        self.asked.store(false, Ordering::Release);
    }
}

/// Work for one handler thread.
pub(crate) struct Inbox {
    pub(crate) kicker: Kicker,
    pub(crate) jobs: Mutex<Vec<Job>>,
    /// The faults that it tries again by itself.
    pub(crate) waiting: Mutex<Waiting>,
    pub(crate) beat: Lines<Beat>,
    /// The watchdog says that it does not get on: others do its work.
    pub(crate) stuck: AtomicBool,
}

impl Inbox {
    pub(crate) fn new(kicker: Kicker, locks: &LockStats) -> Self {
        Self {
            kicker,
            jobs: locks.mutex(LockClass::Queue, Vec::new()),
            waiting: locks.mutex(LockClass::Queue, Waiting::default()),
            beat: Lines::default(),
            stuck: AtomicBool::new(false),
        }
    }
}

/// What other threads ask of a handler.
pub(crate) enum Job {
    /// Run these faults again.
    Retry(Vec<Parked>),
    /// Read these pages of the file ahead.
    Prefetch(Arc<FileObject>, Range<u64>),
}

impl<P: Platform> Drop for Core<P> {
    fn drop(&mut self) {
        // The arena gives its memory back only if all of it is free. Nobody has a space of ours any more.
        let own = self.spaces.all().into_iter().flat_map(|mm| mm.anon.in_range(0..u64::MAX >> PAGE_SHIFT));
        let own: Vec<_> = own.map(|own| own.1).collect();
        let objects = self.objects.all().into_iter().chain(self.objects.unmapped.take());
        let cached = objects.flat_map(|object| object.folios_in(0..u64::MAX >> PAGE_SHIFT));
        let nobody = Ready::default();
        for folio in cached.chain(own) {
            // Nobody is left who could have locked it.
            let Ok(mut folio) = LockedFolio::try_lock(folio, &self.waits, &nobody) else { continue };
            if let Some(mut extent) = folio.body_mut().extent.take()
                && self.mmu.unmap(&mut extent).is_ok()
            {
                self.mmu.free(extent);
            }
        }
    }
}

/// For threads that are not handlers: a handler gets the faults.
impl<P: Platform> Woken for Core<P> {
    fn wake(&self, faults: Vec<Parked>) {
        self.dispatch(faults);
    }
}

impl<P: Platform> Core<P> {
    /// Takes a folio's lock, waiting for it. Not for handlers.
    pub(crate) fn lock(&self, folio: &Arc<Folio>) -> LockedFolio<'_> {
        self.waits.lock(folio.clone(), self)
    }

    /// Waits for the changes of a space's layout that are under way, and keeps others from beginning, but for
    /// taking free addresses. Not for handlers, nor for who has begun a change.
    ///
    /// Others have as long as before to begin changes, each time that this has waited without success, and
    /// are kept waiting for twice as long then: somebody whose change is under way may wait for another's. So
    /// changes that follow each other cannot keep this from its moment. `None`: there was none for
    /// [`STILL_BOUND`].
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
                gate.wait(until.saturating_duration_since(now).min(CHANGE_LOOK));
            }
            // What is under way waits for something, perhaps for somebody who has a change to make first.
            drop(still);
            if Instant::now() > deadline {
                return None;
            }
            pause(Cause::Contended, STILL_PATIENCE);
            patience = (2 * patience).min(STILL_PATIENCE_MOST);
        }
    }

    /// A space's layout lock, at a moment when nothing of it is being changed.
    pub(crate) fn still_layout<'m>(&self, mm: &'m Mm) -> Option<Layout<'m>> {
        loop {
            let still = self.keep_still(mm)?;
            let mut layout = mm.write();
            // The lock does from here on what it did.
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
            self.post(Job::Retry(ready));
        }
    }

    /// Gives a handler something to do.
    pub(crate) fn post(&self, job: Job) {
        let (turn, handlers) = (self.turn.fetch_add(1, Ordering::Relaxed), self.inboxes.len());
        let gets_on = |number: &usize| !self.inboxes[*number].stuck.load(Ordering::Relaxed);
        let first = turn % handlers;
        let handler =
            (first..first + handlers).map(|number| number % handlers).find(gets_on).unwrap_or(first);
        self.post_to(handler, job);
    }

    /// Gives one handler something to do.
    pub(crate) fn post_to(&self, handler: usize, job: Job) {
        let inbox = &self.inboxes[handler];
        inbox.jobs.lock().push(job);
        inbox.kicker.kick();
    }

    /// The most pages one read may take now, a power of two: as many as if all that wait, and one more, had a
    /// part of half of the arena. Those that came when few waited may have more.
    pub(crate) fn read_cap(&self) -> u64 {
        let waiting = self.waiting.load(Ordering::Relaxed) as u64 + 1;
        let frames = self.mmu.populated_frames().max(GROW_AT_ONCE_FRAMES).min(self.mmu.frames());
        let cap = (frames as u64 / (WAITING_SHARE * waiting)).max(1);
        1 << cap.ilog2()
    }

    /// For how long faults have waited for memory without any getting some.
    pub(crate) fn memory_wait(&self) -> Duration {
        match self.starving_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => self.born.elapsed().saturating_sub(Duration::from_nanos(since)),
        }
    }

    /// Bytes of frames and of what describes them, at their most.
    pub(crate) fn peak_bytes(&self) -> u64 {
        const FOLIO_BYTES: usize = size_of::<Folio>() + 96;
        let folios = self.folios_peak.load(Ordering::Relaxed) * FOLIO_BYTES;
        let tables = self.mmu.metadata_bytes() + self.mmu.frames() * 8;
        (self.mmu.populated_frames() * PAGE_SIZE + folios + tables) as u64
    }
}
