//! zero-copy-receive: an RPC-like stream of 4 KiB messages.
//!
//! All threads but one find and lock a VMA of their own, insert received pages into it in batches and get
//! back the pages that were there before; the last one keeps changing the rights of other mappings. Each run
//! of an engine has two phases: empty batches, which only find, lock and unlock the VMA, and full ones. What
//! the first costs of the second is the share of finding and locking; how much less it costs where faults do
//! not take the layout lock is what taking that lock costs.
//!
//! Costs are processor time of the inserting threads, so that there may be more threads than processors.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use elbowroom::{Buffer, Place, Prot, Soft, Space};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use super::Stage;
use super::area::{Ground, anonymous};
use super::cli::{ReceiveArgs, without_vma_locks};
use super::compare::{Comparison, Record, Row, Unit};
use crate::engine::{Engine, Kind};
use crate::interrupt::Interrupt;
use crate::load::{Begun, Load};
use crate::size::Size;

const PAGE: usize = crate::PAGE_BYTES as usize;
/// Pages of each inserting thread's mapping.
const AREA_PAGES: usize = 256;
/// Mappings are so far apart that they never become one.
const APART: usize = 4 << 20;
/// Where the first is, in its space.
const FIRST: usize = 1 << 30;
/// Mappings whose rights are changed.
const OTHERS: usize = 64;
const OTHER_PAGES: usize = 16;

const ROWS: &[Row] = &[
    Row::new("insert_ns", "insert, per page", Unit::Nanoseconds),
    Row::new("batch_ns", "batch", Unit::Nanoseconds),
    Row::new("find_ns", "find + lock + unlock of the VMA", Unit::Nanoseconds),
    Row::new("find_share_percent", "share of find + lock + unlock", Unit::Percent),
    Row::new("layout_share_percent", "share of the layout lock", Unit::Percent),
    Row::new("layout_takes_percent", "batches that took the layout lock", Unit::Percent),
    Row::new("layout_wait_percent", "waits for the layout lock, of all threads' time", Unit::Percent),
    Row::new("inserts_per_second", "inserts per second, all threads", Unit::Count),
    Row::new("protects_per_second", "changes of rights per second", Unit::Count),
    Row::new("vma_lock_success", "VMA lock: success", Unit::Count),
    Row::new("vma_lock_abort", "VMA lock: abort", Unit::Count),
    Row::new("vma_lock_retry", "VMA lock: retry", Unit::Count),
    Row::new("vma_lock_miss", "VMA lock: miss", Unit::Count),
    Row::new("layout_waits", "layout lock waits", Unit::Count),
    Row::new("layout_wait_ns", "layout lock wait, sum", Unit::Nanoseconds),
];

/// What a line about one run shows.
const HIGHLIGHTS: &[&str] = &["insert_ns", "find_ns", "find_share_percent", "layout_wait_percent"];

/// The least budget for so many threads and pages in a batch.
pub fn least_memory(threads: usize, batch: usize) -> Size {
    Size::from_bytes((8 << 20) + (threads * (AREA_PAGES + batch) * PAGE) as u64 * 5 / 4)
}

/// Runs the engines in turn; the table and the JSON object.
///
/// # Errors
/// If no manager can start, a wrong byte was read, or a signal came.
pub fn measure(args: &ReceiveArgs, stage: &mut Stage) -> Result<(String, Value)> {
    let description = format!(
        "zero-copy-receive: {} threads insert, 1 changes rights, batches of {} pages, {} runs of 2 x {} s",
        args.turns.threads - 1,
        args.batch,
        args.turns.repeat.runs,
        args.turns.repeat.seconds
    );
    let mut comparison = Comparison::new("zero-copy-receive", description, args, ROWS, HIGHLIGHTS)?;
    comparison.engines.clone_from(&args.turns.engines);
    let mut grounds = Vec::new();
    for engine in &args.turns.engines {
        let ground =
            Ground::new(*engine, args.turns.memory).with_context(|| format!("cannot run {engine}"))?;
        if let Ground::Soft(space, ..) = &ground {
            map_all(space, args.turns.threads - 1)?;
        }
        grounds.push((*engine, ground));
    }
    for run in 1..=args.turns.repeat.runs {
        let (mut records, begun) = (Vec::new(), Load::begin());
        for (engine, ground) in &grounds {
            let label = format!("run {run}/{} {engine}", args.turns.repeat.runs);
            stage.progress.update(|| label.clone());
            let record = run_one(ground, args, &stage.interrupt).with_context(|| label.clone())?;
            stage.progress.keep(&format!("{label}: {}", comparison.line(&record)));
            records.push((*engine, record));
        }
        note_layout_share(&mut records);
        let load = begun.and_then(Begun::end);
        records.into_iter().for_each(|(engine, record)| comparison.push(engine, run, record, load));
    }
    Ok((comparison.table()?, comparison.json()?))
}

