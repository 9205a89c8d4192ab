//! Private anonymous memory in huge folios: nobody can tell but by the statistics.

use crate::support::*;
use elbowroom::{Advice, Config, MapRequest, Place, Prot, Remap, Sharing};
use elbowroom_sync::atomic::{AtomicBool, Ordering};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};

on_every_machine! {
    untouched_memory_comes_by_blocks
    scarce_memory_comes_by_pages
    any_part_can_be_changed
    what_became_uniform_is_collapsed
    advice_on_single_pages_beside_changes_of_all
    rights_hold_for_blocks_that_are_split_meanwhile
}

/// Pages in a block.
const BLOCK: usize = 512;

/// Enough memory for some blocks.
fn roomy() -> Config {
    Config::with_memory(64 << 20)
}

fn untouched_memory_comes_by_blocks<M: Machine>() {
    let Some(m) = M::start(roomy()) else { return };
    let addr = m.map_anon(3 * BLOCK, Sharing::Private);
    assert!(addr.is_multiple_of(BLOCK * PAGE), "a large mapping is aligned");
    m.set_word(addr + 5 * PAGE, 5);
    m.set_word(addr + 2 * BLOCK * PAGE, 6);
    let faults = m.manager().stats().pgfault;
    m.check_zero(addr + 6 * PAGE, BLOCK - 6);
    let stats = m.manager().stats();
    // A fault is counted a moment after it was served.
    assert_eq!((stats.huge_faults, stats.pgfault.saturating_sub(faults + 2)), (2, 0));
    assert_eq!([5, 6, 2 * BLOCK, BLOCK].map(|page| m.word(addr + page * PAGE)), [5, 0, 6, 0]);
    // Where a whole block does not fit.
    let small = m.map_anon(BLOCK - 1, Sharing::Private);
    m.set_word(small, 1);
    assert_eq!(m.manager().stats().huge_faults, 3);
}

fn scarce_memory_comes_by_pages<M: Machine>() {
    let Some(m) = M::start(Config::with_memory(BUDGET)) else { return };
    let blocks = 64;
    let addr = m.map_anon(blocks * BLOCK, Sharing::Private);
    (0..blocks).for_each(|block| m.set_word(addr + block * BLOCK * PAGE, block as u64 + 1));
    for block in 0..blocks {
        assert_eq!(m.word(addr + block * BLOCK * PAGE), block as u64 + 1);
        assert_eq!(m.word(addr + (block * BLOCK + 1) * PAGE), 0);
    }
    let stats = m.manager().stats();
    assert!((1..=4).contains(&stats.huge_faults), "{stats:?}");
    assert!(stats.peak_bytes <= BUDGET, "{stats:?}");
}

/// What the pages of an area are expected to have as their first word.
struct Model<'a, M> {
    m: &'a M,
    addr: usize,
    words: Vec<u64>,
}

impl<M: Machine> Model<'_, M> {
    fn fixed(&self, page: usize, pages: usize) -> MapRequest {
        let place = Place::Fixed(self.addr + page * PAGE);
        MapRequest { place, ..request(None, pages, Sharing::Private) }
    }

    fn check(&self) {
        let port = self.m.port();
        for (page, word) in self.words.iter().enumerate() {
            assert_eq!(port.word(self.addr + page * PAGE), *word, "page {page}");
        }
    }

    /// Changes a part in one of many ways.
    fn change(&mut self, how: usize, page: usize, pages: usize) {
        let (space, at, len) = (self.m.space(), self.addr + page * PAGE, pages * PAGE);
        match how {
            0 => {
                let port = self.m.port();
                for page in page..page + pages {
                    self.words[page] += 1;
                    port.set_word(self.addr + page * PAGE, self.words[page]);
                }
            }
            1 => {
                space.unmap(at, len).unwrap();
                self.m.map(self.fixed(page, pages));
                self.words[page..page + pages].fill(0);
            }
            2 => {
                self.m.map(self.fixed(page, pages));
                self.words[page..page + pages].fill(0);
            }
            3 => {
                space.protect(at, len, Prot::READ).unwrap();
                assert_eq!(self.m.word(at), self.words[page]);
                space.protect(at, len, RW).unwrap();
            }
            4 => {
                space.advise(at, len, Advice::DontNeed).unwrap();
                self.words[page..page + pages].fill(0);
            }
            5 => space.advise(at, len, Advice::Cold).unwrap(),
            _ => {
                // Away, to where blocks may lie as here or not, and back.
                let away = self.m.map_anon(pages + BLOCK, Sharing::Private);
                let there = away + (page + how % 2) % BLOCK * PAGE;
                assert_eq!(space.remap(at, len, len, Remap::Fixed(there)), Ok(there));
                let port = self.m.port();
                (0..pages).for_each(|i| assert_eq!(port.word(there + i * PAGE), self.words[page + i]));
                assert_eq!(space.remap(there, len, len, Remap::Fixed(at)), Ok(at));
                space.unmap(away, (pages + BLOCK) * PAGE).unwrap();
            }
        }
    }
}

