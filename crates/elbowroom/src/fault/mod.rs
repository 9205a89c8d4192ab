//! The fault driver: handler threads that serve faults and never wait for one.
//!
//! A fault's way (design: "the way of a fault"): find the VMA under RCU and enter it; find or make the folio; if its bytes or its lock are not to be had
//! now, park the fault on the folio, holding it so that reclaim cannot take it, and serve the next; whoever unlocks the folio makes the
//! fault ready, and it starts again from the top. No step takes an address-space-wide lock, except to tell a
//! wrong access from a mapping in change.
//!
//! [`step`] has the decisions (`private` those for pages that belong to one space), this file the loop of a handler: what to do when a step says
//! that it must wait. `inline` is the loop of a thread that serves a fault of its own.

mod huge;
mod inline;
mod io;
mod load;
mod private;
mod step;

pub(crate) use self::inline::FaultError;
use self::io::Io;
use crate::config::{DELAY, HAND_OVER_FAULTS, MEMORY_WAIT_BOUND, READS_BETWEEN_LOOKS, REPEATS_AT_ONCE};
use crate::core::{Core, Job};
use crate::object::FileObject;
use crate::page::{Answer, Flag, Folio, Parked};
use crate::platform::Platform;
use crate::stats::Event;
use elbowroom_machine::{Denial, FaultEvent, Mmu, PAGE_SIZE};
use elbowroom_store::{Reactor, ReadDone};
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, thread};
use std::collections::VecDeque;
use std::ops::Range;

/// The thread number of faults that no thread of the program has had.
pub(crate) const NO_THREAD: u32 = 0;

/// How one look at a fault ended.
pub(crate) enum Step {
    /// Served, and the thread is awake.
    Done,
    /// There was nothing to do: the page was mapped meanwhile. Wake the thread.
    Spurious,
    /// Served by making the access fail; the thread is awake.
    Denied(Denial),
    /// Served, but the writer is throttled: it is woken later.
    Throttled,
    /// Wait for the folio's lock.
    Wait(Arc<Folio>),
    /// Something changed meanwhile: look again.
    Again,
    /// No frames can be had now.
    NoMemory,
    /// The kernel is busy with a page: look again in a moment.
    Later,
    /// The address is no longer ours: let the kernel decide, in a moment.
    Foreign,
    /// It waits for a change of the layout to end.
    Stalled,
    /// It needs a read, which only a handler starts.
    NeedsHandler,
}

/// A look at faults: what a step may use.
struct Pass<'a, P: Platform> {
    core: &'a Core<P>,
    /// How reads are started; a thread that is no handler has none.
    io: Option<&'a mut Io>,
    /// The faults whose wait has ended meanwhile.
    ready: &'a mut Vec<Parked>,
}

/// One fault handler thread.
pub(crate) struct Handler<P: Platform> {
    core: Arc<Core<P>>,
    number: usize,
    io: Io,
    ready: Vec<Parked>,
    starved: VecDeque<Parked>,
    delayed: VecDeque<(Instant, Parked, Delayed)>,
}

/// What becomes of a fault after its delay.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delayed {
    ServeAgain,
    WakeOnly,
}

impl<P: Platform> Handler<P> {
    pub(crate) fn new(core: Arc<Core<P>>, number: usize, reactor: Box<dyn Reactor>) -> Self {
        Self {
            core,
            number,
            io: Io::new(reactor),
            ready: Vec::new(),
            starved: VecDeque::new(),
            delayed: VecDeque::new(),
        }
    }

    /// Serves faults until the manager stops.
    pub(crate) fn run(mut self) {
        let mut done: Vec<ReadDone> = Vec::with_capacity(256);
        let mut events: Vec<FaultEvent> = Vec::with_capacity(256);
        while !self.core.stop.load(Ordering::Acquire) {
            self.io.load.work_ends();
            let pending = !self.starved.is_empty() || !self.delayed.is_empty();
            let woken = match self.io.reactor.wait(pending.then_some(DELAY), &mut done) {
                Ok(woken) => woken,
                Err(_) => {
                    // It cannot fail in a way that lasts; if it does all the same, do not spin.
                    thread::sleep(DELAY);
                    continue;
                }
            };
            self.io.load.work_begins();
            let ahead = if woken.kicked { self.take_jobs() } else { Vec::new() };
            self.run_ready();
            if woken.readable || woken.kicked {
                self.serve_new(&mut events);
            }
            for (nth, read) in (1..).zip(done.drain(..)) {
                self.pass().complete(read);
                self.run_ready();
                if nth % READS_BETWEEN_LOOKS == 0 {
                    self.serve_new(&mut events);
                }
            }
            for (object, pages) in ahead {
                let cap = self.core.read_cap();
                self.pass().prefetch(&object, pages, cap);
            }
            self.run_delayed();
            self.run_ready();
            self.run_starved();
        }
        self.end();
    }

