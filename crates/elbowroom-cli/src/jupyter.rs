//! `elbowroom jupyter`: gives notebooks a kernel whose memory has a budget.
//!
//! Jupyter finds kernels by files, `kernels/NAME/kernel.json` in its data directories. Each file says how the
//! kernel is started. `install` writes one, in the user's own data directory, that starts the interpreter
//! under `elbowroom run`. That command executes the interpreter in its own place, so Jupyter's signals
//! (interrupt, shutdown) reach the kernel. Nothing of Jupyter is needed to write the file.
//!
//! The files that `install` has written have a key `elbowroom` in their metadata. `list` and `remove` concern
//! only those.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use elbowroom::Config;
use elbowroom_machine::probe;
use elbowroom_options::size::{self, Shown};
use elbowroom_options::{Faults, Io, Mmu};
use serde_json::{Value, json};

use crate::failure::{CANNOT_RUN, Failure, NOT_DONE, USAGE, say};
use crate::{plan, program};

/// An interpreter that takes longer than this to start is taken for one that does not work.
const PYTHON_BOUND: Duration = Duration::from_secs(30);
/// How often it is looked whether the interpreter has ended.
const PYTHON_LOOK: Duration = Duration::from_millis(5);
/// The most bytes of the interpreter's output that are read: the last ones.
const PYTHON_OUTPUT: u64 = 1 << 20;
/// Prints the interpreter's path, whether it has ipykernel, and its version, each on a line.
const ABOUT_PYTHON: &str = "import importlib.util as u, platform as p, sys
print(sys.executable, u.find_spec('ipykernel') is not None, p.python_version(), sep='\\n')";

/// Give notebooks a Python kernel whose memory has a budget
///
/// The kernel is started under `elbowroom run --memory`: its arrays and mapped files have no more memory than
/// the budget, and a notebook that allocates more is paged instead of killed. It is seen in all notebooks of
/// this user, whatever environment Jupyter itself is installed in.
#[derive(Args)]
#[command(after_help = MORE)]
pub struct JupyterArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Install(InstallArgs),
    /// List the kernels that `install` has written
    List,
    /// Remove a kernel that `install` has written
    Remove {
        /// The kernel's name, as `list` has it
        #[arg(value_name = "NAME", default_value = NAME)]
        name: String,
    },
}

/// Write a kernel, or another budget into one that is there
#[derive(Args)]
struct InstallArgs {
    /// The memory of the kernel [default: half of the machine's memory]
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// The kernel's name, for `jupyter --kernel NAME`: letters, digits, `.`, `_` and `-`
    #[arg(long, value_name = "NAME", default_value = NAME)]
    name: String,
    /// The name that notebooks show [default: Python VERSION, SIZE]
    #[arg(long, value_name = "TEXT")]
    display_name: Option<String>,
    /// The interpreter, which needs the package ipykernel
    #[arg(long, value_name = "PROGRAM", default_value = "python3", value_hint = clap::ValueHint::CommandName)]
    python: OsString,
    /// Further options of `elbowroom run`
    #[arg(value_name = "OPTIONS", last = true)]
    options: Vec<String>,
}

const NAME: &str = "elbowroom";

const MORE: &str = "\
Kernels are in kernels/ of JUPYTER_DATA_DIR, else of $XDG_DATA_HOME/jupyter, else of ~/.local/share/jupyter.

Examples:
  elbowroom jupyter install --memory 4G
  elbowroom jupyter install --memory 4G --name small --python ~/env/bin/python -- --heap all --swap 16G
  elbowroom jupyter list
  elbowroom jupyter remove small";

fn parse_size(text: &str) -> Result<u64, String> {
    let bytes = size::parse(text).map_err(|error| error.to_string())?;
    match bytes < Config::MIN_MEMORY {
        true => Err(format!("at least {} are needed", Shown(Config::MIN_MEMORY))),
        false => Ok(bytes),
    }
}

