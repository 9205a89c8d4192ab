//! The spaces that map an object, as its reverse map lists them.

use super::Core;
use crate::object::{FileObject, MappedRange, Which};
use crate::platform::Platform;
use crate::vma::{Layout, Mm};
use elbowroom_sync::Arc;
use std::ops::Range;

/// A space that maps an object.
pub(crate) struct Mapper {
    pub(crate) mm: Arc<Mm>,
    /// One of its addresses.
    addr: usize,
}

impl Mapper {
    /// The space's layout lock, and where the space maps some of `pages`, if none of these mappings is being
    /// changed. So what the space has of these pages is at these places, for as long as the lock is held.
    pub(crate) fn mapped_now(
        &self,
        object: &FileObject,
        pages: &Range<u64>,
        which: Which,
    ) -> Option<(Layout<'_>, Vec<MappedRange>)> {
        let layout = self.mm.write();
        let mapped = object.rmap.in_space(self.addr, pages, which);
        let in_change =
            |m: &MappedRange| layout.changing.iter().any(|r| r.start < m.range.end && m.range.start < r.end);
        if mapped.iter().any(in_change) { None } else { Some((layout, mapped)) }
    }
}

impl<P: Platform> Core<P> {
    /// The spaces that map some of `pages`, each once.
    pub(crate) fn mappers(&self, object: &FileObject, pages: &Range<u64>, which: Which) -> Vec<Mapper> {
        let mut mappers: Vec<Mapper> = Vec::new();
        for mapping in object.rmap.overlapping(pages, which) {
            let addr = mapping.range.start;
            // A space that is not in the table any more has unmapped everything.
            if let Some(mm) = self.spaces.of(addr)
                && !mappers.iter().any(|known| Arc::ptr_eq(&known.mm, &mm))
            {
                mappers.push(Mapper { mm, addr });
            }
        }
        mappers
    }

    /// [`Mapper::mapped_now`]; if these mappings are being changed, waits until no change of the layout is
    /// under way. `None`: there was no such moment within the bound. Not for handlers, nor for a thread
    /// that has begun a change.
    pub(crate) fn mapped_still<'m>(
        &self,
        mapper: &'m Mapper,
        object: &FileObject,
        pages: &Range<u64>,
        which: Which,
    ) -> Option<(Layout<'m>, Vec<MappedRange>)> {
        mapper.mapped_now(object, pages, which).or_else(|| {
            let layout = self.still_layout(&mapper.mm)?;
            let mapped = object.rmap.in_space(mapper.addr, pages, which);
            Some((layout, mapped))
        })
    }
}
