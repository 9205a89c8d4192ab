//! An engine that breaks one rule, for the tests of the tests.

use std::ops::Range;

use crate::differential::engine::{Area, Descriptor, Engine, Errno, Fault, PAGE};

/// The rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bend {
    /// mprotect over a hole changes nothing.
    ProtectAllOrNothing,
    /// mprotect lets a shared mapping of a file that is open for reading only be written.
    ProtectAnything,
    /// madvise over a hole does nothing.
    AdviseAllOrNothing,
    /// `MADV_DONTNEED` keeps private copies.
    KeepCopies,
    /// `MADV_DONTNEED` of locked pages is done.
    DropLocked,
    /// `MAP_FIXED_NOREPLACE` replaces.
    Replace,
    /// A hint that is not aligned is an error.
    StrictHint,
    /// munmap of more than eight pages forgets the last one.
    ForgetLastPage,
    /// mremap to another place loses the bytes.
    LoseBytes,
    /// mremap grows only by moving.
    NeverGrow,
    /// `MS_INVALIDATE` of locked pages is done.
    InvalidateLocked,
    /// mlock takes no copies of a private mapping's pages.
    LockLazily,
    /// What is beyond the end of the file is not mapped.
    SegvForBus,
    /// The last byte of a page is never stored.
    LoseLastByte,
}

impl Bend {
    /// All of them.
    pub const ALL: [Bend; 14] = [
        Bend::ProtectAllOrNothing,
        Bend::ProtectAnything,
        Bend::AdviseAllOrNothing,
        Bend::KeepCopies,
        Bend::DropLocked,
        Bend::Replace,
        Bend::StrictHint,
        Bend::ForgetLastPage,
        Bend::LoseBytes,
        Bend::NeverGrow,
        Bend::InvalidateLocked,
        Bend::LockLazily,
        Bend::SegvForBus,
        Bend::LoseLastByte,
    ];
}

/// An engine with a bug.
pub struct Bent<E> {
    engine: E,
    bend: Bend,
}

impl<E: Engine> Bent<E> {
    /// The engine with this bug.
    pub fn new(engine: E, bend: Bend) -> Self {
        Self { engine, bend }
    }

    fn has_hole(&mut self, addr: u64, len: u64) -> bool {
        let page = |addr: u64| (addr.saturating_sub(self.engine.base()) / PAGE).min(self.engine.pages());
        let range = page(addr)..page(addr.saturating_add(len));
        let mapped: u64 = self
            .engine
            .layout(range.clone())
            .iter()
            .map(|area| area.pages.end.min(range.end) - area.pages.start.max(range.start))
            .sum();
        mapped < range.end - range.start
    }
}

impl<E: Engine> Engine for Bent<E> {
    fn name(&self) -> &'static str {
        "bent"
    }

    fn base(&self) -> u64 {
        self.engine.base()
    }

    fn pages(&self) -> u64 {
        self.engine.pages()
    }

    fn beyond(&self) -> u64 {
        self.engine.beyond()
    }

    fn map(
        &mut self,
        addr: u64,
        len: u64,
        prot: i32,
        mut flags: i32,
        file: Descriptor,
        offset: u64,
    ) -> Result<u64, Errno> {
        if self.bend == Bend::Replace && flags & libc::MAP_FIXED_NOREPLACE != 0 {
            flags = flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
        }
        if self.bend == Bend::StrictHint && !addr.is_multiple_of(PAGE) {
            return Err(Errno::INVAL);
        }
        self.engine.map(addr, len, prot, flags, file, offset)
    }

    fn unmap(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        let forgets = self.bend == Bend::ForgetLastPage && (8 * PAGE + 1..=256 * PAGE).contains(&len);
        self.engine.unmap(addr, if forgets { len - PAGE } else { len })
    }

    fn protect(&mut self, addr: u64, len: u64, prot: i32) -> Result<(), Errno> {
        if self.bend == Bend::ProtectAllOrNothing && self.has_hole(addr, len) {
            // No change, but the right error: of a length that changes nothing.
            return self.engine.protect(addr, 0, prot).and(Err(Errno::NOMEM));
        }
        match self.engine.protect(addr, len, prot) {
            Err(Errno::ACCESS) if self.bend == Bend::ProtectAnything => Ok(()),
            result => result,
        }
    }

    fn remap(&mut self, addr: u64, old: u64, new: u64, flags: i32, to: u64) -> Result<u64, Errno> {
        if self.bend == Bend::NeverGrow && flags == 0 && new > old {
            return self.engine.remap(addr, old, old, flags, to).and(Err(Errno::NOMEM));
        }
        let result = self.engine.remap(addr, old, new, flags, to);
        if let (Bend::LoseBytes, Ok(new_addr)) = (self.bend, result)
            && new_addr != addr
        {
            let _ = self.engine.advise(new_addr, new, libc::MADV_DONTNEED_LOCKED);
        }
        result
    }

    fn advise(&mut self, addr: u64, len: u64, mut advice: i32) -> Result<(), Errno> {
        if self.bend == Bend::AdviseAllOrNothing && self.has_hole(addr, len) {
            return self.engine.advise(addr, 0, advice).and(Err(Errno::NOMEM));
        }
        if advice == libc::MADV_DONTNEED {
            match self.bend {
                Bend::KeepCopies => advice = libc::MADV_COLD,
                Bend::DropLocked => advice = libc::MADV_DONTNEED_LOCKED,
                _ => {}
            }
        }
        self.engine.advise(addr, len, advice)
    }

    fn sync(&mut self, addr: u64, len: u64, flags: i32) -> Result<(), Errno> {
        match self.engine.sync(addr, len, flags) {
            Err(Errno::BUSY) if self.bend == Bend::InvalidateLocked => Ok(()),
            result => result,
        }
    }

    fn resident(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        self.engine.resident(addr, len)
    }

    fn lock(&mut self, addr: u64, len: u64, flags: i32) -> Result<(), Errno> {
        let lazily = self.bend == Bend::LockLazily && flags == 0;
        self.engine.lock(addr, len, if lazily { libc::MLOCK_ONFAULT as i32 } else { flags })
    }

    fn unlock(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        self.engine.unlock(addr, len)
    }

    fn truncate(&mut self, pages: u64) -> Result<(), Errno> {
        self.engine.truncate(pages)
    }

    fn load(&mut self, addr: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        match self.engine.load(addr, bytes) {
            Err(Fault::Bus) if self.bend == Bend::SegvForBus => Err(Fault::Unmapped),
            result => result,
        }
    }

    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        let last = (addr + bytes.len() as u64).is_multiple_of(PAGE);
        let lost = usize::from(last && self.bend == Bend::LoseLastByte && bytes.len() > 1);
        self.engine.store(addr, &bytes[..bytes.len() - lost])
    }

    fn layout(&mut self, range: Range<u64>) -> Vec<Area> {
        self.engine.layout(range)
    }

    fn file(&mut self) -> Vec<u8> {
        self.engine.file()
    }
}
