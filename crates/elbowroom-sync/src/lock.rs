//! Locks with a class: counted in every build, checked for their order in debug builds.
//!
//! A class is a level in the lock order: a thread that holds a lock may only take locks of a later class. The
//! order is the order of [`LockClass`]'s variants; docs/locking.md says what each one guards.

use crate::{Arc, Counters, Histogram, HistogramSnapshot};
use std::ops::{Deref, DerefMut};
// Not the facade's: statistics order nothing, so a model need not branch on them.
use crate::time::{Duration, Instant};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a lock is for, outermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LockClass {
    /// The threads of a manager, for joining them.
    Threads,
    /// The table of spaces.
    Spaces,
    /// One space's layout: who has it may change which VMA is where. Linux: `mmap_lock`. Taken by a fault
    /// only after several lookups have failed.
    Layout,
    /// A part of the list of who maps a file. Linux: `i_mmap_rwsem`.
    FileMapping,
    /// The table of open file objects, by device and inode number.
    Objects,
    /// One file's store and size changes (truncation, growth).
    Resize,
    /// One file's page cache and dirty set. Linux: the xarray lock of `i_pages`.
    Cache,
    /// The index of the pages that belong to one space alone.
    Anon,
    /// The LRU lists. Linux: the `lruvec` lock.
    Lru,
    /// One bucket of the table of faults and threads that wait for a folio.
    Wait,
    /// The homes that are to be emptied together.
    Homes,
    /// The record of what the kernel's layout of a window really is; the structure of the soft MMU's page
    /// tables.
    Window,
    /// One table of pages of the soft MMU. Linux: the page-table lock of a PTE table.
    PageTable,
    /// The frame allocator.
    Frames,
    /// A queue of work for another thread.
    Queue,
    /// The table of access streams, for readahead.
    Streams,
    /// The submission side of an I/O engine.
    Io,
}

impl LockClass {
    /// All classes, outermost first.
    pub const ALL: [LockClass; 17] = [
        LockClass::Threads,
        LockClass::Spaces,
        LockClass::Layout,
        LockClass::FileMapping,
        LockClass::Objects,
        LockClass::Resize,
        LockClass::Cache,
        LockClass::Anon,
        LockClass::Lru,
        LockClass::Wait,
        LockClass::Homes,
        LockClass::Window,
        LockClass::PageTable,
        LockClass::Frames,
        LockClass::Queue,
        LockClass::Streams,
        LockClass::Io,
    ];

    /// The class's name as reports and docs/locking.md give it.
    pub fn name(self) -> &'static str {
        match self {
            LockClass::Threads => "threads",
            LockClass::Spaces => "spaces",
            LockClass::Layout => "layout",
            LockClass::FileMapping => "file-mapping",
            LockClass::Objects => "objects",
            LockClass::Resize => "resize",
            LockClass::Cache => "cache",
            LockClass::Anon => "anon",
            LockClass::Lru => "lru",
            LockClass::Wait => "wait",
            LockClass::Homes => "homes",
            LockClass::Window => "window",
            LockClass::PageTable => "page-table",
            LockClass::Frames => "frames",
            LockClass::Queue => "queue",
            LockClass::Streams => "streams",
            LockClass::Io => "io",
        }
    }
}

/// What the takers of one class have waited.
#[derive(Default)]
struct Waits {
    contended: AtomicU64,
    wait_ns: AtomicU64,
    waits: Histogram,
}

/// What is counted of all classes.
#[derive(Default)]
struct Counts {
    acquisitions: Counters<{ LockClass::ALL.len() }>,
    waits: [Waits; LockClass::ALL.len()],
}

/// The lock statistics of one manager. Cloning shares them.
#[derive(Clone, Default)]
pub struct LockStats(Arc<Counts>);

/// What the locks of one class have seen.
#[derive(Debug, Clone)]
pub struct ClassStats {
    /// Which class.
    pub class: LockClass,
    /// How often a lock of it was taken.
    pub acquisitions: u64,
    /// How often its taker had to wait.
    pub contended: u64,
    /// Sum of the waits, in nanoseconds.
    pub wait_ns: u64,
    /// The waits.
    pub waits: HistogramSnapshot,
}

impl LockStats {
    /// Statistics at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// A lock of `class` around `value`, counted here.
    pub fn mutex<T>(&self, class: LockClass, value: T) -> Mutex<T> {
        Mutex { class, stats: Some(self.clone()), inner: sys::Mutex::new(value) }
    }

    /// A lock of `class` is being taken.
    #[inline]
    pub(crate) fn acquired(&self, class: LockClass) {
        self.0.acquisitions.add(class as usize, 1);
    }

    /// Its taker has waited since `start`.
    pub(crate) fn waited(&self, class: LockClass, start: Instant) {
        let waited_ns = start.elapsed().as_nanos() as u64;
        let waits = &self.0.waits[class as usize];
        waits.contended.fetch_add(1, Ordering::Relaxed);
        waits.wait_ns.fetch_add(waited_ns, Ordering::Relaxed);
        waits.waits.record(waited_ns);
    }

    /// What the locks of `class` have seen so far.
    pub fn class(&self, class: LockClass) -> ClassStats {
        let waits = &self.0.waits[class as usize];
        ClassStats {
            class,
            acquisitions: self.0.acquisitions.get(class as usize),
            contended: waits.contended.load(Ordering::Relaxed),
            wait_ns: waits.wait_ns.load(Ordering::Relaxed),
            waits: waits.waits.snapshot(),
        }
    }
}

/// The mutex and the condition variable underneath, without a class.
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync as sys;

