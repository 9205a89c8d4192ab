//! A space of Elbowroom's as an engine: raw arguments become the library's types, in the order in which Linux
//! checks them.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use elbowroom::{
    AccessError, Advice, Cpu, FileId, FileObject, Host, Manager, MapRequest, Place, Platform, Prot, Remap,
    Sharing, Soft, Space,
};

use crate::differential::engine::{Area, Backing, Descriptor, Engine, Errno, Fault, PAGE, initial_file};
use crate::differential::raw::{BEYOND, Ground};
use crate::place::Scratch;

/// How the memory of a space is reached.
pub trait Reach {
    /// Loads bytes that lie in one page.
    fn load(&mut self, addr: usize, bytes: &mut [u8]) -> Result<(), Fault>;
    /// Stores bytes that lie in one page.
    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), Fault>;
}

/// An engine over a space.
pub struct Ours<P: Platform, R: Reach> {
    name: &'static str,
    manager: Arc<Manager<P>>,
    space: Arc<Space<P>>,
    reach: R,
    base: u64,
    pages: u64,
    beyond: u64,
    object: Arc<FileObject>,
    file: File,
    path: PathBuf,
    /// Shared anonymous objects, in the order in which they were made.
    objects: HashMap<FileId, u64>,
    _scratch: Arc<Scratch>,
}

impl Reach for Cpu {
    fn load(&mut self, addr: usize, bytes: &mut [u8]) -> Result<(), Fault> {
        self.read(addr, bytes).map_err(fault)
    }

    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), Fault> {
        self.write(addr, bytes).map_err(fault)
    }
}

fn fault(error: AccessError) -> Fault {
    match error {
        AccessError::NotMapped(_) => Fault::Unmapped,
        AccessError::Denied(_) => Fault::Denied,
        AccessError::Bus(_) => Fault::Bus,
        // Invalid, or that of a pin, or of a manager that was dropped: nothing here does that.
        _ => panic!("{error}"),
    }
}

impl Ours<Soft, Cpu> {
    /// A range of a soft space of its own manager's.
    ///
    /// # Panics
    /// If the manager does not start, or the file cannot be made.
    pub fn soft(manager: &Arc<Manager<Soft>>, pages: u64) -> Self {
        let space = Arc::new(manager.create_space().expect("there is room for a space"));
        Self::soft_at(manager, &space, pages, 1 << 40)
    }

    /// A range of a space that others use too, `offset` bytes from its start.
    ///
    /// # Panics
    /// As [`Ours::soft`].
    pub fn soft_at(manager: &Arc<Manager<Soft>>, space: &Arc<Space<Soft>>, pages: u64, offset: u64) -> Self {
        let start = space.base() as u64;
        Self::new("soft", manager, space, space.cpu(), start + offset, pages, start + (3 << 46))
    }
}

/// The memory of a space of real pointers.
///
/// An access to a page that nothing maps would give that page to the kernel for good, so that the kernel can
/// say what is wrong (tests/programs/segv.c has that); here the space is asked first.
pub struct Pointers {
    ground: Ground,
    space: Arc<Space<Host>>,
}

impl Pointers {
    fn is_mapped(&self, addr: usize) -> Result<(), Fault> {
        if self.space.areas(addr..addr + 1).is_empty() { Err(Fault::Unmapped) } else { Ok(()) }
    }
}

impl Reach for Pointers {
    fn load(&mut self, addr: usize, bytes: &mut [u8]) -> Result<(), Fault> {
        self.is_mapped(addr)?;
        self.ground.load(addr as u64, bytes)
    }

    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), Fault> {
        self.is_mapped(addr)?;
        self.ground.store(addr as u64, bytes)
    }
}

impl Ours<Host, Pointers> {
    /// A range of the process's own space, `offset` bytes from the start of its window: far below where
    /// mappings are placed.
    ///
    /// # Panics
    /// If the window is not as large as that, or the file cannot be made.
    pub fn host_at(manager: &Arc<Manager<Host>>, space: &Arc<Space<Host>>, pages: u64, offset: u64) -> Self {
        let probe = MapRequest {
            place: Place::Anywhere,
            len: 1,
            prot: Prot::empty(),
            may_write: true,
            sharing: Sharing::Private,
            object: None,
            offset: 0,
            populate: false,
            locked: false,
            no_reserve: false,
            group: None,
        };
        let top = space.map(probe).expect("there is room");
        space.unmap(top, 1).expect("it was just mapped");
        let window = manager.windows().windows().next().expect("a window was made for it");
        let base = window.start as u64 + (1 << 30) + offset;
        let ground = Ground::in_window(manager.windows(), base, pages);
        let reach = Pointers { ground, space: space.clone() };
        Self::new("host", manager, space, reach, base, pages, BEYOND)
    }
}

