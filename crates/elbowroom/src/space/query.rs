//! mincore, and what /proc/self/maps shows.

use super::{Space, TASK_SIZE};
use crate::page::Flag;
use crate::platform::Platform;
use crate::vma::{Prot, Sharing, Vma};
use elbowroom_machine::{Errno, PAGE_SHIFT, PAGE_SIZE};
use elbowroom_store::FileId;
use std::ops::Range;

/// A mapping, as a line of /proc/self/maps shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    /// Its addresses.
    pub range: Range<usize>,
    /// Access rights.
    pub prot: Prot,
    /// Whether stores reach the object.
    pub sharing: Sharing,
    /// The file or the shared memory; `None`: private anonymous memory.
    pub file: Option<FileId>,
    /// Where in it, in bytes.
    pub offset: u64,
}

impl Area {
    fn of(vma: &Vma) -> Self {
        Self {
            range: vma.range.clone(),
            prot: vma.spec.prot,
            sharing: vma.spec.sharing,
            file: vma.spec.object.as_ref().map(|object| object.id()),
            offset: if vma.spec.object.is_some() { vma.first_page << PAGE_SHIFT } else { 0 },
        }
    }
}

impl<P: Platform> Space<P> {
    /// The mappings that overlap `range`, whole, in order.
    pub fn areas(&self, range: Range<usize>) -> Vec<Area> {
        let end = range.end.min(self.everything().end).next_multiple_of(PAGE_SIZE);
        let pages = range.start & !(PAGE_SIZE - 1)..end;
        let layout = self.layout_without_change_in(&pages);
        self.mm.overlapping(&pages, &layout).into_iter().map(Area::of).collect()
    }

    /// mincore: sets bit 0 of each byte of `out`, one per page from `addr` on, to whether the page is in
    /// memory.
    ///
    /// # Errors
    /// EINVAL: the address is not aligned. ENOMEM: a page is not mapped, or beyond the space.
    pub fn resident(&self, addr: usize, out: &mut [u8]) -> Result<(), Errno> {
        if !addr.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::INVAL);
        }
        let at = addr.checked_sub(self.base).ok_or(Errno::NOMEM)?;
        if at > TASK_SIZE || out.len() > (TASK_SIZE - at) >> PAGE_SHIFT {
            return Err(Errno::NOMEM);
        }
        let range = addr..addr + (out.len() << PAGE_SHIFT);
        let mut next = addr;
        for part in self.parts(&range) {
            if part.range.start != next {
                return Err(Errno::NOMEM);
            }
            next = part.range.end;
            for page in part.range.clone().step_by(PAGE_SIZE) {
                let number = (page >> PAGE_SHIFT) as u64;
                let own = part.spec.is_private() && self.mm.anon.find(number).is_some();
                let is_out = part.spec.is_private() && self.mm.anon.is_out(number);
                let index = part.first_page + ((page - part.range.start) >> PAGE_SHIFT) as u64;
                let folio = part.spec.object.as_ref().and_then(|object| object.lookup(index));
                let cached = folio.is_some_and(|folio| folio.state.test(Flag::Uptodate));
                out[(page - addr) >> PAGE_SHIFT] = u8::from(own || cached && !is_out);
            }
        }
        if next == range.end { Ok(()) } else { Err(Errno::NOMEM) }
    }
}
