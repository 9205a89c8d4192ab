//! Models of a folio's state word and of the table of those who wait for it, run under loom:
//! `RUSTFLAGS="--cfg loom" cargo test -p elbowroom-sync --release --test loom_folio`
//!
//! The code is the manager's own, by path: its crate stands on system calls, which cannot run under loom.
//! What the two files name of the world around them is defined here: the identity of a folio, and the event
//! of a fault. In a model a wait with a bound has none, so a lost wake-up of a thread is a deadlock, which
//! loom reports.
#![cfg(loom)]

#[allow(dead_code)]
#[path = "../../elbowroom/src/page/state.rs"]
mod state;
#[allow(dead_code)]
#[path = "../../elbowroom/src/page/wait.rs"]
mod wait;

/// Where `wait.rs` expects a folio.
mod page {
    pub use crate::Folio;
}

/// Where `wait.rs` expects [`FaultEvent`] and [`Denial`].
extern crate self as elbowroom_machine;

use elbowroom_sync::atomic::{AtomicU64, Ordering};
use elbowroom_sync::{Arc, LockStats};
use loom::thread;
use state::{Flag, StateWord};
use wait::{Parked, WaitTable};

/// A folio without frames.
pub struct Folio {
    state: StateWord,
    index: u64,
    order: u8,
    object: u64,
    /// Changed by load and store: two owners at a time would lose a change.
    changes: AtomicU64,
}

/// A fault without an address.
pub struct FaultEvent;

/// How an access fails. No fault of the models does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denial;

/// A folio whose lock its maker has, and the table.
struct World {
    folio: Arc<Folio>,
    waits: WaitTable,
}

fn world() -> Arc<World> {
    let folio =
        Folio { state: StateWord::locked(), index: 0, order: 0, object: 1, changes: AtomicU64::new(0) };
    Arc::new(World { folio: Arc::new(folio), waits: WaitTable::new(&LockStats::new()) })
}

impl World {
    /// What the owner of the lock does.
    fn change(&self) {
        let changes = self.folio.changes.load(Ordering::Relaxed);
        self.folio.changes.store(changes + 1, Ordering::Relaxed);
    }

    /// Unlocks; how many faults became ready. They let go of the folio.
    fn unlock(&self) -> usize {
        let mut ready = Vec::new();
        self.waits.unlock(&self.folio, &mut ready);
        ready.iter_mut().for_each(Parked::let_go);
        ready.len()
    }

    /// Locks as a thread does, changes, unlocks; how many faults became ready.
    fn lock_and_change(&self) -> usize {
        self.waits.lock(&self.folio);
        self.change();
        self.unlock()
    }

    /// Parks a fault as a handler does; whether it was parked.
    fn park(&self) -> bool {
        match self.waits.park(&self.folio, Parked::new(FaultEvent)) {
            None => true,
            Some(mut fault) => {
                fault.let_go();
                false
            }
        }
    }
}

fn model(preemptions: Option<usize>, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.check(run);
}

#[test]
fn one_owner_at_a_time_who_sees_what_the_last_one_did() {
    model(None, || {
        let world = world();
        let thread = thread::spawn({
            let world = world.clone();
            move || world.lock_and_change()
        });
        world.change();
        world.unlock();
        world.lock_and_change();
        thread.join().unwrap();
        assert_eq!(world.folio.changes.load(Ordering::Relaxed), 3);
        assert!(world.folio.state.try_lock() && !world.folio.state.test(Flag::Waiters));
    });
}

#[test]
fn no_thread_that_waits_is_forgotten() {
    model(Some(3), || {
        let world = world();
        let threads = [0, 1].map(|_| {
            let world = world.clone();
            thread::spawn(move || world.lock_and_change())
        });
        world.change();
        world.unlock();
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 0));
        assert_eq!(world.folio.changes.load(Ordering::Relaxed), 3);
    });
}

#[test]
fn a_fault_is_parked_and_woken_or_given_back() {
    model(None, || {
        let world = world();
        let handler = thread::spawn({
            let world = world.clone();
            move || world.park()
        });
        let woken = world.unlock();
        let parked = handler.join().unwrap();
        assert_eq!(woken, usize::from(parked));
        assert!(world.folio.state.try_lock() && !world.folio.state.is_held());
    });
}

#[test]
fn a_fault_and_a_thread_that_wait_together_are_both_woken() {
    model(Some(3), || {
        let world = world();
        let handler = thread::spawn({
            let world = world.clone();
            move || world.park()
        });
        let thread = thread::spawn({
            let world = world.clone();
            move || world.lock_and_change()
        });
        let mut woken = world.unlock();
        woken += thread.join().unwrap();
        let parked = handler.join().unwrap();
        assert_eq!(woken, usize::from(parked));
        assert!(world.folio.state.try_lock() && !world.folio.state.is_held());
    });
}

#[test]
fn two_faults_are_each_woken_once() {
    model(Some(3), || {
        let world = world();
        let handlers = [0, 1].map(|_| {
            let world = world.clone();
            thread::spawn(move || world.park())
        });
        let woken = world.unlock();
        let parked = handlers.map(|handler| usize::from(handler.join().unwrap()));
        assert_eq!(woken, parked[0] + parked[1]);
        assert!(!world.folio.state.is_held());
    });
}

/// What `reclaim` does with an idle folio: evicts it if it gets the lock, and then nobody holds it.
fn reclaim(world: &World, ready: &mut Vec<Parked>) {
    let state = &world.folio.state;
    if state.is_held() || !state.try_lock() {
        return;
    }
    if !state.is_held() {
        state.set(Flag::Dead);
    }
    world.waits.unlock(&world.folio, ready);
}

#[test]
fn reclaim_does_not_take_what_a_fault_has_waited_for() {
    model(Some(3), || {
        let world = world();
        let reclaimer = thread::spawn({
            let world = world.clone();
            move || {
                let mut ready = Vec::new();
                reclaim(&world, &mut ready);
                ready
            }
        });
        let handler = thread::spawn({
            let world = world.clone();
            move || world.waits.park(&world.folio, Parked::new(FaultEvent))
        });
        // The read has been completed.
        world.folio.state.set(Flag::Uptodate);
        let mut ready = Vec::new();
        world.waits.unlock(&world.folio, &mut ready);
        let waited_for_the_read = ready.len() == 1;
        ready.extend(reclaimer.join().unwrap());
        ready.extend(handler.join().unwrap());
        assert_eq!(ready.len(), 1);
        assert!(world.folio.state.is_held());
        if waited_for_the_read {
            assert!(!world.folio.state.test(Flag::Dead), "the retry would miss");
        }
        ready[0].let_go();
        assert!(!world.folio.state.is_held());
    });
}

#[test]
fn a_hold_is_seen_by_who_locks_after_its_holder() {
    model(None, || {
        let world = world();
        let reclaimer = thread::spawn({
            let world = world.clone();
            move || reclaim(&world, &mut Vec::new())
        });
        // The owner holds it for later, and lets go of the lock.
        world.folio.state.hold();
        world.unlock();
        reclaimer.join().unwrap();
        assert!(!world.folio.state.test(Flag::Dead));
        world.folio.state.release();
    });
}
