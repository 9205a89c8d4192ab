//! The waiters for folios' locks: faults, which are parked without a thread, and threads.
//!
//! A hashed table as Linux's `folio_wait_table`. The bucket lock and the waiters bit together lose no
//! wake-up: a waiter is announced and queued under the bucket lock; the thread that unlocks sees the bit,
//! and takes the bucket lock before it looks for waiters.

use crate::group::{GroupId, OverLimit, Pause, Stall};
use crate::page::{Flag, Folio, LockedFolio, Woken};
use crate::stats::WaitCause;
use elbowroom_machine::{Denial, FaultEvent};
use elbowroom_sync::atomic::{AtomicBool, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, Awaited, Condvar, LockClass, LockStats, Mode, Mutex, Wait};

const BUCKETS: usize = 64;

/// How long a thread sleeps at most before it looks at the lock again: a bound, not a poll.
const THREAD_WAIT: Duration = Duration::from_millis(200);

/// A fault that waits for something.
pub struct Parked {
    /// The fault.
    pub event: FaultEvent,
    /// When the fault happened or, if it came as an event, a moment before the event was read.
    pub since: Instant,
    /// The folio that it has waited for last.
    pub waited_for: Option<Arc<Folio>>,
    /// Whether the fault keeps that folio from reclaim.
    held: bool,
    /// Whether it has waited for I/O.
    pub major: bool,
    /// The group of its mapping or, if it has waited for I/O, of the folio that it waited for first.
    pub group: GroupId,
    /// A larger read around this page failed: read the page alone.
    pub alone: bool,
    /// The last read of its page, alone, failed.
    pub failed: bool,
    /// Since when the MMU could not do what the fault needs, because of a pinned page for example.
    pub blocked_since: Option<Instant>,
    /// Looks that came to nothing.
    pub looks: Looks,
    /// What its group's limits have done to it.
    pub limited: Limited,
    /// The thread that waits for the fault, if it waits in the manager and not in the MMU.
    pub waiter: Option<Arc<Waiter>>,
    /// What is noted of the wait that is under way.
    pub wait: WaitNotes,
    /// The thread that has it, by the kernel's number, for the trace and for its stall.
    pub track: u32,
}

/// What is noted of a fault's wait while it is under way.
#[derive(Default)]
pub struct WaitNotes {
    /// For the lock statistics: what the fault waits for.
    pub lock: Option<Wait>,
    /// For the pressure of groups: its thread stalls.
    pub stall: Option<Stall>,
    /// For the trace: what it waits for, and since when.
    pub traced: Option<(WaitCause, u64)>,
}

/// How often looks at a fault came to nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Looks {
    /// Lookups that met a mapping in change.
    pub missed: u32,
    /// Looks that ended because something had changed meanwhile.
    pub repeated: u32,
}

/// What limits of memory have done to a fault.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limited {
    /// Why it got no frames the last time that it asked.
    pub short: Option<OverLimit>,
    /// It has slept, or was found not to have to, for a group that is over its `high`.
    pub paid_high: bool,
}

/// What a handler tells a thread about the fault that the thread has handed to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// How the access must fail; if not at all, it is to be tried again.
    pub denied: Option<Denial>,
    /// How the thread is to be throttled first.
    pub throttle: Option<Pause>,
    /// Whether its page had to be read.
    pub major: bool,
}

/// A thread that waits for a fault of its own to be served by a handler.
pub struct Waiter {
    answer: Mutex<Option<Answer>>,
    served: Condvar,
}

impl Waiter {
    /// A waiter whose fault was not served yet.
    pub fn new(locks: &LockStats) -> Arc<Self> {
        Arc::new(Self { answer: locks.mutex(LockClass::Wait, None), served: Condvar::new() })
    }

    /// Gives the thread its answer, and wakes it.
    pub fn tell(&self, answer: Answer) {
        *self.answer.lock() = Some(answer);
        self.served.notify_all();
    }

