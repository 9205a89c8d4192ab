//! What workloads that page anonymous memory share: what pages have, and what is counted of their ways out
//! and in.

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use elbowroom::KindStats;
use serde::Serialize;

use super::area::{Area, Ground, Hand};
use crate::PAGE_BYTES;
use crate::cgroup::{counted, stats_of_own};
use crate::size::Size;

const PAGE: usize = PAGE_BYTES as usize;

/// What the pages have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Zeros
    Zero,
    /// What compresses about 3:1
    Compressible,
    /// What nothing makes smaller
    Noise,
}

/// A word of noise that belongs to a place.
fn noise(place: usize) -> u64 {
    let mut word = (place as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    word ^= word >> 29;
    word = word.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word ^ word >> 32
}

impl Content {
    /// A word of a page; each page has other noise.
    pub fn word(self, page: usize, word: usize) -> u64 {
        match self {
            Self::Zero => 0,
            // One word of four is noise, the others are alike.
            Self::Compressible if !word.is_multiple_of(4) => 0x2020_2020_2020_2020,
            Self::Compressible | Self::Noise => noise(page * (PAGE / 8) + word),
        }
    }

    /// Stores to every word of the page at an offset, as of page `page`.
    ///
    /// # Errors
    /// The access's.
    pub fn fill(self, area: &Area<'_>, hand: &Hand, offset: usize, page: usize) -> Result<()> {
        (0..PAGE / 8).try_for_each(|word| area.store(hand, offset + word * 8, self.word(page, word)))
    }
}

/// Fails unless a size is whole pages, and not none.
///
/// # Errors
/// If it is not.
pub fn check_pages(size: Size) -> Result<()> {
    ensure!(
        size.bytes() > 0 && size.bytes().is_multiple_of(PAGE_BYTES),
        "--size must be whole pages of 4 KiB"
    );
    Ok(())
}

/// What has been counted of paging so far. The kernel's counts are of this process's control group, where it
/// counts that for groups, or else of the machine.
pub struct Counts {
    /// Pages that came in.
    pub swapped_in: u64,
    /// Pages that went out.
    pub swapped_out: u64,
    /// What reclaim has done with anonymous memory.
    pub reclaim: Option<Reclaim>,
}

/// What reclaim has done.
pub struct Reclaim {
    /// Pages that came in soon after they had gone out.
    pub refaults: u64,
    /// Pages that it looked at.
    pub scanned: u64,
    /// Pages that it took.
    pub stolen: u64,
}

impl Counts {
    /// Of the manager, or of the kernel.
    ///
    /// # Errors
    /// If the kernel does not say one of them.
    pub fn read(ground: &Ground) -> Result<Self> {
        if let Some(stats) = ground.stats() {
            let reclaim = ground.group().map(|group| {
                let KindStats { refaults, scanned, stolen } = group.anonymous;
                Reclaim { refaults, scanned, stolen }
            });
            return Ok(Self { swapped_in: stats.pswpin, swapped_out: stats.pswpout, reclaim });
        }
        let vmstat = std::fs::read_to_string("/proc/vmstat").context("cannot read /proc/vmstat")?;
        let group = stats_of_own().unwrap_or_default();
        // Groups have other names for some of them.
        let count = |of_group: &str, of_machine: &str| {
            counted(&group, of_group).or_else(|| counted(&vmstat, of_machine))
        };
        let refaults = count("workingset_refault_anon", "workingset_refault_anon");
        let (scanned, stolen) = (count("pgscan", "pgscan_anon"), count("pgsteal", "pgsteal_anon"));
        let all = refaults.zip(scanned).zip(stolen);
        Ok(Self {
            swapped_in: count("pswpin", "pswpin").context("/proc/vmstat has no pswpin")?,
            swapped_out: count("pswpout", "pswpout").context("/proc/vmstat has no pswpout")?,
            reclaim: all.map(|((refaults, scanned), stolen)| Reclaim { refaults, scanned, stolen }),
        })
    }
}
