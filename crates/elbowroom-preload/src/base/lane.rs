//! Lock-free stacks of requests from the program's threads to the service threads.
//!
//! A request lives on the stack of the thread that makes it, and begins with a [`Node`]. Only the floor
//! above knows its parameters and its result (agent/request.rs).
//!
//! Synchronization: a worker owns a request from the moment at which it takes the node off the stack until it
//! stores `done`; after that store it only names the futex's address (waking touches no memory).

use super::sys;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// What every request begins with.
pub struct Node {
    next: AtomicPtr<Node>,
    /// A futex: 1 when the reply is there.
    done: AtomicU32,
}

impl Node {
    /// The node of a request that is on no stack.
    pub const fn new() -> Self {
        Self { next: AtomicPtr::new(std::ptr::null_mut()), done: AtomicU32::new(0) }
    }

    /// Waits until the request is done.
    pub fn wait(&self) {
        while self.done.load(Ordering::Acquire) == 0 {
            sys::futex_wait(&self.done, 0, None);
        }
    }

    /// Gives the request back to the thread that made it.
    ///
    /// # Safety
    /// The calling thread took `node` off a lane, and does not use the request any more afterwards.
    pub unsafe fn complete(node: *mut Node) {
        // SAFETY: the thread that made the request keeps it until `done` is stored.
        let done = unsafe { &raw const (*node).done };
        // SAFETY: as above; this store is the last access.
        unsafe { &*done }.store(1, Ordering::Release);
        sys::futex_wake(done.cast(), 1);
    }
}

/// Which lane a request goes to. Requests of one kind never wait for workers of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneKind {
    /// Requests that may wait for I/O, or for a write of the program to end.
    Ordinary,
    /// Requests that end a write of the program: what ordinary ones wait for.
    Ending,
}

/// One stack of requests and the workers that serve it. All zero is empty.
#[repr(C)]
pub struct Lane {
    head: AtomicPtr<Node>,
    /// A futex that changes with every request.
    pub doorbell: AtomicU32,
    /// Workers that wait at the doorbell.
    pub idle: AtomicU32,
    /// Workers that exist.
    pub workers: AtomicU32,
}

impl Lane {
    /// Puts a request on the stack and rings. The request stays where it is until it is done.
    pub fn push(&self, node: *mut Node) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: the request is the caller's own until it is on the stack.
            unsafe { (*node).next.store(head, Ordering::Relaxed) };
            match self.head.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(there) => head = there,
            }
        }
        self.doorbell.fetch_add(1, Ordering::Release);
        sys::futex_wake(self.doorbell.as_ptr(), 1);
    }

    /// Takes all requests, oldest first, and gives each to `each`.
    pub fn drain(&self, mut each: impl FnMut(*mut Node)) {
        let mut newest_first = self.head.swap(std::ptr::null_mut(), Ordering::Acquire);
        let mut oldest_first: *mut Node = std::ptr::null_mut();
        while !newest_first.is_null() {
            // SAFETY: what was on the stack is ours alone until it is completed.
            let next = unsafe { (*newest_first).next.load(Ordering::Relaxed) };
            // SAFETY: as above.
            unsafe { (*newest_first).next.store(oldest_first, Ordering::Relaxed) };
            (oldest_first, newest_first) = (newest_first, next);
        }
        while !oldest_first.is_null() {
            // SAFETY: as above; read before `each` can complete it.
            let next = unsafe { (*oldest_first).next.load(Ordering::Relaxed) };
            each(oldest_first);
            oldest_first = next;
        }
    }
}
