//! Coherence with reads, writes and size changes through descriptors.

use super::Spaces;
use crate::config::{DELAY, PINNED_BOUND};
use crate::core::Mapper;
use crate::object::{ALL_PAGES, FileObject, MappedRange, Which, WriteTicket};
use crate::pause::{Cause, pause};
use crate::platform::Platform;
use crate::vma::{Mm, Vma};
use crate::writeback::Obstacle;
use elbowroom_machine::{Errno, PAGE_SHIFT, PAGE_SIZE};
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::{Ordering, fence};
use elbowroom_sync::time::Instant;
use std::ops::Range;

impl<P: Platform> Spaces<P> {
    /// Announces a write(2) to the bytes `range`.
    pub(crate) fn write_begin(&self, object: &Arc<FileObject>, range: Range<u64>) -> WriteTicket {
        let changed = object.begin_change();
        self.follow_others(object);
        if changed {
            self.drop_foreign(object);
        }
        let pages = range.start >> PAGE_SHIFT..range.end.div_ceil(PAGE_SIZE as u64);
        let number = object.writers.begin(range);
        // A write-back that began before would put the old bytes over the new ones: it must end first. One
        // that begins now sees the announcement.
        for folio in object.dirty_in(pages) {
            self.waits.wait(&folio);
        }
        WriteTicket { object: object.clone(), number }
    }

    /// Takes the bytes that a write(2) has put into the file into the cached pages, and lets write-back have
    /// them again.
    pub(crate) fn write_end(&self, ticket: WriteTicket, written: Range<u64>) {
        if !written.is_empty() {
            self.reread(&ticket.object, written);
        }
        // A file that cannot be asked keeps the size it had.
        let _ = ticket.object.end_change();
        self.follow_own_change(&ticket.object);
        ticket.object.writers.end(ticket.number);
    }

    /// Called after the size was looked at in a change of our own: reads the file's bytes where stores were
    /// made beyond its end. Pages that were beyond the end may be inside now, so the file's denials are
    /// undone, whatever the size was before: the flusher may have noted the new size already.
    fn follow_own_change(&self, object: &Arc<FileObject>) {
        self.settle(object);
        self.allow_again(object, Obstacle::Wait);
    }

    /// Follows a change of the file's size, and perhaps of its bytes `changed`: these are read anew, stores
    /// to whole pages of them are forgotten, pages beyond the end are dropped, and the rest of the last
    /// page is zeroed.
    pub(crate) fn resized(&self, object: &Arc<FileObject>, changed: Range<u64>) {
        // A file that cannot be asked keeps the size it had.
        let _ = object.note_own_change();
        self.follow_own_change(object);
        let size = object.size();
        let whole = changed.start.div_ceil(PAGE_SIZE as u64)..changed.end >> PAGE_SHIFT;
        // Bytes that were truncated meanwhile by another thread or process are gone, too, even if the file
        // has grown again.
        let (kept, changed) = match object.take_cut() {
            Some(cut) if cut < size => (cut, changed.start.min(cut)..size),
            _ => (size, changed.start..changed.end.min(size)),
        };
        self.drop_beyond(object, kept, &whole, Obstacle::Wait);
        self.drop_copies_beyond(object, size.div_ceil(PAGE_SIZE as u64));
        if !changed.is_empty() {
            self.reread(object, changed);
        }
    }

    /// Follows a change after which the file has other bytes from `from` on: they are read anew, and
    /// private mappings lose their copies of them. Linux: `truncate_pagecache`, as ext4 calls it before it
    /// moves blocks.
    pub(crate) fn moved(&self, object: &Arc<FileObject>, from: u64) {
        self.resized(object, from..u64::MAX);
        self.drop_copies(object, from >> PAGE_SHIFT, || true);
    }

    /// Drops the copies that private mappings have of pages from `end` on: what was truncated is gone for
    /// them, too.
    fn drop_copies_beyond(&self, object: &Arc<FileObject>, end: u64) {
        // Only until the file grows again: copies that are made after that are not of what was truncated.
        self.drop_copies(object, end, || object.size_pages() <= end);
    }