/// How much of a batch's processor time is taking the layout lock: how often that is, times what it costs,
/// which is how much longer finding the VMA takes with it. Both engines are needed to know that.
fn note_layout_share(records: &mut [(Engine, Record)]) {
    let find_ns = |engine| {
        let record = records.iter().find(|(of, _)| *of == engine).map(|(_, record)| record)?;
        record.get("find_ns").copied()
    };
    let (taking, not_taking) = (without_vma_locks(), Engine::whole(Kind::Soft));
    let Some((with, without)) = find_ns(taking).zip(find_ns(not_taking)) else { return };
    for (_, record) in records {
        let share = record["layout_takes_percent"] * (with - without).max(0.0) / record["batch_ns"];
        record.insert("layout_share_percent", share);
    }
}

/// Where mapping `number` is.
fn place(space: &Space<Soft>, number: usize) -> usize {
    space.base() + FIRST + number * APART
}

/// Maps an area for each inserting thread, and behind them those whose rights change.
fn map_all(space: &Space<Soft>, inserting: usize) -> Result<()> {
    for number in 0..inserting + OTHERS {
        let pages = if number < inserting { AREA_PAGES } else { OTHER_PAGES };
        space.map(anonymous(Place::Fixed(place(space, number)), pages * PAGE))?;
    }
    Ok(())
}

/// What a phase gave.
struct Phase {
    calls: u64,
    pages: u64,
    protects: u64,
    cpu: Duration,
    wall: Duration,
}

fn run_one(ground: &Ground, args: &ReceiveArgs, interrupt: &Interrupt) -> Result<Record> {
    let Ground::Soft(space, manager, _) = ground else { bail!("pages are inserted into soft spaces only") };
    let time = Duration::from_secs_f64(args.turns.repeat.seconds);
    let finding = phase(space, args, 0, time, interrupt)?;
    let (stats, layout) = (manager.stats(), ground.layout_lock().context("a space has a layout lock")?);
    let full = phase(space, args, args.batch, time, interrupt)?;
    let after = manager.stats();
    let layout_after = ground.layout_lock().context("a space has a layout lock")?;

    let per = |time: Duration, count: u64| time.as_nanos() as f64 / count.max(1) as f64;
    let (find_ns, batch_ns) = (per(finding.cpu, finding.calls), per(full.cpu, full.calls));
    let waited_ns = (layout_after.wait_ns - layout.wait_ns) as f64;
    let all_time_ns = full.wall.as_nanos() as f64 * args.turns.threads as f64;
    let takes = after.layout_lock_faults - stats.layout_lock_faults;
    // The pages that the threads put into their mappings at first, one by one, count too.
    let batches = full.calls + ((args.turns.threads - 1) * AREA_PAGES) as u64;
    Ok(Record::from([
        ("insert_ns", per(full.cpu, full.pages)),
        ("batch_ns", batch_ns),
        ("find_ns", find_ns),
        ("find_share_percent", find_ns / batch_ns * 100.0),
        ("layout_takes_percent", takes as f64 / batches as f64 * 100.0),
        ("layout_wait_percent", waited_ns / all_time_ns * 100.0),
        ("inserts_per_second", full.pages as f64 / full.wall.as_secs_f64()),
        ("protects_per_second", full.protects as f64 / full.wall.as_secs_f64()),
        ("vma_lock_success", (after.vma_lock_success - stats.vma_lock_success) as f64),
        ("vma_lock_abort", (after.vma_lock_abort - stats.vma_lock_abort) as f64),
        ("vma_lock_retry", (after.vma_lock_retry - stats.vma_lock_retry) as f64),
        ("vma_lock_miss", (after.vma_lock_miss - stats.vma_lock_miss) as f64),
        ("layout_waits", (layout_after.contended - layout.contended) as f64),
        ("layout_wait_ns", waited_ns),
    ]))
}

