//! A budget: a memory group of the manager.

use crate::interpreter::Interpreter;
use crate::parse_size;
use elbowroom::{GroupStats, KindStats, Limits};
use elbowroom_house::budget::{Budget, LEAST_LIMIT};
use elbowroom_house::house;
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use serde_json::json;
use std::sync::Arc;

/// The default swap of a budget is so many times its limit.
const SWAP_TIMES: u64 = 4;

fn limits(limit: u64, swap: u64) -> Limits {
    Limits { max: limit, swap_max: swap, ..Limits::default() }
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
        let house = house::house(Interpreter(py))?;
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
        let budget = Budget::create(Interpreter(py), house, limits(limit, swap), outer)?;
        Ok(Self { budget })
    }

    /// How many bytes the mappings of the budget may have in memory together.
    #[getter]
    fn limit(&self) -> u64 {
        self.budget.limits().max
    }

    /// Changes the limit. If more is in memory, it is reclaimed before this returns.
    #[setter]
    fn set_limit(&self, py: Python<'_>, limit: &Bound<'_, PyAny>) -> PyResult<()> {
        let limit = check_limit(parse_size(limit)?)?;
        let house = house::house(Interpreter(py))?;
        self.budget.set_limits(Interpreter(py), house, limits(limit, self.swap()))
    }

    /// How many bytes of anonymous memory the mappings of the budget may have in the swap file together.
    #[getter]
    fn swap(&self) -> u64 {
        self.budget.limits().swap_max
    }

    /// The statistics, as a JSON object.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        let stats = self.budget.stats(Interpreter(py), house::house(Interpreter(py))?)?;
        Ok(describe(&stats, self.limit(), self.swap(), self.budget.promised()).to_string())
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
