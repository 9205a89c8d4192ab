//! The data of the programs: made on first use, kept, and cold before each run.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::building::Building;
use super::catalog::{Built, Data, Need, Program, SOURCES, Source};
use super::child;
use crate::device::check_on_disk;
use crate::files;
use crate::interrupt::Interrupt;
use crate::progress::Progress;

/// The directory's name where none is named.
const DEFAULT_NAME: &str = "elbowroom-lab-programs";
/// To make data, on a slow disk and one processor.
const MAKE_BOUND: Duration = Duration::from_secs(3600);
/// To install modules of Python, some of which are built from source.
const PIP_BOUND: Duration = Duration::from_secs(2 * 3600);

/// What runs pip so that the lab sees what its builds print, which pip writes to standard error: all goes to
/// both, since an error's message is taken from standard error.
const PIP_SHOWN: [&str; 8] = [
    "env",
    "SKBUILD_CMAKE_VERBOSE=false",
    "bash",
    "-o",
    "pipefail",
    "-c",
    "\"$@\" 2>&1 | tee -a /dev/stderr",
    // The name of the shell, which $@ does not have.
    "pip",
];

/// Where the data is before a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// On the disk only.
    Cold,
    /// In the page cache, too.
    Warm,
}

/// The directory with scripts and data.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    percent: u64,
    python: OsString,
}

impl Store {
    /// Opens it, or makes it, and writes the scripts.
    ///
    /// # Errors
    /// If it is not on a disk, or cannot be written to.
    pub fn open(dir: Option<&Path>, percent: u64) -> Result<Self> {
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            None => files::default_parent()?.join(DEFAULT_NAME),
        };
        let scripts = dir.join("scripts");
        fs::create_dir_all(&scripts).with_context(|| format!("cannot make {}", scripts.display()))?;
        check_on_disk(&dir)?;
        let dir = fs::canonicalize(&dir).with_context(|| format!("cannot resolve {}", dir.display()))?;
        for (name, text) in SOURCES {
            let path = scripts.join(name);
            if fs::read_to_string(&path).ok().as_deref() != Some(text) {
                fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            }
        }
        let venv = dir.join("venv/bin/python3");
        let python = if venv.exists() { venv.into() } else { "python3".into() };
        Ok(Self { dir, percent, python })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory of a program's data.
    fn data(&self, program: &Program) -> PathBuf {
        self.dir.join(format!("{}-{}", program.data, self.percent))
    }

    /// Where the program finds it in a run.
    fn used(&self, program: &Program) -> PathBuf {
        match program.leaves {
            Data::Kept => self.data(program),
            Data::Copied(_) | Data::Made => self.dir.join(format!("{}-{}-run", program.data, self.percent)),
        }
    }

    fn expand(&self, line: &[&str], data: &Path) -> Vec<OsString> {
        let percent = self.percent.to_string();
        let values = [
            ("{python}", self.python.as_os_str()),
            ("{scripts}", self.dir.join("scripts").as_os_str()),
            ("{data}", data.as_os_str()),
            ("{percent}", OsStr::new(&percent)),
        ]
        .map(|(name, value)| (name, value.to_owned()));
        let expand = |word: &&str| {
            for (name, value) in &values {
                if let Some(rest) = word.strip_prefix(name) {
                    let mut word = value.clone();
                    word.push(rest);
                    return word;
                }
            }
            OsString::from(word)
        };
        line.iter().map(expand).collect()
    }

    /// The command that is measured.
    pub fn run_line(&self, program: &Program) -> Vec<OsString> {
        self.expand(program.run, &self.used(program))
    }

    /// What a program lacks on this machine, and how to get it.
    pub fn missing(&self, program: &Program, interrupt: &Interrupt) -> Vec<String> {
        program.needs.iter().filter_map(|need| self.lacks(need, interrupt)).collect()
    }

