//! mmap. Linux: `do_mmap`, `__get_unmapped_area`.

use super::Spaces;
use super::change::{AfterChange, BeginOptions, Change, Pages};
use super::{Space, TASK_SIZE, page_align};
use crate::core::Job;
use crate::group::{GroupId, of_thread};
use crate::object::{FileObject, Mapped};
use crate::platform::Platform;
use crate::trace::Verb;
use crate::vma::{Layout, Pattern, Prot, Sharing, Vma, VmaFlags, VmaSpec};
use elbowroom_machine::{Errno, Mmu, PAGE_SHIFT, PAGE_SIZE};
use elbowroom_store::Origin;
use elbowroom_sync::Arc;
use std::ops::Range;

/// Where a mapping goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Wherever there is room.
    Anywhere,
    /// At this address if it is free and inside the space, else anywhere. Rounded down to a page.
    Hint(usize),
    /// Exactly at this address; mappings there are replaced.
    Fixed(usize),
    /// Exactly at this address; EEXIST if something is mapped there.
    FixedNoReplace(usize),
}

/// What to map, and how.
pub struct MapRequest {
    /// Where.
    pub place: Place,
    /// Bytes, more than 0; rounded up to pages.
    pub len: usize,
    /// Access rights.
    pub prot: Prot,
    /// Whether mprotect may give the right to write later (Linux: `VM_MAYWRITE`): the program's descriptor
    /// is open for writing, or the mapping is private.
    pub may_write: bool,
    /// Whether stores reach the file, or the other mappings of the shared memory.
    pub sharing: Sharing,
    /// The file; `None`: anonymous memory.
    pub object: Option<Arc<FileObject>>,
    /// Where in the file, in bytes; page-aligned.
    pub offset: u64,
    /// Whether to bring the pages in now, as far as that can be done.
    pub populate: bool,
    /// Whether to lock them, as mlock does.
    pub locked: bool,
    /// MAP_NORESERVE: passed to the kernel if the mapping goes back to it.
    pub no_reserve: bool,
    /// The group that pays for its anonymous memory and, if no other mapping maps the file, for the file's
    /// pages that come in from now on. `None`: that of the space.
    pub group: Option<GroupId>,
}

