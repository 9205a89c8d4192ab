//! Lock statistics: how often each lock is taken at which call site, how long threads wait for it, and how
//! long they hold it.
//!
//! Linux: `perf lock contention`, with `mmap_lock`'s tracepoints; here without root, and for one manager. A
//! [`LockStats`] has a table of call sites (`#[track_caller]`): which lock is taken, in which [`Mode`], and
//! the file and line. A call site for which the table has no room is counted together with others of the
//! same lock and mode, so that sums stay right. Acquisitions of the lock of the LRU lists are told apart by
//! what it is taken for, too ([`LruUse`]). Neighbours: `lock` and `layout_lock`, which report here by
//! themselves; folios and gates, which are the manager's and report by [`LockStats::took`] and
//! [`LockStats::begin_wait`]. `snapshot` reads the table.
//!
//! # What it costs
//! * An acquisition without a wait is counted by lock and mode, in the thread's own row
//!   ([`SparseCounters`]). It reads no clock.
//! * A thread that waits reads the clock twice, finds its call site, and adds to counters that all threads
//!   that wait there share.
//! * To find the call site of each acquisition, and to measure how long the lock is held, costs more than
//!   most locks. So that is done on demand only ([`LockStats::count_in_detail`]).
//!
//! Synchronization: relaxed atomics. Statistics order nothing. These are std's atomics, not the facade's:
//! under a model checker nothing is counted at all, so that models are neither slower nor different.

mod lru_use;
mod prometheus;
mod snapshot;

use crate::counter::SparseCounters;
use crate::{Arc, Histogram, HistogramSnapshot, Lines, LockClass, OnceLock};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use lru_use::{LruMutex, LruUse};
pub use snapshot::{LockRow, LockSnapshot};

/// Whether this is a build for a model checker, in which nothing is counted.
const MODEL: bool = cfg!(any(loom, shuttle));

/// How many call sites a table has room for: three times as many as there are.
const SITES: usize = if MODEL { 2 } else { 512 };
/// The most entries that are probed for a call site.
const PROBES: usize = 16;
/// How many locks and modes there are.
const LOCKS: usize = Awaited::COUNT * Mode::ALL.len();
/// Entries for acquisitions whose call site is not counted or has no room, one for each lock and mode, and
/// one for each use of the lock of the LRU lists.
const REST: usize = LOCKS + LruUse::ALL.len();

/// The bounds between the decades of a histogram of waits, in nanoseconds: 1 us to 1 s.
pub const DECADES_NS: [u64; 7] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];

/// What a thread waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Awaited {
    /// A lock that has a class.
    Lock(LockClass),
    /// The lock of a folio that is neither being read nor written back. Linux: `folio_lock`.
    Folio,
    /// The lock of a folio that is being read or written back: the wait is for the device.
    FolioIo,
    /// The readers inside a VMA, for which a writer waits that removes the VMA. Linux: `vma_start_write`,
    /// `vma_mark_detached`.
    Vma,
    /// The end of another thread's change of a layout.
    Change,
}

impl Awaited {
    /// How many values there are.
    const COUNT: usize = LockClass::ALL.len() + 4;

    /// All values, locks with a class first.
    pub fn all() -> impl Iterator<Item = Self> {
        let others = [Self::Folio, Self::FolioIo, Self::Vma, Self::Change];
        LockClass::ALL.into_iter().map(Self::Lock).chain(others)
    }

    /// Its name in reports: that of the class, `folio`, `folio-io`, `vma` or `change`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lock(class) => class.name(),
            Self::Folio => "folio",
            Self::FolioIo => "folio-io",
            Self::Vma => "vma",
            Self::Change => "change",
        }
    }

    #[inline]
    fn number(self) -> usize {
        match self {
            Self::Lock(class) => class as usize,
            Self::Folio => LockClass::ALL.len(),
            Self::FolioIo => LockClass::ALL.len() + 1,
            Self::Vma => LockClass::ALL.len() + 2,
            Self::Change => LockClass::ALL.len() + 3,
        }
    }
}

/// How a lock is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// Shared with other readers.
    Read,
    /// Exclusively, as a mutex always is.
    Write,
}

impl Mode {
    /// Both modes.
    pub const ALL: [Self; 2] = [Self::Read, Self::Write];

    /// `read` or `write`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The entry of `REST` that counts a lock and mode, or a use of the lock of the LRU lists, for call sites
/// that are not counted, or have no room.
#[inline]
fn rest_of(what: Awaited, mode: Mode, lru_use: Option<LruUse>) -> usize {
    match lru_use {
        Some(lru_use) => LOCKS + lru_use as usize,
        None => what.number() * Mode::ALL.len() + mode as usize,
    }
}

/// A call site that takes a lock: which lock, in which mode, for what, and the location in the source.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct CallSite {
    what: Awaited,
    mode: Mode,
    /// Only of the lock of the LRU lists.
    lru_use: Option<LruUse>,
    caller: &'static Location<'static>,
}

