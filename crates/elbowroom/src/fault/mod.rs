//! The fault driver: handler threads that serve faults and never wait for one.
//!
//! A fault's way (design: "the way of a fault"): find the VMA under RCU and enter it; find or make the folio;
//! if its bytes or its lock are not to be had now, park the fault on the folio, holding it so that reclaim
//! cannot take it, and serve the next; whoever unlocks the folio makes the fault ready, and it starts again
//! from the top. No step takes an address-space-wide lock, except to tell a wrong access from a mapping in
//! change.
//!
//! `step` has the decisions (`private` those for pages that belong to one space), `needs` what comes between
//! two looks, this file the loop of a handler: what to do when a step says that it must wait. `inline` is the
//! loop of a thread that serves a fault of its own. `end` is how faults end, `watchdog` who sees to it that
//! they do, and `trouble` what is done when something is broken.

mod ahead;
mod end;
mod huge;
mod inline;
mod io;
mod load;
mod needs;
mod private;
mod step;
mod trouble;
#[cfg_attr(shuttle, allow(dead_code, reason = "in a model nothing is late"))]
mod watchdog;

use self::ahead::Ahead;
use self::end::Finish;
pub(crate) use self::inline::FaultError;
use self::io::Io;
use self::needs::{Got, Need};
use crate::config::{
    DELAY, HAND_OVER_FAULTS, MEMORY_WAIT_BOUND, PINNED_BOUND, READS_BETWEEN_LOOKS, RECLAIM_BATCH_PAGES,
    REPEATS_AT_ONCE,
};
use crate::core::{Core, Inbox, Job};
use crate::object::FileObject;
use crate::page::{Delayed, Folio, Parked, Ready};
use crate::pause::{Cause, pause};
use crate::platform::Platform;
use crate::stats::Event;
use elbowroom_machine::{Denial, FaultEvent, Mmu};
use elbowroom_store::{Reactor, ReadDone};
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::time::{Duration, Instant};
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
    /// There is no memory for page tables: as soon as some frames are free.
    NoTables,
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
    ready: &'a Ready,
    /// What the last look found missing.
    need: Option<Need>,
    /// What was got for the next look.
    got: Got,
    /// What is to be read ahead at the end of the step.
    ahead: Option<(Arc<FileObject>, Range<u64>)>,
}

impl<'a, P: Platform> Pass<'a, P> {
    fn new(core: &'a Core<P>, io: Option<&'a mut Io>, ready: &'a Ready) -> Self {
        Self { core, io, ready, need: None, got: Got::default(), ahead: None }
    }
}

/// One fault handler thread.
pub(crate) struct Handler<P: Platform> {
    core: Arc<Core<P>>,
    number: usize,
    io: Io,
    ready: Ready,
    /// What was advised to be read, for which nobody waits.
    ahead: Ahead,
    /// Whether it may have faults that it tries again by itself.
    pending: bool,
}

impl<P: Platform> Handler<P> {
    pub(crate) fn new(core: Arc<Core<P>>, number: usize, reactor: Box<dyn Reactor>) -> Self {
        Self {
            core,
            number,
            io: Io::new(reactor),
            ready: Ready::default(),
            ahead: Ahead::default(),
            pending: false,
        }
    }

    fn inbox(&self) -> &Inbox {
        &self.core.inboxes[self.number]
    }

    /// Serves faults until the manager stops.
    pub(crate) fn run(mut self) {
        let mut done: Vec<ReadDone> = Vec::with_capacity(256);
        let mut events: Vec<FaultEvent> = Vec::with_capacity(256);
        while !self.core.stop.load(Ordering::Acquire) {
            self.io.load.work_ends();
            self.inbox().beat.waits();
            let bound =
                if !self.ahead.is_empty() { Some(Duration::ZERO) } else { self.pending.then_some(DELAY) };
            let woken = match self.io.reactor.wait(bound, &mut done) {
                Ok(woken) => woken,
                Err(_) => {
                    // It cannot fail in a way that lasts; if it does all the same, do not spin.
                    pause(Cause::Kernel, DELAY);
                    continue;
                }
            };
            self.inbox().beat.works(0);
            self.io.load.work_begins();
            if woken.kicked {
                self.take_jobs();
            }
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
            self.read_ahead();
            if self.pending {
                self.run_delayed();
                self.run_starved();
            }
            // Whatever of the above has freed frames may have let faults go on, also where nothing was
            // pending. None may be left: the next wait has no bound.
            self.run_ready();
            if self.pending {
                let none = self.inbox().waiting.lock().is_empty();
                self.pending = !none;
            }
        }
        self.end();
    }