#[cfg(loom)]
pub(crate) use loom::sync as sys;

#[cfg(shuttle)]
pub(crate) use shuttle::sync as sys;

/// A mutual-exclusion lock of a class. A panic while it is held does not poison it.
pub struct Mutex<T> {
    class: LockClass,
    /// None if nobody counts.
    stats: Option<LockStats>,
    inner: sys::Mutex<T>,
}

impl<T> Mutex<T> {
    /// A lock that is counted nowhere: for what there are many of, and what nobody waits for.
    pub fn uncounted(class: LockClass, value: T) -> Self {
        Self { class, stats: None, inner: sys::Mutex::new(value) }
    }

    /// Takes the lock, waiting for it if need be.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a lock of the same or a later class.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        order::before_lock(self.class);
        if let Some(stats) = &self.stats {
            stats.acquired(self.class);
        }
        let guard = match self.inner.try_lock() {
            Ok(guard) => guard,
            Err(_) => {
                let start = self.stats.as_ref().map(|stats| (stats, Instant::now()));
                let guard = match self.inner.lock() {
                    Ok(guard) => guard,
                    Err(poisoned) => poisoned.into_inner(),
                };
                if let Some((stats, start)) = start {
                    stats.waited(self.class, start);
                }
                guard
            }
        };
        order::locked(self.class);
        MutexGuard { guard: Some(guard), class: self.class }
    }
}

/// The right to use what a [`Mutex`] guards.
pub struct MutexGuard<'a, T> {
    /// Some except inside [`Condvar::wait_timeout`].
    guard: Option<sys::MutexGuard<'a, T>>,
    class: LockClass,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.guard.as_deref().expect("the guard holds its lock")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_deref_mut().expect("the guard holds its lock")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        order::unlocked(self.class);
    }
}

/// A condition to wait for under a [`Mutex`].
#[derive(Default)]
pub struct Condvar(sys::Condvar);

impl Condvar {
    /// A condition nobody waits for.
    pub fn new() -> Self {
        Self(sys::Condvar::new())
    }

    /// Waits until notified, at most `bound`; may wake without cause, so the caller checks its condition
    /// again.
    pub fn wait_timeout<T>(&self, guard: &mut MutexGuard<'_, T>, bound: Duration) {
        order::unlocked(guard.class);
        crate::may_block();
        order::locked(guard.class);
        let inner = guard.guard.take().expect("the guard holds its lock");
        let inner = match self.0.wait_timeout(inner, bound) {
            Ok((inner, _)) => inner,
            Err(poisoned) => poisoned.into_inner().0,
        };
        guard.guard = Some(inner);
    }

    /// Wakes everybody who waits.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// The order check: a stack of held classes per thread, in debug builds only.
pub(crate) mod order {
    use super::LockClass;

    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    std::thread_local! {
        static HELD: std::cell::RefCell<Vec<LockClass>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    pub(crate) fn before_lock(class: LockClass) {
        #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
        HELD.with_borrow(|held| {
            if let Some(inner) = held.iter().copied().max()
                && inner >= class
            {
                panic!("lock order: {} is taken while {} is held", class.name(), inner.name());
            }
        });
        let _ = class;
    }

    pub(crate) fn locked(class: LockClass) {
        #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
        HELD.with_borrow_mut(|held| held.push(class));
        let _ = class;
    }

    /// Whether what is held may be held for long.
    #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
    #[track_caller]
    pub(crate) fn may_block() {
        const LONG: [LockClass; 3] = [LockClass::Threads, LockClass::Objects, LockClass::Resize];
        HELD.with_borrow(|held| {
            if let Some(short) = held.iter().find(|class| !LONG.contains(class)) {
                panic!("a thread may block with {} held", short.name());
            }
        });
    }

    pub(crate) fn unlocked(class: LockClass) {
        #[cfg(all(debug_assertions, not(any(loom, shuttle))))]
        HELD.with_borrow_mut(|held| {
            if let Some(at) = held.iter().rposition(|&c| c == class) {
                held.remove(at);
            }
        });
        let _ = class;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_classes_is_the_order_of_the_table() {
        assert!(LockClass::ALL.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "lock order: layout is taken while cache is held")]
    fn a_wrong_order_panics() {
        let stats = LockStats::new();
        let (inner, outer) = (stats.mutex(LockClass::Cache, ()), stats.mutex(LockClass::Layout, ()));
        let _inner = inner.lock();
        let _outer = outer.lock();
    }

    #[test]
    fn acquisitions_and_waits_are_counted() {
        // A thread may lose its processor between the count and the lock, and then does not wait.
        let mut tries = (0..20).map(|_| lock_in_turn());
        let seen = tries.find(|seen| seen.contended > 0 && seen.wait_ns > 1_000_000);
        assert!(seen.as_ref().is_some_and(|seen| (seen.contended, seen.waits.count()) == (1, 1)), "{seen:?}");
    }

    /// What is counted while another thread locks what this one holds for 20 ms after that.
    fn lock_in_turn() -> ClassStats {
        let stats = LockStats::new();
        let lock = stats.mutex(LockClass::Cache, 0);
        std::thread::scope(|scope| {
            let mut held = lock.lock();
            scope.spawn(|| *lock.lock() += 1);
            while stats.class(LockClass::Cache).acquisitions < 2 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            *held += 1;
        });
        assert_eq!(*lock.lock(), 2);
        let seen = stats.class(LockClass::Cache);
        assert_eq!((seen.acquisitions, seen.contended), (3, seen.waits.count()));
        seen
    }
}