impl CallSite {
    /// A number that identifies the call site. Never 0. The same line may have several keys, if the
    /// compiler has put its location into the program more than once; snapshots add these up.
    #[inline]
    fn key(self) -> u64 {
        // Addresses have 47 bits, and `rest_of` has six.
        std::ptr::from_ref(self.caller).addr() as u64 ^ (self.rest() as u64) << 48
    }

    /// See [`rest_of`].
    #[inline]
    fn rest(self) -> usize {
        rest_of(self.what, self.mode, self.lru_use)
    }
}

/// The first entry that is probed for a key, counted from the end of `REST`.
#[inline]
fn home_of(key: u64) -> usize {
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % SITES
}

/// The statistics of one call site, except its number of acquisitions.
struct Entry {
    /// The key of its place; 0: the entry is free. Set once.
    key: AtomicU64,
    /// Set after the key, once.
    place: OnceLock<CallSite>,
    /// Allocated when a thread first waits here, or has a hold measured.
    times: OnceLock<Box<Lines<Times>>>,
}

/// Waits and holds of one call site.
#[derive(Default)]
struct Times {
    /// Waits by decade.
    decades: [AtomicU64; DECADES_NS.len() + 1],
    wait_ns: AtomicU64,
    max_wait_ns: AtomicU64,
    holds: AtomicU64,
    hold_ns: AtomicU64,
    max_hold_ns: AtomicU64,
}

/// The statistics of all locks.
struct Counts {
    /// Whether acquisitions are counted by call site, and their holds measured.
    in_detail: AtomicBool,
    /// First the `REST` entries, then a hash table with open addressing from which no entry is ever
    /// removed.
    entries: Box<[Entry]>,
    acquisitions: SparseCounters<{ REST + SITES }>,
    /// Waits for the locks of each class, in finer steps than decades. Allocated when a thread first waits.
    waits: [OnceLock<Box<Histogram>>; LockClass::ALL.len()],
    /// The start of the clock that measures holds.
    origin: Instant,
    /// The function that is called at the end of each wait.
    watcher: OnceLock<Box<Watcher>>,
}

/// See [`LockStats::watch`].
type Watcher = dyn Fn(usize, Duration) + Send + Sync;

/// The lock statistics of one manager. Cloning shares them.
#[derive(Clone)]
pub struct LockStats(Arc<Counts>);

impl Default for LockStats {
    fn default() -> Self {
        Self::new()
    }
}

/// Statistics of the locks of one class, in all modes and at all call sites.
#[derive(Debug, Clone)]
pub struct ClassStats {
    /// Which class.
    pub class: LockClass,
    /// How often a lock of it was taken.
    pub acquisitions: u64,
    /// How often a thread found it taken and waited, even for a few turns of a loop.
    pub contended: u64,
    /// Sum of the waits, in nanoseconds.
    pub wait_ns: u64,
    /// The waits.
    pub waits: HistogramSnapshot,
}

/// The sum of the waits for each lock so far, at all call sites.
#[derive(Debug, Clone)]
pub struct WaitSums([u64; Awaited::COUNT]);

impl WaitSums {
    /// The sum of the waits for one lock, in nanoseconds.
    pub fn of(&self, what: Awaited) -> u64 {
        self.0[what.number()]
    }

    /// The lock with the longest sum of waits, and that sum in nanoseconds. `None`: no thread waited for any.
    /// Waits for the I/O of a folio do not count: they are waits for a device.
    pub fn most(&self) -> Option<(Awaited, u64)> {
        let locks = Awaited::all().filter(|what| *what != Awaited::FolioIo);
        let sums = locks.map(|what| (what, self.of(what)));
        sums.filter(|(_, wait_ns)| *wait_ns > 0).max_by_key(|(_, wait_ns)| *wait_ns)
    }
}

/// A wait that has begun, to be given to [`LockStats::end_wait`]. If it is dropped instead, it is not
/// counted.
#[derive(Clone, Copy)]
pub struct Wait {
    place: CallSite,
    /// None in models.
    since: Option<Instant>,
}

/// A lock that is held: the time at which the hold began, in the low 48 bits, in nanoseconds, and the
/// number of the call site in the bits above. 0: it is not measured.
#[derive(Clone, Copy, Default)]
pub(crate) struct Hold(u64);

