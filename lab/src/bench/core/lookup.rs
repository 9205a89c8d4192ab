//! Lookups in an index of VMAs, while a writer maps and unmaps without pause, or alone.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use elbowroom_index::{RangeMap, range_map};
use elbowroom_sync::epoch;

use crate::content::PageDice;
use crate::interrupt::Interrupt;

/// What a lookup among 1,000 VMAs may take.
pub const TARGET_1K_NS: f64 = 60.0;
/// What a lookup among 100,000 VMAs may take.
pub const TARGET_100K_NS: f64 = 150.0;

/// VMA `n` has this many pages, from page `(n + 1) * STRIDE` on.
const VMA_PAGES: u64 = 16;
/// So there is a gap behind each.
const STRIDE: u64 = 32;
/// The keys that are looked up, drawn before.
const KEYS: usize = 8192;
/// Lookups between two looks at the clock.
const BATCH: usize = 1024;

/// An index from ranges of pages to values, which are the numbers of the VMAs plus 1.
trait Index: Sync {
    fn with(count: u64) -> Self;
    fn get(&self, page: u64) -> Option<u64>;
    fn map(&self, number: u64);
    fn unmap(&self, number: u64);
}

fn start_of(number: u64) -> u64 {
    (number + 1) * STRIDE
}

/// The writer is under a lock that no reader takes, as it is in a space.
struct Ours(RangeMap<NonZeroU64>, Mutex<range_map::Writer<NonZeroU64>>);

