//! A mapping: how it is made, and how it is given up.
//!
//! A file is the manager's or the kernel's, never both, since the bytes in their two caches would differ
//! (docs/decisions/0015-one-owner.md). If the kernel must map a file that is managed, the file goes to the
//! kernel first, with all of its mappings, at the same addresses. While the kernel maps a file in this
//! process, for whatever, all further mappings of it are the kernel's, too.
//!
//! So each verb exists twice: for a mapping that the manager serves, and for one that the kernel serves. A
//! file may go to the kernel between the look at which of them serves it and the verb; then the manager says
//! that nothing is mapped there, and the kernel's verb follows.

use crate::budget::{Budget, Promise};
use crate::caller::Caller;
use crate::failure::{Failure, Kind};
use crate::files::Opened;
use crate::fork::is_child;
use crate::house::{self, House};
use crate::mapped::{Mapped, is_kernels};
use elbowroom::{Advice, Errno, FileId, MapRequest, OpenError, Place, Prot, Remap, Sharing};
use elbowroom_machine::PAGE_SIZE;
use libc::c_int;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;

/// How often a file is opened anew that was closed between opening and mapping it.
const STALE_ROUNDS: usize = 16;

/// What stores to a mapping do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// They are not permitted.
    Read,
    /// They reach the file.
    Write,
    /// They stay in the mapping.
    Copy,
}

impl Mode {
    fn sharing(self) -> Sharing {
        if self == Mode::Copy { Sharing::Private } else { Sharing::Shared }
    }
}

/// How the manager opens a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// For loads, as long as no other process uses it for stores.
    LoadsAlone,
    /// For loads, whoever uses it: what others write is seen late.
    Loads,
    /// For loads and stores, as long as no other process uses it.
    StoresAlone,
    /// For loads and stores, whoever uses it: what others write is seen late, or lost.
    Stores,
}

impl Opening {
    /// What a mapping needs. `trust`: the file is managed also if other processes may change it.
    pub fn least(mode: Mode, trust: bool) -> &'static [Self] {
        match (mode, trust) {
            (Mode::Write, true) => &[Opening::Stores],
            (Mode::Write, false) => &[Opening::StoresAlone],
            (Mode::Read | Mode::Copy, true) => &[Opening::Loads],
            (Mode::Read | Mode::Copy, false) => &[Opening::LoadsAlone],
        }
    }

    fn has_stores(self) -> bool {
        matches!(self, Opening::StoresAlone | Opening::Stores)
    }
}

/// What else is asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wishes {
    /// Bring the pages in now, as far as that can be done.
    pub populate: bool,
    /// Promise no memory and swap for it.
    pub no_reserve: bool,
}

/// What to map of an open file.
#[derive(Debug, Clone, Copy)]
pub struct FilePart {
    /// The descriptor, in the calling thread's table.
    pub fd: RawFd,
    /// Where in the file, in bytes; a multiple of the page size.
    pub offset: u64,
    /// Bytes, more than 0.
    pub len: usize,
    /// What stores do.
    pub mode: Mode,
    /// What the mapping permits in the beginning, as mmap(2) has it. The manager permits loads, and stores.
    pub prot: c_int,
    /// How the manager tries to open the file, best first.
    pub openings: &'static [Opening],
    /// If the manager cannot manage the file, the kernel maps it.
    pub or_kernel: bool,
    /// Where the mapping goes.
    pub place: Place,
    /// What else is asked for.
    pub wishes: Wishes,
}

impl FilePart {
    /// A part that permits what its mode needs, anywhere, by the manager or by the kernel. `trust`: as for
    /// [`Opening::least`].
    pub fn new(fd: RawFd, offset: u64, len: usize, mode: Mode, trust: bool) -> Self {
        let prot = if mode == Mode::Read { libc::PROT_READ } else { libc::PROT_READ | libc::PROT_WRITE };
        let (openings, place) = (Opening::least(mode, trust), Place::Anywhere);
        Self { fd, offset, len, mode, prot, openings, or_kernel: true, place, wishes: Wishes::default() }
    }
}

