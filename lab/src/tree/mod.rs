//! Trees of processes under one budget, beside the kernel: `lab run tree`.
//!
//! [`cli`] says what can be asked for, and how much of everything there is; `measures` has a function for
//! each row; `project` is the C project that make makes; `pss` samples the memory of a tree; `stage` acts
//! on a tree while it runs, by the run's table, which `table` finds; `report` has the figures and their
//! goals. All processes check their own memory, and a process that finds it wrong fails its row.
//!
//! Processes, the control group, the kernel's swap file and the directory of a session are removed by guards
//! on every way out.

pub mod cli;
mod measures;
mod project;
mod pss;
mod report;
mod stage;
mod table;

use std::cell::OnceCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use self::cli::{Row, Scale, TreeArgs};
use self::project::Project;
use self::report::{Figure, LeftOut, Report, Side};
use crate::device::check_on_disk;
use crate::files;
use crate::interrupt::{Interrupt, Interrupted};
use crate::load::{Begun, Load};
use crate::output::OutputFile;
use crate::procfs;
use crate::programs::Programs;
use crate::progress::Progress;

/// What is cleaned up when a signal ends a run, for the message.
pub const UNDONE: &str = "the processes are killed, and files, swap and control groups are removed";

/// The Python program of the row workers.
const WORKERS: &str = include_str!("../../programs/workers.py");

/// Runs the rows, prints the table and writes the JSON file.
///
/// # Errors
/// If an option is out of range, or a signal comes; if something under Elbowroom failed, after the table.
pub fn run(args: &TreeArgs) -> Result<()> {
    args.check()?;
    let json = args.json.as_deref().map(OutputFile::prepare).transpose()?;
    let report = measure(args)?;
    print!("{}", report.table());
    if let Some(json) = json {
        json.write_json(&report.json())?;
    }
    let is_ours = |out: &&LeftOut| !matches!(out.side, Side::Plain | Side::Kernel);
    if report.left_out.iter().filter(is_ours).count() > 0 {
        bail!("not everything ran under Elbowroom; what is left out says why");
    }
    Ok(())
}

fn measure(args: &TreeArgs) -> Result<Report> {
    let mut progress = Progress::new();
    let session = Session::begin(args)?;
    let (mut figures, mut left_out, mut loads) = (Vec::new(), Vec::new(), Vec::new());
    for row in args.rows() {
        let mut sides = sides(row).to_vec();
        for run in 1..=args.runs {
            for side in sides.clone() {
                let label = format!("{row} run {run}/{} {}", args.runs, side.name());
                progress.update(|| label.clone());
                let begun = Load::begin();
                let measured = session.measure(row, side);
                session.interrupt.check()?;
                loads.extend(begun.and_then(Begun::end));
                match measured {
                    Ok(values) => {
                        let shown: Vec<_> =
                            values.iter().map(|(key, value)| format!("{key} {value:.3}")).collect();
                        progress.keep(&format!("{label}: {}", shown.join(", ")));
                        let figure = |(key, value)| Figure { row, side, run, key, value };
                        figures.extend(values.into_iter().map(figure));
                    }
                    Err(error) if error.is::<Interrupted>() => return Err(error),
                    // The text below the table says why this side does not run, or not on this machine.
                    // Other sides go on.
                    Err(error) => {
                        let reason = format!("{error:#}");
                        progress.keep(&format!("{label}: {reason}"));
                        sides.retain(|other| *other != side);
                        left_out.push(LeftOut { row, side, reason });
                    }
                }
            }
        }
    }
    drop(progress);
    let machine = procfs::machine()?;
    let description = format!(
        "tree: {} runs{}\nmachine: {}, {} CPUs, {} MiB",
        args.runs,
        if args.short { ", in a short form whose figures say little" } else { "" },
        machine.kernel,
        machine.cpus,
        machine.memory_bytes >> 20
    );
    Ok(Report { parameters: serde_json::to_value(args)?, machine, description, left_out, figures, loads })
}

/// The sides of a row, which take turns.
fn sides(row: Row) -> &'static [Side] {
    match row {
        Row::Workers => &[Side::Kernel, Side::Elbowroom],
        Row::Make | Row::Commands | Row::Start | Row::Idle => &[Side::Plain, Side::Elbowroom],
        Row::Quiet => &[Side::Alone, Side::BesideBusy, Side::BesideThrashing],
        Row::Lowered | Row::Killed => &[Side::Elbowroom],
    }
}

/// What all rows need.
struct Session<'a> {
    scale: &'a Scale,
    bound: Duration,
    programs: Programs,
    interrupt: Interrupt,
    /// On a disk, with the swap files, the scripts and the C project.
    dir: TempDir,
    /// The C project, which is made when it is first needed, and the output of its program.
    project: OnceCell<Project>,
    printed: OnceCell<String>,
}

impl<'a> Session<'a> {
    fn begin(args: &'a TreeArgs) -> Result<Self> {
        let interrupt = Interrupt::install()?;
        let programs = Programs::find()?;
        let parent = match &args.dir {
            Some(dir) => dir.clone(),
            None => files::default_parent()?,
        };
        check_on_disk(&parent)?;
        let dir = tempfile::Builder::new().prefix("elbowroom-lab-tree-").tempdir_in(&parent);
        let dir = dir.with_context(|| format!("cannot make a directory in {}", parent.display()))?;
        std::fs::write(dir.path().join("workers.py"), WORKERS)
            .context("cannot write the program of workers")?;
        let bound = Duration::from_secs_f64(args.bound_seconds);
        let (project, printed) = (OnceCell::new(), OnceCell::new());
        Ok(Self { scale: args.scale(), bound, programs, interrupt, dir, project, printed })
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The C project, which is made when it is first needed.
    fn project(&self) -> Result<&Project> {
        if let Some(project) = self.project.get() {
            return Ok(project);
        }
        let project = Project::write(&self.dir().join("project"), self.scale.files)?;
        Ok(self.project.get_or_init(|| project))
    }
}

/// The first python3 in /usr/bin or PATH that is an ELF file. A script that looks for an interpreter is
/// passed over: the script's shell would be measured, too.
fn python() -> Result<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = [PathBuf::from("/usr/bin")].into_iter().chain(std::env::split_paths(&path));
    let found = dirs.map(|dir| dir.join("python3")).find(|file| is_program(file));
    found.map(PathBuf::into_os_string).context("there is no python3: apt-get install python3")
}

/// Whether a file is an ELF file, by its first bytes.
fn is_program(path: &Path) -> bool {
    let mut start = [0; 4];
    let read =
        std::fs::File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut start));
    read.is_ok() && start == *b"\x7fELF"
}