    /// Waits for the answer. It comes as long as there are handlers, since they serve or refuse every
    /// fault. `None`: the handlers have been stopped.
    pub fn wait(&self, stop: &AtomicBool) -> Option<Answer> {
        let mut answer = self.answer.lock();
        while answer.is_none() && !stop.load(Ordering::Acquire) {
            self.served.wait_timeout(&mut answer, THREAD_WAIT);
        }
        answer.take()
    }
}

impl Parked {
    /// A fault that happens now.
    pub fn new(event: FaultEvent) -> Self {
        Self::read(event, Instant::now())
    }

    /// A fault whose event was read at `since` or later.
    pub fn read(event: FaultEvent, since: Instant) -> Self {
        Self {
            event,
            since,
            waited_for: None,
            held: false,
            major: false,
            group: GroupId::ROOT,
            alone: false,
            failed: false,
            blocked_since: None,
            looks: Looks::default(),
            limited: Limited::default(),
            waiter: None,
            wait: WaitNotes::default(),
            track: event.thread,
        }
    }

    /// Notes that the fault waits for a change of a layout to end.
    #[track_caller]
    pub fn stalls(&mut self, locks: &LockStats) {
        self.wait.lock = Some(locks.begin_wait(Awaited::Change, Mode::Write));
    }

    /// Notes that the fault does not wait any more.
    pub fn waited(&mut self, locks: &LockStats) {
        if let Some(wait) = self.wait.lock.take() {
            locks.end_wait(wait);
        }
    }

    /// Notes that the fault waits for `folio`, and releases the folio that it waited for before. `hold`:
    /// keeps `folio` from reclaim until the fault is served.
    pub fn waits_for(&mut self, folio: &Arc<Folio>, hold: bool) {
        if hold {
            folio.state.hold();
        }
        self.let_go();
        (self.waited_for, self.held) = (Some(folio.clone()), hold);
    }

    /// Releases the folio that the fault has waited for: reclaim may take it again.
    pub fn let_go(&mut self) {
        if let Some(folio) = self.waited_for.take()
            && std::mem::take(&mut self.held)
        {
            folio.state.release();
        }
    }
}

struct Bucket {
    waiters: Mutex<Waiters>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiters {
    faults: Vec<(Arc<Folio>, Parked)>,
    threads: usize,
}

/// The table of waiters of one manager.
pub struct WaitTable {
    buckets: Vec<Bucket>,
    locks: LockStats,
}

impl WaitTable {
    /// An empty table.
    pub fn new(locks: &LockStats) -> Self {
        let bucket =
            |_| Bucket { waiters: locks.mutex(LockClass::Wait, Waiters::default()), changed: Condvar::new() };
        Self { buckets: (0..BUCKETS).map(bucket).collect(), locks: locks.clone() }
    }

    /// Counts that a folio was locked.
    #[inline]
    #[track_caller]
    pub(super) fn took(&self) {
        self.locks.took(Awaited::Folio, Mode::Write);
    }

    /// Notes in the lock statistics that the caller waits for the folio from now on. Waits in this table
    /// are counted by the table itself.
    #[track_caller]
    pub fn begin_wait(&self, folio: &Folio) -> Wait {
        // In a model nothing is counted, and each look at an atomic gives it more schedules to try.
        let of_device = !cfg!(any(loom, shuttle))
            && (folio.state.test(Flag::Reading) || folio.state.test(Flag::Writeback));
        let what = if of_device { Awaited::FolioIo } else { Awaited::Folio };
        self.locks.begin_wait(what, Mode::Write)
    }

    /// Notes in the lock statistics that the wait is over.
    pub fn end_wait(&self, wait: Wait) {
        self.locks.end_wait(wait);
    }

