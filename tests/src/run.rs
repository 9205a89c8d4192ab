//! Processes with a time limit, their output, and how they ended.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::place::{elbowroom_exe, root};
use crate::variant::Variant;

/// How long a run may take unless it says otherwise. Far more than it needs on two cores that others use too.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// How often a run is looked at.
const POLL: Duration = Duration::from_millis(5);
/// What `elbowroom run` may hold beyond its budget by contract: nothing.
const MIB: u64 = 1 << 20;

/// Something to run.
pub struct Command {
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    directory: Option<PathBuf>,
    input: Option<PathBuf>,
    time_limit: Duration,
    quiet: bool,
    variant: Variant,
    run_options: Vec<String>,
    /// Whether the run must have been served by Elbowroom, if it is one under it.
    managed: Managed,
}

/// What a run's statistics must say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Managed {
    /// Pages were read and faults served.
    Expected,
    /// Nothing: the run may end before it can say, or is not about mapped files.
    Unknown,
}

impl Command {
    /// A run of `program`, under the plain kernel.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            arguments: vec![program.as_ref().to_owned()],
            environment: Vec::new(),
            directory: None,
            input: None,
            time_limit: TIME_LIMIT,
            quiet: true,
            variant: Variant::plain(),
            run_options: Vec::new(),
            managed: Managed::Expected,
        }
    }

    /// Adds arguments: text or numbers.
    pub fn args<T: ToString>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.to_string().into()));
        self
    }

    /// Sets a variable of the environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs it in `directory`.
    pub fn directory(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    /// Standard input from a file instead of /dev/null.
    pub fn input(mut self, path: &str) -> Self {
        self.input = Some(path.into());
        self
    }

    /// Runs it as `variant` says.
    pub fn variant(mut self, variant: Variant) -> Self {
        self.variant = variant;
        self
    }

    /// Gives `elbowroom run` further options.
    pub fn run_options(mut self, options: &[&str]) -> Self {
        self.run_options.extend(options.iter().map(|&option| option.to_owned()));
        self
    }

    /// Lets `elbowroom run` print its summary.
    pub fn with_summary(mut self) -> Self {
        self.quiet = false;
        self
    }

    /// Another time limit.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// The statistics need not show that Elbowroom has served anything.
    pub fn maybe_unmanaged(mut self) -> Self {
        self.managed = Managed::Unknown;
        self
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// If it cannot be started, or takes longer than its time limit.
    pub fn run(self) -> Outcome {
        self.start().finish()
    }

    /// Starts it.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(self) -> Running {
        let files = tempfile::tempdir_in(root()).expect("a scratch directory can be made");
        let arguments = self.full_arguments(files.path());
        let text = arguments.iter().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let create = |name| {
            File::create(files.path().join(name)).expect("output can be kept in the scratch directory")
        };
        let mut command = std::process::Command::new(&arguments[0]);
        command
            .args(&arguments[1..])
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(match &self.input {
                Some(path) => Stdio::from(
                    File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
                ),
                None => Stdio::null(),
            })
            .stdout(create("stdout"))
            .stderr(create("stderr"))
            .process_group(0);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{text}: {error}"));
        Running {
            child,
            text,
            files,
            deadline: Instant::now() + self.time_limit,
            started: Instant::now(),
            variant: self.variant,
            managed: self.managed,
        }
    }

    fn full_arguments(&self, files: &Path) -> Vec<OsString> {
        let mut all = Vec::new();
        if let Some(options) = self.variant.options {
            all.push(elbowroom_exe().into_os_string());
            all.extend(["run", "--config", "none"].map(OsString::from));
            all.extend(options.iter().map(OsString::from));
            if let Some(names) = std::env::var_os("ELBOWROOM_TEST_ABLATE") {
                all.extend(["--ablate".into(), names]);
            }
            all.extend(self.run_options.iter().map(OsString::from));
            all.extend(["--stats".into(), files.join("stats").into_os_string()]);
            if self.quiet {
                all.push("--quiet".into());
            }
            all.push("--".into());
        }
        all.extend(self.arguments.iter().cloned());
        all
    }
}

/// A process that was started.
pub struct Running {
    child: Child,
    text: String,
    files: tempfile::TempDir,
    deadline: Instant,
    started: Instant,
    variant: Variant,
    managed: Managed,
}

impl Running {
    /// What it has written to standard output until now.
    pub fn stdout(&self) -> String {
        self.output("stdout")
    }

