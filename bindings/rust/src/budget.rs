//! Budgets: what the manager of the process is started with, and memory groups of it.

use crate::house::{self, House, Settings};
use crate::map::MmapMut;
use crate::options::MmapOptions;
use crate::size::Size;
use elbowroom_manager::{Errno, GroupId, Limits, Stats};
use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The least limit of a budget, in bytes: what a few accesses at a time need.
const LEAST_LIMIT: u64 = 1 << 20;
/// The default swap of a budget is so many times its limit.
const SWAP_TIMES: u64 = 4;

/// How long a lower limit waits until enough is reclaimed, and the time between two attempts. Pages that a
/// fork shares, or that are being written, go a moment later.
const RECLAIM_BOUND: Duration = Duration::from_secs(2);
const RECLAIM_PAUSE: Duration = Duration::from_millis(10);

/// Bytes that all budgets have promised. A forked child has its parent's mappings, and so its promises.
static PROMISED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The budget of the innermost [`Budget::within`] of this thread.
    static CURRENT: RefCell<Option<Arc<Inner>>> = const { RefCell::new(None) };
}

/// What the one manager of the process is started with, before the first mapping starts it with the defaults.
///
/// What is given here is what all mappings and all budgets have together.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// elbowroom::Process::new().memory("256MiB").swap("64MiB").start()?;
/// let mut map = elbowroom::MmapMut::map_anon(1 << 20)?;
/// map[0] = 1;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "nothing happens before `start`"]
pub struct Process {
    memory: Option<Size>,
    swap: Option<Size>,
    swap_dir: Option<PathBuf>,
}

impl Process {
    /// The defaults: three quarters of the machine's memory, or of what the control group permits, and as
    /// much swap as /var/tmp has room for.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many bytes may be in memory, at least 16 MiB.
    pub fn memory(mut self, memory: impl Into<Size>) -> Self {
        self.memory = Some(memory.into());
        self
    }

    /// How many bytes of anonymous memory may be in the swap file beside these; 0: there is no swap file.
    pub fn swap(mut self, swap: impl Into<Size>) -> Self {
        self.swap = Some(swap.into());
        self
    }

    /// The directory in which the swap file is made, on a disk. The file has no name.
    pub fn swap_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.swap_dir = Some(directory.into());
        self
    }

    /// Starts the manager.
    ///
    /// # Errors
    /// AlreadyExists: it runs. InvalidInput: a size is none. Unsupported: what this machine lacks, and what
    /// to do about it.
    pub fn start(self) -> io::Result<()> {
        let bytes = |size: Option<Size>| size.map(|size| size.bytes()).transpose();
        let (memory, swap) = (bytes(self.memory)?, bytes(self.swap)?);
        house::start_with(Settings { memory, swap, swap_dir: self.swap_dir }).map(drop)
    }
}

/// The statistics of the manager of the process; `None`: it was not started yet.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let map = elbowroom::MmapMut::map_anon(1 << 20)?;
/// assert!(elbowroom::stats().is_some_and(|stats| stats.budget_bytes > 0));
/// # Ok(())
/// # }
/// ```
pub fn stats() -> Option<Stats> {
    house::started().map(|house| house.ask(|house| house.manager.stats()))
}

/// A group of the manager. Removed when the last budget, mapping and inner group of it is gone.
#[derive(Debug)]
pub struct Inner {
    id: GroupId,
    limit: AtomicU64,
    swap: u64,
    /// Bytes of anonymous mappings, here and in inner groups.
    promised: AtomicU64,
    outer: Option<Arc<Inner>>,
}

impl Inner {
    /// The group, for mappings.
    pub fn id(&self) -> GroupId {
        self.id
    }

    fn line(&self) -> impl Iterator<Item = &Inner> {
        std::iter::successors(Some(self), |budget| budget.outer.as_deref())
    }

    fn promise(&self, bytes: u64) -> io::Result<()> {
        for (nth, budget) in self.line().enumerate() {
            let room = budget.limit.load(Ordering::Relaxed).saturating_add(budget.swap);
            let add = |promised: u64| promised.checked_add(bytes).filter(|all| *all <= room);
            if let Err(promised) = budget.promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
                self.line().take(nth).for_each(|budget| budget.take_back(bytes));
                let (limit, swap) = (budget.limit.load(Ordering::Relaxed), budget.swap);
                return Err(out_of_memory(format!(
                    "{bytes} bytes do not fit into a budget of {limit} bytes of memory and {swap} of swap, \
                     of which {promised} are in use: give the budget more with Budget::with_swap, or map \
                     without a promise (no_reserve_swap)"
                )));
            }
        }
        Ok(())
    }

    fn take_back(&self, bytes: u64) {
        self.promised.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn limits(limit: u64, swap: u64) -> Limits {
        Limits { max: limit, swap_max: swap, ..Limits::default() }
    }
}

fn out_of_memory(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, text)
}

