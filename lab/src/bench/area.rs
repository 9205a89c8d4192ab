//! Memory of any engine behind one safe interface. All unsafe code of the lab's library is here.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use elbowroom::{
    Ablation, Advice, Config, Cpu, GroupId, GroupStats, Host, Limits, Manager, MapRequest, Place, Prot,
    Sharing, Soft, Space, Stats,
};
use elbowroom_sync::{ClassStats, LockClass, LockRow, LockStats};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::apart::Apart;
use super::terms::{Pages, Terms};
use crate::PAGE_BYTES;
use crate::engine::{Engine, Kind};
use crate::kernel_swap::KernelSwap;
use crate::size::Size;

/// Where areas are mapped.
pub enum Ground {
    Kernel(KernelMemory),
    /// A process of its own.
    Apart(Box<Apart>),
    /// The last is the group that pays for areas.
    Soft(Space<Soft>, Manager<Soft>, GroupId),
    /// The same.
    Host(Space<Host>, Manager<Host>, GroupId),
}

/// What the kernel is told about each mapping, and its swap for as long as it is needed.
pub struct KernelMemory {
    advice: Option<rustix::mm::Advice>,
    _swap: Option<KernelSwap>,
}

/// A thread's way to the memory of a ground.
pub enum Hand {
    Pointers,
    Calls(Cpu),
}

/// Private anonymous memory, unmapped when it is dropped.
///
/// # Invariants
/// With pointers, the bytes of `start + open.start..start + open.end` are mapped readable and writable until
/// the drop.
pub struct Area<'g> {
    ground: &'g Ground,
    start: usize,
    len: usize,
    /// What of it is accessible.
    open: Range<usize>,
}

/// A request for private anonymous memory.
pub fn anonymous(place: Place, len: usize) -> MapRequest {
    MapRequest {
        place,
        len,
        prot: Prot::READ | Prot::WRITE,
        may_write: true,
        sharing: Sharing::Private,
        object: None,
        offset: 0,
        populate: false,
        locked: false,
        no_reserve: false,
        group: None,
    }
}

/// The group that pays for areas: the root, or a leaf with a limit, whose parent has none. How long locks are
/// held is measured with a leaf.
fn payer(
    terms: &Terms,
    locks: &LockStats,
    create: impl Fn(GroupId, &Limits) -> Result<GroupId>,
) -> Result<GroupId> {
    if terms.leaf.is_none() {
        return Ok(GroupId::ROOT);
    }
    locks.count_in_detail();
    let parent = create(GroupId::ROOT, &Limits::default())?;
    create(parent, &Limits { max: terms.memory.bytes(), ..Limits::default() })
}

impl Ground {
    /// A new ground with a budget of its own. The kernel's has none.
    ///
    /// # Errors
    /// What is missing here for the engine.
    pub fn new(engine: Engine, memory: Size) -> Result<Self> {
        Self::on(engine, &Terms::of(memory))
    }

    /// The same, on other terms.
    ///
    /// # Errors
    /// What is missing here for the engine.
    pub fn on(engine: Engine, terms: &Terms) -> Result<Self> {
        let beside = terms.leaf.map_or(0, |leaf| leaf.beside.bytes());
        let mut config = Config::with_memory(terms.memory.bytes() + beside);
        if let Some(swap) = &terms.swap {
            (config.swap, config.swap_dir) = (swap.bytes, Some(swap.dir.clone()));
        }
        let huge_folios = terms.pages == Pages::AsNamed && engine.ablation.huge_folios;
        config.ablation = Ablation { huge_folios, ..engine.ablation };
        Ok(match engine.kind {
            Kind::Plain => Self::Kernel(KernelMemory { advice: None, _swap: None }),
            Kind::Kernel if terms.limited => Self::Apart(Box::new(Apart::on(engine, terms)?)),
            Kind::Cache | Kind::Device => bail!("{engine} is of workloads of chunks only"),
            Kind::Kernel | Kind::KernelRandom | Kind::KernelWillneed | Kind::KernelHuge => {
                let swap = terms.swap.as_ref().filter(|swap| swap.kernel);
                let swap = swap.map(|swap| KernelSwap::on(&swap.dir, swap.size()));
                Self::Kernel(KernelMemory { advice: terms.advice(engine.kind), _swap: swap.transpose()? })
            }
            Kind::Soft => {
                let manager = Manager::<Soft>::start_on(config)?;
                let space = manager.create_space().context("no soft space")?;
                let create = |parent, limits: &Limits| Ok(manager.groups().create(parent, limits)?);
                let group = payer(terms, manager.locks(), create)?;
                Self::Soft(space, manager, group)
            }
            Kind::Elbowroom
            | Kind::ElbowroomLarge
            | Kind::ElbowroomAuto
            | Kind::ElbowroomLess
            | Kind::ElbowroomForkKernel => Self::Apart(Box::new(Apart::on(engine, terms)?)),
            Kind::Host => {
                let (manager, space) = Manager::<Host>::start(config)?;
                let create = |parent, limits: &Limits| Ok(manager.groups().create(parent, limits)?);
                let group = payer(terms, manager.locks(), create)?;
                Self::Host(space, manager, group)
            }
        })
    }

