//! Faults, loads and stores, populating, and what truncation does to mappings. Linux: `handle_mm_fault`,
//! mm/gup.c, `truncate_pagecache`.

use super::*;

/// What an access wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// To see bytes.
    Load,
    /// To change them.
    Store,
}

impl Model {
    /// A fault. SIGSEGV with MAPERR where nothing is mapped, with ACCERR where the protection forbids it: a
    /// store needs `PROT_WRITE`, a load any permission at all (x86-64 has no pages that can only be written).
    /// Only then SIGBUS: the page is beyond the end of the object, and a private mapping has no copy of it.
    ///
    /// A private mapping shows the object's bytes, later changes too, until the first store takes a copy.
    pub(super) fn fault(&mut self, index: usize, access: Access) -> Result<(), Fault> {
        let Some(page) = self.pages.get(index).and_then(Option::as_ref) else { return Err(Fault::Unmapped) };
        let attributes = page.attributes;
        let permitted = match access {
            Access::Load => attributes.prot != 0,
            Access::Store => attributes.prot & libc::PROT_WRITE != 0,
        };
        if !permitted {
            return Err(Fault::Denied);
        }
        if page.copy.is_some() {
            return Ok(());
        }
        let Some(bytes) = self.object_page(page.backing) else { return Err(Fault::Bus) };
        if access == Access::Store && !attributes.shared {
            let copy = bytes.clone();
            self.page_mut(index).copy = Some(copy);
        }
        Ok(())
    }

    /// A page of what is mapped; nothing beyond its end.
    fn object_page(&self, backing: Backing) -> Option<&Bytes> {
        match backing {
            Backing::Anonymous => Some(&None),
            Backing::File { offset } => self.file.get(offset as usize),
            Backing::SharedAnonymous { object, offset } => self.objects[object as usize].get(offset as usize),
        }
    }

    fn object_page_mut(&mut self, backing: Backing) -> Option<&mut Bytes> {
        match backing {
            Backing::Anonymous => None,
            Backing::File { offset } => self.file.get_mut(offset as usize),
            Backing::SharedAnonymous { object, offset } => {
                self.objects[object as usize].get_mut(offset as usize)
            }
        }
    }

    pub(super) fn do_load(&mut self, addr: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        let index = Self::index(addr).ok_or(Fault::Unmapped)?;
        self.fault(index, Access::Load)?;
        let page = self.page(index);
        let source = page.copy.as_ref().or_else(|| self.object_page(page.backing));
        let first = (addr % PAGE) as usize;
        match source.expect("the fault has found it") {
            Some(source) => bytes.copy_from_slice(&source[first..first + bytes.len()]),
            None => bytes.fill(0),
        }
        Ok(())
    }

    pub(super) fn do_store(&mut self, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        let index = Self::index(addr).ok_or(Fault::Unmapped)?;
        self.fault(index, Access::Store)?;
        let page = self.page_mut(index);
        let backing = page.backing;
        let target = match page.copy.take() {
            Some(copy) => {
                let mut copy = copy.unwrap_or_else(|| Box::new([0; PAGE as usize]));
                Self::write(&mut copy, addr, bytes);
                self.page_mut(index).copy = Some(Some(copy));
                return Ok(());
            }
            None => self.object_page_mut(backing).expect("the fault has found it"),
        };
        Self::write(target.get_or_insert_with(|| Box::new([0; PAGE as usize])), addr, bytes);
        Ok(())
    }

    fn write(page: &mut [u8; PAGE as usize], addr: u64, bytes: &[u8]) {
        let first = (addr % PAGE) as usize;
        page[first..first + bytes.len()].copy_from_slice(bytes);
    }

    /// Makes the pages of a VMA or a part of it present, as `mlock` and `MAP_POPULATE` do: for writing in a
    /// private writable mapping (that takes copies), else for reading. Pages locked on fault are passed over.
    /// Without access, and beyond the end of the object, it fails; the pages before stay populated. Linux:
    /// `populate_vma_page_range`.
    fn populate_vma(&mut self, vma: Range<usize>) -> Result<(), Fault> {
        let attributes = self.page(vma.start).attributes;
        if attributes.lock == Lock::OnFault {
            return Ok(());
        }
        let writes = attributes.prot & libc::PROT_WRITE != 0 && !attributes.shared;
        let access = if writes { Access::Store } else { Access::Load };
        vma.into_iter().try_for_each(|index| self.fault(index, access))
    }

    /// Populates up to the first failure.
    pub(super) fn populate(&mut self, range: Range<usize>) -> Result<(), Fault> {
        let vmas = self.vmas(Self::address(range.start), Self::address(range.end));
        vmas.into_iter().try_for_each(|vma| self.populate_vma(vma))
    }

    /// Populates each VMA up to its first failure. Linux: `__mm_populate` with `ignore_errors`.
    pub(super) fn populate_what_can_be(&mut self, range: Range<usize>) {
        for vma in self.vmas(Self::address(range.start), Self::address(range.end)) {
            // Whoever asks gets no answer: the access itself will fail.
            let _ = self.populate_vma(vma);
        }
    }

    /// ftruncate of the file. Private copies of pages beyond the new end are dropped too: they are SIGBUS,
    /// and if the file grows again, zeros. Linux: `unmap_mapping_range` with `even_cows`.
    pub(super) fn do_truncate(&mut self, pages: u64) {
        self.file.resize(pages as usize, None);
        for page in self.pages.iter_mut().flatten() {
            if matches!(page.backing, Backing::File { offset } if offset >= pages) {
                page.copy = None;
            }
        }
    }

    /// Empties a page of a shared object, as a punched hole. Nothing happens beyond its end.
    pub(super) fn punch(&mut self, backing: Backing) {
        if let Some(bytes) = self.object_page_mut(backing) {
            *bytes = None;
        }
    }
}
