//! What is measured: whose memory, and which of the library's improvements are off.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result, anyhow, ensure};
use elbowroom::Ablation;
use serde::{Serialize, Serializer};

/// Whose memory it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Linux: mmap, mprotect, munmap.
    Kernel,
    /// A soft space.
    Soft,
    /// Real pointers, by userfaultfd.
    Host,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Kernel, Self::Soft, Self::Host];

    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Soft => "soft",
            Self::Host => "host",
        }
    }
}

/// An engine, and the improvements that it does without. Its name is that of the engine, and behind it, each
/// after a minus, those of what is off: `soft-vma_locks` are soft spaces without VMA locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LibraryEngine {
    pub kind: Kind,
    pub ablation: Ablation,
}

impl LibraryEngine {
    /// The engine with all that it has.
    pub fn whole(kind: Kind) -> Self {
        Self { kind, ablation: Ablation::default() }
    }

    /// Soft spaces whose faults take the layout lock, as they did before VMA locks.
    pub fn soft_without_vma_locks() -> Self {
        Self { kind: Kind::Soft, ablation: Ablation { vma_locks: false, ..Ablation::default() } }
    }
}

impl fmt::Display for LibraryEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut name = self.kind.name().to_owned();
        for off in self.ablation.off() {
            name.push('-');
            name.push_str(off);
        }
        f.pad(&name)
    }
}

impl FromStr for LibraryEngine {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (engine, off) = text.split_once('-').unwrap_or((text, ""));
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == engine);
        let kind =
            kind.with_context(|| format!("no engine \"{engine}\"; there are kernel, soft and host"))?;
        let ablation = Ablation::without(&off.replace('-', ",")).map_err(|error| anyhow!(error))?;
        let whole = ablation == Ablation::default();
        ensure!(whole || kind != Kind::Kernel, "the kernel has none of the library's improvements");
        // Single pages are what is measured here, whatever the engine.
        ensure!(ablation.huge_folios, "huge_folios are always off here");
        Ok(Self { kind, ablation })
    }
}

impl Serialize for LibraryEngine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
