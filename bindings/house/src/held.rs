//! A mapping, and its verbs. How it is made is in `make`.
//!
//! Each verb exists twice: for a mapping that the manager serves, and for one that the kernel serves. A file
//! may go to the kernel between the look at which of them serves it and the verb; then the manager says that
//! nothing is mapped there, and the kernel's verb follows.

mod make;

pub use crate::part::{FilePart, Mode, Opening, Wishes};

use crate::budget::{Budget, Promise};
use crate::caller::Caller;
use crate::failure::{Failure, Kind};
use crate::house::{self, House};
use crate::mapped::Mapped;
use elbowroom::{Advice, Errno, FileId, Remap};
use elbowroom_machine::PAGE_SIZE;
use libc::c_int;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A mapping, which is unmapped when the value is dropped. No interpreter's lock is needed for that.
#[derive(Debug)]
pub struct Held {
    start: usize,
    len: usize,
    /// What the budget has promised for it.
    promise: Option<Promise>,
    budget: Option<Arc<Budget>>,
    file: Option<Mapped>,
    /// Whoever serves it can let it be stored to, without another descriptor.
    has_stores: bool,
}

impl Held {
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
            // SAFETY: the range is this mapping's. No advice takes the bytes of another mapping away.
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

    /// Whether the manager, or the kernel if it has made the mapping, can let it be stored to.
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
    /// caller writes them back before. `caller` breaks off no wait: the mapping would be elsewhere then, or
    /// have another length, and the value would not know.
    ///
    /// # Errors
    /// Those of mremap(2). ENOMEM: there is no room behind it; or the budget does not have so much.
    pub fn remap<C: Caller>(&mut self, caller: C, len: usize, moving: Moving) -> Result<(), C::Error> {
        let too_large = || Failure::of(Errno::NOMEM, CANNOT_REMAP);
        let (old, at) = (self.len.next_multiple_of(PAGE_SIZE), self.start);
        let new = len.checked_next_multiple_of(PAGE_SIZE).ok_or_else(|| caller.error(too_large()))?;
        let (more, less) = (new.saturating_sub(old) as u64, old.saturating_sub(new) as u64);
        if let Some(promise) = self.promise.as_mut().filter(|_| more > 0) {
            let gone = || caller.error(Failure::new(Kind::State, "there is no manager".to_owned()));
            let house = house::started().ok_or_else(gone)?;
            promise.grow(house, more).map_err(|failure| caller.error(failure))?;
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
