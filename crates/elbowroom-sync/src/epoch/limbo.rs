//! Retired values that their writer gets back.

use super::real::{Grace, Guard, pin};
use std::collections::VecDeque;
use std::sync::Arc;

/// Values that share one wait. Each batch costs a look at every thread's record, and what waits is memory and
/// cache.
const BATCH: usize = 32;
/// Batches that wait at most, before a writer gives values to its thread's list instead: some reader stays
/// pinned.
const WAITING_BATCHES: usize = 8;

/// Where a writer puts what it has taken out of [`ArcCell`](super::ArcCell)s, to get it back after a grace
/// period.
///
/// What a cell retires by itself is freed when nobody can reach it. What goes through here is used again,
/// while it is still in the writer's cache, whichever thread the writer is next time. Linux: the reason for
/// `kfree_rcu`'s batches.
///
/// Dropping it retires what still waits, as a cell does.
pub struct Limbo<T: Send + Sync + 'static> {
    filling: Vec<Arc<T>>,
    waiting: VecDeque<Batch<T>>,
    /// A batch without values, for its memory.
    spare: Option<Batch<T>>,
    ready: Vec<Arc<T>>,
    /// How many of `ready` there are at most.
    keep: usize,
}

struct Batch<T> {
    /// Over when no guard is left that was pinned when the batch was closed.
    grace: Grace,
    values: Vec<Arc<T>>,
}

impl<T: Send + Sync + 'static> Limbo<T> {
    /// An empty one that keeps `keep` values for reuse at most; what is more is dropped by
    /// [`collect`](Self::collect). With 0 each value waits by itself, and so as short as can be.
    pub const fn new(keep: usize) -> Self {
        Self { filling: Vec::new(), waiting: VecDeque::new(), spare: None, ready: Vec::new(), keep }
    }

    /// A value that was retired here and that no guard can reach any more, if there is one. It is the
    /// caller's like any other handle: `Arc::get_mut` says whether somebody else has one.
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
        let spare = self.spare.take();
        let mut batch = spare.unwrap_or_else(|| Batch { grace: Grace::over(), values: Vec::new() });
        std::mem::swap(&mut self.filling, &mut batch.values);
        guard.begin(&mut batch.grace);
        self.waiting.push_back(batch);
        self.collect();
        if self.waiting.len() > WAITING_BATCHES {
            let batch = self.waiting.pop_front();
            batch.into_iter().flat_map(|batch| batch.values).for_each(|value| guard.retire(value));
        }
    }

    /// Keeps for reuse, or drops, what no guard can reach any more. Retiring calls it now and then; who
    /// retires seldom calls it himself, a load and a branch when there is nothing to do.
    #[inline]
    pub fn collect(&mut self) {
        if !self.waiting.is_empty() {
            self.collect_waiting();
        }
    }

    fn collect_waiting(&mut self) {
        while let Some(mut batch) = self.waiting.pop_front_if(|batch| batch.grace.is_over()) {
            let room = self.keep.saturating_sub(self.ready.len());
            self.ready.extend(batch.values.drain(..).take(room));
            self.spare = Some(batch);
        }
    }
}

impl<T: Send + Sync + 'static> Drop for Limbo<T> {
    fn drop(&mut self) {
        let waiting = self.waiting.drain(..).flat_map(|batch| batch.values);
        let mut rest = waiting.chain(self.filling.drain(..)).peekable();
        if rest.peek().is_some() {
            let guard = pin();
            rest.for_each(|value| guard.retire(value));
        }
    }
}