    fn bucket(&self, folio: &Arc<Folio>) -> &Bucket {
        let hash = (Arc::as_ptr(folio) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.buckets[(hash >> 58) as usize % BUCKETS]
    }

    /// Parks `fault` until `folio` is unlocked; gives it back if that has happened already. `hold`: keeps the
    /// folio from reclaim meanwhile, and until the fault is served.
    #[track_caller]
    pub fn park(&self, folio: &Arc<Folio>, mut fault: Parked, hold: bool) -> Option<Parked> {
        let bucket = self.bucket(folio);
        fault.waits_for(folio, hold);
        let mut waiters = bucket.waiters.lock();
        if !folio.state.announce_waiter() {
            return Some(fault);
        }
        fault.wait.lock = Some(self.begin_wait(folio));
        waiters.faults.push((folio.clone(), fault));
        None
    }

    /// Takes the faults that waited for the folio, which has just been unlocked, and wakes the threads.
    pub(super) fn wake(&self, folio: &Arc<Folio>) -> Vec<Parked> {
        let bucket = self.bucket(folio);
        let mut waiters = bucket.waiters.lock();
        let mut ready: Vec<_> =
            waiters.faults.extract_if(.., |(f, _)| Arc::ptr_eq(f, folio)).map(|(_, fault)| fault).collect();
        // Notifying is a system call even if no thread waits.
        if waiters.threads > 0 {
            bucket.changed.notify_all();
        }
        drop(waiters);
        ready.iter_mut().for_each(|fault| fault.waited(&self.locks));
        ready
    }

    /// Takes the parked faults that `wanted` accepts, with the folios for which they wait.
    pub fn take_faults(&self, wanted: impl Fn(&Parked) -> bool) -> Vec<(Arc<Folio>, Parked)> {
        let taken = |bucket: &Bucket| {
            let mut waiters = bucket.waiters.lock();
            waiters.faults.extract_if(.., |(_, fault)| wanted(fault)).collect::<Vec<_>>()
        };
        self.buckets.iter().flat_map(taken).collect()
    }

    /// Locks the folio, waiting until it can. When it is unlocked, the faults that wait for it go to
    /// `woken`. Not for handler threads.
    #[track_caller]
    pub fn lock<'a>(&'a self, folio: &Arc<Folio>, woken: &'a dyn Woken) -> LockedFolio<'a> {
        self.lock_while(folio, woken, || true).expect("it waits until it has the lock")
    }

    /// [`WaitTable::lock`], given up once `go_on`, which is asked several times a second, is false.
    #[track_caller]
    pub fn lock_while<'a>(
        &'a self,
        folio: &Arc<Folio>,
        woken: &'a dyn Woken,
        go_on: impl Fn() -> bool,
    ) -> Option<LockedFolio<'a>> {
        let mut wait = None;
        let locked = loop {
            if !go_on() {
                break None;
            }
            if let Ok(locked) = LockedFolio::try_lock(folio.clone(), self, woken) {
                break Some(locked);
            }
            if wait.is_none() {
                wait = Some(self.begin_wait(folio));
            }
            self.wait_a_while(folio, &mut wait);
        };
        if let Some(wait) = wait {
            self.end_wait(wait);
        }
        locked
    }

    /// Waits until the folio is not locked. Another thread may have locked it again by the time this
    /// returns; that thread sees what the caller did before. Not for handler threads.
    #[track_caller]
    pub fn wait(&self, folio: &Arc<Folio>) {
        self.wait_while(folio, || true);
    }

    /// [`WaitTable::wait`], given up once `go_on`, which is asked several times a second, is false. Tells
    /// whether the lock was free.
    #[track_caller]
    pub fn wait_while(&self, folio: &Arc<Folio>, go_on: impl Fn() -> bool) -> bool {
        let mut wait = None;
        let free = loop {
            if !go_on() {
                break false;
            }
            if !self.wait_a_while(folio, &mut wait) {
                break true;
            }
        };
        if let Some(wait) = wait {
            self.end_wait(wait);
        }
        free
    }