impl<P: Platform, R: Reach> Ours<P, R> {
    fn new(
        name: &'static str,
        manager: &Arc<Manager<P>>,
        space: &Arc<Space<P>>,
        reach: R,
        base: u64,
        pages: u64,
        beyond: u64,
    ) -> Self {
        let scratch = Arc::new(Scratch::new());
        let path = scratch.path().join("mapped");
        std::fs::write(&path, initial_file()).expect("a scratch file can be written");
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("it can be opened");
        let object = manager.open(&path, true).expect("it can be managed");
        Self {
            name,
            manager: manager.clone(),
            space: space.clone(),
            reach,
            base,
            pages,
            beyond,
            object,
            file,
            path,
            objects: HashMap::new(),
            _scratch: scratch,
        }
    }

    fn area(&self, area: elbowroom::Area) -> Area {
        let page = |addr: usize| (addr as u64 - self.base) / PAGE;
        let offset = area.offset / PAGE;
        let backing = match area.file {
            None => Backing::Anonymous,
            Some(id) if id == self.object.id() => Backing::File { offset },
            Some(id) => Backing::SharedAnonymous { object: self.objects[&id], offset },
        };
        let (read, write) = (area.prot.contains(Prot::READ), area.prot.contains(Prot::WRITE));
        Area {
            pages: page(area.range.start)..page(area.range.end),
            prot: if read { libc::PROT_READ } else { 0 } | if write { libc::PROT_WRITE } else { 0 },
            shared: area.sharing == Sharing::Shared,
            backing,
        }
    }

    fn note_object(&mut self, addr: usize) {
        let areas = self.space.areas(addr..addr + 1);
        let next = self.objects.len() as u64;
        let id = areas[0].file.expect("shared memory has an object");
        self.objects.entry(id).or_insert(next);
    }
}

/// The rights of PROT_* bits; unknown ones are ignored.
fn rights(prot: i32) -> Prot {
    let mut rights = Prot::empty();
    rights.set(Prot::READ, prot & libc::PROT_READ != 0);
    rights.set(Prot::WRITE, prot & libc::PROT_WRITE != 0);
    rights
}

/// The flags that `MAP_SHARED_VALIDATE` accepts.
const VALIDATED: i32 = libc::MAP_TYPE
    | libc::MAP_FIXED
    | libc::MAP_ANONYMOUS
    | libc::MAP_LOCKED
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_STACK;

