//! A moment in which a manager does nothing: a fork copies it as it is then.
//!
//! First the verbs of other threads end, and the threads that work by themselves (flusher, supplier,
//! watchdog) rest where they have nothing in hand; the handlers serve faults meanwhile, for which a verb
//! may wait. Then the handlers finish what is being read, take no new faults, and rest. No thread that
//! rests has a lock.
//!
//! Synchronization: one lock of the class `queue`; `wanted` is also in an atomic, so that a thread's turn
//! costs one load while no thread wants to fork. That lock may be held by a thread for a moment while the
//! fork is made: by one that wants to begin a verb, or that rests and has just been woken. So a child does
//! not use its parent's lock, but makes a new one.

use crate::config::QUIET_BOUND;
use elbowroom_sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{Arc, Condvar, LockClass, LockStats, Mutex, RcuCell};

/// No fork wants the threads to rest.
const NOT: u8 = 0;
/// Verbs and the threads that work by themselves are to rest.
const VERBS: u8 = 1;
/// The handlers are to rest, too.
const ALL: u8 = 2;

pub(crate) struct Quiet {
    wanted: AtomicU8,
    /// Replaced in a child only.
    meeting: RcuCell<Meeting>,
    /// How long all rest at most.
    bound: Duration,
    /// Called, before any thread goes on, if the fork took too long: its child has no copy that is whole.
    on_late: Option<Arc<dyn Fn() + Send + Sync>>,
    /// While it is more than 0, files are left to the kernel. Counts the fork that is under way, and in a
    /// child the one that made it.
    without_files: AtomicUsize,
}

/// Where threads that rest, run a verb or want to fork wait for each other.
struct Meeting {
    state: Mutex<State>,
    changed: Condvar,
}

impl Meeting {
    fn new(locks: &LockStats) -> Self {
        Self { state: locks.mutex(LockClass::Sleep, State::default()), changed: Condvar::new() }
    }
}

#[derive(Default)]
struct State {
    wanted: u8,
    /// The number of the fork that `wanted` is for.
    turn: u64,
    /// All rest, and the fork is being made.
    is_made: bool,
    /// Verbs under way.
    verbs: usize,
    /// Threads of either kind that rest.
    rest: [usize; 2],
}

/// A verb under way.
pub(crate) struct Working(Arc<Meeting>);

/// How an attempt to have all rest has ended.
enum Begun {
    /// All rest.
    Quiet,
    /// A thread has rested for too long meanwhile, and all go on.
    GivenUp,
    /// The bound is over, and all go on.
    Late,
}

/// The kinds of threads that rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rester {
    /// A thread that works by itself.
    Helper,
    Handler,
}

impl Quiet {
    pub(crate) fn new(
        locks: &LockStats,
        bound: Duration,
        on_late: Option<Arc<dyn Fn() + Send + Sync>>,
    ) -> Self {
        Self {
            wanted: AtomicU8::new(NOT),
            meeting: RcuCell::new(Meeting::new(locks)),
            bound,
            on_late,
            without_files: AtomicUsize::new(0),
        }
    }

    /// From now on files are left to the kernel, until as many calls of [`Quiet::end_without_files`].
    pub(crate) fn begin_without_files(&self) {
        self.without_files.fetch_add(1, Ordering::SeqCst);
    }