#[cfg(test)]
impl MapRequest {
    /// Private memory anywhere, to read and to store to.
    pub(crate) fn private_memory(len: usize) -> Self {
        Self {
            place: Place::Anywhere,
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
}

/// From this length on, a mapping of a file lies at the same place in its 2 MiB block as in the file.
const HUGE: usize = 2 << 20;

impl<P: Platform> Space<P> {
    /// Maps a file, or anonymous memory; returns the address.
    ///
    /// # Errors
    /// In this order. EINVAL: the offset is not aligned, or no length. ENOMEM: no room for so much, or the
    /// fixed place is not in the space. EINVAL: the fixed place is not aligned. EEXIST:
    /// [`Place::FixedNoReplace`], and something is there. EOVERFLOW: no file has such an end. EACCES: shared
    /// and writable without the right. EOPNOTSUPP: private and writable, and the manager was told not to.
    /// ENOMEM: too many VMAs. EOPNOTSUPP: the file is left to the kernel (docs/fault.md, "one place").
    /// ESTALE: the file's object was closed meanwhile; open it anew.
    ///
    /// Locks: `layout`, shortly; with [`Place::Fixed`] those of unmapping, too.
    pub fn map(&self, request: MapRequest) -> Result<usize, Errno> {
        self.map_through(request, None)
    }

    /// [`Space::map`] of a file that the program has open as `origin`. Only mappings with the same origin
    /// are merged, and if the file goes back to the kernel, the kernel's mapping is made with it.
    ///
    /// # Errors
    /// As for [`Space::map`].
    pub fn map_through(&self, request: MapRequest, origin: Option<Arc<Origin>>) -> Result<usize, Errno> {
        let at = match request.place {
            Place::Anywhere => 0,
            Place::Hint(at) | Place::Fixed(at) | Place::FixedNoReplace(at) => at,
        };
        let len = request.len;
        self.core.verb(Verb::Map, at, len, || {
            let mapped = self.map_now(request, origin);
            self.settle();
            mapped
        })
    }

    fn map_now(&self, request: MapRequest, origin: Option<Arc<Origin>>) -> Result<usize, Errno> {
        // Anonymous memory has no offset: the request's is ignored.
        let first_page = if request.object.is_some() { request.offset >> PAGE_SHIFT } else { 0 };
        if !request.offset.is_multiple_of(PAGE_SIZE as u64) || request.len == 0 {
            return Err(Errno::INVAL);
        }
        let len = page_align(request.len);
        if len == 0 || len > TASK_SIZE {
            return Err(Errno::NOMEM);
        }
        let place = self.check_place(request.place, len)?;
        self.check_free(place, len)?;
        let last = request.offset.checked_add(len as u64);
        if request.object.is_some() && last.is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::OVERFLOW);
        }
        let private = request.sharing == Sharing::Private;
        if !private && request.prot.contains(Prot::WRITE) && !request.may_write {
            return Err(Errno::ACCESS);
        }
        if private && request.prot.contains(Prot::WRITE) && !self.core.config.private_writes {
            return Err(Errno::OPNOTSUPP);
        }
        let chosen = || of_thread::chosen(Arc::as_ptr(&self.core) as usize);
        let group = request.group.or_else(chosen).unwrap_or(self.mm.group.get());
        let object = match (&request.object, request.sharing) {
            (Some(object), _) => Some(Mapped::new(object.clone(), group)),
            (None, Sharing::Private) => None,
            (None, Sharing::Shared) => Some(Mapped::new(self.core.objects.memory(len as u64), group)),
        };
        if let Some(object) = &object
            && private
        {
            object.note_private();
        }
        let mut flags = VmaFlags::empty();
        flags.set(VmaFlags::LOCKED, request.locked);
        flags.set(VmaFlags::NO_RESERVE, request.no_reserve);
        let spec = VmaSpec {
            object,
            origin,
            prot: request.prot,
            may_write: request.may_write,
            sharing: request.sharing,
            pattern: Pattern::Detect,
            flags,
            group,
        };
        let range = match place {
            Place::Fixed(addr) => {
                let range = addr..addr + len;
                let options = BeginOptions { adds: 1, ..BeginOptions::default() };
                let change =
                    self.begin_on(options, range.clone(), |_| self.owned(&range).map(|()| Pages::Drop))?;
                let vma = Vma::new(range.clone(), first_page, spec);
                self.finish(change, vec![vma], AfterChange::Free);
                range
            }
            place => {
                let (range, mut layout) = self.find_place(place, len, first_page)?;
                self.mm.room_for(1, &layout)?;
                self.mm.insert(&mut layout, Vma::new(range.clone(), first_page, spec));
                range
            }
        };
        match &request.object {
            Some(object) if object.is_closed() => {
                // The object was closed after the caller had opened it, since it was unused for long.
                self.unmap(range.start, len)?;
                return Err(Errno::STALE);
            }
            Some(object) if object.is_aliased() => {
                self.unmap(range.start, len)?;
                return Err(Errno::OPNOTSUPP);
            }
            Some(object) if request.populate && !private => {
                self.core.will_need(object, first_page..first_page + (len >> PAGE_SHIFT) as u64);
            }
            _ if request.populate || request.locked => self.populate_what_can_be(&range),
            _ => {}
        }
        Ok(range.start)
    }

