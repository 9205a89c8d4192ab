//! The report at the end, collected by a service thread: figures, the statistics file, the trace, and the
//! file that keeps what was learned.

use super::groups;
use crate::base::report::{Report, contention, report_of};
use crate::base::run;
use crate::base::state::{self, Process};
use elbowroom::{LockUse, Manager, ProcessUse, TraceAbout, keep_learned};
use elbowroom_store::{open_briefly, with_highest_file_limit};
use std::fmt::Write;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

/// On a service thread: writes the files of the report, and gives the text for standard error, which may be
/// empty.
pub fn collect(process: &Process, manager: &Manager) -> String {
    let locks = LockUse::from(&manager.locks().snapshot());
    let stats = manager.stats();
    if let Some(member) = run::member() {
        member.note_use(&ProcessUse::from(&stats));
    }
    let mut report = report_of(process, Some((stats, locks, manager.pressure().figures())));
    report.groups = groups::figures(manager);
    let options = state::options();
    let quiet = options.is_some_and(|options| options.report.quiet);
    let mut text = if quiet { String::new() } else { report.to_string() };
    if options.is_some_and(|options| options.report.contention) {
        let Report { program, pid, locks, .. } = &report;
        let _ = write!(text, "{}", contention::Table { program, pid: *pid, locks });
    }
    let is_main = options.is_some_and(|options| options.main_pid == report.pid);
    let mut write = |path: Option<&Path>, what: &str, write: &dyn Fn(&Path) -> std::io::Result<()>| {
        let Some(path) = path else { return };
        let mut path = path.as_os_str().to_owned();
        if !is_main {
            path.push(format!(".{}", report.pid));
        }
        let path = PathBuf::from(path);
        // The limit on file sizes that the program may have set is for its own files, not for these.
        if let Err(error) = with_highest_file_limit(|_| write(&path))
            && !quiet
        {
            let _ = writeln!(text, "elbowroom: cannot write the {what} to {}: {error}", path.display());
        }
    };
    let path = options.and_then(|options| options.report.stats.as_deref());
    write(path, "statistics", &|path| write_stats(path, &report));
    let path = options.and_then(|options| options.report.trace.as_deref());
    write(path, "trace", &|path| write_trace(path, manager, &report));
    for line in keep_learned(manager) {
        // One line for a run: its other processes have the same to say of the same file.
        if is_main && !quiet {
            let _ = writeln!(text, "elbowroom: {line}");
        }
    }
    text
}

fn write_stats(path: &Path, report: &Report<'_>) -> std::io::Result<()> {
    let mut out = Vec::new();
    report.json(&mut out)?;
    std::fs::write(path, out)
}

fn write_trace(path: &Path, manager: &Manager, report: &Report<'_>) -> std::io::Result<()> {
    let Some(trace) = manager.trace() else { return Ok(()) };
    let mut out = BufWriter::new(File::create(path)?);
    let comm = |thread: u32| {
        let name = open_briefly(|| std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")));
        Some(name.ok()?.trim_end().to_owned())
    };
    trace
        .write_json(&mut out, &TraceAbout { program: report.program, pid: report.pid, thread_name: &comm })?;
    out.into_inner()?;
    Ok(())
}
