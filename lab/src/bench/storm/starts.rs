//! Phase *starts*: all threads are let go together, and each makes itself at home.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::super::area::Area;
use super::super::compare::Record;
use super::{PAGE, REAL_STACK_BYTES, Storm, stamp};
use crate::report::median;

/// An area of a thread: its length, the length of the guard at its start, and the pages that are stored to.
struct Part {
    len: usize,
    guard: usize,
    touched: fn(page: usize) -> bool,
}

/// What a thread maps: 1.3 MiB, of which it touches 54 pages.
const PARTS: [Part; 4] = [
    // The stack is used from its end.
    Part { len: 1 << 20, guard: PAGE, touched: |page| page >= 240 },
    // Thread-local storage.
    Part { len: 4 * PAGE, guard: 0, touched: |_| true },
    // The signal stack.
    Part { len: 16 * PAGE, guard: 0, touched: |page| page >= 14 },
    // A table.
    Part { len: 64 * PAGE, guard: 0, touched: |page| page % 2 == 0 },
];

/// What came of one start of all threads.
pub(super) struct Started {
    all_ready: Duration,
    latencies: Vec<Duration>,
}

impl Storm<'_> {
    /// Starts all threads again and again.
    pub(super) fn starts(&self, time: Duration, record: &mut Record) -> Result<()> {
        let begin = Instant::now();
        let (mut ready, mut latencies) = (Vec::new(), Vec::new());
        while ready.is_empty() || begin.elapsed() < time {
            self.interrupt.check()?;
            let started = self.start_all()?;
            ready.push(started.all_ready.as_nanos() as f64);
            latencies.extend(started.latencies.iter().map(Duration::as_nanos));
        }
        latencies.sort_unstable();
        let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share).ceil() as usize] as f64;
        record.insert("storms", ready.len() as f64);
        record.insert("all_ready_ns", median(ready).unwrap_or(0.0));
        record.insert("start_p50_ns", at(0.5));
        record.insert("start_p99_ns", at(0.99));
        record.insert("start_max_ns", at(1.0));
        Ok(())
    }

    /// Lets new threads go together, and waits until each has what it needs.
    pub(super) fn start_all(&self) -> Result<Started> {
        let gate = Gate::default();
        std::thread::scope(|scope| {
            let gate = &gate;
            let mut threads = Vec::new();
            for number in 0..self.args.threads {
                let builder = std::thread::Builder::new().stack_size(REAL_STACK_BYTES);
                let thread = builder.spawn_scoped(scope, move || self.begin_thread(number, gate));
                match thread {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        gate.open(false);
                        return Err(error)
                            .context("cannot start a thread: fewer --threads, or raise `ulimit -u`");
                    }
                }
            }
            gate.wait_for(self.args.threads);
            let begin = Instant::now();
            gate.open(true);
            let (mut latencies, mut last, mut failed) = (Vec::new(), begin, None);
            // The areas stay until all threads are ready.
            let mut kept = Vec::new();
            for thread in threads {
                match thread.join().ok().context("a thread has panicked")? {
                    Ok((latency, end, areas)) => {
                        latencies.push(latency);
                        last = last.max(end);
                        kept.push(areas);
                    }
                    Err(error) => failed = Some(error),
                }
            }
            for area in kept.into_iter().flatten() {
                area.unmap()?;
            }
            failed.map_or(Ok(Started { all_ready: last - begin, latencies }), Err)
        })
    }

    /// What a thread does: how long it took, when it was ready, and its areas.
    fn begin_thread(&self, number: usize, gate: &Gate) -> Result<(Duration, Instant, Vec<Area<'_>>)> {
        let hand = self.ground.hand();
        ensure!(gate.pass(), "not all threads could be started");
        let begin = Instant::now();
        let mut areas = Vec::with_capacity(PARTS.len());
        for part in &PARTS {
            let mut area = self.ground.map(part.len)?;
            if part.guard > 0 {
                area.close_start(part.guard)?;
            }
            for page in (0..part.len / PAGE).filter(|page| (part.touched)(*page)) {
                area.store(&hand, page * PAGE, stamp(number, page))?;
            }
            areas.push(area);
        }
        let end = Instant::now();
        for (part, area) in PARTS.iter().zip(&areas) {
            for page in (0..part.len / PAGE).filter(|page| (part.touched)(*page)) {
                area.verify(&hand, page * PAGE, stamp(number, page))?;
                area.verify(&hand, page * PAGE + 8, 0)?;
            }
        }
        Ok((end - begin, end, areas))
    }
}

/// Holds threads back until all are there.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    waiting: usize,
    /// Whether to go on, once that is known.
    open: Option<bool>,
}

impl Gate {
    fn lock(&self) -> std::sync::MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Waits until the gate opens; tells whether to go on.
    fn pass(&self) -> bool {
        let mut state = self.lock();
        state.waiting += 1;
        self.changed.notify_all();
        loop {
            if let Some(go_on) = state.open {
                return go_on;
            }
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    /// Waits until so many threads wait. They do nothing before, so that happens.
    fn wait_for(&self, threads: usize) {
        let mut state = self.lock();
        while state.waiting < threads {
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    fn open(&self, go_on: bool) {
        self.lock().open = Some(go_on);
        self.changed.notify_all();
    }
}