    /// Makes a window of addresses that belonged to no window, so that [`Place::Hint`] and
    /// [`Place::FixedNoReplace`] can be there. The window is the whole blocks of 2 MiB around the range.
    ///
    /// # Errors
    /// EEXIST: something is mapped in these blocks. ENOMEM: there is no room for another window, or the
    /// addresses are not ones that a program can have.
    ///
    /// Locks: `layout`.
    pub fn add_addresses(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(HUGE));
        let range = addr & !(HUGE - 1)..end.ok_or(Errno::NOMEM)?;
        let all = self.addresses();
        if range.start < all.start || range.end > all.end {
            return Err(Errno::NOMEM);
        }
        let mut layout = self.mm.write();
        if !self.core.mmu.covers(range.start, range.len()) {
            self.core.mmu.add_window_at(range.clone())?;
            self.mm.release(&mut layout, &range);
        }
        Ok(())
    }

    /// Checks a place as [`Space::map`] would, without mapping anything.
    ///
    /// # Errors
    /// As there: ENOMEM, EINVAL, EEXIST.
    pub fn check(&self, place: Place, len: usize) -> Result<(), Errno> {
        let len = page_align(len);
        if len == 0 || len > TASK_SIZE {
            return Err(Errno::NOMEM);
        }
        let place = self.check_place(place, len)?;
        self.check_free(place, len)
    }

    fn check_free(&self, place: Place, len: usize) -> Result<(), Errno> {
        let Place::FixedNoReplace(addr) = place else { return Ok(()) };
        let range = addr..addr + len;
        let layout = self.layout_without_change_in(&range);
        if self.mm.is_free(&range, &layout) { Ok(()) } else { Err(Errno::EXIST) }
    }

    /// Checks a place, and rounds a hint down to a page: ENOMEM if a fixed place does not fit, EINVAL if it
    /// is not aligned.
    pub(super) fn check_place(&self, place: Place, len: usize) -> Result<Place, Errno> {
        match place {
            Place::Anywhere => Ok(Place::Anywhere),
            Place::Hint(addr) => Ok(Place::Hint(addr & !(PAGE_SIZE - 1))),
            Place::Fixed(addr) | Place::FixedNoReplace(addr) => {
                let at = addr.checked_sub(self.base).ok_or(Errno::NOMEM)?;
                if at > TASK_SIZE - len {
                    return Err(Errno::NOMEM);
                }
                if !addr.is_multiple_of(PAGE_SIZE) {
                    return Err(Errno::INVAL);
                }
                self.owned(&(addr..addr + len))?;
                Ok(place)
            }
        }
    }

    /// A free range for `len` bytes, not taken yet, and the layout lock, under which it was found.
    pub(super) fn find_place(
        &self,
        place: Place,
        len: usize,
        first_page: u64,
    ) -> Result<(Range<usize>, Layout<'_>), Errno> {
        let mut layout = self.mm.write();
        match place {
            Place::Hint(addr) | Place::Fixed(addr) if addr > self.base => {
                if let Some(range) = self.range(addr, len)
                    && range.end <= self.addresses().end
                    && self.mm.is_free(&range, &layout)
                {
                    self.core.mmu.allow(range.clone())?;
                    return Ok((range, layout));
                }
            }
            Place::FixedNoReplace(addr) => {
                let range = addr..addr + len;
                if !self.mm.is_free(&range, &layout) {
                    return Err(Errno::EXIST);
                }
                self.core.mmu.allow(range.clone())?;
                return Ok((range, layout));
            }
            _ => {}
        }
        let (align, phase) = if len >= HUGE {
            (HUGE, (first_page as usize) << PAGE_SHIFT & (HUGE - 1))
        } else {
            (PAGE_SIZE, 0)
        };
        let within = self.addresses();
        let found = self.mm.place(len, align, phase, &within, &layout);
        let range = match found {
            Some(range) => range,
            None => {
                let window = self.core.mmu.add_window(len)?;
                self.mm.release(&mut layout, &window);
                self.mm.place(len, align, phase, &within, &layout).ok_or(Errno::NOMEM)?
            }
        };
        // Accesses to these addresses may have been denied while they were free.
        self.core.mmu.allow(range.clone())?;
        Ok((range, layout))
    }

    /// Begins a change of a free range for `len` bytes.
    pub(super) fn reserve(&self, place: Place, len: usize, first_page: u64) -> Result<Change, Errno> {
        let (range, layout) = self.find_place(place, len, first_page)?;
        self.begin_free(range, layout)
    }
}

impl<P: Platform> Spaces<P> {
    /// Starts reading pages of a file, as far as there is room.
    pub(super) fn will_need(&self, object: &Arc<FileObject>, pages: Range<u64>) {
        if object.is_memory() {
            return;
        }
        let end = pages.end.min(pages.start + self.room_for_advice(object.group.get()));
        self.inboxes.post(Job::Prefetch(object.clone(), pages.start..end));
    }
}