    fn lacks(&self, need: &Need, interrupt: &Interrupt) -> Option<String> {
        match need {
            Need::Module(module, package) => {
                let line = [self.python.clone(), "-c".into(), format!("import {module}").into()];
                let found = child::run(&line, Duration::from_secs(60), interrupt, |_| {}).is_ok();
                (!found).then(|| format!("Python has no module {module}: pip install {package}"))
            }
            Need::Built(Built { module, package, compiler, takes }) => {
                let line = [self.python.clone(), "-c".into(), format!("import {module}").into()];
                let found = child::run(&line, Duration::from_secs(60), interrupt, |_| {}).is_ok();
                let how = format!("pip install {package}, which builds it by {compiler} in {takes}");
                (!found).then(|| format!("Python has no module {module}: {how}"))
            }
            Need::Command(command, package) => {
                let line = [OsString::from(command), "--version".into()];
                let found = child::run(&line, Duration::from_secs(60), interrupt, |_| {}).is_ok();
                (!found).then(|| format!("there is no {command}: apt-get install {package}"))
            }
            Need::Compiled(source) => self.compile(source, interrupt).err().map(|error| {
                let error = format!("{error:#}").replace('\n', " ");
                format!("apt-get install {} ({error})", source.packages.join(" "))
            }),
        }
    }

    fn compile(&self, source: &Source, interrupt: &Interrupt) -> Result<()> {
        let scripts = self.dir.join("scripts");
        let (made, from) = (scripts.join(source.made), scripts.join(source.source));
        let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        if changed(&made).is_some_and(|made| Some(made) >= changed(&from)) {
            return Ok(());
        }
        let word = |word: &&str| match *word {
            "{made}" => made.clone().into(),
            "{source}" => from.clone().into(),
            word => OsString::from(word),
        };
        let line: Vec<_> = source.compile.iter().map(word).collect();
        child::run(&line, Duration::from_secs(60), interrupt, |_| {}).map(drop)
    }

    /// Installs what the programs need and lack.
    ///
    /// # Errors
    /// If pip or apt-get fail.
    pub fn install(
        &mut self,
        programs: &[&Program],
        interrupt: &Interrupt,
        progress: &mut Progress,
    ) -> Result<()> {
        let lacking = |this: &Self| -> Vec<Need> {
            let all = programs.iter().flat_map(|program| program.needs);
            all.filter(|need| this.lacks(need, interrupt).is_some()).copied().collect()
        };
        let mut packages: Vec<_> = lacking(self)
            .iter()
            .flat_map(|need| match need {
                Need::Module(..) => vec![],
                Need::Built(built) => {
                    let compiler = Need::Command(built.compiler, built.compiler);
                    self.lacks(&compiler, interrupt).map(|_| built.compiler).into_iter().collect()
                }
                Need::Command(_, package) => vec![*package],
                Need::Compiled(source) => source.packages.to_vec(),
            })
            .collect();
        packages.dedup();
        if !packages.is_empty() {
            let mut command = Command::new("apt-get");
            command.args(["install", "-y", "-q"]).args(&packages);
            ensure_done(&mut command)?;
        }
        let mut modules: Vec<_> = lacking(self)
            .iter()
            .filter_map(|need| match need {
                Need::Module(_, package) => Some(*package),
                Need::Built(built) => {
                    let Built { package, takes, .. } = built;
                    progress.keep(&format!("pip builds {package} from source, once, which takes {takes}"));
                    Some(*package)
                }
                _ => None,
            })
            .collect();
        modules.sort_unstable();
        modules.dedup();
        if !modules.is_empty() {
            let venv = self.dir.join("venv");
            ensure_done(Command::new("python3").args(["-m", "venv", "--system-site-packages"]).arg(&venv))?;
            self.python = venv.join("bin/python3").into();
            // With -v pip passes on what the build prints, which shows how far it is. The variable has
            // scikit-build print short lines, not whole commands of the compiler.
            let mut line = PIP_SHOWN.map(OsString::from).to_vec();
            line.push(self.python.clone());
            line.extend(["-m", "pip", "install", "-v"].iter().chain(&modules).map(OsString::from));
            let mut building = Building::begin(progress, format!("pip install {}", modules.join(" ")));
            child::run_watched(&line, PIP_BOUND, interrupt, &mut building).context("pip has failed")?;
        }
        Ok(())
    }