/// Lets all threads work for a while, with batches of so many pages.
fn phase(
    space: &Space<Soft>,
    args: &ReceiveArgs,
    batch: usize,
    time: Duration,
    interrupt: &Interrupt,
) -> Result<Phase> {
    let stop = AtomicBool::new(false);
    let protects = AtomicU64::new(0);
    let inserting = args.turns.threads - 1;
    std::thread::scope(|scope| {
        let (stop, protects) = (&stop, &protects);
        let begin = Instant::now();
        let changer = scope.spawn(move || change_rights(space, inserting, stop, protects));
        let threads: Vec<_> = (0..inserting)
            .map(|number| scope.spawn(move || Receiver::new(space, number, batch)?.work(stop)))
            .collect();
        let slept = interrupt.sleep_until(begin + time);
        stop.store(true, Ordering::Relaxed);
        let mut phase = Phase { calls: 0, pages: 0, protects: 0, cpu: Duration::ZERO, wall: Duration::ZERO };
        let mut result = slept;
        for thread in threads {
            match thread.join().ok().context("a thread has panicked").flatten() {
                Ok((calls, cpu)) => {
                    phase.calls += calls;
                    phase.pages += calls * batch as u64;
                    phase.cpu += cpu;
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
        phase.wall = begin.elapsed();
        let changed = changer.join().ok().context("a thread has panicked").flatten();
        phase.protects = protects.load(Ordering::Relaxed);
        result.and(changed).map(|()| phase)
    })
}

fn change_rights(space: &Space<Soft>, first: usize, stop: &AtomicBool, done: &AtomicU64) -> Result<()> {
    for round in 0_usize.. {
        let prot = if round.is_multiple_of(2) { Prot::READ } else { Prot::READ | Prot::WRITE };
        for number in first..first + OTHERS {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            space.protect(place(space, number), OTHER_PAGES * PAGE, prot)?;
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// An inserting thread.
struct Receiver<'a> {
    space: &'a Space<Soft>,
    addr: usize,
    buffers: Vec<Buffer>,
    /// What each page of the mapping holds.
    held: Vec<u64>,
    messages: u64,
}

impl<'a> Receiver<'a> {
    /// One with pages to receive into, and a page at each place of its mapping.
    fn new(space: &'a Space<Soft>, number: usize, batch: usize) -> Result<Self> {
        let addr = place(space, number);
        let mut this = Self { space, addr, buffers: Vec::new(), held: vec![0; AREA_PAGES], messages: 0 };
        for page in 0..AREA_PAGES {
            this.buffers = vec![space.receive_buffer()?];
            this.receive();
            space.insert_pages(addr + page * PAGE, &mut this.buffers)?;
            this.held[page] = this.messages;
        }
        this.buffers = (0..batch).map(|_| space.receive_buffer()).collect::<Result<_, _>>()?;
        Ok(this)
    }

    /// A message arrives in each buffer: its number.
    fn receive(&mut self) {
        for buffer in &mut self.buffers {
            self.messages += 1;
            buffer.bytes_mut()[..8].copy_from_slice(&self.messages.to_le_bytes());
        }
    }

    /// Inserts until it is told to stop; how many batches, and the processor time that they took.
    fn work(mut self, stop: &AtomicBool) -> Result<(u64, Duration)> {
        let cpu = self.space.cpu();
        let batch = self.buffers.len();
        let mut calls = 0;
        let begin = thread_time()?;
        while calls == 0 || !stop.load(Ordering::Relaxed) {
            let mut page = 0;
            // A round over the mapping; at least one batch, which may be empty.
            while page + batch.max(1) <= AREA_PAGES {
                self.receive();
                self.space.insert_pages(self.addr + page * PAGE, &mut self.buffers)?;
                self.check_returned(page)?;
                calls += 1;
                page += batch.max(1);
            }
            if batch > 0 {
                let last = page - 1;
                let got = u64::from_le(cpu.read_u64(self.addr + last * PAGE)?);
                ensure!(
                    got == self.held[last],
                    "wrong content: message {got} instead of {}",
                    self.held[last]
                );
            }
        }
        Ok((calls, thread_time()?.saturating_sub(begin)))
    }

    /// What came back must be what was there; what is there now is noted.
    fn check_returned(&mut self, page: usize) -> Result<()> {
        let first = self.messages + 1 - self.buffers.len() as u64;
        for (number, buffer) in self.buffers.iter().enumerate() {
            let held = &mut self.held[page + number];
            let got = buffer.bytes().first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
            ensure!(got == Some(*held), "wrong content: {got:?} came back instead of message {held}");
            *held = first + number as u64;
        }
        Ok(())
    }
}

/// Processor time of this thread.
fn thread_time() -> Result<Duration> {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).context("the clock of a thread's time is wrong")
}