    /// Waits for the folio to be unlocked, for [`THREAD_WAIT`] at most; `false`: it is not locked. If it
    /// is, begins `wait`, unless that has begun.
    ///
    /// # Panics
    /// If the thread that holds the folio's lock has panicked.
    #[track_caller]
    fn wait_a_while(&self, folio: &Arc<Folio>, wait: &mut Option<Wait>) -> bool {
        let bucket = self.bucket(folio);
        let mut waiters = bucket.waiters.lock();
        let locked = folio.state.announce_waiter();
        if locked {
            if wait.is_none() {
                *wait = Some(self.begin_wait(folio));
            }
            waiters.threads += 1;
            bucket.changed.wait_timeout(&mut waiters, THREAD_WAIT);
            waiters.threads -= 1;
            drop(waiters);
            assert!(!folio.state.test(Flag::Abandoned), "another thread has panicked with a folio locked");
        }
        locked
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::page::{Owner, Ready};
    use elbowroom_sync::thread;

    /// A wait that would never end.
    #[test]
    fn who_waits_for_a_folio_of_a_thread_that_panicked_panics_too() {
        let (waits, woken) = (WaitTable::new(&LockStats::new()), Ready::default());
        let locked = LockedFolio::new(Folio::new(Owner::Anon, GroupId::ROOT, 0, 0), &waits, &woken);
        let folio = locked.arc().clone();
        let panics = |f: &mut dyn FnMut()| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).expect_err("it panics")
        };
        let mut locked = Some(locked);
        panics(&mut || {
            let _locked = locked.take();
            panic!("with the folio locked");
        });
        let said = panics(&mut || drop(waits.lock(&folio, &woken)));
        let said = said.downcast_ref::<&str>().copied().unwrap_or_default();
        assert!(said.contains("another thread has panicked"), "{said}");
    }

    /// Acquisitions and waits of folios, and of those that a device has, as the statistics have them.
    fn counted(locks: &LockStats) -> [(u64, u64, u64); 2] {
        let rows = locks.snapshot().by_lock();
        [Awaited::Folio, Awaited::FolioIo].map(|what| {
            let row = rows.iter().find(|row| row.lock == what);
            row.map_or((0, 0, 0), |row| (row.acquisitions, row.contended(), row.max_wait_ns))
        })
    }

    fn fault() -> Parked {
        Parked::new(FaultEvent { addr: 0, thread: 0, write: false, present: false })
    }

    #[test]
    fn faults_and_threads_that_wait_are_counted_by_what_they_wait_for() {
        const TIME: Duration = Duration::from_millis(20);
        let locks = LockStats::new();
        let (waits, woken) = (Arc::new(WaitTable::new(&locks)), Ready::default());
        let locked = LockedFolio::new(Folio::new(Owner::Anon, GroupId::ROOT, 0, 0), &waits, &woken);
        let folio = locked.arc().clone();
        assert!(waits.park(&folio, fault(), true).is_none());
        let (for_waiter, its_folio) = (waits.clone(), folio.clone());
        let waiter = thread::spawn("waiter", move || drop(for_waiter.lock(&its_folio, &Ready::default())));
        while waits.bucket(&folio).waiters.lock().threads == 0 {
            thread::yield_now();
        }
        thread::sleep(TIME);
        drop(locked);
        waiter.unwrap().join().expect("it gets the lock");
        woken.take().iter_mut().for_each(Parked::let_go);
        let [(taken, waited, most_ns), of_device] = counted(&locks);
        // A new folio comes locked; the thread has taken it.
        assert_eq!((taken, waited, of_device), (1, 2, (0, 0, 0)));
        assert!(most_ns >= TIME.as_nanos() as u64, "{most_ns}");

        let locked = waits.lock(&folio, &woken);
        let reading = locked.begin_read();
        assert!(waits.park(&folio, fault(), true).is_none());
        drop(reading.end(&waits, &woken));
        woken.take().iter_mut().for_each(Parked::let_go);
        assert!(waits.park(&folio, fault(), true).is_some_and(|mut back| {
            back.let_go();
            back.wait.lock.is_none()
        }));
        let [(taken, waited, _), (_, of_device, _)] = counted(&locks);
        assert_eq!((taken, waited, of_device), (2, 2, 1));
    }
}
