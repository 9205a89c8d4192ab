//! Giving files and addresses to the kernel. docs/decisions/0015-one-owner.md
//!
//! A file is the manager's or the kernel's, never both, because the bytes in their two page caches would
//! differ. So always a whole file goes back, with all of its mappings, at one moment and at the same
//! addresses. Free addresses of ours go back by being unmapped in the kernel, too.

use super::Space;
use super::change::{AfterChange, BeginOptions, Change, Pages, VmaPart};
use crate::config::{DELAY, PINNED_BOUND};
use crate::object::{ALL_PAGES, FileObject, MappedRange, Standing, Which};
use crate::pause::{Cause, pause};
use crate::platform::Host;
use crate::stats::Event;
use crate::trace::Verb;
use crate::vma::{Pattern, Prot, VmaFlags};
use crate::writeback::Obstacle;
use elbowroom_machine::{Errno, GivenAdvice, GivenState, Mmu, PAGE_SIZE, PutBytes, RearmError, Side};
use elbowroom_store::FileId;
use elbowroom_sync::Arc;
use elbowroom_sync::time::Instant;
use std::ops::Range;

/// The result of one attempt to give a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// No mapping of the file is left, and all of its bytes are written.
    NoneLeft,
    /// All mappings that were found are the kernel's now; more may have been made meanwhile.
    Given,
    /// Not now: dirty pages could not be written yet (their bytes are being written through a descriptor),
    /// or the file was mapped again meanwhile.
    NotNow,
}