/// A mapping, which is unmapped when the value is dropped. No interpreter's lock is needed for that.
#[derive(Debug)]
pub struct Held {
    start: usize,
    len: usize,
    /// What the budget has promised for it.
    promise: Option<Promise>,
    budget: Option<Arc<Budget>>,
    file: Option<Mapped>,
    /// The manager has opened the file for stores.
    has_stores: bool,
}

/// What came of an attempt to have the manager map a file.
enum Attempt {
    Managed(Held),
    /// The kernel has to map it, for this reason.
    Kernels(String),
}

impl Held {
    /// Maps a part of a file. In the second place is why the manager does not manage it, if so.
    ///
    /// # Errors
    /// EACCES: the descriptor does not permit it. EOPNOTSUPP: the kernel would have to map it. What the
    /// manager and the kernel say.
    pub fn of_file<C: Caller>(
        caller: C,
        house: &'static House,
        part: FilePart,
        budget: Option<&Arc<Budget>>,
    ) -> Result<(Self, Option<String>), C::Error> {
        let failed = |error: io::Error| caller.error(Failure::of_io(&error, "cannot map the file"));
        let opened = check(&part).map_err(failed)?;
        if !opened.is_regular {
            return Err(failed(io::Error::from(Errno::NODEV)));
        }
        let id = opened.id;
        // SAFETY: a system call without arguments.
        let tid = unsafe { libc::gettid() } as u32;
        let reason = match kernels_reason(id) {
            Some(reason) => reason,
            None => {
                let budget = budget.cloned();
                let counted = Mapped::new(id, false);
                let mapped =
                    house.ask(caller, move |house| by_manager(house, tid, &part, budget, counted))?;
                match mapped.map_err(|errno| caller.error(Failure::of(errno, "cannot map the file")))? {
                    Attempt::Managed(held) => {
                        // Another thread may have had the kernel map the file meanwhile.
                        let reason = kernels_reason(id);
                        if reason.is_some() {
                            give(caller, house, id)?;
                        }
                        return Ok((held, reason));
                    }
                    Attempt::Kernels(reason) => reason,
                }
            }
        };
        if !part.or_kernel {
            let text = format!("the file cannot be managed: {reason}");
            let failure = Failure { errno: libc::EOPNOTSUPP, ..Failure::new(Kind::State, text) };
            return Err(caller.error(failure));
        }
        Ok((by_kernel(caller, house, &part, id)?, Some(reason)))
    }

    /// Has the kernel map a part of an open file, of whatever kind. If the file is managed, it goes to the
    /// kernel before.
    ///
    /// # Errors
    /// EACCES: the descriptor does not permit it. What the manager and the kernel say.
    pub fn of_kernel<C: Caller>(caller: C, house: &'static House, part: &FilePart) -> Result<Self, C::Error> {
        let opened = check(part);
        let opened = opened.map_err(|error| caller.error(Failure::of_io(&error, "cannot map the file")))?;
        by_kernel(caller, house, part, opened.id)
    }

    /// Maps anonymous memory, of zeros.
    ///
    /// # Errors
    /// ENOMEM: the budget does not have so much, or there are no addresses for it.
    pub fn of_memory<C: Caller>(
        caller: C,
        house: &'static House,
        len: usize,
        place: Place,
        wishes: Wishes,
        budget: Option<&Arc<Budget>>,
    ) -> Result<Self, C::Error> {
        let too_large = || Failure::of(Errno::NOMEM, "cannot map memory");
        let bytes = len.checked_next_multiple_of(PAGE_SIZE).ok_or_else(|| caller.error(too_large()))? as u64;
        let promise = (!wishes.no_reserve).then(|| Promise::of(bytes, budget)).transpose();
        let promise = promise.map_err(|failure| caller.error(failure))?;
        let group = budget.map(|budget| budget.id());
        let budget = budget.cloned();
        let unmapped = Self { start: 0, len: 0, promise, budget, file: None, has_stores: true };
        let mapped = house.ask(caller, move |house| {
            let request = MapRequest {
                place,
                len,
                prot: Prot::READ.union(Prot::WRITE),
                may_write: true,
                sharing: Sharing::Private,
                object: None,
                offset: 0,
                populate: wishes.populate,
                locked: false,
                no_reserve: wishes.no_reserve,
                group,
            };
            have_addresses(house, place, len)?;
            let start = house.space.map(request)?;
            let mut held = unmapped;
            (held.start, held.len) = (start, len);
            Ok(held)
        })?;
        mapped.map_err(|errno: Errno| caller.error(Failure::of(errno, "cannot map memory")))
    }

