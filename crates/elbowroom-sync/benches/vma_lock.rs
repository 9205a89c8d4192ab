//! What the layout lock and the VMA locks cost, in nanoseconds: `cargo bench -p elbowroom-sync --bench
//! vma_lock`
//!
//! Each figure is the least of several rounds, so that a busy machine adds little. It takes about two
//! seconds.

// Under loom there is neither time nor a world outside a model.
#[cfg(loom)]
fn main() {}

#[cfg(not(loom))]
fn main() {
    measure::all();
}

#[cfg(not(loom))]
mod measure {
    use elbowroom_sync::atomic::{AtomicBool, Ordering};
    use elbowroom_sync::time::Instant;
    use elbowroom_sync::{Key, LayoutLock, LockClass, LockStats, Slots};
    use std::hint::black_box;

    const ROUNDS: u32 = 10;
    const CALLS: u32 = 200_000;

    /// About the size of a VMA.
    type Value = [u64; 12];

    fn report(what: &str, mut call: impl FnMut()) {
        let round = |_| {
            let start = Instant::now();
            (0..CALLS).for_each(|_| call());
            start.elapsed().as_nanos() as f64 / f64::from(CALLS)
        };
        let least = (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min);
        println!("{what:<64} {least:>8.1} ns");
    }

    fn uncontended(layout: &LayoutLock<u64>, slots: &Slots<Value>, keys: &[Key]) {
        report("layout: write, unlock", || *layout.write() += 1);
        report("layout: read, unlock", || {
            black_box(*layout.read());
        });
        let mutex = LockStats::new().mutex(LockClass::Cache, 0_u64);
        report("mutex: lock, unlock", || *mutex.lock() += 1);
        let stats = LockStats::new();
        stats.count_in_detail();
        let mutex = stats.mutex(LockClass::Cache, 0_u64);
        report("mutex: lock, unlock, each hold is measured", || *mutex.lock() += 1);
        report("vma: try_read, drop", || {
            black_box(slots.try_read(black_box(keys[7]), layout).is_ok());
        });
        let mut turn = 0;
        report("vma: try_read, drop, of 1000 in turn", || {
            turn = (turn + 1) % keys.len();
            black_box(slots.try_read(keys[turn], layout).map(|value| value[3]).unwrap_or(0));
        });
        let mut held = layout.write();
        if let Ok(new) = slots.insert(&mut held, [1; 12]) {
            report("vma: try_read of one that is locked", || {
                black_box(slots.try_read(black_box(new), layout).is_err());
            });
            slots.remove(new, &mut held);
        }
        report("vma: insert, remove, under one layout write", || {
            if let Ok(key) = slots.insert(&mut held, [1; 12]) {
                black_box(slots.remove(key, &mut held));
            }
        });
        drop(held);
        report("layout write, vma insert, remove, unlock", || {
            let mut held = layout.write();
            if let Ok(key) = slots.insert(&mut held, [1; 12]) {
                black_box(slots.remove(key, &mut held));
            }
        });
    }

    /// The same call while another thread does `other` all the time.
    fn besides(what: &str, call: impl FnMut(), other: impl Fn() + Sync) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    other();
                }
            });
            report(what, call);
            stop.store(true, Ordering::Relaxed);
        });
    }

    pub(super) fn all() {
        let stats = LockStats::new();
        let layout = stats.layout_lock(0_u64);
        let slots = Slots::new(&layout, 65_530);
        let keys: Vec<Key> =
            (0..1000).map(|n| slots.insert(&mut layout.write(), [n; 12]).expect("there is room")).collect();
        uncontended(&layout, &slots, &keys);

        let read = |key: Key| drop(black_box(slots.try_read(key, &layout)));
        besides("vma: try_read, another thread reads another", || read(keys[7]), || read(keys[8]));
        besides("vma: try_read, another thread reads the same", || read(keys[7]), || read(keys[7]));
        let change = || {
            let mut held = layout.write();
            if let Ok(key) = slots.insert(&mut held, [1; 12]) {
                black_box(slots.remove(key, &mut held));
            }
        };
        besides("vma: try_read, another thread inserts and removes", || read(keys[7]), change);
        besides("layout: write, another thread writes too", || *layout.write() += 1, || *layout.write() += 1);
        let seen = stats.class(LockClass::Layout);
        println!(
            "layout: {} of {} waited, {} ns half of the time, {} ns at most in 99 of 100",
            seen.contended,
            seen.acquisitions,
            seen.waits.quantile_ns(0.5),
            seen.waits.quantile_ns(0.99)
        );
    }
}
