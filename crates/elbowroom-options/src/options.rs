//! The values of all options, and the variable that carries them.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use crate::choices::{Core, Fallback, Faults, Fork, Heap, Idle, Io, Mmu, Policy, Sharing};
use crate::table::{self, Spec};
use crate::value::{Problem, Setting, Value};

/// The environment variable that carries the options: `name=value` pairs with `;` between, each value as on
/// the command line, but for paths and texts, in which `%` and two hexadecimal digits stand for a byte.
pub const VARIABLE: &str = match C_VARIABLE.to_str() {
    Ok(name) => name,
    Err(_) => "",
};

/// The name of [`VARIABLE`] as a C string, for getenv.
pub const C_VARIABLE: &std::ffi::CStr = c"ELBOWROOM_OPTIONS";

/// What is told about a run, and kept of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportOptions {
    /// [`table::STATS`]; absolute in the variable.
    pub stats: Option<PathBuf>,
    /// [`table::LEARNED`]; absolute in the variable.
    pub learned: Option<PathBuf>,
    /// [`table::QUIET`].
    pub quiet: bool,
    /// [`table::VERBOSE`].
    pub verbose: bool,
    /// [`table::CONTENTION`].
    pub contention: bool,
    /// [`table::TRACE`]; absolute in the variable.
    pub trace: Option<PathBuf>,
    /// [`table::TRACE_BUFFER`], in bytes.
    pub trace_bytes: usize,
}

/// What of the kernel's is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelOptions {
    /// [`table::IO`].
    pub io: Io,
    /// [`table::MMU`].
    pub mmu: Mmu,
    /// [`table::FAULTS`].
    pub faults: Faults,
}

/// Values for tests and measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestOptions {
    /// [`table::FORK_BOUND`], in milliseconds; `None`: the manager's own.
    pub fork_bound_ms: Option<u64>,
    /// [`table::INJECT`].
    pub inject: Option<String>,
    /// [`table::ABLATE`].
    pub ablate: Option<String>,
}

/// The memory groups of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupOptions {
    /// [`table::GROUP`]; not in the variable of a run, which has the next one.
    pub file: Option<PathBuf>,
    /// [`table::GROUPS`]: see [`GroupSpec`](crate::GroupSpec).
    pub spec: Option<String>,
}

/// Which pages go, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReclaimOptions {
    /// [`table::SLOWDOWN`], in ten-thousandths; `None`: pages go when memory is short.
    pub slowdown: Option<u64>,
    /// [`table::POLICY`].
    pub policy: Policy,
}

/// Where anonymous memory goes that is out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwapOptions {
    /// [`table::SWAP`], in bytes; 0: anonymous memory stays with the kernel.
    pub bytes: u64,
    /// [`table::SWAP_BY_DEFAULT`].
    pub by_default: bool,
    /// [`table::SWAP_DIR`]; absolute in the variable.
    pub dir: Option<PathBuf>,
    /// [`table::SWAP_ENCRYPT`].
    pub encrypt: bool,
}

/// The values of all options. What each means is said where it is described, in [`table`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// [`table::MEMORY`], in bytes; 0: not given; [`table::AUTO`], not in the variable of a run: `auto`.
    pub memory_bytes: u64,
    /// [`table::MEMORY_MAX`], in bytes; not in the variable of a run, whose budget it is.
    pub memory_max_bytes: Option<u64>,
    /// Which pages go, and when.
    pub reclaim: ReclaimOptions,
    /// [`table::MIN_SIZE`], in bytes.
    pub min_size_bytes: u64,
    /// What of the kernel's is used.
    pub kernel: KernelOptions,
    /// [`table::HANDLERS`]; 0: the manager chooses.
    pub handlers: usize,
    /// [`table::WRITEBACK_INTERVAL`].
    pub writeback_interval: Duration,
    /// [`table::DIRTY`], in bytes; `None`: the manager chooses.
    pub dirty_bytes: Option<u64>,
    /// Where anonymous memory goes.
    pub swap: SwapOptions,
    /// [`table::HEAP`].
    pub heap: Heap,
    /// [`table::HEAP_MIN`], in bytes.
    pub heap_min_bytes: u64,
    /// [`table::FORK`].
    pub fork: Fork,
    /// For tests and measurements.
    pub tests: TestOptions,
    /// The memory groups.
    pub groups: GroupOptions,
    /// What is told about the run, and kept of it.
    pub report: ReportOptions,
    /// [`table::EACH`], in bytes; `None`: as all together.
    pub each_bytes: Option<u64>,
    /// [`table::TREE`].
    pub tree: Option<PathBuf>,
    /// [`table::FALLBACK`].
    pub fallback: Fallback,
    /// [`table::CORE`].
    pub core: Core,
    /// [`table::SHARING`].
    pub sharing: Sharing,
    /// [`table::IDLE`].
    pub idle: Idle,
    /// [`table::MAIN_PID`]; 0: not given.
    pub main_pid: u32,
}

