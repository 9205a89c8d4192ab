//! Requests from a handler of a signal to a thread of ours. A request is a slot in a static array, since a
//! handler neither allocates nor takes locks here.
//!
//! Synchronization: the state of a slot says whose it is. One thread serves a desk.

use std::ptr::null;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The most requests at a time. A thread that finds no free slot waits for one.
const ROOM: usize = 64;
/// How often a thread that waits for a free slot looks.
const LOOK: Duration = Duration::from_micros(100);

/// Nobody uses the slot.
const FREE: u32 = 0;
/// A thread writes its question.
const FILLED: u32 = 1;
/// The question is there.
const ASKED: u32 = 2;
/// The question is there, and the thread that asked has ended its wait.
const ASKED_AND_LEFT: u32 = 3;
/// The server has the question.
const TAKEN: u32 = 4;
/// The server has the question, and the thread that asked has ended its wait.
const TAKEN_AND_LEFT: u32 = 5;
/// The answer is there.
const SERVED: u32 = 6;

/// Two words: what they mean is the matter of the two sides.
pub type Question = [usize; 2];

struct Slot {
    state: AtomicU32,
    answer: AtomicU32,
    question: [AtomicUsize; 2],
}

impl Slot {
    const fn new() -> Self {
        Self {
            state: AtomicU32::new(FREE),
            answer: AtomicU32::new(0),
            question: [const { AtomicUsize::new(0) }; 2],
        }
    }
}

/// The slots, and a bell for the server.
pub struct Desk {
    bell: AtomicU32,
    /// How many requests the server has done, or has forgotten.
    done: AtomicU32,
    slots: [Slot; ROOM],
}

impl Desk {
    pub const fn new() -> Self {
        Self { bell: AtomicU32::new(0), done: AtomicU32::new(0), slots: [const { Slot::new() }; ROOM] }
    }

    /// A number that changes whenever the server has done a request.
    pub fn done(&self) -> u32 {
        self.done.load(Ordering::Acquire)
    }

    /// Asks the server, and waits at most `bound` for its answer. `None`: it has not come; the server does
    /// what it was asked for all the same, unless there was no free slot. For handlers of signals, too.
    pub fn ask(&self, question: Question, bound: Duration) -> Option<u32> {
        let deadline = Instant::now() + bound;
        let slot = loop {
            let free = |slot: &&Slot| {
                slot.state.compare_exchange(FREE, FILLED, Ordering::Acquire, Ordering::Relaxed).is_ok()
            };
            match self.slots.iter().find(free) {
                Some(slot) => break slot,
                None if Instant::now() > deadline => return None,
                None => std::thread::sleep(LOOK),
            }
        };
        for (word, value) in slot.question.iter().zip(question) {
            word.store(value, Ordering::Relaxed);
        }
        slot.state.store(ASKED, Ordering::Release);
        self.bell.fetch_add(1, Ordering::Release);
        wake(&self.bell);
        loop {
            let state = slot.state.load(Ordering::Acquire);
            if state == SERVED {
                let answer = slot.answer.load(Ordering::Relaxed);
                slot.state.store(FREE, Ordering::Release);
                return Some(answer);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let gone = if state == ASKED { ASKED_AND_LEFT } else { TAKEN_AND_LEFT };
                if slot.state.compare_exchange(state, gone, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                    return None;
                }
            } else {
                wait(&slot.state, state, Some(left));
            }
        }
    }

    /// Serves the requests that are there; if there are none, waits for one, at most until `deadline`.
    pub fn serve(&self, deadline: Option<Instant>, mut answer: impl FnMut(Question) -> u32) {
        let rung = self.bell.load(Ordering::Acquire);
        let mut served = false;
        for slot in &self.slots {
            let state = slot.state.load(Ordering::Acquire);
            let taken = match state {
                ASKED => TAKEN,
                ASKED_AND_LEFT => TAKEN_AND_LEFT,
                _ => continue,
            };
            served = true;
            if slot.state.compare_exchange(state, taken, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // The thread that asked has left just now: at the next call.
                continue;
            }
            let question = [0, 1].map(|nth: usize| slot.question[nth].load(Ordering::Relaxed));
            slot.answer.store(answer(question), Ordering::Relaxed);
            self.done.fetch_add(1, Ordering::AcqRel);
            if slot.state.compare_exchange(TAKEN, SERVED, Ordering::AcqRel, Ordering::Acquire).is_err() {
                slot.state.store(FREE, Ordering::Release);
            }
            wake(&slot.state);
        }
        if !served {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            wait(&self.bell, rung, left);
        }
    }

    /// Forgets all requests. For a forked child, whose only thread has asked for nothing.
    pub fn forget(&self) {
        for slot in &self.slots {
            slot.state.store(FREE, Ordering::Release);
        }
        self.done.fetch_add(1, Ordering::AcqRel);
    }
}

/// Waits while the word has this value; may end for no reason.
fn wait(word: &AtomicU32, value: u32, bound: Option<Duration>) {
    let bound = bound.map(|bound| libc::timespec {
        tv_sec: bound.as_secs() as libc::time_t,
        tv_nsec: bound.subsec_nanos().into(),
    });
    let bound = bound.as_ref().map_or(null(), std::ptr::from_ref);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the time are valid over the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, bound) };
}

/// Wakes a thread that waits for the word: there is at most one.
fn wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word is valid over the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 1) };
}
