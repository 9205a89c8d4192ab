//! The fault driver: handler threads, which serve faults and put aside those that must wait.
//!
//! A fault's way (design: "the way of a fault"): find the VMA under RCU and enter it; find or make the
//! folio; if the folio is locked, or still being read, park the fault on the folio, holding the folio so
//! that reclaim cannot take it, and serve the next fault. The thread that unlocks the folio makes the fault
//! ready, and the fault starts again from the top. No step takes an address-space-wide lock, except to tell
//! a wrong access from a mapping in change.
//!
//! `step` has the decisions (`private` those for pages that belong to one space, `read` what is read of a
//! file, `stores` which pages become writable together with the one that is stored to, `swap_ahead` what is
//! read from the swap file ahead of a thread), `needs` what is done between two looks, `outcome` what a look
//! can come to and the one loop that acts on it, `table` the states of a fault, what follows each, and what
//! is counted. Two kinds of thread run the loop, and each has its own way to wait: a handler (this file), and
//! a thread that serves a fault of its own (`inline`). `end` is how faults end, `watchdog` the thread that
//! ends those that wait for too long, and `trouble` what is done when something is broken.

mod ahead;
mod end;
mod huge;
mod idle;
mod inline;
mod io;
mod load;
mod needs;
mod out_run;
mod outcome;
mod private;
mod read;
mod repeats;
mod stall;
mod step;
mod stores;
mod swap_ahead;
mod table;
mod trouble;
#[cfg_attr(shuttle, allow(dead_code, reason = "in a model nothing is late"))]
mod watchdog;

use self::idle::Idle;
pub(crate) use self::inline::FaultError;
use self::io::Io;
use self::needs::{Got, Need};
use self::outcome::{Driver, Ended, Verdict, Waited, Wakeup};
pub(crate) use self::outcome::{Outcome, Reason};
use self::repeats::{Repeated, Repeats};
use crate::config::{DELAY, HAND_OVER_FAULTS, MOST_REPEATS, PINNED_BOUND, STARVED_DELAY, STARVED_PART};
use crate::core::{Inbox, Job};
use crate::group::{GroupId, OverLimit};
use crate::object::FileObject;
use crate::page::{Delayed, Parked, Ready, Woken};
use crate::pause::{Bell, Cause, pause};
use crate::platform::Platform;
use crate::quiet::Rester;
use crate::readahead::Streams;
use crate::stats::Event;
use crate::trace::{Happened, Trace};
use crate::writeback::Writeback;
use elbowroom_machine::{FaultEvent, Mmu};
use elbowroom_store::{Reactor, ReadDone};
use elbowroom_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, LockClass, Mutant, Mutex};
use std::ops::{Deref, Range};

/// In tests of the tests: finished reads that handlers gave each other are not completed when the handlers
/// rest for a fork.
const MUTANT_LEAVE_ARRIVED: Mutant = Mutant::new("leave_arrived");

/// The thread number of faults that no thread of the program has had: those that a verb makes to populate.
pub(crate) const NO_THREAD: u32 = 0;

/// How faults are served.
pub(crate) struct Faults<P: Platform> {
    writeback: Writeback<P>,
    streams: Mutex<Streams>,
    /// What the watchdog sleeps at.
    watch: Bell,
    /// When a thread last called [`Faults::waited`]; and, in `resumed`, when the process last went on after
    /// it had been stopped. In nanoseconds since the manager's start.
    alive: AtomicU64,
    resumed: AtomicU64,
    /// Counts the calls of [`Faults::note_alias_look`]: the period in which moves of a folio are counted.
    alias_looks: AtomicU32,
    /// Whether it was reported that memory is full: one of the numbers in [`trouble`].
    said_full: AtomicU32,
    /// Faults that found their page mapped.
    repeats: Mutex<Repeats>,
}

impl<P: Platform> Deref for Faults<P> {
    type Target = Writeback<P>;

    fn deref(&self) -> &Writeback<P> {
        &self.writeback
    }
}