/// How many options there are.
const COUNT: usize = 37;

impl Default for Options {
    /// The defaults of [`table`].
    fn default() -> Self {
        let mut options = Self::NOTHING;
        for (spec, setting) in options.settings() {
            if let Some(Ok(value)) = spec.default.map(|text| spec.kind.read(OsStr::new(text))) {
                setting.set(value);
            }
        }
        options
    }
}

impl Options {
    /// The value over which the defaults are written.
    const NOTHING: Self = Self {
        memory_bytes: 0,
        memory_max_bytes: None,
        reclaim: ReclaimOptions { slowdown: None, policy: Policy::Auto },
        min_size_bytes: 0,
        kernel: KernelOptions { io: Io::Auto, mmu: Mmu::Auto, faults: Faults::Auto },
        handlers: 0,
        writeback_interval: Duration::ZERO,
        dirty_bytes: None,
        swap: SwapOptions { bytes: 0, by_default: false, dir: None, encrypt: false },
        heap: Heap::Off,
        heap_min_bytes: 0,
        fork: Fork::Copy,
        tests: TestOptions { fork_bound_ms: None, inject: None, ablate: None },
        groups: GroupOptions { file: None, spec: None },
        report: ReportOptions {
            stats: None,
            learned: None,
            quiet: false,
            verbose: false,
            contention: false,
            trace: None,
            trace_bytes: 0,
        },
        each_bytes: None,
        tree: None,
        fallback: Fallback::None,
        core: Core::Managed,
        sharing: Sharing::Auto,
        idle: Idle::Shallow,
        main_pid: 0,
    };

