//! Runs one worker: samples it every 10 ms, and bounds how long it may take.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde::Serialize;

use crate::board::{Board, BoardReading, ENDED_NS, PID, SLOT_MAPS, SLOT_PAGES, STARTED_NS, now_ns};
use crate::device::Device;
use crate::interrupt::Interrupt;
use crate::procfs::{self, Cpu, Resident};

const SAMPLE_PERIOD: Duration = Duration::from_millis(10);
/// How often what has been done is kept, for the course of a run.
const TIMELINE_PERIOD: Duration = Duration::from_millis(250);
/// A killed worker whose threads wait for the disk is gone only when the disk has answered all of them.
const KILL_BOUND: Duration = Duration::from_secs(180);
const STDERR_SHOWN_BYTES: u64 = 2000;

/// What one worker is asked to do, and for how long.
#[derive(Debug)]
pub struct Task<'a> {
    /// The program and its arguments.
    pub line: &'a [OsString],
    /// Where the worker counts.
    pub board: &'a Board,
    /// How long the worker measures.
    pub time: Duration,
    /// How long it may take to begin, and to end after its time.
    pub grace: Duration,
    /// What is under the files, if it tells what it reads.
    pub device: Option<&'a Device>,
    /// Where its standard error goes.
    pub stderr: &'a mut File,
}

/// What had been done by some moment.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Progressed {
    /// Since the start of the threads.
    pub at_ms: u64,
    /// Pages read or stored to.
    pub pages: u64,
    /// Mappings of files made and unmapped, where the workload counts them.
    pub maps: u64,
    /// What the device has read since the worker was started, in bytes; null where it does not tell.
    pub read_bytes: Option<u64>,
}

impl Progressed {
    fn at(board: &BoardReading, running_ns: u64, read_bytes: Option<u64>) -> Self {
        let (pages, maps) = (board.total(SLOT_PAGES), board.total(SLOT_MAPS));
        Self { at_ms: running_ns / 1_000_000, pages, maps, read_bytes }
    }
}

/// What was seen of one worker.
#[derive(Debug)]
pub struct Watched {
    /// The board at the end.
    pub board: BoardReading,
    /// Pages read when the time was over.
    pub pages_in_time: u64,
    /// How long that was, from the start of the threads.
    pub time: Duration,
    /// User and system time of the whole process, from its start to its end.
    pub cpu: Cpu,
    /// What had been done after each quarter of a second, while the time was not over.
    pub timeline: Vec<Progressed>,
    /// The highest of each figure that a sample showed.
    pub peak: Resident,
    /// Whether it had to be killed because it did not come to an end.
    pub killed: bool,
    /// How it ended.
    pub status: ExitStatus,
}

/// A worker that is killed, with everything it has started, when dropped before its end.
struct Worker {
    child: Child,
    group: Pid,
    reaped: bool,
}

impl Worker {
    fn start(task: &Task<'_>) -> Result<Self> {
        let Some((program, arguments)) = task.line.split_first() else { bail!("there is no program to run") };
        let stderr = task.stderr.try_clone().context("cannot share the file for standard error")?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        // A group of its own: Ctrl-C goes to the lab only, which then tidies up in order.
        let child = command.process_group(0).spawn();
        let child = child.with_context(|| format!("cannot start {}", program.display()))?;
        let group = Pid::from_child(&child);
        Ok(Self { child, group, reaped: false })
    }

    /// Whether it has ended. It stays a zombie, so that its CPU time can still be read.
    fn has_ended(&self) -> Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(self.group), options).context("cannot wait for the worker")?.is_some())
    }

    fn reap(&mut self) -> Result<ExitStatus> {
        let status = self.child.wait().context("cannot wait for the worker")?;
        self.reaped = true;
        Ok(status)
    }

    fn kill(&self) {
        // Fails only if the whole group is gone already, which is what is wanted.
        let _ = kill_process_group(self.group, Signal::KILL);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        self.kill();
        let until = Instant::now() + KILL_BOUND;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(SAMPLE_PERIOD),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        eprintln!(
            "the worker {} was killed but is still there; its threads wait for the disk",
            self.child.id()
        );
    }
}

/// Runs a worker to its end, or to the end of its time and grace; `tick` is called with the board every 10
/// ms.
///
/// # Errors
/// If the worker cannot be started or does not begin in time, or a signal comes. How it ended is for the
/// caller to judge.
pub fn watch(
    task: Task<'_>,
    interrupt: &Interrupt,
    mut tick: impl FnMut(&BoardReading, Resident),
) -> Result<Watched> {
    let device_bytes = || task.device.and_then(|device| device.read_bytes().ok());
    let read_before = device_bytes();
    let worker = Worker::start(&task)?;
    let spawned = Instant::now();
    let (mut peak, mut in_time, mut killed_at) = (Resident::default(), None, None::<Instant>);
    let mut timeline: Vec<Progressed> = Vec::new();
    let mut next_sample = spawned;
    loop {
        interrupt.check()?;
        let ended = worker.has_ended()?;
        let now = now_ns();
        let board = task.board.read()?;
        let running_ns = board.header(STARTED_NS).map(|started| now.saturating_sub(started));
        let time_ns = task.time.as_nanos() as u64;
        if in_time.is_none() && running_ns.is_some_and(|ns| ns >= time_ns) && killed_at.is_none() {
            in_time = Some((board.total(SLOT_PAGES), Duration::from_nanos(running_ns.unwrap_or(time_ns))));
        }
        let last_ms = timeline.last().map_or(0, |last| last.at_ms);
        let due = (last_ms * 1_000_000 + TIMELINE_PERIOD.as_nanos() as u64)
            ..=time_ns + 2 * SAMPLE_PERIOD.as_nanos() as u64;
        if let Some(ns) = running_ns.filter(|ns| due.contains(ns)) {
            let read_bytes = device_bytes().zip(read_before).map(|(now, before)| now.saturating_sub(before));
            timeline.push(Progressed::at(&board, ns, read_bytes));
        }
        if ended {
            let killed = killed_at.is_some();
            return Ok(Watched { timeline, ..finish(worker, board, in_time, peak, killed)? });
        }
        let pid = board.header(PID).unwrap_or(u64::from(worker.child.id()));
        let resident = procfs::resident(pid).unwrap_or_default();
        raise(&mut peak, resident);
        tick(&board, resident);

        let begun_late = running_ns.is_none() && spawned.elapsed() > task.grace;
        let ends_late = running_ns.is_some_and(|ns| ns > (task.time + task.grace).as_nanos() as u64);
        match killed_at {
            None if begun_late => {
                let stderr = tail(task.stderr);
                bail!(
                    "the worker did not begin within {:?}; --grace-seconds gives it more time{stderr}",
                    task.grace
                );
            }
            None if ends_late => {
                worker.kill();
                killed_at = Some(Instant::now());
            }
            Some(at) if at.elapsed() > KILL_BOUND => bail!("the worker was killed but does not go away"),
            _ => {}
        }
        // Samples are due at fixed times, but none is made up for.
        next_sample = (next_sample + SAMPLE_PERIOD).max(Instant::now());
        std::thread::sleep(
            next_sample.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)),
        );
    }
}