    /// Drops the copies that private mappings have of pages from `end` on, as long as `wanted`. A copy that
    /// stays pinned stays. Linux: `unmap_mapping_range` with `even_cows`.
    fn drop_copies(&self, object: &Arc<FileObject>, end: u64, wanted: impl Fn() -> bool) {
        // The fence pairs with that in `copy_on_write`: a fault that is making a copy sees the new size, or
        // its copy is found here.
        fence(Ordering::SeqCst);
        if !object.may_have_copies() {
            // There are no private mappings, so changes of mappings need not be held up.
            return;
        }
        let deadline = Instant::now() + PINNED_BOUND;
        let beyond = end..ALL_PAGES.end.max(end);
        let mappers = || self.mappers(object, &beyond, Which::Private);
        // Repeat until no copy is found, and no space is left that was not looked at. mremap may move a
        // copy after it was listed and before it is locked; and fork may share copies with a child that was
        // not listed yet, before they are dropped from its parent.
        let mut next = mappers();
        while wanted() {
            let (mut found, mut busy) = (0, 0);
            let looked_at = next;
            for mapper in &looked_at {
                let mapped = self.mapped_still(mapper, object, &beyond, Which::Private);
                let Some((layout, mapped)) = mapped else { continue };
                let own = |m: &MappedRange| mapper.mm.anon.owned_in(m.page_numbers(&beyond));
                let copies: Vec<_> = mapped.iter().flat_map(own).map(|own| own.start).collect();
                drop(layout);
                found += copies.len();
                let dropped = |page: &&u64| self.drop_copy(&mapper.mm, **page, object, end);
                busy += copies.iter().filter(|page| !dropped(page)).count();
            }
            next = mappers();
            let known = |mapper: &Mapper| looked_at.iter().any(|other| Arc::ptr_eq(&mapper.mm, &other.mm));
            if found == 0 && next.iter().all(known) || Instant::now() > deadline {
                return;
            }
            if busy > 0 {
                pause(Cause::Pinned, DELAY);
            }
        }
    }

    /// Drops one private copy, if `page` still maps a page of the object from `end` on. `false`: it is
    /// pinned, or its mapping is being changed.
    fn drop_copy(&self, mm: &Mm, page: u64, object: &Arc<FileObject>, end: u64) -> bool {
        let beyond = |vma: &Vma| {
            let maps = vma.spec.object.as_ref().is_some_and(|o| Arc::ptr_eq(o, object));
            maps && vma.page_at((page as usize) << PAGE_SHIFT) >= end
        };
        self.drop_own_if(mm, page, &(page..page + 1), beyond).is_some()
    }

    /// Writes back what a read(2) of the bytes would otherwise miss.
    pub(crate) fn before_read(&self, object: &Arc<FileObject>, bytes: Range<u64>) -> Result<(), Errno> {
        let pages = bytes.start >> PAGE_SHIFT..bytes.end.div_ceil(PAGE_SIZE as u64);
        self.write_back(object, pages, Obstacle::Wait)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::{Advice, Config, Host, Manager, MapRequest, Prot, Sharing, Soft};
    use elbowroom_machine::{Errno, Mmu, PAGE_SIZE};

    /// Undoing a denial takes the page's rights away for a moment, so it must not be done at each write(2)
    /// without need.
    #[test]
    fn what_is_beyond_the_end_stays_denied_until_it_is_inside() {
        let (manager, space) = match Manager::<Host>::start(Config::with_memory(16 << 20)) {
            Ok(started) => started,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PAGE_SIZE as u64).unwrap();
        let object = manager.open(file.path(), true).unwrap();
        let memory = MapRequest::private_memory(4 * PAGE_SIZE);
        let (prot, sharing, file_object) = (Prot::READ, Sharing::Shared, Some(object.clone()));
        let request = MapRequest { prot, sharing, object: file_object, ..memory };
        let start = space.map(request).unwrap();
        let page = |number: usize| start + number * PAGE_SIZE..start + (number + 1) * PAGE_SIZE;
        let denied = || (0..4).map(|number| manager.core().mmu.denies(page(number))).collect::<Vec<_>>();
        for number in 1..4 {
            assert_eq!(space.advise(page(number).start, PAGE_SIZE, Advice::PopulateRead), Err(Errno::FAULT));
        }
        assert_eq!(denied(), [false, true, true, true]);
        let ticket = manager.core().write_begin(&object, 0..10);
        manager.core().write_end(ticket, 0..10);
        assert_eq!(denied(), [false, true, true, true], "the file is no longer than it was");
        for pages in [2, 3] {
            file.as_file().set_len(pages * PAGE_SIZE as u64).unwrap();
            manager.resized(&object, 0..0);
            assert_eq!(denied(), [false, false, pages < 3, true], "{pages} pages");
        }
        assert_eq!(space.advise(start, 3 * PAGE_SIZE, Advice::PopulateRead), Ok(()));
        space.unmap(start, 4 * PAGE_SIZE).unwrap();
        assert_eq!(denied(), [false; 4]);
    }

    /// A thread that has made a file grow must not go on while the flusher is still undoing the file's
    /// denials.
    #[test]
    fn denials_are_undone_by_all_who_come_meanwhile() {
        let manager = Manager::<Soft>::start_on(Config::with_memory(16 << 20)).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(2 * PAGE_SIZE as u64).unwrap();
        let object = manager.open(file.path(), true).unwrap();
        assert_eq!(object.begin_undoing(), None);
        object.note_denied(1);
        assert_eq!(object.begin_undoing(), Some(2));
        assert_eq!(object.begin_undoing(), Some(2), "the first is not through");
        object.end_undoing();
        object.end_undoing();
        assert_eq!(object.begin_undoing(), None);
        object.note_denied(5);
        assert_eq!(object.begin_undoing(), None, "it is beyond the end");
        file.as_file().set_len(6 * PAGE_SIZE as u64).unwrap();
        manager.resized(&object, 0..0);
        assert_eq!(object.begin_undoing(), None, "that has undone it");
    }
}