    /// Each option with the field that holds its value, in the order of the help.
    fn settings(&mut self) -> [(&'static Spec, &mut dyn Setting); COUNT] {
        [
            (&table::MEMORY, &mut self.memory_bytes),
            (&table::MEMORY_MAX, &mut self.memory_max_bytes),
            (&table::SLOWDOWN, &mut self.reclaim.slowdown),
            (&table::EACH, &mut self.each_bytes),
            (&table::GROUP, &mut self.groups.file),
            (&table::MIN_SIZE, &mut self.min_size_bytes),
            (&table::IO, &mut self.kernel.io),
            (&table::MMU, &mut self.kernel.mmu),
            (&table::FAULTS, &mut self.kernel.faults),
            (&table::HANDLERS, &mut self.handlers),
            (&table::WRITEBACK_INTERVAL, &mut self.writeback_interval),
            (&table::DIRTY, &mut self.dirty_bytes),
            (&table::SWAP, &mut self.swap.bytes),
            (&table::SWAP_BY_DEFAULT, &mut self.swap.by_default),
            (&table::HEAP, &mut self.heap),
            (&table::HEAP_MIN, &mut self.heap_min_bytes),
            (&table::SWAP_DIR, &mut self.swap.dir),
            (&table::SWAP_ENCRYPT, &mut self.swap.encrypt),
            (&table::FORK, &mut self.fork),
            (&table::FORK_BOUND, &mut self.tests.fork_bound_ms),
            (&table::STATS, &mut self.report.stats),
            (&table::LEARNED, &mut self.report.learned),
            (&table::QUIET, &mut self.report.quiet),
            (&table::VERBOSE, &mut self.report.verbose),
            (&table::CONTENTION, &mut self.report.contention),
            (&table::TRACE, &mut self.report.trace),
            (&table::TRACE_BUFFER, &mut self.report.trace_bytes),
            (&table::FALLBACK, &mut self.fallback),
            (&table::CORE, &mut self.core),
            (&table::SHARING, &mut self.sharing),
            (&table::POLICY, &mut self.reclaim.policy),
            (&table::IDLE, &mut self.idle),
            (&table::INJECT, &mut self.tests.inject),
            (&table::ABLATE, &mut self.tests.ablate),
            (&table::MAIN_PID, &mut self.main_pid),
            (&table::TREE, &mut self.tree),
            (&table::GROUPS, &mut self.groups.spec),
        ]
    }

    /// All options, in the order of the help.
    pub fn specs() -> [&'static Spec; COUNT] {
        Self::NOTHING.clone().settings().map(|(spec, _)| spec)
    }

    /// Stores the value of the option that is called `name`. False, and nothing is stored, if there is no
    /// such option, or its value is of another kind.
    pub fn set(&mut self, name: &str, value: Value) -> bool {
        let found = self.settings().into_iter().find(|(spec, _)| spec.name == name);
        found.is_some_and(|(_, setting)| setting.set(value))
    }

    /// The smallest private mapping that is managed, in bytes. With `--heap off`, mappings of the heap's
    /// allocator count as any other mapping.
    pub fn memory_min_bytes(&self) -> u64 {
        match self.heap {
            Heap::Off => self.min_size_bytes,
            Heap::All | Heap::Large => self.heap_min_bytes,
        }
    }

    /// The text of [`VARIABLE`], in ASCII: all options that have a value, also those that have their default.
    pub fn encode(&self) -> String {
        let mut all = self.clone();
        let mut pairs = Vec::new();
        for (spec, setting) in all.settings() {
            if let Some(value) = setting.get() {
                pairs.push(format!("{}={}", spec.name, spec.kind.write_escaped(&value)));
            }
        }
        pairs.join(";")
    }

    /// Reads the text of [`VARIABLE`]. The command has checked everything before; errors are reported here
    /// all the same, since the variable can be set by hand.
    ///
    /// # Errors
    /// One line that says which part is wrong and what it may be.
    pub fn parse(text: &OsStr) -> Result<Self, String> {
        let text = text.to_str().ok_or_else(|| format!("{VARIABLE}: it is not UTF-8"))?;
        let mut options = Self::default();
        for pair in pairs(text) {
            let (name, value) =
                pair.map_err(|pair| format!("{VARIABLE}: \"{pair}\" is not of the form name=value"))?;
            let mut settings = options.settings().into_iter();
            let (spec, setting) = settings
                .find(|(spec, _)| spec.name == name)
                .ok_or_else(|| format!("{VARIABLE}: there is no option \"{name}\""))?;
            let wrong = |problem: Problem<'_>| format!("{VARIABLE}: {name}={value}: {problem}");
            setting.set(spec.kind.read_escaped(value).map_err(wrong)?);
        }
        if options.memory_bytes == 0 {
            return Err(format!("{VARIABLE}: memory is missing; use `elbowroom run`, which sets it"));
        }
        Ok(options)
    }
}

/// The pairs of the variable; a part that is no pair is an error. No memory is allocated.
pub(crate) fn pairs(text: &str) -> impl Iterator<Item = Result<(&str, &str), &str>> {
    text.split(';').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').ok_or(pair))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::table::{GivenIn, Kind};

    fn parse(text: &str) -> Result<Options, String> {
        Options::parse(OsStr::new(text))
    }

    /// A value that is not the default.
    fn other(spec: &Spec) -> Value {
        match spec.kind {
            Kind::Size { least, .. } | Kind::SizeOrAuto { least } => Value::Number(least.max(12_345)),
            Kind::Percent { .. } => Value::Number(125),
            Kind::Duration { .. } => Value::Duration(Duration::from_millis(1234)),
            Kind::Count { .. } => Value::Number(7),
            Kind::Choice(choices) => Value::Choice(choices.len() - 1),
            Kind::Flag => Value::Flag(true),
            Kind::Path => Value::Path("/a;b=c d%/é".into()),
            Kind::Text => Value::Text("read:eio@3;x".into()),
        }
    }

    #[test]
    fn each_option_is_described_once_and_its_default_is_a_value() {
        let specs = Options::specs();
        let names: BTreeSet<_> = specs.iter().map(|spec| spec.name).collect();
        let letters: Vec<_> = specs.iter().filter_map(|spec| spec.short).collect();
        assert_eq!(names.len(), specs.len());
        assert_eq!(letters.iter().collect::<BTreeSet<_>>().len(), letters.len());
        for spec in specs {
            assert!(!spec.help.is_empty() && !spec.help.ends_with('.'), "{}", spec.name);
            assert_eq!(spec.value_name.is_empty(), spec.kind == Kind::Flag, "{}", spec.name);
            if let Some(text) = spec.default {
                let value = spec.kind.read(OsStr::new(text)).unwrap();
                assert!(Options::default().set(spec.name, value), "{}", spec.name);
            }
            assert!(spec.requires.is_none_or(|other| names.contains(other)));
        }
    }

    #[test]
    fn each_option_goes_through_the_variable() {
        let least = Options { memory_bytes: table::MIN_MEMORY, ..Options::default() };
        assert_eq!(parse(&least.encode()), Ok(least.clone()));
        let mut all = least.clone();
        for spec in Options::specs() {
            let mut one = least.clone();
            for options in [&mut one, &mut all] {
                assert!(options.set(spec.name, other(spec)), "{}", spec.name);
            }
            if spec.name != "memory" {
                assert_ne!(one, least, "{}", spec.name);
            }
            assert_eq!(parse(&one.encode()), Ok(one), "{}", spec.name);
        }
        let text = all.encode();
        assert_eq!(parse(&text), Ok(all));
        assert!(text.is_ascii() && text.split(';').count() == COUNT, "{text}");
        assert!(!Options::default().set("memory", Value::Flag(true)), "another kind");
        assert!(!Options::default().set("main-pid", Value::Number(1 << 40)), "too much for the field");
        assert!(!Options::default().set("colour", Value::Number(1)));
    }

    #[test]
    fn the_variable_is_read_as_the_command_line() {
        let options = parse("memory=1.5G;swap=2g;writeback-interval=1.5s;heap=off;trace=/a%3bb%25c").unwrap();
        assert_eq!((options.memory_bytes, options.swap.bytes), (1536 << 20, 2 << 30));
        assert_eq!(options.writeback_interval, Duration::from_millis(1500));
        assert_eq!((options.memory_min_bytes(), options.report.trace), (1 << 20, Some("/a;b%c".into())));
    }

    #[test]
    fn defaults_are_those_of_the_manual() {
        let options = parse("memory=16777216;main-pid=7").unwrap();
        assert_eq!((options.memory_bytes, options.min_size_bytes), (16 << 20, 1 << 20));
        assert_eq!((options.writeback_interval, options.dirty_bytes), (Duration::from_secs(1), None));
        assert_eq!(
            (options.kernel.io, options.kernel.mmu, options.fallback),
            (Io::Auto, Mmu::Auto, Fallback::None)
        );
        assert_eq!((options.sharing, options.fork, options.idle), (Sharing::Auto, Fork::Copy, Idle::Shallow));
        assert_eq!((options.core, parse("memory=16M;core=none").unwrap().core), (Core::Managed, Core::None));
        assert_eq!((options.report.quiet, options.report.contention, options.main_pid), (false, false, 7));
        assert_eq!((options.swap.bytes, options.swap.by_default, &options.report.stats), (0, false, &None));
        assert_eq!((options.heap, options.memory_min_bytes()), (Heap::Large, 256 << 10));
        assert_eq!((options.swap.dir, options.report.trace_bytes), (Some("/var/tmp".into()), 4 << 20));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("", "memory is missing"),
            ("memory=0", "memory=0: it must be at least 16M"),
            ("memory=lots", "memory=lots: no number"),
            ("memory=1,5G", "1,5G: write 1.5G"),
            ("memory=16M;io=fast", "none of auto, uring, threads"),
            ("memory=16M;quiet=yes", "neither 0 nor 1"),
            ("memory=16M;idle=1", "shallow"),
            ("memory=16M;colour=red", "no option \"colour\""),
            ("memory", "\"memory\" is not of the form"),
            ("memory=16M;handlers=-1", "handlers=-1"),
            ("memory=16M;handlers=17", "from 0 to 16"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(word) && error.starts_with(VARIABLE), "{text}: {error}");
        }
    }

    /// docs/run.md has a row for each option that the help shows, with its default.
    #[test]
    fn the_manual_has_each_option() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/run.md");
        let manual = std::fs::read_to_string(path).unwrap();
        let rows: Vec<_> = manual.lines().filter(|line| line.starts_with("| `")).collect();
        let mut shown = 0;
        for spec in Options::specs().into_iter().filter(|spec| spec.place == GivenIn::CommandLine) {
            shown += 1;
            let letter = spec.short.map_or(String::new(), |letter| format!("-{letter}, "));
            let name = format!("| `{letter}--{}", spec.name);
            let is_it =
                |row: &&&str| row.strip_prefix(&name).is_some_and(|rest| rest.starts_with([' ', '`']));
            let row = rows.iter().find(is_it).unwrap_or_else(|| panic!("no row {name}"));
            if let (Some(default), false) = (spec.default, spec.kind == Kind::Flag) {
                assert_eq!(row.split(" | ").nth(1), Some(default), "{row}");
            }
        }
        assert_eq!(rows.len(), shown, "rows for options that are not there");
    }
}
