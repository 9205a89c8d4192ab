//! The `elbowroom` command: `run` starts a program with its memory managed, `doctor` says what the machine
//! allows, `lab` measures.
//!
//! This crate is glue. `run` checks everything that can be checked before the program starts ([`program`],
//! [`preload`], [`plan`]), writes the options into the environment ([`options`]) and executes the program in
//! its own place, so that nothing of this command is left while the program runs. What `doctor` prints is
//! rendered in [`doctor`] from the facts of `elbowroom_machine::probe`; [`plan`] draws the conclusions for
//! both.
//!
//! Errors go to standard error with the prefix `elbowroom:`; [`failure`] lists the exit codes.
#![forbid(unsafe_code)]

mod doctor;
mod failure;
mod options;
mod plan;
mod preload;
mod program;
mod run;
mod swap;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::USAGE;

/// Run programs on files larger than their memory.
///
/// Elbowroom pages the files that a program maps under a hard memory budget, in the program's own process.
/// The program needs no change and you need no special rights beyond userfaultfd.
#[derive(Parser)]
#[command(name = "elbowroom", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  elbowroom doctor                                    can this machine run it?
  elbowroom run --memory 512M -- python3 train.py     give it 512 MiB for its mapped files
  elbowroom run --help                                every option of run";

#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Doctor(doctor::DoctorArgs),
    /// Run the reference workloads and compare with the kernel
    Lab(elbowroom_lab::cli::LabArgs),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match cli.command {
        Command::Run(args) => run::run(args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Lab(args) => elbowroom_lab::run(args).unwrap_or_else(|error| {
            failure::say(&format!("{error:#}"));
            ExitCode::FAILURE
        }),
    }
}

/// Prints help and version as clap does, and errors of usage with our prefix.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Nothing useful can be done if the help cannot be printed.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").map_or(text.clone(), |rest| format!("elbowroom: {rest}"));
    let _ = write!(std::io::stderr(), "{text}");
    ExitCode::from(USAGE)
}
