//! Tests of the table with real threads; the loom models are in tests/loom_vma_lock.rs.

use super::*;
use crate::LockStats;
use crate::atomic::{AtomicBool, AtomicU64};
use crate::time::{Duration, Instant};
use std::sync::Arc;

fn table<T>(limit: u32) -> (LayoutLock<()>, Slots<T>) {
    let layout = LockStats::new().layout_lock(());
    let slots = Slots::new(&layout, limit);
    (layout, slots)
}

#[test]
fn keys_pack() {
    let key = Key { slot: 0x1234_5678, generation: 0x9abc_def0 };
    assert_eq!(key.to_u64(), 0x9abc_def0_1234_5678);
    assert_eq!(Key::from_u64(key.to_u64()), key);
}

#[test]
fn a_new_value_is_locked_until_the_write_ends() {
    let (layout, slots) = table(10);
    let mut held = layout.write();
    let key = slots.insert(&mut held, 5).unwrap();
    assert_ne!(key.to_u64(), 0);
    assert_eq!(slots.try_read(key, &layout).err(), Some(TryReadError::Locked));
    assert_eq!(slots.read_locked(key, &held), Some(&5));
    drop(held);
    assert_eq!(*slots.try_read(key, &layout).unwrap(), 5);
    assert_eq!(slots.read_locked(key, &layout.read()), Some(&5));
}

#[test]
fn what_is_detached_is_seen_under_the_layout_lock_only() {
    let (layout, slots) = table(10);
    let key = slots.insert(&mut layout.write(), 5).unwrap();
    let mut held = layout.write();
    assert!(slots.detach(key, &mut held) && slots.detach(key, &mut held));
    drop(held);
    assert_eq!(slots.try_read(key, &layout).err(), Some(TryReadError::Detached));
    assert_eq!(slots.read_locked(key, &layout.read()), Some(&5));
    assert_eq!(slots.remove(key, &mut layout.write()), Some(5));
    assert_eq!(slots.try_read(key, &layout).err(), Some(TryReadError::Reused));
}

#[test]
fn a_stale_key_finds_nothing() {
    let (layout, slots) = table(10);
    let old = slots.insert(&mut layout.write(), 1).unwrap();
    let mut held = layout.write();
    assert_eq!(slots.remove(old, &mut held), Some(1));
    let new = slots.insert(&mut held, 2).unwrap();
    assert_eq!((new.slot, new.generation), (old.slot, old.generation + 1));
    assert_eq!(slots.remove(old, &mut held), None);
    assert!(!slots.detach(old, &mut held));
    assert_eq!(slots.read_locked(old, &held), None);
    drop(held);
    assert_eq!(slots.try_read(old, &layout).err(), Some(TryReadError::Reused));
    assert_eq!(*slots.try_read(new, &layout).unwrap(), 2);
    for key in [Key { slot: 3, generation: 1 }, Key { slot: u32::MAX, generation: 1 }, Key::from_u64(0)] {
        assert!(slots.try_read(key, &layout).is_err(), "{key:?}");
        assert_eq!(slots.read_locked(key, &layout.read()), None, "{key:?}");
    }
}

#[test]
fn it_grows_to_its_limit_and_no_further() {
    const LIMIT: u32 = 300;
    let (layout, slots) = table(LIMIT);
    let mut held = layout.write();
    let keys: Vec<Key> = (0..LIMIT).map(|value| slots.insert(&mut held, value).unwrap()).collect();
    assert_eq!(slots.insert(&mut held, 0), Err(Full));
    assert_eq!(slots.len(), LIMIT as usize);
    drop(held);
    let first = slots.try_read(keys[0], &layout).unwrap();
    let place: *const u32 = &*first;
    drop(first);
    assert!(keys.iter().enumerate().all(|(at, &key)| *slots.try_read(key, &layout).unwrap() == at as u32));
    let mut held = layout.write();
    for &key in &keys[100..200] {
        assert_eq!(slots.remove(key, &mut held), Some(key.slot));
    }
    assert_eq!(slots.len(), 200);
    for value in 0..100 {
        assert_eq!(slots.insert(&mut held, value).unwrap().generation, 2);
    }
    assert_eq!(slots.insert(&mut held, 0), Err(Full));
    drop(held);
    assert!(std::ptr::eq(place, &*slots.try_read(keys[0], &layout).unwrap()), "a slot has moved");
}

