//! Locks with a class: counted in every build, checked for their order in debug builds.
//!
//! A class is a level in the lock order: a thread that holds a lock may only take locks of a later class. The
//! order is the order of [`LockClass`]'s variants; docs/locking.md says what each one guards.

use crate::contention::{Awaited, Hold, LockStats, LruUse, Mode};
use crate::time::Duration;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::sync::TryLockError;

/// What a lock is for, outermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LockClass {
    /// The threads of a manager, for joining them.
    Threads,
    /// The table of spaces.
    Spaces,
    /// Changes of the tree of memory groups. Linux: `cgroup_mutex`.
    Groups,
    /// One space's layout: which VMA is where. Linux: `mmap_lock`. Taken by a fault only after several
    /// lookups have failed.
    Layout,
    /// A part of the list of the mappings of a file. Linux: `i_mmap_rwsem`.
    FileMapping,
    /// The table of open file objects, by device and inode number.
    Objects,
    /// One file's store and size changes (truncation, growth).
    Resize,
    /// One file's page cache and dirty set. Linux: the xarray lock of `i_pages`.
    Cache,
    /// The index of the pages that belong to one space alone.
    Anon,
    /// The folios that one thread is to add to the LRU lists.
    LruBatch,
    /// The LRU lists. Linux: the `lruvec` lock.
    Lru,
    /// What it cost lately to reclaim from a group.
    Cost,
    /// One bucket of the table of faults and threads that wait for a folio.
    Wait,
    /// The list of homes that wait to be emptied together.
    Homes,
    /// The record of how the kernel's layout of a window differs from one mapping (denials); the structure
    /// of the soft MMU's page tables.
    Window,
    /// One table of pages of the soft MMU. Linux: the page-table lock of a PTE table.
    PageTable,
    /// The frame allocator.
    Frames,
    /// What threads leave for a handler thread: jobs, faults to be tried again.
    Inbox,
    /// What the flusher is to write, and how fast it writes.
    Flush,
    /// Objects that are not mapped any more.
    Unmapped,
    /// The guards of files, and the processes that want a guarded file.
    Guard,
    /// Where threads sleep until others ring, open or go on.
    Sleep,
    /// The pool and the file of swap: what is to leave the pool, and what is free.
    SwapFile,
    /// The log of translations that became invalid, of the soft MMU.
    Invalidation,
    /// The table of access streams, for readahead.
    Streams,
    /// The swap slots of pages that are out.
    Swap,
    /// Compressed pages of one size.
    Pool,
    /// The submission side of an I/O engine.
    Io,
    /// The pressure of one group.
    Pressure,
}

impl LockClass {
    /// All classes, outermost first.
    pub const ALL: [LockClass; 29] = [
        LockClass::Threads,
        LockClass::Spaces,
        LockClass::Groups,
        LockClass::Layout,
        LockClass::FileMapping,
        LockClass::Objects,
        LockClass::Resize,
        LockClass::Cache,
        LockClass::Anon,
        LockClass::LruBatch,
        LockClass::Lru,
        LockClass::Cost,
        LockClass::Wait,
        LockClass::Homes,
        LockClass::Window,
        LockClass::PageTable,
        LockClass::Frames,
        LockClass::Inbox,
        LockClass::Flush,
        LockClass::Unmapped,
        LockClass::Guard,
        LockClass::Sleep,
        LockClass::SwapFile,
        LockClass::Invalidation,
        LockClass::Streams,
        LockClass::Swap,
        LockClass::Pool,
        LockClass::Io,
        LockClass::Pressure,
    ];

    /// The class's name as reports and docs/locking.md give it.
    pub fn name(self) -> &'static str {
        match self {
            LockClass::Threads => "threads",
            LockClass::Spaces => "spaces",
            LockClass::Groups => "groups",
            LockClass::Layout => "layout",
            LockClass::FileMapping => "file-mapping",
            LockClass::Objects => "objects",
            LockClass::Resize => "resize",
            LockClass::Cache => "cache",
            LockClass::Anon => "anon",
            LockClass::LruBatch => "lru-batch",
            LockClass::Lru => "lru",
            LockClass::Cost => "cost",
            LockClass::Wait => "wait",
            LockClass::Homes => "homes",
            LockClass::Window => "window",
            LockClass::PageTable => "page-table",
            LockClass::Frames => "frames",
            LockClass::Inbox => "inbox",
            LockClass::Flush => "flush",
            LockClass::Unmapped => "unmapped",
            LockClass::Guard => "guard",
            LockClass::Sleep => "sleep",
            LockClass::SwapFile => "swap-file",
            LockClass::Invalidation => "invalidation",
            LockClass::Streams => "streams",
            LockClass::Swap => "swap",
            LockClass::Pool => "pool",
            LockClass::Io => "io",
            LockClass::Pressure => "pressure",
        }
    }
}

