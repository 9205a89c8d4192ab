//! A memory group of the manager, and what was promised to its mappings.

use crate::caller::Caller;
use crate::failure::{Failure, Kind};
use crate::house::{self, House};
use elbowroom::{Errno, GroupId, GroupStats, Limits};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The least limit of a budget, in bytes: what a few accesses at a time need.
pub const LEAST_LIMIT: u64 = 1 << 20;

/// How long a lower limit waits until enough is reclaimed, and the time between two attempts. Pages that a
/// fork shares, or that are being written, go a moment later.
const RECLAIM_BOUND: Duration = Duration::from_secs(2);
const RECLAIM_PAUSE: Duration = Duration::from_millis(10);

/// Bytes that all budgets have promised. A forked child has its parent's mappings, and so its promises.
static PROMISED: AtomicU64 = AtomicU64::new(0);

/// A group of the manager. Removed when the last owner, mapping and inner group of it is gone.
#[derive(Debug)]
pub struct Budget {
    id: GroupId,
    limits: Mutex<Limits>,
    /// Bytes of anonymous mappings, here and in inner groups.
    promised: AtomicU64,
    outer: Option<Arc<Budget>>,
}

impl Budget {
    /// Makes a group inside of `outer`; `None`: inside of the root.
    ///
    /// # Errors
    /// EINVAL: a limit is too small, or above what it can be. ENOSPC: there are too many groups.
    pub fn create<C: Caller>(
        caller: C,
        house: &'static House,
        limits: Limits,
        outer: Option<Arc<Budget>>,
    ) -> Result<Arc<Self>, C::Error> {
        check(&limits).map_err(|failure| caller.error(failure))?;
        let parent = outer.as_ref().map_or(GroupId::ROOT, |outer| outer.id);
        let made = house.ask(caller, move |house| {
            house.manager.groups().create(parent, &of_manager(&limits, house)).map(|id| {
                // Dropped, and so removed, if nobody takes the answer.
                Arc::new(Budget { id, limits: limits.into(), promised: 0.into(), outer })
            })
        })?;
        made.map_err(|errno| {
            caller.error(match errno {
                Errno::NOSPC => Failure {
                    errno: libc::ENOSPC,
                    ..Failure::new(
                        Kind::State,
                        "there are 1,023 budgets already: several mappings can share one".to_owned(),
                    )
                },
                errno => Failure::of(errno, "cannot make a budget"),
            })
        })
    }

    /// The group, for mappings.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// What the mappings of the budget may have.
    pub fn limits(&self) -> Limits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most bytes of memory that it can have: the least limit of it and of the budgets that it is a part
    /// of.
    pub fn least_limit(&self) -> u64 {
        self.line().map(|budget| budget.limits().max).min().unwrap_or(u64::MAX)
    }

    /// Bytes of anonymous memory that were promised.
    pub fn promised(&self) -> u64 {
        self.promised.load(Ordering::Relaxed)
    }

