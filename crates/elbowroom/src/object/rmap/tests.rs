//! The reverse map against a naive list.

use super::*;
use crate::object::ALL_PAGES;

const SEEDS: Range<u64> = 0..8;
const STEPS: u64 = 4000;
/// Pages of the object, and what there is at most: small, so that many mappings have the same pages.
const PAGES: u64 = 64;
const MOST: usize = 300;
/// More than shards, so that some share one.
const SPACES: u64 = 20;

/// What a test draws at random, from a seed.
struct Random(fastrand::Rng);

impl Random {
    fn pages(&mut self) -> Range<u64> {
        let start = self.0.u64(..PAGES);
        let longest = [1, 4, PAGES][self.0.usize(..3)];
        start..start + 1 + self.0.u64(..longest)
    }

    fn mapping(&mut self) -> MappedRange {
        let pages = self.pages();
        let start = (self.0.u64(..SPACES) << 48 | self.0.u64(..8) << 30) as usize;
        let standing = if self.0.u8(..4) > 0 { Standing::Mapped } else { Standing::InChange };
        let range = start..start + ((pages.end - pages.start) << PAGE_SHIFT) as usize;
        MappedRange { range, first_page: pages.start, private: self.0.bool(), standing }
    }
}

fn sorted(mut mappings: Vec<MappedRange>) -> Vec<MappedRange> {
    mappings.sort_by_key(|m| (m.range.start, m.range.end, m.first_page, m.standing == Standing::InChange));
    mappings
}

fn naive(list: &[MappedRange], pages: &Range<u64>, which: Which) -> Vec<MappedRange> {
    let wanted = |m: &&MappedRange| {
        let overlap = m.pages().start.max(pages.start) < m.pages().end.min(pages.end);
        overlap && (which == Which::All || m.private)
    };
    list.iter().filter(wanted).cloned().collect()
}

fn check(map: &ReverseMap, list: &[MappedRange], pages: &Range<u64>, seed: u64) {
    for which in [Which::All, Which::Private] {
        let expected = sorted(naive(list, pages, which));
        assert_eq!(sorted(map.overlapping(pages, which)), expected, "seed {seed}, {pages:?}");
        for space in 0..SPACES as usize {
            let there = expected.iter().filter(|m| space_of(m.range.start) == space).cloned().collect();
            let found = map.in_space(space << 48 | 0x1000, pages, which);
            assert!(found.is_sorted_by_key(|m| m.range.start), "seed {seed}");
            assert_eq!(sorted(found), sorted(there), "seed {seed}, {pages:?}, space {space}");
        }
    }
}

#[test]
fn it_has_what_a_list_has() {
    for seed in SEEDS {
        let mut random = Random(fastrand::Rng::with_seed(seed));
        let map = ReverseMap::new(&LockStats::new(), FileLocking::Narrow);
        let mut list: Vec<MappedRange> = Vec::new();
        for step in 0..STEPS {
            // Grows for a while, then shrinks to nothing, again and again.
            let grows = step / 500 % 2 == 0 && list.len() < MOST;
            if random.0.u64(..8) < if grows { 6 } else { 2 } {
                let new = random.mapping();
                let known = |m: &MappedRange| m.edges() == new.edges();
                if !list.iter().any(known) {
                    map.replace(new.range.start, [], [new.clone()]);
                    list.push(new);
                }
            } else if !list.is_empty() {
                let old = list.swap_remove(random.0.usize(..list.len()));
                // The same pages again, from the other standing, as a change does.
                let other =
                    if old.standing == Standing::Mapped { Standing::InChange } else { Standing::Mapped };
                let new = MappedRange { standing: other, ..old.clone() };
                let swap = random.0.u64(..3) == 0 && !list.iter().any(|m| m.edges() == new.edges());
                map.replace(old.range.start, [old], swap.then(|| new.clone()));
                list.extend(swap.then_some(new));
            }
            if step % 16 == 0 {
                check(&map, &list, &random.pages(), seed);
            }
        }
        check(&map, &list, &ALL_PAGES, seed);
        check(&map, &list, &(5..5), seed);
        list.drain(..).for_each(|old| drop(map.replace(old.range.start, [old], [])));
        assert_eq!(map.overlapping(&ALL_PAGES, Which::All), []);
    }
}

/// Ends that meet do not overlap.
#[test]
fn neighbours_are_not_found() {
    let map = ReverseMap::new(&LockStats::new(), FileLocking::Narrow);
    let at = |first_page: u64, pages: usize| MappedRange {
        range: 1 << 20..(1 << 20) + (pages << PAGE_SHIFT),
        first_page,
        private: true,
        standing: Standing::Mapped,
    };
    map.replace(1 << 20, [], [at(4, 2)]);
    let found = |pages| map.overlapping(&pages, Which::All).len();
    assert_eq!([found(0..4), found(6..9), found(3..5), found(5..6), found(0..9)], [0, 0, 1, 1, 1]);
    assert_eq!(at(4, 2).page_numbers(&(5..9)), 257..258);
    assert_eq!(at(4, 2).page_numbers(&ALL_PAGES), 256..258);
}
