//! The kernel itself: the calls of this process, in a part of its address space that nobody else uses.
//!
//! The range is really unmapped, not reserved: a reservation would answer differently (EEXIST, ACCERR,
//! hints). The pages around it stay unmapped.
//!
//! Synchronization: an engine is used by one thread. Engines of other threads have other ranges and files.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use crate::differential::engine::{Area, Backing, Descriptor, Engine, Fault, PAGE, initial_file};
use crate::differential::maps::{Maps, Vma};
use crate::differential::raw::{BEYOND, Call, Ground};
use crate::differential::site::{Claim, Site};
use crate::place::Scratch;

/// The kernel as an engine.
pub struct Kernel {
    ground: Ground,
    read_write: File,
    read_only: File,
    write_only: File,
    inode: u64,
    maps: Maps,
    /// Shared anonymous objects by device and inode number, in the order in which they were made.
    objects: HashMap<(u64, u64), u64>,
    _scratch: Scratch,
}

impl Kernel {
    /// A range of its own.
    ///
    /// # Panics
    /// As [`Kernel::on`].
    pub fn new(pages: u64) -> Self {
        Self::on(Site::new(pages))
    }

    /// Whether mremap moves several VMAs at once, and checks its arguments before it unmaps anything (Linux
    /// 6.17).
    ///
    /// # Panics
    /// If not even mmap works.
    pub fn moves_ranges() -> bool {
        let mut kernel = Self::new(16);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let base = kernel.base();
        for (page, prot) in [(0, libc::PROT_READ), (1, libc::PROT_NONE)] {
            let mapped = kernel.map(base + page * PAGE, PAGE, prot, flags, Descriptor::None, 0);
            mapped.expect("memory can be mapped");
        }
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        kernel.remap(base, 2 * PAGE, 2 * PAGE, flags, base + 4 * PAGE).is_ok()
    }

    /// Whether so many engines with ranges of so many pages may lock all of them: `RLIMIT_MEMLOCK` allows it.
    /// (A larger privilege may too, but is not needed.)
    pub fn may_lock(engines: u64, pages: u64) -> bool {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
        limit.is_none_or(|limit| limit >= engines * pages * PAGE)
    }

    /// A new engine with a new file on a range that no other engine uses.
    ///
    /// # Panics
    /// If the file cannot be made, another engine uses the range, or something is mapped in it.
    pub fn on(site: Site) -> Self {
        let scratch = Scratch::new();
        let path = scratch.path().join("mapped");
        std::fs::write(&path, initial_file()).expect("a scratch file can be written");
        let open = |options: &OpenOptions| options.open(&path).expect("a scratch file can be opened");
        let read_write = open(OpenOptions::new().read(true).write(true));
        let inode = rustix::fs::fstat(&read_write).expect("an open file has facts").st_ino;
        let kernel = Self {
            ground: Ground::of(Claim::new(site)),
            read_only: open(OpenOptions::new().read(true)),
            write_only: open(OpenOptions::new().write(true)),
            read_write,
            inode,
            maps: Maps::open(),
            objects: HashMap::new(),
            _scratch: scratch,
        };
        let found = kernel.maps.at_or_after(site.base() - PAGE);
        let end = site.base() + (site.pages() + 1) * PAGE;
        assert!(found.is_none_or(|vma| vma.start >= end), "{site:x?} is not free: {found:x?}");
        kernel
    }

    fn unit(&mut self, call: Call, addr: u64, len: u64, argument: i32) -> Result<(), Errno> {
        self.ground.call(call, [addr, len, argument as i64 as u64, 0, 0, 0]).map(|_| ())
    }

    /// Numbers the object of a shared anonymous mapping that was just made.
    fn note_object(&mut self, addr: u64) {
        let vma = self.maps.at_or_after(addr).expect("it was just mapped");
        let next = self.objects.len() as u64;
        self.objects.entry((vma.device, vma.inode)).or_insert(next);
    }