    /// Serves the faults that have come, and submits the reads that they need. Before and among the reads that are done: the device works on what
    /// these need while those are mapped. It completes reads in batches, and what is served batch by batch only would have device and
    /// processors wait for each other.
    fn serve_new(&mut self, events: &mut Vec<FaultEvent>) {
        P::take_faults(&self.core.mmu, events);
        if self.io.load.is_high() {
            self.share(events);
        }
        events.drain(..).for_each(|event| self.serve(Parked::new(event)));
        self.io.reactor.submit();
    }

    /// Ends the reads under way, so that nobody waits for their folios. Threads that wait for an answer look whether there are handlers.
    fn end(mut self) {
        let mut done = Vec::new();
        while self.io.reactor.in_flight() > 0 {
            // A disk must answer, so this ends.
            if self.io.reactor.wait(Some(DELAY), &mut done).is_err() {
                thread::sleep(DELAY);
            }
            done.drain(..).for_each(|read| self.pass().complete(read));
        }
        let parked = self.ready.drain(..).chain(self.starved.drain(..));
        parked.chain(self.delayed.drain(..).map(|(_, fault, _)| fault)).for_each(|mut f| f.let_go());
    }

    fn pass(&mut self) -> Pass<'_, P> {
        Pass { core: &self.core, io: Some(&mut self.io), ready: &mut self.ready }
    }

    /// Gives part of a batch to the other handlers. Only under load: otherwise one thread that serves all is cheaper, and leaves the
    /// other processors to the program.
    fn share(&self, events: &mut Vec<FaultEvent>) {
        let handlers = self.core.inboxes.len();
        while events.len() > HAND_OVER_FAULTS && handlers > 1 {
            let share = (events.len() / handlers).max(1);
            let given = events.split_off(events.len() - share).into_iter().map(Parked::new).collect();
            let other = (self.number + events.len() % (handlers - 1) + 1) % handlers;
            self.core.post_to(other, Job::Retry(given));
            if events.len() <= share {
                return;
            }
        }
    }

    /// Makes ready what others have handed over. Returns what is to be read ahead, for which nobody waits.
    fn take_jobs(&mut self) -> Vec<(Arc<FileObject>, Range<u64>)> {
        let jobs = std::mem::take(&mut *self.core.inboxes[self.number].jobs.lock());
        let mut ahead = Vec::new();
        for job in jobs {
            match job {
                Job::Retry(faults) => self.ready.extend(faults),
                Job::Prefetch(object, pages) => ahead.push((object, pages)),
            }
        }
        ahead
    }

    fn run_ready(&mut self) {
        while let Some(fault) = self.ready.pop() {
            self.serve(fault);
        }
    }

    fn run_delayed(&mut self) {
        let now = Instant::now();
        while self.delayed.front().is_some_and(|(due, ..)| *due <= now) {
            let Some((_, fault, what)) = self.delayed.pop_front() else { return };
            match what {
                Delayed::ServeAgain => self.serve(fault),
                Delayed::WakeOnly => self.finish(fault, Finish::Wake),
            }
        }
    }

    /// Tries those that found no memory again, oldest first, until one finds none again.
    fn run_starved(&mut self) {
        let mut left = self.starved.len();
        while left > 0 {
            let Some(fault) = self.starved.pop_front() else { return };
            if fault.since.elapsed() > MEMORY_WAIT_BOUND {
                self.core.give_up(&fault.event);
                self.finish(fault, Finish::Denied(Denial::Bus));
                if self.starved.is_empty() {
                    self.core.starving_since.store(0, Ordering::Relaxed);
                }
                left -= 1;
                continue;
            }
            let before = self.starved.len();
            self.serve(fault);
            if self.starved.len() > before {
                // It went to the back, but it is the oldest: put it in front again.
                self.starved.rotate_right(1);
                let now_ns = self.core.born.elapsed().as_nanos() as u64;
                let starving = &self.core.starving_since;
                let _ = starving.compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed);
                return;
            }
            self.core.starving_since.store(0, Ordering::Relaxed);
            left -= 1;
        }
    }

    /// Serves a fault as far as it gets without waiting.
    pub(crate) fn serve(&mut self, mut fault: Parked) {
        self.core.mmu.give_way();
        loop {
            match self.pass().step(&mut fault) {
                Step::Again => {
                    fault.repeats += 1;
                    if fault.repeats.is_multiple_of(REPEATS_AT_ONCE) {
                        return self.delay(fault, Delayed::ServeAgain, DELAY);
                    }
                }
                Step::Done => return self.finish(fault, Finish::Awake),
                Step::Spurious => return self.finish(fault, Finish::Wake),
                Step::Denied(denial) => return self.finish(fault, Finish::Denied(denial)),
                Step::Throttled => return self.finish(fault, Finish::Throttle),
                Step::Wait(folio) => {
                    self.core.note_wait(&mut fault, &folio);
                    match self.core.waits.park(&folio, fault) {
                        None => return,
                        Some(back) => fault = back,
                    }
                }
                Step::NoMemory => {
                    self.core.counters.add(Event::MemoryWaits, 1);
                    // What it holds may be what it waits for, if others do the same.
                    fault.let_go();
                    return self.starved.push_back(fault);
                }
                // A thread that waits here bounds its wait itself.
                Step::Later if fault.waiter.is_some() => return self.finish(fault, Finish::Wake),
                Step::Later => return self.delay(fault, Delayed::ServeAgain, DELAY),
                Step::Foreign => return self.delay(fault, Delayed::WakeOnly, DELAY),
                Step::Stalled => return self.core.stall(fault),
                // A handler is what it needs.
                Step::NeedsHandler => return self.delay(fault, Delayed::ServeAgain, DELAY),
            }
        }
    }

    fn delay(&mut self, fault: Parked, what: Delayed, delay: Duration) {
        self.delayed.push_back((Instant::now() + delay, fault, what));
    }

    fn finish(&mut self, mut fault: Parked, how: Finish) {
        let page = fault.event.addr..fault.event.addr + PAGE_SIZE;
        let denied = if let Finish::Denied(denial) = how { Some(denial) } else { None };
        if let Some(waiter) = fault.waiter.take() {
            let (throttle, major) = (how == Finish::Throttle, fault.major);
            self.core.let_go(&mut fault);
            // Its thread counts it, and throttles itself: it has no page to wait at.
            return waiter.tell(Answer { denied, throttle, major });
        }
        match how {
            Finish::Awake | Finish::Denied(_) => {}
            Finish::Wake => self.core.mmu.wake(page),
            Finish::Throttle => self.core.throttle(page),
        }
        self.core.count(&mut fault, denied.is_some(), false);
    }
}

