//! The page-table entry of the soft MMU under loom: all orders of a few steps that its protocol allows.
//!
//! `.ci/models loom -p elbowroom-sync --test loom_pte`
#![cfg(loom)]

#[allow(dead_code)]
#[path = "../../elbowroom-machine/src/soft/pte.rs"]
mod pte;

use elbowroom_sync::atomic::{AtomicU64, Ordering, fence};
use elbowroom_sync::{Arc, LockClass, LockStats, Mutex};
use loom::thread;
use pte::{Entry, Epoch, Intent, PINS_IN_WORD, Progress, Word};

const FRAME: u32 = 3;

/// One page, the frame under it, and the lock of the page's table.
struct Page {
    entry: Entry,
    epoch: Epoch,
    frame: AtomicU64,
    table: Mutex<()>,
}

impl Page {
    fn mapped(rights: Intent) -> Arc<Self> {
        let table = LockStats::new().mutex(LockClass::PageTable, ());
        let page = Self { entry: Entry::default(), epoch: Epoch::default(), frame: AtomicU64::new(1), table };
        page.entry.install(FRAME, rights, &page.epoch).unwrap();
        Arc::new(page)
    }

    /// As the unmapping does it; one look for pins instead of some. Whether the page is gone.
    fn clear(&self) -> bool {
        let begun = {
            let _table = self.table.lock();
            self.entry.begin_clear(FRAME)
        };
        let ended = match begun {
            Progress::Done => Progress::Done,
            Progress::Pinned => {
                thread::yield_now();
                let _table = self.table.lock();
                self.entry.end_clear()
            }
        };
        fence(Ordering::SeqCst);
        ended == Progress::Done
    }

    /// As a processor stores. Whether it did.
    fn store(&self, seen: Word, value: u64) -> bool {
        if self.entry.pin(seen, Intent::Write, PINS_IN_WORD).is_err() {
            return false;
        }
        fence(Ordering::Release);
        self.frame.store(value, Ordering::Relaxed);
        self.entry.unpin();
        true
    }

    /// As a processor reads by a cached translation.
    fn read(&self, seen: Word) -> Option<u64> {
        let value = self.frame.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        seen.is_same(self.entry.load()).then_some(value)
    }
}

/// All orders with up to three preemptions: without a bound, two storers take hours.
fn with_three_preemptions(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

#[test]
fn a_store_is_in_the_frame_or_a_fault() {
    loom::model(|| stores_against_clear(&[2]));
}

#[test]
fn two_stores_are_in_the_frame_or_faults() {
    with_three_preemptions(|| stores_against_clear(&[2, 3]));
}

fn stores_against_clear(values: &[u64]) {
    let page = Page::mapped(Intent::Write);
    let seen = page.entry.load();
    let storers: Vec<_> = values
        .iter()
        .map(|&value| {
            let page = page.clone();
            thread::spawn(move || page.store(seen, value))
        })
        .collect();
    let gone = page.clear();
    let now = gone.then(|| page.frame.load(Ordering::Relaxed));
    let stored: Vec<bool> = storers.into_iter().map(|thread| thread.join().unwrap()).collect();
    let end = page.frame.load(Ordering::Relaxed);
    match now {
        // Nothing came later, and what was said to be stored is there.
        Some(now) => {
            assert_eq!(now, end);
            assert_eq!(now == 1, !stored.contains(&true));
        }
        None => assert!(page.entry.load().is_present()),
    }
    assert_eq!(page.entry.load().pins(), 0);
}

#[test]
fn a_read_never_returns_the_next_owners_bytes() {
    loom::model(|| {
        let page = Page::mapped(Intent::Read);
        let seen = page.entry.load();
        let reader = {
            let page = page.clone();
            thread::spawn(move || page.read(seen))
        };
        assert!(page.clear(), "reads take no pins");
        page.frame.store(99, Ordering::Relaxed);
        let read = reader.join().unwrap();
        assert!(read.is_none_or(|value| value == 1), "{read:?}");
        // Mapped again, at once: an old translation is no good.
        page.entry.install(FRAME, Intent::Read, &page.epoch).unwrap();
        assert_eq!(page.read(seen), None);
    });
}

#[test]
fn the_next_owner_is_seen_by_his_own_readers_only() {
    loom::model(|| {
        let page = Page::mapped(Intent::Read);
        let old = page.entry.load();
        let reader = {
            let page = page.clone();
            thread::spawn(move || {
                let first = page.read(old);
                let now = page.entry.load();
                let second = now.is_present().then(|| page.read(now)).flatten();
                (first, second.map(|value| (now.frame(), value)))
            })
        };
        assert!(page.clear());
        page.frame.store(99, Ordering::Relaxed);
        page.entry.install(FRAME + 1, Intent::Read, &page.epoch).unwrap();
        let (first, second) = reader.join().unwrap();
        assert!(first.is_none_or(|value| value == 1), "{first:?}");
        match second {
            Some((Some(frame), value)) => assert_eq!(value, if frame == FRAME { 1 } else { 99 }),
            other => assert_eq!(other, None),
        }
    });
}