fn any_part_can_be_changed<M: Machine>() {
    let Some(m) = M::start(roomy()) else { return };
    let pages = 4 * BLOCK;
    let mut model = Model { m: &m, addr: m.map_anon(pages, Sharing::Private), words: vec![0; pages] };
    let mut seed = 7_u64;
    let mut draw = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    model.change(0, 0, pages);
    for _ in 0..120 {
        let page = draw(pages);
        // Whole blocks now and then.
        let (page, most) = if draw(4) == 0 { (page / BLOCK * BLOCK, 2 * BLOCK) } else { (page, 700) };
        let len = (if draw(4) == 0 { BLOCK } else { draw(most) + 1 }).min(pages - page);
        model.change(draw(8), page, len);
        if draw(8) == 0 {
            // Anew, in blocks.
            model.change(1, 0, pages);
            model.change(0, 0, pages);
        }
        model.check();
    }
    let stats = m.manager().stats();
    assert!(stats.huge_faults > 4 && stats.huge_splits > 4, "{stats:?}");
}

fn what_became_uniform_is_collapsed<M: Machine>() {
    let Some(m) = M::start(roomy()) else { return };
    let addr = m.map_anon(2 * BLOCK, Sharing::Private);
    m.mark(addr, 0..2 * BLOCK, 1);
    m.space().advise(addr + 7 * PAGE, 9 * PAGE, Advice::DontNeed).unwrap();
    m.mark(addr, 7..16, 1);
    let stats = m.manager().stats();
    assert_eq!((stats.huge_faults, stats.huge_splits), (2, 1));
    let until = Instant::now() + Duration::from_secs(20);
    while m.manager().stats().huge_collapses == 0 {
        assert!(Instant::now() < until, "nothing was collapsed");
        // Whatever is stored meanwhile is there.
        m.mark(addr, 0..2 * BLOCK, 2);
        thread::sleep(Duration::from_millis(20));
    }
    m.check_marks(addr, 0..2 * BLOCK, 2);
    let faults = m.manager().stats().pgfault;
    m.mark(addr, 0..2 * BLOCK, 3);
    m.check_marks(addr, 0..2 * BLOCK, 3);
    assert!(m.manager().stats().pgfault <= faults + 2);
}

/// Stops another thread at the end of a test, also if it fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One thread gives advice on odd pages, which splits blocks; another changes rights, moves and unmaps all of
/// the range meanwhile. Even pages keep what they have, and rights hold for all.
fn advice_on_single_pages_beside_changes_of_all<M: Machine>() {
    const PAGES: usize = 2 * BLOCK;
    const ROUNDS: u64 = 40;
    let Some(m) = M::start(roomy()) else { return };
    let (addr, away) = (m.map_anon(PAGES, Sharing::Private), m.map_anon(PAGES, Sharing::Private));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let mut page = 1;
            while !stop.load(Ordering::Relaxed) {
                let advice = if page % 4 == 1 { Advice::DontNeed } else { Advice::Cold };
                // A part of it may be away just now, or its page pinned.
                let _ = m.space().advise(addr + page * PAGE, PAGE, advice);
                page = ((page + 202) % PAGES) | 1;
            }
        });
        let space = m.space();
        let even = || (0..PAGES).step_by(2);
        for round in 0..ROUNDS {
            even().for_each(|page| m.mark(addr, page..page + 1, round));
            let check =
                |at: usize| even().for_each(|page| m.check_marks(at + page * PAGE, page..page + 1, round));
            space.protect(addr, PAGES * PAGE, Prot::READ).unwrap();
            even().step_by(37).for_each(|page| m.port().store_fails(addr + page * PAGE, Failure::Denied));
            check(addr);
            space.protect(addr, PAGES * PAGE, Prot::READ.union(Prot::WRITE)).unwrap();
            assert_eq!(space.remap(addr, PAGES * PAGE, PAGES * PAGE, Remap::Fixed(away)), Ok(away));
            check(away);
            assert_eq!(space.remap(away, PAGES * PAGE, PAGES * PAGE, Remap::Fixed(addr)), Ok(addr));
            check(addr);
            space.unmap(addr, PAGES * PAGE).unwrap();
            let place = Place::Fixed(addr);
            assert_eq!(m.map(MapRequest { place, ..request(None, PAGES, Sharing::Private) }), addr);
            even().step_by(41).for_each(|page| m.check_zero(addr + page * PAGE, 1));
        }
    });
}

/// One thread makes blocks and splits them; another takes the right to store away from all of them meanwhile.
fn rights_hold_for_blocks_that_are_split_meanwhile<M: Machine>() {
    const BLOCKS: usize = 12;
    const ROUNDS: usize = 100;
    let Some(m) = M::start(roomy()) else { return };
    let addr = m.map_anon(BLOCKS * BLOCK, Sharing::Private);
    let at = |block: usize, page: usize| addr + (block * BLOCK + page) * PAGE;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let (space, port) = (m.space(), m.port());
            for block in (0..BLOCKS).rev().cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                // Not while all of it is being changed.
                let _ = space.advise(at(block, 0), BLOCK * PAGE, Advice::DontNeed);
                port.word(at(block, 7));
                let _ = space.advise(at(block, 9), PAGE, Advice::Cold);
            }
        });
        let (space, port) = (m.space(), m.port());
        for round in 0..ROUNDS {
            // The other thread gets to advise between two changes, and splits when the next one has begun.
            thread::sleep(Duration::from_micros(round as u64 % 8 * 20));
            space.protect(addr, BLOCKS * BLOCK * PAGE, Prot::READ).unwrap();
            (0..BLOCKS).for_each(|block| port.store_fails(at(block, 3), Failure::Denied));
            space.protect(addr, BLOCKS * BLOCK * PAGE, Prot::READ.union(Prot::WRITE)).unwrap();
        }
    });
}