    /// Undoes one [`Quiet::begin_without_files`].
    pub(crate) fn end_without_files(&self) {
        self.without_files.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether files are left to the kernel.
    pub(crate) fn is_without_files(&self) -> bool {
        self.without_files.load(Ordering::SeqCst) > 0
    }

    /// Begins a verb, as soon as no fork wants the threads to rest. Not for a thread that has a lock.
    pub(crate) fn work(&self) -> Working {
        let meeting = self.meeting.load();
        let mut state = meeting.state.lock();
        while state.wanted != NOT {
            meeting.changed.wait_timeout(&mut state, self.bound);
        }
        state.verbs += 1;
        drop(state);
        Working(meeting)
    }

    /// Whether a thread of this kind is to rest.
    pub(crate) fn is_wanted(&self, who: Rester) -> bool {
        let wanted = self.wanted.load(Ordering::Acquire);
        match who {
            Rester::Helper => wanted >= VERBS,
            Rester::Handler => wanted == ALL,
        }
    }

    /// Rests until the fork was made. For a thread with nothing in hand, if it
    /// [`is_wanted`](Self::is_wanted).
    pub(crate) fn rest(&self, who: Rester) {
        let deadline = Instant::now() + self.bound;
        let meeting = self.meeting.load();
        let mut state = meeting.state.lock();
        state.rest[who as usize] += 1;
        meeting.changed.notify_all();
        while self.is_wanted(who) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Perhaps the forking thread waits, at one of libc's locks, for a thread that waits for us.
                // If the forking thread still waits for others to rest, it begins anew.
                if let Some(tell) = self.on_late.as_ref().filter(|_| state.is_made) {
                    tell();
                }
                self.want(&meeting, &mut state, NOT);
                break;
            }
            meeting.changed.wait_timeout(&mut state, left);
        }
        state.rest[who as usize] -= 1;
    }

    fn want(&self, meeting: &Meeting, state: &mut State, wanted: u8) {
        state.wanted = wanted;
        state.is_made = false;
        self.wanted.store(wanted, Ordering::Release);
        meeting.changed.notify_all();
    }

    /// Waits until all rest: so many helpers and handlers, which `wake` has look whether they are to.
    /// `false`: they did not within the bound, and go on. After `true` the caller is to call
    /// [`Quiet::end`].
    pub(crate) fn begin(&self, helpers: usize, handlers: usize, wake: impl Fn()) -> bool {
        let deadline = Instant::now() + QUIET_BOUND;
        loop {
            match self.begin_once(deadline, helpers, handlers, &wake) {
                Begun::Quiet => return true,
                Begun::Late => return false,
                Begun::GivenUp => {}
            }
        }
    }

    fn begin_once(&self, deadline: Instant, helpers: usize, handlers: usize, wake: &dyn Fn()) -> Begun {
        let meeting = &*self.meeting.load();
        let until = |ready: &dyn Fn(&State) -> bool| {
            let mut state = meeting.state.lock();
            while !ready(&state) {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(state);
                }
                meeting.changed.wait_timeout(&mut state, left);
            }
            Ok(state)
        };
        let turn = match until(&|state| state.wanted == NOT) {
            Ok(mut state) => {
                state.turn += 1;
                self.want(meeting, &mut state, VERBS);
                state.turn
            }
            // Another fork is under way.
            Err(_) => return Begun::Late,
        };
        let is_over = |state: &State| state.turn != turn || state.wanted == NOT;
        let until = |ready: &dyn Fn(&State) -> bool| match until(&|state| is_over(state) || ready(state)) {
            Ok(state) if is_over(&state) => Err(Begun::GivenUp),
            Ok(state) => Ok(state),
            Err(mut state) => {
                self.want(meeting, &mut state, NOT);
                Err(Begun::Late)
            }
        };
        wake();
        let quiet = until(&|state| state.verbs == 0 && state.rest[Rester::Helper as usize] == helpers)
            .map(|mut state| self.want(meeting, &mut state, ALL))
            .and_then(|()| {
                wake();
                until(&|state| state.rest[Rester::Handler as usize] == handlers)
            })
            .map(|mut state| state.is_made = true);
        quiet.err().unwrap_or(Begun::Quiet)
    }

    /// All go on.
    pub(crate) fn end(&self) {
        let meeting = self.meeting.load();
        self.want(&meeting, &mut meeting.state.lock(), NOT);
    }

    /// In the child of a fork, which has none of the threads.
    pub(crate) fn renew(&self, locks: &LockStats) {
        self.meeting.store(Meeting::new(locks));
        self.wanted.store(NOT, Ordering::Release);
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.verbs -= 1;
        if state.wanted != NOT {
            self.0.changed.notify_all();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::config::FORK_BOUND;
    use elbowroom_sync::atomic::{AtomicBool, AtomicUsize};
    use elbowroom_sync::thread;

    /// No thread is in the middle of anything while one forks; all go on afterwards.
    #[test]
    fn all_rest_while_somebody_forks() {
        let quiet = Arc::new(Quiet::new(&LockStats::new(), FORK_BOUND, None));
        let (busy, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let turns = Arc::new(AtomicUsize::new(0));
        let start = |body: fn(&Quiet, &dyn Fn())| {
            let (quiet, busy, stop, turns) = (quiet.clone(), busy.clone(), stop.clone(), turns.clone());
            let run = move || {
                while !stop.load(Ordering::Acquire) {
                    body(&quiet, &|| {
                        busy.fetch_add(1, Ordering::AcqRel);
                        thread::sleep(Duration::from_micros(50));
                        turns.fetch_add(1, Ordering::Relaxed);
                        busy.fetch_sub(1, Ordering::AcqRel);
                    });
                }
            };
            thread::spawn("elbowroom-test", run).unwrap()
        };
        fn by_itself(quiet: &Quiet, who: Rester, turn: &dyn Fn()) {
            if quiet.is_wanted(who) {
                quiet.rest(who);
            }
            turn();
        }
        let threads = [
            start(|quiet, turn| {
                let _working = quiet.work();
                turn();
            }),
            start(|quiet, turn| by_itself(quiet, Rester::Helper, turn)),
            start(|quiet, turn| by_itself(quiet, Rester::Helper, turn)),
            start(|quiet, turn| by_itself(quiet, Rester::Handler, turn)),
        ];
        for _ in 0..200 {
            let before = turns.load(Ordering::Relaxed);
            assert!(quiet.begin(2, 1, || ()));
            assert_eq!(busy.load(Ordering::Acquire), 0);
            let still = turns.load(Ordering::Relaxed);
            thread::sleep(Duration::from_micros(200));
            assert_eq!(turns.load(Ordering::Relaxed), still);
            quiet.end();
            while turns.load(Ordering::Relaxed) < before + 4 {
                thread::yield_now();
            }
        }
        stop.store(true, Ordering::Release);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }

    /// A thread that has rested for too long goes on. If the fork was being made, its child is told; if
    /// others did not rest yet, it begins anew.
    #[test]
    fn nobody_rests_for_ever() {
        static LATE: AtomicUsize = AtomicUsize::new(0);
        let tell = || {
            LATE.fetch_add(1, Ordering::Relaxed);
        };
        let quiet = Arc::new(Quiet::new(&LockStats::new(), Duration::from_millis(20), Some(Arc::new(tell))));
        let rests = Arc::new(AtomicUsize::new(0));
        let rest = |who: Rester, later: Duration| {
            let (quiet, rests) = (quiet.clone(), rests.clone());
            let run = move || {
                while !quiet.is_wanted(who) {
                    thread::yield_now();
                }
                thread::sleep(later);
                while LATE.load(Ordering::Relaxed) == 0 {
                    if quiet.is_wanted(who) {
                        quiet.rest(who);
                        rests.fetch_add(1, Ordering::Relaxed);
                    }
                    thread::yield_now();
                }
            };
            thread::spawn("elbowroom-test", run).unwrap()
        };
        let early = rest(Rester::Helper, Duration::ZERO);
        let late = rest(Rester::Handler, Duration::from_millis(100));
        assert!(quiet.begin(1, 1, || ()));
        assert_eq!(LATE.load(Ordering::Relaxed), 0);
        // No call of `end`: the threads go on by themselves.
        early.join().unwrap();
        late.join().unwrap();
        // The early one has rested more than once before the late one did.
        assert!(rests.load(Ordering::Relaxed) > 2);
        assert!(LATE.load(Ordering::Relaxed) >= 1);
        assert!(!quiet.is_wanted(Rester::Helper));
    }

    /// The child has none of the threads that rest in the parent, nor the one that had the lock.
    #[test]
    fn a_child_begins_anew() {
        let locks = LockStats::new();
        let quiet = Arc::new(Quiet::new(&locks, FORK_BOUND, None));
        let child_ended = Arc::new(AtomicBool::new(false));
        let has_lock = {
            let (quiet, child_ended) = (quiet.clone(), child_ended.clone());
            thread::spawn("elbowroom-test", move || {
                let parents = quiet.meeting.load();
                let mut state = parents.state.lock();
                state.rest = [3, 2];
                quiet.want(&parents, &mut state, ALL);
                while !child_ended.load(Ordering::Acquire) {
                    thread::yield_now();
                }
            })
        };
        while !quiet.is_wanted(Rester::Helper) {
            thread::yield_now();
        }
        quiet.renew(&locks);
        drop(quiet.work());
        assert!(!quiet.is_wanted(Rester::Helper));
        assert_eq!(quiet.meeting.load().state.lock().rest, [0, 0]);
        child_ended.store(true, Ordering::Release);
        has_lock.unwrap().join().unwrap();
    }
}
