//! Unmodified programs, as people use them, beside the kernel: `lab run programs`.
//!
//! [`cli`] says what can be asked for; `catalog` has the programs, whose scripts are in lab/programs; `data`
//! makes their data and makes it cold; `child` runs one of them to its end; `report` has the figures, `goals`
//! what they should be. Each program must print the same in all engines, and what it has stored must be the
//! same, or the session fails.

mod auto;
mod building;
mod catalog;
pub mod child;
pub mod cli;
mod data;
mod goals;
mod report;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::catalog::Program;
use self::cli::ProgramsArgs;
use self::data::{Cache, Store};
use self::report::{LeftOut, Report, Run, Sums};
use crate::bench::have_backed;
use crate::cgroup::Cgroup;
use crate::device::Device;
use crate::engine::{Engine, Kind};
use crate::interrupt::Interrupt;
use crate::kernel_swap::KernelSwap;
use crate::load::{Begun, Load};
use crate::output::OutputFile;
use crate::procfs;
use crate::programs::{Budget, Programs, Swap};
use crate::progress::Progress;
use crate::resident::{Managed, Sampler};
use crate::session::read_stats;
use crate::size::Size;

/// What a signal that ends a run leaves behind.
pub const UNDONE: &str =
    "the program is killed, control groups and readahead are put back, and the data that was made is kept";

/// How long the disk is left alone before each run.
const REST: Duration = Duration::from_millis(200);

struct Session<'a> {
    args: &'a ProgramsArgs,
    store: Store,
    programs: Programs,
    device: Option<Device>,
    interrupt: Interrupt,
    /// Where the engine writes its statistics.
    stats: tempfile::TempDir,
}

/// Runs the programs in the engines, prints the table and writes the JSON file.
///
/// # Errors
/// If an option is out of range, a program fails, or two runs of one have different results.
pub fn run(args: &ProgramsArgs) -> Result<()> {
    args.check()?;
    let json = args.json.as_deref().map(OutputFile::prepare).transpose()?;
    let report = measure(args)?;
    print!("{}", report.table());
    if let Some(json) = json {
        json.write_json(&report.json())?;
    }
    if report.ours_failed {
        bail!("not all programs ran under Elbowroom; what is left out says why");
    }
    Ok(())
}

fn measure(args: &ProgramsArgs) -> Result<Report> {
    let mut progress = Progress::new();
    let mut left_out = Vec::new();
    let mut leave_out = |what: String, reason: String, progress: &mut Progress| {
        progress.keep(&format!("{what} is left out: {reason}"));
        left_out.push(LeftOut { what, reason });
    };
    let engines = usable_engines(args, |engine, reason| leave_out(engine, reason, &mut progress))?;
    let interrupt = Interrupt::install()?;
    let mut store = Store::open(args.dir.as_deref(), args.percent)?;
    let wanted: Vec<_> = args.all().iter().filter(|program| args.wants(program.name)).collect();
    if args.install {
        store.install(&wanted, &interrupt, &mut progress)?;
    }
    let mut found = Vec::new();
    for program in wanted {
        let missing = store.missing(program, &interrupt);
        interrupt.check()?;
        if missing.is_empty() {
            found.push(program);
        } else {
            leave_out(program.name.to_owned(), missing.join("; "), &mut progress);
        }
    }
    if found.is_empty() {
        let reasons: Vec<_> =
            left_out.into_iter().map(|out| format!("{}: {}", out.what, out.reason)).collect();
        bail!("none of the programs can be run here; --install may help\n{}", reasons.join("\n"));
    }
    let device = Device::under(store.dir()).ok();
    let stats = tempfile::tempdir().context("cannot make a directory for statistics")?;
    let session = Session { args, store, programs: Programs::find()?, device, interrupt, stats };
    let readahead = session.device.as_ref().map(|device| device.with_readahead(args.kernel_readahead));
    let readahead = match readahead {
        Some(Ok(guard)) => Some(guard),
        Some(Err(error)) => {
            progress.keep(&format!("the readahead stays as it is: {error:#}"));
            None
        }
        None => None,
    };
    let limited = engines.iter().any(|engine| engine.kind == Kind::Kernel);
    let swap = args.swap().filter(|_| limited);
    let _swap = swap.map(|size| KernelSwap::on(session.store.dir(), size)).transpose()?;
    let mut runs = Vec::new();
    let mut failed = Vec::new();
    for program in found {
        session.run_program(program, &engines, &mut runs, &mut failed, &mut progress)?;
    }
    let ours_failed = failed.iter().any(|(engine, _)| !engine.is_kernel());
    left_out.extend(failed.into_iter().map(|(_, left_out)| left_out));
    drop(progress);
    let machine = procfs::machine()?;
    let description = format!(
        "programs{} with {} of memory: {} runs, {} % of the data, readahead {}\nmachine: {}, {} CPUs, {} MiB",
        if args.is_in_memory() { " that fit," } else { "" },
        args.memory(),
        args.runs,
        args.percent,
        readahead.map_or_else(|| "as the device has it".to_owned(), |_| args.kernel_readahead.to_string()),
        machine.kernel,
        machine.cpus,
        machine.memory_bytes >> 20
    );
    let parameters = serde_json::to_value(args)?;
    let in_memory = args.is_in_memory();
    Ok(Report { in_memory, parameters, machine, description, engines, left_out, runs, ours_failed })
}