impl LockStats {
    /// A lock of `class` around `value`, counted in these statistics.
    pub fn mutex<T>(&self, class: LockClass, value: T) -> Mutex<T> {
        Mutex { class, stats: Some(self.clone()), inner: sys::Mutex::new(value) }
    }
}

/// The mutex and the condition variable underneath, without a class.
#[cfg(not(any(loom, shuttle)))]
pub(crate) use std::sync as sys;

#[cfg(loom)]
pub(crate) use loom::sync as sys;

#[cfg(shuttle)]
pub(crate) use shuttle::sync as sys;

/// A mutual-exclusion lock with a class. A panic while it is held does not poison it.
pub struct Mutex<T> {
    class: LockClass,
    /// None if the lock is not counted.
    stats: Option<LockStats>,
    inner: sys::Mutex<T>,
}

impl<T> Mutex<T> {
    /// A lock that is not counted: for locks of which there are many, or for which threads never wait.
    pub fn uncounted(class: LockClass, value: T) -> Self {
        Self { class, stats: None, inner: sys::Mutex::new(value) }
    }

    /// Takes the lock, waiting for it if need be.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a lock of the same or a later class.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.lock_for(None, Location::caller())
    }

    /// [`Mutex::lock`] by `caller`; what for is said of the lock of the LRU lists.
    #[inline]
    pub(crate) fn lock_for(
        &self,
        lru_use: Option<LruUse>,
        caller: &'static Location<'static>,
    ) -> MutexGuard<'_, T> {
        order::before_lock(self.class);
        let guard = match self.inner.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => self.wait(lru_use, caller),
        };
        order::locked(self.class);
        let hold = match &self.stats {
            Some(stats) => stats.acquired(self.class, Mode::Write, lru_use, caller),
            None => Hold::default(),
        };
        MutexGuard { guard: Some(guard), lock: self, hold }
    }

    /// Takes the lock if `try_lock` found it taken.
    #[cold]
    fn wait(&self, lru_use: Option<LruUse>, caller: &'static Location<'static>) -> sys::MutexGuard<'_, T> {
        let what = Awaited::Lock(self.class);
        let begin = |stats: &LockStats| stats.begin_wait_at(what, Mode::Write, lru_use, caller);
        let wait = self.stats.as_ref().map(|stats| (stats, begin(stats)));
        let guard = self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((stats, wait)) = wait {
            stats.end_wait(wait);
        }
        guard
    }

    /// Counts the end of a hold that is measured.
    #[cold]
    fn end_hold(&self, hold: Hold) {
        if let Some(stats) = &self.stats {
            stats.end_hold(hold);
        }
    }
}

/// The right to use the value of a [`Mutex`].
pub struct MutexGuard<'a, T> {
    /// Some except inside [`Condvar::wait_timeout`].
    guard: Option<sys::MutexGuard<'a, T>>,
    lock: &'a Mutex<T>,
    hold: Hold,
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
    #[inline]
    fn drop(&mut self) {
        order::unlocked(self.lock.class);
        if self.hold.is_measured() {
            self.lock.end_hold(self.hold);
        }
    }
}

/// A condition to wait for under a [`Mutex`].
#[derive(Default)]
pub struct Condvar(sys::Condvar);

impl Condvar {
    /// A condition without waiters.
    pub fn new() -> Self {
        Self(sys::Condvar::new())
    }

    /// Waits until notified, at most `bound`; may wake without cause, so the caller checks its condition
    /// again. Neither this wait nor the one for the lock after it is in the statistics.
    pub fn wait_timeout<T>(&self, guard: &mut MutexGuard<'_, T>, bound: Duration) {
        let lock = guard.lock;
        order::unlocked(lock.class);
        crate::may_block();
        order::locked(lock.class);
        if guard.hold.is_measured() {
            lock.end_hold(guard.hold);
        }
        let inner = guard.guard.take().expect("the guard holds its lock");
        let inner = match self.0.wait_timeout(inner, bound) {
            Ok((inner, _)) => inner,
            Err(poisoned) => poisoned.into_inner().0,
        };
        guard.guard = Some(inner);
        if guard.hold.is_measured()
            && let Some(stats) = &lock.stats
        {
            guard.hold = stats.resume_hold(guard.hold);
        }
    }

    /// Wakes all waiters.
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

    /// Panics if the thread holds a lock that must not be held for long.
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
}
