//! The engine `device`: chunks are read at random places by direct reads, at several depths one after the
//! other, and nothing is kept. It tells what the device can give.

use std::slice::from_ref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use elbowroom_lab::board::{DEPTH_RATES, now_ns};
use elbowroom_lab::chunks::{DEPTH_COUNT, DEPTHS, REQUEST_BYTES};
use elbowroom_lab::plan::{Access, Plan};
use elbowroom_lab::{PAGE_BYTES, content};

use crate::CommonArgs;
use crate::cache::open_direct;
use crate::ground::Ground;
use crate::memory::Mapping;
use crate::tally::{Counter, Outcome, Phase, Stop, Tally, run_threads};

pub fn run(common: &CommonArgs, ground: &Ground, plan: &Plan) -> Result<Outcome> {
    run_threads(common, ground, |thread, counter| match thread {
        // This thread lets as many others read as each depth asks for.
        0 => at_each_depth(common, plan, counter),
        _ => Stop::Over,
    })
}

fn at_each_depth(common: &CommonArgs, plan: &Plan, counter: &Counter<'_>) -> Stop {
    let time = Duration::from_secs_f64(common.seconds / DEPTH_COUNT as f64);
    for (number, depth) in DEPTHS.into_iter().enumerate() {
        let (began_ns, until) = (now_ns(), Instant::now() + time);
        let dice = plan.dice(number as u64);
        let places = Mutex::new(Places { plan, dice, step: Vec::new(), left: 0..0 });
        let read_bytes = AtomicU64::new(0);
        let reader = Reader { common, tally: counter.tally, places: &places, until };
        let stopped = thread::scope(|scope| {
            let work = || reader.read_on(&read_bytes);
            let threads: Vec<_> = (0..depth).map(|_| scope.spawn(work)).collect();
            let stops = threads.into_iter().map(|thread| thread.join().expect("a reader does not panic"));
            stops.filter_map(Result::err).find(|stop| !matches!(stop, Stop::Over))
        });
        if let Some(stop) = stopped {
            return stop;
        }
        let (bytes, ns) = (read_bytes.load(Ordering::Relaxed), now_ns() - began_ns);
        counter.add_pages(bytes / PAGE_BYTES);
        counter.tally.add(DEPTH_RATES + number, (bytes as f64 / (ns as f64 / 1e9)) as u64);
    }
    Stop::Over
}

/// The places that are read: those of one step after the other, each in order.
struct Places<'a> {
    plan: &'a Plan,
    dice: content::PageDice,
    /// What is left of the step that is under way, the last one first.
    step: Vec<Access>,
    /// What is left of the chunk that is under way.
    left: std::ops::Range<u64>,
}

impl Places<'_> {
    /// The next read, in bytes of the file.
    fn next(&mut self) -> std::ops::Range<u64> {
        while self.left.is_empty() {
            match self.step.pop() {
                Some(access) => self.left = self.plan.layout.pages(access.chunk),
                None => {
                    self.plan.draw(&mut self.dice, &mut self.step);
                    self.step.reverse();
                }
            }
        }
        let start = self.left.start;
        // A page more, of a chunk that begins within one, is no read of its own.
        let is_last = self.left.end - start <= REQUEST_BYTES + PAGE_BYTES;
        self.left.start = if is_last { self.left.end } else { start + REQUEST_BYTES };
        start..self.left.start
    }
}

struct Reader<'a> {
    common: &'a CommonArgs,
    tally: &'a Tally,
    places: &'a Mutex<Places<'a>>,
    until: Instant,
}

impl Reader<'_> {
    fn read_on(&self, read_bytes: &AtomicU64) -> Result<(), Stop> {
        let file = open_direct(&self.common.file(0))?;
        let memory = Mapping::anonymous(REQUEST_BYTES + PAGE_BYTES).context("no memory for reads")?;
        while Instant::now() < self.until && !self.tally.stopped() {
            let place = self.places.lock().expect("no reader panics").next();
            let len = place.end - place.start;
            let before = now_ns();
            memory.fill(from_ref(&(0..len)), &file, place.start).context("a direct read failed")?;
            self.tally.operation_took(Phase::Busy, now_ns() - before);
            for (at, page) in (place.start / PAGE_BYTES..place.end / PAGE_BYTES).enumerate() {
                let (got, expected) = (memory.stamp_at(at as u64), content::stamp(self.common.seed, 0, page));
                if got != expected {
                    return Err(Stop::wrong_page(0, page, got, expected));
                }
            }
            read_bytes.fetch_add(len, Ordering::Relaxed);
        }
        Ok(())
    }
}
