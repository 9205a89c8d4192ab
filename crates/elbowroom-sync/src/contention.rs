//! Who takes which lock where, how long they wait for it, and how long they have it.
//!
//! Linux: `perf lock contention`, with `mmap_lock`'s tracepoints; here without root, and for one manager. A
//! [`LockStats`] has a table of call sites (`#[track_caller]`): what is taken, in which [`Mode`], where. A
//! site that has no room is counted with others of the same lock and mode, so that sums stay right.
//! Neighbours: `lock` and `layout_lock`, which report here by themselves; folios and gates, which are the
//! manager's and report by [`LockStats::took`] and [`LockStats::begin_wait`]. `snapshot` reads the table.
//!
//! # What it costs
//! * Who need not wait counts by lock and mode, in a row of its own thread's ([`SparseCounters`]). It reads
//!   no clock.
//! * Who waits reads the clock twice, finds its call site, and adds to memory that all share who wait there.
//! * To find the call site of each acquisition, and to measure how long it has its lock, costs more than most
//!   locks. So that is done on demand only ([`LockStats::count_in_detail`]).
//!
//! Synchronization: relaxed atomics. Statistics order nothing. Not the facade's: under a model checker
//! nothing is counted at all, so that models are neither slower nor different.

mod prometheus;
mod snapshot;

use crate::counter::SparseCounters;
use crate::{Arc, Histogram, HistogramSnapshot, Lines, LockClass, OnceLock};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use snapshot::{LockRow, LockSnapshot};

/// Nothing is counted.
const MODEL: bool = cfg!(any(loom, shuttle));

/// How many call sites a table has room for: three times as many as there are.
const SITES: usize = if MODEL { 2 } else { 512 };
/// How many entries a call site may be looked for in.
const PROBES: usize = 16;
/// Entries for acquisitions whose call site is not counted or has no room, one for each lock and mode.
const REST: usize = Awaited::COUNT * Mode::ALL.len();

/// The bounds between the decades of a histogram of waits, in nanoseconds: 1 us to 1 s.
pub const DECADES_NS: [u64; 7] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000];

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Awaited {
    /// A lock that has a class.
    Lock(LockClass),
    /// The lock of a folio that no device has. Linux: `folio_lock`.
    Folio,
    /// The lock of a folio that is being read or written back: what is waited for is the device.
    FolioIo,
    /// The readers inside a VMA, by who takes it out. Linux: `vma_start_write`, `vma_mark_detached`.
    Vma,
    /// The end of another thread's change of a layout.
    Change,
}

impl Awaited {
    /// How many there are.
    const COUNT: usize = LockClass::ALL.len() + 4;

    /// All of them, locks with a class first.
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
    /// Together with other readers.
    Read,
    /// Alone. A mutex is.
    Write,
}

impl Mode {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Read, Self::Write];

    /// `read` or `write`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Which entry of `REST` counts a lock and mode where the site is not known or has no room.
#[inline]
fn rest_of(what: Awaited, mode: Mode) -> usize {
    what.number() * Mode::ALL.len() + mode as usize
}

/// Something that somebody does somewhere.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    what: Awaited,
    mode: Mode,
    caller: &'static Location<'static>,
}

impl Place {
    /// What tells it from all others. Never 0. The same line may have several keys, if the compiler has put
    /// its location into the program more than once; readers put these together.
    #[inline]
    fn key(self) -> u64 {
        // Addresses have 47 bits, and `rest_of` has six.
        std::ptr::from_ref(self.caller).addr() as u64 ^ (rest_of(self.what, self.mode) as u64) << 48
    }
}

/// The first entry to look for a key in, counted from the end of `REST`.
#[inline]
fn home_of(key: u64) -> usize {
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % SITES
}

/// What is known of one call site, besides how often it takes its lock.
struct Entry {
    /// Of its place; 0: nobody's. Set once.
    key: AtomicU64,
    /// Set after the key, once.
    place: OnceLock<Place>,
    /// Made when somebody waits here, or has a hold measured.
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

/// What is counted of all locks.
struct Counts {
    /// Acquisitions are counted by call site, and their holds measured.
    in_detail: AtomicBool,
    /// The `REST`, then a hash table with open addressing from which nothing is ever taken.
    entries: Box<[Entry]>,
    acquisitions: SparseCounters<{ REST + SITES }>,
    /// Waits of the classes, finer than by decades. Made when somebody waits.
    waits: [OnceLock<Box<Histogram>>; LockClass::ALL.len()],
    /// When holds are measured from.
    origin: Instant,
    /// Is told of waits.
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

/// What the locks of one class have seen, in all modes and at all call sites.
#[derive(Debug, Clone)]
pub struct ClassStats {
    /// Which class.
    pub class: LockClass,
    /// How often a lock of it was taken.
    pub acquisitions: u64,
    /// How often its taker found it taken, and waited, be it for a few turns of a loop.
    pub contended: u64,
    /// Sum of the waits, in nanoseconds.
    pub wait_ns: u64,
    /// The waits.
    pub waits: HistogramSnapshot,
}

/// A wait that has begun: for [`LockStats::end_wait`]. One that is dropped was for nothing, and is not
/// counted.
#[derive(Clone, Copy)]
pub struct Wait {
    place: Place,
    /// None in models.
    since: Option<Instant>,
}

/// A lock that somebody has: when its hold began, in 48 bits of nanoseconds, and the call site, in those
/// above. 0: it is not measured.
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

