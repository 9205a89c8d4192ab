//! mmap of a file.

use super::change::Pages;
use super::page_range;
use crate::core::{Core, Job};
use crate::object::FileObject;
use crate::vma::{Pattern, Prot, Sharing, Vma, VmaSpec};
use elbowroom_machine::{Errno, PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::Arc;
use std::ops::Range;

/// Where a mapping goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Wherever there is room.
    Anywhere,
    /// There if it is free and inside a window, else anywhere.
    Hint(usize),
    /// Exactly there; what is there is replaced.
    Fixed(usize),
    /// Exactly there, or EEXIST.
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
    /// Whether it could be given the right to write later: the program's descriptor is open for writing.
    pub may_write: bool,
    /// Whether stores reach the file.
    pub sharing: Sharing,
    /// The file.
    pub object: Arc<FileObject>,
    /// Where in the file, in bytes; page-aligned.
    pub offset: u64,
    /// Whether to start reading it now.
    pub populate: bool,
}

/// From this length on, a mapping lies at the same place in its 2 MiB block as in its file's.
const HUGE: usize = 2 << 20;

impl Core {
    pub(crate) fn map(&self, request: MapRequest) -> Result<usize, Errno> {
        let len = page_range(0, request.len)?.end;
        let first_page = request.offset >> PAGE_SHIFT;
        if !request.offset.is_multiple_of(PAGE_SIZE as u64) {
            return Err(Errno::INVAL);
        }
        if request.offset.checked_add(len as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::OVERFLOW);
        }
        if request.sharing == Sharing::Private && request.prot.contains(Prot::WRITE) {
            return Err(Errno::OPNOTSUPP);
        }
        let spec = VmaSpec {
            object: request.object.clone(),
            prot: request.prot,
            may_write: request.may_write,
            sharing: request.sharing,
            pattern: Pattern::Detect,
        };
        let range = match request.place {
            Place::Fixed(addr) => {
                let range = page_range(addr, len)?;
                self.owned(&range)?;
                let change = self.begin_change(range.clone(), |_| Ok(Pages::Leave))?;
                let vma = Vma::new(range.clone(), first_page, spec);
                self.finish_change(change, vec![vma], |_, _| {});
                range
            }
            place => self.map_free(place, len, first_page, spec)?,
        };
        if request.object.is_closed() {
            // Closed between the caller's open and now, after being unused for long.
            self.unmap(range.start, len)?;
            return Err(Errno::STALE);
        }
        if request.populate {
            self.will_need(&request.object, first_page..first_page + (len >> PAGE_SHIFT) as u64);
        }
        Ok(range.start)
    }

    /// Maps at a free place.
    pub(super) fn map_free(
        &self,
        place: Place,
        len: usize,
        first_page: u64,
        spec: VmaSpec,
    ) -> Result<Range<usize>, Errno> {
        let mut layout = self.layout.lock();
        let wanted = match place {
            Place::Hint(addr) => page_range(addr, len).ok().filter(|r| layout.gaps.is_free(r)),
            Place::FixedNoReplace(addr) => {
                let range = page_range(addr, len)?;
                Some(range).filter(|r| layout.gaps.is_free(r)).ok_or(Errno::EXIST)?.into()
            }
            _ => None,
        };
        let range = match wanted {
            Some(range) => {
                layout.gaps.take_exactly(range.clone());
                range
            }
            None => {
                let (align, phase) = if len >= HUGE {
                    (HUGE, (first_page as usize) << PAGE_SHIFT & (HUGE - 1))
                } else {
                    (PAGE_SIZE, 0)
                };
                match layout.gaps.take(len, align, phase) {
                    Some(range) => range,
                    None => {
                        let window = self.mmu.add_window(len)?;
                        layout.gaps.release(window);
                        layout.gaps.take(len, align, phase).ok_or(Errno::NOMEM)?
                    }
                }
            }
        };
        self.vmas.replace(&[], vec![Vma::new(range.clone(), first_page, spec)]);
        Ok(range)
    }

    /// ENOMEM unless all of the range is ours.
    pub(super) fn owned(&self, range: &Range<usize>) -> Result<(), Errno> {
        if self.mmu.windows().covers(range.start, range.len()) { Ok(()) } else { Err(Errno::NOMEM) }
    }

    /// Starts reading pages of a file, as far as half of the memory goes.
    pub(super) fn will_need(&self, object: &Arc<FileObject>, pages: Range<u64>) {
        let most = self.mmu.frames() as u64 / 2;
        let end = pages.end.min(pages.start + most);
        self.post(Job::Prefetch(object.clone(), pages.start..end));
    }
}