/// Without a control group the kernel's column is left out.
fn usable_engines(args: &ProgramsArgs, mut leave_out: impl FnMut(String, String)) -> Result<Vec<Engine>> {
    let engines = args.engines();
    let limited = |engine: &&Engine| engine.is_kernel() && engine.kind != Kind::Plain;
    let (kernels, others): (Vec<Engine>, Vec<Engine>) = engines.iter().partition(limited);
    if kernels.is_empty() {
        return Ok(others);
    }
    match Cgroup::create(args.memory()) {
        Ok(_) => Ok(engines),
        Err(error) if others.is_empty() => {
            Err(error.context("the kernel cannot be measured under the budget"))
        }
        Err(error) => {
            kernels.iter().for_each(|engine| leave_out(engine.to_string(), format!("{error:#}")));
            Ok(others)
        }
    }
}

impl Session<'_> {
    fn run_program(
        &self,
        program: &Program,
        engines: &[Engine],
        runs: &mut Vec<Run>,
        failed: &mut Vec<(Engine, LeftOut)>,
        progress: &mut Progress,
    ) -> Result<()> {
        self.store.make(program, &self.interrupt, progress)?;
        let mut first: Option<Run> = None;
        let mut engines = engines.to_vec();
        let mut needed = None;
        for turn in 1..=self.args.runs {
            for engine in &engines.clone() {
                let label = format!("{} run {turn}/{} {engine}", program.name, self.args.runs);
                progress.update(|| format!("{label}: making the data cold"));
                let memory = match engine.kind {
                    Kind::ElbowroomLess => auto::less(needed),
                    _ => Ok(self.args.part_for(program, self.args.memory())),
                };
                let run = memory.and_then(|memory| {
                    self.run_one(program, *engine, (turn, memory), || progress.update(|| label.clone()))
                });
                self.interrupt.check()?;
                let run = match run {
                    Ok(run) => run,
                    // That it does not run in so little memory, or not in time, is a figure, too.
                    Err(error) => {
                        progress.keep(&format!("{label}: {error:#}"));
                        let what = format!("{} under {engine}", program.name);
                        failed.push((*engine, LeftOut { what, reason: format!("{error:#}") }));
                        engines.retain(|other| other != engine);
                        continue;
                    }
                };
                let mebibytes = |bytes: Option<u64>| bytes.map_or(0, |bytes| bytes >> 20);
                let (read, written) = (mebibytes(run.device_read_bytes), mebibytes(run.device_written_bytes));
                let (seconds, cpu, result) = (run.seconds, run.cpu_seconds, &run.result);
                let rate = run.lines_per_second;
                let rate = rate.map(|rate| format!("{rate:.2} {}/s, ", run.lines_are)).unwrap_or_default();
                progress.keep(&format!(
                    "{label}: {rate}{seconds:.2} s, CPU {cpu:.2} s, read {read} MiB, \
                     written {written} MiB; {result}"
                ));
                let first = first.get_or_insert_with(|| run.clone());
                if first.result != run.result {
                    bail!(
                        "{} has another result in run {turn} under {engine} than in run {} under {}: \
                         {} and {}",
                        program.name,
                        first.run,
                        first.engine,
                        run.result,
                        first.result
                    );
                }
                if engine.kind == Kind::ElbowroomAuto {
                    needed = run.sums.need;
                }
                runs.push(run);
            }
        }
        self.store.clear(program)
    }

    fn run_one(
        &self,
        program: &Program,
        engine: Engine,
        (turn, memory): (usize, Size),
        mut begins: impl FnMut(),
    ) -> Result<Run> {
        let cache = if self.args.begins_warm(engine) { Cache::Warm } else { Cache::Cold };
        self.store.prepare(program, cache, &self.interrupt)?;
        self.interrupt.sleep_until(Instant::now() + REST)?;
        if self.args.is_in_memory() && !self.args.cold_memory {
            have_backed(self.args.memory().bytes(), &self.interrupt)?;
        }
        begins();
        let line = self.store.run_line(program);
        // Of this run only: each of its processes that has a manager writes a file there.
        let scratch = tempfile::tempdir_in(self.stats.path()).context("no directory for statistics")?;
        let stats = scratch.path().join("stats.json");
        // In proportion: what describes it is a part of the memory.
        let swap = self.args.swap().map(|swap| self.args.part_for(program, swap));
        let limited = engine.is_kernel() && engine.kind != Kind::Plain;
        let group = if limited { Some(Cgroup::create_with(memory, swap.is_some())?) } else { None };
        let line: Vec<OsString> = match &group {
            Some(group) => self.programs.program_in_cgroup(group, &line),
            None if engine.kind == Kind::Plain => line,
            None => {
                // All that a program allocates is managed, or the larger part.
                let heap = if engine.kind == Kind::ElbowroomLarge { "large" } else { "all" };
                let swap = swap.map(|size| Swap { size, dir: self.store.dir(), heap, fork: "copy" });
                let is_auto = engine.kind == Kind::ElbowroomAuto;
                let budget = if is_auto { Budget::Auto(memory) } else { Budget::Fixed(memory) };
                self.programs.program_under_elbowroom(budget, &stats, &engine.off(), swap, &line)
            }
        };
        let mut lines = Lines::default();
        let mut sampler = Sampler::new(if engine.is_kernel() { Managed::No } else { Managed::Yes });
        let bound = Duration::from_secs_f64(self.args.bound_seconds);
        let begun = Load::begin();
        let ended = child::run_sampled(&line, bound, &self.interrupt, |_| lines.add(), Some(&mut sampler));
        if let Some(kills @ 1..) = group.as_ref().map(Cgroup::oom_kills) {
            bail!("it cannot run in {memory} ({kills} out-of-memory kills by the kernel); raise --memory");
        }
        let ended = ended?;
        let load = begun.and_then(Begun::end);
        drop(group);
        let stored = self.store.check(program, &self.interrupt)?;
        Ok(Run {
            program: program.name,
            engine,
            run: turn,
            seconds: ended.time.as_secs_f64(),
            lines_per_second: lines.per_second().filter(|_| !program.lines_are.is_empty()),
            lines_are: program.lines_are,
            cpu_seconds: ended.cpu.total().as_secs_f64(),
            device_read_bytes: ended.device_bytes.map(|bytes| bytes.0),
            device_written_bytes: ended.device_bytes.map(|bytes| bytes.1),
            load,
            result: result(&ended.output, stored.as_ref()),
            memory_bytes: memory.bytes(),
            peak: ended.peak,
            sums: if engine.is_kernel() { Sums::default() } else { sums(scratch.path())? },
            engine_stats: if engine.is_kernel() { None } else { stats_if_any(&stats)? },
        })
    }
}

