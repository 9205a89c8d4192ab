//! Acts on trees of processes while they run: waits for the lines that the processes print, and then
//! changes the run's table, kills a process, or makes a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use elbowroom::ProcessTree;
use rustix::process::{Pid, Signal, kill_process};

use super::pss;
use super::table;
use crate::unmodified::child::Watch;

/// How often the table of the run is read.
const LOOK: Duration = Duration::from_millis(2);
/// How long the lab waits for memory to become free, which should take seconds at most.
const MOST_WAIT: Duration = Duration::from_secs(60);

/// A tree, and the files that tell its processes what to do.
pub struct Stage {
    /// A directory on a disk, for these files.
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
    /// `dir`: where the files are made, for one run only. `swap_dir`: where the run's swap is.
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
    /// The max of the run is lowered to a quarter.
    Lower,
    /// The process that has the most memory is killed.
    Kill,
}

/// What the act has led to.
#[derive(Debug, Clone, Copy)]
pub struct Effect {
    /// The time from the act until the memory was free.
    pub time: Duration,
    /// The sum of PSS right after that.
    pub pss_bytes: u64,
}

/// Acts on processes that change their memory, once they have all of it.
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
    /// The max of the run after the act, in bytes.
    most_bytes: u64,
}

impl Acting {
    /// `count`: how many processes will say that they have all of their memory.
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

    /// Lowers the max of the run, or kills the largest process.
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

    /// Whether the killed process has no row any more, or the run has no more memory than its new max.
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
                // The processes go on for a while, so that they would find lost memory.
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
    /// The number of reads and first touches.
    pub accesses: u64,
    /// The number of its faults.
    pub faults: u64,
    /// The 99th percentile of its reads, in nanoseconds.
    pub read_p99_ns: u64,
    /// The 99th percentile of its first touches, in nanoseconds.
    pub touch_p99_ns: u64,
}

/// Protects a quiet process, and lets it measure once the processes beside it have all of their memory.
pub struct Beside {
    stage: Stage,
    others: usize,
    low_bytes: u64,
    settle: Duration,
    /// The id of the quiet process, and whether it is protected by now.
    quiet: Option<(u32, Protected)>,
    measured: Option<Measured>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protected {
    NotYet,
    Yes,
}

impl Beside {
    /// `low_bytes`: how much of the quiet process is protected. `others`: how many processes beside it will
    /// say that they have all of their memory.
    pub fn new(stage: Stage, others: usize, low_bytes: u64, settle: Duration) -> Self {
        Self { stage, others, low_bytes, settle, quiet: None, measured: None }
    }

    /// What the quiet process has measured.
    ///
    /// # Errors
    /// If it has measured nothing, or memory of a process was not right at the end.
    pub fn measured(&self) -> Result<Measured> {
        let (right, expected) = (self.stage.right, self.others + 1);
        ensure!(right == expected, "{right} of {expected} processes had all of their memory at the end");
        self.measured.context("the quiet process has measured nothing")
    }

    /// Whether the processes beside the quiet one have all of their memory, and no process has said
    /// anything for the time `settle`.
    fn is_settled(&self) -> bool {
        self.stage.full == self.others && self.stage.heard_at.elapsed() >= self.settle
    }
}

/// Reads the numbers that follow `measured` in a line.
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