    /// Its first address.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes, which no mapping that a caller has is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives up the bytes of `gone`, a range of whole pages inside of it, without unmapping them: another
    /// mapping has replaced them. Returns what is left before and behind. For mappings of files.
    pub fn cut(mut self, gone: Range<usize>) -> Vec<Held> {
        let parts = [self.start..gone.start, gone.end..self.start + self.len];
        // So that nothing is unmapped.
        self.len = 0;
        let parts = parts.into_iter().filter(|part| part.start < part.end);
        let left = parts.map(|part| Held {
            start: part.start,
            len: part.end - part.start,
            promise: None,
            budget: self.budget.clone(),
            file: self.file.as_ref().map(Mapped::again),
            has_stores: self.has_stores,
        });
        left.collect()
    }

    /// How many bytes of the mapping can be in memory at a time. `None`: all, or the kernel has it.
    pub fn most_in_memory(&self) -> Option<u64> {
        let limit = self.budget.as_ref().map(|budget| budget.least_limit())?;
        (limit < self.len as u64 && self.is_managed()).then_some(limit)
    }

    /// Has parts of the mapping read from the disk, as far as there is room. Does not wait. `firsts`: where
    /// they begin, in bytes from the mapping's first one; each has `len` bytes. Parts that are not in the
    /// mapping are left out. `kept`: what keeps the mapping, so that no other is at these addresses
    /// meanwhile. Ends early if nothing else keeps it any more.
    pub fn will_need<K: Send + Sync + 'static>(&self, firsts: Vec<usize>, len: usize, kept: Arc<K>) {
        let Some(house) = house::started() else { return };
        let (start, all) = (self.start, self.len);
        let read = move |house: &'static House| {
            let mut end = 0;
            for first in firsts {
                if Arc::strong_count(&kept) == 1 {
                    break;
                }
                let last = first.saturating_add(len);
                if last > all {
                    continue;
                }
                // The page that a part shares with the one before is asked for once.
                let (from, to) = (first / PAGE_SIZE * PAGE_SIZE, last.next_multiple_of(PAGE_SIZE));
                let from = if from < end && end < to { end } else { from };
                end = to;
                // It is advice: a mapping that went to the kernel refuses it.
                let _ = house.space.advise(start + from, to - from, Advice::WillNeed);
            }
            drop(kept);
        };
        drop(house.post(read));
    }

    /// Acts on advice for the pages of a range. `number`: the one that madvise(2) has for it. `advice`: the
    /// manager's; `None`: it has none.
    ///
    /// # Errors
    /// EINVAL: the advice does not fit the mapping. What the manager and the kernel say.
    pub fn advise<C: Caller>(
        &self,
        caller: C,
        range: (usize, usize),
        advice: Option<Advice>,
        number: c_int,
    ) -> Result<(), C::Error> {
        self.verb(
            caller,
            range,
            move |house, at, len| house.space.advise(at, len, advice.ok_or(Errno::INVAL)?),
            // SAFETY: the range is this mapping's. No advice takes the bytes of a mapping away that has others.
            |at, len| unsafe { libc::madvise(at as *mut _, len, number) },
            "cannot advise",
        )
    }

    /// Whether it is of a file.
    pub fn is_of_file(&self) -> bool {
        self.file.is_some()
    }

    /// The file.
    pub fn file(&self) -> Option<FileId> {
        self.file.as_ref().map(Mapped::id)
    }

    /// Whether its file has other mappings.
    pub fn shares_file(&self) -> bool {
        self.file.as_ref().is_some_and(Mapped::has_others)
    }

    /// Whether the manager can let it be stored to.
    pub fn has_stores(&self) -> bool {
        self.has_stores
    }

    /// The kernel is to serve it, and so all further mappings of its file, from now on. To be said before the
    /// file is given to the kernel, so that no other thread has the manager map it afterwards.
    pub fn note_kernels(&mut self) {
        if let Some(file) = &mut self.file {
            file.note_kernels();
        }
    }

    /// Whether the manager serves it now. A mapping of a file can go to the kernel at any time.
    pub fn is_managed(&self) -> bool {
        house::started().is_some_and(|house| house.manager.windows().covers(self.start, self.len))
    }

    /// Does a verb with the pages that have one of `len` bytes from `from` on, as far as they are the
    /// mapping's: the manager, if it serves the mapping, else the kernel, whose verb is a system call that
    /// sets errno if it returns anything but 0. Both get address and length of the pages, and neither is
    /// called without a page. `what` could not be done if that fails.
    ///
    /// # Errors
    /// Those of the verb.
    pub fn verb<C: Caller>(
        &self,
        caller: C,
        (from, len): (usize, usize),
        managers: impl FnOnce(&'static House, usize, usize) -> Result<(), Errno> + Send + 'static,
        kernels: impl FnOnce(usize, usize) -> c_int + Send,
        what: &str,
    ) -> Result<(), C::Error> {
        let end = from.saturating_add(len).min(self.len);
        if from >= end {
            return Ok(());
        }
        let first = self.start + from / PAGE_SIZE * PAGE_SIZE;
        let len = self.start + end - first;
        if self.is_managed()
            && let Some(house) = house::started()
        {
            match house.ask(caller, move |house| managers(house, first, len))? {
                // The file went to the kernel meanwhile.
                Err(errno) if is_of_nothing(errno) && !self.is_managed() => {}
                done => return done.map_err(|errno| caller.error(Failure::of(errno, what))),
            }
        }
        let call = || match kernels(first, len) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        caller.run(call).map_err(|error| caller.error(Failure::of_io(&error, what)))
    }

    /// Writes what was stored to a range of it to the file, and waits until it is durable.
    ///
    /// # Errors
    /// The first error of a write-back since the last call.
    pub fn flush<C: Caller>(&self, caller: C, from: usize, len: usize) -> Result<(), C::Error> {
        self.verb(
            caller,
            (from, len),
            |house, at, len| house.space.sync(at, len, true, false),
            // SAFETY: the range is this mapping's, which is not unmapped while it is borrowed.
            |at, len| unsafe { libc::msync(at as *mut _, len, libc::MS_SYNC) },
            "cannot write the file back",
        )
    }

    /// Makes it `len` bytes long, more than 0. What was stored to bytes that are cut off may be lost: the
    /// caller writes them back before.
    ///
    /// # Errors
    /// Those of mremap(2). ENOMEM: there is no room behind it; or the budget does not have so much.
    pub fn remap<C: Caller>(&mut self, caller: C, len: usize, moving: Moving) -> Result<(), C::Error> {
        let too_large = || Failure::of(Errno::NOMEM, CANNOT_REMAP);
        let (old, at) = (self.len.next_multiple_of(PAGE_SIZE), self.start);
        let new = len.checked_next_multiple_of(PAGE_SIZE).ok_or_else(|| caller.error(too_large()))?;
        let (more, less) = (new.saturating_sub(old) as u64, old.saturating_sub(new) as u64);
        if let Some(promise) = &mut self.promise {
            promise.grow(more).map_err(|failure| caller.error(failure))?;
        }
        let moved = self.remap_pages(caller, (at, old, new), moving);
        if let Some(promise) = &mut self.promise {
            promise.shrink(if moved.is_ok() { less } else { more });
        }
        (self.start, self.len) = (moved?, len);
        Ok(())
    }

    fn remap_pages<C: Caller>(
        &self,
        caller: C,
        (at, old, new): (usize, usize, usize),
        moving: Moving,
    ) -> Result<usize, C::Error> {
        if old == new {
            return Ok(at);
        }
        let (managers, kernels) = match moving {
            Moving::May => (Remap::MayMove, libc::MREMAP_MAYMOVE),
            Moving::Not => (Remap::InPlace, 0),
        };
        if self.is_managed()
            && let Some(house) = house::started()
        {
            match house.ask(caller, move |house| house.space.remap(at, old, new, managers))? {
                // The file went to the kernel meanwhile.
                Err(errno) if is_of_nothing(errno) && !self.is_managed() => {}
                moved => return moved.map_err(|errno| caller.error(Failure::of(errno, CANNOT_REMAP))),
            }
        }
        // SAFETY: the range is this mapping's, which is borrowed alone.
        let moved = unsafe { libc::mremap(at as *mut _, old, new, kernels) };
        if moved == libc::MAP_FAILED {
            return Err(caller.error(Failure::of_io(&io::Error::last_os_error(), CANNOT_REMAP)));
        }
        Ok(moved as usize)
    }
}

