//! The `elbowroom` command: `run` starts a program with its memory managed, `top` shows a run and `ctl`
//! changes it, `doctor` says what the machine allows, `jupyter` gives notebooks a budget, `lab` measures, and
//! `generate` makes manual pages and completions.
//!
//! This crate is glue. `run` checks everything that can be checked before the program starts ([`program`],
//! [`preload`], [`plan`]), writes the options into the environment ([`options`]) and executes the program in
//! its own place, so that nothing of this command is left while the program runs. What `doctor` prints is
//! rendered in [`doctor`] from the facts of `elbowroom_machine::probe`; [`plan`] draws the conclusions for
//! both. `top` and `ctl` find runs by their tables ([`runs`]), and read and write those.
//!
//! Errors go to standard error with the prefix `elbowroom:`; [`failure`] lists the exit codes.
#![forbid(unsafe_code)]

mod config;
mod ctl;
mod doctor;
mod failure;
mod generate;
mod groups;
mod jupyter;
mod options;
mod plan;
mod preload;
mod program;
mod run;
mod run_table;
mod runs;
mod swap;
mod toml_file;
mod top;
mod unpack;
mod version;

use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use elbowroom_options::Options;

use crate::failure::USAGE;

/// Run programs on data larger than their memory.
///
/// Elbowroom pages the files that a program maps, and its large arrays, under a hard memory budget, in the
/// program's own process.
/// The program needs no change and you need no special rights beyond userfaultfd.
#[derive(Parser)]
#[command(name = "elbowroom", version = version::VERSION.as_str(), after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  elbowroom doctor                                    can this machine run it?
  elbowroom run --memory 512M -- python3 train.py     give it 512 MiB for its files and arrays
  elbowroom top                                       what does each process of the run have, and do?
  elbowroom ctl set max=1G                            give the run another budget
  elbowroom run --help                                every option of run";

#[derive(Subcommand)]
enum Command {
    Run(Box<run::RunArgs>),
    Top(top::TopArgs),
    Ctl(ctl::CtlArgs),
    Doctor(doctor::DoctorArgs),
    Jupyter(jupyter::JupyterArgs),
    Generate(generate::GenerateArgs),
    Version(version::VersionArgs),
    /// Run the reference workloads and compare with the kernel
    Lab(elbowroom_lab::cli::LabArgs),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse_from(ctl::in_order(std::env::args_os().collect())) {
        Ok(cli) => cli,
        Err(error) => return usage(error),
    };
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Top(args) => top::top(&args),
        Command::Ctl(args) => ctl::ctl(&args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Jupyter(args) => jupyter::jupyter(&args, |words| Cli::try_parse_from(words).map(drop)),
        Command::Generate(args) => generate::generate(&args, Cli::command()),
        Command::Version(version::VersionArgs {}) => version::version(),
        Command::Lab(args) => elbowroom_lab::run(args).unwrap_or_else(|error| {
            failure::say(&format!("{error:#}"));
            ExitCode::FAILURE
        }),
    }
}

/// Prints help and version as clap does, and errors of usage with our prefix.
fn usage(mut error: clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return match error.print().and_then(|()| std::io::stdout().flush()) {
            // A pager that was left early closes the pipe: that is no error.
            Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => {
                failure::say(&format!("cannot print this: {why}"));
                ExitCode::FAILURE
            }
            _ => ExitCode::SUCCESS,
        };
    }
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
    let tip = tip(&mut error, &arguments);
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").map_or(text.clone(), |rest| format!("elbowroom: {rest}"));
    let text = match tip {
        // The tip goes behind the first paragraph, where clap's own tips are.
        Some(tip) => text.replacen("\n\n", &format!("\n\n  tip: {tip}\n\n"), 1),
        None => text,
    };
    let _ = write!(std::io::stderr(), "{text}");
    ExitCode::from(USAGE)
}

/// A tip where clap has none: what to write if `run` is missing. Removes clap's own tip where it would be
/// wrong: an option that stands before the program's name is no argument of the program.
fn tip(error: &mut clap::Error, arguments: &[String]) -> Option<String> {
    let first = arguments.first()?;
    let run_takes = |name: &str| {
        let name = name.split('=').next().unwrap_or(name);
        Options::specs().into_iter().any(|spec| {
            let short = spec.short.is_some_and(|letter| name == format!("-{letter}"));
            spec.is_on_the_command_line() && (short || name.strip_prefix("--") == Some(spec.name))
        })
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand if error.get(ContextKind::SuggestedSubcommand).is_none() => {
            Some(format!("to run a program: elbowroom run -- {}", quote(arguments)))
        }
        ErrorKind::UnknownArgument if run_takes(first) => {
            error.remove(ContextKind::Suggested);
            Some(format!("it is an option of run: elbowroom run {}", quote(arguments)))
        }
        ErrorKind::UnknownArgument if error.get(ContextKind::SuggestedArg).is_none() => {
            error.remove(ContextKind::Suggested);
            None
        }
        _ => None,
    }
}

/// Quotes the words so that a shell reads them back.
fn quote(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-=,:+@%".contains(c);
    let one = |word: &String| match word.chars().all(plain) && !word.is_empty() {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    };
    words.iter().map(one).collect::<Vec<_>>().join(" ")
}
