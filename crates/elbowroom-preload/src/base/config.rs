//! What `elbowroom run` asks of the library: the text of the environment variable [`VARIABLE`].
//!
//! The text is `key=value` pairs separated by `;`. `stats`, if present, is the last one, because a path may
//! contain `;`. The command line has checked everything before; what is wrong here is still said, since the
//! variable can be set by hand.

use elbowroom::Ablation;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The environment variable that carries the options.
pub const VARIABLE: &str = "ELBOWROOM_OPTIONS";

/// How reads are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    /// io_uring where it is permitted, else threads.
    Auto,
    /// io_uring.
    Uring,
    /// Blocking threads.
    Threads,
}

/// How pages get into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mmu {
    /// Moving where the kernel can, else copying.
    Auto,
    /// UFFDIO_MOVE.
    Move,
    /// UFFDIO_COPY.
    Copy,
}

/// Whether other processes may use the files that are managed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// They may: a file goes to the kernel before another process has it, and is not managed where that
    /// cannot be known.
    Auto,
    /// The user says that none does, or that it does not matter.
    Trust,
}

/// What a forked child gets of managed private memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// It is the kernel's before, in the parent, too.
    Kernel,
    /// A copy, with a manager of its own; where that cannot be, as with `Kernel`.
    Copy,
    /// The same; where that cannot be, there is no child.
    Fail,
}

/// What to do when the manager cannot start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// Say why and end the program.
    None,
    /// Leave everything to the kernel.
    Kernel,
}

/// The options of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The budget in bytes.
    pub memory_bytes: u64,
    /// The smallest mapping that is managed, in bytes.
    pub min_size_bytes: u64,
    /// How reads are done.
    pub io: Io,
    /// How pages get into windows.
    pub mmu: Mmu,
    /// Fault handler threads; 0 lets the manager choose.
    pub handlers: usize,
    /// A dirty page is written back at the latest after this, in milliseconds.
    pub writeback_ms: u64,
    /// How much may be dirty, in bytes; `None`: the manager chooses.
    pub dirty_bytes: Option<u64>,
    /// How much anonymous memory may be out, in bytes; 0: it stays with the kernel.
    pub swap_bytes: u64,
    /// Nobody has said how much: where so much cannot be had there is less.
    pub swap_by_default: bool,
    /// Private memory of less than this stays with the kernel, in bytes.
    pub memory_min_bytes: u64,
    /// Where the swap file is, an absolute path.
    pub swap_dir: Option<PathBuf>,
    /// The swap file is encrypted.
    pub swap_encrypt: bool,
    /// What a forked child gets of managed private memory.
    pub fork: Fork,
    /// How long a fork may take, in milliseconds; `None`: the manager's own bound. For tests.
    pub fork_bound_ms: Option<u64>,
    /// Where the statistics go at the end, an absolute path.
    pub stats: Option<PathBuf>,
    /// Where the trace goes at the end, an absolute path.
    pub trace: Option<PathBuf>,
    /// How much of it each thread keeps, in bytes.
    pub trace_bytes: usize,
    /// No summary on standard error.
    pub quiet: bool,
    /// The lock statistics on standard error at the end, with hold times.
    pub contention: bool,
    /// What to do when the manager cannot start.
    pub fallback: Fallback,
    /// Whether other processes may use the files.
    pub sharing: Sharing,
    /// Idle processors may sleep deeply while faults come often.
    pub deep_idle: bool,
    /// Faults to inject, for tests.
    pub inject: Option<String>,
    /// Which improvements are on.
    pub ablation: Ablation,
    /// The process that `elbowroom run` became.
    pub main_pid: u32,
}