const CANNOT_REMAP: &str = "cannot change the length of the mapping";

/// Whether a mapping may go to another address when its length changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moving {
    /// It may.
    May,
    /// It may not: it is an error if something is mapped behind it.
    Not,
}

/// Whether the manager says this of addresses at which it has no mapping.
fn is_of_nothing(errno: Errno) -> bool {
    matches!(errno, Errno::NOMEM | Errno::FAULT | Errno::XDEV)
}

impl Drop for Held {
    fn drop(&mut self) {
        let (start, len) = (self.start, self.len);
        match house::started() {
            _ if len == 0 => {}
            Some(house) if house::is_worker() => unmap(house, start, len),
            // A worker writes back what was stored, so that it is in the file afterwards.
            Some(house) => _ = house.post(move |house| unmap(house, start, len)).recv(),
            None => unmap_in_kernel(start, len),
        }
    }
}

fn unmap(house: &House, start: usize, len: usize) {
    // What the manager cannot unmap now (a device uses its pages) stays mapped, and is not used again.
    if house.space.unmap_ours(start, len) == Err(Errno::XDEV) {
        // A file that went to the kernel does not come back: all of it is the kernel's.
        unmap_in_kernel(start, len);
    }
}

fn unmap_in_kernel(start: usize, len: usize) {
    // SAFETY: the range is that of a mapping whose last user is gone, and is the kernel's.
    unsafe { libc::munmap(start as *mut _, len) };
}