impl Space<Host> {
    /// Makes the range wholly the kernel's: each file that is mapped there goes back
    /// ([`Space::give_file`]), so does anonymous memory, and free addresses are unmapped in the kernel.
    /// Afterwards the kernel's own calls find in the range what the program believes is there.
    ///
    /// # Errors
    /// EINVAL: the address is not aligned. EOPNOTSUPP: a mapping there is of shared memory. EBUSY: a page
    /// is pinned, or being written, for longer than the bound. ENOMEM: the kernel has too many mappings.
    /// The error of a write-back. Files before the one that could not be given have gone back.
    pub fn hand_back(&self, addr: usize, len: usize) -> Result<(), Errno> {
        if !addr.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::INVAL);
        }
        let range = self.clamped(addr, len);
        if range.is_empty() {
            return Ok(());
        }
        let mut objects: Vec<Arc<FileObject>> = Vec::new();
        for part in self.parts(&range) {
            let Some(object) = part.spec.object.as_deref() else {
                self.give_memory(part.range, BeginOptions::default())?;
                continue;
            };
            if !objects.iter().any(|known| Arc::ptr_eq(known, object)) {
                objects.push(object.clone());
            }
        }
        objects.iter().try_for_each(|object| self.give_object(object))?;
        self.punch(&range)
    }

    /// Gives anonymous memory back: the kernel's own memory is mapped there then, with the same bytes.
    pub(super) fn give_memory(&self, range: Range<usize>, options: BeginOptions) -> Result<(), Errno> {
        let change = self.begin_on(options, range, |parts| {
            // The memory may have been unmapped meanwhile, and a file mapped there.
            let same = parts.iter().all(|part| part.spec.object.is_none());
            if same { Ok(Pages::Leave) } else { Err(Errno::BUSY) }
        })?;
        let mut kept = Vec::new();
        let mut given = Ok(());
        for part in &change.parts {
            given = given.and_then(|()| self.map_kernels_own(part));
            if given.is_err() {
                kept.push(part.with(|_| ()));
            }
        }
        self.finish(change, kept, AfterChange::Given);
        given
    }

    /// Gives all anonymous memory back, and private copies of files' pages: a child of fork gets the kernel's
    /// copies of them.
    ///
    /// # Errors
    /// The first of those of [`Space::hand_back`], after all were tried.
    pub fn give_private(&self) -> Result<(), Errno> {
        let mut first = Ok(());
        for part in self.parts(&self.everything()) {
            if !part.spec.is_private() {
                continue;
            }
            let given = match part.spec.object.as_deref() {
                None => self.give_memory_in(&part.range),
                Some(object) if self.mm.anon.has_any(part.page_numbers()) => self.give_object(object),
                Some(_) => Ok(()),
            };
            first = first.and(given);
        }
        first
    }

    /// Gives back the anonymous memory that is in the range now, which may not be what was there when the
    /// range was looked up.
    ///
    /// Other threads may have mapped and unmapped there meanwhile. Each VMA that reaches into the range
    /// goes back whole, also beyond the range. If one mapping of the program were given in two parts, the
    /// kernel would keep two VMAs (it does not merge two that both have pages), and mremap of the whole
    /// would fail with EFAULT.
    fn give_memory_in(&self, range: &Range<usize>) -> Result<(), Errno> {
        let deadline = Instant::now() + PINNED_BOUND;
        loop {
            let anonymous = |part: &VmaPart| part.spec.is_private() && part.spec.object.is_none();
            let whole = || BeginOptions { whole: true, brief: true, ..BeginOptions::default() };
            let mut parts = self.parts(range).into_iter().filter(anonymous);
            match parts.try_for_each(|part| self.give_memory(part.range, whole())) {
                // A file has been mapped there meanwhile, or a page is pinned.
                Err(Errno::BUSY) if Instant::now() < deadline => pause(Cause::Contended, DELAY),
                given => return given,
            }
        }
    }

    /// Gives a file back: all its mappings become the kernel's own, of the same pages, with the same
    /// rights, through the descriptor that the program made them with. What was dirty is written first, so
    /// the bytes are the same. `false`: the file is not managed.
    ///
    /// # Errors
    /// As for [`Space::hand_back`]. The file stays managed then. If the kernel refused one of the mappings,
    /// those that were given before it stay the kernel's.
    pub fn give_file(&self, id: FileId) -> Result<bool, Errno> {
        match self.core.objects.find(id) {
            Some(object) => self.give_object(&object).map(|()| true),
            None => Ok(false),
        }
    }

    pub(super) fn give_object(&self, object: &Arc<FileObject>) -> Result<(), Errno> {
        if object.is_memory() {
            return Err(Errno::OPNOTSUPP);
        }
        let deadline = Instant::now() + PINNED_BOUND;
        // One thread at a time gives the file; a second one waits, and then finds it closed, or tries
        // itself.
        while !object.begin_giving() {
            if Instant::now() > deadline {
                return Err(Errno::BUSY);
            }
            pause(Cause::Contended, DELAY);
        }
        let give = || if object.is_closed() { Ok(()) } else { self.give_open(object) };
        let given = self.core.verb(Verb::GiveBack, 0, object.size() as usize, give);
        object.end_giving();
        given
    }

    fn give_open(&self, object: &Arc<FileObject>) -> Result<(), Errno> {
        // From now on no thread maps the file anew.
        object.set_aliased(true);
        if let Some(tell) = &self.core.config.hooks.on_hand_back {
            tell(object.id());
        }
        let given = self.give_all(object);
        if given.is_err() {
            // The kernel cannot have the file, or not now. It stays managed, and the next caller with a
            // reason to give it tries again.
            object.set_aliased(false);
            return given;
        }
        self.core.counters.add(Event::HandedBackFiles, 1);
        if let Some(kept) = &self.core.patterns().kept {
            kept.closed(object);
        }
        self.core.objects.give(object);
        self.core.drop_clean(object, ALL_PAGES);
        object.close_retired();
        Ok(())
    }

    fn give_all(&self, object: &Arc<FileObject>) -> Result<(), Errno> {
        let deadline = Instant::now() + PINNED_BOUND;
        loop {
            match self.give_mappings(object) {
                Ok(Attempt::NoneLeft) => return Ok(()),
                Ok(Attempt::Given) => {}
                // Pinned or being written, or the kernel has too many mappings: that may have changed when
                // we try again.
                Ok(Attempt::NotNow) | Err(Errno::BUSY | Errno::NOMEM) if Instant::now() < deadline => {
                    pause(Cause::Kernel, DELAY);
                }
                Ok(Attempt::NotNow) => return Err(Errno::BUSY),
                Err(error) => return Err(error),
            }
        }
    }

    /// Replaces the mappings of the file by the kernel's own, all at one moment.
    fn give_mappings(&self, object: &Arc<FileObject>) -> Result<Attempt, Errno> {
        let mut changes = Vec::new();
        let given = self.begin_giving(object, &mut changes);
        if given != Ok(Attempt::Given) {
            changes.into_iter().for_each(|change| self.undo(change));
            return given;
        }
        let mut mapped = Ok(());
        for change in changes {
            let mut kept = Vec::new();
            for part in &change.parts {
                mapped = mapped.and_then(|()| self.map_kernels_own(part));
                if mapped.is_err() {
                    kept.push(part.with(|_| ()));
                }
            }
            self.finish(change, kept, AfterChange::Given);
        }
        mapped.map(|()| Attempt::Given)
    }

    /// Takes the file's mappings out of the layout, and writes their dirty pages to the file. The changes
    /// that have begun are in `changes`, whatever the result.
    fn begin_giving(&self, object: &Arc<FileObject>, changes: &mut Vec<Change>) -> Result<Attempt, Errno> {
        {
            // While no change is under way, no mapping of the file is out of the index, where this would
            // miss it.
            let _still = self.core.keep_still(&self.mm).ok_or(Errno::BUSY)?;
            let ranges = self.ranges_of(object);
            if ranges.is_empty() {
                // Pages that were stored to through mappings that are gone must be written, too.
                let written = self.is_written(object)?;
                return Ok(if written { Attempt::NoneLeft } else { Attempt::NotNow });
            }
            for range in ranges {
                let options = BeginOptions { beside_another: true, brief: true, ..BeginOptions::default() };
                let change = self.begin_on(options, range, |parts: &[VmaPart]| {
                    let wanted =
                        |part: &VmaPart| part.spec.object.as_ref().is_some_and(|o| Arc::ptr_eq(o, object));
                    if parts.iter().all(wanted) { Ok(Pages::Leave) } else { Err(Errno::BUSY) }
                })?;
                changes.push(change);
            }
        }
        if !self.ranges_of(object).is_empty() {
            // The file was mapped again after its mappings were listed.
            return Ok(Attempt::NotNow);
        }
        Ok(if self.is_written(object)? { Attempt::Given } else { Attempt::NotNow })
    }

    /// The address ranges at which the file is mapped, without those that are being changed.
    fn ranges_of(&self, object: &FileObject) -> Vec<Range<usize>> {
        let mapped = object.rmap.in_space(self.base, &ALL_PAGES, Which::All).into_iter();
        let there = |m: MappedRange| (m.standing == Standing::Mapped).then_some(m.range);
        mapped.filter_map(there).collect()
    }

    /// Writes back those dirty pages of the file that can be written now, mapped or not. Tells whether no
    /// dirty page is left.
    ///
    /// # Errors
    /// That of a write-back.
    fn is_written(&self, object: &Arc<FileObject>) -> Result<bool, Errno> {
        self.core.write_back(object, ALL_PAGES, Obstacle::Skip)?;
        Ok(!object.has_dirty())
    }

    fn map_kernels_own(&self, part: &VmaPart) -> Result<(), Errno> {
        let (read, write) = (u32::from(Prot::READ.bits()), u32::from(Prot::WRITE.bits()));
        debug_assert_eq!((read, write), (1, 2), "the bits are those of PROT_READ and PROT_WRITE");
        let prot = u32::from(part.spec.prot.bits());
        let offset = part.first_page * PAGE_SIZE as u64;
        let (range, private) = (part.range.clone(), part.spec.is_private());
        let file = part.spec.object.as_ref().map(|object| object.file());
        let opened = file.as_ref().and_then(|file| file.as_ref());
        let descriptor = match (&part.spec.origin, opened) {
            (Some(origin), _) => Some(origin.as_fd()),
            (None, Some(file)) => Some(file.as_fd()),
            (None, None) if file.is_some() => return Err(Errno::BADF),
            (None, None) => None,
        };
        let (flags, advice) = (part.spec.flags, &advice_of(part)[..]);
        let state = GivenState { prot, no_reserve: flags.contains(VmaFlags::NO_RESERVE), advice };
        // Looked at only now: during the change no further private copies can appear.
        match descriptor {
            Some(file) if !(private && self.mm.anon.has_any(part.page_numbers())) => {
                self.core.mmu.map_file(range, file, offset, &state, private)?;
            }
            file => {
                let file = file.map(|file| (file, offset));
                let fill = |put: PutBytes<'_>| self.core.copy_own(&self.mm, part, put);
                self.core.mmu.map_private(range, file, &state, fill)?;
                self.core.drop_own(&self.mm, part);
            }
        }
        Ok(())
    }

    /// Unmaps the free addresses of the range in the kernel, too, so that they are the kernel's.
    ///
    /// # Errors
    /// The kernel's: too many mappings.
    fn punch(&self, range: &Range<usize>) -> Result<(), Errno> {
        let mut layout = self.layout_without_change_in(range);
        for hole in self.mm.free_in(range, &layout) {
            Mmu::punch(&self.core.mmu, hole.clone())?;
            self.mm.take(&mut layout, &hole);
        }
        Ok(())
    }

    /// Unmaps the range in the kernel, too, if nothing of ours is mapped there: for a mapping of the
    /// kernel's that is to be there only if there is room.
    ///
    /// # Errors
    /// EEXIST: something of ours is mapped there. The kernel's: too many mappings.
    pub fn make_room(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let range = self.clamped(addr & !(PAGE_SIZE - 1), len);
        if !self.parts(&range).is_empty() {
            return Err(Errno::EXIST);
        }
        if range.is_empty() { Ok(()) } else { self.punch(&range) }
    }

    /// Unmaps in the kernel, too, the free addresses right below `addr`, at most `len` bytes: for a mapping
    /// of the kernel's there that grows downwards.
    ///
    /// # Errors
    /// The kernel's: too many mappings.
    pub fn make_room_below(&self, addr: usize, len: usize) -> Result<(), Errno> {
        let below = self.clamped(addr.saturating_sub(len), len.min(addr));
        let lowest = self.parts(&below).last().map_or(below.start, |part| part.range.end);
        if lowest < below.end { self.punch(&(lowest..below.end)) } else { Ok(()) }
    }

    /// Takes back the addresses of the range that were given to the kernel, and replaces what the kernel
    /// has mapped there: for a fixed mapping of ours.
    ///
    /// # Errors
    /// EINVAL: the range is not inside one window. The kernel's. What it mapped there may be gone then.
    pub fn take_back(&self, addr: usize, len: usize) -> Result<(), Errno> {
        self.take_back_by(addr, len, |part| self.core.mmu.rearm(part))
    }

    /// Takes back the addresses of the range that were given to the kernel, if the kernel has nothing
    /// mapped there: for a mapping of ours that is to replace nothing.
    ///
    /// # Errors
    /// EEXIST: something of the kernel's is mapped there. EINVAL: the range is not inside one window. The
    /// kernel's.
    pub fn take_back_free(&self, addr: usize, len: usize) -> Result<(), Errno> {
        self.take_back_by(addr & !(PAGE_SIZE - 1), len, |part| self.core.mmu.rearm_free(part))
    }

    fn take_back_by(
        &self,
        addr: usize,
        len: usize,
        rearm: impl Fn(&Range<usize>) -> Result<(), RearmError>,
    ) -> Result<(), Errno> {
        let range = self.range(addr, len).ok_or(Errno::INVAL)?;
        let mut layout = self.layout_without_change_in(&range);
        let parts = self.core.mmu.windows().parts(range);
        for (_, part) in parts.filter(|(side, _)| *side == Side::Kernel) {
            rearm(&part).map_err(|error| error.errno)?;
            self.mm.release(&mut layout, &part);
        }
        Ok(())
    }

    /// Gives back every mapped file that the child of a fork could store to, or in which it could see
    /// stores: the child has the descriptors of its parent, but not our mappings.
    ///
    /// # Errors
    /// The first of those of [`Space::give_file`], after all were tried.
    pub fn give_shared(&self) -> Result<(), Errno> {
        let mut first = Ok(());
        for object in self.core.objects.all() {
            let Some(opened) = object.opened() else { continue };
            let watched = opened.guard.as_ref().is_some_and(|guard| !guard.is_lease());
            if (watched || opened.file.writable()) && object.is_mapped() {
                first = first.and(self.give_object(&object));
            }
        }
        first
    }

    /// Called before the kernel maps a file that may be managed: gives the file back if stores are possible
    /// through the kernel's mapping (`writes`), or through ours.
    ///
    /// # Errors
    /// As for [`Space::give_file`].
    pub fn give_if_stored_to(&self, id: FileId, writes: bool) -> Result<(), Errno> {
        match self.core.objects.find(id) {
            Some(object) if writes || object.file().is_some_and(|file| file.writable()) => {
                self.give_object(&object)
            }
            _ => Ok(()),
        }
    }

    /// Gives back the files of which a folio is moved from one mapping to another all the time.
    ///
    /// A folio is mapped in one place. An instruction that needs two mappings of the same folio at once
    /// (`rep movsb` from one to the other) would fault for ever, and a loop that uses the two in turn is
    /// slow. In the kernel both work.
    pub(crate) fn settle_aliases(&self) {
        self.core.note_alias_look();
        for object in self.core.objects.all() {
            if object.take_bouncing() && self.give_object(&object).is_ok() {
                self.core.counters.add(Event::AliasedFiles, 1);
            }
            // Another process has opened the file, and it could not be given back at that time.
            if object.opened().and_then(|opened| opened.guard).is_some_and(|guard| guard.is_broken()) {
                let _ = self.give_object(&object);
            }
        }
    }
}

