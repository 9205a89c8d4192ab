//! Phases *alone*, *among others* and *beside others*: one thread faults pages in, each fault timed alone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::super::compare::Record;
use super::{PAGE, REAL_STACK_BYTES, Storm, stamp};
use crate::histogram::{BUCKETS, Latency, bucket_of};

/// Pages that the thread whose faults are measured faults in, before it lets go of them.
const FAULT_PAGES: usize = 1024;
/// Faults between two looks at the clock.
const BATCH: usize = 64;
/// What the others map and unmap.
const CHURN_BYTES: usize = 64 << 10;

/// What is around the pages that are faulted in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Border {
    /// A guard page on each side, as a thread's stack has it: nobody changes their VMA.
    Guards,
    /// What the others map there: it merges with their VMA, and splits it when it goes.
    Neighbours,
}

/// A phase.
pub struct Faults {
    /// Whether the other threads map and unmap meanwhile.
    pub others: bool,
    pub border: Border,
    pub keys: Keys,
}

/// The keys of its figures.
pub struct Keys {
    pub p50: &'static str,
    pub p99: &'static str,
    pub p999: &'static str,
    pub count: &'static str,
    pub churn: &'static str,
    pub layout_lock: &'static str,
}

impl Storm<'_> {
    /// Runs a phase.
    pub(super) fn faults(&self, time: Duration, phase: &Faults, record: &mut Record) -> Result<Latency> {
        let others = if phase.others { self.args.threads - 1 } else { 0 };
        let before = self.ground.stats();
        let (stop, churned) = (AtomicBool::new(false), AtomicU64::new(0));
        let begin = Instant::now();
        let latency = std::thread::scope(|scope| {
            let (stop, churned) = (&stop, &churned);
            let mut threads = Vec::new();
            let mut result = Ok(());
            for _ in 0..others {
                let builder = std::thread::Builder::new().stack_size(REAL_STACK_BYTES);
                match builder.spawn_scoped(scope, || self.churn(stop, churned)) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => result = Err(error).context("cannot start a thread"),
                }
            }
            let latency = result.and_then(|()| self.fault_for(time, phase.border));
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().ok().context("a thread has panicked")??;
            }
            latency
        })?;
        let (time, keys) = (begin.elapsed(), &phase.keys);
        record.insert(keys.p50, latency.p50_ns as f64);
        record.insert(keys.p99, latency.p99_ns as f64);
        record.insert(keys.p999, latency.p999_ns as f64);
        record.insert(keys.count, latency.count as f64);
        if phase.others {
            record.insert(keys.churn, churned.load(Ordering::Relaxed) as f64 / time.as_secs_f64());
        }
        if let Some((before, after)) = before.zip(self.ground.stats()) {
            let taken = after.layout_lock_faults - before.layout_lock_faults;
            record.insert(keys.layout_lock, taken as f64);
        }
        Ok(latency)
    }

    /// Maps and unmaps without pause.
    fn churn(&self, stop: &AtomicBool, churned: &AtomicU64) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            self.ground.map(CHURN_BYTES)?.unmap()?;
            churned.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Faults pages in for a while.
    fn fault_for(&self, time: Duration, border: Border) -> Result<Latency> {
        let hand = self.ground.hand();
        let mut area = self.ground.map((FAULT_PAGES + 2) * PAGE)?;
        if border == Border::Guards {
            area.close_start(PAGE)?;
            area.close_end(PAGE)?;
        }
        let mut seen = Seen { counts: vec![0; BUCKETS], max_ns: 0 };
        let begin = Instant::now();
        let mut round = 0;
        while round == 0 || begin.elapsed() < time {
            let mut touched = 0;
            for first in (0..FAULT_PAGES).step_by(BATCH) {
                self.interrupt.check()?;
                if touched > 0 && begin.elapsed() >= time {
                    break;
                }
                for page in first..first + BATCH {
                    seen.time(|| area.store(&hand, (page + 1) * PAGE, stamp(round, page)))?;
                }
                touched += BATCH;
            }
            let page = round % touched;
            area.verify(&hand, (page + 1) * PAGE, stamp(round, page))?;
            area.verify(&hand, (page + 1) * PAGE + 8, 0)?;
            area.forget()?;
            round += 1;
        }
        area.unmap()?;
        Latency::from_counts(&seen.counts, seen.max_ns).context("no faults were measured")
    }
}

/// How long faults took.
struct Seen {
    counts: Vec<u64>,
    max_ns: u64,
}

impl Seen {
    #[inline]
    fn time(&mut self, fault: impl FnOnce() -> Result<()>) -> Result<()> {
        let begin = Instant::now();
        fault()?;
        let ns = begin.elapsed().as_nanos() as u64;
        self.counts[bucket_of(ns)] += 1;
        self.max_ns = self.max_ns.max(ns);
        Ok(())
    }
}
