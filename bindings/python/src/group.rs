//! A budget: a memory group of the manager.

use crate::errors;
use crate::house::{self, House};
use crate::parse_size;
use elbowroom::{Errno, GroupId, GroupStats, KindStats, Limits};
use pyo3::PyErr;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde_json::json;
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

/// Bytes that all budgets have promised. A forked child has its parent's arrays, and so its promises.
static PROMISED: AtomicU64 = AtomicU64::new(0);

/// A group of the manager. Removed when the last budget, mapping and inner group of it is gone.
pub struct Budget {
    id: GroupId,
    limit: AtomicU64,
    swap: u64,
    /// Bytes of anonymous mappings, here and in inner groups.
    promised: AtomicU64,
    outer: Option<Arc<Budget>>,
}

impl Budget {
    /// The group, for mappings.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// The most bytes of memory that it can have: the least limit of it and of the budgets that it is a part
    /// of.
    pub fn least_limit(&self) -> u64 {
        self.line().map(|budget| budget.limit.load(Ordering::Relaxed)).min().unwrap_or(u64::MAX)
    }

    fn line(&self) -> impl Iterator<Item = &Budget> {
        std::iter::successors(Some(self), |budget| budget.outer.as_deref())
    }

    fn room(&self) -> u64 {
        self.limit.load(Ordering::Relaxed).saturating_add(self.swap)
    }

