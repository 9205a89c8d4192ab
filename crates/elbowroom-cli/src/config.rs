//! Options of `run` from elsewhere than the command line: variables of the environment, and a file.
//!
//! An option is taken from the first of these that has it: the command line, the variable that is called as
//! the option (`ELBOWROOM_SWAP_DIR` for `--swap-dir`), the file. The file is `--config FILE`, else what
//! `ELBOWROOM_CONFIG` names, else `$XDG_CONFIG_HOME/elbowroom.toml` or `~/.config/elbowroom.toml`, if it is
//! there. `none` stands for no file. The keys of the file are the names of options.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use elbowroom_options::{GivenIn, Kind, Options, Spec, Value};
use toml::Spanned;
use toml::de::DeValue;

use crate::failure::{Failure, USAGE};
use crate::options::Given;
use crate::toml_file::{self, Key, TomlFile, Wrong, in_order};

/// The variable that names the file.
const FILE_VARIABLE: &str = "ELBOWROOM_CONFIG";

/// What stands for no file.
const NONE: &str = "none";

/// Completes the options of the command line by those of the environment and of the file.
///
/// # Errors
/// A failure of usage that names the variable, or the file and the line.
pub fn complete(given: &mut Given, config: Option<&OsStr>) -> Result<(), Failure> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    given.complete(of_variables(variable)?);
    let named = config.map(|path| ("--config", path.to_owned()));
    let named = named.or_else(|| variable(FILE_VARIABLE).map(|path| (FILE_VARIABLE, path)));
    match named {
        Some((_, path)) if path == NONE => {}
        Some((from, path)) => given.complete(of_file(from, Path::new(&path))?),
        None => {
            if let Some(path) = usual_path(variable("XDG_CONFIG_HOME"), variable("HOME")) {
                given.complete(of_text(&own_file(&path)?)?);
            }
        }
    }
    Ok(())
}

/// The options that can be given so.
fn specs() -> impl Iterator<Item = &'static Spec> {
    Options::specs().into_iter().filter(|spec| spec.place == GivenIn::CommandLine)
}

fn of_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Vec<(&'static Spec, Value)>, Failure> {
    let mut found = Vec::new();
    for spec in specs() {
        let name = format!("ELBOWROOM_{}", spec.name.to_uppercase().replace('-', "_"));
        if let Some(text) = variable(&name) {
            let value = spec.kind.read(&text);
            let value = value.map_err(|problem| Failure::new(USAGE, format!("{name}: {problem}")))?;
            found.push((spec, value));
        }
    }
    Ok(found)
}

/// The file that is read where none is named, if it is there.
fn usual_path(config: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let directory = config.map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = directory.or_else(|| home.map(|home| Path::new(&home).join(".config")))?;
    Some(directory.join("elbowroom.toml")).filter(|path| path.exists())
}

/// Reads the file in the usual place, if it is this user's and no other user can write it. Under `sudo` HOME
/// may be another user's, and that user may not choose which files root writes: so the file that is read is
/// the one that was looked at, whatever the path names meanwhile.
fn own_file(path: &Path) -> Result<TomlFile, Failure> {
    let shown = path.display();
    let unreadable = |why: String| Failure::new(USAGE, format!("{shown}: {why}"));
    let file = File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let found = file.metadata().map_err(|error| unreadable(error.to_string()))?;
    let owner = found.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(unreadable(format!(
            "the file of options belongs to another user (uid {owner}): say --config {shown} to use it, or \
             --config none"
        )));
    }
    if found.mode() & 0o002 != 0 {
        return Err(unreadable(format!("every user can write the file of options: chmod o-w {shown}")));
    }
    TomlFile::read_open("--config", path, file)
}

fn of_file(option: &str, path: &Path) -> Result<Vec<(&'static Spec, Value)>, Failure> {
    of_text(&TomlFile::read(option, path)?)
}

fn of_text(file: &TomlFile) -> Result<Vec<(&'static Spec, Value)>, Failure> {
    read(file.text()).map_err(|wrong| file.failure(wrong))
}

fn read(text: &str) -> Result<Vec<(&'static Spec, Value)>, Wrong> {
    let table = toml_file::parse(text)?;
    in_order(table.get_ref()).into_iter().map(|(key, value)| pair(key, value)).collect()
}

