//! The reactor on io_uring: one ring, one system call a wait.
//!
//! The watched descriptor and the bell are polled by multishot requests, which post a completion at every
//! new event. Reads are kept in a slab, whose index is the request's user data; at most [`RING_ENTRIES`] of
//! them are with the kernel at a time, the others queue here, so that completions never overflow. In the
//! steady state nothing is allocated.
//!
//! The ring is created disabled, and the first wait enables it: the thread that enables it is the only one
//! that may submit (SINGLE_ISSUER), and completions are processed when that thread waits (DEFER_TASKRUN),
//! in batches and without interrupts. Kernels before 6.1 do not know these flags: [`RingMode::Plain`] does
//! without.
//!
//! A read that went through the kernel's cache is followed by a request to drop it (fadvise, which io_uring
//! does on a thread of its own, so that it cannot block the loop); the read does not wait for that.
//!
//! # Invariants
//! 1. While the kernel works on a read, its slot holds the [`Request`], which owns the extent and the file. A
//!    slot is emptied only by the request's completion.
//! 2. `submitted` is the number of slots whose request was put in the submission queue and has not completed.
//!    The ring and the slots are dropped when it is 0; else the slots are leaked.
//!
//! Neighbours: `request` says what each read does next, `slots` keeps the requests that the kernel works
//! on, `held` the reads that injected faults delay.
//!
//! Synchronization: all state belongs to the handler thread; only the [`Bell`] is shared.

use crate::bell::Bell;
use crate::calls::{is_transient, whole_pages};
use crate::held::HeldReads;
use crate::inject::Inject;
use crate::looks::Looks;
use crate::reactor::{Kicker, Reactor, Read, ReadDone, Woken};
use crate::request::{Request, Step};
use crate::slots::{Slot, Slots};
use elbowroom_machine::Errno;
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, thread};
use io_uring::{IoUring, Probe, cqueue, opcode, types};
use rustix::event::PollFlags;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};

/// Submission queue entries, and the most requests with the kernel at a time.
const RING_ENTRIES: u32 = 256;

/// Completion queue entries: for all requests, and for the polls, which can post several between two waits.
/// The kernel keeps completions that do not fit in a list, which is slower.
const COMPLETION_ENTRIES: u32 = 1024;

/// How often io_uring_enter is repeated if it is interrupted or has no resources.
const ENTERS_MAX: u32 = 1000;

/// How long to poll for completions before going to sleep.
const LOOK_BOUND: Duration = Duration::from_micros(50);

/// If a yield takes longer than this, another thread has used the processor.
const OTHERS_RAN: Duration = Duration::from_micros(10);

/// The user data of the two polls; that of other requests is the slot's index.
const WATCH: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;

/// Which io_uring features to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RingMode {
    /// SINGLE_ISSUER and DEFER_TASKRUN: Linux 6.1.
    Deferred,
    /// None of them.
    Plain,
}

pub(crate) struct Uring {
    ring: IoUring,
    mode: RingMode,
    /// Whether the ring was enabled, by the thread that it then belongs to.
    enabled: bool,
    watch: Poll,
    bell_poll: Poll,
    bell: Arc<Bell>,
    inject: Option<Arc<Inject>>,
    slots: Slots,
    /// Slots that wait for a place in the submission queue.
    queue: VecDeque<u32>,
    submitted: u32,
    /// Delayed completions, to be given back when they are due.
    held: HeldReads,
    /// Completions to be given back by the next wait.
    ready: Vec<ReadDone>,
    /// Scratch memory: completions just taken off the ring.
    reaped: Vec<Completion>,
    in_flight: usize,
    looks: Looks,
}

/// A multishot poll.
struct Poll {
    fd: Option<RawFd>,
    name: u64,
    armed: bool,
}

struct Completion {
    name: u64,
    result: i32,
    flags: u32,
}