/// Promises so many bytes of anonymous memory, of a budget or of the whole process. All of them can be stored
/// to at the same time: memory that is promised, and then is not there, would end the process at an access.
///
/// # Errors
/// OutOfMemory: memory and swap of a budget, or those of the process, do not have so much.
pub fn promise(budget: Option<&Inner>, bytes: u64) -> io::Result<()> {
    if let Some(budget) = budget {
        budget.promise(bytes)?;
    }
    let Some(House { capacity, .. }) = house::started() else { return Ok(()) };
    let room = capacity.memory.saturating_add(capacity.swap);
    let add = |promised: u64| promised.checked_add(bytes).filter(|all| *all <= room);
    let Err(promised) = PROMISED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) else {
        return Ok(());
    };
    if let Some(budget) = budget {
        budget.line().for_each(|budget| budget.take_back(bytes));
    }
    let (memory, swap, dir) = (capacity.memory, capacity.swap, capacity.swap_dir.display());
    Err(out_of_memory(format!(
        "{bytes} bytes do not fit into the {memory} bytes of memory and {swap} of swap in {dir} that all \
         mappings of the process have together, of which {promised} are in use: make room there, or name \
         another directory with Process::swap_dir before the first mapping, or map without a promise \
         (no_reserve_swap)"
    )))
}

/// Undoes [`promise`].
pub fn end_promise(budget: Option<&Inner>, bytes: u64) {
    PROMISED.fetch_sub(bytes, Ordering::Relaxed);
    if let Some(budget) = budget {
        budget.line().for_each(|budget| budget.take_back(bytes));
    }
}

/// The budget of the innermost [`Budget::within`] of this thread.
pub fn current() -> Option<Arc<Inner>> {
    CURRENT.with_borrow(Clone::clone)
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(house) = house::started() else { return };
        let (id, outer) = (self.id, self.outer.take());
        let remove = move |house: &'static House| {
            let groups = house.manager.groups();
            // Pages of closed files that nobody maps. Without them the group's place is free at once.
            if let Ok(stats) = groups.stats(id) {
                let _ = groups.reclaim(id, stats.usage_bytes);
            }
            // An error would be a bug: the group has no inner ones, since they keep it.
            let removed = groups.remove(id);
            debug_assert!(removed.is_ok(), "{removed:?}");
            // Its group may be removed only after this one.
            drop(outer);
        };
        if house::is_worker() { remove(house) } else { drop(house.post(remove)) }
    }
}

/// A budget for mappings: together they never have more than its limit in memory. What does not fit is in
/// their files, and, if it is anonymous, in the swap file.
///
/// A mapping belongs to the budget that [`MmapOptions::budget`] names, else to that of the innermost
/// [`Budget::within`] of its thread, else to the whole process. A file that several mappings map is charged
/// to the budget of the first of them. Clones are the same budget, which is gone with the last of them and
/// its last mapping.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use elbowroom::{Budget, Mmap};
/// use std::fs::File;
///
/// let budget = Budget::with_memory("64MiB")?;
/// let file = File::open("Cargo.toml")?;
/// // SAFETY: nothing changes the file meanwhile.
/// let map = budget.within(|| unsafe { Mmap::map(&file) })?;
/// assert!(map.starts_with(b"[package]"));
/// assert!(budget.stats()?.usage_bytes <= 64 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Budget {
    inner: Arc<Inner>,
}

/// What a budget has, and had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BudgetStats {
    /// The limit, in bytes of memory.
    pub limit_bytes: u64,
    /// Bytes in memory.
    pub usage_bytes: u64,
    /// The most bytes that were in memory.
    pub peak_bytes: u64,
    /// The limit of swap, in bytes.
    pub swap_limit_bytes: u64,
    /// Bytes in the swap file.
    pub swap_bytes: u64,
    /// Bytes of anonymous mappings, whether in memory, in the swap file, or never stored to.
    pub anonymous_bytes: u64,
    /// Accesses that found a page missing.
    pub pgfault: u64,
    /// Of these, accesses that waited for a disk.
    pub pgmajfault: u64,
}

impl Budget {
    /// A budget of so many bytes of memory, at least 1 MiB, and four times as much swap, if there is room.
    /// Starts the manager of the process if need be.
    ///
    /// # Errors
    /// InvalidInput: the size is none, or too small. Unsupported: what this machine lacks for a manager.
    /// QuotaExceeded: there are 1,023 budgets.
    pub fn with_memory(memory: impl Into<Size>) -> io::Result<Self> {
        Self::make(memory.into(), None, None)
    }

    /// [`Budget::with_memory`], with so many bytes of swap; 0: none, and anonymous memory has to fit into
    /// memory.
    ///
    /// # Errors
    /// As there. OutOfMemory: the directory of the swap file has no room for so much.
    pub fn with_swap(memory: impl Into<Size>, swap: impl Into<Size>) -> io::Result<Self> {
        Self::make(memory.into(), Some(swap.into()), None)
    }

    /// A budget that is a part of this one: what it has counts here, too.
    ///
    /// # Errors
    /// As for [`Budget::with_memory`].
    pub fn inner(&self, memory: impl Into<Size>) -> io::Result<Self> {
        Self::make(memory.into(), None, Some(self.inner.clone()))
    }

