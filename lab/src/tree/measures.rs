//! What each row runs, and the figures that it gives.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::cli::{Quiet, Row, Shares};
use super::pss::TreeSampler;
use super::report::Side;
use super::stage::{Act, Acting, Beside, Stage};
use super::{Session, python};
use crate::cgroup::Cgroup;
use crate::kernel_swap::KernelSwap;
use crate::procfs;
use crate::size::Size;
use crate::unmodified::child::{self, Ended, Watch};

/// How much memory a tree may have beyond the budget for each of its processes.
const BESIDE_BUDGET: u64 = 32 << 20;
/// A budget in which everything fits.
const ENOUGH: Size = Size::from_bytes(2 << 30);
/// Suppresses the summary, so that the error of a program that fails shows what the program itself has
/// said.
const QUIET: [&str; 1] = ["--quiet"];
/// How long a program has waited when its memory is measured.
const IDLE: Duration = Duration::from_secs(1);

/// Figures of a run, by their keys.
pub type Values = Vec<(&'static str, f64)>;

impl Session<'_> {
    /// Runs one side of a row once.
    ///
    /// # Errors
    /// If a program cannot be run, fails, or loses memory.
    pub fn measure(&self, row: Row, side: Side) -> Result<Values> {
        match row {
            Row::Workers => self.workers(side),
            Row::Make => self.make(side),
            Row::Commands => self.commands(side),
            Row::Start => self.start(side),
            Row::Idle => self.idle(side),
            Row::Quiet => self.quiet(side),
            Row::Lowered => self.acted(Act::Lower),
            Row::Killed => self.acted(Act::Kill),
        }
    }

    /// The command line of a program: under Elbowroom with a budget in which everything fits, or as it is.
    fn with_enough(&self, side: Side, line: &[OsString]) -> Vec<OsString> {
        match side {
            Side::Elbowroom => self.programs.program_with_budget(ENOUGH, self.dir(), &[], line),
            _ => line.to_vec(),
        }
    }

    fn run(&self, line: &[OsString]) -> Result<Ended> {
        child::run(line, self.bound, &self.interrupt, |_| {})
    }

    fn run_watched(&self, line: &[OsString], watch: &mut dyn Watch) -> Result<Ended> {
        child::run_watched(line, self.bound, &self.interrupt, watch)
    }

    /// The Python workers.
    fn workers(&self, side: Side) -> Result<Values> {
        let Shares { memory, count, each } = self.scale.workers;
        let memory = mebibytes(memory);
        let line = self.workers_line(&[&count.to_string(), &each.to_string(), "3"])?;
        // The control group is dropped before the swap file: as long as the group has pages in swap, the
        // file is busy. The memory of the interpreters goes to swap, too, so the file has twice the size of
        // the arrays.
        let size = mebibytes(2 * count as u64 * each);
        let swap = (side == Side::Kernel).then(|| KernelSwap::on(self.dir(), size)).transpose()?;
        let group = swap.is_some().then(|| Cgroup::create_with(memory, true)).transpose()?;
        let line = match &group {
            Some(group) => self.programs.program_in_cgroup(group, &line),
            None => self.programs.program_with_budget(memory, self.dir(), &QUIET, &line),
        };
        let mut sampler = TreeSampler::new();
        let ended = self.run_watched(&line, &mut sampler);
        if let Some(kills @ 1..) = group.as_ref().map(Cgroup::oom_kills) {
            bail!("the workers cannot run in {memory} ({kills} out-of-memory kills by the kernel)");
        }
        let ended = ended?;
        ensure!(ended.output.text == "all sums are right", "the workers say {:?}", ended.output.text);
        let peak = sampler.peak();
        let mut values = vec![
            ("seconds", ended.time.as_secs_f64()),
            ("cpu_seconds", ended.cpu.total().as_secs_f64()),
            ("peak_pss_bytes", peak.pss_bytes as f64),
            ("samples", peak.samples as f64),
            ("pss_readings", peak.readings as f64),
        ];
        if side == Side::Elbowroom {
            // The PSS of the same interpreters without arrays and without Elbowroom counts as unmanaged
            // memory.
            let mut sampler = TreeSampler::new();
            self.run_watched(&self.workers_line(&[&count.to_string(), "idle"])?, &mut sampler)?;
            let unmanaged = sampler.peak().pss_bytes;
            let allowed = memory.bytes() + BESIDE_BUDGET * peak.processes + unmanaged;
            values.extend([("unmanaged_bytes", unmanaged as f64), ("allowed_bytes", allowed as f64)]);
        }
        Ok(values)
    }

    fn workers_line(&self, arguments: &[&str]) -> Result<Vec<OsString>> {
        let mut line = vec![python()?, self.dir().join("workers.py").into()];
        line.extend(arguments.iter().map(OsString::from));
        Ok(line)
    }

    /// Runs make on the C project, and then the compiled program, whose output must be the same each time.
    fn make(&self, side: Side) -> Result<Values> {
        let project = self.project()?;
        let line = ["make", "-s", "-j4", "-C"].map(OsString::from).into_iter();
        let line: Vec<_> = line.chain([project.dir().into()]).collect();
        if self.printed.get().is_none() {
            // A first make, which is not measured, reads the compiler and the headers from the disk. Else
            // that would slow down the side that is first.
            self.run(&line)?;
        }
        project.clean()?;
        let ended = self.run(&self.with_enough(side, &line))?;
        let printed = self.run(&[project.program().into()])?.output.text;
        let first = self.printed.get_or_init(|| printed.clone());
        ensure!(*first == printed, "what was compiled prints {printed}, and {first} the first time");
        Ok(vec![("seconds", ended.time.as_secs_f64()), ("cpu_seconds", ended.cpu.total().as_secs_f64())])
    }

    /// A shell that runs commands one after the other.
    fn commands(&self, side: Side) -> Result<Values> {
        let count = self.scale.commands;
        let script = format!("i=0; while [ $i -lt {count} ]; do /bin/true; i=$((i + 1)); done");
        let ended = self.run(&self.with_enough(side, &shell(&script, &[])))?;
        Ok(vec![("ms_per_command", ended.time.as_secs_f64() * 1e3 / f64::from(count))])
    }

    /// Starts programs that do nothing, and gives the medians of their times.
    fn start(&self, side: Side) -> Result<Values> {
        let median = |line: &[OsString]| -> Result<f64> {
            let line = self.with_enough(side, line);
            let times = (0..self.scale.starts).map(|_| Ok(self.run(&line)?.time.as_secs_f64()));
            let mut times = times.collect::<Result<Vec<_>>>()?;
            times.sort_by(f64::total_cmp);
            Ok(times[times.len() / 2] * 1e3)
        };
        Ok(vec![
            ("true_ms", median(&["/bin/true".into()])?),
            ("python_ms", median(&[python()?, "-c".into(), "pass".into()])?),
        ])
    }

    /// The PSS of a Python process that waits, without managed memory and with 4 MiB of it.
    fn idle(&self, side: Side) -> Result<Values> {
        let pss_of = |makes: &str| -> Result<f64> {
            let script = format!("import time\n{makes}\nprint('waits', flush=True)\ntime.sleep(2)");
            let line = self.with_enough(side, &[python()?, "-c".into(), script.into()]);
            let mut waiting = Waiting::default();
            self.run_watched(&line, &mut waiting)?;
            waiting.pss_bytes.map(|bytes| bytes as f64).context("the process ended before it was looked at")
        };
        Ok(vec![
            ("python_pss_bytes", pss_of("")?),
            ("managed_pss_bytes", pss_of("memory = bytearray(b'x' * (4 << 20))")?),
        ])
    }

    /// A quiet process, alone or beside another one.
    fn quiet(&self, side: Side) -> Result<Values> {
        let Quiet { memory, set, low, thrashing, busy, seconds } = self.scale.quiet;
        let files = tempfile::tempdir_in(self.dir()).context("cannot make a directory")?;
        let stage = Stage::new(files.path(), self.dir());
        let bytes = |mebibytes: u64| (mebibytes << 20).to_string();
        let quiet = format!("\"$0\" quiet --go \"$1\" --bytes {} --seconds {seconds} &\n", bytes(set));
        let other = |size| hold(size, 1);
        let others = match side {
            Side::BesideThrashing => other(thrashing),
            Side::BesideBusy => other(busy),
            _ => String::new(),
        };
        let script = format!("{quiet}{PID}{others}{WAIT}");
        let line = self.staged(&script, &stage, mebibytes(memory));
        let count = usize::from(!others.is_empty());
        let mut beside = Beside::new(stage, count, low << 20, self.settle());
        self.run_watched(&line, &mut beside)?;
        let measured = beside.measured()?;
        let (accesses, faults) = (measured.accesses as f64, measured.faults as f64);
        Ok(vec![
            ("accesses", accesses),
            ("faults_per_1000_accesses", faults * 1000.0 / accesses),
            ("touch_p99_ns", measured.touch_p99_ns as f64),
            ("read_p99_ns", measured.read_p99_ns as f64),
        ])
    }

    /// Runs processes that change their memory, and acts on them.
    fn acted(&self, act: Act) -> Result<Values> {
        let Shares { memory, count, each } = self.scale.holders;
        let files = tempfile::tempdir_in(self.dir()).context("cannot make a directory")?;
        let stage = Stage::new(files.path(), self.dir());
        let line = self.staged(&format!("{}{WAIT}", hold(each, count)), &stage, mebibytes(memory));
        let mut acting = Acting::new(stage, act, count, self.settle());
        self.run_watched(&line, &mut acting)?;
        let effect = acting.effect()?;
        let budget = if act == Act::Lower { memory / 4 } else { memory } << 20;
        // The shell is one more process. Unmanaged memory is not added, since these small programs have
        // little.
        let allowed = budget + BESIDE_BUDGET * (count as u64 + 1);
        Ok(vec![
            ("seconds", effect.time.as_secs_f64()),
            ("pss_then_bytes", effect.pss_bytes as f64),
            ("allowed_bytes", allowed as f64),
        ])
    }

    /// The command line of a script under Elbowroom. The files of the stage tell its processes what to do.
    fn staged(&self, script: &str, stage: &Stage, memory: Size) -> Vec<OsString> {
        let words = [self.programs.worker().as_os_str().to_owned(), stage.go().into(), stage.end().into()];
        self.programs.program_with_budget(memory, self.dir(), &QUIET, &shell(script, &words))
    }

    fn settle(&self) -> Duration {
        Duration::from_secs_f64(self.scale.settle_seconds)
    }
}