fn finish(
    mut worker: Worker,
    mut board: BoardReading,
    in_time: Option<(u64, Duration)>,
    peak: Resident,
    killed: bool,
) -> Result<Watched> {
    let now = now_ns();
    let cpu = procfs::cpu(u64::from(worker.child.id()))?;
    let status = worker.reap()?;
    if killed {
        board.end_bystander_round(now);
    }
    let (pages_in_time, time) = in_time.unwrap_or_else(|| {
        // It ended between two samples: then its own clock says when.
        let started = board.header(STARTED_NS).unwrap_or(now);
        let ended = board.header(ENDED_NS).unwrap_or(now);
        (board.total(SLOT_PAGES), Duration::from_nanos(ended.saturating_sub(started)))
    });
    let timeline = Vec::new();
    Ok(Watched { board, pages_in_time, time, cpu, timeline, peak, killed, status })
}

fn raise(peak: &mut Resident, seen: Resident) {
    peak.total_bytes = peak.total_bytes.max(seen.total_bytes);
    peak.anon_bytes = peak.anon_bytes.max(seen.anon_bytes);
    peak.file_bytes = peak.file_bytes.max(seen.file_bytes);
}

/// The end of what a worker wrote to its standard error, on lines of its own; empty if it wrote nothing.
pub fn tail(stderr: &mut File) -> String {
    let mut bytes = Vec::new();
    let read = || -> std::io::Result<()> {
        let len_bytes = stderr.metadata()?.len();
        stderr.seek(SeekFrom::Start(len_bytes.saturating_sub(STDERR_SHOWN_BYTES)))?;
        stderr.read_to_end(&mut bytes).map(drop)
    };
    match { read }() {
        Ok(()) if bytes.is_empty() => String::new(),
        Ok(()) => format!("\nit wrote:\n{}", String::from_utf8_lossy(&bytes).trim_end()),
        Err(error) => format!("\n(what it wrote cannot be read: {error})"),
    }
}

/// Says how a process ended.
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown end".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch_shell(script: &str, grace: Duration) -> Result<(Watched, Duration)> {
        let dir = tempfile::tempdir().unwrap();
        let board = Board::create(&dir.path().join("board"), 1).unwrap();
        let line = ["/bin/sh", "-c", script, "sh", board.path().to_str().unwrap()].map(OsString::from);
        let mut stderr = tempfile::tempfile().unwrap();
        let time = Duration::from_millis(100);
        let task = Task { line: &line, board: &board, time, grace, device: None, stderr: &mut stderr };
        let begun = Instant::now();
        let watched = watch(task, &Interrupt::install().unwrap(), |_, _| {})?;
        Ok((watched, begun.elapsed()))
    }

    /// Writes a start time of 1 ns after boot, so that the worker's time has long been over.
    const START: &str = r#"printf '\001\0\0\0\0\0\0\0' | dd of="$1" bs=8 seek=1 conv=notrunc 2>/dev/null;"#;

    #[test]
    fn a_worker_that_does_not_end_is_killed_and_still_reported() {
        // Time to begin; its end has long been due then.
        let (watched, took) = watch_shell(&format!("{START} sleep 120"), Duration::from_secs(20)).unwrap();
        assert!(watched.killed && watched.status.signal() == Some(9));
        assert!(took < Duration::from_secs(100), "{took:?}");
    }

    #[test]
    fn a_worker_that_does_not_begin_is_an_error_with_its_words() {
        // It may need longer than the first of these to say anything.
        let said = [300, 3000, 20_000].map(Duration::from_millis).into_iter().any(|grace| {
            let error = watch_shell("echo cannot begin >&2; sleep 60", grace).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains("did not begin"), "{error}");
            error.contains("cannot begin")
        });
        assert!(said, "its words are lost");
    }

    #[test]
    fn cpu_time_is_that_of_the_process_itself() {
        let spin = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exit 7";
        let (watched, took) = watch_shell(spin, Duration::from_secs(20)).unwrap();
        assert_eq!((watched.status.code(), watched.killed), (Some(7), false));
        assert!(
            watched.cpu.total() > Duration::ZERO && watched.cpu.total() < took + Duration::from_millis(50)
        );
    }
}