impl<P: Platform> Faults<P> {
    pub(crate) fn new(writeback: Writeback<P>) -> Self {
        Self {
            streams: writeback.locks.mutex(LockClass::Streams, Streams::new(*writeback.tuning())),
            watch: Bell::new(&writeback.locks),
            alive: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            alias_looks: AtomicU32::new(0),
            said_full: AtomicU32::new(trouble::FULL_UNSAID),
            repeats: writeback.locks.mutex(LockClass::Inbox, Repeats::default()),
            writeback,
        }
    }

    /// Begins a new period for counting how often each folio moves from one mapping to another.
    pub(crate) fn note_alias_look(&self) {
        self.alias_looks.fetch_add(1, Ordering::Relaxed);
    }

    /// What to think of a fault at a page that its folio's extent has as mapped. The first time the event
    /// may just be late: the page was mapped after the kernel reported the fault. If the thread faults
    /// there again, the kernel is asked whether the page is there.
    fn repeated(&self, fault: &Parked) -> Repeated {
        let event = &fault.event;
        if !P::Mmu::LATE_EVENTS || event.present || event.thread == NO_THREAD || fault.waiter.is_some() {
            return Repeated::No;
        }
        let (count, since) = self.repeats.lock().note(event.thread, event.addr, fault.since);
        if count == 0 {
            return Repeated::No;
        }
        if !self.mmu.is_there(event.addr) {
            return Repeated::Gone;
        }
        let late = count >= MOST_REPEATS && self.waited(since) > self.config.bounds.fault;
        if late { Repeated::ForEver } else { Repeated::No }
    }

    /// Wakes the handlers and the watchdog, so that they see `stop`.
    pub(crate) fn wake_threads(&self) {
        self.watch.ring_for_stop();
        self.inboxes.iter().for_each(|inbox| inbox.kicker.kick());
    }
}

/// What the steps of faults use: the manager, the I/O, and what was got for the next look.
struct Pass<'a, P: Platform> {
    core: &'a Faults<P>,
    /// The handler's I/O, to start reads; `None` in other threads, which cannot start any.
    io: Option<&'a mut Io>,
    /// The faults that a folio unlocked by this thread has made ready.
    ready: &'a Ready,
    /// What the last look found missing.
    need: Option<Need>,
    /// What was got for the next look.
    got: Got,
    /// Pages of a file to be read ahead at the end of the step.
    ahead: Option<(Arc<FileObject>, Range<u64>)>,
}

impl<'a, P: Platform> Pass<'a, P> {
    fn new(core: &'a Faults<P>, io: Option<&'a mut Io>, ready: &'a Ready) -> Self {
        Self { core, io, ready, need: None, got: Got::default(), ahead: None }
    }
}

/// One fault handler thread.
pub(crate) struct Handler<'a, P: Platform> {
    core: &'a Faults<P>,
    number: usize,
    io: Io,
    ready: Ready,
    /// Whether faults may be queued in its inbox that it must try again by itself, after a delay.
    pending: bool,
    /// When the last try of faults that had found no frames ended.
    tried: Instant,
    idle: Idle,
}

impl<'a, P: Platform> Handler<'a, P> {
    pub(crate) fn new(core: &'a Faults<P>, number: usize, reactor: Box<dyn Reactor>) -> Self {
        Self {
            core,
            number,
            io: Io::new(reactor),
            ready: Ready::default(),
            pending: false,
            tried: Instant::now(),
            // Only handler 0 is woken by faults, and shares them out.
            idle: Idle::new(number == 0 && core.config.shallow_idle && core.config.ablation.shallow_idle),
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
            let bound = self.longest_wait();
            let woken = match self.io.reactor.wait(bound, &mut done) {
                Ok(woken) => woken,
                Err(_) => {
                    // Waiting cannot fail for long; should it do so all the same, do not spin.
                    pause(Cause::Kernel, DELAY);
                    continue;
                }
            };
            self.inbox().beat.works(0);
            self.io.load.work_begins();
            let events_seen = u32::from(woken.readable || woken.kicked) + done.len() as u32;
            if self.idle.goes_on(events_seen, self.io.load.since()) {
                self.core.counters.add(Event::ShallowIdles, 1);
            }
            if self.core.throttle_due().is_some_and(|left| left.is_zero()) {
                self.core.wake_throttled();
            }
            if woken.kicked {
                self.take_jobs();
            }
            self.run_ready();
            let rests = self.core.quiet.is_wanted(Rester::Handler);
            if (woken.readable || woken.kicked) && !rests {
                self.serve_new(&mut events);
            }
            if !rests {
                self.share_reads(&mut done);
            }
            for (nth, read) in (1..).zip(done.drain(..)) {
                self.pass().complete(read);
                self.run_ready();
                if nth % self.core.tuning().reads_between_looks == 0 && !rests {
                    self.serve_new(&mut events);
                }
            }
            if rests {
                self.rest(&mut events);
            }
            self.read_ahead();
            if self.pending {
                self.run_delayed();
                self.run_starved();
            }
            // The work above may have freed frames or unlocked folios, and so made faults ready, even if
            // nothing was pending. No ready fault may be left: the next wait has no bound.
            self.run_ready();
            if self.pending {
                let none = self.inbox().waiting.lock().is_empty();
                self.pending = !none;
            }
        }
        self.end();
    }