    /// Has `tell` told of each wait for a lock or a VMA when it ends, by the thread that has waited, perhaps
    /// with the lock: of its call site ([`LockStats::call_site`]), and how long it was. Only the first one
    /// that asks is told. It must not take locks.
    pub fn watch(&self, tell: impl Fn(usize, Duration) + Send + Sync + 'static) {
        let _ = self.0.watcher.set(Box::new(tell));
    }

    /// What is waited for at the call site with this number, and where that is; `None`: several that have no
    /// room in the table.
    pub fn call_site(&self, number: usize) -> Option<(Awaited, &'static Location<'static>)> {
        let place = self.0.entries.get(number)?.place.get()?;
        Some((place.what, place.caller))
    }

    /// Counts acquisitions by call site from now on, not only waits, and measures how long each has its lock.
    /// Each then reads the clock twice.
    pub fn count_in_detail(&self) {
        self.0.in_detail.store(true, Ordering::Relaxed);
    }

    /// Counts that the caller has taken something.
    #[inline]
    #[track_caller]
    pub fn took(&self, what: Awaited, mode: Mode) {
        if !MODEL {
            let in_detail = self.0.in_detail.load(Ordering::Relaxed);
            let site = if in_detail {
                self.site(Place { what, mode, caller: Location::caller() })
            } else {
                rest_of(what, mode)
            };
            self.0.acquisitions.count(site);
        }
    }

    /// The caller has found something taken, and waits for it from now on.
    #[track_caller]
    pub fn begin_wait(&self, what: Awaited, mode: Mode) -> Wait {
        self.begin_wait_at(what, mode, Location::caller())
    }

    pub(crate) fn begin_wait_at(
        &self,
        what: Awaited,
        mode: Mode,
        caller: &'static Location<'static>,
    ) -> Wait {
        Wait { place: Place { what, mode, caller }, since: (!MODEL).then(Instant::now) }
    }

    /// The wait is over, whether or not with success.
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
        // The others end on another thread, perhaps.
        if let (Awaited::Lock(_) | Awaited::Vma, Some(tell)) = (wait.place.what, self.0.watcher.get()) {
            tell(site, waited);
        }
    }

    /// A lock of `class` was taken by `caller`.
    #[inline]
    pub(crate) fn acquired(&self, class: LockClass, mode: Mode, caller: &'static Location<'static>) -> Hold {
        if MODEL {
            return Hold::default();
        }
        let what = Awaited::Lock(class);
        if self.0.in_detail.load(Ordering::Relaxed) {
            return self.acquired_in_detail(Place { what, mode, caller });
        }
        self.0.acquisitions.count(rest_of(what, mode));
        Hold::default()
    }

    #[cold]
    fn acquired_in_detail(&self, place: Place) -> Hold {
        let site = self.site(place);
        self.0.acquisitions.count(site);
        self.0.begin_hold(site)
    }

    /// The lock is about to be let go.
    #[cold]
    pub(crate) fn end_hold(&self, hold: Hold) {
        let (site, since) = ((hold.0 >> HOLD_BITS) as usize, hold.0 & HOLD_NS);
        let held_ns = self.0.now().wrapping_sub(since) & HOLD_NS;
        let times = self.0.times(site);
        times.holds.fetch_add(1, Ordering::Relaxed);
        times.hold_ns.fetch_add(held_ns, Ordering::Relaxed);
        raise(&times.max_hold_ns, held_ns);
    }

    /// A hold that ended has begun again.
    #[cold]
    pub(crate) fn resume_hold(&self, hold: Hold) -> Hold {
        self.0.begin_hold((hold.0 >> HOLD_BITS) as usize)
    }

    /// What the locks of `class` have seen so far.
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

    /// What all locks have seen so far. Not of one moment: what is counted meanwhile may or may not be in it.
    pub fn snapshot(&self) -> LockSnapshot {
        snapshot::take(&self.0)
    }

    /// The number of the entry that counts `place`.
    fn site(&self, place: Place) -> usize {
        let key = place.key();
        let home = REST + home_of(key);
        let entry = &self.0.entries[home];
        if entry.key.load(Ordering::Relaxed) == key { home } else { self.0.find(place) }
    }
}

impl Counts {
    /// The same for a place that is not in the entry where it is looked for first. One in six or so is in a
    /// later one, for good, so this is not only for the first time.
    fn find(&self, place: Place) -> usize {
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
        rest_of(place.what, place.mode)
    }

    /// Gives an entry that was nobody's to a place; the key that it has then.
    #[cold]
    fn settle(&self, site: usize, key: u64, place: Place) -> u64 {
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

    /// Nanoseconds, cut to as many bits as a [`Hold`] has for them.
    fn now(&self) -> u64 {
        let elapsed: Duration = self.origin.elapsed();
        elapsed.as_nanos() as u64 & HOLD_NS
    }

    /// Never 0: a site with room has a number above 0; one without is not measured.
    #[cold]
    fn begin_hold(&self, site: usize) -> Hold {
        if site < REST { Hold::default() } else { Hold((site as u64) << HOLD_BITS | self.now()) }
    }
}

impl Hold {
    /// Whether [`LockStats::end_hold`] is wanted.
    #[inline]
    pub(crate) fn is_measured(self) -> bool {
        !MODEL && self.0 != 0
    }
}

/// Makes `most` at least `value`.
fn raise(most: &AtomicU64, value: u64) {
    // The maximum is a loop of its own, and seldom needed.
    if value > most.load(Ordering::Relaxed) {
        most.fetch_max(value, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