/// Tries the system calls that use a ring: a filter (seccomp) may allow io_uring_setup and deny these.
fn can_be_used(ring: &IoUring) -> Result<(), Errno> {
    let submitter = ring.submitter();
    submitter.register_probe(&mut Probe::new()).map_err(errno)?;
    // SAFETY: nothing is submitted and nothing waited for, and there is no argument.
    match unsafe { submitter.enter::<types::Timespec>(0, 0, 0, None) }.map_err(errno) {
        // EBADFD: the ring is not enabled yet.
        Ok(_) | Err(Errno::BADFD) => Ok(()),
        Err(error) => Err(error),
    }
}

impl Uring {
    /// Makes the ring now, so that errors are found here. Any thread with the same file table may make the
    /// first wait.
    pub(crate) fn new(
        mode: RingMode,
        watch: Option<RawFd>,
        bell: Arc<Bell>,
        inject: Option<Arc<Inject>>,
    ) -> Result<Self, Errno> {
        let mut builder = IoUring::builder();
        // A forked child must not use the ring. Invalid requests complete with an error and do not stop
        // others.
        builder.dontfork().setup_submit_all().setup_cqsize(COMPLETION_ENTRIES);
        if mode == RingMode::Deferred {
            builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_r_disabled();
        }
        let ring = builder.build(RING_ENTRIES).map_err(errno)?;
        can_be_used(&ring)?;
        let poll = |fd, name| Poll { fd, name, armed: false };
        Ok(Self {
            ring,
            mode,
            enabled: false,
            watch: poll(watch, WATCH),
            bell_poll: poll(Some(bell.fd().as_raw_fd()), BELL),
            bell,
            inject,
            slots: Slots::default(),
            queue: VecDeque::new(),
            submitted: 0,
            held: HeldReads::default(),
            ready: Vec::new(),
            reaped: Vec::new(),
            in_flight: 0,
            looks: Looks::new(),
        })
    }

    fn enable(&mut self) -> Result<(), Errno> {
        if !self.enabled {
            if self.mode == RingMode::Deferred {
                self.ring.submitter().register_enable_rings().map_err(errno)?;
            }
            self.enabled = true;
        }
        Ok(())
    }

    /// Puts polls that have ended and queued requests into the submission queue, as many as it has room for.
    fn fill(&mut self) {
        let mut entries = self.ring.submission();
        for poll in [&mut self.watch, &mut self.bell_poll] {
            if !poll.armed
                && let Some(fd) = poll.fd
            {
                let events = u32::from(PollFlags::IN.bits());
                let entry = opcode::PollAdd::new(types::Fd(fd), events).multi(true).build();
                // SAFETY: a poll has no buffer. The caller that made the reactor keeps `watch` open; the
                // bell is ours.
                poll.armed = unsafe { entries.push(&entry.user_data(poll.name)) }.is_ok();
            }
        }
        while self.submitted < RING_ENTRIES
            && !entries.is_full()
            && let Some(index) = self.queue.pop_front()
        {
            let Some(entry) = self.slots.get_mut(index).entry() else { continue };
            // SAFETY: (1) the entry's buffer lies inside the extent that the slot owns (checked when the
            // request was taken in, and attempts stay inside it), and its descriptor belongs to the file that
            // the slot owns; (2) the slot is not emptied before the completion (invariant 1), and not dropped
            // before it either (invariant 2, see Drop). The queue has room: asked above.
            if unsafe { entries.push(&entry.user_data(u64::from(index))) }.is_ok() {
                self.submitted += 1;
            }
        }
    }