/// When a program printed its lines.
#[derive(Default)]
struct Lines {
    first: Option<Instant>,
    since_first: Duration,
    after_first: u32,
}

impl Lines {
    /// Notes a line that has come just now.
    fn add(&mut self) {
        match self.first {
            None => self.first = Some(Instant::now()),
            Some(first) => {
                self.since_first = first.elapsed();
                self.after_first += 1;
            }
        }
    }

    /// Of the lines after the first one, which says that the program has started.
    fn per_second(&self) -> Option<f64> {
        (self.after_first > 0).then(|| f64::from(self.after_first) / self.since_first.as_secs_f64())
    }
}

/// A program that maps nothing large enough starts no manager, which writes no statistics then.
fn stats_if_any(path: &Path) -> Result<Option<serde_json::Value>> {
    path.exists().then(|| read_stats(path)).transpose()
}

/// How many pages all processes of a run have paged out, by the statistics in a directory; `None` without
/// any.
fn pages_out(dir: &Path) -> Result<Option<u64>> {
    let pages =
        |stats: &serde_json::Value| stats["pswpout"].as_u64().context("the statistics have no pswpout");
    all_stats(dir)?.iter().map(pages).try_fold(None, |sum, pages| Ok(Some(sum.unwrap_or(0) + pages?)))
}

/// What the processes of a run have counted together, by the statistics in a directory.
fn sums(dir: &Path) -> Result<Sums> {
    Ok(Sums { pages_out: pages_out(dir)?, need: auto::need(dir)? })
}

/// The statistics of all processes of a run.
fn all_stats(dir: &Path) -> Result<Vec<serde_json::Value>> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    entries.map(|entry| read_stats(&entry?.path())).collect()
}

fn result(printed: &child::Output, stored: Option<&child::Output>) -> String {
    let mut text = format!("printed {} bytes, sum {:016x}", printed.bytes, printed.checksum);
    if let Some(stored) = stored {
        text.push_str(&format!("; stored {}", stored.text));
    }
    text
}