impl Ours {
    fn writer(&self) -> MutexGuard<'_, range_map::Writer<NonZeroU64>> {
        self.1.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Index for Ours {
    fn with(count: u64) -> Self {
        let (map, writer) = RangeMap::new();
        let index = Self(map, Mutex::new(writer));
        (0..count).for_each(|number| index.map(number));
        index
    }

    #[inline]
    fn get(&self, page: u64) -> Option<u64> {
        Some(self.0.get(page, &epoch::pin())?.1.get())
    }

    fn map(&self, number: u64) {
        let start = start_of(number);
        self.writer().store(start..start + VMA_PAGES, NonZeroU64::new(number + 1), &epoch::pin());
    }

    fn unmap(&self, number: u64) {
        let start = start_of(number);
        self.writer().erase(start..start + VMA_PAGES, &epoch::pin());
    }
}

/// From the first page to the end and the value.
struct Locked(RwLock<BTreeMap<u64, (u64, u64)>>);

impl Locked {
    fn write(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<u64, (u64, u64)>> {
        self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Index for Locked {
    fn with(count: u64) -> Self {
        let index = Self(RwLock::new(BTreeMap::new()));
        (0..count).for_each(|number| index.map(number));
        index
    }

    #[inline]
    fn get(&self, page: u64) -> Option<u64> {
        let map = self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (_, &(end, value)) = map.range(..=page).next_back()?;
        (page < end).then_some(value)
    }

    fn map(&self, number: u64) {
        let start = start_of(number);
        self.write().insert(start, (start + VMA_PAGES, number + 1));
    }

    fn unmap(&self, number: u64) {
        self.write().remove(&start_of(number));
    }
}

/// From the last page to the first and the value: it has no iterator backwards.
struct Scc(scc::TreeIndex<u64, (u64, u64)>);

impl Index for Scc {
    fn with(count: u64) -> Self {
        let index = Self(scc::TreeIndex::new());
        (0..count).for_each(|number| index.map(number));
        index
    }

    #[inline]
    fn get(&self, page: u64) -> Option<u64> {
        let guard = scc::Guard::new();
        let (_, &(start, value)) = self.0.range(page.., &guard).next()?;
        (start <= page).then_some(value)
    }

    fn map(&self, number: u64) {
        let start = start_of(number);
        let _ = self.0.insert_sync(start + VMA_PAGES - 1, (start, number + 1));
    }

    fn unmap(&self, number: u64) {
        self.0.remove_sync(&(start_of(number) + VMA_PAGES - 1));
    }
}

/// Nanoseconds per lookup of one reader while a writer maps and unmaps.
///
/// # Errors
/// A wrong value was found, or a signal came.
pub fn among_writes(count: u64, time: Duration, interrupt: &Interrupt) -> Result<f64> {
    Ok(1e9 / rates(&Ours::with(count), count, 1, true, time, interrupt)?.lookups)
}

/// How many times as many lookups two readers make while a writer maps and unmaps, among 1,000 VMAs; and how
/// many times as many changes the writer makes.
///
/// # Errors
/// As for [`among_writes`].
pub fn ratio_to_btreemap(time: Duration, interrupt: &Interrupt) -> Result<(f64, f64)> {
    let ours = rates(&Ours::with(1_000), 1_000, 2, true, time / 2, interrupt)?;
    let theirs = rates(&Locked::with(1_000), 1_000, 2, true, time / 2, interrupt)?;
    Ok((ours.lookups / theirs.lookups, ours.changes / theirs.changes))
}

/// How many times as many lookups two readers make alone: the worse of 1,000 and 100,000 VMAs.
///
/// # Errors
/// As for [`among_writes`].
pub fn ratio_to_scc(time: Duration, interrupt: &Interrupt) -> Result<f64> {
    let mut worse = f64::INFINITY;
    for count in [1_000, 100_000] {
        let ours = rates(&Ours::with(count), count, 2, false, time / 4, interrupt)?;
        let theirs = rates(&Scc::with(count), count, 2, false, time / 4, interrupt)?;
        worse = worse.min(ours.lookups / theirs.lookups);
    }
    Ok(worse)
}

/// Per second.
struct Rates {
    /// Of all readers together.
    lookups: f64,
    /// Of the writer; each is an unmap and a map.
    changes: f64,
}

/// Lets the readers, and perhaps a writer, work for a while.
fn rates<I: Index>(
    index: &I,
    count: u64,
    readers: u64,
    writes: bool,
    time: Duration,
    interrupt: &Interrupt,
) -> Result<Rates> {
    let (stop, writes_made) = (AtomicBool::new(false), AtomicU64::new(0));
    let begin = Instant::now();
    let lookups = std::thread::scope(|scope| -> Result<Vec<f64>> {
        let stop = &stop;
        let writer = writes.then(|| scope.spawn(|| churn(index, count, stop, &writes_made)));
        let readers: Vec<_> =
            (0..readers).map(|seed| scope.spawn(move || read(index, count, seed, writes, stop))).collect();
        let slept = interrupt.sleep_until(Instant::now() + time);
        stop.store(true, Ordering::Relaxed);
        if let Some(writer) = writer {
            writer.join().ok().context("the writer has panicked")?;
        }
        let rates: Result<Vec<f64>> =
            readers.into_iter().map(|reader| reader.join().ok().context("a reader has panicked")?).collect();
        slept.and(rates)
    })?;
    let made = writes_made.load(Ordering::Relaxed);
    ensure!(!writes || made > 0, "the writer did not come to write");
    let changes = made as f64 / begin.elapsed().as_secs_f64();
    Ok(Rates { lookups: lookups.iter().sum(), changes })
}

/// Unmaps and maps VMAs at random.
fn churn<I: Index>(index: &I, count: u64, stop: &AtomicBool, made: &AtomicU64) {
    let mut dice = PageDice::new(99);
    while !stop.load(Ordering::Relaxed) {
        let number = dice.next_below(count);
        index.unmap(number);
        index.map(number);
        made.fetch_add(1, Ordering::Relaxed);
    }
}

/// Looks pages up at random; lookups per second.
fn read<I: Index>(index: &I, count: u64, seed: u64, writes: bool, stop: &AtomicBool) -> Result<f64> {
    let mut dice = PageDice::new(seed);
    let keys: Vec<u64> =
        (0..KEYS).map(|_| start_of(dice.next_below(count)) + dice.next_below(VMA_PAGES)).collect();
    let (start, mut done) = (Instant::now(), 0);
    while done == 0 || !stop.load(Ordering::Relaxed) {
        for batch in keys.chunks_exact(BATCH) {
            let mut missing = 0;
            for &key in batch {
                match black_box(index.get(black_box(key))) {
                    Some(value) if value == key / STRIDE => {}
                    Some(value) => bail!("wrong value: page {key} is in VMA {value}"),
                    None => missing += 1,
                }
            }
            ensure!(writes || missing == 0, "{missing} pages of VMAs that nobody unmaps were not found");
            done += BATCH as u64;
        }
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}
