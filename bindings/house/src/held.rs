//! A mapping: how it is made, and how it is given up.
//!
//! A file is the manager's or the kernel's, never both, since the bytes in their two caches would differ
//! (docs/decisions/0015-one-owner.md). If the kernel must map a file that is managed, the file goes to the
//! kernel first, with all of its mappings, at the same addresses. While the kernel maps a file that can be
//! stored to through that mapping, all further mappings of it are the kernel's, too.

use crate::budget::{Budget, Promise};
use crate::caller::Caller;
use crate::failure::{Failure, Kind};
use crate::files::{id_of, stat};
use crate::fork::is_child;
use crate::house::{self, House};
use crate::mapped::{Mapped, is_kernels};
use elbowroom::{Advice, Errno, FileId, MapRequest, OpenError, Place, Prot, Sharing};
use elbowroom_machine::PAGE_SIZE;
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
    fn prot(self) -> Prot {
        if self == Mode::Read { Prot::READ } else { Prot::READ.union(Prot::WRITE) }
    }

    fn sharing(self) -> Sharing {
        if self == Mode::Copy { Sharing::Private } else { Sharing::Shared }
    }
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
    /// Manage the file also if other processes may change it: what they write is seen late.
    pub trust: bool,
    /// If the manager cannot manage the file, the kernel maps it.
    pub or_kernel: bool,
    /// Where the mapping goes.
    pub place: Place,
}

