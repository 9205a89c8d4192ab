//! Snapshots of [`LockStats`](crate::LockStats): rows by call site, differences, and sums by lock and mode.

use super::{Awaited, CallSite, Counts, DECADES_NS, Entry, LruUse, Mode, REST};
use crate::LockClass;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

/// What rows are told apart by.
type Key = ((Awaited, Mode, Option<LruUse>), Option<&'static Location<'static>>);

/// One lock and mode, at one call site or at several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockRow {
    /// What was taken.
    pub lock: Awaited,
    /// In which mode.
    pub mode: Mode,
    /// What it was taken for: only of the lock of the LRU lists, and not in the rows of
    /// [`LockSnapshot::by_lock`].
    pub lru_use: Option<LruUse>,
    /// The call site. `None`: in the rows of [`LockSnapshot::by_lock`], all call sites together; in other
    /// rows, the call sites for which the table had no room, and acquisitions that were not counted in
    /// detail.
    pub caller: Option<&'static Location<'static>>,
    /// How often it was taken.
    pub acquisitions: u64,
    /// The waits: how many of less than 1 us, of less than 10 us, and so on by [`DECADES_NS`]; the last is of
    /// those of 1 s and longer.
    pub decades: [u64; DECADES_NS.len() + 1],
    /// Sum of the waits, in nanoseconds.
    pub wait_ns: u64,
    /// The longest wait, in nanoseconds. After [`LockSnapshot::since`] it is an upper bound: see there.
    pub max_wait_ns: u64,
    /// For how many acquisitions the hold was measured. Always 0 unless the lock is a mutex or a layout
    /// lock.
    pub holds: u64,
    /// Sum of the measured holds, in nanoseconds.
    pub hold_ns: u64,
    /// The longest measured hold, in nanoseconds; an upper bound after [`LockSnapshot::since`], as the
    /// longest wait is.
    pub max_hold_ns: u64,
}

impl LockRow {
    fn new(
        (lock, mode, lru_use): (Awaited, Mode, Option<LruUse>),
        caller: Option<&'static Location<'static>>,
    ) -> Self {
        Self {
            lock,
            mode,
            lru_use,
            caller,
            acquisitions: 0,
            decades: [0; _],
            wait_ns: 0,
            max_wait_ns: 0,
            holds: 0,
            hold_ns: 0,
            max_hold_ns: 0,
        }
    }

    /// The number of waits. For a mutex or the layout lock these are acquisitions that found it taken; a
    /// fault or thread may wait for a folio more than once before it has it, or wait and not take it.
    pub fn contended(&self) -> u64 {
        self.decades.iter().fold(0, |sum, &n| sum.wrapping_add(n))
    }

    /// The mean of the waits, in nanoseconds; 0 without any.
    pub fn average_wait_ns(&self) -> u64 {
        self.wait_ns.checked_div(self.contended()).unwrap_or(0)
    }

    /// The mean of the holds that were measured, in nanoseconds; 0 without any.
    pub fn average_hold_ns(&self) -> u64 {
        self.hold_ns.checked_div(self.holds).unwrap_or(0)
    }

    /// Whether nothing was counted.
    fn is_empty(&self) -> bool {
        self.acquisitions == 0 && self.holds == 0 && self.contended() == 0
    }

    fn add(&mut self, other: &Self) {
        self.acquisitions += other.acquisitions;
        for (sum, n) in self.decades.iter_mut().zip(other.decades) {
            *sum += n;
        }
        self.wait_ns += other.wait_ns;
        self.max_wait_ns = self.max_wait_ns.max(other.max_wait_ns);
        self.holds += other.holds;
        self.hold_ns += other.hold_ns;
        self.max_hold_ns = self.max_hold_ns.max(other.max_hold_ns);
    }

    /// Subtracts `before`, an earlier row with the same key.
    fn subtract(&mut self, before: &Self) {
        self.acquisitions = self.acquisitions.wrapping_sub(before.acquisitions);
        for (n, earlier) in self.decades.iter_mut().zip(before.decades) {
            *n = n.wrapping_sub(earlier);
        }
        self.wait_ns = self.wait_ns.wrapping_sub(before.wait_ns);
        self.holds = self.holds.wrapping_sub(before.holds);
        self.hold_ns = self.hold_ns.wrapping_sub(before.hold_ns);
        if self.max_wait_ns == before.max_wait_ns {
            // There was no longer wait since. The longest one since then is bounded by the highest decade
            // that has a wait, and by the sum of the waits.
            let bound = self.decades.iter().rposition(|&n| n > 0).map(|last| DECADES_NS.get(last));
            let bound = bound.map_or(0, |bound| bound.map_or(u64::MAX, |bound| bound - 1));
            self.max_wait_ns = self.max_wait_ns.min(bound).min(self.wait_ns);
        }
        if self.max_hold_ns == before.max_hold_ns {
            self.max_hold_ns = self.max_hold_ns.min(self.hold_ns);
        }
    }

