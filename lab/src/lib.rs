//! The reference workloads of Elbowroom, measured beside the Linux kernel in one run.
//!
//! The lab makes files of known content, runs one worker program over them in each engine in turn, and
//! compares. The worker (`elbowroom-lab-worker`) is the same program with the same arguments everywhere: the
//! kernel runs it in a memory control group with the budget as its limit, Elbowroom runs it by `elbowroom run
//! --memory`; for the engine `soft` it makes its mappings in a soft space of its own.
//!
//! From here down: [`cli`] says what can be asked for; `session` makes the files and runs the engines in
//! turn; `watch` runs one worker and samples it; `record` is what was seen of it and the figures that follow;
//! `report` prints them by `compared`, with ratios that `verdict` judges by the range of the runs, and
//! `published` beside what others have published; `load` is what else the machine did meanwhile. `tune` does
//! so for what is switched off. `engine` names what is compared, and `programs` starts it.
//! [`board`], [`content`] and [`histogram`] are what the lab and the worker must agree on, and in workloads
//! of chunks [`chunks`], [`plan`] and [`routing`], by which `chunked` tells what a cache (`lru`) would have
//! had. Beside that, `bench` measures the library alone, in this process, `unmodified` runs programs that
//! people use, and `tree` trees of processes under one budget.
//! Unsafe code is in `bench::area` only; the worker's is in its `memory` module.
//!
//! Everything that is changed outside of the lab's own files (readahead, dirty limit, control groups) is
//! undone by a guard's `Drop`, so that it is undone on every way out: signals only raise a flag
//! (`interrupt`), and all waits look at it. Only SIGKILL leaves them behind; the worker then dies with the
//! lab.
#![deny(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;

mod bench;
pub mod board;
mod cgroup;
mod chunked;
pub mod chunks;
pub mod cli;
mod compared;
pub mod content;
mod device;
mod dirty_limit;
mod engine;
mod files;
pub mod histogram;
mod interrupt;
mod kernel_swap;
mod load;
mod locks;
mod lru;
mod origin;
mod output;
mod page;
pub mod plan;
pub mod procfs;
mod programs;
mod progress;
mod published;
mod record;
mod report;
mod resident;
pub mod routing;
mod seeds;
mod session;
pub mod size;
mod tree;
mod tune;
mod unmodified;
mod verdict;
mod watch;

pub use origin::COMMIT;

/// The granularity of everything in the lab, in bytes. Files are whole pages.
pub const PAGE_BYTES: u64 = 4096;

/// What is mapped where a part of a file is mapped, in bytes: the least that `elbowroom run` manages.
pub const PART_BYTES: u64 = 1 << 20;

/// The worker's exit status when a page was not what it must be.
pub const WRONG_CONTENT_STATUS: u8 = 3;

/// What a shell gives for a program that SIGINT has ended.
const INTERRUPTED_STATUS: u8 = 130;

/// Does what the command line says, and prints the result.
///
/// # Errors
/// If the arguments make no sense together, if this machine does not allow what they ask for, if a worker
/// fails or reads wrong content. All changes to the machine are undone by then. A signal that ends the run is
/// no error but exit status 130, after everything is undone.
pub fn run(args: cli::LabArgs) -> Result<ExitCode> {
    match args.command {
        cli::LabCommand::List => {
            print!("{}\n{}", cli::LIST, engine::legend_of_all());
            Ok(ExitCode::SUCCESS)
        }
        cli::LabCommand::Report { files, output } => {
            page::write(&files, &output)?;
            println!("{}", output.display());
            Ok(ExitCode::SUCCESS)
        }
        cli::LabCommand::Seeds(args) => seeds::run(&args),
        cli::LabCommand::Run { workload } => ended(run_one(&workload), workload.undone()),
        cli::LabCommand::Tune { only, workload } => {
            let all = elbowroom::Ablation::names();
            let names = if only.is_empty() { all } else { only.iter().map(String::as_str).collect() };
            ended(session::tune(&workload, &names), cli::PAGING_UNDONE)
        }
    }
}

/// How the lab ends; `undone` says what a signal that ends a run leaves behind.
fn ended(result: Result<()>, undone: &str) -> Result<ExitCode> {
    match result {
        Err(error) if error.chain().any(|cause| cause.is::<interrupt::Interrupted>()) => {
            eprintln!("interrupted: {undone}");
            Ok(ExitCode::from(INTERRUPTED_STATUS))
        }
        result => result.map(|()| ExitCode::SUCCESS),
    }
}

fn run_one(workload: &cli::Runnable) -> Result<()> {
    match workload {
        cli::Runnable::Paging(workload) => session::run(workload),
        cli::Runnable::Library(bench) => bench::run(bench),
        cli::Runnable::Programs(args) => unmodified::run(args),
        cli::Runnable::Tree(args) => tree::run(args),
    }
}
