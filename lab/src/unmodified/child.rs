//! A program that is run to its end: its output is read and counted, its time is bounded.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::interrupt::Interrupt;
use crate::procfs::{self, Cpu};
use crate::resident::{Peak, Sampler};
use crate::watch;

/// How often the flag that a signal raises is looked at, at least.
const LOOK: Duration = Duration::from_millis(50);
/// Between two looks whether a program that has closed its output has ended: short at first, since short
/// programs are measured, too.
const LEAST_PAUSE: Duration = Duration::from_micros(50);
const MOST_PAUSE: Duration = Duration::from_millis(1);
/// How much of the output is kept to be shown.
const SHOWN_BYTES: usize = 200;
const READ_BYTES: usize = 1 << 16;

/// What a program has printed: of much only how much it is, and a checksum.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// How much.
    pub bytes: u64,
    /// FNV-1a of the output in words of 8 bytes, the last filled with zeros.
    pub checksum: u64,
    /// Its beginning.
    pub text: String,
}

/// Adds up output as it comes.
#[derive(Default)]
struct Sum {
    state: u64,
    bytes: u64,
    /// What does not fill a word yet.
    rest: Vec<u8>,
    shown: Vec<u8>,
}

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let room = SHOWN_BYTES - self.shown.len();
        self.shown.extend_from_slice(&bytes[..room.min(bytes.len())]);
        let fill = if self.rest.is_empty() { 0 } else { (8 - self.rest.len()).min(bytes.len()) };
        self.rest.extend_from_slice(&bytes[..fill]);
        if let Ok(word) = self.rest.as_slice().try_into() {
            self.word(word);
            self.rest.clear();
        }
        let (words, rest) = bytes[fill..].as_chunks::<8>();
        words.iter().for_each(|word| self.word(*word));
        self.rest.extend_from_slice(rest);
    }

    fn word(&mut self, word: [u8; 8]) {
        self.state = (self.state ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    }

    fn end(mut self) -> Output {
        if !self.rest.is_empty() {
            self.rest.resize(8, 0);
            let last = self.rest.as_slice().try_into().unwrap_or_default();
            self.word(last);
        }
        let text = String::from_utf8_lossy(&self.shown).trim().to_owned();
        Output { bytes: self.bytes, checksum: self.state, text }
    }
}

/// How a program ended, and what it took.
#[derive(Debug)]
pub struct Ended {
    /// From before its start to its end.
    pub time: Duration,
    /// Of it and of what it has waited for.
    pub cpu: Cpu,
    /// Bytes that devices read and wrote for it, where the kernel tells that.
    pub device_bytes: Option<(u64, u64)>,
    /// What it printed.
    pub output: Output,
    /// The most that a process of it had, if that was asked for.
    pub peak: Option<Peak>,
}

/// Killed, with all that it has started, when dropped before its end.
struct Running {
    child: Child,
    group: Pid,
    reaped: bool,
}

