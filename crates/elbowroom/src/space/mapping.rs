//! Mappings that are unmapped when they are dropped.

use super::{Advice, Cpu, MapRequest, Place, Remap, Space, page_align};
use crate::platform::{Platform, Soft};
use crate::space::AccessError;
use crate::vma::{Prot, Sharing};
use elbowroom_machine::{Errno, PAGE_SIZE};
use elbowroom_sync::Arc;
use std::fmt;
use std::ops::Range;

impl MapRequest {
    /// `len` bytes of private memory, of zeros, wherever there is room; to be loaded from and stored to.
    ///
    /// A request for anything else is best begun from this one, or from [`MapRequest::of_file`]:
    /// `MapRequest { populate: true, ..MapRequest::memory(len) }`.
    pub fn memory(len: usize) -> Self {
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

    /// `len` bytes of a file from its byte `offset` on, wherever there is room; to be loaded from only.
    pub fn of_file(object: Arc<crate::object::FileObject>, offset: u64, len: usize) -> Self {
        Self {
            prot: Prot::READ,
            may_write: false,
            sharing: Sharing::Shared,
            object: Some(object),
            offset,
            ..Self::memory(len)
        }
    }
}

/// A mapping of a space, which is unmapped when the value is dropped. It keeps its space from being dropped.
///
/// Its addresses are its own: a verb of the space ([`Space::unmap`], [`Space::remap`]) that changes them
/// behind its back does no harm to memory, but then the verbs here may find nothing mapped, or what others
/// have mapped there since.
pub struct Mapping<P: Platform> {
    space: Arc<Space<P>>,
    range: Range<usize>,
    /// Bytes, as asked for: the range has whole pages.
    len: usize,
}

impl<P: Platform> Mapping<P> {
    /// [`Space::map`], as a value that unmaps when it is dropped.
    ///
    /// # Errors
    /// As for [`Space::map`]. EINVAL: [`Place::Fixed`], which would replace mappings of other owners;
    /// [`Place::FixedNoReplace`] does not.
    pub fn new(space: &Arc<Space<P>>, request: MapRequest) -> Result<Self, Errno> {
        if matches!(request.place, Place::Fixed(_)) {
            return Err(Errno::INVAL);
        }
        let len = request.len;
        let addr = space.map(request)?;
        Ok(Self { space: space.clone(), range: addr..addr + page_align(len), len })
    }

    /// Its first address. With real pointers a pointer to the first byte.
    pub fn addr(&self) -> usize {
        self.range.start
    }

    /// How many bytes were asked for.
    #[allow(clippy::len_without_is_empty, reason = "no mapping is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Its addresses, in whole pages.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Its space.
    pub fn space(&self) -> &Arc<Space<P>> {
        &self.space
    }

    /// The addresses of a range of its bytes.
    fn part(&self, bytes: &Range<usize>) -> Result<(usize, usize), Errno> {
        let len = bytes.end.checked_sub(bytes.start).ok_or(Errno::INVAL)?;
        if bytes.end > self.len { Err(Errno::INVAL) } else { Ok((self.range.start + bytes.start, len)) }
    }

    /// The pages that have a byte of a range of its bytes, as address and length.
    fn pages(&self, bytes: &Range<usize>) -> Result<(usize, usize), Errno> {
        let (at, len) = self.part(bytes)?;
        let first = at & !(PAGE_SIZE - 1);
        Ok((first, if len == 0 { 0 } else { at + len - first }))
    }

    /// Changes its access rights.
    ///
    /// # Errors
    /// As for [`Space::protect`].
    pub fn protect(&self, prot: Prot) -> Result<(), Errno> {
        self.space.protect(self.range.start, self.range.len(), prot)
    }

    /// Acts on advice for the pages of a range of its bytes.
    ///
    /// # Errors
    /// As for [`Space::advise`]. EINVAL: the range is not in the mapping.
    pub fn advise(&self, bytes: Range<usize>, advice: Advice) -> Result<(), Errno> {
        let (at, len) = self.pages(&bytes)?;
        self.space.advise(at, len, advice)
    }

    /// Writes what was stored to a range of its bytes to the file, and waits until it is durable.
    ///
    /// # Errors
    /// As for [`Space::sync`]. EINVAL: the range is not in the mapping.
    pub fn sync(&self, bytes: Range<usize>) -> Result<(), Errno> {
        let (at, len) = self.pages(&bytes)?;
        self.space.sync(at, len, true, false)
    }

    /// How many of its pages are in memory.
    ///
    /// # Errors
    /// As for [`Space::resident`].
    pub fn resident_pages(&self) -> Result<usize, Errno> {
        let mut pages = vec![0; self.range.len() / PAGE_SIZE];
        self.space.resident(self.range.start, &mut pages)?;
        Ok(pages.iter().filter(|page| **page & 1 != 0).count())
    }

    /// Makes it `len` bytes long; it may move.
    ///
    /// # Errors
    /// As for [`Space::remap`]. The mapping is as it was then.
    pub fn remap(&mut self, len: usize) -> Result<(), Errno> {
        let addr = self.space.remap(self.range.start, self.range.len(), len, Remap::MayMove)?;
        (self.range, self.len) = (addr..addr + page_align(len), len);
        Ok(())
    }

    /// Gives the addresses up to the caller, who unmaps them, or does not.
    pub fn leak(mut self) -> Range<usize> {
        std::mem::replace(&mut self.range, 0..0)
    }
}

impl Mapping<Soft> {
    /// Loads bytes from `offset` on. `cpu` is of the calling thread, and of any space of the manager.
    ///
    /// # Errors
    /// How the access failed. Invalid: the bytes are not in the mapping.
    pub fn read(&self, cpu: &Cpu, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        cpu.read(self.bytes_at(offset, out.len())?, out)
    }

    /// Stores bytes from `offset` on.
    ///
    /// # Errors
    /// As for [`Mapping::read`].
    pub fn write(&self, cpu: &Cpu, offset: usize, data: &[u8]) -> Result<(), AccessError> {
        cpu.write(self.bytes_at(offset, data.len())?, data)
    }

    fn bytes_at(&self, offset: usize, len: usize) -> Result<usize, AccessError> {
        let end = offset.checked_add(len).ok_or(AccessError::Invalid(self.range.start))?;
        let part = self.part(&(offset..end));
        part.map(|(at, _)| at).map_err(|_| AccessError::Invalid(self.range.start))
    }
}

impl<P: Platform> Drop for Mapping<P> {
    fn drop(&mut self) {
        if !self.range.is_empty() {
            // What cannot be unmapped now, since a page is pinned, stays mapped, and goes with the space.
            let _ = self.space.unmap(self.range.start, self.range.len());
        }
    }
}

impl<P: Platform> fmt::Debug for Mapping<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("range", &self.range).field("len", &self.len).finish()
    }
}
