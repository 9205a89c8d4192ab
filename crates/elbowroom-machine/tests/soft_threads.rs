//! The soft MMU used by several threads at once, while its pages come and go.

use elbowroom_machine::soft::{Cause, Intent, SoftConfig, SoftCpu, SoftFault, SoftMmu};
use elbowroom_machine::{Access, Extent, PAGE_SIZE, UnmapError, Wake};
use elbowroom_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use elbowroom_sync::{LockStats, thread};
use std::thread::scope;

const ROUNDS: u64 = 3_000;

/// Tells the other threads to stop, also when a check fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn mmu() -> SoftMmu {
    let config = SoftConfig { arena_frames: 64, spaces: 2, tables: 16, upper_tables: 16, pins: 512 };
    let mmu = SoftMmu::new(config, &LockStats::new()).unwrap();
    while mmu.grow().unwrap() {}
    mmu
}

fn map(mmu: &SoftMmu, extent: &mut Extent, base: usize, access: Access) {
    mmu.map(extent, base, 0..extent.pages(), access, Wake::Now).unwrap();
}

/// Unmaps; says how often that was refused because of a store under way.
fn unmap(mmu: &SoftMmu, extent: &mut Extent) -> u64 {
    for busy in 0..1_000_000 {
        match mmu.unmap(extent) {
            Ok(()) => return busy,
            Err(UnmapError::Busy) => thread::yield_now(),
            Err(UnmapError::Lost) => panic!("nothing can be lost"),
        }
    }
    panic!("a page is pinned for ever")
}

/// Gives other threads some time with the page.
fn linger(round: u64) {
    match round % 8 {
        0 => thread::yield_now(),
        n => (0..n * 40).for_each(|_| std::hint::spin_loop()),
    }
}

fn is_fault(fault: SoftFault) -> bool {
    matches!(fault.cause, Cause::NotMapped | Cause::ReadOnly)
}

const POISON: u64 = u64::MAX;

fn fill(extent: &mut Extent, word: u64) {
    extent.bytes_mut().as_chunks_mut::<8>().0.fill(word.to_ne_bytes());
}

/// Reads pages that hold the number of their round, until told to stop; returns how many reads were good.
fn read_rounds(cpu: &SoftCpu, at: [usize; 2], gone: &AtomicU64, stop: &AtomicBool) -> u64 {
    let (mut good, mut turn) = (0, 0);
    let mut page = vec![0; PAGE_SIZE];
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let addr = at[turn % 2];
        // Rounds up to this one are over: their unmap has returned.
        let over = gone.load(Ordering::Acquire);
        if let Ok(word) = cpu.read_u64(addr + turn * 8 % PAGE_SIZE) {
            assert!(word > over && word != POISON, "stale: {word} after {over}");
            good += 1;
        }
        let over = gone.load(Ordering::Acquire);
        if cpu.read(addr, &mut page).is_ok() {
            let words: Vec<u64> = page.as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w)).collect();
            assert!(words[0] > over && words[0] != POISON, "stale: {} after {over}", words[0]);
            assert!(words.iter().all(|&word| word == words[0]), "two rounds in one page");
            good += 1;
        }
    }
    good
}

