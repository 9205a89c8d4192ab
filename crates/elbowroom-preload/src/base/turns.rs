//! Turns: calls that read or write at a file's position, or at its end, are made one after the other.
//!
//! Only the kernel knows, during such a call, where it writes or reads. So a thread takes the file's turn
//! before the call. Then the position (the end, for an append) stays what it is until the call has used it.
//! Calls that are not seen (raw system calls, and those of processes that share a descriptor) take no
//! turns. That one has moved the position shows after the thread's own call, and is remembered.
//!
//! Synchronization: a futex per slot, which works in signal handlers too: a thread that has a turn has its
//! signals blocked. A thread has one turn at most.

use crate::base::sys::{self, SignalsBlocked};
use crate::base::word_lock::WordLock;
use elbowroom::FileId;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Slots; files are spread over them. A power of two.
const SLOTS: usize = 64;

/// The turns of one process. All zero is the start.
#[repr(C)]
pub struct Turns {
    slots: [WordLock; SLOTS],
    /// Threads that have a turn or wait for one.
    wanted: AtomicU32,
    moved: AtomicBool,
}

/// A turn; it ends when dropped. `errno` is kept.
pub struct Turn<'a> {
    turns: &'a Turns,
    slot: &'a WordLock,
}

impl Turns {
    /// No turn is taken.
    #[cfg(test)]
    const fn new() -> Self {
        Self {
            slots: [const { WordLock::new() }; SLOTS],
            wanted: AtomicU32::new(0),
            moved: AtomicBool::new(false),
        }
    }

    /// Waits for the file's turn. Signals stay blocked until it has ended.
    pub fn take<'a>(&'a self, id: FileId, _blocked: &'a SignalsBlocked) -> Turn<'a> {
        let kept = sys::errno();
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let slot = &self.slots[(id.inode ^ id.device.rotate_left(32)) as usize & (SLOTS - 1)];
        slot.lock();
        sys::set_errno(kept);
        Turn { turns: self, slot }
    }

    /// Whether any turn is taken: then calls that only move a position (lseek) take turns, too.
    pub fn busy(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) > 0
    }

    /// Remembers that a position moved during a turn.
    pub fn note_moved(&self) {
        self.moved.store(true, Ordering::Relaxed);
    }

    /// Whether a position ever moved during a turn: then a turn does not tell where a call at the position
    /// will read or write.
    pub fn were_moved(&self) -> bool {
        self.moved.load(Ordering::Relaxed)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let kept = sys::errno();
        self.slot.unlock();
        self.turns.wanted.fetch_sub(1, Ordering::SeqCst);
        sys::set_errno(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::sys::Except;

    #[test]
    fn one_thread_at_a_time_has_the_turn_of_a_file() {
        static TURNS: Turns = Turns::new();
        static INSIDE: AtomicU32 = AtomicU32::new(0);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    for _ in 0..2000 {
                        let blocked = SignalsBlocked::new(Except::Nothing);
                        let turn = TURNS.take(FileId { device: 1, inode: 5 }, &blocked);
                        assert_eq!(INSIDE.fetch_add(1, Ordering::SeqCst), 0);
                        assert!(TURNS.busy());
                        INSIDE.fetch_sub(1, Ordering::SeqCst);
                        drop(turn);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(!TURNS.busy());
    }
}