/// The advice that madvise has left on a mapping, for the kernel's mapping in its place.
fn advice_of(part: &VmaPart) -> Vec<GivenAdvice> {
    let pattern = match part.spec.pattern {
        Pattern::Detect => None,
        Pattern::Random => Some(GivenAdvice::Random),
        Pattern::Sequential => Some(GivenAdvice::Sequential),
    };
    let flags = [
        (VmaFlags::DONT_FORK, GivenAdvice::LinuxDontFork),
        (VmaFlags::WIPE_ON_FORK, GivenAdvice::LinuxWipeOnFork),
        (VmaFlags::DONT_DUMP, GivenAdvice::LinuxDontDump),
        (VmaFlags::HUGE_PAGE, GivenAdvice::LinuxHugepage),
        (VmaFlags::NO_HUGE_PAGE, GivenAdvice::LinuxNoHugepage),
        (VmaFlags::MERGEABLE, GivenAdvice::LinuxMergeable),
    ];
    let said =
        flags.into_iter().filter(|(flag, _)| part.spec.flags.contains(*flag)).map(|(_, advice)| advice);
    pattern.into_iter().chain(said).collect()
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::{Config, Manager, MapRequest, Place};

    /// Another thread unmaps, maps and grows mappings after the range was looked up and before the change
    /// begins. Its mapping goes back as one, so that the kernel's mremap can move it as a whole.
    #[test]
    fn what_is_found_by_an_older_range_goes_back_whole() {
        const LEN: usize = 8 * PAGE_SIZE;
        let config = Config { swap: 16 << 20, ..Config::with_memory(16 << 20) };
        let (manager, space) = match Manager::start(config) {
            Ok(started) => started,
            Err(error) => return eprintln!("SKIPPED: real pointers: {error}"),
        };
        let map = |place| space.map(MapRequest { place, ..MapRequest::private_memory(LEN) }).unwrap();
        for (before, after) in [(2, 6), (0, 4), (4, 8), (3, 4)] {
            let start = map(Place::Anywhere);
            let old = start + before * PAGE_SIZE..start + after * PAGE_SIZE;
            space.give_memory_in(&old).unwrap();
            let owned = manager.windows().intersects(start, LEN);
            assert!(!owned, "pages {before}..{after}: a part stays ours");
        }
    }
}
