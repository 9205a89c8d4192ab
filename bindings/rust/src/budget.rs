//! Budgets: what the manager of the process is started with, and memory groups of it.

use crate::map::MmapMut;
use crate::options::MmapOptions;
use crate::process;
use crate::size::Size;
use elbowroom_house::budget::Budget as Group;
use elbowroom_house::caller::Thread;
use elbowroom_house::house::{self, Settings};
use elbowroom_manager::{Division, Limits, Stats};
use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The default swap of a budget is so many times its limit.
const SWAP_TIMES: u64 = 4;

thread_local! {
    /// The budget of the innermost [`Budget::within`] of this thread.
    static CURRENT: RefCell<Option<Arc<Group>>> = const { RefCell::new(None) };
}

/// Which pages of files go when memory is short.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// elbowroom::Process::new().memory("64MiB").policy(elbowroom::Policy::Kept).start()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// As suits how each budget uses its files: one of the next three, which changes when that does.
    #[default]
    Auto,
    /// Most of memory is for what was used again, a sixteenth for second chances.
    Even,
    /// What has come in first stays, as much as fits: for passes over more than memory.
    Kept,
    /// Half of memory is for second chances, so that what is used again soon stays: for experts of models,
    /// and other chunks of which some are used more often.
    Long,
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
    policy: Policy,
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

    /// Which pages of files go when memory is short.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
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
        let division = match self.policy {
            Policy::Auto => None,
            Policy::Even => Some(Division::Even),
            Policy::Kept => Some(Division::Kept),
            Policy::Long => Some(Division::Long),
        };
        let settings = Settings { memory, swap, swap_dir: self.swap_dir, division, ..Settings::default() };
        process::start_with(settings)
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
    house::started()?.ask(Thread, |house| house.manager.stats()).ok()
}

fn out_of_memory(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, text)
}

/// The budget of the innermost [`Budget::within`] of this thread.
pub fn current() -> Option<Arc<Group>> {
    // A destructor of the thread that runs after the budget's own finds none.
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
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
    inner: Arc<Group>,
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

    fn make(memory: Size, swap: Option<Size>, outer: Option<Arc<Group>>) -> io::Result<Self> {
        let limit = memory.bytes()?;
        let swap = swap.map(|swap| swap.bytes()).transpose()?;
        let house = process::house()?;
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
        let limits = Limits { max: limit, swap_max: swap, ..Limits::default() };
        match Group::create(Thread, house, limits, outer) {
            Ok(inner) => Ok(Self { inner }),
            Err(failure) if failure.errno == libc::ENOSPC => {
                Err(io::Error::new(io::ErrorKind::QuotaExceeded, failure.text))
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// How many bytes its mappings may have in memory together.
    pub fn limit(&self) -> u64 {
        self.inner.limits().max
    }

    /// Changes the limit, in bytes. If more is in memory, it is reclaimed before this returns.
    ///
    /// # Errors
    /// InvalidInput: the size is none, or too small; or anonymous mappings have more than fits into it and
    /// the swap. ResourceBusy: the limit is set, but too little could be reclaimed within 2 s.
    pub fn set_limit(&self, memory: impl Into<Size>) -> io::Result<()> {
        let limits = Limits { max: memory.into().bytes()?, ..self.inner.limits() };
        let set = self.inner.set_limits(Thread, process::house()?, limits);
        set.map_err(|failure| match failure.errno {
            libc::EBUSY => io::Error::new(io::ErrorKind::ResourceBusy, failure.text),
            _ => failure.into(),
        })
    }

    /// What it has now, and had.
    ///
    /// # Errors
    /// Unsupported: this process was forked, and could not take the manager over.
    pub fn stats(&self) -> io::Result<BudgetStats> {
        let stats = self.inner.stats(Thread, process::house()?)?;
        let limits = self.inner.limits();
        Ok(BudgetStats {
            limit_bytes: limits.max,
            usage_bytes: stats.usage_bytes,
            peak_bytes: stats.peak_bytes,
            swap_limit_bytes: limits.swap_max,
            swap_bytes: stats.swap.bytes,
            anonymous_bytes: self.inner.promised(),
            pgfault: stats.pgfault,
            pgmajfault: stats.pgmajfault,
        })
    }

    /// Runs `f`; what this thread maps meanwhile belongs to the budget, if nothing else is said.
    pub fn within<R>(&self, f: impl FnOnce() -> R) -> R {
        /// Puts the budget before back, also if `f` panics.
        struct Before(Option<Arc<Group>>);
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

    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.inner
    }
}
