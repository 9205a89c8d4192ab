//! What is measured of the library alone, in the lab's own process.
//!
//! * `core`: what single operations cost.
//! * `storm`: many threads start at once (workload thread-storm).
//! * `receive`: pages are inserted in batches (workload zero-copy-receive).
//! * `swap_in`: paging out and in at once.
//! * `usemem`: more memory than the budget, touched at random. `anonymous_touch`: first touches of what fits.
//! * `heap`: blocks of the program's own heap, in engines that have whole processes.
//! * `hot_cold`: memory of which a few pages get most accesses, in such engines, too.
//! * `fork_exec`: a fork and an exec of a process that has much memory.
//! * `sequential_pass`: one pass of stores and one of loads over more memory than the budget, and the `lz4`
//!   that bounds it.
//! * `in_memory`: accesses to memory that fits. `map_unmap`: mappings made and unmapped.
//!
//! Below them: `turns` lets engines take turns; `area` is memory of any engine, behind one safe interface, on
//! the `terms` that a workload asks for; `paging` is what workloads with swap share; `threads` starts and
//! joins those that all do the same; `apart` runs a workload in a process of its own; `compare` has the
//! records of several engines, their medians and ratios, `asked` what they should be; [`cli`] says what can
//! be asked for. Time is bounded everywhere, and all loops look at the flag that a signal raises.

mod anonymous_touch;
mod apart;
mod area;
mod asked;
mod backed;
pub mod cli;
mod compare;
mod core;
mod fork_exec;
mod heap;
mod hot_cold;
mod in_memory;
mod lru_rows;
mod lz4;
mod map_unmap;
mod paging;
mod receive;
mod sequential_pass;
mod storm;
mod swap_in;
mod terms;
mod threads;
mod turns;
mod usemem;

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::interrupt::Interrupt;
use crate::output::OutputFile;
use crate::progress::Progress;
pub use backed::have_backed;
use cli::LibraryBench;

/// What every measurement is given.
struct Stage {
    interrupt: Interrupt,
    progress: Progress,
}

/// Measures, prints a table and writes the JSON file.
///
/// # Errors
/// If an option is out of range, nothing can be measured here, or a wrong byte was read.
pub fn run(bench: &LibraryBench) -> Result<()> {
    bench.check()?;
    let json = bench.repeat().json.as_deref().map(OutputFile::prepare).transpose()?;
    let mut stage = Stage { interrupt: Interrupt::install()?, progress: Progress::new() };
    let (table, value) = measure(bench, &mut stage)?;
    drop(stage);
    print!("{table}");
    json.map_or(Ok(()), |json| json.write_json(&value))
}

/// Measures, and gives the JSON object.
///
/// # Errors
/// As [`run`].
pub fn figures(bench: &LibraryBench, progress: Progress) -> Result<serde_json::Value> {
    bench.check()?;
    let mut stage = Stage { interrupt: Interrupt::install()?, progress };
    measure(bench, &mut stage).map(|(_, value)| value)
}

/// The table and the JSON object of a measurement.
fn measure(bench: &LibraryBench, stage: &mut Stage) -> Result<(String, serde_json::Value)> {
    match bench {
        LibraryBench::AnonymousTouch(args) => anonymous_touch::measure(args, stage),
        LibraryBench::Core(args) => core::measure(args, stage),
        LibraryBench::ForkExec(args) => fork_exec::measure(args, stage),
        LibraryBench::Heap(args) => heap::measure(args, stage),
        LibraryBench::HotCold(args) => hot_cold::measure(args, stage),
        LibraryBench::InMemory(args) => in_memory::measure(args, stage),
        LibraryBench::MapUnmap(args) => map_unmap::measure(args, stage),
        LibraryBench::SequentialPass(args) => sequential_pass::measure(args, stage),
        LibraryBench::SwapIn(args) => swap_in::measure(args, stage),
        LibraryBench::ThreadStorm(args) => storm::measure(args, stage),
        LibraryBench::Usemem(args) => usemem::measure(args, stage),
        LibraryBench::ZeroCopyReceive(args) => receive::measure(args, stage),
    }
}

/// A part of a measurement: so many operations took so long.
struct Sample {
    operations: u64,
    time: Duration,
}

/// Times all of `work`, which says how many operations it was.
fn timed(work: impl FnOnce() -> Result<u64>) -> Result<Sample> {
    let start = Instant::now();
    let operations = work()?;
    Ok(Sample { operations, time: start.elapsed() })
}

/// Takes samples for about `time`, and at most for four times as long if most of it is not in the samples;
/// nanoseconds per operation. The first sample is for warming up.
fn ns_per_operation(
    time: Duration,
    interrupt: &Interrupt,
    mut sample: impl FnMut() -> Result<Sample>,
) -> Result<f64> {
    sample()?;
    let start = Instant::now();
    let (mut operations, mut spent) = (0, Duration::ZERO);
    while operations == 0 || spent < time && start.elapsed() < 4 * time {
        interrupt.check()?;
        let part = sample()?;
        operations += part.operations;
        spent += part.time;
    }
    Ok(spent.as_nanos() as f64 / operations as f64)
}

/// The machine's line above a table.
fn machine_line(machine: &crate::procfs::Machine) -> String {
    format!("machine: {}, {} CPUs, {} MiB", machine.kernel, machine.cpus, machine.memory_bytes >> 20)
}

#[cfg(test)]
mod tests;
