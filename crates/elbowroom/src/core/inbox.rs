//! What threads leave for the handlers: faults that became ready, pages to read ahead, pages that came.
//!
//! Synchronization: a lock for each handler's jobs, and one for its waiting faults; atomics.

use crate::group::Frames;
use crate::object::FileObject;
use crate::page::{Beat, Parked, Reading, Waiting};
use elbowroom_store::Kicker;
use elbowroom_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use elbowroom_sync::{Arc, Lines, LockClass, LockStats, Mutex};
use std::ops::{Deref, Range};

/// Work for one handler thread.
pub(crate) struct Inbox {
    pub(crate) kicker: Kicker,
    pub(crate) jobs: Mutex<Vec<Job>>,
    /// The faults that the handler tries again by itself.
    pub(crate) waiting: Mutex<Waiting>,
    pub(crate) beat: Lines<Beat>,
    /// The watchdog has found that the handler does not get on: other threads do its work.
    pub(crate) stuck: AtomicBool,
}

impl Inbox {
    pub(crate) fn new(kicker: Kicker, locks: &LockStats) -> Self {
        Self {
            kicker,
            jobs: locks.mutex(LockClass::Inbox, Vec::new()),
            waiting: locks.mutex(LockClass::Inbox, Waiting::default()),
            beat: Lines::default(),
            stuck: AtomicBool::new(false),
        }
    }
}

/// What other threads ask of a handler.
pub(crate) enum Job {
    /// Run these faults again.
    Retry(Vec<Parked>),
    /// Read these pages of the file ahead.
    Prefetch(Arc<FileObject>, Range<u64>),
    /// Make pages of what was read from the swap file.
    Arrived(Vec<Arrived>),
}

/// What was read from the swap file for a folio.
pub(crate) struct Arrived {
    pub(crate) folio: Reading,
    pub(crate) frames: Frames,
    /// The swap slots that were read, of which it has a count each.
    pub(crate) slots: Vec<u64>,
    /// How many bytes were read of the swap file; 0 after an error.
    pub(crate) bytes: usize,
    /// All of it was read.
    pub(crate) whole: bool,
}

/// The handlers' inboxes, by their numbers.
pub(crate) struct Inboxes {
    all: Vec<Inbox>,
    /// The handler whose turn it is to get a job, modulo the number of handlers.
    turn: AtomicUsize,
}

impl Deref for Inboxes {
    type Target = [Inbox];

    fn deref(&self) -> &[Inbox] {
        &self.all
    }
}

impl Inboxes {
    pub(crate) fn new(all: Vec<Inbox>) -> Self {
        Self { all, turn: AtomicUsize::new(0) }
    }

    /// Gives a job to a handler, each in turn, but for those that are stuck.
    pub(crate) fn post(&self, job: Job) {
        let (turn, handlers) = (self.turn.fetch_add(1, Ordering::Relaxed), self.all.len());
        let gets_on = |number: &usize| !self.all[*number].stuck.load(Ordering::Relaxed);
        let first = turn % handlers;
        let handler =
            (first..first + handlers).map(|number| number % handlers).find(gets_on).unwrap_or(first);
        self.post_to(handler, job);
    }

    /// Gives a job to this handler.
    pub(crate) fn post_to(&self, handler: usize, job: Job) {
        let inbox = &self.all[handler];
        inbox.jobs.lock().push(job);
        inbox.kicker.kick();
    }
}