    /// A thread's way to its memory.
    pub fn hand(&self) -> Hand {
        match self {
            Self::Soft(space, ..) => Hand::Calls(space.cpu()),
            Self::Kernel(_) | Self::Apart(_) | Self::Host(..) => Hand::Pointers,
        }
    }

    /// What its manager has counted so far.
    pub fn stats(&self) -> Option<Stats> {
        match self {
            Self::Kernel(_) | Self::Apart(_) => None,
            Self::Soft(_, manager, _) => Some(manager.stats()),
            Self::Host(_, manager, _) => Some(manager.stats()),
        }
    }

    /// What its layout lock has counted so far.
    pub fn layout_lock(&self) -> Option<ClassStats> {
        self.locks(LockClass::Layout)
    }

    /// What its locks of a class have counted so far.
    pub fn locks(&self, class: LockClass) -> Option<ClassStats> {
        match self {
            Self::Kernel(_) | Self::Apart(_) => None,
            Self::Soft(_, manager, _) => Some(manager.locks().class(class)),
            Self::Host(_, manager, _) => Some(manager.locks().class(class)),
        }
    }

    /// What its LRU locks have counted so far, by what they were taken for.
    pub fn lru_uses(&self) -> Option<Vec<LockRow>> {
        match self {
            Self::Kernel(_) | Self::Apart(_) => None,
            Self::Soft(_, manager, _) => Some(manager.locks().snapshot().by_lru_use()),
            Self::Host(_, manager, _) => Some(manager.locks().snapshot().by_lru_use()),
        }
    }

    /// What the manager has counted of the group that pays for areas so far.
    pub fn group(&self) -> Option<GroupStats> {
        match self {
            Self::Kernel(_) | Self::Apart(_) => None,
            Self::Soft(_, manager, group) => manager.groups().stats(*group).ok(),
            Self::Host(_, manager, group) => manager.groups().stats(*group).ok(),
        }
    }

    /// Maps that many bytes, whole pages.
    ///
    /// # Errors
    /// The engine's.
    #[inline]
    pub fn map(&self, len: usize) -> Result<Area<'_>> {
        let start = match self {
            Self::Soft(space, _, group) => {
                space.map(MapRequest { group: Some(*group), ..anonymous(Place::Anywhere, len) })?
            }
            Self::Host(space, _, group) => {
                space.map(MapRequest { group: Some(*group), ..anonymous(Place::Anywhere, len) })?
            }
            Self::Apart(_) => bail!("another process maps its memory itself"),
            Self::Kernel(kernel) => {
                let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
                // SAFETY: without MAP_FIXED a new mapping replaces no other.
                let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, prot, flags)? };
                let area = Area { ground: self, start: start as usize, len, open: 0..len };
                if let Some(advice) = kernel.advice {
                    // SAFETY: the range is the area's own; the advice changes no byte of it.
                    unsafe { rustix::mm::madvise(start, len, advice) }
                        .context("the kernel takes no advice about huge pages")?;
                }
                return Ok(area);
            }
        };
        Ok(Area { ground: self, start, len, open: 0..len })
    }
}

