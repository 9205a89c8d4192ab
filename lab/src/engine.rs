//! The engines that are compared: who has the memory, and which of Elbowroom's improvements are off.

use std::fmt::{self, Write};
use std::str::FromStr;

use anyhow::{Context, Error, Result, anyhow, ensure};
use elbowroom::Ablation;
use serde::{Serialize, Serializer};

/// Who has the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Linux. A worker runs in a memory control group.
    Kernel,
    /// Linux, told by MADV_RANDOM that access is random.
    KernelRandom,
    /// Linux, told by MADV_WILLNEED of each chunk before it is read.
    KernelWillneed,
    /// Linux, told by MADV_HUGEPAGE to use pages of 2 MiB.
    KernelHuge,
    /// The worker under `elbowroom run`.
    Elbowroom,
    /// The same, with only the large blocks of its heap managed.
    ElbowroomLarge,
    /// The same as Elbowroom, with as much memory as it needs: `--memory auto`.
    ElbowroomAuto,
    /// The same as Elbowroom, with less than what `ElbowroomAuto` says that it needs.
    ElbowroomLess,
    /// The same as Elbowroom, but before a fork all private memory goes to the kernel.
    ElbowroomForkKernel,
    /// A soft space: of the worker, or of the lab.
    Soft,
    /// Real pointers, by userfaultfd, in the lab's own process.
    Host,
    /// Linux, with all memory that there is.
    Plain,
    /// A cache of whole chunks in the program itself, by direct reads, in a memory control group.
    Cache,
    /// The disk alone: direct reads, and nothing is kept.
    Device,
}

impl Kind {
    /// A name that begins with another one comes first.
    const ALL: [Self; 14] = [
        Self::KernelRandom,
        Self::KernelWillneed,
        Self::KernelHuge,
        Self::Kernel,
        Self::ElbowroomForkKernel,
        Self::ElbowroomLarge,
        Self::ElbowroomAuto,
        Self::ElbowroomLess,
        Self::Elbowroom,
        Self::Soft,
        Self::Host,
        Self::Plain,
        Self::Cache,
        Self::Device,
    ];

    /// As the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::KernelRandom => "kernel-random",
            Self::KernelWillneed => "kernel-willneed",
            Self::KernelHuge => "kernel-huge",
            Self::Elbowroom => "elbowroom",
            Self::ElbowroomLarge => "elbowroom-large",
            Self::ElbowroomAuto => "elbowroom-auto",
            Self::ElbowroomLess => "elbowroom-less",
            Self::ElbowroomForkKernel => "elbowroom-fork-kernel",
            Self::Soft => "soft",
            Self::Host => "host",
            Self::Plain => "plain",
            Self::Cache => "cache",
            Self::Device => "device",
        }
    }

    /// What it is, in one line of a table.
    pub fn about(self) -> &'static str {
        match self {
            Self::Kernel => {
                "Linux; in a control group with the budget as its limit where the workload says so"
            }
            Self::KernelRandom => "Linux, told by MADV_RANDOM that access is random",
            Self::KernelWillneed => "Linux, told by MADV_WILLNEED of each chunk before it is read",
            Self::KernelHuge => "Linux, told by MADV_HUGEPAGE to use pages of 2 MiB",
            Self::Elbowroom => "an unmodified program under elbowroom run: real pointers, by userfaultfd",
            Self::ElbowroomLarge => "elbowroom with only the large blocks of the heap managed (--heap large)",
            Self::ElbowroomAuto => "elbowroom with as much memory as it needs (--memory auto --slowdown 5%)",
            Self::ElbowroomLess => {
                "elbowroom with what elbowroom-auto needed in the same turn, divided by 1.3"
            }
            Self::ElbowroomForkKernel => "elbowroom that gives private memory to the kernel at a fork",
            Self::Soft => "memory of the library that is reached by calls, without userfaultfd",
            Self::Host => {
                "the library with real pointers, by userfaultfd, in one process with the lab's threads"
            }
            Self::Plain => "Linux with all memory that there is: no budget, no control group",
            Self::Cache => {
                "a cache of the program's own, in a control group: whole chunks, LRU, parallel direct reads"
            }
            Self::Device => "direct reads of the same chunks at the best of 4 depths, and nothing is kept",
        }
    }

    /// The kind that an engine's name begins with, and the names behind it of what is off.
    pub fn split(name: &str) -> Option<(Self, &str)> {
        let after = |kind: &Self| match name.strip_prefix(kind.name())? {
            "" => Some(""),
            rest => rest.strip_prefix('-'),
        };
        Self::ALL.into_iter().find_map(|kind| after(&kind).map(|off| (kind, off)))
    }

    /// Whether the kernel pages.
    pub fn is_kernel(self) -> bool {
        use Kind::{Kernel, KernelHuge, KernelRandom, KernelWillneed, Plain};
        matches!(self, Kernel | KernelRandom | KernelWillneed | KernelHuge | Plain)
    }

    /// Whether Elbowroom pages.
    pub fn is_ours(self) -> bool {
        !self.is_kernel() && !matches!(self, Self::Cache | Self::Device)
    }

    /// Whether a worker of it runs in a memory control group.
    pub fn is_grouped(self) -> bool {
        self.is_kernel() && self != Self::Plain || self == Self::Cache
    }
}