    /// How long the handler may sleep if nothing happens; `None`: without a bound.
    fn longest_wait(&self) -> Option<Duration> {
        if self.io.has_to_read(self.core.mmu.frames()) {
            return Some(Duration::ZERO);
        }
        let pending = self.pending.then_some(DELAY);
        // Throttled writers must be woken when their pause ends, for which the flusher may be too busy with
        // a disk; and idle processors must be let sleep again when faults have become rare.
        pending.into_iter().chain(self.core.throttle_due()).chain(self.idle.longest_wait()).min()
    }

    /// Ends the reads under way, then rests until a fork has been made.
    fn rest(&mut self, events: &mut Vec<FaultEvent>) {
        let mut done = Vec::new();
        self.io.reactor.submit();
        while self.io.reactor.in_flight() > 0 {
            // A disk must answer, so this ends.
            if self.io.reactor.wait(None, &mut done).is_err() {
                pause(Cause::Kernel, DELAY);
            }
            done.drain(..).for_each(|read| self.pass().complete(read));
            self.run_ready();
            self.io.reactor.submit();
        }
        self.take_arrived();
        self.core.quiet.rest(Rester::Handler);
        // The jobs and fault events that have come meanwhile are not announced again.
        self.take_jobs();
        self.run_ready();
        self.serve_new(events);
    }

    /// Serves the faults that have come, and submits the reads that they need. Called before the finished
    /// reads are completed, and between them: so the device works on new reads while this thread maps the
    /// pages of finished ones. The device finishes reads in batches; if new faults were served only between
    /// batches, device and processors would wait for each other.
    fn serve_new(&mut self, events: &mut Vec<FaultEvent>) {
        let read = Instant::now();
        P::take_faults(&self.core.mmu, events);
        // Of threads that come to a part of a file together, the one at the first page is served first: from
        // there the whole part can be read.
        events.sort_unstable_by_key(|event| event.addr);
        if self.shares() {
            self.share(events, read);
        }
        events.drain(..).for_each(|event| self.serve(Parked::read(event, read)));
        self.io.reactor.submit();
    }

    /// Ends the reads under way, so that no thread waits for their folios, and lets go of the faults that
    /// are left. Threads that wait for an answer to their fault look at `stop` themselves.
    fn end(mut self) {
        let mut done = Vec::new();
        while self.io.reactor.in_flight() > 0 {
            // A disk must answer, so this ends.
            if self.io.reactor.wait(Some(DELAY), &mut done).is_err() {
                pause(Cause::Kernel, DELAY);
            }
            done.drain(..).for_each(|read| self.pass().complete(read));
        }
        self.take_arrived();
        let waiting = self.inbox().waiting.lock().take_all();
        self.ready.take().into_iter().chain(waiting).for_each(|mut fault| fault.let_go());
    }