impl<P: Platform> Core<P> {
    /// Notes that the fault waits for the folio; for the bytes of its file, perhaps.
    fn note_wait(&self, fault: &mut Parked, folio: &Folio) {
        if !fault.major && !folio.state.test(Flag::Uptodate) {
            fault.major = true;
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes an access fail for which there has been no memory for too long, until the flusher's next look.
    fn give_up(&self, event: &FaultEvent) {
        let page = event.addr..event.addr + PAGE_SIZE;
        let mm = self.spaces.of(event.addr);
        // Both are kept to the end: what makes accesses fail must not take the place of a page that somebody maps meanwhile.
        let vma = mm.as_ref().and_then(|mm| mm.enter(event.addr).ok());
        let object = vma.as_ref().and_then(|vma| Some((vma.spec.object.as_ref()?, vma.page_at(event.addr))));
        let folio = object.and_then(|(object, page)| object.lookup(page));
        if let Some(folio) = &folio {
            if !folio.state.try_lock() {
                // Somebody is about to bring it, perhaps.
                return self.mmu.wake(page);
            }
            // It may be there, and not to be copied.
            if !folio.state.test(Flag::Dead) {
                let _ = self.mmu.unmap(folio.body().extent());
            }
        }
        let _ = self.mmu.deny(event.addr, Denial::Bus, || true);
        if let Some(folio) = &folio {
            self.unlock(folio);
        }
        self.flush.state.lock().refused.push(page);
    }

    /// Lets go of what a fault that has ended held.
    fn let_go(&self, fault: &mut Parked) {
        fault.let_go();
        if fault.major {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Counts a fault that has ended, and lets go of what it held. `major`: somebody else waited for I/O for it.
    fn count(&self, fault: &mut Parked, denied: bool, major: bool) {
        self.let_go(fault);
        let counters = &self.counters;
        match (denied, fault.major || major) {
            (true, _) => counters.add(Event::FaultsDenied, 1),
            (false, true) => counters.add(Event::FaultsMajor, 1),
            (false, false) => counters.add(Event::FaultsMinor, 1),
        }
        counters.fault_latency.record(fault.since.elapsed().as_nanos() as u64);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Finish {
    Awake,
    Wake,
    Denied(Denial),
    Throttle,
}
