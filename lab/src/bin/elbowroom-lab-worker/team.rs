//! Threads that go through the same chunks together: the last to come back says what is next.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use crate::source::Source;
use crate::tally::{Counter, Stop};

/// No chunk has this number.
const NOTHING: u64 = u64::MAX;

/// Threads of which each takes the next piece of the chunk that all are at.
pub struct Team {
    meeting: Meeting,
    /// What is read; [`NOTHING`] if the threads should come back.
    chunk: AtomicU64,
    next_piece: AtomicU64,
    has_failed: AtomicBool,
}

impl Team {
    /// Of so many threads.
    pub fn new(threads: usize) -> Self {
        Self {
            meeting: Meeting::new(threads),
            chunk: AtomicU64::new(NOTHING),
            next_piece: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Reads one chunk after the other with the other threads, until the time is over or one of them fails.
    /// `next` says which, and is called by the thread that is last to come back from the chunk before.
    pub fn go_through(
        &self,
        source: &Source<'_>,
        counter: &Counter<'_>,
        mut next: impl FnMut() -> Result<u64, Stop>,
    ) -> Stop {
        let mut failed = None;
        loop {
            self.meeting.wait(|| {
                let is_over = self.has_failed.load(Ordering::Relaxed) || counter.tally.stopped();
                let chunk = if is_over { Err(Stop::Over) } else { next() };
                let chunk = chunk.unwrap_or_else(|stop| {
                    failed.get_or_insert(stop);
                    NOTHING
                });
                self.next_piece.store(0, Ordering::Relaxed);
                self.chunk.store(chunk, Ordering::Relaxed);
            });
            let chunk = self.chunk.load(Ordering::Relaxed);
            if chunk == NOTHING {
                return failed.unwrap_or(Stop::Over);
            }
            // A thread that fails goes to the next meeting, too: the others wait for it there.
            if let Err(stop) = self.read(source, counter, chunk) {
                failed.get_or_insert(stop);
                self.has_failed.store(true, Ordering::Relaxed);
            }
        }
    }

    fn read(&self, source: &Source<'_>, counter: &Counter<'_>, chunk: u64) -> Result<(), Stop> {
        let held = source.hold(chunk);
        loop {
            let number = self.next_piece.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = source.layout.piece(chunk, number) else { return Ok(()) };
            source.read(counter, chunk, held.as_ref(), piece)?;
        }
    }
}

/// Where threads wait for each other, again and again.
pub struct Meeting {
    threads: usize,
    state: Mutex<State>,
    all_are_here: Condvar,
}

struct State {
    waiting: usize,
    /// How many meetings have ended.
    ended: u64,
}

impl Meeting {
    /// For so many threads.
    pub fn new(threads: usize) -> Self {
        Self { threads, state: Mutex::new(State { waiting: 0, ended: 0 }), all_are_here: Condvar::new() }
    }

    /// Waits until all threads have called it. The last one calls `decide` before the others go on.
    pub fn wait(&self, decide: impl FnOnce()) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.waiting += 1;
        if state.waiting == self.threads {
            decide();
            state.waiting = 0;
            state.ended += 1;
            self.all_are_here.notify_all();
            return;
        }
        let this = state.ended;
        while state.ended == this {
            state = self.all_are_here.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn one_decides_and_all_see_it() {
        let (meeting, decided) = (Meeting::new(4), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 1..=1000 {
                        meeting.wait(|| {
                            decided.fetch_add(1, Ordering::Relaxed);
                        });
                        assert_eq!(decided.load(Ordering::Relaxed), round);
                        // Nobody decides again before all have looked.
                        meeting.wait(|| {});
                    }
                });
            }
        });
    }
}