/// An engine, and the improvements that it does without. Its name is that of the engine, and behind it, each
/// after a minus, those of what is off: `soft-vma_locks` are soft spaces without VMA locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Engine {
    /// Who has the memory.
    pub kind: Kind,
    /// What is off.
    pub ablation: Ablation,
}

impl Engine {
    /// The engine with all that it has.
    pub fn whole(kind: Kind) -> Self {
        Self { kind, ablation: Ablation::default() }
    }

    /// The engine without one improvement, if there is one of that name.
    pub fn without(kind: Kind, name: &str) -> Option<Self> {
        let ablation = Ablation::without(name).ok()?;
        Some(Self { kind, ablation })
    }

    /// Whether the kernel pages.
    pub fn is_kernel(self) -> bool {
        self.kind.is_kernel()
    }

    /// Whether Elbowroom pages.
    pub fn is_ours(self) -> bool {
        self.kind.is_ours()
    }

    /// Whether nothing of it is off.
    pub fn is_whole(self) -> bool {
        self.ablation == Ablation::default()
    }

    /// What is off, with commas between, as `run --ablate` takes it.
    pub fn off(self) -> String {
        self.ablation.off().join(",")
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = self.kind.name().to_owned();
        for off in self.ablation.off() {
            name.push('-');
            name.push_str(&off);
        }
        f.pad(&name)
    }
}

impl FromStr for Engine {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (kind, off) = Kind::split(text).with_context(|| {
            let known = Kind::ALL.map(Kind::name).join(", ");
            format!("no engine \"{text}\"; there are {known}, and without an improvement: soft-vma_locks")
        })?;
        let ablation = Ablation::without(&off.replace('-', ",")).map_err(|error| anyhow!(error))?;
        let engine = Self { kind, ablation };
        ensure!(
            engine.is_whole() || kind.is_ours(),
            "{} has none of Elbowroom's improvements, so none can be off",
            kind.name()
        );
        Ok(engine)
    }
}

impl Serialize for Engine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The pairs in which one is before and one after: of each engine with all that it has, after the kernel, and
/// after itself without an improvement.
pub fn before_and_after(engines: &[Engine]) -> Vec<(Engine, Engine)> {
    let ours = engines.iter().filter(|engine| engine.is_whole() && engine.is_ours());
    let is_before = |before: &Engine, after: &Engine| {
        before.kind == Kind::Kernel || before.kind == after.kind && !before.is_whole()
    };
    ours.flat_map(|after| {
        engines.iter().filter(move |before| is_before(before, after)).map(|before| (*before, *after))
    })
    .collect()
}

/// Who is compared with whom, ours first: each of ours with all that it has, beside each of the kernel's,
/// beside a cache of the program's own, and beside itself without an improvement.
pub fn compared(engines: &[Engine]) -> Vec<(Engine, Engine)> {
    let ours = engines.iter().filter(|engine| engine.is_whole() && engine.is_ours());
    let is_base = |base: &Engine, ours: &Engine| {
        base.is_kernel() || base.kind == Kind::Cache || base.kind == ours.kind && base != ours
    };
    ours.flat_map(|ours| {
        let bases = engines.iter().filter(move |base| is_base(base, ours));
        bases.map(|base| (*ours, *base))
    })
    .collect()
}

/// A line about each kind of engine.
pub fn legend(engines: &[Engine]) -> String {
    let mut text = String::new();
    for kind in Kind::ALL.into_iter().filter(|kind| engines.iter().any(|engine| engine.kind == *kind)) {
        let _ = writeln!(text, "{}: {}", kind.name(), kind.about());
    }
    if engines.iter().any(|engine| !engine.is_whole()) {
        text.push_str("A name of an improvement behind that of an engine: the engine without it.\n");
    }
    text
}