const HOLD_BITS: u32 = 48;
const HOLD_NS: u64 = (1 << HOLD_BITS) - 1;

impl LockStats {
    /// Statistics at zero.
    pub fn new() -> Self {
        let entry = |_| Entry { key: AtomicU64::new(0), place: OnceLock::new(), times: OnceLock::new() };
        Self(Arc::new(Counts {
            in_detail: AtomicBool::new(false),
            entries: (0..REST + SITES).map(entry).collect(),
            acquisitions: SparseCounters::new(),
            waits: std::array::from_fn(|_| OnceLock::new()),
            origin: Instant::now(),
            watcher: OnceLock::new(),
        }))
    }

    /// Has `tell` called at the end of each wait for a lock or a VMA, by the thread that has waited, with
    /// the number of the call site ([`LockStats::call_site`]) and the length of the wait. The thread may
    /// hold the lock by then, so `tell` must not take locks. Only the first call of this method has an
    /// effect.
    pub fn watch(&self, tell: impl Fn(usize, Duration) + Send + Sync + 'static) {
        let _ = self.0.watcher.set(Box::new(tell));
    }

    /// What threads wait for at the call site with this number, and its location; `None`: the number stands
    /// for several call sites that have no room in the table.
    pub fn call_site(&self, number: usize) -> Option<(Awaited, &'static Location<'static>)> {
        let place = self.0.entries.get(number)?.place.get()?;
        Some((place.what, place.caller))
    }

    /// From now on counts acquisitions by call site, not only waits, and measures how long each lock is
    /// held. Each acquisition then reads the clock twice.
    pub fn count_in_detail(&self) {
        self.0.in_detail.store(true, Ordering::Relaxed);
    }

    /// Counts that the caller has taken a lock.
    #[inline]
    #[track_caller]
    pub fn took(&self, what: Awaited, mode: Mode) {
        if !MODEL {
            let in_detail = self.0.in_detail.load(Ordering::Relaxed);
            let place = CallSite { what, mode, lru_use: None, caller: Location::caller() };
            let site = if in_detail { self.site(place) } else { place.rest() };
            self.0.acquisitions.add(site, 1);
        }
    }

    /// Begins a wait: the caller has found the lock taken.
    #[track_caller]
    pub fn begin_wait(&self, what: Awaited, mode: Mode) -> Wait {
        self.begin_wait_at(what, mode, None, Location::caller())
    }

    pub(crate) fn begin_wait_at(
        &self,
        what: Awaited,
        mode: Mode,
        lru_use: Option<LruUse>,
        caller: &'static Location<'static>,
    ) -> Wait {
        Wait { place: CallSite { what, mode, lru_use, caller }, since: (!MODEL).then(Instant::now) }
    }

    /// Ends a wait and counts it, whether the caller has got the lock or not.
    pub fn end_wait(&self, wait: Wait) {
        let Some(since) = wait.since else { return };
        let waited = since.elapsed();
        let waited_ns = waited.as_nanos() as u64;
        let site = self.site(wait.place);
        let times = self.0.times(site);
        let decade = DECADES_NS.iter().take_while(|&&bound| bound <= waited_ns).count();
        times.decades[decade].fetch_add(1, Ordering::Relaxed);
        times.wait_ns.fetch_add(waited_ns, Ordering::Relaxed);
        raise(&times.max_wait_ns, waited_ns);
        if let Awaited::Lock(class) = wait.place.what {
            self.0.waits[class as usize].get_or_init(Box::default).record(waited_ns);
        }
        // Only these: other waits may end on another thread than the one that waited.
        if let (Awaited::Lock(_) | Awaited::Vma, Some(tell)) = (wait.place.what, self.0.watcher.get()) {
            tell(site, waited);
        }
    }

    /// A lock of `class` was taken by `caller`.
    #[inline]
    pub(crate) fn acquired(
        &self,
        class: LockClass,
        mode: Mode,
        lru_use: Option<LruUse>,
        caller: &'static Location<'static>,
    ) -> Hold {
        if MODEL {
            return Hold::default();
        }
        let place = CallSite { what: Awaited::Lock(class), mode, lru_use, caller };
        if self.0.in_detail.load(Ordering::Relaxed) {
            return self.acquired_in_detail(place);
        }
        self.0.acquisitions.add(place.rest(), 1);
        Hold::default()
    }

    #[cold]
    fn acquired_in_detail(&self, place: CallSite) -> Hold {
        let site = self.site(place);
        self.0.acquisitions.add(site, 1);
        self.0.begin_hold(site)
    }