    fn pass(&mut self) -> Pass<'_, P> {
        Pass::new(self.core, Some(&mut self.io), &self.ready)
    }

    /// Whether the handler is so busy that other handlers are to get a part of its work.
    fn shares(&self) -> bool {
        self.core.config.ablation.shared_faults && self.io.load.is_over(self.core.tuning().overload_percent)
    }

    /// Gives part of a batch of events to the other handlers. Only under load: otherwise it is cheaper that
    /// one thread serves all faults, and leaves the other processors to the program.
    fn share(&self, events: &mut Vec<FaultEvent>, read: Instant) {
        let handlers = self.core.inboxes.len();
        while events.len() > HAND_OVER_FAULTS && handlers > 1 {
            let share = (events.len() / handlers).max(1);
            let given = events.split_off(events.len() - share).into_iter();
            let given = given.map(|event| Parked::read(event, read)).collect();
            let other = (self.number + events.len() % (handlers - 1) + 1) % handlers;
            self.core.inboxes.post_to(other, Job::Retry(given));
            if events.len() <= share {
                return;
            }
        }
    }

    /// Gives finished reads of the swap file to another handler: those in the second half of `done`, which
    /// this one would complete last. Only under load, as for [`Handler::share`].
    fn share_reads(&mut self, done: &mut Vec<ReadDone>) {
        let handlers = self.core.inboxes.len();
        if done.len() < self.core.tuning().shared_reads || handlers < 2 || !self.shares() {
            return;
        }
        let mut given = Vec::new();
        for read in done.split_off(done.len() / 2) {
            match self.io.arrived(read) {
                Ok(arrived) => given.push(arrived),
                Err(read) => done.push(read),
            }
        }
        if !given.is_empty() {
            self.core.inboxes.post_to((self.number + 1) % handlers, Job::Arrived(given));
        }
    }

    /// Takes the jobs that other threads have posted: makes faults ready, queues reads ahead, completes
    /// finished reads.
    fn take_jobs(&mut self) {
        let jobs = std::mem::take(&mut *self.inbox().jobs.lock());
        let mut retried = Vec::new();
        for job in jobs {
            match job {
                Job::Retry(faults) => retried.extend(faults),
                Job::Prefetch(object, pages) => self.io.ahead.advised(object, pages),
                Job::Arrived(arrived) => arrived.into_iter().for_each(|one| self.pass().swapped_in(one)),
            }
        }
        self.ready.wake(retried);
    }

    /// Completes the finished reads that any handler was given by another. Also those in other handlers'
    /// inboxes: a handler that rests or has ended already will not do it.
    fn take_arrived(&mut self) {
        if MUTANT_LEAVE_ARRIVED.planted() {
            return;
        }
        for inbox in self.core.inboxes.iter() {
            let is_arrived = |job: &mut Job| matches!(job, Job::Arrived(_));
            let jobs: Vec<_> = inbox.jobs.lock().extract_if(.., is_arrived).collect();
            for job in jobs {
                if let Job::Arrived(arrived) = job {
                    arrived.into_iter().for_each(|one| self.pass().swapped_in(one));
                }
            }
        }
        self.run_ready();
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
                Some((fault, Delayed::WakeOnly)) => self.core.finish(fault, Ended::FOREIGN),
                None => return,
            }
        }
    }

    /// Tries the faults again that found no frames, oldest first. Once one has found none again, others that
    /// lack frames of the same limit are not tried. While none gets any, there is more and more time between
    /// two tries.
    fn run_starved(&mut self) {
        let mut left = self.inbox().waiting.lock().starved.len();
        let between = (self.core.groups.starving.time() / STARVED_PART).min(STARVED_DELAY);
        if left == 0 || between > DELAY && self.tried.elapsed() < between {
            return;
        }
        let (mut passed, mut exhausted) = (Vec::new(), Vec::new());
        while left > 0 {
            let Some(fault) = self.inbox().waiting.lock().starved.pop_front() else { break };
            left -= 1;
            if self.core.waited(fault.since) > self.core.config.bounds.memory_wait {
                match self.core.note_starved(&fault) {
                    true => self.core.end_overdue(fault),
                    false => passed.push(fault),
                }
            } else if exhausted.contains(&fault.limited.short) {
                passed.push(fault);
            } else {
                let before = self.inbox().waiting.lock().starved.len();
                self.serve(fault);
                let mut waiting = self.inbox().waiting.lock();
                if waiting.starved.len() > before {
                    // The fault was queued at the back.
                    let fault = waiting.starved.pop_back();
                    exhausted.extend(fault.as_ref().map(|fault| fault.limited.short));
                    passed.extend(fault);
                } else {
                    self.core.groups.starving.note_fed();
                }
            }
        }
        // They are the oldest: they are in front again.
        let mut waiting = self.inbox().waiting.lock();
        passed.into_iter().rev().for_each(|fault| waiting.starved.push_front(fault));
        if waiting.starved.is_empty() {
            self.core.groups.starving.note_fed();
        } else {
            let for_arena = |fault: &Parked| fault.limited.short == Some(OverLimit::Arena);
            self.core.groups.starving.note(waiting.starved.iter().any(for_arena));
        }
        drop(waiting);
        self.tried = Instant::now();
        trouble::tell_of_min(self.core);
    }

    /// Serves a fault as far as it gets without waiting.
    pub(crate) fn serve(&mut self, fault: Parked) {
        self.core.mmu.give_way();
        if fault.waiter.is_none() {
            self.core.note_fault_of(fault.event.thread, fault.since);
        }
        let addr = fault.event.addr;
        self.inbox().beat.works(addr);
        let core = self.core;
        core.noted(Happened::Serve, |()| [addr as u64, 0], || self.drive(fault));
    }

    /// Queues a fault that found no memory.
    fn starve(&mut self, mut fault: Parked) {
        // The folio that it keeps from reclaim may be what memory lacks, if many faults keep one.
        fault.let_go();
        self.inbox().waiting.lock().starved.push_back(fault);
        self.pending = true;
    }

    /// Queues a fault, to be served or woken after [`DELAY`].
    fn delay(&mut self, fault: Parked, what: Delayed) {
        self.delay_for(DELAY, fault, what);
    }

    /// Queues a fault, to be served or woken after some time.
    fn delay_for(&mut self, time: Duration, fault: Parked, what: Delayed) {
        self.inbox().waiting.lock().delay(Instant::now() + time, fault, what);
        self.pending = true;
    }
}