impl Area<'_> {
    /// Makes the first accessible bytes, whole pages, inaccessible: a guard.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Panics
    /// If less is accessible, or it is not whole pages.
    pub fn close_start(&mut self, len: usize) -> Result<()> {
        assert!(len <= self.open.len(), "the guard is a part of the area");
        let closed = self.open.start..self.open.start + len;
        self.open.start = closed.end;
        self.close(closed)
    }

    /// The same with the last ones.
    ///
    /// # Errors
    /// The engine's.
    ///
    /// # Panics
    /// If less is accessible, or it is not whole pages.
    pub fn close_end(&mut self, len: usize) -> Result<()> {
        assert!(len <= self.open.len(), "the guard is a part of the area");
        let closed = self.open.end - len..self.open.end;
        self.open.end = closed.start;
        self.close(closed)
    }

    fn close(&self, closed: Range<usize>) -> Result<()> {
        assert!(closed.len().is_multiple_of(PAGE_BYTES as usize), "a guard is whole pages");
        let start = self.start + closed.start;
        match self.ground {
            Ground::Soft(space, ..) => space.protect(start, closed.len(), Prot::empty())?,
            Ground::Host(space, ..) => space.protect(start, closed.len(), Prot::empty())?,
            // SAFETY: the range is the area's own, and not in `open`, so nobody reaches it any more.
            Ground::Kernel(_) | Ground::Apart(_) => unsafe {
                rustix::mm::mprotect(start as *mut _, closed.len(), MprotectFlags::empty())?;
            },
        }
        Ok(())
    }

    /// The word at an offset of the area, by pointer.
    ///
    /// # Panics
    /// If it is not aligned, or not in the accessible part.
    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset >= self.open.start && offset + 8 <= self.open.end && offset.is_multiple_of(8));
        // SAFETY: (1) in bounds and aligned by the check above; (2) readable and writable by the invariant,
        // for as long as `self` is borrowed; (3) all access to the area is by atomics.
        unsafe { AtomicU64::from_ptr((self.start + offset) as *mut u64) }
    }

    /// Stores a word.
    ///
    /// # Errors
    /// With calls, the access's.
    #[inline]
    pub fn store(&self, hand: &Hand, offset: usize, value: u64) -> Result<()> {
        match hand {
            Hand::Calls(cpu) => Ok(cpu.write_u64(self.start + offset, value)?),
            Hand::Pointers => {
                self.word(offset).store(value, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Fails unless the word is `expected`.
    ///
    /// # Errors
    /// Wrong content; with calls, the access's.
    pub fn verify(&self, hand: &Hand, offset: usize, expected: u64) -> Result<()> {
        let got = match hand {
            Hand::Calls(cpu) => cpu.read_u64(self.start + offset)?,
            Hand::Pointers => self.word(offset).load(Ordering::Relaxed),
        };
        ensure!(
            got == expected,
            "wrong content: {got:#x} at byte {offset} of an area, {expected:#x} expected"
        );
        Ok(())
    }

    /// Lets go of its accessible pages: they read as zeros again.
    ///
    /// # Errors
    /// The engine's.
    pub fn forget(&self) -> Result<()> {
        let (start, len) = (self.start + self.open.start, self.open.len());
        match self.ground {
            Ground::Soft(space, ..) => space.advise(start, len, Advice::DontNeed)?,
            Ground::Host(space, ..) => space.advise(start, len, Advice::DontNeed)?,
            // SAFETY: the range is the area's own, its words are plain numbers, and any value of them is
            // valid.
            Ground::Kernel(_) | Ground::Apart(_) => unsafe {
                rustix::mm::madvise(start as *mut _, len, rustix::mm::Advice::LinuxDontNeed)?;
            },
        }
        Ok(())
    }

    /// Has its accessible pages paged out, as far as nobody uses them.
    ///
    /// # Errors
    /// The engine's.
    pub fn page_out(&self) -> Result<()> {
        let (start, len) = (self.start + self.open.start, self.open.len());
        match self.ground {
            Ground::Soft(space, ..) => space.advise(start, len, Advice::PageOut)?,
            Ground::Host(space, ..) => space.advise(start, len, Advice::PageOut)?,
            // SAFETY: the range is the area's own; the advice changes no byte of it.
            Ground::Kernel(_) | Ground::Apart(_) => unsafe {
                rustix::mm::madvise(start as *mut _, len, rustix::mm::Advice::LinuxPageOut)?;
            },
        }
        Ok(())
    }

    /// Unmaps it.
    ///
    /// # Errors
    /// The engine's.
    #[inline]
    pub fn unmap(self) -> Result<()> {
        let area = std::mem::ManuallyDrop::new(self);
        area.release()
    }

    #[inline]
    fn release(&self) -> Result<()> {
        match self.ground {
            Ground::Soft(space, ..) => space.unmap(self.start, self.len)?,
            Ground::Host(space, ..) => space.unmap(self.start, self.len)?,
            // SAFETY: the range is the area's own, and only `unmap` and the drop call this, once.
            Ground::Kernel(_) | Ground::Apart(_) => unsafe {
                rustix::mm::munmap(self.start as *mut _, self.len)?
            },
        }
        Ok(())
    }
}

impl Drop for Area<'_> {
    fn drop(&mut self) {
        // On the way out of a failure: what failed is told already.
        let _ = self.release();
    }
}