/// Makes a fixed place a place of the manager's.
fn have_addresses(house: &House, place: Place, len: usize) -> Result<(), Errno> {
    match place {
        Place::Anywhere | Place::Hint(_) => Ok(()),
        Place::Fixed(at) | Place::FixedNoReplace(at) if house.manager.windows().covers(at, len.max(1)) => {
            Ok(())
        }
        Place::Fixed(at) | Place::FixedNoReplace(at) => house.space.add_addresses(at, len),
    }
}

/// Checks what mmap(2) would check of rights.
fn check(part: &FilePart) -> io::Result<Opened> {
    let opened = Opened::look(part.fd)?;
    let permitted = match part.mode {
        Mode::Write => opened.is_for_both(),
        Mode::Read | Mode::Copy => opened.is_for_loads(),
    };
    if permitted { Ok(opened) } else { Err(io::Error::from(Errno::ACCESS)) }
}

/// Why the kernel maps all further parts of a file, if so.
fn kernels_reason(id: FileId) -> Option<String> {
    if is_child() {
        let fork = house::words().fork;
        Some(format!("this process was forked from one that has managed memory: {fork}"))
    } else if is_kernels(id) {
        let text = "the kernel maps the file in this process already, as long as other mappings of it exist";
        Some(text.to_owned())
    } else {
        None
    }
}

/// Gives a file to the kernel, with all of its mappings.
fn give<C: Caller>(caller: C, house: &'static House, id: FileId) -> Result<(), C::Error> {
    let given = house.ask(caller, move |house| house.space.give_file(id))?;
    given.map(drop).map_err(|errno| caller.error(Failure::of(errno, "cannot give the file to the kernel")))
}

fn by_manager(
    house: &House,
    tid: u32,
    part: &FilePart,
    budget: Option<Arc<Budget>>,
    counted: Mapped,
) -> Result<Attempt, Errno> {
    let mut counted = Some(counted);
    let mut attempt = Attempt::Kernels("no way to open the file is asked for".to_owned());
    for opening in part.openings {
        attempt = by_opening(house, tid, part, *opening, budget.as_ref(), &mut counted)?;
        if let Attempt::Managed(_) = attempt {
            break;
        }
    }
    Ok(attempt)
}