/// A line of a script that notes the id of the process that was started last.
const PID: &str = "pids=\"$pids $!\"\n";
/// Lines of a script that wait for all processes, and exit with the status of one that has failed. A
/// process that was killed (137) has not failed.
const WAIT: &str = "status=0\nfor pid in $pids; do\nwait $pid || { s=$?; [ $s = 137 ] || status=$s; }\ndone\n\
                    exit $status";

/// Lines of a script that start `count` processes, each of which changes `mebibytes` MiB of memory.
fn hold(mebibytes: u64, count: usize) -> String {
    format!("\"$0\" hold --until \"$2\" --bytes {} &\n{PID}", mebibytes << 20).repeat(count)
}

/// The command line of a shell script. The words are its `$0`, `$1` and so on.
fn shell(script: &str, words: &[OsString]) -> Vec<OsString> {
    let line = ["/bin/sh", "-c", script].map(OsString::from);
    line.into_iter().chain(words.iter().cloned()).collect()
}

fn mebibytes(mebibytes: u64) -> Size {
    Size::from_bytes(mebibytes << 20)
}

/// Measures the PSS of a process some time after it has said that it waits.
#[derive(Default)]
struct Waiting {
    pid: u64,
    since: Option<Instant>,
    pss_bytes: Option<u64>,
}

impl Watch for Waiting {
    fn begin(&mut self, pid: u64) {
        self.pid = pid;
    }

    fn line(&mut self, _: &str) -> Result<()> {
        self.since = Some(Instant::now());
        Ok(())
    }

    fn tick(&mut self) -> Result<Duration> {
        if self.pss_bytes.is_none() && self.since.is_some_and(|since| since.elapsed() >= IDLE) {
            self.pss_bytes = procfs::proportional_bytes(self.pid);
        }
        Ok(Duration::from_millis(10))
    }
}