impl Options {
    /// Parses the variable's text.
    ///
    /// # Errors
    /// One line that says which part is wrong and what it may be.
    pub fn parse(text: &OsStr) -> Result<Self, String> {
        let mut options = Self {
            memory_bytes: 0,
            min_size_bytes: 1 << 20,
            io: Io::Auto,
            mmu: Mmu::Auto,
            handlers: 0,
            writeback_ms: 1000,
            dirty_bytes: None,
            swap_bytes: 0,
            swap_by_default: false,
            memory_min_bytes: 1 << 20,
            swap_dir: None,
            swap_encrypt: false,
            fork: Fork::Copy,
            fork_bound_ms: None,
            stats: None,
            trace: None,
            trace_bytes: 4 << 20,
            quiet: false,
            contention: false,
            fallback: Fallback::None,
            sharing: Sharing::Auto,
            deep_idle: false,
            inject: None,
            ablation: Ablation::default(),
            main_pid: 0,
        };
        let bytes = text.as_bytes();
        let stats =
            if bytes.starts_with(b"stats=") { Some(0) } else { find(bytes, b";stats=").map(|at| at + 1) };
        if let Some(at) = stats {
            options.stats = Some(PathBuf::from(OsStr::from_bytes(&bytes[at + b"stats=".len()..])));
        }
        let pairs = std::str::from_utf8(&bytes[..stats.unwrap_or(bytes.len())])
            .map_err(|_| format!("{VARIABLE}: not UTF-8 before stats"))?;
        for pair in pairs.split(';').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| format!("{VARIABLE}: \"{pair}\" is not of the form key=value"))?;
            options.set(key, value)?;
        }
        if options.memory_bytes == 0 {
            return Err(format!("{VARIABLE}: memory is missing or 0; use `elbowroom run`, which sets it"));
        }
        Ok(options)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "memory" => self.memory_bytes = number(key, value)?,
            "min_size" => self.min_size_bytes = number(key, value)?,
            "io" => {
                self.io = choice(
                    key,
                    value,
                    &[("auto", Io::Auto), ("uring", Io::Uring), ("threads", Io::Threads)],
                )?;
            }
            "mmu" => {
                self.mmu =
                    choice(key, value, &[("auto", Mmu::Auto), ("move", Mmu::Move), ("copy", Mmu::Copy)])?;
            }
            "handlers" => self.handlers = number(key, value)?,
            "writeback_ms" => self.writeback_ms = number(key, value)?,
            "dirty" => self.dirty_bytes = Some(number(key, value)?),
            "swap" => self.swap_bytes = number(key, value)?,
            "swap_by_default" => self.swap_by_default = choice(key, value, &[("0", false), ("1", true)])?,
            "memory_min" => self.memory_min_bytes = number(key, value)?,
            "swap_dir" => self.swap_dir = Some(percent_decode(key, value)?),
            "swap_encrypt" => self.swap_encrypt = choice(key, value, &[("0", false), ("1", true)])?,
            "fork" => {
                let all = [("kernel", Fork::Kernel), ("copy", Fork::Copy), ("fail", Fork::Fail)];
                self.fork = choice(key, value, &all)?;
            }
            "fork_bound_ms" => self.fork_bound_ms = Some(number(key, value)?),
            "quiet" => self.quiet = choice(key, value, &[("0", false), ("1", true)])?,
            "contention" => self.contention = choice(key, value, &[("0", false), ("1", true)])?,
            "fallback" => {
                self.fallback =
                    choice(key, value, &[("none", Fallback::None), ("kernel", Fallback::Kernel)])?;
            }
            "sharing" => {
                self.sharing = choice(key, value, &[("auto", Sharing::Auto), ("trust", Sharing::Trust)])?;
            }
            "idle" => self.deep_idle = choice(key, value, &[("shallow", false), ("deep", true)])?,
            "inject" => self.inject = (!value.is_empty()).then(|| value.to_owned()),
            "ablate" => {
                self.ablation = Ablation::without(value).map_err(|e| format!("{VARIABLE}: {key}: {e}"))?;
            }
            "trace" => self.trace = Some(percent_decode(key, value)?),
            "trace_bytes" => self.trace_bytes = number(key, value)?,
            "main_pid" => self.main_pid = number(key, value)?,
            _ => return Err(format!("{VARIABLE}: there is no option \"{key}\"")),
        }
        Ok(())
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|part| part == what)
}

