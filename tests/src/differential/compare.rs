//! Two engines in step: the same operations, and what must be the same after each.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use crate::differential::drive::{Outcome, apply};
use crate::differential::engine::{Area, Engine, Fault, PAGE, canonical, clipped};
use crate::differential::op::{At, Op};

/// How much is compared after each step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checks {
    /// The outcome and the layout around what the operation has touched; every so many steps everything.
    Every(usize),
    /// Everything after every step.
    Everything,
}

/// Two engines that are not the same.
#[derive(Debug, Clone)]
pub struct Divergence {
    /// The step after which it was seen, from 0.
    pub step: usize,
    /// What differs.
    pub what: String,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after step {}: {}", self.step, self.what)
    }
}

/// What a run has done.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Operations performed.
    pub steps: u64,
    /// Operations passed over, because their outcome depends on whether VMAs that could be merged are.
    pub passed_over: u64,
    /// How often each kind of operation had each result: an error number, 0 for success, or for accesses 1000
    /// plus the signal (2000 for a denied one).
    pub outcomes: BTreeMap<(&'static str, i32), u64>,
}

impl Tally {
    /// Adds another run's.
    pub fn add(&mut self, other: &Tally) {
        self.steps += other.steps;
        self.passed_over += other.passed_over;
        for (key, count) in &other.outcomes {
            *self.outcomes.entry(*key).or_default() += count;
        }
    }

    /// How often an operation had a result.
    pub fn count(&self, kind: &'static str, result: i32) -> u64 {
        self.outcomes.get(&(kind, result)).copied().unwrap_or(0)
    }
}

/// The kind's name in [`Tally::outcomes`].
fn kind(op: &Op) -> &'static str {
    match op {
        Op::Map { .. } => "map",
        Op::Unmap(..) => "unmap",
        Op::Protect(..) => "protect",
        Op::Remap { .. } => "remap",
        Op::Advise(..) => "advise",
        Op::Sync(..) => "sync",
        Op::Resident(..) => "mincore",
        Op::Lock(..) => "lock",
        Op::Unlock(..) => "unlock",
        Op::Truncate(_) => "truncate",
        Op::Load(..) => "load",
        Op::Store(..) => "store",
    }
}

/// Two engines in step.
pub struct Pair<L, R> {
    left: L,
    right: R,
    /// The first page's bytes of each engine, kept to save an allocation.
    bytes: (Box<[u8; PAGE as usize]>, Box<[u8; PAGE as usize]>),
    tally: Tally,
}

impl<L: Engine, R: Engine> Pair<L, R> {
    /// Two new engines with ranges of the same size.
    pub fn new(left: L, right: R) -> Self {
        assert_eq!(left.pages(), right.pages());
        let page = || Box::new([0; PAGE as usize]);
        Self { left, right, bytes: (page(), page()), tally: Tally::default() }
    }

    /// Performs all operations, and compares everything at the end.
    ///
    /// # Errors
    /// The first divergence that was seen.
    pub fn run(mut self, ops: &[Op], checks: Checks) -> Result<Tally, Divergence> {
        for (step, op) in ops.iter().enumerate() {
            let result = self.step(op).and_then(|()| match checks {
                Checks::Everything => self.compare_everything(),
                Checks::Every(steps) if (step + 1).is_multiple_of(steps) => self.compare_everything(),
                Checks::Every(_) => self.compare_around(op),
            });
            result.map_err(|what| Divergence { step, what })?;
        }
        let last = ops.len().saturating_sub(1);
        self.compare_everything().map_err(|what| Divergence { step: last, what })?;
        Ok(self.tally)
    }

    fn step(&mut self, op: &Op) -> Result<(), String> {
        if self.depends_on_merging(op) {
            self.tally.passed_over += 1;
            return Ok(());
        }
        let (left, right) = (apply(&mut self.left, op), apply(&mut self.right, op));
        self.tally.steps += 1;
        *self.tally.outcomes.entry((kind(op), left.errno())).or_default() += 1;
        if left != right || matches!(left, Outcome::Unsettled(_)) {
            return Err(self.differ(op, left, right));
        }
        Ok(())
    }

    fn differ(&self, what: impl fmt::Display, left: impl fmt::Display, right: impl fmt::Display) -> String {
        format!("{what}\n  {}: {left}\n  {}: {right}", self.left.name(), self.right.name())
    }

