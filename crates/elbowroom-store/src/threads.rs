//! The reactor without io_uring: `poll` on the watched descriptor and a bell, and a pool of threads that
//! block in pread.
//!
//! The handler thread queues requests; pool threads, started as they are needed, take one at a time, read,
//! put the completion on a list and ring the bell if the list was empty. Idle threads sleep on a futex that
//! counts requests, so that each request wakes one of them.
//!
//! Synchronization: two locks of class `io`, one for the requests and one for the completions, each held for
//! a push or a pop and never together. `stop` ends the pool: the drop of the reactor waits for its threads,
//! each of which finishes the read that it is in (invariant 1 of the crate).

use crate::bell::Bell;
use crate::calls::is_transient;
use crate::inject::Inject;
use crate::reactor::OnThreadStart;
use crate::reactor::{Kicker, Reactor, Read, ReadDone, Woken};
use crate::request::{Request, Step, perform};
use elbowroom_machine::Errno;
use elbowroom_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, LockClass, LockStats, Mutex, thread};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::futex;
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, RawFd};

/// The most threads in a pool: enough to keep a disk busy with random reads. They are started as they are
/// needed.
const THREADS_MAX: usize = 16;

pub(crate) struct Threads {
    shared: Arc<Shared>,
    workers: Vec<thread::JoinHandle<()>>,
    watch: Option<RawFd>,
    inject: Option<Arc<Inject>>,
    on_start: Option<OnThreadStart>,
    in_flight: usize,
}

struct Shared {
    requests: Mutex<VecDeque<(Request, Step)>>,
    finished: Mutex<Vec<ReadDone>>,
    bell: Arc<Bell>,
    /// Counts the requests that were queued. It is the futex on which idle threads sleep.
    queued: AtomicU32,
    sleeping: AtomicU32,
    stop: AtomicBool,
}

impl Threads {
    pub(crate) fn new(
        watch: Option<RawFd>,
        bell: Arc<Bell>,
        inject: Option<Arc<Inject>>,
        on_start: Option<OnThreadStart>,
    ) -> Self {
        let locks = LockStats::new();
        let shared = Arc::new(Shared {
            requests: locks.mutex(LockClass::Io, VecDeque::new()),
            finished: locks.mutex(LockClass::Io, Vec::new()),
            bell,
            queued: AtomicU32::new(0),
            sleeping: AtomicU32::new(0),
            stop: AtomicBool::new(false),
        });
        Self { shared, workers: Vec::new(), watch, inject, on_start, in_flight: 0 }
    }

    /// Starts a thread if the requests could use one more. If not even the first can be started, the handler
    /// thread does the read itself: slow, but it goes on.
    fn grow(&mut self) {
        if self.workers.len() < THREADS_MAX && self.workers.len() < self.in_flight {
            let (shared, on_start) = (self.shared.clone(), self.on_start.clone());
            let life = move || {
                if let Some(on_start) = on_start {
                    on_start();
                }
                shared.work();
            };
            if let Ok(worker) = thread::spawn("elbowroom-io", life) {
                self.workers.push(worker);
            }
        }
        if self.workers.is_empty() {
            self.shared.work_once();
        }
    }

    /// Moves completions to `done`; returns whether there were any.
    fn collect(&mut self, done: &mut Vec<ReadDone>) -> bool {
        let mut finished = self.shared.finished.lock();
        self.in_flight -= finished.len();
        let any = !finished.is_empty();
        done.append(&mut finished);
        any
    }

    /// Waits in poll(2); returns whether the watched descriptor is readable.
    fn poll(&self, timeout: Option<Duration>) -> Result<bool, Errno> {
        // SAFETY: the caller that made the reactor keeps the descriptor open until the reactor is dropped
        // (see `reactor`).
        let watch = self.watch.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        let mut fds = vec![PollFd::from_borrowed_fd(self.shared.bell.fd(), PollFlags::IN)];
        fds.extend(watch.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        // A duration that does not fit is 292 billion years: no bound.
        let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(error) if is_transient(error) => return Ok(false),
            Err(error) => return Err(error),
        }
        let bell = fds[0].revents();
        let watched = fds.get(1).map_or(PollFlags::empty(), |fd| fd.revents());
        if !bell.is_empty() {
            self.shared.bell.drain();
        }
        if watched.contains(PollFlags::NVAL) { Err(Errno::BADF) } else { Ok(!watched.is_empty()) }
    }
}

impl Reactor for Threads {
    fn read(&mut self, read: Read) {
        let request = Request::new(read, self.inject.as_deref());
        self.in_flight += 1;
        self.shared.requests.lock().push_back(request);
        self.shared.wake(1);
        self.grow();
    }

    fn submit(&mut self) {
        // Nothing to do: `read` has handed the request to the pool already.
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<ReadDone>) -> Result<Woken, Errno> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let mut any = self.collect(done);
        loop {
            let left = if any {
                Some(Duration::ZERO)
            } else {
                deadline.map(|end| end.saturating_duration_since(Instant::now()))
            };
            let readable = match self.poll(left) {
                Err(error) if !any => return Err(error),
                readable => readable.unwrap_or(false),
            };
            any |= self.collect(done);
            let kicked = self.shared.bell.take_kick();
            if any || readable || kicked || left == Some(Duration::ZERO) {
                return Ok(Woken { readable, kicked });
            }
        }
    }

    fn kicker(&self) -> Kicker {
        Kicker::new(&self.shared.bell)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake(i32::MAX as u32);
        for worker in self.workers.drain(..) {
            // An error means that a worker has panicked; nothing of it is needed.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Wakes up to `count` idle threads. A thread that is about to sleep either sees the new value of
    /// `queued`, and does not sleep, or is counted in `sleeping` here: both sides first write and then
    /// read, sequentially consistent.
    fn wake(&self, count: u32) {
        self.queued.fetch_add(1, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) > 0 {
            let _ = futex::wake(&self.queued, futex::Flags::PRIVATE, count);
        }
    }

    /// The main loop of a pool thread.
    fn work(&self) {
        loop {
            let seen = self.queued.load(Ordering::SeqCst);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if !self.work_once() {
                self.sleeping.fetch_add(1, Ordering::SeqCst);
                let _ = futex::wait(&self.queued, futex::Flags::PRIVATE, seen, None);
                self.sleeping.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Does one request, if there is one; returns whether there was.
    fn work_once(&self) -> bool {
        let Some((request, step)) = self.requests.lock().pop_front() else { return false };
        let done = perform(request, step);
        let mut finished = self.finished.lock();
        let first = finished.is_empty();
        finished.push(done);
        drop(finished);
        if first {
            self.bell.ring();
        }
        true
    }
}