/// A handler never waits: it queues the fault where another thread, or the handler itself, finds it later.
impl<P: Platform> Driver for Handler<'_, P> {
    type End = ();

    fn count(&self, event: Event) {
        self.core.counters.add(event, 1);
    }

    fn trace(&self) -> Option<&Trace> {
        self.core.trace.as_deref()
    }

    fn look(&mut self, fault: &mut Parked) -> Outcome {
        self.pass().step(fault)
    }

    fn look_closely(&mut self, fault: &mut Parked) -> Outcome {
        self.core.look_with_layout(fault)
    }

    fn end(&mut self, fault: Parked, ended: Ended) {
        if ended.verdict == Verdict::Foreign {
            // Not at once: the thread would fault again before the kernel's mapping is there.
            self.delay(fault, Delayed::WakeOnly);
        } else {
            self.core.finish(fault, ended);
        }
    }

    fn wait(&mut self, mut fault: Parked, reason: Reason) -> Waited<()> {
        stall::begin(self.core, &mut fault, &reason);
        match reason {
            Reason::Folio(folio) => {
                let hold = self.core.note_wait(&mut fault, &folio);
                return match self.core.waits.park(&folio, fault, hold) {
                    None => Waited::Aside(()),
                    Some(back) => Waited::Over(back),
                };
            }
            Reason::Frames => self.starve(fault),
            Reason::High(time) => self.delay_for(time, fault, Delayed::ServeAgain),
            Reason::Tables => {
                let batch = self.core.tuning().reclaim_batch_pages;
                self.core.shrink(GroupId::ROOT, batch, &self.ready);
                self.starve(fault);
            }
            // The thread that waits for this handler's answer looks again itself, and bounds its wait.
            Reason::Pinned if fault.waiter.is_some() => {
                return Waited::Ended(fault, Ended::served(Wakeup::Now));
            }
            Reason::Pinned => {
                let since = *fault.blocked_since.get_or_insert_with(Instant::now);
                if self.core.waited(since) > PINNED_BOUND {
                    let ended = self.core.overdue(&fault);
                    return Waited::Ended(fault, ended);
                }
                self.delay(fault, Delayed::ServeAgain);
            }
            Reason::Change => self.core.stall(fault),
            // This thread is a handler, so the fault need only be tried again.
            Reason::Handler | Reason::Turn => self.delay(fault, Delayed::ServeAgain),
        }
        Waited::Aside(())
    }
}
