//! `elbowroom generate`: manual pages, and completions for shells, made of the command line's description.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::failure::{Failure, NOT_DONE};

/// Write manual pages, or completions for a shell
///
/// Packages have both already.
#[derive(Args)]
pub struct GenerateArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Write a manual page for each command into a directory
    Man {
        /// The directory, which is made if it is not there
        #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
        directory: PathBuf,
    },
    /// Print completions for a shell
    ///
    /// For bash: elbowroom generate completions bash > ~/.local/share/bash-completion/completions/elbowroom
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Writes what is asked for. `cli` is the description of the whole command line.
pub fn generate(args: &GenerateArgs, mut cli: Command) -> ExitCode {
    let done = match &args.what {
        What::Man { directory } => pages(cli, directory)
            .map_err(|error| format!("cannot write manual pages to {}: {error}", directory.display())),
        What::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut cli, "elbowroom", &mut text);
            print(&text).map_err(|error| format!("cannot print this: {error}"))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => Failure::new(NOT_DONE, why).report(),
    }
}

/// A pipe whose reader has enough is no error.
fn print(text: &[u8]) -> io::Result<()> {
    let mut out = io::stdout();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes the page of the command and those of all commands below it.
fn pages(cli: Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let source = format!("elbowroom {}", env!("CARGO_PKG_VERSION"));
    // The command `help` would have a page for each of the others.
    let mut cli = cli.disable_help_subcommand(true);
    cli.build();
    let mut left = vec![cli];
    while let Some(command) = left.pop() {
        left.extend(command.get_subcommands().filter(|command| !command.is_hide_set()).cloned());
        let man = Man::new(command.clone()).source(source.as_str()).manual("Elbowroom");
        fs::write(directory.join(man.get_filename()), page(&man, &command)?)?;
    }
    Ok(())
}

fn page(man: &Man, command: &Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    let after = command.get_after_long_help().or_else(|| command.get_after_help());
    let mut rest = Roff::default();
    if let Some(after) = after {
        notes(&after.to_string(), &mut rest);
    }
    if command.get_name() != "elbowroom" {
        rest.control("SH", ["SEE ALSO"]).text([bold("elbowroom"), roman("(1)")]);
    }
    rest.to_writer(&mut text)?;
    Ok(text)
}

/// What follows the options in the help: text, and the examples, which `Examples:` begins.
fn notes(after: &str, page: &mut Roff) {
    let (text, examples) = match after.split_once("Examples:\n") {
        Some((text, examples)) => (text.trim_end(), examples),
        None => (after, ""),
    };
    for (title, lines) in [("NOTES", text), ("EXAMPLES", examples)] {
        if lines.is_empty() {
            continue;
        }
        page.control("SH", [title]);
        // Lines that are indented keep their ends; blank ones stand between paragraphs.
        let mut is_kept = false;
        for line in lines.lines() {
            let keep = line.starts_with(' ');
            if keep != is_kept {
                page.control(if keep { "nf" } else { "fi" }, []);
                is_kept = keep;
            }
            match line.is_empty() {
                true => page.control("PP", []),
                false => page.text([roman(line)]),
            };
        }
        if is_kept {
            page.control("fi", []);
        }
    }
}
