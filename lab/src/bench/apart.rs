//! A workload in a process of its own, which an engine has as a whole: this program again, with the engine
//! `plain`, in a control group or under `elbowroom run`. A process that the kernel kills because its limit
//! does not suffice is then not the lab.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::Value;

use super::compare::{Record, Row};
use super::terms::Terms;
use crate::cgroup::Cgroup;
use crate::cli::{TurnArgs, option_name};
use crate::engine::{Engine, Kind};
use crate::interrupt::Interrupt;
use crate::kernel_swap::KernelSwap;
use crate::programs::{Programs, Swap};
use crate::resident::{Managed, Sampler};
use crate::session::read_stats;
use crate::size::Size;
use crate::unmodified::child;

/// What a process may take beside the time that is measured: its start, filling memory, verifying it.
const BESIDE: Duration = Duration::from_secs(300);

/// The error of a process that its engine had no memory for. The others go on.
#[derive(Debug)]
pub struct Killed(String);

impl fmt::Display for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Killed {}

/// What runs a workload apart. The kernel's swap file is there for as long as this lives.
pub struct Apart {
    engine: Engine,
    memory: Size,
    swap: Option<(Size, PathBuf)>,
    programs: Programs,
    _swap: Option<KernelSwap>,
}

/// The command line of a workload, without its engines.
pub struct Line(Vec<OsString>);

impl Line {
    /// A workload once, with the threads, seconds and budget of all.
    pub fn of(name: &str, turns: &TurnArgs) -> Self {
        let line = Self(["lab", "run", name, "--engines", "plain", "--runs", "1"].map(OsString::from).into());
        line.option("--threads", turns.threads)
            .option("--seconds", turns.repeat.seconds)
            .option("--memory", turns.memory)
    }

    /// With one more option.
    pub fn option(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.0.extend([name.to_owned(), value.to_string()].map(OsString::from));
        self
    }

    /// With one more option, of those that are a choice.
    pub fn choice(self, name: &str, value: impl ValueEnum) -> Self {
        let value = option_name(value);
        self.option(name, value)
    }
}

impl Apart {
    /// Sets up what the engine needs.
    ///
    /// # Errors
    /// What this machine does not allow.
    pub fn on(engine: Engine, terms: &Terms) -> Result<Self> {
        let programs = Programs::find()?;
        let mut kernel_swap = None;
        if engine.is_kernel() {
            // Tried now, so that it does not fail after others have been measured.
            drop(Cgroup::create_with(terms.memory, true)?);
            kernel_swap =
                terms.swap.as_ref().map(|swap| KernelSwap::on(&swap.dir, swap.size())).transpose()?;
        }
        let swap = terms.swap.as_ref().map(|swap| (swap.size(), swap.dir.clone()));
        Ok(Self { engine, memory: terms.memory, swap, programs, _swap: kernel_swap })
    }

    /// Whether the kernel has it.
    pub fn is_kernel(&self) -> bool {
        self.engine.is_kernel()
    }

    /// Runs it to its end: the figures that it gives, and those of `rows` that are seen from outside
    /// (`seen`).
    ///
    /// # Errors
    /// If it fails, takes far too long, or a signal comes; [`Killed`] if its memory did not suffice.
    pub fn run(&self, line: Line, rows: &[Row], time: Duration, interrupt: &Interrupt) -> Result<Record> {
        let scratch = tempfile::tempdir().context("cannot make a directory for figures")?;
        let (json, stats) = (scratch.path().join("figures.json"), scratch.path().join("stats.json"));
        let mut program = vec![self.programs.elbowroom().into()];
        program.extend(line.0);
        program.extend([OsString::from("--json"), json.clone().into()]);
        let kernel = self.engine.is_kernel();
        let group = kernel.then(|| Cgroup::create_with(self.memory, self.swap.is_some())).transpose()?;
        let line = match &group {
            Some(group) => self.programs.program_in_cgroup(group, &program),
            None => {
                let (off, swap) = (self.engine.off(), self.swap());
                self.programs.program_under_elbowroom(self.memory, &stats, &off, swap, &program)
            }
        };
        let mut sampler = Sampler::new(if kernel { Managed::No } else { Managed::Yes });
        let ended = child::run_sampled(&line, time + BESIDE, interrupt, |_| {}, Some(&mut sampler));
        if let Some(kills @ 1..) = group.as_ref().map(Cgroup::oom_kills) {
            let memory = self.memory;
            let reason = format!("it cannot run in {memory} ({kills} out-of-memory kills); raise --memory");
            return Err(Killed(reason).into());
        }
        ended?;
        let text = std::fs::read(&json).context("it has written no figures")?;
        let value: Value = serde_json::from_slice(&text).context("its figures are no JSON")?;
        let figures: BTreeMap<String, f64> = serde_json::from_value(value["runs"][0]["figures"].clone())
            .context("its figures are not understood")?;
        let known = rows.iter().filter_map(|row| Some((row.key, *figures.get(row.key)?)));
        let mut record: Record = known.collect();
        if record.is_empty() {
            bail!("it has given none of the figures");
        }
        let seen = self.seen(&sampler, if kernel { None } else { Some(read_stats(&stats)?) });
        record.extend(seen.into_iter().filter(|(key, _)| rows.iter().any(|row| row.key == *key)));
        Ok(record)
    }

    /// Figures that a process does not tell itself.
    fn seen(&self, sampler: &Sampler, stats: Option<Value>) -> Record {
        let mut record = Record::new();
        if let Some(peak) = sampler.peak() {
            record.insert("peak_sampled_bytes", peak.rss_bytes as f64);
            if let Some(parts) = peak.parts {
                record.insert("peak_managed_bytes", parts.managed as f64);
                record.insert("peak_own_bytes", parts.own as f64);
                record.insert("peak_unmanaged_bytes", parts.unmanaged as f64);
            }
            if let Some(allowed) = peak.allowed(self.memory) {
                record.insert("peak_over_allowed_ratio", peak.rss_bytes as f64 / allowed as f64);
            }
        }
        if let Some(stats) = stats {
            let counts = [
                ("pages_out", "pswpout"),
                ("pages_in", "pswpin"),
                ("pages_written_back", "zswpwb"),
                ("engine_peak_bytes", "peak_bytes"),
            ];
            let count = |(key, name): (_, &str)| Some((key, stats[name].as_u64()? as f64));
            record.extend(counts.into_iter().filter_map(count));
        }
        record
    }

    /// How `elbowroom run` is told to manage all that the program has, or large blocks only.
    fn swap(&self) -> Option<Swap<'_>> {
        let (size, dir) = self.swap.as_ref()?;
        let heap = if self.engine.kind == Kind::ElbowroomLarge { "large" } else { "all" };
        let fork = if self.engine.kind == Kind::ElbowroomForkKernel { "kernel" } else { "copy" };
        Some(Swap { size: *size, dir, heap, fork })
    }
}
