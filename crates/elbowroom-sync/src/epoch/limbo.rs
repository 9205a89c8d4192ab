//! Retired values that their writer gets back for reuse.

use super::real::{Grace, Guard, pin};
use std::collections::VecDeque;
use std::sync::Arc;

/// Values that share one grace period. Each batch costs a look at every thread's record; larger ones would
/// keep more memory and cache waiting.
const BATCH: usize = 32;
/// The most batches that wait. If there are more, because some reader stays pinned, the writer passes the
/// oldest on to its thread's list.
const WAITING_BATCHES: usize = 8;

/// Takes the values that a writer removes from [`ArcCell`](super::ArcCell)s, and gives them back to it
/// after a grace period.
///
/// A value that a cell retires by itself is freed when no reader can reach it. A value that goes through
/// here is used again, while it is still in the writer's cache, by whichever thread is the writer then.
/// Linux: the reason for `kfree_rcu`'s batches.
///
/// Dropping the limbo retires the values that still wait, as a cell does.
pub struct Limbo<T: Send + Sync + 'static> {
    filling: Vec<Arc<T>>,
    waiting: VecDeque<Batch<T>>,
    /// An empty batch whose memory is used again.
    spare: Option<Batch<T>>,
    ready: Vec<Arc<T>>,
    /// The most values in `ready`.
    keep: usize,
}

struct Batch<T> {
    /// It is over when all guards that were pinned when the batch was closed are gone.
    grace: Grace,
    values: Vec<Arc<T>>,
}

impl<T: Send + Sync + 'static> Limbo<T> {
    /// An empty limbo that keeps at most `keep` values for reuse; [`collect`](Self::collect) drops the
    /// others. With 0 each value is a batch of its own, and so waits as short as possible.
    pub const fn new(keep: usize) -> Self {
        Self { filling: Vec::new(), waiting: VecDeque::new(), spare: None, ready: Vec::new(), keep }
    }

    /// A value that was retired here and that no guard can reach any more, if there is one. It is a handle
    /// like any other: `Arc::get_mut` tells whether there are others.
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

    /// How many values share one grace period.
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

    /// Keeps for reuse, or drops, the values that no guard can reach any more. Retiring calls it now and
    /// then; a writer that seldom retires calls it itself. It costs a load and a branch when there is
    /// nothing to do.
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
