//! The pages that belong to one space alone: anonymous memory, and copies of a file's pages that were stored to.
//!
//! They are found by their address, as Linux finds them in its page tables; mremap moves them. After a fork two spaces have the
//! same folio until one of them stores to it: [`Folio::mapcount`] tells how many have it.
//!
//! A folio is taken out, moved or replaced only by who has its lock and has seen, since locking it, that it is the one at the page. So who has locked it and
//! seen that may rely on it until unlocking; a folio that was looked up before it was locked may be anybody's by then.

use crate::page::Folio;
use elbowroom_index::XArray;
use elbowroom_sync::epoch::pin;
use elbowroom_sync::{Arc, LockClass, LockStats, Mutex};
use std::ops::Range;

/// The index, by page number of the address. Readers take no lock.
pub struct AnonPages {
    pages: XArray<Folio>,
    changes: Mutex<()>,
}

impl AnonPages {
    /// None.
    pub fn new(locks: &LockStats) -> Self {
        Self { pages: XArray::new(), changes: locks.mutex(LockClass::Anon, ()) }
    }

    /// The folio at a page.
    pub fn lookup(&self, page: u64) -> Option<Arc<Folio>> {
        self.pages.load_arc(page, &pin())
    }

    /// Puts a folio there; `false` if there is one.
    pub fn insert(&self, page: u64, folio: &Arc<Folio>) -> bool {
        let _changes = self.changes.lock();
        self.pages.writer().store(page, 0, folio.clone()).is_ok()
    }

    /// Whether `folio` is the one there. It stays so while the caller has the folio's lock: all who change what is there have that of what was.
    pub fn has(&self, page: u64, folio: &Arc<Folio>) -> bool {
        self.lookup(page).is_some_and(|there| Arc::ptr_eq(&there, folio))
    }

    /// Puts `new` in the place of `old`, whose lock the caller has; `false` if that is not there.
    pub fn replace(&self, page: u64, old: &Arc<Folio>, new: &Arc<Folio>) -> bool {
        let _changes = self.changes.lock();
        self.has(page, old) && self.pages.writer().replace(page, new.clone()).is_ok()
    }

    /// Takes `folio`, whose lock the caller has, out; `false` if it is not there.
    pub fn remove(&self, page: u64, folio: &Arc<Folio>) -> bool {
        let _changes = self.changes.lock();
        self.has(page, folio) && self.pages.writer().erase(page, None).is_some()
    }

    /// Whether there is any in a range of pages.
    pub fn has_any(&self, pages: Range<u64>) -> bool {
        !self.pages.is_empty() && self.pages.range(pages, &pin()).next().is_some()
    }

    /// The folios in a range of pages, with their pages.
    pub fn in_range(&self, pages: Range<u64>) -> Vec<(u64, Arc<Folio>)> {
        if self.pages.is_empty() {
            return Vec::new();
        }
        let guard = pin();
        self.pages.range(pages, &guard).arcs().map(|entry| (entry.index, entry.value)).collect()
    }

    /// The part of `pages` around `page` that has none.
    pub fn gap_around(&self, page: u64, pages: Range<u64>) -> Range<u64> {
        if self.pages.is_empty() {
            return pages;
        }
        let guard = pin();
        let mut gap = pages.clone();
        for entry in self.pages.range(pages, &guard) {
            if entry.index < page {
                gap.start = entry.index + 1;
            } else {
                gap.end = entry.index;
                break;
            }
        }
        gap
    }
}
