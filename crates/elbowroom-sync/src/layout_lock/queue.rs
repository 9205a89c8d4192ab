//! Threads that cannot enter the layout lock at once: thieves, and the queue.
//!
//! # Why no wake-up is lost
//! The head clears `AWAKE`, looks at the word that results, and sleeps only if it cannot enter, because
//! another thread is inside or has entered since. That thread leaves by a later change of the word, finds
//! `QUEUED` set and `AWAKE` clear, and wakes the head. It takes the mutex for that, which the head has
//! until it sleeps. A thread that queues while the queue is empty is the head at once, and does the same.
//! When the head enters, the next thread becomes the head: then the former head is inside, and `AWAKE` is
//! clear.

use crate::Mutant;
use std::collections::VecDeque;

use super::{AWAKE, LayoutLock, MAX_STEALS, QUEUED, READER, READERS, THEFT, THEFTS, WRITER};
use crate::atomic::Ordering;
use crate::contention::{Awaited, Mode};
use crate::lock::LockClass;
use crate::thread::look_around;
use std::panic::Location;

/// How often the head of the queue tries to enter, among thieves and readers that leave, before it sleeps.
const HEAD_TRIES: u32 = 4;
/// How often a thread checks whether it can enter, before it sleeps: about a microsecond.
const LOOKS: u32 = 40;
/// Condition variables over which sleepers are spread by ticket, so that a wake-up wakes one thread only,
/// unless very many wait.
pub(super) const LANES: usize = if cfg!(any(loom, shuttle)) { 2 } else { 128 };

/// In tests of the tests: the head sleeps without clearing `AWAKE`.
const MUTANT_STALE_AWAKE: Mutant = Mutant::new("stale_awake");
/// In tests of the tests: thefts are not counted.
const MUTANT_STEAL_FOREVER: Mutant = Mutant::new("steal_forever");

impl Mode {
    /// The value that an entry in this mode adds to the word.
    fn unit(self) -> u64 {
        match self {
            Mode::Read => READER,
            Mode::Write => WRITER,
        }
    }

    /// Whether a thread may enter in this mode beside those that are inside.
    fn fits(self, word: u64) -> bool {
        match self {
            Mode::Read => word & WRITER == 0,
            Mode::Write => word & (WRITER | READERS) == 0,
        }
    }
}

/// The waiters, in the order of arrival.
pub(super) struct Queue {
    modes: VecDeque<Mode>,
    /// How many tickets were let in so far. The head has the next one.
    granted: u64,
    /// Number of sleepers by lane. It saves notifying a lane without sleepers, which would be a system
    /// call.
    asleep: [u32; LANES],
}

impl Queue {
    pub(super) fn new() -> Self {
        Self { modes: VecDeque::new(), granted: 0, asleep: [0; LANES] }
    }

    /// How many threads wait.
    #[cfg(any(test, loom))]
    pub(super) fn len(&self) -> usize {
        self.modes.len()
    }

    /// How many waiters at the head enter together: one writer, or all readers up to the next writer. At
    /// least 1 if the queue is not empty.
    fn together(&self) -> usize {
        let readers = self.modes.iter().take_while(|&&mode| mode == Mode::Read).count();
        readers.max(1)
    }
}

/// The lane in which the owner of a ticket sleeps.
fn lane_of(ticket: u64) -> usize {
    ticket as usize % LANES
}