impl Running {
    fn reap(&mut self) -> Result<ExitStatus> {
        let status = self.child.wait().context("cannot wait for the program")?;
        self.reaped = true;
        Ok(status)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.reaped {
            // Fails only if the whole group is gone already, which is what is wanted.
            let _ = kill_process_group(self.group, Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Looks at a program while it runs.
pub trait Watch {
    /// The program has started; it leads a process group of its own.
    fn begin(&mut self, pid: u64);

    /// A line of its output, of those that it wrote little at a time.
    fn line(&mut self, line: &str) -> Result<()>;

    /// Called again and again. Gives the time until it wants to be called next.
    ///
    /// # Errors
    /// Whatever makes the run worthless: the program is killed then.
    fn tick(&mut self) -> Result<Duration>;
}

/// A watch that gives lines to a function, and looks at memory if that was asked for.
struct Sampling<'a, F> {
    said: F,
    sampler: Option<&'a mut Sampler>,
}

impl<F: FnMut(&str)> Watch for Sampling<'_, F> {
    fn begin(&mut self, pid: u64) {
        if let Some(sampler) = &mut self.sampler {
            sampler.begin(pid);
        }
    }

    fn line(&mut self, line: &str) -> Result<()> {
        (self.said)(line);
        Ok(())
    }

    fn tick(&mut self) -> Result<Duration> {
        Ok(self.sampler.as_mut().map_or(LOOK, |sampler| {
            sampler.tick();
            sampler.rest()
        }))
    }
}

/// Runs a program to its end; `said` gets each line of its output.
///
/// # Errors
/// If it cannot be started, takes longer than `bound`, or fails; the message has the end of what it wrote to
/// standard error. If a signal comes.
pub fn run(
    line: &[OsString],
    bound: Duration,
    interrupt: &Interrupt,
    said: impl FnMut(&str),
) -> Result<Ended> {
    run_sampled(line, bound, interrupt, said, None)
}

/// The same; `sampler` looks at its memory meanwhile.
///
/// # Errors
/// As for [`run`].
pub fn run_sampled(
    line: &[OsString],
    bound: Duration,
    interrupt: &Interrupt,
    said: impl FnMut(&str),
    sampler: Option<&mut Sampler>,
) -> Result<Ended> {
    let mut watch = Sampling { said, sampler };
    let ended = run_watched(line, bound, interrupt, &mut watch)?;
    Ok(Ended { peak: watch.sampler.and_then(|sampler| sampler.peak()), ..ended })
}

/// The same; `watch` looks at the program meanwhile. The peak of memory is left to the watch.
///
/// # Errors
/// As for [`run`], and those of the watch.
pub fn run_watched(
    line: &[OsString],
    bound: Duration,
    interrupt: &Interrupt,
    watch: &mut dyn Watch,
) -> Result<Ended> {
    let Some((program, arguments)) = line.split_first() else { bail!("there is no program to run") };
    let mut stderr = tempfile::tempfile().context("cannot make a file for standard error")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(stderr.try_clone().context("cannot share the file for standard error")?);
    let began = Instant::now();
    // A group of its own: Ctrl-C goes to the lab only, which then tidies up in order.
    let child = command.process_group(0).spawn();
    let mut child = child.with_context(|| format!("cannot start {}", program.display()))?;
    let stdout = child.stdout.take();
    let mut running = Running { group: Pid::from_child(&child), child, reaped: false };
    let mut stdout = File::from(std::os::fd::OwnedFd::from(stdout.context("the program has no output")?));
    let (mut sum, mut buffer) = (Sum::default(), vec![0; READ_BYTES]);
    watch.begin(u64::from(running.child.id()));
    loop {
        interrupt.check()?;
        let wait = watch.tick()?.clamp(Duration::from_millis(1), LOOK);
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        if began.elapsed() > bound {
            bail!("{} did not end within {bound:?}{}", program.display(), watch::tail(&mut stderr));
        }
        let mut wanted = [PollFd::new(&stdout, PollFlags::IN)];
        match poll(&mut wanted, Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            other => other.context("cannot wait for output")?,
        };
        let bytes = stdout.read(&mut buffer).context("cannot read the program's output")?;
        if bytes == 0 {
            break;
        }
        sum.add(&buffer[..bytes]);
        if bytes < SHOWN_BYTES {
            String::from_utf8_lossy(&buffer[..bytes]).lines().try_for_each(|line| watch.line(line))?;
        }
    }
    // It stays a zombie, so that what it has used can still be read.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let mut pause = LEAST_PAUSE;
    while waitid(WaitId::Pid(running.group), options).context("cannot wait for the program")?.is_none() {
        if began.elapsed() > bound {
            bail!("{} did not end within {bound:?}{}", program.display(), watch::tail(&mut stderr));
        }
        watch.tick()?;
        interrupt.sleep_until(Instant::now() + pause)?;
        pause = (2 * pause).min(MOST_PAUSE);
    }
    let time = began.elapsed();
    let pid = u64::from(running.child.id());
    let (cpu, device_bytes) = (procfs::cpu(pid)?, procfs::device_bytes(pid));
    let status = running.reap()?;
    if !status.success() {
        let end = watch::describe(status);
        bail!("{} ended with {end}{}", program.display(), watch::tail(&mut stderr));
    }
    Ok(Ended { time, cpu, device_bytes, output: sum.end(), peak: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<Ended> {
        let line = ["/bin/sh", "-c", script].map(OsString::from);
        run(&line, Duration::from_secs(20), &Interrupt::install().unwrap(), |_| {})
    }

    #[test]
    fn output_is_the_same_however_it_is_cut() {
        let whole = shell("printf 'abcdefghijklmnopq'").unwrap().output;
        let cut = shell("printf abc; sleep 0.1; printf defgh; sleep 0.1; printf ijklmnopq").unwrap().output;
        assert_eq!(whole, cut);
        assert_eq!((whole.bytes, whole.text.as_str()), (17, "abcdefghijklmnopq"));
        let other = shell("printf 'abcdefghijklmnopr'").unwrap().output;
        assert_ne!(whole.checksum, other.checksum);
    }

    #[test]
    fn a_program_that_fails_or_does_not_end_is_an_error_with_its_words() {
        let failed = format!("{:#}", shell("echo broken >&2; exit 3").unwrap_err());
        assert!(failed.contains("exit status 3") && failed.contains("broken"), "{failed}");
        let line = ["/bin/sh", "-c", "sleep 60 & sleep 60"].map(OsString::from);
        let bound = Duration::from_millis(300);
        let began = Instant::now();
        let late = run(&line, bound, &Interrupt::install().unwrap(), |_| {}).unwrap_err();
        assert!(format!("{late:#}").contains("did not end"), "{late:#}");
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}