    /// Whether the operation is an mremap whose outcome depends on which VMAs are merged:
    ///
    /// * It depends on the extent of its VMA, and the engines, though their layouts are the same when merged,
    ///   do not agree on that. A move of the whole range never does.
    /// * `MREMAP_DONTUNMAP` to a place at or in the same VMA: anonymous memory that was never written to
    ///   merges with its copy, and then the kernel unlocks the copy too, which it does not otherwise.
    fn depends_on_merging(&mut self, op: &Op) -> bool {
        let Op::Remap { at: At::Page(page), old, new, flags, to, .. } = *op else { return false };
        let keeps = flags & libc::MREMAP_DONTUNMAP != 0;
        let len = old.pages();
        if flags & libc::MREMAP_FIXED != 0 && len == new.pages() && !keeps {
            return false;
        }
        let pages = self.left.pages();
        let (start, end) = (u64::from(page), (u64::from(page) + u64::from(len.max(1))).min(pages));
        let left = self.left.layout(start..end);
        if let (true, At::Page(to), Some(last)) = (keeps, to, left.last()) {
            let (first, to) = (left[0].pages.start, u64::from(to));
            if to <= last.pages.end && to + u64::from(new.pages()) >= first {
                return true;
            }
        }
        let extents = |areas: Vec<Area>| -> Vec<Range<u64>> {
            // Locks are kept by whole VMA, so there both ends matter, and of each VMA of a larger range.
            let cut = |area: Area| if keeps { area.pages } else { start..area.pages.end.min(end) };
            let count = if keeps { usize::MAX } else { 1 };
            areas.into_iter().take(count).map(cut).collect()
        };
        extents(left) != extents(self.right.layout(start..end))
    }

    fn compare_around(&mut self, op: &Op) -> Result<(), String> {
        let pages = self.left.pages();
        for (first, len) in op.touches() {
            let start = u64::from(first.saturating_sub(1));
            let end = (u64::from(first) + u64::from(len) + 1).min(pages);
            self.compare_layout(start..end)?;
        }
        Ok(())
    }

    fn compare_layout(&mut self, range: Range<u64>) -> Result<(), String> {
        let left = canonical(clipped(self.left.layout(range.clone()), &range));
        let right = canonical(clipped(self.right.layout(range.clone()), &range));
        if left == right {
            return Ok(());
        }
        let show = |areas: &[Area], others: &[Area]| {
            let lines: Vec<String> = areas
                .iter()
                .filter(|area| !others.contains(area))
                .map(|area| format!("\n    {area:?}"))
                .collect();
            format!("has, but the other has not:{}", lines.concat())
        };
        Err(self.differ("the layouts differ", show(&left, &right), show(&right, &left)))
    }

    fn compare_everything(&mut self) -> Result<(), String> {
        let pages = self.left.pages();
        self.compare_layout(0..pages)?;
        for page in 0..pages {
            self.compare_page(page)?;
        }
        let (left, right) = (self.left.file(), self.right.file());
        if left.len() != right.len() {
            return Err(self.differ("the file's size", left.len(), right.len()));
        }
        if left != right {
            let at = left.iter().zip(&right).position(|(left, right)| left != right).unwrap_or(0);
            let page = format!("the file's page {}, byte {}", at as u64 / PAGE, at as u64 % PAGE);
            return Err(self.differ(page, left[at], right[at]));
        }
        Ok(())
    }

    fn compare_page(&mut self, page: u64) -> Result<(), String> {
        let bytes = &mut self.bytes;
        let left = self.left.load(self.left.base() + page * PAGE, &mut bytes.0[..]);
        let right = self.right.load(self.right.base() + page * PAGE, &mut bytes.1[..]);
        if left != right {
            let show = |result: &Result<(), Fault>| format!("{result:?}");
            return Err(self.differ(format!("a load from page {page}"), show(&left), show(&right)));
        }
        if left.is_ok() && bytes.0 != bytes.1 {
            let at = bytes.0.iter().zip(bytes.1.iter()).position(|(left, right)| left != right).unwrap_or(0);
            let (left, right) = (bytes.0[at], bytes.1[at]);
            return Err(self.differ(format!("page {page}, byte {at}"), left, right));
        }
        Ok(())
    }
}