/// A line about each engine that there is, for the help.
pub fn legend_of_all() -> String {
    let without = Engine::without(Kind::Soft, "vma_locks");
    let all: Vec<_> = Kind::ALL.into_iter().map(Engine::whole).chain(without).collect();
    format!("Engines, of which each workload has some (--engines):\n{}", legend(&all))
}

/// Fails unless each of the engines is of a kind that the workload has, and none is there twice.
///
/// # Errors
/// A message that says what is possible.
pub fn check_engines(engines: &[Engine], workload: &str, kinds: &[Kind]) -> Result<()> {
    ensure!(!engines.is_empty(), "--engines must name at least one engine");
    for (index, engine) in engines.iter().enumerate() {
        ensure!(!engines[..index].contains(engine), "--engines names {engine} twice");
        ensure!(
            kinds.contains(&engine.kind),
            "{workload} has no engine {}; it has {}",
            engine.kind.name(),
            kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ")
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_named_after_what_is_off() {
        for name in [
            "kernel",
            "kernel-random",
            "kernel-willneed",
            "kernel-huge",
            "cache",
            "device",
            "elbowroom-large",
            "elbowroom-fork-kernel",
            "elbowroom",
            "soft",
            "host",
            "soft-vma_locks",
        ] {
            assert_eq!(name.parse::<Engine>().unwrap().to_string(), name);
        }
        let two: Engine = "elbowroom-vma_locks-given_way".parse().unwrap();
        assert_eq!(
            (two.off().as_str(), two.to_string().as_str()),
            ("vma_locks,given_way", "elbowroom-vma_locks-given_way")
        );
        // Whatever can be switched off can be switched off here, by the same name.
        for name in Ablation::names() {
            let engine: Engine = format!("elbowroom-{name}").parse().unwrap();
            assert_eq!(Some(engine), Engine::without(Kind::Elbowroom, name));
            assert!(!engine.is_whole());
        }
    }

    #[test]
    fn before_is_the_kernel_or_the_same_without_something() {
        let engines = ["kernel", "elbowroom-vma_locks", "elbowroom", "soft-given_way", "soft"]
            .map(|name| name.parse::<Engine>().unwrap());
        let pairs: Vec<_> = before_and_after(&engines)
            .into_iter()
            .map(|(before, after)| format!("{before} {after}"))
            .collect();
        let expected =
            ["kernel elbowroom", "elbowroom-vma_locks elbowroom", "kernel soft", "soft-given_way soft"];
        assert_eq!(pairs, expected);
    }

    #[test]
    fn ours_are_beside_the_kernels_and_beside_themselves_and_each_is_explained() {
        let engines = ["plain", "kernel", "elbowroom-vma_locks", "cache", "elbowroom", "device"]
            .map(|name| name.parse::<Engine>().unwrap());
        let pairs: Vec<_> = compared(&engines).iter().map(|(ours, base)| format!("{ours}/{base}")).collect();
        let own = "elbowroom/elbowroom-vma_locks";
        assert_eq!(pairs, ["elbowroom/plain", "elbowroom/kernel", own, "elbowroom/cache"]);
        let legend = legend(&engines);
        for kind in ["plain: ", "kernel: ", "elbowroom: ", "cache: ", "device: ", "without it"] {
            assert!(legend.contains(kind), "{kind}: {legend}");
        }
        assert!(!legend.contains("host"), "{legend}");
        assert!(legend_of_all().contains("host: ") && legend_of_all().lines().all(|line| line.len() < 100));
    }

    #[test]
    fn what_is_no_engine_is_refused_with_what_there_is() {
        for (wrong, said) in [
            ("linux", "there are"),
            ("kernels", "there are"),
            ("", "there are"),
            ("soft-locks", "vma_locks"),
            ("kernel-vma_locks", "none can be off"),
            ("kernel-random-vma_locks", "none can be off"),
            ("kernel-huge-vma_locks", "none can be off"),
            ("cache-vma_locks", "none can be off"),
        ] {
            let error = format!("{:#}", wrong.parse::<Engine>().unwrap_err());
            assert!(error.contains(said), "{wrong}: {error}");
        }
        let kernel = Engine::whole(Kind::Kernel);
        assert!(check_engines(&[kernel, kernel], "scan", &[Kind::Kernel]).is_err());
        assert!(check_engines(&[kernel], "scan", &[Kind::Soft]).is_err());
        assert!(check_engines(&[], "scan", &[Kind::Kernel]).is_err());
    }
}
