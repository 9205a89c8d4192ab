//! Accesses, faults and pins of a soft space, by one thread.

use std::fs::File;
use std::hint::black_box;
use std::io::{BufWriter, Write};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use elbowroom::{
    Ablation, Advice, Config, Cpu, Intent, Manager, MapRequest, Place, Prot, Sharing, Soft, Space,
};
use tempfile::TempDir;

use super::super::area::anonymous;
use super::super::{Sample, ns_per_operation, timed};
use crate::content;
use crate::interrupt::Interrupt;

const PAGE: usize = crate::PAGE_BYTES as usize;
const MEMORY_BYTES: u64 = 64 << 20;
const SEED: u64 = 5;

/// Pages whose translations all fit into the cache.
const HIT_PAGES: usize = 64;
/// Pages that share one line of the translation cache, which has 512: each read finds another's there.
const WALK_PAGES: usize = 8;
const WALK_STRIDE: usize = 512 * PAGE;
/// Pages that are faulted in by one sample.
const FAULT_PAGES: usize = 512;
/// Rounds over the pages in one sample of accesses.
const ROUNDS: usize = 64;
/// Bytes that are pinned.
const PIN_BYTES: usize = 64;

/// A soft space with what is measured on it.
pub struct SoftBed {
    cpu: Cpu,
    manager: Manager<Soft>,
    space: Space<Soft>,
    hit: Vec<usize>,
    walk: Vec<usize>,
    file: usize,
    empty: usize,
    huge: HugeBed,
    _dir: TempDir,
}

/// A space whose anonymous memory comes by 2 MiB; the others' comes by pages, so that single faults are
/// measured.
struct HugeBed {
    cpu: Cpu,
    manager: Manager<Soft>,
    space: Space<Soft>,
    empty: usize,
}

impl HugeBed {
    fn new() -> Result<Self> {
        let manager = Manager::<Soft>::start_on(Config::with_memory(MEMORY_BYTES))?;
        let space = manager.create_space()?;
        let empty = space.map(anonymous(Place::Anywhere, FAULT_PAGES * PAGE))?;
        Ok(Self { cpu: space.cpu(), manager, space, empty })
    }
}

/// First stores to all pages of a range; they are forgotten afterwards.
fn first_stores(cpu: &Cpu, space: &Space<Soft>, range: usize) -> Result<Sample> {
    let sample = timed(|| {
        for page in 0..FAULT_PAGES {
            cpu.write_u64(range + page * PAGE, 1)?;
        }
        Ok(FAULT_PAGES as u64)
    })?;
    let last = range + (FAULT_PAGES - 1) * PAGE;
    let words = (cpu.read_u64(last)?, cpu.read_u64(last + 8)?);
    ensure!(words == (1, 0), "wrong content in a page that was touched for the first time");
    space.advise(range, FAULT_PAGES * PAGE, Advice::DontNeed)?;
    Ok(sample)
}

impl SoftBed {
    /// Makes it, with its file.
    ///
    /// # Errors
    /// If the manager cannot start or the file cannot be made.
    pub fn new(interrupt: &Interrupt) -> Result<Self> {
        interrupt.check()?;
        let by_pages = Ablation { huge_folios: false, ..Ablation::default() };
        let config = Config { ablation: by_pages, ..Config::with_memory(MEMORY_BYTES) };
        let manager = Manager::<Soft>::start_on(config)?;
        let space = manager.create_space()?;
        let cpu = space.cpu();
        let dir = tempfile::tempdir().context("cannot make a directory for a file")?;
        let file = map_file(&manager, &space, &dir)?;
        let hit = space.map(anonymous(Place::Anywhere, HIT_PAGES * PAGE))?;
        let walk = space.map(anonymous(Place::Anywhere, WALK_PAGES * WALK_STRIDE))?;
        let empty = space.map(anonymous(Place::Anywhere, FAULT_PAGES * PAGE))?;
        // At different places of their pages, so that they do not compete for one set of the processor's
        // cache.
        let hit = (0..HIT_PAGES).map(|page| hit + page * PAGE + page * 64 % PAGE).collect();
        let walk = (0..WALK_PAGES).map(|page| walk + page * WALK_STRIDE + page * 64).collect();
        Ok(Self { cpu, manager, space, hit, walk, file, empty, huge: HugeBed::new()?, _dir: dir })
    }

    /// Reads each of the words, which hold their own addresses, again and again.
    fn reads(&self, words: &[usize], time: Duration, interrupt: &Interrupt) -> Result<f64> {
        for &addr in words {
            self.cpu.write_u64(addr, addr as u64)?;
        }
        let expected = words.iter().fold(0_u64, |sum, addr| sum.wrapping_add(*addr as u64));
        ns_per_operation(time, interrupt, || {
            let mut sum = 0_u64;
            let sample = timed(|| {
                for _ in 0..ROUNDS {
                    for &addr in words {
                        sum = sum.wrapping_add(self.cpu.read_u64(black_box(addr))?);
                    }
                }
                Ok((ROUNDS * words.len()) as u64)
            })?;
            ensure!(sum == expected.wrapping_mul(ROUNDS as u64), "wrong content was read");
            Ok(sample)
        })
    }