    /// Ends a hold, just before the lock is released.
    #[cold]
    pub(crate) fn end_hold(&self, hold: Hold) {
        let (site, since) = ((hold.0 >> HOLD_BITS) as usize, hold.0 & HOLD_NS);
        let held_ns = self.0.now().wrapping_sub(since) & HOLD_NS;
        let times = self.0.times(site);
        times.holds.fetch_add(1, Ordering::Relaxed);
        times.hold_ns.fetch_add(held_ns, Ordering::Relaxed);
        raise(&times.max_hold_ns, held_ns);
    }

    /// Begins a hold again, at the same call site, after a wait for a condition.
    #[cold]
    pub(crate) fn resume_hold(&self, hold: Hold) -> Hold {
        self.0.begin_hold((hold.0 >> HOLD_BITS) as usize)
    }

    /// Statistics of the locks of `class` so far.
    pub fn class(&self, class: LockClass) -> ClassStats {
        let all = self.snapshot();
        let rows = || all.rows().iter().filter(|row| row.lock == Awaited::Lock(class));
        let waits = self.0.waits[class as usize].get().map(|waits| waits.snapshot());
        ClassStats {
            class,
            acquisitions: rows().map(|row| row.acquisitions).sum(),
            contended: rows().map(LockRow::contended).sum(),
            wait_ns: rows().map(|row| row.wait_ns).sum(),
            waits: waits.unwrap_or_else(|| Histogram::new().snapshot()),
        }
    }

    /// Statistics of all locks so far. Not an exact moment: events that are counted meanwhile may be
    /// missing.
    pub fn snapshot(&self) -> LockSnapshot {
        snapshot::take(&self.0)
    }

    /// The sum of the waits for each lock so far. Cheaper than [`LockStats::snapshot`]: it reads no counters
    /// of threads.
    pub fn wait_sums(&self) -> WaitSums {
        let mut sums = WaitSums([0; Awaited::COUNT]);
        for (site, entry) in self.0.entries.iter().enumerate() {
            let Some(times) = entry.times.get() else { continue };
            let number = match entry.place.get() {
                Some(place) => place.what.number(),
                None if site < LOCKS => site / Mode::ALL.len(),
                None if site < REST => Awaited::Lock(LockClass::Lru).number(),
                // A thread is just taking the entry.
                None => continue,
            };
            sums.0[number] += times.wait_ns.load(Ordering::Relaxed);
        }
        sums
    }

    /// The number of the entry that counts `place`.
    fn site(&self, place: CallSite) -> usize {
        let key = place.key();
        let home = REST + home_of(key);
        let entry = &self.0.entries[home];
        if entry.key.load(Ordering::Relaxed) == key { home } else { self.0.find(place) }
    }
}

impl Counts {
    /// [`LockStats::site`] for a place that is not in its first entry. About one in six places is in a
    /// later entry for good, so this is not only for first uses.
    fn find(&self, place: CallSite) -> usize {
        let key = place.key();
        for probe in 0..PROBES.min(SITES) {
            let site = REST + (home_of(key) + probe) % SITES;
            let mut seen = self.entries[site].key.load(Ordering::Relaxed);
            if seen == 0 {
                seen = self.settle(site, key, place);
            }
            if seen == key {
                return site;
            }
        }
        place.rest()
    }

    /// Tries to give a free entry to a place; returns the entry's key afterwards, which may be another
    /// place's.
    #[cold]
    fn settle(&self, site: usize, key: u64, place: CallSite) -> u64 {
        let entry = &self.entries[site];
        match entry.key.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                let _ = entry.place.set(place);
                key
            }
            Err(other) => other,
        }
    }

    fn times(&self, site: usize) -> &Times {
        self.entries[site].times.get_or_init(Box::default)
    }

    /// The time since `origin` in nanoseconds, cut to the bits that a [`Hold`] has for it.
    fn now(&self) -> u64 {
        let elapsed: Duration = self.origin.elapsed();
        elapsed.as_nanos() as u64 & HOLD_NS
    }

    /// The result is not 0 for a call site with an entry of its own, since its number is at least `REST`.
    /// Other call sites are not measured.
    #[cold]
    fn begin_hold(&self, site: usize) -> Hold {
        if site < REST { Hold::default() } else { Hold((site as u64) << HOLD_BITS | self.now()) }
    }
}

impl Hold {
    /// Whether the hold is measured, so that [`LockStats::end_hold`] must be called.
    #[inline]
    pub(crate) fn is_measured(self) -> bool {
        !MODEL && self.0 != 0
    }
}

/// Makes `most` at least `value`.
fn raise(most: &AtomicU64, value: u64) {
    // Checked first, because `fetch_max` is a loop, and seldom needed.
    if value > most.load(Ordering::Relaxed) {
        most.fetch_max(value, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
