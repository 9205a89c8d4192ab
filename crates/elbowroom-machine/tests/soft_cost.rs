//! What the soft MMU's operations cost. A short run that checks its results; `ELBOWROOM_MEASURE=1` makes it
//! long enough to be believed, in a release build: `ELBOWROOM_MEASURE=1 cargo test --release -p
//! elbowroom-machine --test soft_cost -- --nocapture`

use elbowroom_machine::soft::{Intent, SoftConfig, SoftMmu};
use elbowroom_machine::{Access, PAGE_SIZE, Wake};
use elbowroom_sync::LockStats;
use elbowroom_sync::time::Instant;
use std::hint::black_box;

/// Times `rounds` calls of `f` that do `each` operations; prints nanoseconds for one.
fn measure(name: &str, rounds: usize, each: usize, mut f: impl FnMut(usize)) {
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = Instant::now();
        (0..rounds).for_each(&mut f);
        best = best.min(start.elapsed().as_nanos() as f64 / (rounds * each) as f64);
    }
    println!("{name:<44} {best:8.1} ns");
}

#[test]
fn costs() {
    let long = std::env::var_os("ELBOWROOM_MEASURE").is_some();
    let n = |full: usize| if long { full } else { full / 500 };
    let mmu = SoftMmu::new(SoftConfig::new(8192), &LockStats::new()).unwrap();
    while mmu.grow().unwrap() {}
    let start = SoftMmu::space_range(mmu.create_space().unwrap()).start;
    let cpu = mmu.cpu();
    let mut extents: Vec<_> = (0..4096).map(|_| mmu.alloc(0).unwrap()).collect();
    for (i, extent) in extents.iter_mut().enumerate() {
        extent.bytes_mut().fill(i as u8);
    }
    for (i, extent) in extents.iter_mut().enumerate() {
        mmu.map(extent, start + i * PAGE_SIZE, 0..1, Access::Write, Wake::Now).unwrap();
    }
    let word = |i: usize| start + i % 64 * PAGE_SIZE + i * 72 % 4096 / 8 * 8;
    let mut sum = 0_u64;
    measure("read_u64, hit", n(5_000_000), 1, |i| {
        sum = sum.wrapping_add(cpu.read_u64(word(i)).unwrap());
    });
    let mut at = start;
    measure("read_u64, hit, each address from the last", n(5_000_000), 1, |_| {
        at = start + (cpu.read_u64(at).unwrap() & 0x8) as usize;
    });
    // Pages 512 apart share a line of the cache.
    measure("read_u64, walk", n(3_000_000), 1, |i| {
        sum = sum.wrapping_add(cpu.read_u64(start + i % 8 * 512 * PAGE_SIZE).unwrap());
    });
    let mut page = vec![0; PAGE_SIZE];
    measure("read of 4096 bytes", n(300_000), 1, |i| {
        cpu.read(start + i % 64 * PAGE_SIZE, &mut page).unwrap();
    });
    measure("read of 13 bytes, not aligned", n(3_000_000), 1, |i| {
        cpu.read(word(i) % (1 << 60) - word(i) % PAGE_SIZE + 5, &mut page[..13]).unwrap();
    });
    measure("write_u64, hit", n(3_000_000), 1, |i| cpu.write_u64(word(i), 8).unwrap());
    measure("write of 4096 bytes", n(300_000), 1, |i| {
        cpu.write(start + i % 64 * PAGE_SIZE, &page).unwrap();
    });
    cpu.write_u64(start, 0).unwrap();
    measure("compare_exchange_u64", n(3_000_000), 1, |_| {
        let now = cpu.read_u64(start).unwrap();
        cpu.compare_exchange_u64(start, now, now + 1).unwrap().unwrap();
    });
    measure("pin and unpin", n(3_000_000), 1, |i| {
        black_box(&*cpu.pin(word(i), 8, Intent::Read).unwrap());
    });
    mmu.unmap_clean(&mut extents);
    measure("map and unmap of a page", n(1_000_000), 1, |i| {
        let extent = &mut extents[i % 512];
        mmu.map(extent, start + i % 512 * PAGE_SIZE, 0..1, Access::Write, Wake::Now).unwrap();
        mmu.unmap(extent).unwrap();
    });
    measure("map of 256 pages and unmap_clean, a page", n(5_000), 256, |_| {
        for (i, extent) in extents[..256].iter_mut().enumerate() {
            mmu.map(extent, start + i * PAGE_SIZE, 0..1, Access::Write, Wake::Now).unwrap();
        }
        mmu.unmap_clean(&mut extents[..256]);
    });
    let mut large = mmu.alloc(9).unwrap();
    measure("map and unmap of 512 pages, a page", n(5_000), 512, |_| {
        mmu.map(&mut large, start, 0..512, Access::Write, Wake::Now).unwrap();
        mmu.unmap(&mut large).unwrap();
    });
    black_box((sum, at));
    println!("metadata: {} KiB", mmu.metadata_bytes() >> 10);
    assert!(extents.iter().all(|extent| extent.is_home()) && large.is_home());
}