    fn make(memory: Size, swap: Option<Size>, outer: Option<Arc<Inner>>) -> io::Result<Self> {
        let limit = check_limit(memory.bytes()?)?;
        let swap = swap.map(|swap| swap.bytes()).transpose()?;
        let house = house::house()?;
        let (room, dir) = (house.capacity.swap, house.capacity.swap_dir.display());
        let swap = match swap {
            Some(swap) if swap > room => {
                return Err(out_of_memory(format!(
                    "{dir} has room for {room} bytes of swap, not for {swap}: make room there, or name \
                     another directory with Process::swap_dir before the first mapping"
                )));
            }
            Some(swap) => swap,
            None => limit.saturating_mul(SWAP_TIMES).min(room),
        };
        let parent = outer.as_ref().map_or(GroupId::ROOT, |outer| outer.id);
        let limits = Inner::limits(limit, swap);
        let made = house.ask(move |house| {
            house
                .manager
                .groups()
                .create(parent, &limits)
                .map(|id| Arc::new(Inner { id, limit: limit.into(), swap, promised: 0.into(), outer }))
        });
        match made {
            Ok(inner) => Ok(Self { inner }),
            Err(Errno::NOSPC) => Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "there are 1,023 budgets already: mappings can share one",
            )),
            Err(errno) => Err(errno.into()),
        }
    }

    /// How many bytes its mappings may have in memory together.
    pub fn limit(&self) -> u64 {
        self.inner.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit, in bytes. If more is in memory, it is reclaimed before this returns.
    ///
    /// # Errors
    /// InvalidInput: the size is none, or too small; or anonymous mappings have more than fits into it and
    /// the swap. ResourceBusy: the limit is set, but too little could be reclaimed within 2 s.
    pub fn set_limit(&self, memory: impl Into<Size>) -> io::Result<()> {
        let limit = check_limit(memory.into().bytes()?)?;
        let (promised, swap) = (self.inner.promised.load(Ordering::Relaxed), self.inner.swap);
        if limit.saturating_add(swap) < promised {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{limit} bytes of memory and {swap} of swap are less than the {promised} bytes that \
                     anonymous mappings of the budget have"
                ),
            ));
        }
        let (id, limits) = (self.inner.id, Inner::limits(limit, swap));
        self.inner.limit.store(limit, Ordering::Relaxed);
        let set = move |house: &'static House| {
            let deadline = Instant::now() + RECLAIM_BOUND;
            loop {
                match house.manager.groups().set_limits(id, &limits) {
                    Err(Errno::BUSY) if Instant::now() < deadline => thread::sleep(RECLAIM_PAUSE),
                    set => return set,
                }
            }
        };
        match house::house()?.ask(set) {
            Err(Errno::BUSY) => Err(io::Error::new(
                io::ErrorKind::ResourceBusy,
                "the limit is set, but too little memory could be reclaimed at once (pages are pinned, or \
                 swap is full)",
            )),
            set => set.map_err(io::Error::from),
        }
    }

    /// What it has now, and had.
    ///
    /// # Errors
    /// Unsupported: this process was forked, and could not take the manager over.
    pub fn stats(&self) -> io::Result<BudgetStats> {
        let id = self.inner.id;
        let stats = house::house()?.ask(move |house| house.manager.groups().stats(id))?;
        Ok(BudgetStats {
            limit_bytes: self.limit(),
            usage_bytes: stats.usage_bytes,
            peak_bytes: stats.peak_bytes,
            swap_limit_bytes: self.inner.swap,
            swap_bytes: stats.swap.bytes,
            anonymous_bytes: self.inner.promised.load(Ordering::Relaxed),
            pgfault: stats.pgfault,
            pgmajfault: stats.pgmajfault,
        })
    }

    /// Runs `f`; what this thread maps meanwhile belongs to the budget, if nothing else is said.
    pub fn within<R>(&self, f: impl FnOnce() -> R) -> R {
        /// Puts the budget before back, also if `f` panics.
        struct Before(Option<Arc<Inner>>);
        impl Drop for Before {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _before = Before(CURRENT.replace(Some(self.inner.clone())));
        f()
    }

    /// Options for a mapping of this budget.
    pub fn options(&self) -> MmapOptions {
        let mut options = MmapOptions::new();
        options.budget(self);
        options
    }

    /// Anonymous memory of this budget, `len` bytes of zeros.
    ///
    /// # Errors
    /// As for [`MmapOptions::map_anon`].
    pub fn map_anon(&self, len: usize) -> io::Result<MmapMut> {
        self.options().len(len).map_anon()
    }

    pub(crate) fn group(&self) -> &Arc<Inner> {
        &self.inner
    }
}

fn check_limit(limit: u64) -> io::Result<u64> {
    if limit < LEAST_LIMIT {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a budget of {limit} bytes is too small, at least 1MiB is needed: is a unit missing?"),
        ));
    }
    Ok(limit)
}