    /// Promises so many bytes of anonymous memory. All of them can be stored to at the same time: memory that
    /// is promised, and then is not there, would end the process at an access.
    ///
    /// # Errors
    /// MemoryError: memory and swap of a budget, or those of all budgets together, do not have so much.
    pub fn promise(&self, bytes: u64) -> PyResult<()> {
        self.promise_in_line(bytes)?;
        let Some(House { capacity, .. }) = house::started() else { return Ok(()) };
        let room = capacity.room();
        let add = |promised: u64| promised.checked_add(bytes).filter(|all| *all <= room);
        let Err(promised) = PROMISED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) else {
            return Ok(());
        };
        self.line().for_each(|budget| budget.take_back(bytes));
        let (memory, swap, dir) = (capacity.memory, capacity.swap, capacity.swap_dir.display());
        if capacity.is_shared {
            return Err(PyMemoryError::new_err(format!(
                "{bytes} bytes do not fit into the {swap} bytes of swap in {dir}, of which {promised} are \
                 promised: other processes share the memory and may need all of it, so arrays without a file \
                 must fit into swap; give more with elbowroom.configure(swap=..., shared=True)"
            )));
        }
        Err(PyMemoryError::new_err(format!(
            "{bytes} bytes do not fit into the {memory} bytes of memory and {swap} of swap in {dir} that all \
             arrays of the process have together, of which {promised} are in use: make room there, or name \
             another directory with elbowroom.configure(swap_dir=...) before the first array is made"
        )))
    }

    fn promise_in_line(&self, bytes: u64) -> PyResult<()> {
        for (nth, budget) in self.line().enumerate() {
            let room = budget.room();
            let add = |promised: u64| promised.checked_add(bytes).filter(|all| *all <= room);
            if let Err(promised) = budget.promised.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
                self.line().take(nth).for_each(|budget| budget.take_back(bytes));
                let (limit, swap) = (budget.limit.load(Ordering::Relaxed), budget.swap);
                return Err(PyMemoryError::new_err(format!(
                    "{bytes} bytes do not fit into a budget of {limit} bytes of memory and {swap} of swap, \
                     of which {promised} are in use: give more with swap=..."
                )));
            }
        }
        Ok(())
    }

    fn take_back(&self, bytes: u64) {
        self.promised.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Undoes [`Budget::promise`].
    pub fn end_promise(&self, bytes: u64) {
        PROMISED.fetch_sub(bytes, Ordering::Relaxed);
        self.line().for_each(|budget| budget.take_back(bytes));
    }

    fn limits(limit: u64, swap: u64, house: &House) -> Limits {
        // If other processes share the memory, they may have all of it, and all that was promised is in swap.
        let more = if house.capacity.is_shared { limit } else { 0 };
        Limits { max: limit, swap_max: swap.saturating_add(more), ..Limits::default() }
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

/// A budget for mappings: they never have more than `limit` bytes in memory together, nor more than `swap`
/// bytes in the swap file. `outer`: a budget that this one is a part of.
#[pyclass(frozen, module = "elbowroom._elbowroom")]
pub struct Group {
    budget: Arc<Budget>,
}

impl Group {
    /// The group of the manager.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }
}

fn check_limit(limit: u64) -> PyResult<u64> {
    if limit < LEAST_LIMIT {
        return Err(PyValueError::new_err(format!(
            "a budget of {limit} bytes is too small, at least 1MiB is needed: is a unit missing?"
        )));
    }
    Ok(limit)
}

#[pymethods]
impl Group {
    #[new]
    #[pyo3(signature = (limit, swap=None, outer=None))]
    fn new(
        py: Python<'_>,
        limit: &Bound<'_, PyAny>,
        swap: Option<&Bound<'_, PyAny>>,
        outer: Option<&Group>,
    ) -> PyResult<Self> {
        let limit = check_limit(parse_size(limit)?)?;
        let house = house::house(py)?;
        let (room, dir) = (house.capacity.swap, house.capacity.swap_dir.display());
        let swap = match swap.map(parse_size).transpose()? {
            Some(swap) if swap > room => {
                return Err(PyMemoryError::new_err(format!(
                    "{dir} has room for {room} bytes of swap, not for {swap}: make room there, or name \
                     another directory with elbowroom.configure(swap_dir=...) before the first array is made"
                )));
            }
            Some(swap) => swap,
            None => limit.saturating_mul(SWAP_TIMES).min(room),
        };
        let outer = outer.map(|outer| outer.budget.clone());
        let parent = outer.as_ref().map_or(GroupId::ROOT, |outer| outer.id);
        let limits = Budget::limits(limit, swap, house);
        let made = house.ask(py, move |house| {
            house.manager.groups().create(parent, &limits).map(|id| {
                // Dropped, and so removed, if nobody takes the answer.
                Arc::new(Budget { id, limit: limit.into(), swap, promised: 0.into(), outer })
            })
        })?;
        match made {
            Ok(budget) => Ok(Self { budget }),
            Err(Errno::NOSPC) => Err(PyRuntimeError::new_err(
                "there are 1,023 budgets already: arrays can share one, by `with elbowroom.budget`",
            )),
            Err(errno) => Err(errors::of(errno, "cannot make a budget")),
        }
    }

    /// How many bytes the mappings of the budget may have in memory together.
    #[getter]
    fn limit(&self) -> u64 {
        self.budget.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. If more is in memory, it is reclaimed before this returns.
    #[setter]
    fn set_limit(&self, py: Python<'_>, limit: &Bound<'_, PyAny>) -> PyResult<()> {
        let (limit, budget) = (check_limit(parse_size(limit)?)?, &self.budget);
        let promised = budget.promised.load(Ordering::Relaxed);
        if limit.saturating_add(budget.swap) < promised {
            return Err(PyValueError::new_err(format!(
                "{limit} bytes of memory and {} of swap are less than the {promised} bytes that arrays of \
                 the budget have",
                budget.swap
            )));
        }
        let house = house::house(py)?;
        let (id, limits) = (budget.id, Budget::limits(limit, budget.swap, house));
        budget.limit.store(limit, Ordering::Relaxed);
        let set = move |house: &'static House| {
            let deadline = Instant::now() + RECLAIM_BOUND;
            loop {
                match house.manager.groups().set_limits(id, &limits) {
                    Err(Errno::BUSY) if Instant::now() < deadline => thread::sleep(RECLAIM_PAUSE),
                    set => return set,
                }
            }
        };
        match house.ask(py, set)? {
            Ok(()) => Ok(()),
            Err(Errno::BUSY) => Err(errors::of(
                Errno::BUSY,
                "the limit is set, but too little memory could be reclaimed at once (pages are pinned, or \
                 swap is full)",
            )),
            Err(errno) => Err(errors::of(errno, "cannot set the limit")),
        }
    }

    /// How many bytes of anonymous memory the mappings of the budget may have in the swap file together.
    #[getter]
    fn swap(&self) -> u64 {
        self.budget.swap
    }

    /// The statistics, as a JSON object.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        let (id, house) = (self.budget.id, house::house(py)?);
        let stats = house.ask(py, move |house| house.manager.groups().stats(id))?;
        let stats = stats.map_err(|errno| -> PyErr { errors::of(errno, "no such budget") })?;
        let (limit, promised) = (self.limit(), self.budget.promised.load(Ordering::Relaxed));
        Ok(describe(&stats, limit, self.budget.swap, promised).to_string())
    }
}

fn describe(stats: &GroupStats, limit: u64, swap: u64, promised: u64) -> serde_json::Value {
    let kind = |kind: &KindStats| {
        let KindStats { refaults, scanned, stolen } = kind;
        json!({ "refaults": refaults, "scanned": scanned, "stolen": stolen })
    };
    json!({
        "limit_bytes": limit,
        "usage_bytes": stats.usage_bytes,
        "peak_bytes": stats.peak_bytes,
        "swap_limit_bytes": swap,
        "swap_bytes": stats.swap.bytes,
        "swap_peak_bytes": stats.swap.peak_bytes,
        "anonymous_bytes": promised,
        "pgfault": stats.pgfault,
        "pgmajfault": stats.pgmajfault,
        "max_events": stats.max,
        "swap_max_events": stats.swap.max,
        "failed_events": stats.failed,
        "anonymous": kind(&stats.anonymous),
        "file": kind(&stats.file),
    })
}
