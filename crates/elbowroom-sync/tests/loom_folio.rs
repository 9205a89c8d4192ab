//! Models of a folio's lock and of the table of those who wait for it, run under loom:
//! `.ci/models loom -p elbowroom-sync --test loom_folio`
//!
//! The code is the manager's own, by path: its crate stands on system calls, which cannot run under loom.
//! What the files name of the world around them is defined here: a folio, what its lock guards, and the event
//! of a fault. In a model a wait with a bound has none, so a lost wake-up of a thread is a deadlock, which
//! loom reports.
#![cfg(loom)]

#[allow(dead_code)]
#[path = "../../elbowroom/src/page/locked.rs"]
mod locked;
#[allow(dead_code)]
#[path = "../../elbowroom/src/page/state.rs"]
mod state;
#[allow(dead_code)]
#[path = "../../elbowroom/src/page/wait.rs"]
mod wait;

/// Where the files expect each other, and a folio.
mod page {
    pub use crate::locked::{LockedFolio, Woken};
    pub use crate::state::Flag;
    pub use crate::wait::{Parked, WaitTable};
    pub use crate::{Body, Folio};
}

/// For how long a writer pauses, and the stall of a thread: no thread has either here. There is one group.
mod group {
    pub struct Stall;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Pause;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct OverLimit;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct GroupId;

    impl GroupId {
        pub const ROOT: Self = Self;
    }
}

/// What the trace says of a wait: nothing is traced here.
mod stats {
    #[derive(Clone, Copy)]
    pub struct WaitCause;
}

/// Where `wait.rs` expects [`FaultEvent`] and [`Denial`].
extern crate self as elbowroom_machine;

use elbowroom_sync::atomic::{AtomicBool, Ordering};
use elbowroom_sync::{Arc, LockStats};
use locked::{LockedFolio, Reading, Ready, Woken};
use loom::thread;
use state::{Flag, StateWord};
use wait::{Parked, WaitTable};

/// A folio without frames.
pub struct Folio {
    state: StateWord<Body>,
    group: group::GroupId,
}

/// What two owners at a time would be seen to change.
pub struct Body {
    changes: u64,
    extent: Option<Extent>,
}

/// Frames, of which no page is ever mapped.
pub struct Extent;

impl Extent {
    /// Whether no page is mapped.
    pub fn is_home(&self) -> bool {
        true
    }

    /// The group that pays for them.
    pub fn group(&self) -> group::GroupId {
        group::GroupId
    }
}

/// A fault without an address.
#[derive(Clone, Copy)]
pub struct FaultEvent {
    thread: u32,
}

/// How an access fails. No fault of the models does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denial;

/// A folio whose lock its maker has, and the table.
struct World {
    folio: Arc<Folio>,
    waits: WaitTable,
}

/// Who is given faults does not matter to these.
struct Nobody;

impl Woken for Nobody {
    fn wake(&self, mut faults: Vec<Parked>) {
        faults.iter_mut().for_each(Parked::let_go);
    }
}

fn world() -> (Arc<World>, Reading) {
    let waits = WaitTable::new(&LockStats::new());
    let folio = Folio { state: StateWord::new(Body { changes: 0, extent: None }), group: group::GroupId };
    let maker = LockedFolio::new(folio, &waits, &Nobody);
    let folio = maker.arc().clone();
    let reading = maker.begin_read();
    (Arc::new(World { folio, waits }), reading)
}

/// Ends the lock; how many faults became ready. They let go of the folio.
fn done(folio: LockedFolio<'_>, ready: &Ready) -> usize {
    drop(folio);
    let mut faults = ready.take();
    faults.iter_mut().for_each(Parked::let_go);
    faults.len()
}

impl World {
    /// What the maker does at the end; how many faults became ready.
    fn finish(&self, reading: Reading) -> usize {
        let ready = Ready::default();
        let mut folio = reading.end(&self.waits, &ready);
        folio.body_mut().changes += 1;
        done(folio, &ready)
    }

    /// Locks as a thread does, changes, unlocks; how many faults became ready.
    fn lock_and_change(&self) -> usize {
        let ready = Ready::default();
        let mut folio = self.waits.lock(&self.folio, &ready);
        folio.body_mut().changes += 1;
        done(folio, &ready)
    }

    /// The changes, if nobody has the lock.
    fn changes(&self) -> Option<u64> {
        let ready = Ready::default();
        let folio = LockedFolio::try_lock(self.folio.clone(), &self.waits, &ready).ok()?;
        Some(folio.body().changes)
    }

    /// Parks a fault as a handler does; whether it was parked.
    fn park(&self) -> bool {
        match self.waits.park(&self.folio, Parked::new(FaultEvent { thread: 0 }), true) {
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
        let (world, reading) = world();
        let thread = thread::spawn({
            let world = world.clone();
            move || world.lock_and_change()
        });
        world.finish(reading);
        world.lock_and_change();
        thread.join().unwrap();
        assert_eq!(world.changes(), Some(3));
        assert!(!world.folio.state.test(Flag::Reading));
    });
}

