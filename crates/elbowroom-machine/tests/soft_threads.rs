//! The soft MMU used by several threads at once, while its pages come and go.

use elbowroom_machine::soft::{Cause, Intent, SoftConfig, SoftCpu, SoftFault, SoftMmu};
use elbowroom_machine::{Access, Extent, PAGE_SIZE, UnmapError, Wake};
use elbowroom_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use elbowroom_sync::time::{Duration, Instant};
use elbowroom_sync::{LockStats, thread};
use std::thread::scope;

/// How often something is done to a page, at least.
const ROUNDS: u64 = 3_000;

/// Longer than any thread is without a processor; a test that waits longer fails.
const LONG: Duration = Duration::from_secs(60);

/// Tells the other threads to stop, also when a check fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Calls `round` with 1, 2, ... for [`ROUNDS`] rounds, and then until `enough`: on a busy machine the other
/// threads may come late.
fn rounds(enough: impl Fn() -> bool, mut round: impl FnMut(u64)) {
    let until = Instant::now() + LONG;
    let more = |number: u64| number <= ROUNDS || !enough() && Instant::now() < until;
    (1..).take_while(|&number| more(number)).for_each(&mut round);
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
    let until = Instant::now() + LONG;
    for busy in 0.. {
        match mmu.unmap(extent) {
            Ok(()) => return busy,
            // A thread that has lost its processor within a store keeps the page until it gets another.
            Err(UnmapError::Busy) => thread::yield_now(),
            Err(UnmapError::Lost) => panic!("nothing can be lost"),
        }
        assert!(Instant::now() < until, "a page is pinned for ever");
    }
    unreachable!("the numbers do not end")
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

/// Reads pages that hold the number of their round, until told to stop; counts how many reads were good.
fn read_rounds(cpu: &SoftCpu, at: [usize; 2], gone: &AtomicU64, stop: &AtomicBool, good: &AtomicU64) {
    let mut turn = 0;
    let mut page = vec![0; PAGE_SIZE];
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let addr = at[turn % 2];
        // Rounds up to this one are over: their unmap has returned.
        let over = gone.load(Ordering::Acquire);
        if let Ok(word) = cpu.read_u64(addr + turn * 8 % PAGE_SIZE) {
            assert!(word > over && word != POISON, "stale: {word} after {over}");
            good.fetch_add(1, Ordering::Relaxed);
        }
        let over = gone.load(Ordering::Acquire);
        if cpu.read(addr, &mut page).is_ok() {
            let words: Vec<u64> = page.as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w)).collect();
            assert!(words[0] > over && words[0] != POISON, "stale: {} after {over}", words[0]);
            assert!(words.iter().all(|&word| word == words[0]), "two rounds in one page");
            good.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn no_read_is_stale_or_mixed() {
    let mmu = mmu();
    let at = [1, 2].map(|_| SoftMmu::space_range(mmu.create_space().unwrap()).start + (7 << 21));
    let (gone, stop, good) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    scope(|scope| {
        let (mmu, gone, stop, good) = (&mmu, &gone, &stop, &good);
        let _end = Stop(stop);
        (0..3).for_each(|_| drop(scope.spawn(move || read_rounds(&mmu.cpu(), at, gone, stop, good))));
        let mut extents = [mmu.alloc(0).unwrap(), mmu.alloc(0).unwrap()];
        let enough = || good.load(Ordering::Relaxed) > 100;
        rounds(enough, |round| {
            let extent = &mut extents[(round / 3 % 2) as usize];
            fill(extent, round);
            map(mmu, extent, at[(round / 2 % 2) as usize], Access::ReadOnly);
            linger(round);
            assert_eq!(mmu.unmap(extent), Ok(()), "reads take no pins");
            gone.store(round, Ordering::Release);
            fill(extent, POISON);
        });
        assert!(enough(), "the readers hardly read anything: {good:?}");
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

/// Stores growing numbers into a word of its own, which it shows in `last`, and counts words that are shared
/// up.
fn write_words(cpu: &SoftCpu, me: usize, at: [usize; 2], stop: &AtomicBool, last: &AtomicU64) -> Written {
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
            Ok(()) => {
                written.last = next;
                last.store(next, Ordering::Relaxed);
            }
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
    let last = [(); WRITERS].map(|()| AtomicU64::new(0));
    let mut extent = mmu.alloc(0).unwrap();
    extent.bytes_mut().fill(0);
    scope(|scope| {
        let (mmu, stop, last) = (&mmu, &stop, &last);
        let end = Stop(stop);
        let writers: Vec<_> = (0..WRITERS)
            .map(|me| scope.spawn(move || write_words(&mmu.cpu(), me, at, stop, &last[me])))
            .collect();
        let enough = || last.iter().all(|last| last.load(Ordering::Relaxed) > 100);
        rounds(enough, |round| {
            map(mmu, &mut extent, at[(round / 2 % 2) as usize], Access::Write);
            linger(round);
            unmap(mmu, &mut extent);
            // The bytes go on in another frame. A late store hits the old one: it changes under us, or is
            // missing in the end.
            let mut next = mmu.alloc(0).unwrap();
            next.bytes_mut().copy_from_slice(extent.bytes());
            linger(round + 1);
            assert_eq!(next.bytes(), extent.bytes(), "a late store");
            mmu.free(std::mem::replace(&mut extent, next));
        });
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
    let (gone, stop, kept) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    scope(|scope| {
        let (mmu, gone, stop, kept) = (&mmu, &gone, &stop, &kept);
        let _end = Stop(stop);
        scope.spawn(move || {
            let (cpu, sub) = (mmu.cpu(), mmu.subscribe());
            while !stop.load(Ordering::Relaxed) {
                let position = sub.begin();
                let Ok(word) = cpu.read_u64(start) else { continue };
                for _ in 0..20 {
                    let over = gone.load(Ordering::Acquire);
                    if sub.retry(position, &(start..start + PAGE_SIZE)) {
                        break;
                    }
                    assert!(word > over, "{word} is kept after {over}");
                    kept.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let mut extent = mmu.alloc(0).unwrap();
        let enough = || kept.load(Ordering::Relaxed) > 100;
        rounds(enough, |round| {
            fill(&mut extent, round);
            map(mmu, &mut extent, start, Access::ReadOnly);
            linger(round);
            mmu.unmap(&mut extent).unwrap();
            gone.store(round, Ordering::Release);
        });
        assert!(enough(), "the subscriber hardly kept anything: {kept:?}");
    });
}
