//! Retired values that their writer gets back.

use super::{Guard, pin};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Values that share one wait. Each batch costs a look at every thread's epoch, and what waits is memory and cache.
const BATCH: usize = 32;
/// Batches that wait at most, before a writer gives values to the collector instead: some reader stays pinned.
const WAITING_BATCHES: usize = 8;

/// Where a writer puts what it has taken out of [`ArcCell`](super::ArcCell)s, to get it back after a grace period.
///
/// A value that a cell retires by itself is dropped by whoever happens to pin, which for a structure that is written
/// without pause means the readers. What goes through here stays with its writer: readers do nothing for it, and the
/// memory is used again while it is still in the writer's cache. Linux: the reason for `kfree_rcu`'s batches.
///
/// Dropping it gives what still waits to the collector.
pub struct Limbo<T: Send + Sync + 'static> {
    filling: Vec<Arc<T>>,
    waiting: VecDeque<Batch<T>>,
    ready: Vec<Arc<T>>,
    /// How many of `ready` there are at most.
    keep: usize,
}

struct Batch<T> {
    /// Set when no guard is left that was pinned when the batch was closed.
    over: Arc<AtomicBool>,
    values: Vec<Arc<T>>,
}

impl<T: Send + Sync + 'static> Limbo<T> {
    /// An empty one that keeps `keep` values for reuse at most; what is more is dropped by [`collect`](Self::collect).
    /// With 0 each value waits by itself, and so as short as can be.
    pub const fn new(keep: usize) -> Self {
        Self { filling: Vec::new(), waiting: VecDeque::new(), ready: Vec::new(), keep }
    }

    /// A value that was retired here and that no guard can reach any more, if there is one. It is the caller's like any
    /// other handle: `Arc::get_mut` says whether somebody else has one.
    #[inline]
    pub fn reuse(&mut self) -> Option<Arc<T>> {
        self.ready.pop()
    }

    /// Takes in `old`, which has just left its cell.
    #[inline]
    pub(super) fn retire(&mut self, old: Arc<T>, guard: &Guard) {
        self.filling.push(old);
        if self.filling.len() >= self.batch() {
            self.close_batch(guard);
        }
    }

    /// How many values share a wait.
    #[inline]
    fn batch(&self) -> usize {
        if self.keep == 0 { 1 } else { BATCH }
    }

    #[cold]
    fn close_batch(&mut self, guard: &Guard) {
        let over = Arc::new(AtomicBool::new(false));
        let next = Vec::with_capacity(self.batch());
        let values = std::mem::replace(&mut self.filling, next);
        guard.defer({
            let over = over.clone();
            // Release: what readers did with the values is done before they are used again.
            move || over.store(true, Ordering::Release)
        });
        guard.flush();
        self.waiting.push_back(Batch { over, values });
        self.collect();
        if self.waiting.len() > WAITING_BATCHES {
            let batch = self.waiting.pop_front();
            guard.defer(move || drop(batch));
        }
    }

    /// Keeps for reuse, or drops, what no guard can reach any more. Retiring calls it now and then; who retires seldom
    /// calls it himself, a load and a branch when there is nothing to do.
    #[inline]
    pub fn collect(&mut self) {
        if !self.waiting.is_empty() {
            self.collect_waiting();
        }
    }

    fn collect_waiting(&mut self) {
        while let Some(batch) = self.waiting.pop_front_if(|batch| batch.over.load(Ordering::Acquire)) {
            let room = self.keep.saturating_sub(self.ready.len());
            self.ready.extend(batch.values.into_iter().take(room));
        }
    }
}

impl<T: Send + Sync + 'static> Drop for Limbo<T> {
    fn drop(&mut self) {
        let rest = (std::mem::take(&mut self.filling), std::mem::take(&mut self.waiting));
        if !rest.0.is_empty() || !rest.1.is_empty() {
            pin().defer(move || drop(rest));
        }
    }
}