impl<T> LayoutLock<T> {
    /// Takes the lock for writing if it is free, also past the queue, unless the queue was overtaken too
    /// often.
    pub(super) fn steal(&self) -> bool {
        let word = self.word.0.load(Ordering::Relaxed);
        let theft = match word & QUEUED {
            0 => 0,
            _ if MUTANT_STEAL_FOREVER.planted() => 0,
            _ => THEFT,
        };
        let may = Mode::Write.fits(word) && (theft == 0 || word & THEFTS < MAX_STEALS * THEFT);
        let taken = (word + theft) | WRITER;
        may && self.word.0.compare_exchange(word, taken, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Enters past the queue if that is possible within a moment, else through the queue.
    #[cold]
    pub(super) fn enter_slowly(&self, mode: Mode, caller: &'static Location<'static>) {
        let enter = || match mode {
            Mode::Read => self.join_readers(),
            Mode::Write => self.steal(),
        };
        let wait = self.stats.begin_wait_at(Awaited::Lock(LockClass::Layout), mode, None, caller);
        if !enter() && !look_around(LOOKS, 0, enter) {
            self.enter_by_the_queue(mode);
        }
        self.stats.end_wait(wait);
    }

    /// Queues, and waits until the thread is let in.
    fn enter_by_the_queue(&self, mode: Mode) {
        crate::blocking::may_wait();
        let mut queue = self.queue();
        queue.modes.push_back(mode);
        let ticket = queue.granted + queue.modes.len() as u64;
        self.word.0.fetch_or(QUEUED, Ordering::Relaxed);
        if self.enter_as_head(ticket, &mut queue) {
            return;
        }
        let lane = lane_of(ticket);
        // A reader behind another reader is let in by that one: `granted` then includes its ticket.
        while queue.granted < ticket {
            queue.asleep[lane] += 1;
            queue = self.lanes[lane].wait(queue).unwrap_or_else(|poisoned| poisoned.into_inner());
            queue.asleep[lane] -= 1;
            if queue.granted + 1 == ticket {
                // If a thief is inside, it may leave in less time than it takes to sleep and be woken again.
                drop(queue);
                look_around(LOOKS, 0, || mode.fits(self.word.0.load(Ordering::Relaxed)));
                queue = self.queue();
                self.enter_as_head(ticket, &mut queue);
            }
        }
    }

    /// Enters, if `ticket` is the head of the queue and the threads inside permit it; a reader also lets in
    /// the readers right behind it. Tells whether it entered; if not, the next thread that leaves the lock
    /// free wakes the head.
    fn enter_as_head(&self, ticket: u64, queue: &mut Queue) -> bool {
        if queue.granted + 1 != ticket {
            return false;
        }
        let (mode, together) = (queue.modes[0], queue.together());
        let behind = if together < queue.modes.len() { QUEUED } else { 0 };
        // `AWAKE` is only set with the queue's mutex, so it stays clear meanwhile.
        let mut word = if MUTANT_STALE_AWAKE.planted() {
            self.word.0.load(Ordering::Relaxed)
        } else {
            self.word.0.fetch_and(!AWAKE, Ordering::Relaxed) & !AWAKE
        };
        for _ in 0..HEAD_TRIES {
            if !mode.fits(word) {
                return false;
            }
            let inside = ((word & READERS) + together as u64 * mode.unit()) | behind;
            // Acquire: this thread sees all that the threads did that have left.
            match self.word.0.compare_exchange(word, inside, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    self.grant(together, queue);
                    return true;
                }
                Err(now) => word = now,
            }
        }
        false
    }

    /// Removes the first `together` waiters, which are counted in the word by now, from the queue, and
    /// wakes those that sleep.
    fn grant(&self, together: usize, queue: &mut Queue) {
        queue.modes.drain(..together);
        for _ in 0..together {
            queue.granted += 1;
            let lane = lane_of(queue.granted);
            if together > 1 && queue.asleep[lane] > 0 {
                self.lanes[lane].notify_all();
            }
        }
    }

    /// Wakes the head of the queue, if there is one that is not awake. Called by a thread that has left the
    /// lock free with `QUEUED` set and `AWAKE` clear.
    #[cold]
    pub(super) fn wake_head(&self) {
        let queue = self.queue();
        if queue.modes.is_empty() || self.word.0.fetch_or(AWAKE, Ordering::Relaxed) & AWAKE != 0 {
            return;
        }
        let lane = lane_of(queue.granted + 1);
        let asleep = queue.asleep[lane] > 0;
        // Unlocked before the notification, since the thread that wakes up takes the mutex.
        drop(queue);
        if asleep {
            self.lanes[lane].notify_all();
        }
    }
}