    fn output(&self, name: &str) -> String {
        let bytes = std::fs::read(self.files.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sees to it that it has not ended yet, `before` something that it is to do, and has time left.
    ///
    /// # Panics
    /// If it has ended or has run out of time.
    pub fn check(&mut self, before: &str) {
        if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
            panic!("{} ended with {status} before {before}:\n{}", self.text, self.output("stderr"));
        }
        self.check_time();
    }

    /// Waits until it has written this line.
    ///
    /// # Panics
    /// If it ends or runs out of time before.
    pub fn wait_for_line(&mut self, line: &str) {
        while !self.stdout().lines().any(|seen| seen == line) {
            self.check(&format!("it said \"{line}\""));
            std::thread::sleep(POLL);
        }
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it has ended.
    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal)
            .unwrap_or_else(|error| panic!("{}: {error}", self.text));
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it runs out of time.
    pub fn finish(mut self) -> Outcome {
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                break status;
            }
            self.check_time();
            std::thread::sleep(POLL);
        };
        // A process that is denied write leaves an empty file.
        let stats = std::fs::read(self.files.path().join("stats")).ok().filter(|bytes| !bytes.is_empty());
        let outcome = Outcome {
            command: self.text.clone(),
            stdout: self.output("stdout"),
            stderr: self.output("stderr"),
            elapsed: self.started.elapsed(),
            stats: stats.map(|bytes| serde_json::from_slice(&bytes).expect("the statistics are JSON")),
            status,
        };
        outcome.check_stats(self.variant, self.managed);
        outcome
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn check_time(&mut self) {
        if Instant::now() < self.deadline {
            return;
        }
        let threads = describe_threads(self.child.id());
        // Nobody else is in the group: it was made for this child.
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
        panic!(
            "{} has not ended in time and was killed.\nIts threads:\n{threads}\nstandard output:\n{}\n\
             standard error:\n{}",
            self.text,
            tail(&self.output("stdout")),
            tail(&self.output("stderr"))
        );
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A panicking test must not leave a process behind. Errors mean that there is none.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(self.pid(), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Name, state, system call and kernel function of each thread of the process and of its descendants and its
/// group, for who has to find out why it hangs.
pub fn describe_threads(pid: u32) -> String {
    let mut lines: Vec<String> = family(pid).into_iter().flat_map(threads_of).collect();
    lines.truncate(MOST_THREADS);
    lines.join("\n")
}

/// How many threads a report shows.
const MOST_THREADS: usize = 80;

fn threads_of(pid: u32) -> Vec<String> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let mut lines: Vec<String> = tasks
        .flatten()
        .map(|task| {
            let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let (name, wchan, call, stack) = (read("comm"), read("wchan"), read("syscall"), read("stack"));
            let status = read("status");
            let line = |name| status.lines().find(|line| line.starts_with(name)).unwrap_or("?").to_owned();
            let (state, pending, blocked) = (line("State:"), line("SigPnd:"), line("SigBlk:"));
            let stack: Vec<&str> =
                stack.lines().take(8).map(|line| line.split("] ").last().unwrap_or(line)).collect();
            format!(
                "  {pid}/{} {:16} {state} {pending} {blocked} in {wchan}; call {} [{}]",
                task.file_name().to_string_lossy(),
                name.trim(),
                call.trim(),
                stack.join(" < ")
            )
        })
        .collect();
    lines.sort();
    lines
}

/// The process, what is in its group, and what these have started, in any group.
fn family(pid: u32) -> Vec<u32> {
    // pid, parent, group
    let all: Vec<[u32; 3]> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let rest: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
            Some([
                stat.split(' ').next()?.parse().ok()?,
                rest.get(1)?.parse().ok()?,
                rest.get(2)?.parse().ok()?,
            ])
        })
        .collect();
    let mut family = vec![pid];
    let mut before = 0;
    while family.len() > before {
        before = family.len();
        for &[one, parent, group] in &all {
            if !family.contains(&one) && (group == pid || family.contains(&parent)) {
                family.push(one);
            }
        }
    }
    family
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// How a run ended, and what it said.
#[derive(Debug)]
pub struct Outcome {
    /// The command line.
    pub command: String,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// How it ended.
    pub status: ExitStatus,
    /// How long it took.
    pub elapsed: Duration,
    /// What `--stats` has written, if anything.
    pub stats: Option<serde_json::Value>,
}

impl Outcome {
    /// It ended well.
    ///
    /// # Panics
    /// With its output, if it did not.
    pub fn success(self) -> Self {
        assert!(self.status.success(), "{}", self.report());
        self
    }

    /// It ended as `plain` did, and said the same.
    ///
    /// # Panics
    /// With both, if not.
    pub fn same_as(&self, plain: &Outcome) {
        let same = self.status == plain.status && self.stdout == plain.stdout && self.stderr == plain.stderr;
        assert!(same, "{}\n--- but under the plain kernel:\n{}", self.report(), plain.report());
    }

    /// A statistic of a run under Elbowroom.
    ///
    /// # Panics
    /// If there are no statistics, or not this one.
    pub fn stat(&self, key: &str) -> u64 {
        self.stats
            .as_ref()
            .and_then(|stats| stats.get(key))
            .and_then(serde_json::Value::as_u64)
            .unwrap_or_else(|| {
                panic!("the statistics have no number {key}: {:?}\n{}", self.stats, self.report())
            })
    }

    /// How many mappings and calls the statistics count as left to the kernel for this reason.
    ///
    /// # Panics
    /// If there are no statistics.
    pub fn left_to_kernel(&self, reason: &str) -> u64 {
        let stats = self.stats.as_ref().unwrap_or_else(|| panic!("no statistics\n{}", self.report()));
        stats["left_to_kernel"][reason].as_u64().unwrap_or(0)
    }

    /// Command, status and output, for messages.
    pub fn report(&self) -> String {
        let how = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("status {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or(0)),
        };
        format!(
            "{}\nended with {how} after {:.1} s\nstandard output:\n{}\nstandard error:\n{}",
            self.command,
            self.elapsed.as_secs_f64(),
            tail(&self.stdout),
            tail(&self.stderr)
        )
    }

    fn check_stats(&self, variant: Variant, managed: Managed) {
        if variant.is_plain() || managed == Managed::Unknown || self.status.signal().is_some() {
            return;
        }
        // A failed run is reported by who asks for its success; what it left unsaid would only hide that.
        if !self.status.success() && self.stats.is_none() {
            return;
        }
        assert!(
            self.stat("pgfault") > 0,
            "Elbowroom has served no fault: everything was left to the kernel: {:?}\n{}",
            self.stats,
            self.report()
        );
        let (peak, budget) = (self.stat("peak_bytes"), self.stat("budget_bytes"));
        let asked = variant.memory_mib * MIB;
        assert!(asked == 0 || budget == asked, "the budget is not what was asked for: {budget}");
        assert!(peak <= budget, "peak {peak} is above the budget {budget}\n{}", self.report());
    }
}
