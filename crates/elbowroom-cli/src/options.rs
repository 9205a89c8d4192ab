//! The options that `elbowroom run` hands to the preloaded library, in the variable `ELBOWROOM_OPTIONS`.
//!
//! The format is `key=value` pairs separated by `;`. No value contains a `;` but that of `stats`, which is a
//! path and therefore last: it ends where the variable ends.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;

/// The variable's name.
pub const VARIABLE: &str = "ELBOWROOM_OPTIONS";

/// How bytes move between files and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Io {
    /// io_uring where it works, else threads
    Auto,
    /// Linux's io_uring
    Uring,
    /// Blocking reads and writes in a pool of threads
    Threads,
}

/// How pages get into the program's mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mmu {
    /// Moving where the kernel can (Linux 6.8), else copying
    Auto,
    /// Moving pages, without copying their bytes
    Move,
    /// Copying pages
    Copy,
}

/// Which blocks of the program's heap are managed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Heap {
    /// All blocks, once there are more than a few: mimalloc stands in for libc's allocator
    All,
    /// Blocks from --heap-min on; the others stay with libc
    Large,
    /// None: all that malloc gives stays with the kernel, but for what an allocator of the program's own maps
    Off,
}

/// What to do where memory cannot be managed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Fallback {
    /// Say why, and do not start the program
    None,
    /// Warn, and run the program without Elbowroom
    Kernel,
}

/// Whether other processes may use the files that are managed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sharing {
    /// They may: a file goes to the kernel before another process has it, and is left there where that cannot
    /// be known
    Auto,
    /// You know that none does: all are managed; what another changes is noticed late
    Trust,
}

/// What a forked child gets of managed private memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Fork {
    /// All of it goes to the kernel before, in the parent, too
    Kernel,
    /// The parent keeps it managed, and the child gets a manager of its own, with a budget of its own; where
    /// that cannot be, that fork is made as with `kernel`
    Copy,
    /// The same, but where that cannot be, fork fails, and a line on standard error says why
    Fail,
}

/// How deeply idle processors may sleep while faults come often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Idle {
    /// They stay awake, if that is permitted (root) and the machine has at most 16 of them: each fault wakes
    /// two, which in a virtual machine takes longer than all the rest of a fault
    Shallow,
    /// As deeply as they like, which saves power
    Deep,
}

/// All options of the preloaded library.
#[derive(Debug, Clone)]
pub struct Options {
    /// The budget, in bytes.
    pub memory_bytes: u64,
    /// Smaller file mappings stay with the kernel; in bytes.
    pub min_size_bytes: u64,
    /// The I/O engine.
    pub io: Io,
    /// The way of pages.
    pub mmu: Mmu,
    /// Fault handler threads; 0 lets the library choose.
    pub handlers: u8,
    /// How long a page stays dirty at most.
    pub writeback_interval: Duration,
    /// How much may be dirty, in bytes; `None`: the library chooses.
    pub dirty_bytes: Option<u64>,
    /// How much anonymous memory may be out, in bytes; 0: it stays with the kernel.
    pub swap_bytes: u64,
    /// Nobody has said how much: a process that cannot have so much makes do with less.
    pub swap_by_default: bool,
    /// Private memory of less than this stays with the kernel, in bytes.
    pub memory_min_bytes: u64,
    /// Where the swap file is; absolute.
    pub swap_dir: PathBuf,
    /// The swap file is encrypted.
    pub swap_encrypt: bool,
    /// What a forked child gets.
    pub fork: Fork,
    /// How long a fork may take, in milliseconds, for tests; `None`: the library's own bound.
    pub fork_bound_ms: Option<u64>,
    /// No summary at the end.
    pub quiet: bool,
    /// The lock statistics at the end.
    pub contention: bool,
    /// What the library does if it cannot work although the checks before said it could.
    pub fallback: Fallback,
    /// Whether other processes may use the files.
    pub sharing: Sharing,
    /// How deeply idle processors may sleep.
    pub idle: Idle,
    /// Faults to inject, for tests; contains no `;`.
    pub inject: Option<String>,
    /// Improvements that are off, for measuring; contains no `;`.
    pub ablate: Option<String>,
    /// The process that `run` becomes.
    pub main_pid: u32,
    /// Where the trace goes; absolute.
    pub trace: Option<PathBuf>,
    /// How much of it each thread keeps, in bytes.
    pub trace_bytes: u64,
    /// Where the statistics go; absolute.
    pub stats: Option<PathBuf>,
}

impl Options {
    /// The value of the variable.
    pub fn encode(&self) -> OsString {
        let Options { memory_bytes, min_size_bytes, handlers, main_pid, .. } = self;
        let mut text = OsString::from(format!(
            "memory={memory_bytes};min_size={min_size_bytes};io={};mmu={};handlers={handlers};\
             writeback_ms={};quiet={};fallback={};sharing={}",
            name(self.io),
            name(self.mmu),
            self.writeback_interval.as_millis(),
            u8::from(self.quiet),
            name(self.fallback),
            name(self.sharing),
        ));
        if let Some(dirty) = self.dirty_bytes {
            text.push(format!(";dirty={dirty}"));
        }
        if self.swap_bytes > 0 {
            let Options { swap_bytes, memory_min_bytes, swap_dir, .. } = self;
            let swap_dir = percent_encode(swap_dir);
            text.push(format!(";swap={swap_bytes};memory_min={memory_min_bytes};swap_dir={swap_dir}"));
            if self.swap_by_default {
                text.push(";swap_by_default=1");
            }
            if self.swap_encrypt {
                text.push(";swap_encrypt=1");
            }
            text.push(format!(";fork={}", name(self.fork)));
            if let Some(bound) = self.fork_bound_ms {
                text.push(format!(";fork_bound_ms={bound}"));
            }
        }
        if self.contention {
            text.push(";contention=1");
        }
        if self.idle == Idle::Deep {
            text.push(";idle=deep");
        }
        if let Some(inject) = &self.inject {
            text.push(format!(";inject={inject}"));
        }
        if let Some(ablate) = &self.ablate {
            text.push(format!(";ablate={ablate}"));
        }
        if let Some(path) = &self.trace {
            text.push(format!(";trace_bytes={};trace={}", self.trace_bytes, percent_encode(path)));
        }
        text.push(format!(";main_pid={main_pid}"));
        if let Some(path) = &self.stats {
            text.push(";stats=");
            text.push(path);
        }
        text
    }
}

