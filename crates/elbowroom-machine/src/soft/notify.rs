//! Which translations have become invalid, for subscribers that keep translations or data that they read
//! (Linux: mmu notifiers).
//!
//! It is a log that subscribers read; the MMU makes no callbacks. `unmap` enters its ranges *after* the
//! page tables are changed and *before* it returns, so before a frame is used for something else. A
//! subscriber takes the position ([`Subscription::begin`]), reads, uses what it has read, and then asks
//! [`Subscription::retry`]. If the answer is no, the translation was right until then. (KVM does the same
//! with `mmu_invalidate_retry`.)
//!
//! Nothing is logged while there is no subscriber. A new subscriber is not missed: it increments the count,
//! executes a full fence, and then reads; unmapping changes the tables, executes a full fence, and then
//! reads the count. So either the subscriber sees the changed tables, or unmapping sees the subscriber.

use super::{LOG_ENTRIES, Shared};
use elbowroom_sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use elbowroom_sync::{Arc, LockClass, LockStats, Mutex};
use std::collections::VecDeque;
use std::ops::Range;

/// Which translations have become invalid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invalidation {
    /// Translations of these addresses.
    Range(Range<usize>),
    /// All translations: the subscriber has lagged behind.
    Everything,
}

pub(super) struct Notifier {
    subscribers: AtomicUsize,
    /// How many invalidations were ever logged; written under the log's lock.
    head: AtomicU64,
    /// The last ones, at most [`LOG_ENTRIES`].
    log: Mutex<VecDeque<Range<usize>>>,
}

impl Notifier {
    pub(super) fn new(locks: &LockStats) -> Self {
        Self {
            subscribers: AtomicUsize::new(0),
            head: AtomicU64::new(0),
            log: locks.mutex(LockClass::Invalidation, VecDeque::new()),
        }
    }

    /// The most bytes that the log has taken so far.
    pub(super) fn bytes(&self) -> usize {
        (self.head.load(Ordering::Relaxed) as usize).min(LOG_ENTRIES) * size_of::<Range<usize>>()
    }

    /// Logs the ranges, if there is a subscriber. Called after the change of the tables and a full fence.
    pub(super) fn publish(&self, ranges: impl Iterator<Item = Range<usize>>) {
        if self.subscribers.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut log = self.log.lock();
        let mut head = self.head.load(Ordering::Relaxed);
        for range in ranges {
            if log.len() == LOG_ENTRIES {
                log.pop_front();
            }
            log.push_back(range);
            head += 1;
        }
        self.head.store(head, Ordering::Release);
    }

    /// The ranges that were logged from position `since` on, oldest first, and the position after them;
    /// `None` if some of them are no longer in the log.
    fn since(&self, since: u64) -> (Option<Vec<Range<usize>>>, u64) {
        let log = self.log.lock();
        let head = self.head.load(Ordering::Relaxed);
        let news = head.checked_sub(since).and_then(|news| usize::try_from(news).ok());
        let first = news.and_then(|news| log.len().checked_sub(news));
        (first.map(|first| log.range(first..).cloned().collect()), head)
    }
}

/// A reader of the log. Dropping it ends the subscription.
pub struct Subscription {
    shared: Arc<Shared>,
    seen: u64,
}

impl Subscription {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        shared.notifier.subscribers.fetch_add(1, Ordering::SeqCst);
        let mut subscription = Self { shared, seen: 0 };
        subscription.seen = subscription.begin();
        subscription
    }

    /// The present position in the log; to be taken before reading.
    pub fn begin(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.shared.notifier.head.load(Ordering::Acquire)
    }

    /// Whether a translation in `range` that was made after the position `since` was taken may be invalid by
    /// now.
    pub fn retry(&self, since: u64, range: &Range<usize>) -> bool {
        // Orders the caller's loads through the translation before the load of the position.
        fence(Ordering::Acquire);
        if self.shared.notifier.head.load(Ordering::Acquire) == since {
            return false;
        }
        let overlaps = |r: &Range<usize>| r.start < range.end && range.start < r.end;
        self.shared.notifier.since(since).0.is_none_or(|ranges| ranges.iter().any(overlaps))
    }

    /// Tells what has become invalid since the last call, oldest first; `tell` is called with no lock held.
    pub fn poll(&mut self, mut tell: impl FnMut(Invalidation)) {
        if self.shared.notifier.head.load(Ordering::Acquire) == self.seen {
            return;
        }
        let (ranges, head) = self.shared.notifier.since(self.seen);
        self.seen = head;
        match ranges {
            Some(ranges) => ranges.into_iter().map(Invalidation::Range).for_each(tell),
            None => tell(Invalidation::Everything),
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.shared.notifier.subscribers.fetch_sub(1, Ordering::SeqCst);
    }
}
