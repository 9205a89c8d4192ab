//! One run of the random program: its options, and how it is started, watched and ended.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::place::{elbowroom_exe, root};
use crate::program::program;
use crate::run::describe_threads;
use crate::variant::Variant;

/// How often a run is looked at.
const POLL: Duration = Duration::from_millis(2);
/// How many of these looks pass before the transcripts' sizes are asked for.
const LOOKS_PER_SIZE: u32 = 25;

/// Which mappings the program makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinds {
    /// Of files only.
    Files,
    /// Anonymous ones too, which stay the kernel's (`--swap 0`).
    All,
    /// Anonymous ones too, and private memory is managed, as it is by default.
    Private,
}

impl Kinds {
    /// Kinds of steps that are left out if nothing else is said (docs/limits.md has the reasons). What is
    /// handed back in parts is several mappings for the kernel, which takes some calls for one mapping only.
    /// A child that has no copy of the manager ends where it touches what its parent has mapped of a file.
    pub fn without(self, variant: Variant) -> &'static str {
        match self {
            Self::Files | Self::All => "fork",
            Self::Private if variant == Variant::fork_kernel() => "remap,rearrange,fork",
            Self::Private => "remap,rearrange",
        }
    }
}

/// A step: the thread and the number.
pub type Step = (u32, u64);

/// What the program is to do.
#[derive(Debug, Clone)]
pub struct Case {
    /// From which everything follows.
    pub seed: u64,
    /// Of each thread.
    pub steps: u64,
    /// Each with a part of the region and a transcript of its own.
    pub threads: u32,
    /// Which mappings.
    pub kinds: Kinds,
    /// Names of kinds of steps that are left out, with commas between them.
    pub without: String,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// By itself, with status 0.
    Well,
    /// By itself, with another status, or by a signal.
    Badly(String),
    /// It did not get on, and was killed; what its threads were doing.
    Hung(String),
}

/// What is left of a run.
#[derive(Debug)]
pub struct Ran {
    /// One per thread.
    pub transcripts: Vec<String>,
    /// The files' bytes after the end, by name.
    pub files: BTreeMap<String, Vec<u8>>,
    /// How it ended.
    pub end: End,
    /// Standard error.
    pub stderr: String,
    /// How long it took.
    pub elapsed: Duration,
}

impl Case {
    /// All steps.
    pub fn all_steps(&self) -> Vec<Step> {
        // By number, so that what comes first in time comes first in the list.
        (0..self.steps).flat_map(|step| (0..self.threads).map(move |thread| (thread, step))).collect()
    }

    /// Runs it: all steps, or those in `only`. It has hung if no transcript grows for as long as `patience`.
    ///
    /// # Panics
    /// If it cannot be started or its files not be made.
    pub fn run(&self, variant: Variant, only: Option<&[Step]>, patience: Duration, verbose: bool) -> Ran {
        let directory = tempfile::tempdir_in(root()).expect("a scratch directory can be made");
        let at = directory.path();
        let stderr = at.join("stderr");
        let mut command = self.command(variant, only, at, verbose);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&stderr).expect("output can be kept in the scratch directory"))
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let started = Instant::now();
        let end = self.watch(child, at, patience);
        Ran {
            transcripts: (0..self.threads).map(|thread| read(&transcript(at, thread))).collect(),
            files: files(at),
            end,
            elapsed: started.elapsed(),
            stderr: read(&stderr),
        }
    }

    /// The command line that does this.
    fn command(&self, variant: Variant, only: Option<&[Step]>, at: &Path, verbose: bool) -> Command {
        let client = program("random");
        let mut command = match variant.options {
            Some(options) => {
                let mut command = Command::new(elbowroom_exe());
                command.arg("run").args(options).args(["--min-size", "4K", "--quiet"]);
                if self.kinds != Kinds::Private {
                    command.args(["--swap", "0"]);
                }
                if let Some(names) = std::env::var_os("ELBOWROOM_TEST_ABLATE") {
                    command.arg("--ablate").arg(names);
                }
                command.arg("--").arg(client);
                command
            }
            None => Command::new(client),
        };
        let kinds = if self.kinds == Kinds::Files { "files" } else { "all" };
        command
            .arg(format!("seed={}", self.seed))
            .arg(format!("steps={}", self.steps))
            .arg(format!("threads={}", self.threads))
            .arg(format!("kinds={kinds}"))
            .arg(format!("dir={}", at.display()))
            .arg(format!("big={}", root().join("random-big").display()));
        if !self.without.is_empty() {
            command.arg(format!("without={}", self.without));
        }
        if verbose {
            command.arg("verbose=1");
        }
        if let Some(only) = only {
            let list = at.join("only");
            std::fs::write(&list, steps_text(only)).expect("the list of steps can be written");
            command.arg(format!("only={}", list.display()));
        }
        command
    }

    fn watch(&self, mut child: Child, at: &Path, patience: Duration) -> End {
        let mut grew = Instant::now();
        let mut size = 0;
        for look in 0_u32.. {
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                return ended(status);
            }
            if look % LOOKS_PER_SIZE == LOOKS_PER_SIZE - 1 {
                let now = self.transcribed(at);
                if now != size {
                    (size, grew) = (now, Instant::now());
                } else if grew.elapsed() > patience {
                    let threads = describe_threads(child.id());
                    // Nobody else is in the group: it was made for this child.
                    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
                    let _ = child.wait();
                    return End::Hung(threads);
                }
            }
            std::thread::sleep(POLL);
        }
        unreachable!("a number of looks that large is never reached")
    }

    /// The bytes of all transcripts.
    fn transcribed(&self, at: &Path) -> u64 {
        (0..self.threads)
            .filter_map(|thread| std::fs::metadata(transcript(at, thread)).ok())
            .map(|metadata| metadata.len())
            .sum()
    }
}

/// Steps as the program reads them.
pub fn steps_text(steps: &[Step]) -> String {
    steps.iter().fold(String::new(), |mut text, (thread, step)| {
        let _ = writeln!(text, "{thread} {step}");
        text
    })
}

fn ended(status: ExitStatus) -> End {
    if status.success() { End::Well } else { End::Badly(status.to_string()) }
}

fn transcript(at: &Path, thread: u32) -> PathBuf {
    at.join(format!("transcript.{thread}"))
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// The files that steps are about: `tN.fN`.
fn files(at: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(at).expect("the scratch directory can be listed");
    entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let file = name.starts_with('t') && name.contains(".f");
            file.then(|| std::fs::read(entry.path()).ok().map(|bytes| (name, bytes)))?
        })
        .collect()
}