/// A mapping, which is unmapped when the value is dropped. No interpreter's lock is needed for that.
pub struct Held {
    start: usize,
    len: usize,
    /// What the budget has promised for it.
    _promise: Option<Promise>,
    _budget: Option<Arc<Budget>>,
    _file: Option<Mapped>,
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
        let id = check(&part).map_err(failed)?;
        let reason = if is_child() {
            let fork = house::words().fork;
            Some(format!("this process was forked from one that has managed memory: {fork}"))
        } else if is_kernels(id) {
            let text =
                "the kernel maps the file in this process already, as long as other mappings of it exist";
            Some(text.to_owned())
        } else {
            None
        };
        // SAFETY: a system call without arguments.
        let tid = unsafe { libc::gettid() } as u32;
        let reason = match reason {
            Some(reason) => reason,
            None => {
                let budget = budget.cloned();
                let counted = Mapped::new(id, false);
                let mapped =
                    house.ask(caller, move |house| by_manager(house, tid, &part, budget, counted))?;
                match mapped.map_err(|errno| caller.error(Failure::of(errno, "cannot map the file")))? {
                    Attempt::Managed(held) => return Ok((held, None)),
                    Attempt::Kernels(reason) => reason,
                }
            }
        };
        if !part.or_kernel {
            let text = format!("the file cannot be managed: {reason}");
            let failure = Failure { errno: libc::EOPNOTSUPP, ..Failure::new(Kind::State, text) };
            return Err(caller.error(failure));
        }
        // Entered before the file is given up, so that no other thread has the manager map it meanwhile.
        let counted = Mapped::new(id, part.mode == Mode::Write);
        let given = house.ask(caller, move |house| house.space.give_file(id))?;
        given.map_err(|errno| caller.error(Failure::of(errno, "cannot give the file to the kernel")))?;
        let start = by_kernel(&part).map_err(failed)?;
        let held = Self { start, len: part.len, _promise: None, _budget: None, _file: Some(counted) };
        Ok((held, Some(reason)))
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
        budget: Option<&Arc<Budget>>,
    ) -> Result<Self, C::Error> {
        let too_large = || Failure::of(Errno::NOMEM, "cannot map memory");
        let bytes = len.checked_next_multiple_of(PAGE_SIZE).ok_or_else(|| caller.error(too_large()))? as u64;
        let promise = Promise::of(bytes, budget).map_err(|failure| caller.error(failure))?;
        let group = budget.map(|budget| budget.id());
        let budget = budget.cloned();
        let unmapped = Self { start: 0, len: 0, _promise: Some(promise), _budget: budget, _file: None };
        let mapped = house.ask(caller, move |house| {
            let request = MapRequest {
                place,
                len,
                prot: Mode::Copy.prot(),
                may_write: true,
                sharing: Sharing::Private,
                object: None,
                offset: 0,
                populate: false,
                locked: false,
                no_reserve: false,
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
            _promise: None,
            _budget: self._budget.clone(),
            _file: self._file.as_ref().map(Mapped::again),
        });
        left.collect()
    }

    /// How many bytes of the mapping can be in memory at a time. `None`: all, or the kernel has it.
    pub fn most_in_memory(&self) -> Option<u64> {
        let limit = self._budget.as_ref().map(|budget| budget.least_limit())?;
        (limit < self.len as u64 && self.is_managed()).then_some(limit)
    }

    /// Has parts of the mapping read from the disk, as far as there is room. Does not wait. `firsts`: where
    /// they begin, in bytes from the mapping's first one; each has `len` bytes. Parts that are not in the
    /// mapping are left out. `kept`: what keeps the mapping, so that no other is at these addresses
    /// meanwhile.
    pub fn will_need<K: Send + 'static>(&self, firsts: Vec<usize>, len: usize, kept: K) {
        let Some(house) = house::started() else { return };
        let (start, all) = (self.start, self.len);
        let read = move |house: &'static House| {
            let mut end = 0;
            for first in firsts {
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

    /// The file that it is of; `None`: it is memory.
    pub fn file(&self) -> Option<FileId> {
        self._file.as_ref().map(Mapped::id)
    }

    /// madvise(2) for `len` bytes from the byte `from` on.
    ///
    /// # Errors
    /// EINVAL: the advice is not known, or does not fit the mapping. What the manager and the kernel say.
    pub fn advise<C: Caller>(&self, caller: C, advice: i32, from: usize, len: usize) -> Result<(), C::Error> {
        let failed = |errno| caller.error(Failure::of(errno, "cannot advise"));
        let first = self.start + from;
        if let Some(house) = house::started().filter(|_| self.is_managed()) {
            let advice = advice_of(advice).ok_or_else(|| failed(Errno::INVAL))?;
            return house.ask(caller, move |house| house.space.advise(first, len, advice))?.map_err(failed);
        }
        // SAFETY: the range is this mapping's. No advice takes the bytes of a mapping away that has others.
        let advised = caller.run(move || match unsafe { libc::madvise(first as *mut _, len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
        advised.map_err(|error| caller.error(Failure::of_io(&error, "cannot advise")))
    }

    /// Whether it is of a file.
    pub fn is_of_file(&self) -> bool {
        self._file.is_some()
    }

    /// Whether the manager serves it now. A mapping of a file can go to the kernel at any time.
    pub fn is_managed(&self) -> bool {
        house::started().is_some_and(|house| house.manager.windows().covers(self.start, self.len))
    }

    /// Writes what was stored to a range of it to the file, and waits until it is durable.
    ///
    /// # Errors
    /// The first error of a write-back since the last call.
    pub fn flush<C: Caller>(&self, caller: C, from: usize, len: usize) -> Result<(), C::Error> {
        let end = from.saturating_add(len).min(self.len);
        let first = self.start + from / PAGE_SIZE * PAGE_SIZE;
        let Some(len) = (self.start + end).checked_sub(first).filter(|len| *len > 0) else { return Ok(()) };
        let what = "cannot write the file back";
        if self.is_managed()
            && let Some(house) = house::started()
        {
            match house.ask(caller, move |house| house.space.sync(first, len, true, false))? {
                // The file went to the kernel meanwhile.
                Err(Errno::NOMEM) if !self.is_managed() => {}
                synced => return synced.map_err(|errno| caller.error(Failure::of(errno, what))),
            }
        }
        // SAFETY: the range is this mapping's, which is not unmapped while it is borrowed.
        let sync = || match unsafe { libc::msync(first as *mut _, len, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        caller.run(sync).map_err(|error| caller.error(Failure::of_io(&error, what)))
    }
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

/// The advice that concerns the bytes of a mapping; `None`: the number is that of no such advice.
fn advice_of(number: i32) -> Option<Advice> {
    Some(match number {
        libc::MADV_NORMAL => Advice::Normal,
        libc::MADV_RANDOM => Advice::Random,
        libc::MADV_SEQUENTIAL => Advice::Sequential,
        libc::MADV_WILLNEED => Advice::WillNeed,
        libc::MADV_DONTNEED => Advice::DontNeed,
        libc::MADV_FREE => Advice::Free,
        libc::MADV_COLD => Advice::Cold,
        libc::MADV_PAGEOUT => Advice::PageOut,
        _ => return None,
    })
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

/// Checks what mmap(2) would check, and tells which file it is.
fn check(part: &FilePart) -> io::Result<FileId> {
    let stat = stat(part.fd)?;
    // SAFETY: integers only.
    let flags = unsafe { libc::fcntl(part.fd, libc::F_GETFL) };
    let access = flags & libc::O_ACCMODE;
    let permitted = match part.mode {
        Mode::Write => access == libc::O_RDWR,
        Mode::Read | Mode::Copy => access != libc::O_WRONLY,
    };
    match () {
        () if flags < 0 => Err(io::Error::last_os_error()),
        () if !permitted => Err(io::Error::from_raw_os_error(libc::EACCES)),
        () if stat.st_mode & libc::S_IFMT != libc::S_IFREG => Err(io::Error::from_raw_os_error(libc::ENODEV)),
        () => Ok(id_of(&stat)),
    }
}

fn by_manager(
    house: &House,
    tid: u32,
    part: &FilePart,
    budget: Option<Arc<Budget>>,
    counted: Mapped,
) -> Result<Attempt, Errno> {
    let writable = part.mode == Mode::Write;
    let path = format!("/proc/self/task/{tid}/fd/{}", part.fd);
    for _ in 0..STALE_ROUNDS {
        let opened = if part.trust {
            house
                .manager
                .open(Path::new(&path), writable)
                .map(|object| (object, None))
                .map_err(OpenError::from)
        } else {
            let opened = house.manager.open_through(tid, part.fd, writable);
            opened.map(|(object, origin)| (object, Some(origin)))
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
        let request = MapRequest {
            place: part.place,
            len: part.len,
            prot: part.mode.prot(),
            may_write: part.mode != Mode::Read,
            sharing: part.mode.sharing(),
            object: Some(object.clone()),
            offset: part.offset,
            populate: false,
            locked: false,
            no_reserve: false,
            group: budget.as_ref().map(|budget| budget.id()),
        };
        let mapped = have_addresses(house, part.place, part.len);
        match mapped.and_then(|()| house.space.map_through(request, origin)) {
            Ok(start) => {
                let (len, _budget, _file) = (part.len, budget, Some(counted));
                return Ok(Attempt::Managed(Held { start, len, _promise: None, _budget, _file }));
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

fn by_kernel(part: &FilePart) -> io::Result<usize> {
    let prot = match part.mode {
        Mode::Read => libc::PROT_READ,
        Mode::Write | Mode::Copy => libc::PROT_READ | libc::PROT_WRITE,
    };
    let (at, fixed) = match part.place {
        Place::Anywhere => (0, 0),
        Place::Hint(at) => (at, 0),
        // The manager's own addresses are not the kernel's to map.
        Place::Fixed(at) | Place::FixedNoReplace(at) => (at, libc::MAP_FIXED_NOREPLACE),
    };
    let flags = fixed | if part.mode == Mode::Copy { libc::MAP_PRIVATE } else { libc::MAP_SHARED };
    // SAFETY: a new mapping, which replaces none.
    let at = unsafe { libc::mmap(at as *mut _, part.len, prot, flags, part.fd, part.offset as libc::off_t) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at as usize) }
}