/// A path as text without what separates options, or is no text.
fn percent_encode(path: &Path) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-".contains(byte);
    let bytes = path.as_os_str().as_bytes().iter();
    bytes
        .map(|byte| if plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02x}") })
        .collect()
}

/// The value as it is written on the command line.
fn name(value: impl ValueEnum) -> String {
    // No value is hidden, so each has a name.
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Makes the path that `option` (`--stats`, `--trace`) names absolute and checks that the file could be
/// written, without making it: the program may run for hours before it is.
///
/// # Errors
/// Says why the file cannot be written.
pub fn check_path(option: &str, path: &OsStr) -> Result<PathBuf, String> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let path = std::path::absolute(Path::new(path)).map_err(|error| format!("{option}: {error}"))?;
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
    use super::*;

    fn sample() -> Options {
        Options {
            memory_bytes: 240 << 20,
            min_size_bytes: 1 << 20,
            io: Io::Auto,
            mmu: Mmu::Move,
            handlers: 0,
            writeback_interval: Duration::from_secs(1),
            dirty_bytes: None,
            swap_bytes: 0,
            swap_by_default: false,
            memory_min_bytes: 256 << 10,
            swap_dir: PathBuf::from("/var/tmp"),
            swap_encrypt: false,
            fork: Fork::Kernel,
            fork_bound_ms: None,
            quiet: false,
            contention: false,
            fallback: Fallback::None,
            sharing: Sharing::Auto,
            idle: Idle::Shallow,
            inject: None,
            ablate: None,
            main_pid: 77,
            trace: None,
            trace_bytes: 4 << 20,
            stats: None,
        }
    }

    #[test]
    fn swap_has_options_of_its_own() {
        let encode = |swap_bytes, swap_encrypt| {
            Options { swap_bytes, swap_encrypt, ..sample() }.encode().into_string().unwrap()
        };
        let swap = ";swap=1073741824;memory_min=262144;swap_dir=/var/tmp";
        let (plain, encrypted) = (encode(1 << 30, false), encode(1 << 30, true));
        assert!(plain.contains(swap) && !plain.contains("swap_encrypt"), "{plain}");
        assert!(encrypted.contains(&format!("{swap};swap_encrypt=1")), "{encrypted}");
        assert!(!encode(0, false).contains("swap"));
        assert!(!plain.contains("by_default"));
        let by_default = Options { swap_bytes: 4096, swap_by_default: true, ..sample() };
        assert!(by_default.encode().into_string().unwrap().contains(";swap_by_default=1;"));
    }

    #[test]
    fn every_option_is_there_once() {
        assert_eq!(
            sample().encode(),
            "memory=251658240;min_size=1048576;io=auto;mmu=move;handlers=0;writeback_ms=1000;quiet=0;\
             fallback=none;sharing=auto;main_pid=77"
        );
        let deep = Options { idle: Idle::Deep, ..sample() };
        assert!(deep.encode().into_string().unwrap().contains(";idle=deep;"));
    }

    #[test]
    fn stats_are_last_and_may_hold_anything() {
        let mut options = sample();
        options.quiet = true;
        options.contention = true;
        options.dirty_bytes = Some(4096);
        options.io = Io::Threads;
        options.fallback = Fallback::Kernel;
        options.inject = Some("read:eio@3".to_owned());
        options.stats = Some("/tmp/a;quiet=0 b".into());
        let text = options.encode().into_string().unwrap();
        assert!(text.contains(";io=threads;"), "{text}");
        assert!(
            text.contains(
                ";quiet=1;fallback=kernel;sharing=auto;dirty=4096;contention=1;inject=read:eio@3;main_pid=77;"
            ),
            "{text}"
        );
        assert!(text.ends_with(";stats=/tmp/a;quiet=0 b"), "{text}");
    }

    #[test]
    fn the_path_of_the_trace_is_plain_text() {
        let mut options = sample();
        options.trace = Some(PathBuf::from(OsStr::from_bytes(b"/tmp/a;b=c d%\xff.json")));
        let text = options.encode().into_string().unwrap();
        assert!(text.contains(";trace_bytes=4194304;trace=/tmp/a%3bb%3dc%20d%25%ff.json;main_pid"), "{text}");
    }

    #[test]
    fn stats_paths() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("s.json");
        assert_eq!(check_path("--stats", file.as_os_str()), Ok(file.clone()));
        assert!(!file.exists(), "checking must not make the file");
        std::fs::write(&file, "{}").unwrap();
        assert_eq!(check_path("--stats", file.as_os_str()), Ok(file.clone()));
        assert!(check_path("--stats", dir.path().as_os_str()).unwrap_err().contains("is a directory"));
        assert!(check_path("--stats", file.join("x").as_os_str()).unwrap_err().contains("cannot be written"));
        assert!(
            check_path("--stats", dir.path().join("no/s").as_os_str()).unwrap_err().contains("No such file")
        );
        assert!(check_path("--stats", OsStr::new("s.json")).unwrap().is_absolute());
    }
}
