//! The programs that the lab starts: how each engine is told to run the worker.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::cgroup::Cgroup;
use crate::size::Size;

/// The programs that the lab starts.
#[derive(Debug)]
pub struct Programs {
    worker: PathBuf,
    elbowroom: PathBuf,
}

/// How much memory a program has under `elbowroom run`.
#[derive(Debug, Clone, Copy)]
pub enum Budget {
    /// So much.
    Fixed(Size),
    /// As much as it needs, and at most so much.
    Auto(Size),
}

impl From<Size> for Budget {
    fn from(size: Size) -> Self {
        Self::Fixed(size)
    }
}

impl Budget {
    /// What follows `--memory` on the command line.
    fn arguments(self) -> impl Iterator<Item = String> {
        let (first, rest) = match self {
            Self::Fixed(size) => (size.to_string(), Vec::new()),
            Self::Auto(size) => ("auto".to_owned(), vec!["--memory-max".to_owned(), size.to_string()]),
        };
        [first].into_iter().chain(rest)
    }
}

/// How `elbowroom run` is told to manage anonymous memory.
#[derive(Debug, Clone, Copy)]
pub struct Swap<'a> {
    /// How much may be out.
    pub size: Size,
    /// Where the file is.
    pub dir: &'a Path,
    /// Which blocks of the heap are managed: `--heap`.
    pub heap: &'a str,
    /// What a forked child gets: `--fork`.
    pub fork: &'a str,
}

impl Programs {
    /// Finds them: Elbowroom is this program unless `ELBOWROOM_EXE` names another, the worker is beside this
    /// program.
    ///
    /// # Errors
    /// If the worker is not there.
    pub fn find() -> Result<Self> {
        let this = env::current_exe().context("cannot tell where this program is")?;
        let elbowroom = env::var_os("ELBOWROOM_EXE").filter(|exe| !exe.is_empty()).map(PathBuf::from);
        let worker = this.with_file_name("elbowroom-lab-worker");
        ensure!(
            worker.is_file(),
            "{} is missing; cargo build --release builds it, and it must stay beside this program",
            worker.display()
        );
        Ok(Self { worker, elbowroom: elbowroom.unwrap_or(this) })
    }

    /// The worker.
    pub fn worker(&self) -> &Path {
        &self.worker
    }

    /// This program, or what stands for it.
    pub fn elbowroom(&self) -> &Path {
        &self.elbowroom
    }

    /// Where Elbowroom is something else, and there is no worker.
    #[cfg(test)]
    pub fn standing_in(elbowroom: &Path) -> Self {
        Self { worker: PathBuf::from("true"), elbowroom: elbowroom.to_owned() }
    }

    /// The worker in a control group.
    pub fn in_cgroup(&self, group: &Cgroup, worker_args: &[OsString]) -> Vec<OsString> {
        self.program_in_cgroup(group, &self.alone(worker_args))
    }

    /// Any program in a control group.
    pub fn program_in_cgroup(&self, group: &Cgroup, program: &[OsString]) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec![self.worker.clone().into(), "enter".into(), group.procs().into()];
        line.push("--".into());
        line.extend_from_slice(program);
        line
    }

    /// The worker by itself.
    pub fn alone(&self, worker_args: &[OsString]) -> Vec<OsString> {
        [self.worker.clone().into()].into_iter().chain(worker_args.iter().cloned()).collect()
    }

    /// Any program with a budget, and with all else as it is by default, but for `options`. The swap file is
    /// in `dir`.
    pub fn program_with_budget(
        &self,
        memory: Size,
        dir: &Path,
        options: &[&str],
        program: &[OsString],
    ) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec![self.elbowroom.clone().into()];
        line.extend(
            ["run", "--config", "none", "--memory", &memory.to_string(), "--swap-dir"].map(OsString::from),
        );
        line.push(dir.into());
        line.extend(options.iter().map(OsString::from));
        line.push("--".into());
        line.extend_from_slice(program);
        line
    }

    /// The worker under `elbowroom run`, which writes its statistics to `stats`; `off` names what is switched
    /// off, with commas between.
    pub fn under_elbowroom(
        &self,
        memory: Size,
        stats: &Path,
        off: &str,
        worker_args: &[OsString],
    ) -> Vec<OsString> {
        self.program_under_elbowroom(memory, stats, off, None, &self.alone(worker_args))
    }

    /// The same with any program; without `swap` its anonymous memory is the kernel's.
    pub fn program_under_elbowroom(
        &self,
        budget: impl Into<Budget>,
        stats: &Path,
        off: &str,
        swap: Option<Swap<'_>>,
        program: &[OsString],
    ) -> Vec<OsString> {
        let mut line: Vec<OsString> = vec![self.elbowroom.clone().into()];
        line.extend(["run", "--config", "none", "--memory"].map(OsString::from));
        line.extend(budget.into().arguments().map(OsString::from));
        line.extend(["--quiet", "--stats"].map(OsString::from));
        line.push(stats.into());
        if !off.is_empty() {
            line.extend(["--ablate", off].map(OsString::from));
        }
        match swap {
            Some(Swap { size, dir, heap, fork }) => {
                let size = size.to_string();
                line.extend(
                    ["--fork", fork, "--heap", heap, "--swap", &size, "--swap-dir"].map(OsString::from),
                );
                line.push(dir.into());
            }
            None => line.extend(["--swap", "0"].map(OsString::from)),
        }
        line.push("--".into());
        line.extend_from_slice(program);
        line
    }
}