fn pair(key: &Key<'_>, value: &Spanned<DeValue<'_>>) -> Result<(&'static Spec, Value), Wrong> {
    let (name, at) = (key.get_ref().as_ref(), key.span().start);
    let wrong = |why: String| Wrong { at, why: format!("{name}: {why}") };
    let Some(spec) = specs().find(|spec| spec.name == name) else {
        let names: Vec<_> = specs().map(|spec| spec.name).collect();
        return Err(wrong(format!("there is no such option; there are {}", names.join(", "))));
    };
    let text = match (spec.kind, value.get_ref()) {
        (Kind::Flag, DeValue::Boolean(said)) => return Ok((spec, Value::Flag(*said))),
        (Kind::Flag, _) => return Err(wrong("write true or false".to_owned())),
        (Kind::Size { .. } | Kind::SizeOrAuto { .. } | Kind::Count { .. }, DeValue::Integer(number))
            if number.radix() == 10 =>
        {
            number.as_str().replace('_', "")
        }
        (_, DeValue::String(text)) => text.to_string(),
        (Kind::Percent { .. }, DeValue::Integer(number)) if number.radix() == 10 => {
            number.as_str().to_owned()
        }
        (Kind::Percent { .. }, DeValue::Float(number)) => number.as_str().to_owned(),
        (Kind::Size { .. } | Kind::SizeOrAuto { .. }, _) => {
            return Err(wrong(format!("write a size, as in {name} = \"512M\"")));
        }
        (Kind::Count { .. }, _) => return Err(wrong(format!("write a whole number, as in {name} = 2"))),
        _ => return Err(wrong(format!("write a text in quotes, as in {name} = \"...\""))),
    };
    let read = spec.kind.read(OsStr::new(&text)).map_err(|problem| wrong(problem.to_string()))?;
    match &read {
        // The directory in which a program happens to be started is not meant.
        Value::Path(path) if path.is_relative() => Err(wrong("write a path that begins with /".to_owned())),
        _ => Ok((spec, read)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use elbowroom_options::{Heap, table};

    use super::*;

    #[test]
    fn a_file_has_options_by_their_names() {
        let text = "# mine\nmemory = \"1.5G\"\nmin-size = 65_536\nhandlers = 3\nquiet = true\nheap = 'all'\n\
                    writeback-interval = \"250ms\"\nswap-dir = \"/data/swap dir\"\nverbose = false\n";
        let mut given = Given::default();
        given.complete(read(text).unwrap());
        let options = &given.options;
        assert_eq!((options.memory_bytes, options.min_size_bytes, options.handlers), (1536 << 20, 65_536, 3));
        assert_eq!((options.report.quiet, options.heap), (true, Heap::All));
        assert_eq!(options.writeback_interval, Duration::from_millis(250));
        assert_eq!(options.swap.dir.as_deref(), Some(Path::new("/data/swap dir")));
        assert!(given.names(&table::MEMORY) && !given.names(&table::SWAP));
        assert_eq!(read("").unwrap(), []);
    }

    #[test]
    fn mistakes_name_line_and_key() {
        for (text, said) in [
            ("memory = 1G", "1: this is no TOML: "),
            (
                "quiet = true\n\nmemroy = \"1G\"",
                "3: memroy: there is no such option; there are memory, memory-max, ",
            ),
            ("inject = \"read:eio\"", "1: inject: there is no such option"),
            ("main-pid = 7", "1: main-pid: there is no such option"),
            ("[run]\nmemory = \"1G\"", "1: run: there is no such option"),
            ("\nmemory = \"15M\"", "2: memory: it must be at least 16M"),
            ("memory = 1000", "1: memory: it must be at least 16M"),
            ("memory = 1.5", "1: memory: write a size, as in memory = \"512M\""),
            ("memory = \"1,5G\"", "1: memory: 1,5G: write 1.5G"),
            ("handlers = \"many\"", "1: handlers: 'many' is not a whole number"),
            ("handlers = true", "1: handlers: write a whole number, as in handlers = 2"),
            ("quiet = 1", "1: quiet: write true or false"),
            ("quiet = \"yes\"", "1: quiet: write true or false"),
            ("io = \"fast\"", "1: io: 'fast' is none of auto, uring, threads"),
            ("io = 1", "1: io: write a text in quotes, as in io = \"...\""),
            ("writeback-interval = \"1ms\"", "1: writeback-interval: it must be 10ms to 60m"),
            ("stats = \"s.json\"", "1: stats: write a path that begins with /"),
            ("stats = \"\"", "1: stats: it is empty"),
            ("memory = \"1G\"\nmemory = \"2G\"", "2: this is no TOML: "),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("c.toml");
            fs::write(&path, text).unwrap();
            let failure = of_file("--config", &path).unwrap_err();
            assert_eq!(failure.code, USAGE);
            let said = format!("{}:{said}", path.display());
            assert!(
                failure.message.starts_with(&said) && !failure.message.contains('\n'),
                "{failure}\n{said}"
            );
        }
        let failure = of_file("ELBOWROOM_CONFIG", Path::new("/no/such")).unwrap_err();
        assert!(failure.message.starts_with("ELBOWROOM_CONFIG: /no/such: No such file"), "{failure}");
    }

    #[test]
    fn each_option_has_a_variable() {
        let variables = |name: &str| match name {
            "ELBOWROOM_SWAP_DIR" => Some("/data".into()),
            "ELBOWROOM_QUIET" => Some("1".into()),
            "ELBOWROOM_INJECT" | "ELBOWROOM_MAIN_PID" | "ELBOWROOM_TREE" => Some("nonsense".into()),
            _ => None,
        };
        let found = of_variables(variables).unwrap();
        let names: Vec<_> = found.iter().map(|(spec, _)| spec.name).collect();
        assert_eq!(names, ["swap-dir", "quiet"], "options that only the command has are no variables");
        let wrong = |name: &str| (name == "ELBOWROOM_MIN_SIZE").then(|| "1 furlong".into());
        let failure = of_variables(wrong).unwrap_err();
        assert!(failure.message.starts_with("ELBOWROOM_MIN_SIZE: ") && failure.code == USAGE, "{failure}");
    }

    #[test]
    fn what_was_given_first_stays_and_is_not_contradicted() {
        let value = |text: &str| read(text).unwrap();
        let mut given = Given::default();
        given.complete(value("memory = \"64M\"\nquiet = true\nswap = 0"));
        given.complete(value("memory = \"1G\"\nmin-size = \"2M\"\nverbose = true\nswap-encrypt = true"));
        let options = &given.options;
        assert_eq!((options.memory_bytes, options.min_size_bytes), (64 << 20, 2 << 20));
        assert_eq!(
            (options.report.quiet, options.report.verbose, options.swap.encrypt),
            (true, false, false)
        );
        // In one place they stay, and are the mistake that they are.
        let mut both = Given::default();
        both.complete(value("quiet = true\nverbose = true"));
        assert!(both.options.report.quiet && both.options.report.verbose);
        let mut other = Given::default();
        other.complete(value("quiet = false\nverbose = true"));
        other.complete(value("quiet = true"));
        assert!(other.options.report.verbose && !other.options.report.quiet);
    }

    #[test]
    fn the_usual_file_is_that_of_the_xdg_directories() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| Some(dir.path().join(name).into_os_string());
        for name in ["home/.config", "config"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        assert_eq!(usual_path(path("config"), path("home")), None);
        assert_eq!(usual_path(None, None), None);
        let home = dir.path().join("home/.config/elbowroom.toml");
        fs::write(&home, "").unwrap();
        assert_eq!(usual_path(path("config"), path("home")), None, "the home counts only without the other");
        assert_eq!(usual_path(None, path("home")), Some(home.clone()));
        assert_eq!(usual_path(Some("config".into()), path("home")), Some(home.clone()), "no absolute path");
        assert!(own_file(&home).is_ok());
        fs::set_permissions(&home, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(own_file(&home).unwrap_err().message.contains("chmod o-w"));
        fs::set_permissions(&home, fs::Permissions::from_mode(0o644)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&home, Some(65_533), None).unwrap();
            let message = own_file(&home).unwrap_err().message;
            assert!(message.contains("another user (uid 65533)") && message.contains("--config none"));
        }
    }
}