    /// Submits, and waits for a completion if `wait` says so.
    fn enter(&mut self, wait: Wait) -> Result<(), Errno> {
        let submitter = self.ring.submitter();
        let entered = match wait {
            Wait::No => submitter.submit(),
            Wait::Forever => submitter.submit_and_wait(1),
            Wait::AtMost(bound) => {
                let bound = types::Timespec::from(bound);
                submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(&bound))
            }
        };
        match entered.map_err(errno) {
            Ok(_) | Err(Errno::TIME) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Submits the queued entries, and polls for completions for a moment, as long as no other thread wants
    /// the processor; `false`: none came, or it was not tried, since it has been in vain lately.
    ///
    /// In a virtual machine, waking a processor that sleeps takes longer than serving a fault.
    fn something_comes_soon(&mut self) -> bool {
        if self.mode != RingMode::Deferred || !self.looks.are_worth_it() || self.enter(Wait::No).is_err() {
            return false;
        }
        let begun = Instant::now();
        let mut last = begun;
        let came = loop {
            // The kernel sets a flag in shared memory if it has completions to post (taskrun), or has
            // posted them.
            if self.ring.submission().taskrun() || !self.ring.completion().is_empty() {
                break true;
            }
            thread::yield_now();
            let now = Instant::now();
            // If the yield took long, another thread needed this processor.
            if now - last > OTHERS_RAN || now - begun > LOOK_BOUND {
                break false;
            }
            last = now;
        };
        self.looks.note(came);
        came
    }

    /// Takes completions off the ring and acts on them.
    fn reap(&mut self, woken: &mut Woken) -> Result<(), Errno> {
        let mut reaped = std::mem::take(&mut self.reaped);
        reaped.extend(self.ring.completion().map(|c| Completion {
            name: c.user_data(),
            result: c.result(),
            flags: c.flags(),
        }));
        let mut watch_failed = Ok(());
        for completion in reaped.drain(..) {
            let more = cqueue::more(completion.flags);
            match completion.name {
                WATCH => {
                    self.watch.armed = more;
                    match outcome(completion.result) {
                        Ok(_) => woken.readable = true,
                        Err(Errno::CANCELED) => {}
                        Err(error) => watch_failed = Err(error),
                    }
                }
                // The bell's completion only ends the wait; `kicked` tells whether there was a kick. The
                // eventfd is never read, since a multishot poll posts a completion at every write to it.
                BELL => self.bell_poll.armed = more,
                index => self.complete(index as u32, outcome(completion.result)),
            }
        }
        self.reaped = reaped;
        watch_failed
    }

    fn complete(&mut self, index: u32, result: Result<usize, Errno>) {
        self.submitted -= 1;
        let step = match self.slots.get_mut(index) {
            Slot::Read(request) => request.advance(result),
            // The result does not matter: dropping the cache is only a hint.
            Slot::DropCache { .. } => Step::Finish(Ok(0)),
            Slot::Free { .. } => return,
        };
        match step {
            Step::Again => self.queue.push_back(index),
            Step::Finish(result) => {
                if let Slot::Read(request) = self.slots.remove(index) {
                    self.finish(request, result);
                }
            }
        }
    }

    fn finish(&mut self, request: Request, result: Result<usize, Errno>) {
        if request.cached() {
            let (offset, len) = whole_pages(request.offset, request.len as u64);
            let index = self.slots.insert(Slot::DropCache { file: request.file.clone(), offset, len });
            self.queue.push_back(index);
        }
        let delay = request.delay();
        let done = request.finish(result);
        if delay.is_zero() {
            self.ready.push(done);
        } else {
            self.held.hold(Instant::now(), delay, done);
        }
    }

    /// Gives back the reads that are ready or due.
    fn deliver(&mut self, done: &mut Vec<ReadDone>) {
        let before = done.len();
        done.append(&mut self.ready);
        if self.held.next_due().is_some() {
            let now = Instant::now();
            while let Some(read) = self.held.take_due(now) {
                done.push(read);
            }
        }
        self.in_flight -= done.len() - before;
    }

    /// How long to wait if nothing is to be returned yet.
    fn bound(&self, deadline: Option<Instant>) -> Wait {
        match [deadline, self.held.next_due()].into_iter().flatten().min() {
            None => Wait::Forever,
            Some(end) => match end.saturating_duration_since(Instant::now()) {
                Duration::ZERO => Wait::No,
                left => Wait::AtMost(left),
            },
        }
    }
}

impl Reactor for Uring {
    fn read(&mut self, read: Read) {
        self.in_flight += 1;
        match Request::new(read, self.inject.as_deref()) {
            (request, Step::Again) => {
                let index = self.slots.insert(Slot::Read(request));
                self.queue.push_back(index);
            }
            (request, Step::Finish(result)) => self.finish(request, result),
        }
    }