    fn key(&self) -> Key {
        ((self.lock, self.mode, self.lru_use), self.caller)
    }
}

/// Statistics of all locks of a manager, up to some moment or between two moments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockSnapshot {
    rows: Vec<LockRow>,
}

impl LockSnapshot {
    /// The rows by call site, most total wait first, without empty rows.
    pub fn rows(&self) -> &[LockRow] {
        &self.rows
    }

    /// The rows of all call sites of a lock and mode put together, most total wait first.
    pub fn by_lock(&self) -> Vec<LockRow> {
        sums(self.rows.iter().map(|row| LockRow { lru_use: None, caller: None, ..row.clone() }))
    }

    /// The rows of the lock of the LRU lists, all call sites put together, by what it was taken for. Most
    /// total wait first.
    pub fn by_lru_use(&self) -> Vec<LockRow> {
        let lru = self.rows.iter().filter(|row| row.lock == Awaited::Lock(LockClass::Lru));
        sums(lru.map(|row| LockRow { caller: None, ..row.clone() }))
    }

    /// The difference to `before`, an earlier snapshot of the same statistics. Sums and counts are as exact
    /// as snapshots are. A maximum is exact only if it has grown since; otherwise the row has the least
    /// upper bound that follows from its other values.
    pub fn since(&self, before: &Self) -> Self {
        let earlier: BTreeMap<_, _> = before.rows.iter().map(|row| (row.key(), row)).collect();
        let mut rows = self.rows.clone();
        for row in &mut rows {
            if let Some(before) = earlier.get(&row.key()) {
                row.subtract(before);
            }
        }
        rows.retain(|row| !row.is_empty());
        sort(&mut rows);
        Self { rows }
    }

    /// How many acquisitions were counted by lock and mode only, in rows without a caller: all of them,
    /// unless acquisitions are counted in detail; then only those at call sites for which the table had no
    /// room.
    pub fn without_caller(&self) -> u64 {
        self.rows.iter().filter(|row| row.caller.is_none()).map(|row| row.acquisitions).sum()
    }
}

/// Adds up rows with equal keys, drops empty ones, and sorts the result.
fn sums(all: impl Iterator<Item = LockRow>) -> Vec<LockRow> {
    let mut sums: BTreeMap<_, LockRow> = BTreeMap::new();
    for row in all.filter(|row| !row.is_empty()) {
        let (what, caller) = row.key();
        sums.entry((what, caller)).or_insert_with(|| LockRow::new(what, caller)).add(&row);
    }
    let mut rows: Vec<_> = sums.into_values().collect();
    sort(&mut rows);
    rows
}

fn sort(rows: &mut [LockRow]) {
    rows.sort_by_key(|row| (Reverse(row.wait_ns), Reverse(row.acquisitions), row.key()));
}

/// Reads all rows.
pub(super) fn take(counts: &Counts) -> LockSnapshot {
    let rest = Awaited::all().flat_map(|what| Mode::ALL.map(|mode| (what, mode, None)));
    let lru = Awaited::Lock(LockClass::Lru);
    let uses = LruUse::ALL.into_iter().map(|lru_use| (lru, Mode::Write, Some(lru_use)));
    let rest = rest.chain(uses).map(|what| LockRow::new(what, None));
    let sites = counts.entries[REST..].iter().map(|entry| {
        let &CallSite { what, mode, lru_use, caller } = entry.place.get()?;
        Some(LockRow::new((what, mode, lru_use), Some(caller)))
    });
    let rows = rest.map(Some).chain(sites).enumerate().filter_map(|(site, row)| {
        let mut row = row?;
        row.acquisitions = counts.acquisitions.get(site);
        read_times(&counts.entries[site], &mut row);
        Some(row)
    });
    // Sums, because the compiler may have put one line's location into the program more than once.
    LockSnapshot { rows: sums(rows) }
}

fn read_times(entry: &Entry, row: &mut LockRow) {
    let Some(times) = entry.times.get() else { return };
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    row.decades = std::array::from_fn(|decade| load(&times.decades[decade]));
    row.wait_ns = load(&times.wait_ns);
    row.max_wait_ns = load(&times.max_wait_ns);
    row.holds = load(&times.holds);
    row.hold_ns = load(&times.hold_ns);
    row.max_hold_ns = load(&times.max_hold_ns);
}