    /// Makes the data of a program, if it is not there.
    ///
    /// # Errors
    /// If that fails, or a signal comes. A half-made directory is made anew the next time.
    pub fn make(&self, program: &Program, interrupt: &Interrupt, progress: &mut Progress) -> Result<()> {
        let data = self.data(program);
        if program.make.is_empty() || data.is_dir() {
            return Ok(());
        }
        progress.keep(&format!("making the data of {} in {}, which is kept", program.name, data.display()));
        let part = data.with_extension("part");
        remove_all(&part)?;
        fs::create_dir(&part).with_context(|| format!("cannot make {}", part.display()))?;
        let line = self.expand(program.make, &part);
        let said = |line: &str| progress.update(|| format!("data of {}: {line} %", program.name));
        child::run(&line, MAKE_BOUND, interrupt, said)
            .with_context(|| format!("cannot make the data of {}", program.name))?;
        fs::rename(&part, &data).with_context(|| format!("cannot rename {}", part.display()))
    }

    /// Puts the data as it was made where the run finds it, loads the program, and has the data in the page
    /// cache or takes it out of there.
    ///
    /// # Errors
    /// If the disk fails or is full, or a signal comes.
    pub fn prepare(&self, program: &Program, cache: Cache, interrupt: &Interrupt) -> Result<()> {
        let used = self.used(program);
        match program.leaves {
            Data::Kept => {}
            Data::Made | Data::Copied(_) => {
                remove_all(&used)?;
                fs::create_dir(&used).with_context(|| format!("cannot make {}", used.display()))?;
            }
        }
        if let Data::Copied(name) = program.leaves {
            let copied = fs::copy(self.data(program).join(name), used.join(name));
            copied.with_context(|| format!("cannot copy {name} to {}", used.display()))?;
        }
        each_file(&used, &mut |path| {
            interrupt.check()?;
            match cache {
                Cache::Cold => files::make_file_cold(path),
                Cache::Warm => read_all(path),
            }
        })?;
        if cache == Cache::Cold {
            files::drop_caches()?;
        }
        // Only to have it in memory.
        child::run(&self.expand(program.warm, &used), MAKE_BOUND, interrupt, |_| {}).map(drop)
    }

    /// A checksum of what a run has stored, if it stores; read by the kernel.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn check(&self, program: &Program, interrupt: &Interrupt) -> Result<Option<child::Output>> {
        if program.check.is_empty() {
            return Ok(None);
        }
        let line = self.expand(program.check, &self.used(program));
        Ok(Some(child::run(&line, MAKE_BOUND, interrupt, |_| {}).context("what it has stored")?.output))
    }

    /// Removes what the runs of a program have made.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn clear(&self, program: &Program) -> Result<()> {
        match program.leaves {
            Data::Kept => Ok(()),
            Data::Copied(_) | Data::Made => remove_all(&self.used(program)),
        }
    }
}

fn ensure_done(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    // Standard output is for the table.
    command.stdin(Stdio::null()).stdout(Stdio::null()).env("DEBIAN_FRONTEND", "noninteractive");
    let status = command.status().with_context(|| format!("cannot start {name}"))?;
    ensure!(status.success(), "{name} has failed: {status}");
    Ok(())
}

fn remove_all(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Has a file in the page cache.
fn read_all(path: &Path) -> Result<()> {
    let context = || format!("cannot read {}", path.display());
    let mut file = fs::File::open(path).with_context(context)?;
    std::io::copy(&mut file, &mut std::io::sink()).with_context(context).map(drop)
}

/// Calls `f` with each regular file. A server that was killed leaves its socket, which cannot be opened.
fn each_file(dir: &Path, f: &mut dyn FnMut(&Path) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry.with_context(|| format!("cannot read {}", dir.display()))?.path();
        if path.is_dir() {
            each_file(&path, f)?;
        } else if path.is_file() {
            f(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_a_killed_server_has_left_is_no_data() {
        let dir = tempfile::tempdir().unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub/file"), "x").unwrap();
        let mut found = Vec::new();
        let mut note = |path: &Path| {
            found.push(path.to_owned());
            read_all(path)
        };
        each_file(dir.path(), &mut note).unwrap();
        assert_eq!(found, [dir.path().join("sub/file")]);
    }
}