    fn submit(&mut self) {
        if self.enabled && !self.queue.is_empty() {
            self.fill();
            // The next wait submits entries that were not submitted here, and returns the error.
            let _ = self.enter(Wait::No);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<ReadDone>) -> Result<Woken, Errno> {
        self.enable()?;
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        let before = done.len();
        let mut enters_failed = 0;
        let mut woken = Woken { readable: false, kicked: self.bell.take_kick() };
        self.deliver(done);
        loop {
            self.fill();
            let nothing = done.len() == before && woken == Woken::default();
            let mut wait = if nothing { self.bound(deadline) } else { Wait::No };
            if matches!(wait, Wait::Forever) && self.something_comes_soon() {
                wait = Wait::No;
            }
            let entered = self.enter(wait);
            // Completions are taken even if `enter` failed: it fails with EBUSY if the completion queue is
            // full.
            let reaped = self.reap(&mut woken);
            woken.kicked |= self.bell.take_kick();
            self.deliver(done);
            if done.len() > before || woken != Woken::default() {
                return Ok(woken);
            }
            reaped?;
            match entered {
                Err(error) if !is_transient(error) && error != Errno::BUSY => return Err(error),
                Err(error) if enters_failed == ENTERS_MAX => return Err(error),
                Err(_) => enters_failed += 1,
                Ok(()) => {}
            }
            if deadline.is_some_and(|end| end <= Instant::now()) {
                return Ok(woken);
            }
        }
    }

    fn kicker(&self) -> Kicker {
        Kicker::new(&self.bell)
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl Drop for Uring {
    /// Waits for the requests that the kernel has, since it writes into their extents. There is no time
    /// limit: the disk must answer.
    fn drop(&mut self) {
        let mut enters_failed = 0;
        while self.submitted > 0 {
            let entered = self.enter(Wait::Forever);
            for completion in self.ring.completion() {
                self.submitted -= u32::from(completion.user_data() < BELL);
            }
            match entered {
                Ok(()) => {}
                Err(error) if (is_transient(error) || error == Errno::BUSY) && enters_failed < ENTERS_MAX => {
                    enters_failed += 1;
                }
                Err(_) => {
                    // This is not the thread that the ring belongs to, so it cannot wait. Only leaking the
                    // slots is safe.
                    self.slots.leak();
                    return;
                }
            }
        }
    }
}

/// How long [`Uring::enter`] may take.
enum Wait {
    No,
    Forever,
    AtMost(Duration),
}

/// Converts a completion's result: a count, or a negative error number.
fn outcome(result: i32) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result))
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::StoreFile;
    use std::io::Write;

    /// The mode of old kernels, which `reactor` does not choose on new ones: all kinds of wake-up.
    #[test]
    fn a_plain_ring_works_too() {
        let mut temp = tempfile::NamedTempFile::new().unwrap();
        temp.write_all(&[7; 5000]).unwrap();
        let file = Arc::new(StoreFile::open(temp.path(), false, None).unwrap());
        let (watched, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        let mut ring =
            Uring::new(RingMode::Plain, Some(watched.as_raw_fd()), Bell::new().unwrap(), None).unwrap();
        let long = Some(Duration::from_secs(20));
        ring.read(Read { file, offset: 0, len: 8192, buf: crate::test_extent::extent(1), token: 3 });
        let mut done = Vec::new();
        ring.wait(long, &mut done).unwrap();
        assert_eq!((done[0].token, done[0].result), (3, Ok(5000)));
        assert_eq!(done[0].buf.bytes()[..5000], [7; 5000]);
        ring.kicker().kick();
        assert_eq!(ring.wait(long, &mut done), Ok(Woken { readable: false, kicked: true }));
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(ring.wait(long, &mut done), Ok(Woken { readable: true, kicked: false }));
        assert_eq!(ring.wait(Some(Duration::from_millis(10)), &mut done), Ok(Woken::default()));
    }
}