impl<P: Platform, R: Reach> Engine for Ours<P, R> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn base(&self) -> u64 {
        self.base
    }

    fn pages(&self) -> u64 {
        self.pages
    }

    fn beyond(&self) -> u64 {
        self.beyond
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
        if !offset.is_multiple_of(PAGE) {
            return Err(Errno::INVAL);
        }
        let anonymous = flags & libc::MAP_ANONYMOUS != 0;
        if !anonymous && file == Descriptor::None {
            return Err(Errno::BADF);
        }
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let (addr, len) = (addr as usize, len as usize);
        let place = if flags & libc::MAP_FIXED_NOREPLACE != 0 {
            Place::FixedNoReplace(addr)
        } else if flags & libc::MAP_FIXED != 0 {
            Place::Fixed(addr)
        } else if addr != 0 {
            Place::Hint(addr)
        } else {
            Place::Anywhere
        };
        self.space.check(place, len)?;
        let kind = flags & libc::MAP_TYPE;
        if !anonymous {
            let rounded = (len as u64).next_multiple_of(PAGE);
            if offset.checked_add(rounded).is_none_or(|end| end > i64::MAX as u64) {
                return Err(Errno::OVERFLOW);
            }
            if kind == libc::MAP_SHARED_VALIDATE && flags & !VALIDATED != 0 {
                return Err(Errno::OPNOTSUPP);
            }
            if ![libc::MAP_SHARED, libc::MAP_SHARED_VALIDATE, libc::MAP_PRIVATE].contains(&kind) {
                return Err(Errno::INVAL);
            }
            let shared = kind != libc::MAP_PRIVATE;
            if shared && prot & libc::PROT_WRITE != 0 && file == Descriptor::ReadOnly {
                return Err(Errno::ACCESS);
            }
            if file == Descriptor::WriteOnly {
                return Err(Errno::ACCESS);
            }
        } else if ![libc::MAP_SHARED, libc::MAP_PRIVATE].contains(&kind) {
            return Err(Errno::INVAL);
        }
        let private = kind == libc::MAP_PRIVATE;
        let request = MapRequest {
            place,
            len,
            prot: rights(prot),
            may_write: private || anonymous || file == Descriptor::ReadWrite,
            sharing: if private { Sharing::Private } else { Sharing::Shared },
            object: (!anonymous).then(|| self.object.clone()),
            offset,
            populate: flags & libc::MAP_POPULATE != 0,
            locked: flags & libc::MAP_LOCKED != 0,
            no_reserve: flags & libc::MAP_NORESERVE != 0,
            group: None,
        };
        let mapped = self.space.map(request)?;
        if anonymous && !private {
            self.note_object(mapped);
        }
        Ok(mapped as u64)
    }

    fn unmap(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        self.space.unmap(addr as usize, len as usize)
    }

    fn protect(&mut self, addr: u64, len: u64, prot: i32) -> Result<(), Errno> {
        let unknown = !(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC | 8);
        let wraps = addr.checked_add(len).and_then(|end| end.checked_add(PAGE - 1)).is_none();
        if prot & unknown != 0 && addr.is_multiple_of(PAGE) && len != 0 && !wraps {
            return Err(Errno::INVAL);
        }
        self.space.protect(addr as usize, len as usize, rights(prot))
    }

    fn remap(&mut self, addr: u64, old: u64, new: u64, flags: i32, to: u64) -> Result<u64, Errno> {
        let to = to as usize;
        let how = match flags {
            0 => Remap::InPlace,
            libc::MREMAP_MAYMOVE => Remap::MayMove,
            f if f == libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED => Remap::Fixed(to),
            f if f == libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP => Remap::DontUnmap(to),
            f if f == libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP => {
                Remap::FixedDontUnmap(to)
            }
            _ => return Err(Errno::INVAL),
        };
        self.space.remap(addr as usize, old as usize, new as usize, how).map(|at| at as u64)
    }

    fn advise(&mut self, addr: u64, len: u64, advice: i32) -> Result<(), Errno> {
        let advice = match advice {
            libc::MADV_NORMAL => Advice::Normal,
            libc::MADV_RANDOM => Advice::Random,
            libc::MADV_SEQUENTIAL => Advice::Sequential,
            libc::MADV_WILLNEED => Advice::WillNeed,
            libc::MADV_DONTNEED => Advice::DontNeed,
            libc::MADV_DONTNEED_LOCKED => Advice::DontNeedLocked,
            libc::MADV_FREE => Advice::Free,
            libc::MADV_COLD => Advice::Cold,
            libc::MADV_PAGEOUT => Advice::PageOut,
            libc::MADV_REMOVE => Advice::Remove,
            libc::MADV_POPULATE_READ => Advice::PopulateRead,
            libc::MADV_POPULATE_WRITE => Advice::PopulateWrite,
            libc::MADV_DONTFORK => Advice::DontFork,
            libc::MADV_DOFORK => Advice::DoFork,
            libc::MADV_WIPEONFORK => Advice::WipeOnFork,
            libc::MADV_KEEPONFORK => Advice::KeepOnFork,
            _ => return Err(Errno::INVAL),
        };
        self.space.advise(addr as usize, len as usize, advice)
    }

    fn sync(&mut self, addr: u64, len: u64, flags: i32) -> Result<(), Errno> {
        let both = libc::MS_ASYNC | libc::MS_SYNC;
        if flags & !(both | libc::MS_INVALIDATE) != 0 || flags & both == both {
            return Err(Errno::INVAL);
        }
        let invalidate = flags & libc::MS_INVALIDATE != 0;
        if flags & libc::MS_SYNC == 0 {
            return self.space.sync_later(addr as usize, len as usize, invalidate);
        }
        self.space.sync(addr as usize, len as usize, true, invalidate)
    }

    fn resident(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        let pages = len.div_ceil(PAGE);
        if pages > 1 << 20 {
            // What is longer than a space is beyond its end, if the address is aligned.
            return Err(if addr.is_multiple_of(PAGE) { Errno::NOMEM } else { Errno::INVAL });
        }
        let mut bytes = vec![0; pages as usize];
        self.space.resident(addr as usize, &mut bytes)
    }

    fn lock(&mut self, addr: u64, len: u64, flags: i32) -> Result<(), Errno> {
        if flags & !1 != 0 {
            return Err(Errno::INVAL);
        }
        self.space.lock(addr as usize, len as usize, flags == 1)
    }

    fn unlock(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        self.space.unlock(addr as usize, len as usize)
    }

    fn truncate(&mut self, pages: u64) -> Result<(), Errno> {
        let old = self.file.metadata().expect("an open file has facts").len();
        let new = pages * PAGE;
        let changed = old.min(new)..old.max(new);
        let ticket = self.manager.write_begin(&self.object, changed.clone());
        let truncated = rustix::fs::ftruncate(&self.file, new);
        self.manager.resized(&self.object, changed.clone());
        self.manager.write_end(ticket, changed.start..changed.start);
        truncated
    }

    fn load(&mut self, addr: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.reach.load(addr as usize, bytes)
    }

    fn store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.reach.store(addr as usize, bytes)
    }

    fn layout(&mut self, range: Range<u64>) -> Vec<Area> {
        let addr = |page: u64| (self.base + page * PAGE) as usize;
        let areas = self.space.areas(addr(range.start)..addr(range.end));
        areas.into_iter().map(|area| self.area(area)).collect()
    }

    fn file(&mut self) -> Vec<u8> {
        self.manager.write_back(&self.object, 0..u64::MAX).expect("nothing is wrong with the disk");
        std::fs::read(&self.path).expect("a scratch file can be read")
    }
}

impl<P: Platform, R: Reach> Drop for Ours<P, R> {
    fn drop(&mut self) {
        // A failure would be noticed by the engine that gets this range next.
        let _ = self.space.unmap(self.base as usize, (self.pages * PAGE) as usize);
    }
}