    fn area(&self, vma: &Vma) -> Area {
        let base = self.ground.base();
        let page = |addr: u64| addr.checked_sub(base).expect("nothing is mapped around the range") / PAGE;
        let offset = vma.offset / PAGE;
        let backing = match self.objects.get(&(vma.device, vma.inode)) {
            Some(&object) => Backing::SharedAnonymous { object, offset },
            None if vma.inode == 0 => Backing::Anonymous,
            None => {
                assert_eq!(vma.inode, self.inode, "somebody else has mapped {vma:x?}");
                Backing::File { offset }
            }
        };
        Area {
            pages: page(vma.start)..page(vma.end),
            prot: (vma.flags & 7) as i32,
            shared: vma.flags & 8 != 0,
            backing,
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let (base, len) = (self.base(), self.pages() * PAGE);
        // A failure would be noticed by the engine that gets this range next.
        let _ = self.unmap(base, len);
    }
}

impl Engine for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn base(&self) -> u64 {
        self.ground.base()
    }

    fn pages(&self) -> u64 {
        self.ground.pages()
    }

    fn beyond(&self) -> u64 {
        BEYOND
    }

    fn map(
        &mut self,
        addr: u64,
        len: u64,
        prot: i32,
        flags: i32,
        file: Descriptor,
        offset: u64,
    ) -> Result<u64, Errno> {
        let fd = match file {
            Descriptor::None => -1,
            Descriptor::ReadWrite => self.read_write.as_raw_fd(),
            Descriptor::ReadOnly => self.read_only.as_raw_fd(),
            Descriptor::WriteOnly => self.write_only.as_raw_fd(),
        };
        let arguments = [addr, len, prot as u64, flags as u64, fd as i64 as u64, offset];
        let addr = self.ground.call(Call::Map, arguments)?;
        if flags & libc::MAP_ANONYMOUS != 0 && flags & libc::MAP_TYPE == libc::MAP_SHARED {
            self.note_object(addr);
        }
        Ok(addr)
    }

    fn unmap(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        self.unit(Call::Unmap, addr, len, 0)
    }

    fn protect(&mut self, addr: u64, len: u64, prot: i32) -> Result<(), Errno> {
        self.unit(Call::Protect, addr, len, prot)
    }

    fn remap(&mut self, addr: u64, old: u64, new: u64, flags: i32, to: u64) -> Result<u64, Errno> {
        self.ground.call(Call::Remap, [addr, old, new, flags as u64, to, 0])
    }

    fn advise(&mut self, addr: u64, len: u64, advice: i32) -> Result<(), Errno> {
        self.unit(Call::Advise, addr, len, advice)
    }

    fn sync(&mut self, addr: u64, len: u64, flags: i32) -> Result<(), Errno> {
        self.unit(Call::Sync, addr, len, flags)
    }

    fn resident(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        self.ground.resident(addr, len)
    }

    fn lock(&mut self, addr: u64, len: u64, flags: i32) -> Result<(), Errno> {
        self.unit(Call::Lock, addr, len, flags)
    }

    fn unlock(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        self.unit(Call::Unlock, addr, len, 0)
    }

    fn truncate(&mut self, pages: u64) -> Result<(), Errno> {
        rustix::fs::ftruncate(&self.read_write, pages * PAGE)
    }

    fn load(&mut self, addr: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.ground.load(addr, bytes)
    }

    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.ground.store(addr, bytes)
    }

    fn layout(&mut self, range: Range<u64>) -> Vec<Area> {
        let (mut at, end) = (self.base() + range.start * PAGE, self.base() + range.end * PAGE);
        let mut areas = Vec::new();
        while at < end {
            match self.maps.at_or_after(at) {
                Some(vma) if vma.start < end => {
                    areas.push(self.area(&vma));
                    at = vma.end;
                }
                _ => break,
            }
        }
        areas
    }

    fn file(&mut self) -> Vec<u8> {
        let len = self.read_write.metadata().expect("an open file has facts").len();
        let mut bytes = vec![0; len as usize];
        self.read_only.read_exact_at(&mut bytes, 0).expect("an open file can be read");
        bytes
    }
}