#[test]
fn no_thread_that_waits_is_forgotten() {
    model(Some(3), || {
        let (world, reading) = world();
        let threads = [0, 1].map(|_| {
            let world = world.clone();
            thread::spawn(move || world.lock_and_change())
        });
        world.finish(reading);
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 0));
        assert_eq!(world.changes(), Some(3));
    });
}

#[test]
fn who_waits_without_wanting_the_lock_sees_what_its_owner_did() {
    model(None, || {
        let (world, reading) = world();
        let thread = thread::spawn({
            let world = world.clone();
            move || {
                world.waits.wait(&world.folio);
                world.changes()
            }
        });
        world.finish(reading);
        assert_eq!(thread.join().unwrap(), Some(1));
    });
}

#[test]
fn a_fault_is_parked_and_woken_or_given_back() {
    model(None, || {
        let (world, reading) = world();
        let handler = thread::spawn({
            let world = world.clone();
            move || world.park()
        });
        let woken = world.finish(reading);
        let parked = handler.join().unwrap();
        assert_eq!(woken, usize::from(parked));
        assert!(world.changes().is_some() && !world.folio.state.is_held());
    });
}

#[test]
fn a_fault_and_a_thread_that_wait_together_are_both_woken() {
    model(Some(3), || {
        let (world, reading) = world();
        let handler = thread::spawn({
            let world = world.clone();
            move || world.park()
        });
        let thread = thread::spawn({
            let world = world.clone();
            move || world.lock_and_change()
        });
        let mut woken = world.finish(reading);
        woken += thread.join().unwrap();
        let parked = handler.join().unwrap();
        assert_eq!(woken, usize::from(parked));
        assert!(world.changes().is_some() && !world.folio.state.is_held());
    });
}

#[test]
fn two_faults_are_each_woken_once() {
    model(Some(3), || {
        let (world, reading) = world();
        let handlers = [0, 1].map(|_| {
            let world = world.clone();
            thread::spawn(move || world.park())
        });
        let woken = world.finish(reading);
        let parked = handlers.map(|handler| usize::from(handler.join().unwrap()));
        assert_eq!(woken, parked[0] + parked[1]);
        assert!(!world.folio.state.is_held());
    });
}

/// What `reclaim` does with an idle folio: evicts it if it gets the lock, and then nobody holds it.
fn reclaim(world: &World, ready: &Ready) {
    if world.folio.state.is_held() {
        return;
    }
    let Ok(folio) = LockedFolio::try_lock(world.folio.clone(), &world.waits, ready) else { return };
    if !folio.state.is_held() {
        folio.state.set(Flag::Dead);
    }
}

#[test]
fn reclaim_does_not_take_what_a_fault_has_waited_for() {
    model(Some(3), || {
        let (world, reading) = world();
        let reclaimer = thread::spawn({
            let world = world.clone();
            move || {
                let ready = Ready::default();
                reclaim(&world, &ready);
                ready.take()
            }
        });
        let handler = thread::spawn({
            let world = world.clone();
            move || world.waits.park(&world.folio, Parked::new(FaultEvent { thread: 0 }), true)
        });
        let ready = Ready::default();
        {
            let folio = reading.end(&world.waits, &ready);
            // The read has been completed.
            folio.state.set(Flag::Uptodate);
        }
        let mut ready = ready.take();
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
        let (world, reading) = world();
        let reclaimer = thread::spawn({
            let world = world.clone();
            move || reclaim(&world, &Ready::default())
        });
        // The owner holds it for later, and lets go of the lock.
        world.folio.state.hold();
        world.finish(reading);
        reclaimer.join().unwrap();
        assert!(!world.folio.state.test(Flag::Dead));
        world.folio.state.release();
    });
}

#[test]
fn who_announces_a_write_and_waits_is_seen_by_the_next_owner() {
    model(None, || {
        let (world, reading) = world();
        let announced = Arc::new(AtomicBool::new(false));
        let writer = thread::spawn({
            let (world, announced) = (world.clone(), announced.clone());
            move || {
                announced.store(true, Ordering::Relaxed);
                world.waits.wait(&world.folio);
                // A write-back that has not seen the announcement has ended.
                world.folio.state.test(Flag::Writeback)
            }
        });
        world.finish(reading);
        let ready = Ready::default();
        let mut folio = world.waits.lock(&world.folio, &ready);
        let seen = announced.load(Ordering::Relaxed);
        if !seen {
            folio.during(Flag::Writeback, |_| {});
        }
        drop(folio);
        assert!(!writer.join().unwrap());
    });
}
