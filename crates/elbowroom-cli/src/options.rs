//! The command line of `elbowroom run`, made of the table of the crate `elbowroom-options`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, Error, FromArgMatches, ValueHint, parser::ValueSource};
use elbowroom_options::{GivenIn, Kind, Options, Spec, Value, table};

/// The options that were given, and the defaults of the others.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// All values.
    pub options: Options,
    /// The names of the options that were given.
    named: BTreeSet<&'static str>,
}

impl Given {
    /// Whether the option was given: on the command line or, after [`complete`](Self::complete), elsewhere.
    pub fn names(&self, spec: &Spec) -> bool {
        self.named.contains(spec.name)
    }

    /// Adds options from another place. Those that were given before stay, and an option that contradicts one
    /// of them is left out.
    pub fn complete(&mut self, others: Vec<(&'static Spec, Value)>) {
        let before = self.clone();
        let is_fixed = before.names(&table::MEMORY) && before.options.memory_bytes != table::AUTO;
        let without_swap = before.names(&table::SWAP) && before.options.swap.bytes == 0;
        for (spec, value) in others {
            let is_against = match spec.name {
                name if name == table::VERBOSE.name => before.options.report.quiet,
                name if name == table::QUIET.name => before.options.report.verbose,
                name if name == table::SWAP_ENCRYPT.name => without_swap,
                name if name == table::MEMORY_MAX.name || name == table::SLOWDOWN.name => is_fixed,
                _ => false,
            };
            if !before.names(spec) && !is_against && self.options.set(spec.name, value) {
                self.named.insert(spec.name);
            }
        }
    }
}

impl clap::Args for Given {
    fn augment_args(command: Command) -> Command {
        let specs = Options::specs().into_iter().filter(|spec| spec.is_on_the_command_line());
        specs.fold(command, |command, spec| command.arg(argument(spec)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut given = Self::default();
        given.update_from_arg_matches(matches)?;
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        let specs = Options::specs().into_iter().filter(|spec| spec.is_on_the_command_line());
        for spec in specs.filter(|spec| matches.value_source(spec.name) == Some(ValueSource::CommandLine)) {
            let value = match spec.kind {
                Kind::Flag => Some(Value::Flag(matches.get_flag(spec.name))),
                _ => matches.get_one::<Value>(spec.name).cloned(),
            };
            // The parser has checked that the value is of the option's kind.
            if let Some(value) = value {
                self.options.set(spec.name, value);
                self.named.insert(spec.name);
            }
        }
        Ok(())
    }
}

/// An option as clap describes it.
fn argument(spec: &'static Spec) -> Arg {
    let mut arg = Arg::new(spec.name).long(spec.name).help(spec.help).hide(spec.place == GivenIn::Hidden);
    if let Some(letter) = spec.short {
        arg = arg.short(letter);
    }
    if !spec.more.is_empty() {
        arg = arg.long_help(format!("{}\n\n{}", spec.help, spec.more));
    }
    if let Some(other) = spec.requires {
        arg = arg.requires(other);
    }
    if spec.kind == Kind::Flag {
        return arg.action(ArgAction::SetTrue);
    }
    arg = arg.value_name(spec.value_name).action(ArgAction::Set);
    if spec.kind == Kind::Path {
        arg = arg.value_hint(ValueHint::AnyPath);
    }
    if let Some(default) = spec.default {
        arg = arg.default_value(default);
    }
    let read = move |text: &OsStr| spec.kind.read(text).map_err(|problem| problem.to_string());
    match spec.kind {
        Kind::Choice(choices) => {
            let all = choices.iter().map(|choice| PossibleValue::new(choice.name).help(choice.help));
            let names = PossibleValuesParser::new(all);
            arg.value_parser(names.try_map(move |name| read(OsStr::new(&name))))
        }
        _ => arg.value_parser(OsStringValueParser::new().try_map(move |text: OsString| read(&text))),
    }
}

/// [`check_path`] for a file that is replaced by another one, which is made beside it first.
///
/// # Errors
/// Says why the file cannot be replaced.
pub fn check_replaceable(option: &str, path: &Path) -> Result<PathBuf, String> {
    let path = check_path(option, path)?;
    let real = match std::fs::canonicalize(&path) {
        Ok(real) => real,
        Err(_) if path.is_symlink() => {
            return Err(format!("{option}: {} is a symbolic link to nothing", path.display()));
        }
        Err(_) => path.clone(),
    };
    let mut new = real.into_os_string();
    new.push(".elbowroom-new");
    check_path(option, Path::new(&new))?;
    Ok(path)
}

/// Makes the path that `option` (`--stats`, `--trace`) names absolute and checks that the file could be
/// written, without creating it: the file is written only when the program ends, perhaps after hours.
///
/// # Errors
/// Says why the file cannot be written.
pub fn check_path(option: &str, path: &Path) -> Result<PathBuf, String> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let path = std::path::absolute(path).map_err(|error| format!("{option}: {error}"))?;
    let shown = path.display();
    if path.is_dir() {
        return Err(format!("{option}: {shown} is a directory; name a file"));
    }
    let (to_check, access) = if path.exists() {
        (path.as_path(), Access::WRITE_OK)
    } else {
        (path.parent().unwrap_or(Path::new("/")), Access::WRITE_OK | Access::EXEC_OK)
    };
    match accessat(CWD, to_check, access, AtFlags::EACCESS) {
        Ok(()) => Ok(path),
        Err(error) => {
            let error = std::io::Error::from(error);
            Err(format!("{option}: {shown} cannot be written: {}: {error}", to_check.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Args;
    use elbowroom_options::{Fallback, Heap, Io};

    use super::*;

    fn parse(arguments: &[&str]) -> Result<Given, Error> {
        let command = Given::augment_args(Command::new("run").no_binary_name(true));
        command.try_get_matches_from(arguments).and_then(|matches| Given::from_arg_matches(&matches))
    }

    #[test]
    fn the_command_line_is_what_the_table_says() {
        Given::augment_args(Command::new("run")).debug_assert();
        let none = parse(&[]).unwrap();
        assert_eq!(none.options, Options::default());
        assert!(Options::specs().iter().all(|spec| !none.names(spec)));
        let some = parse(&[
            "-m",
            "1.5G",
            "-s0",
            "-q",
            "--io",
            "uring",
            "--heap=all",
            "--fallback",
            "kernel",
            "--writeback-interval",
            "1.5s",
            "--trace",
            "t",
            "--trace-buffer",
            "8M",
            "--ablate",
            "vma_locks",
        ])
        .unwrap();
        let Options { memory_bytes, ref swap, ref report, kernel, heap, fallback, .. } = some.options;
        assert_eq!((memory_bytes, swap.bytes, report.quiet), (1536 << 20, 0, true));
        assert_eq!((kernel.io, heap, fallback), (Io::Uring, Heap::All, Fallback::Kernel));
        assert_eq!(some.options.writeback_interval, Duration::from_millis(1500));
        assert_eq!((report.trace_bytes, some.options.tests.ablate.as_deref()), (8 << 20, Some("vma_locks")));
        assert!(some.names(&table::MEMORY) && some.names(&table::SWAP) && !some.names(&table::SWAP_DIR));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (arguments, said) in [
            (&["--memory", "1,5G"][..], "1,5G: write 1.5G"),
            (&["--memory=-5M"], "a size cannot be below 0: write 5M"),
            (&["--memory=-1"], "a size cannot be below 0"),
            (&["--memory", ""], "no number: write a size as 512M or 1.5G"),
            (&["--io", "fast"], "possible values: auto, uring, threads"),
            (&["--stats", ""], "it is empty"),
            (&["--trace-buffer", "8M"], "--trace <FILE>"),
            (&["--main-pid", "7"], "unexpected argument"),
        ] {
            let error = parse(arguments).unwrap_err().to_string();
            assert!(error.contains(said), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn stats_paths() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("s.json");
        assert_eq!(check_path("--stats", &file), Ok(file.clone()));
        assert!(!file.exists(), "checking must not make the file");
        std::fs::write(&file, "{}").unwrap();
        assert_eq!(check_path("--stats", &file), Ok(file.clone()));
        assert!(check_path("--stats", dir.path()).unwrap_err().contains("is a directory"));
        assert!(check_path("--stats", &file.join("x")).unwrap_err().contains("cannot be written"));
        assert!(check_path("--stats", &dir.path().join("no/s")).unwrap_err().contains("No such file"));
        assert!(check_path("--stats", Path::new("s.json")).unwrap().is_absolute());
    }
}