/// A path in which `%` and two hexadecimal digits are a byte.
fn percent_decode(key: &str, value: &str) -> Result<PathBuf, String> {
    let mut parts = value.split('%');
    let mut path = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        path.push(byte.ok_or_else(|| format!("{VARIABLE}: {key}=\"{value}\" has a % without two digits"))?);
        path.extend_from_slice(&part.as_bytes()[2..]);
    }
    Ok(PathBuf::from(OsStr::from_bytes(&path)))
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{VARIABLE}: {key}=\"{value}\" is not a number in range"))
}

fn choice<T: Copy>(key: &str, value: &str, allowed: &[(&str, T)]) -> Result<T, String> {
    allowed.iter().find(|(name, _)| *name == value).map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = allowed.iter().map(|(name, _)| *name).collect();
        format!("{VARIABLE}: {key}=\"{value}\" is not one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        Options::parse(OsStr::new(text))
    }

    #[test]
    fn defaults_are_those_of_the_manual() {
        let options = parse("memory=16777216;main_pid=7").unwrap();
        assert_eq!(options.memory_bytes, 16 << 20);
        assert_eq!(options.min_size_bytes, 1 << 20);
        assert_eq!(options.writeback_ms, 1000);
        assert_eq!((options.io, options.mmu, options.fallback), (Io::Auto, Mmu::Auto, Fallback::None));
        assert_eq!((options.sharing, options.fork), (Sharing::Auto, Fork::Copy));
        assert_eq!((options.quiet, options.main_pid, options.stats), (false, 7, None));
        assert_eq!((options.dirty_bytes, parse("memory=1;dirty=77").unwrap().dirty_bytes), (None, Some(77)));
        assert_eq!((options.swap_bytes, options.swap_by_default), (0, false));
        assert!(parse("memory=1;swap=4096;swap_by_default=1").unwrap().swap_by_default);
        assert!(!options.deep_idle && parse("memory=1;idle=deep").unwrap().deep_idle);
        assert!(!options.contention && parse("memory=1;contention=1").unwrap().contention);
    }

    #[test]
    fn stats_path_keeps_separators() {
        let options = parse("memory=1;quiet=1;inject=read:eio,write:short;stats=/a;b=c/d").unwrap();
        assert_eq!(options.stats, Some(PathBuf::from("/a;b=c/d")));
        assert_eq!(options.inject.as_deref(), Some("read:eio,write:short"));
        assert!(options.quiet);
    }

    #[test]
    fn the_path_of_the_trace_may_be_any_bytes() {
        let options = parse("memory=1;trace_bytes=4096;trace=/a%3bb%25c%ff;stats=/s").unwrap();
        assert_eq!(options.trace, Some(PathBuf::from(OsStr::from_bytes(b"/a;b%c\xff"))));
        assert_eq!((options.trace_bytes, options.stats), (4096, Some(PathBuf::from("/s"))));
        for wrong in ["/a%3", "/a%", "/%zz", "/%+1"] {
            assert!(parse(&format!("memory=1;trace={wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn stats_path_may_be_any_bytes() {
        let path = OsStr::from_bytes(b"/\xff");
        let options = Options::parse(OsStr::from_bytes(b"memory=1;stats=/\xff")).unwrap();
        assert_eq!(options.stats, Some(PathBuf::from(path)));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("", "memory"),
            ("memory=0", "memory"),
            ("memory=lots", "lots"),
            ("memory=1;io=fast", "uring"),
            ("memory=1;quiet=yes", "quiet"),
            ("memory=1;contention=2", "contention"),
            ("memory=1;idle=1", "shallow"),
            ("memory=1;colour=red", "colour"),
            ("memory", "key=value"),
            ("memory=1;handlers=-1", "handlers"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
