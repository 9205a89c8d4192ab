//! Folios that are to be listed: a batch for each thread, so that the lock of a list is taken once for many
//! folios. Linux: `struct cpu_fbatches` and `folio_batch_move_lru`.
//!
//! A folio of a batch is in no list. If it dies in the batch, it is not listed
//! ([`Lruvec`](super::Lruvec)).
//! Batches are small. A reclaim that finds nothing in the lists has all batches listed
//! ([`Lruvecs::drain`](super::Lruvecs::drain)), and so has the thread that keeps frames at hand, once a
//! second: pages of threads that do nothing any more are the first to go.
//!
//! Synchronization: a mutex for each batch, held while the batch is listed: a thread that drains all batches
//! has then also what another thread was about to list.

use super::List;
use crate::page::Folio;
use elbowroom_sync::{Arc, LockClass, Mutex, PerThread};

/// A batch with so many folios is listed. Linux: `PAGEVEC_SIZE`.
const BATCH_FOLIOS: usize = if cfg!(shuttle) { 2 } else { 31 };

/// A batch whose folios count as so many pages is listed: what reclaim does not find is little memory.
const BATCH_PAGES: u32 = 64;

/// A folio that is to be listed.
pub(super) struct Addition {
    pub(super) folio: Arc<Folio>,
    pub(super) list: List,
    /// As how many pages the folio counts.
    pub(super) pages: u32,
}

#[derive(Default)]
struct Batch {
    additions: Vec<Addition>,
    pages: u32,
}

/// The batch of one thread.
struct OfThread(Mutex<Batch>);

impl Default for OfThread {
    fn default() -> Self {
        Self(Mutex::uncounted(LockClass::LruBatch, Batch::default()))
    }
}

/// The batches of all threads.
#[derive(Default)]
pub(super) struct Additions {
    threads: PerThread<OfThread>,
}

impl Additions {
    /// Adds to the calling thread's batch, and lists the batch if it is full.
    pub(super) fn add(&self, addition: Addition, list_all: impl FnOnce(&mut Vec<Addition>)) {
        let mut batch = self.threads.mine().0.lock();
        batch.pages = batch.pages.saturating_add(addition.pages);
        batch.additions.push(addition);
        if batch.additions.len() >= BATCH_FOLIOS || batch.pages >= BATCH_PAGES {
            batch.pages = 0;
            list_all(&mut batch.additions);
        }
    }

    /// Lists all batches; `false`: they were empty.
    pub(super) fn drain(&self, mut list_all: impl FnMut(&mut Vec<Addition>)) -> bool {
        let mut any = false;
        for thread in self.threads.all() {
            let mut batch = thread.0.lock();
            if !batch.additions.is_empty() {
                batch.pages = 0;
                list_all(&mut batch.additions);
                any = true;
            }
        }
        any
    }
}