#[test]
fn no_read_is_stale_or_mixed() {
    let mmu = mmu();
    let at = [1, 2].map(|_| SoftMmu::space_range(mmu.create_space().unwrap()).start + (7 << 21));
    let (gone, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    scope(|scope| {
        let (mmu, gone, stop) = (&mmu, &gone, &stop);
        let end = Stop(stop);
        let readers: Vec<_> =
            (0..3).map(|_| scope.spawn(move || read_rounds(&mmu.cpu(), at, gone, stop))).collect();
        let mut extents = [mmu.alloc(0).unwrap(), mmu.alloc(0).unwrap()];
        for round in 1..=ROUNDS {
            let extent = &mut extents[(round / 3 % 2) as usize];
            fill(extent, round);
            map(mmu, extent, at[(round / 2 % 2) as usize], Access::ReadOnly);
            linger(round);
            assert_eq!(mmu.unmap(extent), Ok(()), "reads take no pins");
            gone.store(round, Ordering::Release);
            fill(extent, POISON);
        }
        drop(end);
        let good: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
        assert!(good > 100, "the readers hardly read anything: {good}");
    });
}

const WRITERS: usize = 3;
const SHARED_WORD: usize = 8 * 100;
const HALF_WORD: usize = 8 * 101 + 4;

/// What a writer did.
#[derive(Default)]
struct Written {
    last: u64,
    exchanges: u64,
    halves: u32,
}

/// Stores growing numbers into a word of its own, and counts words that are shared up.
fn write_words(cpu: &SoftCpu, me: usize, at: [usize; 2], stop: &AtomicBool) -> Written {
    let mut written = Written::default();
    let own = 8 * (me * 2 + 1);
    let mut turn = me;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let base = at[turn % 2];
        let next = written.last + 1;
        let stored = match turn % 3 {
            0 => cpu.write_u64(base + own, next),
            1 => cpu.write(base + own, &next.to_ne_bytes()),
            _ => cpu.pin(base + own, 8, Intent::Write).map(|pin| {
                let byte = |(byte, value): (&elbowroom_sync::atomic::AtomicU8, u8)| {
                    byte.store(value, Ordering::Relaxed);
                };
                pin.iter().zip(next.to_ne_bytes()).for_each(byte);
            }),
        };
        match stored {
            Ok(()) => written.last = next,
            Err(fault) => assert!(is_fault(fault), "{fault:?}"),
        }
        if let Ok(now) = cpu.read_u64(base + SHARED_WORD)
            && let Ok(Ok(_)) = cpu.compare_exchange_u64(base + SHARED_WORD, now, now + 1)
        {
            written.exchanges += 1;
        }
        let mut half = [0; 4];
        if cpu.read(base + HALF_WORD, &mut half).is_ok() {
            let now = u32::from_ne_bytes(half);
            if let Ok(Ok(_)) = cpu.compare_exchange_u32(base + HALF_WORD, now, now + 1) {
                written.halves += 1;
            }
        }
    }
    written
}

fn word_of(extent: &Extent, offset: usize) -> u64 {
    u64::from_ne_bytes(*extent.bytes()[offset..].first_chunk().unwrap())
}

#[test]
fn no_store_is_lost_or_late() {
    let mmu = mmu();
    let at = [1, 2].map(|_| SoftMmu::space_range(mmu.create_space().unwrap()).start + (3 << 30));
    let stop = AtomicBool::new(false);
    let mut extent = mmu.alloc(0).unwrap();
    extent.bytes_mut().fill(0);
    scope(|scope| {
        let (mmu, stop) = (&mmu, &stop);
        let end = Stop(stop);
        let writers: Vec<_> =
            (0..WRITERS).map(|me| scope.spawn(move || write_words(&mmu.cpu(), me, at, stop))).collect();
        for round in 1..=ROUNDS {
            map(mmu, &mut extent, at[(round / 2 % 2) as usize], Access::Write);
            linger(round);
            unmap(mmu, &mut extent);
            // The bytes go on in another frame. A late store hits the old one: it changes under us, or is missing in the end.
            let mut next = mmu.alloc(0).unwrap();
            next.bytes_mut().copy_from_slice(extent.bytes());
            linger(round + 1);
            assert_eq!(next.bytes(), extent.bytes(), "a late store");
            mmu.free(std::mem::replace(&mut extent, next));
        }
        drop(end);
        let written: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        for (me, written) in written.iter().enumerate() {
            assert_eq!(word_of(&extent, 8 * (me * 2 + 1)), written.last, "a lost store of writer {me}");
            assert!(written.last > 100, "writer {me} hardly wrote anything");
        }
        assert_eq!(word_of(&extent, SHARED_WORD), written.iter().map(|w| w.exchanges).sum::<u64>());
        let halves: u32 = written.iter().map(|w| w.halves).sum();
        assert_eq!(extent.bytes()[HALF_WORD..HALF_WORD + 4], halves.to_ne_bytes());
    });
}

