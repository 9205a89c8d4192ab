//! Trees to which the lab does something while they run: it waits for what the processes say, and acts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use elbowroom::ProcessTree;
use rustix::process::{Pid, Signal, kill_process};

use super::pss;
use super::table;
use crate::unmodified::child::Watch;

/// How often the table is looked at.
const LOOK: Duration = Duration::from_millis(2);
/// What should take seconds has failed after so many.
const MOST_WAIT: Duration = Duration::from_secs(60);

/// The tree and the files by which it is told what to do.
pub struct Stage {
    /// A directory on a disk, for those files.
    dir: PathBuf,
    swap_dir: PathBuf,
    leader: u64,
    table: Option<ProcessTree>,
    /// Processes that have said that they have all of their memory.
    full: usize,
    /// Processes that have said that all of their memory was right at the end.
    right: usize,
    /// When a process has last said something.
    heard_at: Instant,
}

impl Stage {
    /// Files are made in `dir`, which is for one run only; the run's swap is in `swap_dir`.
    pub fn new(dir: &Path, swap_dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            swap_dir: swap_dir.to_owned(),
            leader: 0,
            table: None,
            full: 0,
            right: 0,
            heard_at: Instant::now(),
        }
    }

    /// The file that begins a measurement.
    pub fn go(&self) -> PathBuf {
        self.dir.join("go")
    }

    /// The file that ends the processes.
    pub fn end(&self) -> PathBuf {
        self.dir.join("end")
    }

    fn tell(path: &Path) -> Result<()> {
        fs::write(path, "").with_context(|| format!("cannot make {}", path.display()))
    }

    fn heard(&mut self, line: &str) {
        self.full += usize::from(line == "full");
        self.right += usize::from(line == "right");
        self.heard_at = Instant::now();
    }

    fn table(&mut self) -> Result<&ProcessTree> {
        if self.table.is_none() {
            self.table = table::of_run(self.leader, &self.swap_dir);
        }
        self.table.as_ref().context("the run has no table in which the processes are")
    }
}

/// What is done to processes that change their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// What all may have is lowered to a quarter.
    Lower,
    /// The process that has the most memory is killed.
    Kill,
}

/// What the act has led to.
#[derive(Debug, Clone, Copy)]
pub struct Effect {
    /// Until the memory was free.
    pub time: Duration,
    /// The sum of PSS right after that.
    pub pss_bytes: u64,
}

/// Processes that change their memory, and what is done to them once they have all of it.
pub struct Acting {
    stage: Stage,
    act: Act,
    count: usize,
    settle: Duration,
    acted: Option<Acted>,
    effect: Option<(Effect, Instant)>,
}

struct Acted {
    at: Instant,
    /// The process that was killed.
    killed: Option<u32>,
    /// What all may have from now on.
    most_bytes: u64,
}

impl Acting {
    /// So many processes will say that they are full.
    pub fn new(stage: Stage, act: Act, count: usize, settle: Duration) -> Self {
        Self { stage, act, count, settle, acted: None, effect: None }
    }

    /// What the act has led to.
    ///
    /// # Errors
    /// If nothing was done, or memory of a process was not right at the end.
    pub fn effect(&self) -> Result<Effect> {
        let expected = self.count - usize::from(self.act == Act::Kill);
        ensure!(
            self.stage.right == expected,
            "{} of {expected} processes had all of their memory at the end",
            self.stage.right
        );
        self.effect.map(|(effect, _)| effect).context("the processes ended before anything was done to them")
    }

    /// Does it.
    fn act(&mut self) -> Result<Acted> {
        let (act, count) = (self.act, self.count);
        let table = self.stage.table()?;
        let snapshot = table.snapshot();
        let most_bytes = snapshot.limits.max / 4;
        let at = Instant::now();
        match act {
            Act::Lower => {
                ensure!(
                    snapshot.bytes > 2 * most_bytes,
                    "{count} processes have {} MiB, too little to lower it",
                    snapshot.bytes >> 20
                );
                table.set_max(most_bytes);
                Ok(Acted { at, killed: None, most_bytes })
            }
            Act::Kill => {
                let largest = snapshot.rows.iter().max_by_key(|row| row.bytes).context("there is no row")?;
                let pid = i32::try_from(largest.pid).ok().and_then(Pid::from_raw).context("a wrong row")?;
                kill_process(pid, Signal::KILL).context("cannot kill the largest process")?;
                Ok(Acted { at, killed: Some(largest.pid), most_bytes: snapshot.limits.max })
            }
        }
    }

    /// Whether the memory that the act is about is free.
    fn is_done(&mut self) -> Result<bool> {
        let Some(Acted { at, killed, most_bytes }) = self.acted else { return Ok(false) };
        let snapshot = self.stage.table()?.snapshot();
        let is_done = match killed {
            Some(pid) => snapshot.rows.iter().all(|row| row.pid != pid),
            None => snapshot.bytes <= most_bytes,
        };
        let used = snapshot.bytes >> 20;
        ensure!(
            is_done || at.elapsed() < MOST_WAIT,
            "after {} s the memory is not free: {used} MiB are in use, {} MiB may be",
            MOST_WAIT.as_secs(),
            most_bytes >> 20
        );
        Ok(is_done)
    }
}

impl Watch for Acting {
    fn begin(&mut self, pid: u64) {
        self.stage.leader = pid;
    }