/// Runs `elbowroom jupyter`. `check_run` parses a command line of this command, and returns the error that a
/// user would see.
pub fn jupyter(args: &JupyterArgs, check_run: impl Fn(&[OsString]) -> Result<(), clap::Error>) -> ExitCode {
    let done = kernels().and_then(|kernels| match &args.what {
        What::Install(args) => install(&kernels, args, check_run),
        What::List => list(&kernels),
        What::Remove { name } => remove(&kernels, name),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// The directory of the user's own kernels, by Jupyter's rules.
fn kernels() -> Result<PathBuf, Failure> {
    let set = |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
    kernels_of(set).ok_or_else(|| {
        Failure::new(NOT_DONE, "cannot find Jupyter's data directory: set HOME or JUPYTER_DATA_DIR")
    })
}

fn kernels_of(set: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let data = set("JUPYTER_DATA_DIR").map(PathBuf::from);
    let data = data.or_else(|| set("XDG_DATA_HOME").map(|dir| Path::new(&dir).join("jupyter")));
    let data = data.or_else(|| set("HOME").map(|dir| Path::new(&dir).join(".local/share/jupyter")))?;
    // Jupyter may be started in another directory.
    std::path::absolute(data.join("kernels")).ok()
}

/// A name as Jupyter has it: it finds kernels by names in small letters.
fn checked(name: &str) -> Result<String, Failure> {
    let is_right = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || !name.chars().all(is_right) || name.chars().all(|c| c == '.') {
        let why = format!("--name {name:?}: Jupyter permits letters, digits, `.`, `_` and `-`");
        return Err(Failure::new(USAGE, why));
    }
    Ok(name.to_ascii_lowercase())
}

/// What an interpreter says about itself.
#[derive(Debug, PartialEq)]
struct Python {
    /// Its own path: that of the interpreter behind a wrapper script.
    path: String,
    has_ipykernel: bool,
    version: String,
}

impl Python {
    fn look(name: &OsStr) -> Result<Self, Failure> {
        let program = program::find(name, std::env::var_os("PATH").as_deref())?;
        let shown = program.display();
        let broken = |why: &str| Failure::new(CANNOT_RUN, format!("{shown} is no Python that works: {why}"));
        let path = std::path::absolute(&program).map_err(|error| broken(&error.to_string()))?;
        // Modules of the current directory would be taken for those of the interpreter.
        let mut command = Command::new(path);
        command.current_dir("/").args(["-c", ABOUT_PYTHON]);
        let output = within_bound(&mut command).map_err(|error| broken(&error.to_string()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(broken(said.trim_end().lines().last().unwrap_or("it says nothing")));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Self::of(&text).ok_or_else(|| broken(&format!("it has printed {text:?}")))
    }

    fn of(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let path = lines.next().filter(|path| path.starts_with('/'))?.to_owned();
        let has_ipykernel = lines.next()? == "True";
        let version = lines.next()?.to_owned();
        Some(Self { path, has_ipykernel, version })
    }
}

/// Runs a program that prints little. Ends it if it takes too long. Its output goes to files without a name,
/// not to pipes: a full pipe would stop the program, and another process that it leaves behind may keep a
/// pipe open for ever.
fn within_bound(command: &mut Command) -> io::Result<Output> {
    let [out, err] = [unnamed_file()?, unnamed_file()?];
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(err.try_clone()?);
    let mut child = command.spawn()?;
    let end = Instant::now() + PYTHON_BOUND;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > end {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("it runs for {PYTHON_BOUND:?}")));
        }
        std::thread::sleep(PYTHON_LOOK);
    };
    Ok(Output { status, stdout: last_bytes(&out)?, stderr: last_bytes(&err)? })
}

fn unnamed_file() -> io::Result<File> {
    let file = rustix::fs::memfd_create("elbowroom-output", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(File::from(file))
}

/// The last bytes of a file, whoever still writes to it.
fn last_bytes(file: &File) -> io::Result<Vec<u8>> {
    let len = file.metadata()?.len();
    let start = len.saturating_sub(PYTHON_OUTPUT);
    let mut bytes = vec![0; (len - start) as usize];
    file.read_exact_at(&mut bytes, start)?;
    Ok(bytes)
}

fn install(
    kernels: &Path,
    args: &InstallArgs,
    check_run: impl Fn(&[OsString]) -> Result<(), clap::Error>,
) -> Result<(), Failure> {
    let name = checked(&args.name)?;
    let memory = args.memory.unwrap_or_else(half_of_memory);
    let size = Shown(memory).to_string();
    let python = Python::look(&args.python)?;
    let own = std::env::current_exe()
        .map_err(|error| Failure::new(NOT_DONE, format!("cannot find out where this command is: {error}")))?;
    let own = own.to_str().ok_or_else(|| {
        Failure::new(NOT_DONE, format!("{} is no text, so it cannot be in a kernel's file", own.display()))
    })?;
    let for_auto = |word: &&String| word.starts_with("--slowdown") || word.starts_with("--memory-max");
    if let Some(word) = args.options.iter().find(for_auto) {
        let why = format!("{word}: the kernel has a budget of its own, {size}; leave the option out");
        return Err(Failure::new(USAGE, why));
    }
    // A kernel prints no summary, since Jupyter would show it as an error of the kernel.
    let mut start =
        vec![own.to_owned(), "run".into(), "--memory".into(), memory.to_string(), "--quiet".into()];
    start.extend(args.options.iter().cloned());
    start.extend(
        ["--", &python.path, "-m", "ipykernel_launcher", "-f", "{connection_file}"].map(String::from),
    );
    let words: Vec<_> = start.iter().map(OsString::from).collect();
    check_run(&words).map_err(|error| {
        let text = error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
        Failure::new(USAGE, format!("these are no options of `elbowroom run`: {text}"))
    })?;

    let version = python.version.split('.').take(2).collect::<Vec<_>>().join(".");
    let by_default = match name.as_str() {
        NAME => format!("Python {version}, {size}"),
        other => format!("Python {version}, {size} ({other})"),
    };
    let shown = args.display_name.clone().unwrap_or(by_default);
    let spec = json!({
        "argv": start,
        "display_name": shown,
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {
            "debugger": true,
            "elbowroom": {
                "memory_bytes": memory,
                "python": python.path,
                "version": env!("CARGO_PKG_VERSION"),
            },
        },
    });
    let directory = kernels.join(&name);
    let file = directory.join("kernel.json");
    if let Found::Other = Found::look(&file) {
        let why = format!(
            "{} is a kernel that this command has not written: choose another --name",
            file.display()
        );
        return Err(Failure::new(NOT_DONE, why));
    }
    write(&directory, &file, &spec)
        .map_err(|error| Failure::new(NOT_DONE, format!("cannot write {}: {error}", file.display())))?;
    print(&format!("{}\nIn a notebook, choose the kernel \"{shown}\".\n", file.display()))?;
    for lack in lacks(&python, &args.options) {
        say(&format!("note: {lack}"));
    }
    Ok(())
}

/// What must be done before the kernel works.
fn lacks(python: &Python, options: &[String]) -> Vec<String> {
    let mut lacks = Vec::new();
    if !python.has_ipykernel {
        let path = &python.path;
        lacks.push(format!(
            "{path} has no ipykernel, without which the kernel does not start: {path} -m pip install \
             ipykernel"
        ));
    }
    let has_jupyter = ["jupyter", "jupyter-lab", "code"]
        .iter()
        .any(|name| program::find(OsStr::new(name), std::env::var_os("PATH").as_deref()).is_ok());
    if !has_jupyter {
        lacks.push("no jupyter is in PATH; one of another environment sees the kernel, too".to_owned());
    }
    if let Err(why) = plan::mode(&probe::userfaultfd(), &probe::io_uring(), Mmu::Auto, Io::Auto, Faults::Auto)
    {
        lacks.push(format!("the kernel cannot start on this machine so far: {why}; see `elbowroom doctor`"));
    } else if manages_all_of_heap(options) && plan::serves_user_mode_only(&probe::userfaultfd()) {
        lacks.push(format!(
            "the kernel cannot start on this machine so far with --heap all: {}",
            plan::PERMIT
        ));
    }
    lacks
}

/// Whether the options have `--heap all`, as two words or as one.
fn manages_all_of_heap(options: &[String]) -> bool {
    let one = options.iter().any(|word| word == "--heap=all");
    one || options.windows(2).any(|pair| pair[0] == "--heap" && pair[1] == "all")
}

fn half_of_memory() -> u64 {
    let groups = probe::Groups::read();
    let group = groups.as_ref().and_then(probe::memory_cgroup);
    plan::default_memory_bytes(&probe::memory(), group.as_ref(), Config::MIN_MEMORY)
}

/// Whole or not at all: Jupyter may read it meanwhile.
fn write(directory: &Path, file: &Path, spec: &Value) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let new = directory.join(format!(".kernel.json.{}", std::process::id()));
    let written = fs::write(&new, format!("{spec:#}\n")).and_then(|()| fs::rename(&new, file));
    written.inspect_err(|_| _ = fs::remove_file(&new))
}

/// What is in the place of a kernel's file.
enum Found {
    /// A kernel that this command has written.
    Own(Value),
    /// Something else.
    Other,
    /// Nothing.
    Nothing,
}

impl Found {
    fn look(file: &Path) -> Self {
        match fs::read(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::Nothing,
            Err(_) => Self::Other,
            Ok(text) => match serde_json::from_slice::<Value>(&text) {
                Ok(spec) if spec["metadata"]["elbowroom"].is_object() => Self::Own(spec),
                _ => Self::Other,
            },
        }
    }
}

fn list(kernels: &Path) -> Result<(), Failure> {
    let failed =
        |error: io::Error| Failure::new(NOT_DONE, format!("cannot read {}: {error}", kernels.display()));
    let mut lines = Vec::new();
    let entries = match fs::read_dir(kernels) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        entries => Some(entries.map_err(failed)?),
    };
    for entry in entries.into_iter().flatten() {
        let entry = entry.map_err(failed)?;
        let Found::Own(spec) = Found::look(&entry.path().join("kernel.json")) else { continue };
        let about = &spec["metadata"]["elbowroom"];
        let memory = Shown(about["memory_bytes"].as_u64().unwrap_or(0)).to_string();
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let name = entry.file_name().to_string_lossy().into_owned();
        lines.push((name, memory, text(&about["python"]), text(&spec["display_name"])));
    }
    lines.sort();
    let width = lines.iter().map(|line| line.0.chars().count()).max().unwrap_or(0);
    let shown: String = lines
        .iter()
        .map(|(name, memory, python, title)| format!("{name:width$}  {memory:>10}  {python}  {title:?}\n"))
        .collect();
    match shown.is_empty() {
        true => print("There are none: `elbowroom jupyter install` writes one.\n"),
        false => print(&shown),
    }
}

fn remove(kernels: &Path, name: &str) -> Result<(), Failure> {
    let directory = kernels.join(checked(name)?);
    let file = directory.join("kernel.json");
    match Found::look(&file) {
        Found::Own(_) => {}
        Found::Nothing => {
            let why =
                format!("there is no kernel {name:?} in {}: see `elbowroom jupyter list`", kernels.display());
            return Err(Failure::new(NOT_DONE, why));
        }
        Found::Other => {
            let why =
                format!("{} was not written by this command: `jupyter kernelspec remove`", file.display());
            return Err(Failure::new(NOT_DONE, why));
        }
    }
    fs::remove_file(&file)
        .map_err(|error| Failure::new(NOT_DONE, format!("cannot remove {}: {error}", file.display())))?;
    // What a user has put beside the file stays: logos, for example.
    let _ = fs::remove_dir(&directory);
    Ok(())
}

/// A pipe whose reader has enough is no error.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(NOT_DONE, format!("cannot print this: {error}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_jupyters() {
        let of = |set: &[(&str, &str)]| {
            kernels_of(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()))
        };
        let all = [("JUPYTER_DATA_DIR", "/j"), ("XDG_DATA_HOME", "/x"), ("HOME", "/h")];
        assert_eq!(of(&all), Some("/j/kernels".into()));
        assert_eq!(of(&all[1..]), Some("/x/jupyter/kernels".into()));
        assert_eq!(of(&all[2..]), Some("/h/.local/share/jupyter/kernels".into()));
        assert_eq!(of(&[]), None);
        let own = std::env::current_dir().unwrap();
        assert_eq!(of(&[("JUPYTER_DATA_DIR", "j")]), Some(own.join("j/kernels")));
    }

    #[test]
    fn names_are_those_that_jupyter_finds() {
        assert_eq!(checked("Small_4.G-x").unwrap(), "small_4.g-x");
        for wrong in ["", "a b", "../up", "a/b", "ä", ".", ".."] {
            assert_eq!(checked(wrong).unwrap_err().code, USAGE, "{wrong}");
        }
    }

    #[test]
    fn an_interpreter_is_known_by_what_it_prints() {
        let python = Python::of("/usr/bin/python3\nFalse\n3.11.2\n").unwrap();
        assert_eq!((python.path.as_str(), python.has_ipykernel), ("/usr/bin/python3", false));
        assert!(Python::of("/usr/bin/python3\nTrue\n3.11.2\n").unwrap().has_ipykernel);
        assert_eq!(Python::of("hello\nTrue\n3\n"), None);
        assert_eq!(Python::of("/usr/bin/python3\n"), None);
    }

    #[test]
    fn all_of_the_heap_may_be_one_word() {
        let has = |words: &[&str]| {
            manages_all_of_heap(&words.iter().map(|word| word.to_string()).collect::<Vec<_>>())
        };
        assert!(has(&["--heap=all"]) && has(&["--swap", "1G", "--heap", "all"]));
        assert!(!has(&["--heap", "large"]) && !has(&[]));
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_no_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        assert!(list(&dir.path().join("nothing")).is_ok());
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(list(&file).unwrap_err().code, NOT_DONE);
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join(format!(".kernel.json.{}", std::process::id()));
        std::os::unix::fs::symlink("/dev/full", &new).unwrap();
        assert!(write(dir.path(), &dir.path().join("kernel.json"), &json!({})).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_program_that_prints_much_and_leaves_another_one_behind_is_not_waited_for() {
        let begun = Instant::now();
        let script = "sleep 20 & head -c 300000 /dev/zero >&2; echo said";
        let output = within_bound(Command::new("sh").args(["-c", script])).unwrap();
        assert!(output.status.success() && output.stdout == b"said\n");
        assert_eq!(output.stderr.len(), 300_000);
        assert!(begun.elapsed() < Duration::from_secs(15));
    }
}