#[test]
fn values_are_dropped_once() {
    let (layout, slots) = table(2);
    let value = Arc::new(());
    let keys = [0, 1].map(|_| slots.insert(&mut layout.write(), value.clone()).unwrap());
    assert!(slots.insert(&mut layout.write(), value.clone()).is_err());
    assert_eq!(Arc::strong_count(&value), 3);
    drop(slots.remove(keys[0], &mut layout.write()));
    assert_eq!(Arc::strong_count(&value), 2);
    slots.detach(keys[1], &mut layout.write());
    drop(slots);
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn a_slot_that_is_out_of_generations_stays_vacant() {
    let (layout, slots) = table(1);
    let first = slots.insert(&mut layout.write(), 1).unwrap();
    slots.remove(first, &mut layout.write());
    slots.slot(0).unwrap().set_generation(u32::MAX);
    let last = slots.insert(&mut layout.write(), 2).unwrap();
    assert_eq!(last.generation, u32::MAX);
    assert_eq!(slots.remove(last, &mut layout.write()), Some(2));
    assert_eq!(slots.insert(&mut layout.write(), 3), Err(Full));
    assert!(slots.try_read(last, &layout).is_err());
    assert_eq!(slots.read_locked(last, &layout.read()), None);
}

#[test]
#[should_panic(expected = "another layout lock")]
fn another_locks_guard_panics() {
    let (_layout, slots) = table(1);
    let other = LockStats::new().layout_lock(());
    let _ = slots.insert(&mut other.write(), 1);
}

#[test]
fn a_writer_waits_for_the_reader_inside() {
    let (layout, slots) = table(1);
    for nap in [Duration::ZERO, Duration::from_millis(20)] {
        let key = slots.insert(&mut layout.write(), 1).unwrap();
        let inside = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let (inside, layout, slots) = (&inside, &layout, &slots);
            let held = slots.try_read(key, layout).unwrap();
            scope.spawn(move || {
                assert_eq!(slots.remove(key, &mut layout.write()), Some(1));
                assert!(!inside.load(Ordering::Relaxed), "the writer did not wait");
            });
            let start = Instant::now();
            while slots.try_read(key, layout).is_ok() {
                assert!(start.elapsed() < Duration::from_secs(20), "the writer never came");
            }
            // The last one to be turned away wakes the writer too, who must then wait again.
            std::thread::sleep(nap);
            assert_eq!(slots.try_read(key, layout).err(), Some(TryReadError::Reused));
            inside.store(false, Ordering::Relaxed);
            drop(held);
        });
    }
}

/// A value that tells what key it is meant for, in two halves that are equal unless somebody sees it in
/// change.
struct Checked {
    halves: [AtomicU64; 2],
}

impl Checked {
    fn set(&mut self, number: u64) {
        *self.halves[0].get_mut() = number;
        std::hint::spin_loop();
        *self.halves[1].get_mut() = number;
    }

    fn get(&self) -> u64 {
        let [first, second] = [0, 1].map(|half| self.halves[half].load(Ordering::Relaxed));
        assert_eq!(first, second, "a value was seen while it changed");
        first
    }
}

#[test]
fn readers_never_see_a_change_nor_another_value() {
    const PLACES: usize = 4;
    let (layout, slots) = table::<Checked>(PLACES as u32);
    let places: [AtomicU64; PLACES] = Default::default();
    let (stop, served) = (AtomicBool::new(false), AtomicU64::new(0));
    let new = |number: u64| Checked { halves: [number, number].map(AtomicU64::new) };
    std::thread::scope(|scope| {
        let (places, layout, slots, stop, served) = (&places, &layout, &slots, &stop, &served);
        for _ in 0..2 {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for (number, place) in places.iter().enumerate() {
                        let key = Key::from_u64(place.load(Ordering::Acquire));
                        if let Ok(value) = slots.try_read(key, layout) {
                            assert_eq!(value.get() % PLACES as u64, number as u64);
                            assert_eq!(value.get(), value.get());
                            served.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        for round in 0.. {
            // On a busy machine the readers may come late.
            let enough = served.load(Ordering::Relaxed) > 100 || std::time::Instant::now() > until;
            if round > 30_000_u64 && enough {
                break;
            }
            let number = round % PLACES as u64;
            let place = &places[number as usize];
            let key = Key::from_u64(place.load(Ordering::Relaxed));
            let mut held = layout.write();
            // Changed after it was taken out: nobody may have it then.
            let mut value = slots.remove(key, &mut held).unwrap_or_else(|| new(number));
            value.set(round / 64 * 64 + number);
            let key = slots.insert(&mut held, value).unwrap();
            place.store(key.to_u64(), Ordering::Release);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(served.load(Ordering::Relaxed) > 100, "the readers were never let in");
}