    /// Serves the faults that have come, and submits the reads that they need. Before and among the reads
    /// that are done: the device works on what these need while those are mapped. It completes reads in
    /// batches, and what is served batch by batch only would have device and processors wait for each other.
    fn serve_new(&mut self, events: &mut Vec<FaultEvent>) {
        P::take_faults(&self.core.mmu, events);
        if self.io.load.is_high() {
            self.share(events);
        }
        events.drain(..).for_each(|event| self.serve(Parked::new(event)));
        self.io.reactor.submit();
    }

    /// Ends the reads under way, so that nobody waits for their folios. Threads that wait for an answer look
    /// whether there are handlers.
    fn end(mut self) {
        let mut done = Vec::new();
        while self.io.reactor.in_flight() > 0 {
            // A disk must answer, so this ends.
            if self.io.reactor.wait(Some(DELAY), &mut done).is_err() {
                pause(Cause::Kernel, DELAY);
            }
            done.drain(..).for_each(|read| self.pass().complete(read));
        }
        let waiting = self.inbox().waiting.lock().take_all();
        self.ready.take().into_iter().chain(waiting).for_each(|mut fault| fault.let_go());
    }

    fn pass(&mut self) -> Pass<'_, P> {
        Pass::new(&self.core, Some(&mut self.io), &self.ready)
    }

    /// Gives part of a batch to the other handlers. Only under load: otherwise one thread that serves all is
    /// cheaper, and leaves the other processors to the program.
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

    /// Makes ready what others have handed over.
    fn take_jobs(&mut self) {
        let jobs = std::mem::take(&mut *self.inbox().jobs.lock());
        for job in jobs {
            match job {
                Job::Retry(faults) => self.ready.extend(faults),
                Job::Prefetch(object, pages) => self.ahead.add(object, pages),
            }
        }
    }

    fn run_ready(&mut self) {
        while let Some(fault) = self.ready.pop() {
            self.serve(fault);
        }
    }

    fn run_delayed(&mut self) {
        let now = Instant::now();
        loop {
            let due = self.inbox().waiting.lock().take_due(now);
            match due {
                Some((fault, Delayed::ServeAgain)) => self.serve(fault),
                Some((fault, Delayed::WakeOnly)) => self.finish(fault, Finish::Wake),
                None => return,
            }
        }
    }

    /// Tries those that found no memory again, oldest first, until one finds none again.
    fn run_starved(&mut self) {
        let mut left = self.inbox().waiting.lock().starved.len();
        while left > 0 {
            let Some(fault) = self.inbox().waiting.lock().starved.pop_front() else { return };
            if self.core.waited(fault.since) > MEMORY_WAIT_BOUND {
                self.give_up(fault);
                if self.inbox().waiting.lock().starved.is_empty() {
                    self.core.starving_since.store(0, Ordering::Relaxed);
                }
                left -= 1;
                continue;
            }
            let before = self.inbox().waiting.lock().starved.len();
            self.serve(fault);
            let mut waiting = self.inbox().waiting.lock();
            if waiting.starved.len() > before {
                // It went to the back, but it is the oldest: put it in front again.
                waiting.starved.rotate_right(1);
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
        self.inbox().beat.works(fault.event.addr);
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
                Step::NoTables => {
                    self.core.shrink(RECLAIM_BATCH_PAGES, &self.ready);
                    return self.starve(fault);
                }
                Step::NoMemory => return self.starve(fault),
                // A thread that waits here bounds its wait itself.
                Step::Later if fault.waiter.is_some() => return self.finish(fault, Finish::Wake),
                Step::Later => {
                    let since = *fault.blocked_since.get_or_insert_with(Instant::now);
                    if self.core.waited(since) > PINNED_BOUND {
                        return self.give_up(fault);
                    }
                    return self.delay(fault, Delayed::ServeAgain, DELAY);
                }
                Step::Foreign => return self.delay(fault, Delayed::WakeOnly, DELAY),
                Step::Stalled => return self.core.stall(fault),
                // A handler is what it needs.
                Step::NeedsHandler => return self.delay(fault, Delayed::ServeAgain, DELAY),
            }
        }
    }

    /// Queues a fault that found no memory.
    fn starve(&mut self, mut fault: Parked) {
        self.core.counters.add(Event::MemoryWaits, 1);
        // What it holds may be what it waits for, if others do the same.
        fault.let_go();
        self.inbox().waiting.lock().starved.push_back(fault);
        self.pending = true;
    }

    fn delay(&mut self, fault: Parked, what: Delayed, delay: Duration) {
        self.inbox().waiting.lock().delay(Instant::now() + delay, fault, what);
        self.pending = true;
    }
}