    fn line(&mut self, line: &str) -> Result<()> {
        self.stage.heard(line);
        Ok(())
    }

    fn tick(&mut self) -> Result<Duration> {
        match (&self.effect, &self.acted) {
            (Some((_, since)), _) => {
                // They go on for a while, so that what was lost would be missed.
                if since.elapsed() >= self.settle && !self.stage.end().exists() {
                    Stage::tell(&self.stage.end())?;
                }
            }
            (None, Some(acted)) => {
                let at = acted.at;
                if self.is_done()? {
                    let time = at.elapsed();
                    let effect = Effect { time, pss_bytes: pss::of_group(self.stage.leader) };
                    self.effect = Some((effect, Instant::now()));
                }
            }
            (None, None) => {
                if self.stage.full == self.count && self.stage.heard_at.elapsed() >= self.settle {
                    self.acted = Some(self.act()?);
                }
            }
        }
        Ok(LOOK)
    }
}

/// What a quiet process has measured.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Reads and first touches.
    pub accesses: u64,
    /// Its faults.
    pub faults: u64,
    /// The 99th percentile of its reads, in nanoseconds.
    pub read_p99_ns: u64,
    /// The same of its first touches.
    pub touch_p99_ns: u64,
}

/// A quiet process, and others beside it.
pub struct Beside {
    stage: Stage,
    others: usize,
    low_bytes: u64,
    settle: Duration,
    /// The quiet process, and whether it is protected by now.
    quiet: Option<(u32, Protected)>,
    measured: Option<Measured>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protected {
    NotYet,
    Yes,
}

impl Beside {
    /// `low_bytes` of the quiet process are protected; `others` will say that they are full.
    pub fn new(stage: Stage, others: usize, low_bytes: u64, settle: Duration) -> Self {
        Self { stage, others, low_bytes, settle, quiet: None, measured: None }
    }

    /// What the quiet process has measured.
    ///
    /// # Errors
    /// If it has not, or memory of a process was not right at the end.
    pub fn measured(&self) -> Result<Measured> {
        let (right, expected) = (self.stage.right, self.others + 1);
        ensure!(right == expected, "{right} of {expected} processes had all of their memory at the end");
        self.measured.context("the quiet process has measured nothing")
    }

    /// Whether all have had their memory for a while. That time begins with the last of what is waited for.
    fn is_settled(&self) -> bool {
        self.stage.full == self.others && self.stage.heard_at.elapsed() >= self.settle
    }
}

/// The numbers behind `measured`.
fn parse_measured(line: &str) -> Option<Measured> {
    let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let [accesses, faults, read_p99_ns, touch_p99_ns] = numbers.try_into().ok()?;
    Some(Measured { accesses, faults, read_p99_ns, touch_p99_ns })
}

impl Watch for Beside {
    fn begin(&mut self, pid: u64) {
        self.stage.leader = pid;
    }

    fn line(&mut self, line: &str) -> Result<()> {
        self.stage.heard(line);
        if let Some(pid) = line.strip_prefix("quiet ") {
            self.quiet = Some((pid.parse().context("a wrong process id")?, Protected::NotYet));
        } else if let Some(numbers) = line.strip_prefix("measured ") {
            self.measured = Some(parse_measured(numbers).with_context(|| format!("what is {line:?}?"))?);
            Stage::tell(&self.stage.end())?;
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<Duration> {
        let low_bytes = self.low_bytes;
        match self.quiet {
            Some((pid, Protected::NotYet)) => {
                let is_there = self.stage.table()?.set_low(pid, low_bytes);
                ensure!(is_there, "the quiet process is not in the table of the run");
                self.quiet = Some((pid, Protected::Yes));
            }
            Some((_, Protected::Yes)) if self.is_settled() && !self.stage.go().exists() => {
                Stage::tell(&self.stage.go())?;
            }
            _ => {}
        }
        Ok(LOOK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_quiet_process_says_is_understood() {
        let measured = parse_measured("1000 20 300 4000").unwrap();
        assert_eq!((measured.accesses, measured.faults), (1000, 20));
        assert_eq!((measured.read_p99_ns, measured.touch_p99_ns), (300, 4000));
        assert!(parse_measured("1000 20 300").is_none() && parse_measured("1 2 3 x").is_none());
    }

    #[test]
    fn a_process_that_has_lost_memory_is_missed() {
        let dir = tempfile::tempdir().unwrap();
        let stage = || Stage::new(dir.path(), dir.path());
        let mut acting = Acting::new(stage(), Act::Kill, 3, Duration::ZERO);
        acting.effect = Some((Effect { time: Duration::from_secs(1), pss_bytes: 0 }, Instant::now()));
        acting.line("right").unwrap();
        let error = acting.effect().unwrap_err().to_string();
        assert!(error.contains("1 of 2 processes"), "{error}");
        acting.line("right").unwrap();
        assert_eq!(acting.effect().unwrap().time, Duration::from_secs(1));
        let mut beside = Beside::new(stage(), 0, 0, Duration::ZERO);
        beside.line("measured 1 2 3 4").unwrap();
        assert!(beside.measured().is_err() && dir.path().join("end").exists());
        beside.line("right").unwrap();
        assert_eq!(beside.measured().unwrap().faults, 2);
    }
}