    /// Reads that hit the translation cache.
    ///
    /// # Errors
    /// Wrong content; what an access says; a signal. So all of these.
    pub fn hit(&self, time: Duration, interrupt: &Interrupt) -> Result<f64> {
        self.reads(&self.hit, time, interrupt)
    }

    /// Reads that miss it, but find page tables and bytes in the processor's caches.
    pub fn walk(&self, time: Duration, interrupt: &Interrupt) -> Result<f64> {
        self.reads(&self.walk, time, interrupt)
    }

    /// Reads of file pages that are cached, but not mapped.
    pub fn minor_file(&self, time: Duration, interrupt: &Interrupt) -> Result<f64> {
        ns_per_operation(time, interrupt, || {
            self.space.advise(self.file, FAULT_PAGES * PAGE, Advice::Cold)?;
            let before = self.manager.stats();
            let sample = timed(|| {
                for page in 0..FAULT_PAGES {
                    let stamp = u64::from_le(self.cpu.read_u64(self.file + page * PAGE)?);
                    ensure!(stamp == content::stamp(SEED, 0, page as u64), "wrong content in page {page}");
                }
                Ok(FAULT_PAGES as u64)
            })?;
            let after = self.manager.stats();
            let faults = (after.pgfault - before.pgfault, after.pgmajfault - before.pgmajfault);
            ensure!(
                faults == (FAULT_PAGES as u64, 0),
                "{} minor and {} major faults instead of {FAULT_PAGES} minor ones",
                faults.0,
                faults.1
            );
            Ok(sample)
        })
    }

    /// First stores to anonymous pages.
    pub fn zero_fault(&self, time: Duration, interrupt: &Interrupt) -> Result<f64> {
        ns_per_operation(time, interrupt, || first_stores(&self.cpu, &self.space, self.empty))
    }

    /// First stores to anonymous pages that come by 2 MiB.
    pub fn huge_zero_fault(&self, time: Duration, interrupt: &Interrupt) -> Result<f64> {
        let bed = &self.huge;
        let before = bed.manager.stats().huge_faults;
        let each = ns_per_operation(time, interrupt, || first_stores(&bed.cpu, &bed.space, bed.empty))?;
        ensure!(bed.manager.stats().huge_faults > before, "there were no huge folios");
        Ok(each)
    }

    /// Pins of some bytes, given back at once.
    pub fn pin_unpin(&self, time: Duration, interrupt: &Interrupt) -> Result<f64> {
        for &addr in &self.hit {
            self.cpu.write_u64(addr, addr as u64)?;
        }
        ns_per_operation(time, interrupt, || {
            timed(|| {
                for _ in 0..ROUNDS {
                    for &addr in &self.hit {
                        let pin = self.cpu.pin(black_box(addr), PIN_BYTES, Intent::Read)?;
                        ensure!(black_box(pin.len()) == PIN_BYTES, "a pin of another length");
                    }
                }
                Ok((ROUNDS * self.hit.len()) as u64)
            })
        })
    }
}

/// A file of stamped pages, mapped, read, and cached page by page.
fn map_file(manager: &Manager<Soft>, space: &Space<Soft>, dir: &TempDir) -> Result<usize> {
    let path = dir.path().join("file");
    let make = || -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(&path)?);
        let mut bytes = vec![0; PAGE];
        for page in 0..FAULT_PAGES as u64 {
            content::fill_page(&mut bytes, SEED, 0, page);
            file.write_all(&bytes)?;
        }
        file.into_inner().map_err(|error| error.into_error())?.sync_all()
    };
    make().with_context(|| format!("cannot make {}", path.display()))?;
    let object = manager.open(&path, false).with_context(|| format!("cannot open {}", path.display()))?;
    let addr = space.map(MapRequest {
        place: Place::Anywhere,
        len: FAULT_PAGES * PAGE,
        prot: Prot::READ,
        may_write: false,
        sharing: Sharing::Shared,
        object: Some(object),
        offset: 0,
        populate: false,
        locked: false,
        no_reserve: false,
        group: None,
    })?;
    // Single pages are read then, and so each touch is a fault: a fault maps all pages that were read
    // together.
    space.advise(addr, FAULT_PAGES * PAGE, Advice::Random)?;
    space.advise(addr, FAULT_PAGES * PAGE, Advice::PopulateRead)?;
    Ok(addr)
}