    /// Changes the limits. If more is in memory, it is reclaimed before this returns.
    ///
    /// # Errors
    /// EINVAL: a limit is too small, or less than was promised. EBUSY: the limits are set, but not enough
    /// could be reclaimed within 2 seconds.
    pub fn set_limits<C: Caller>(
        &self,
        caller: C,
        house: &'static House,
        limits: Limits,
    ) -> Result<(), C::Error> {
        check(&limits).map_err(|failure| caller.error(failure))?;
        let promised = self.promised();
        if room(&limits) < promised {
            return Err(caller.error(Failure::new(
                Kind::Value,
                format!(
                    "{} bytes of memory and {} of swap are less than the {promised} bytes that memory of the \
                     budget has",
                    limits.max, limits.swap_max
                ),
            )));
        }
        let id = self.id;
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
        let set = move |house: &'static House| {
            let deadline = Instant::now() + RECLAIM_BOUND;
            loop {
                match house.manager.groups().set_limits(id, &of_manager(&limits, house)) {
                    Err(Errno::BUSY) if Instant::now() < deadline => thread::sleep(RECLAIM_PAUSE),
                    set => return set,
                }
            }
        };
        house.ask(caller, set)?.map_err(|errno| {
            caller.error(match errno {
                Errno::BUSY => Failure::of(
                    Errno::BUSY,
                    "the limit is set, but too little memory could be reclaimed at once (pages are pinned, \
                     or swap is full)",
                ),
                errno => Failure::of(errno, "cannot set the limit"),
            })
        })
    }

    /// The statistics of the group, with those of all inner groups.
    ///
    /// # Errors
    /// The caller's own.
    pub fn stats<C: Caller>(&self, caller: C, house: &'static House) -> Result<GroupStats, C::Error> {
        let id = self.id;
        let stats = house.ask(caller, move |house| house.manager.groups().stats(id))?;
        stats.map_err(|errno| caller.error(Failure::of(errno, "no such budget")))
    }

    fn line(&self) -> impl Iterator<Item = &Budget> {
        std::iter::successors(Some(self), |budget| budget.outer.as_deref())
    }

    fn promise_in_line(&self, bytes: u64) -> Result<(), Failure> {
        for (nth, budget) in self.line().enumerate() {
            let limits = budget.limits();
            let room = room(&limits);
            let add = |promised: u64| promised.checked_add(bytes).filter(|all| *all <= room);
            if let Err(promised) = budget.promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
                self.line().take(nth).for_each(|budget| budget.take_back(bytes));
                return Err(Failure::new(
                    Kind::Memory,
                    format!(
                        "{bytes} bytes do not fit into a budget of {} bytes of memory and {} of swap, of \
                         which {promised} are in use: {}",
                        limits.max,
                        limits.swap_max,
                        house::words().swap
                    ),
                ));
            }
        }
        Ok(())
    }

    fn take_back(&self, bytes: u64) {
        self.promised.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The limits as the manager has them. If other processes share the memory, they may have all of it, and all
/// that was promised is in swap.
fn of_manager(limits: &Limits, house: &House) -> Limits {
    let more = if house.capacity.is_shared { limits.max } else { 0 };
    Limits { swap_max: limits.swap_max.saturating_add(more), ..*limits }
}

fn room(limits: &Limits) -> u64 {
    limits.max.saturating_add(limits.swap_max)
}

fn check(limits: &Limits) -> Result<(), Failure> {
    let Limits { max, swappiness, .. } = *limits;
    if max < LEAST_LIMIT {
        let text =
            format!("a budget of {max} bytes is too small, at least 1MiB is needed: is a unit missing?");
        return Err(Failure::new(Kind::Value, text));
    }
    if swappiness > 200 {
        return Err(Failure::new(Kind::Value, format!("swappiness is from 0 to 200, not {swappiness}")));
    }
    Ok(())
}

/// Bytes of anonymous memory that a budget has promised, as long as the value lives. All of them can be
/// stored to at the same time: memory that is promised, and then is not there, would end the process at an
/// access.
#[derive(Debug)]
pub struct Promise {
    bytes: u64,
    budget: Option<Arc<Budget>>,
}

impl Promise {
    /// Promises so many bytes, of a budget or, without one, of the root.
    ///
    /// # Errors
    /// ENOMEM: memory and swap of a budget, or those of all budgets together, do not have so much.
    pub fn of(bytes: u64, budget: Option<&Arc<Budget>>) -> Result<Self, Failure> {
        if let Some(budget) = budget {
            budget.promise_in_line(bytes)?;
        }
        let promise = || Self { bytes, budget: budget.cloned() };
        let Some(House { capacity, .. }) = house::started() else {
            PROMISED.fetch_add(bytes, Ordering::Relaxed);
            return Ok(promise());
        };
        let room = capacity.room();
        let add = |promised: u64| promised.checked_add(bytes).filter(|all| *all <= room);
        let Err(promised) = PROMISED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) else {
            return Ok(promise());
        };
        if let Some(budget) = budget {
            budget.line().for_each(|budget| budget.take_back(bytes));
        }
        let (memory, swap, dir) = (capacity.memory, capacity.swap, capacity.swap_dir.display());
        if capacity.is_shared {
            return Err(Failure::new(
                Kind::Memory,
                format!(
                    "{bytes} bytes do not fit into the {swap} bytes of swap in {dir}, of which {promised} \
                     are promised: other processes share the memory and may need all of it, so memory \
                     without a file must fit into swap; {}",
                    house::words().shared_swap
                ),
            ));
        }
        Err(Failure::new(
            Kind::Memory,
            format!(
                "{bytes} bytes do not fit into the {memory} bytes of memory and {swap} of swap in {dir} that \
                 all mappings of the process have together, of which {promised} are in use: make room there, \
                 or {}",
                house::words().swap_dir
            ),
        ))
    }
}

impl Promise {
    /// Promises so many bytes more.
    ///
    /// # Errors
    /// As for [`Promise::of`]. The promise is as before.
    pub fn grow(&mut self, more: u64) -> Result<(), Failure> {
        let mut more = Self::of(more, self.budget.as_ref())?;
        self.bytes += std::mem::take(&mut more.bytes);
        Ok(())
    }

    /// Takes back so many bytes, at most what is promised.
    pub fn shrink(&mut self, less: u64) {
        let bytes = less.min(self.bytes);
        self.bytes -= bytes;
        drop(Self { bytes, budget: self.budget.clone() });
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        PROMISED.fetch_sub(self.bytes, Ordering::Relaxed);
        if let Some(budget) = &self.budget {
            budget.line().for_each(|budget| budget.take_back(self.bytes));
        }
    }
}

impl Drop for Budget {
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