fn by_opening(
    house: &House,
    tid: u32,
    part: &FilePart,
    opening: Opening,
    budget: Option<&Arc<Budget>>,
    counted: &mut Option<Mapped>,
) -> Result<Attempt, Errno> {
    let has_stores = opening.has_stores();
    let path = format!("/proc/self/task/{tid}/fd/{}", part.fd);
    for _ in 0..STALE_ROUNDS {
        let opened = match opening {
            Opening::Loads | Opening::Stores => {
                let opened = house.manager.open(Path::new(&path), has_stores);
                opened.map(|object| (object, None)).map_err(OpenError::from)
            }
            Opening::LoadsAlone | Opening::StoresAlone => {
                let opened = house.manager.open_through(tid, part.fd, has_stores);
                opened.map(|(object, origin)| (object, Some(origin)))
            }
        };
        let kernels = |reason: &str| Ok(Attempt::Kernels(reason.to_owned()));
        let (object, origin) = match opened {
            Ok(opened) => opened,
            Err(OpenError::NotAlone) => {
                let trust = house::words().trust;
                return Ok(Attempt::Kernels(format!(
                    "another process uses the file, or it cannot be known whether one does (that takes \
                     CAP_SYS_ADMIN): {trust}"
                )));
            }
            // The descriptor permits what opening the file anew does not.
            Err(OpenError::Failed(Errno::ACCESS | Errno::PERM)) => {
                return kernels("the file may not be opened again by this process");
            }
            Err(OpenError::Failed(errno)) => return Err(errno),
        };
        // Another thread may have closed the descriptor, and opened another file under its number.
        if counted.as_ref().is_none_or(|counted| counted.id() != object.id()) {
            house.manager.close_unused(&object);
            return Err(Errno::BADF);
        }
        let writes = part.prot & libc::PROT_WRITE != 0;
        let request = MapRequest {
            place: part.place,
            len: part.len,
            prot: if writes { Prot::READ.union(Prot::WRITE) } else { Prot::READ },
            may_write: part.mode != Mode::Read || has_stores,
            sharing: part.mode.sharing(),
            object: Some(object.clone()),
            offset: part.offset,
            populate: part.wishes.populate,
            locked: false,
            no_reserve: part.wishes.no_reserve,
            group: budget.map(|budget| budget.id()),
        };
        let mapped = have_addresses(house, part.place, part.len);
        match mapped.and_then(|()| house.space.map_through(request, origin)) {
            Ok(start) => {
                let (len, budget, file) = (part.len, budget.cloned(), counted.take());
                return Ok(Attempt::Managed(Held { start, len, promise: None, budget, file, has_stores }));
            }
            Err(Errno::STALE) => {}
            Err(errno) => {
                house.manager.close_unused(&object);
                return match errno {
                    Errno::OPNOTSUPP => kernels("the file was given to the kernel before"),
                    errno => Err(errno),
                };
            }
        }
    }
    Err(Errno::STALE)
}

fn by_kernel<C: Caller>(
    caller: C,
    house: &'static House,
    part: &FilePart,
    id: FileId,
) -> Result<Held, C::Error> {
    // Entered before the file is given up, so that no other thread has the manager map it meanwhile.
    let counted = Mapped::new(id, true);
    give(caller, house, id)?;
    let mapped = map_in_kernel(part);
    let start = mapped.map_err(|error| caller.error(Failure::of_io(&error, "cannot map the file")))?;
    let has_stores = part.mode != Mode::Read;
    Ok(Held { start, len: part.len, promise: None, budget: None, file: Some(counted), has_stores })
}

fn map_in_kernel(part: &FilePart) -> io::Result<usize> {
    let (at, mut flags) = match part.place {
        Place::Anywhere => (0, 0),
        Place::Hint(at) => (at, 0),
        // The manager's own addresses are not the kernel's to map.
        Place::Fixed(at) | Place::FixedNoReplace(at) => (at, libc::MAP_FIXED_NOREPLACE),
    };
    flags |= if part.mode == Mode::Copy { libc::MAP_PRIVATE } else { libc::MAP_SHARED };
    if part.wishes.populate {
        flags |= libc::MAP_POPULATE;
    }
    if part.wishes.no_reserve {
        flags |= libc::MAP_NORESERVE;
    }
    let (len, prot, offset) = (part.len, part.prot, part.offset as libc::off_t);
    // SAFETY: a new mapping, which replaces none.
    let at = unsafe { libc::mmap(at as *mut _, len, prot, flags, part.fd, offset) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at as usize) }
}