#[test]
fn a_protected_page_does_not_change() {
    let mmu = mmu();
    let start = SoftMmu::space_range(mmu.create_space().unwrap()).start;
    let stop = AtomicBool::new(false);
    let mut extent = mmu.alloc(0).unwrap();
    extent.bytes_mut().fill(0);
    map(&mmu, &mut extent, start, Access::Write);
    let page = start..start + PAGE_SIZE;
    let protected = scope(|scope| {
        let (mmu, stop) = (&mmu, &stop);
        let end = Stop(stop);
        for me in 0..2 {
            scope.spawn(move || {
                let cpu = mmu.cpu();
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) {
                    n += u64::from(cpu.write_u64(start + me * 8, n + 1).is_ok());
                    assert!(cpu.read_u64(start + me * 8).is_ok_and(|word| word == n), "a store is lost");
                }
            });
        }
        let (cpu, mut protected) = (mmu.cpu(), 0);
        for round in 0..ROUNDS {
            if mmu.write_protect(page.clone()).is_ok() {
                protected += 1;
                let before = [0, 8].map(|offset| cpu.read_u64(start + offset).unwrap());
                linger(round);
                let after = [0, 8].map(|offset| cpu.read_u64(start + offset).unwrap());
                assert_eq!(before, after, "a store to a protected page");
            }
            mmu.make_writable(page.clone(), Wake::Now).unwrap();
            linger(round);
        }
        drop(end);
        protected
    });
    assert!(protected > ROUNDS / 10, "hardly ever protected: {protected}");
    unmap(&mmu, &mut extent);
}

/// Aligned words are whole, whoever else stores.
#[test]
fn words_are_never_torn() {
    let mmu = mmu();
    let start = SoftMmu::space_range(mmu.create_space().unwrap()).start;
    let stop = AtomicBool::new(false);
    let mut extent = mmu.alloc(0).unwrap();
    extent.bytes_mut().fill(0);
    map(&mmu, &mut extent, start, Access::Write);
    scope(|scope| {
        let (mmu, stop) = (&mmu, &stop);
        let end = Stop(stop);
        for byte in [0x11_u8, 0xee] {
            scope.spawn(move || {
                let cpu = mmu.cpu();
                while !stop.load(Ordering::Relaxed) {
                    cpu.write_u64(start + 8, u64::from_ne_bytes([byte; 8])).unwrap();
                    cpu.write(start + 16, &[byte; 12]).unwrap();
                    cpu.fill(start + 28, 20, byte).unwrap();
                }
            });
        }
        let cpu = mmu.cpu();
        let whole = |bytes: &[u8]| bytes.iter().all(|&b| b == bytes[0]);
        for _ in 0..100_000 {
            assert!(whole(&cpu.read_u64(start + 8).unwrap().to_ne_bytes()));
            let mut out = [0; 32];
            cpu.read(start + 16, &mut out).unwrap();
            let parts = [0..8, 8..12, 12..16, 16..24, 24..32];
            assert!(parts.into_iter().all(|part| whole(&out[part])), "{out:?}");
        }
        drop(end);
    });
    unmap(&mmu, &mut extent);
}

/// A subscriber keeps what he read, and asks whether it still holds.
#[test]
fn what_a_subscriber_keeps_is_never_out_of_date() {
    let mmu = mmu();
    let start = SoftMmu::space_range(mmu.create_space().unwrap()).start;
    let (gone, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    scope(|scope| {
        let (mmu, gone, stop) = (&mmu, &gone, &stop);
        let end = Stop(stop);
        let subscriber = scope.spawn(move || {
            let (cpu, sub, mut kept) = (mmu.cpu(), mmu.subscribe(), 0_u64);
            while !stop.load(Ordering::Relaxed) {
                let position = sub.begin();
                let Ok(word) = cpu.read_u64(start) else { continue };
                for _ in 0..20 {
                    let over = gone.load(Ordering::Acquire);
                    if sub.retry(position, &(start..start + PAGE_SIZE)) {
                        break;
                    }
                    assert!(word > over, "{word} is kept after {over}");
                    kept += 1;
                }
            }
            kept
        });
        let mut extent = mmu.alloc(0).unwrap();
        for round in 1..=ROUNDS {
            fill(&mut extent, round);
            map(mmu, &mut extent, start, Access::ReadOnly);
            linger(round);
            mmu.unmap(&mut extent).unwrap();
            gone.store(round, Ordering::Release);
        }
        drop(end);
        assert!(subscriber.join().unwrap() > 100);
    });
}
