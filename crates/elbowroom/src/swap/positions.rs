//! Which pages of a swap file are free: plain data. Linux: `scan_swap_map_slots`.
//!
//! A page that is taken has parts, which are given back one by one; with the last one it is free.

use crate::page::Spot;
use std::ops::Range;

/// A bit for each page of the file, set if it is taken.
pub struct Positions {
    words: Vec<u64>,
    pages: u64,
    taken: u64,
    /// The parts of each page that are in use ([`Spot::bit`]), up to the last page of which any was.
    parts: Vec<u8>,
    /// A bit for each page that children of a fork read, too: it stays taken until they are gone. Empty:
    /// there are no children.
    lent: Vec<u64>,
    /// A bit for each of these pages that was given back meanwhile.
    due: Vec<u64>,
    /// Where the last run ended: the next one is taken behind it, so that pages that go out one after the
    /// other lie together.
    next: u64,
}

impl Positions {
    /// A file of so many pages, all of them free.
    pub fn new(pages: u64) -> Self {
        Self {
            words: vec![0; pages.div_ceil(64) as usize],
            pages,
            taken: 0,
            parts: Vec::new(),
            lent: Vec::new(),
            due: Vec::new(),
            next: 0,
        }
    }

    /// How many pages are taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes a run of at most `most` pages: the first one behind the last, which may be short where the file
    /// is in pieces. `None`: none is free.
    pub fn take(&mut self, most: u64) -> Option<Range<u64>> {
        if self.taken == self.pages || most == 0 {
            return None;
        }
        let start = match self.first_free(self.next..self.pages) {
            Some(start) => start,
            None => self.first_free(0..self.next)?,
        };
        let end = (start..self.pages.min(start + most)).find(|&page| self.is_taken(page));
        let run = start..end.unwrap_or(self.pages.min(start + most));
        run.clone().for_each(|page| self.words[(page / 64) as usize] |= 1 << (page % 64));
        self.taken += run.end - run.start;
        self.next = run.end;
        Some(run)
    }

    /// Notes that these parts of pages that were taken are in use from now on.
    pub fn fill(&mut self, spots: impl IntoIterator<Item = Spot>) {
        for spot in spots {
            debug_assert!(self.is_taken(spot.position()));
            let page = spot.position() as usize;
            if self.parts.len() <= page {
                self.parts.resize(page + 1, 0);
            }
            self.parts[page] |= spot.bit();
        }
    }

    /// Gives pages back that were taken, and of which no part is in use.
    pub fn free_unused(&mut self, pages: Range<u64>) {
        if pages.end == self.next {
            // What is taken next follows what is in use.
            self.next = pages.start;
        }
        pages.for_each(|page| self.free(page));
    }

    /// Gives a part of a page back.
    ///
    /// # Panics
    /// If it is not in use.
    pub fn free_spot(&mut self, spot: Spot) {
        let parts = &mut self.parts[spot.position() as usize];
        assert!(*parts & spot.bit() != 0, "a part of a page of the swap file is freed once");
        *parts &= !spot.bit();
        if *parts == 0 {
            self.free(spot.position());
        }
    }

    fn free(&mut self, page: u64) {
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        let is_due = self.due.get(word).is_some_and(|due| due & bit != 0);
        assert!(self.is_taken(page) && !is_due, "a page of the swap file is freed once");
        assert!(self.parts.get(page as usize).is_none_or(|parts| *parts == 0), "nobody uses it");
        if self.lent.get(word).is_some_and(|lent| lent & bit != 0) {
            self.due[word] |= bit;
            return;
        }
        self.words[word] &= !bit;
        self.taken -= 1;
    }

    /// Notes that a child reads all pages that are taken now, from now on.
    #[cfg_attr(shuttle, allow(dead_code, reason = "a model does not fork its process"))]
    pub fn lend(&mut self) {
        self.lent.resize(self.words.len(), 0);
        self.due.resize(self.words.len(), 0);
        self.lent.iter_mut().zip(&self.words).for_each(|(lent, taken)| *lent |= taken);
    }

    /// All children are gone: what was given back meanwhile is free.
    #[cfg_attr(shuttle, allow(dead_code, reason = "a model does not fork its process"))]
    pub fn take_back(&mut self) {
        self.lent.clear();
        for (word, due) in self.words.iter_mut().zip(std::mem::take(&mut self.due)) {
            *word &= !due;
            self.taken -= u64::from(due.count_ones());
        }
    }

    /// In the child of a fork: all of its own file is free.
    #[cfg_attr(shuttle, allow(dead_code, reason = "a model does not fork its process"))]
    pub fn renew(&mut self) {
        *self = Self::new(self.pages);
    }

    fn is_taken(&self, page: u64) -> bool {
        self.words[(page / 64) as usize] >> (page % 64) & 1 != 0
    }

    fn first_free(&self, range: Range<u64>) -> Option<u64> {
        let mut page = range.start;
        while page < range.end {
            let free = !self.words[(page / 64) as usize] >> (page % 64);
            if free != 0 {
                let found = page + u64::from(free.trailing_zeros());
                return (found < range.end).then_some(found);
            }
            page = (page / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_was_lent_is_taken_until_it_is_back() {
        let mut positions = Positions::new(100);
        assert_eq!(positions.take(10), Some(0..10));
        positions.lend();
        assert_eq!(positions.take(90), Some(10..100));
        positions.fill((0..100).map(Spot::whole));
        (0..100).for_each(|page| positions.free_spot(Spot::whole(page)));
        assert_eq!((positions.taken(), positions.take(100)), (10, Some(10..100)));
        positions.lend();
        positions.take_back();
        assert_eq!((positions.taken(), positions.take(100)), (90, Some(0..10)));
        positions.free_unused(0..100);
        assert_eq!(positions.taken(), 0);
    }

    #[test]
    fn a_page_is_free_with_the_last_of_its_parts() {
        let mut positions = Positions::new(10);
        assert_eq!(positions.take(8), Some(0..8));
        positions.fill([Spot::part(0, 0), Spot::part(0, 6), Spot::part(1, 0)]);
        // What is not used is taken next.
        positions.free_unused(2..8);
        assert_eq!((positions.taken(), positions.take(1)), (2, Some(2..3)));
        positions.free_spot(Spot::part(0, 6));
        positions.free_spot(Spot::part(1, 0));
        assert_eq!(positions.taken(), 2);
        positions.free_spot(Spot::part(0, 0));
        assert_eq!((positions.taken(), positions.take(9)), (1, Some(3..10)));
        assert_eq!(positions.take(9), Some(0..2));
    }

    #[test]
    #[should_panic(expected = "freed once")]
    fn a_part_is_freed_once() {
        let mut positions = Positions::new(10);
        positions.take(1);
        positions.fill([Spot::part(0, 0), Spot::part(0, 1)]);
        positions.free_spot(Spot::part(0, 0));
        positions.free_spot(Spot::part(0, 0));
    }

    /// Beside a set: no page is given twice, runs are whole, and all can be had.
    #[test]
    fn runs_are_free_and_all_can_be_had() {
        for pages in [1, 63, 64, 65, 1000] {
            let mut positions = Positions::new(pages);
            let mut model = BTreeSet::new();
            let mut number = 7_u64;
            for _ in 0..5000 {
                number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let most = (number >> 40) % 40;
                if number >> 63 == 0 {
                    let run = positions.take(most);
                    assert_eq!(run.is_none(), most == 0 || model.len() as u64 == pages);
                    for page in run.into_iter().flatten() {
                        assert!(page < pages && model.insert(page), "page {page} is taken twice");
                    }
                } else if let Some(&page) = model.iter().nth((most as usize).min(model.len().max(1) - 1)) {
                    positions.fill([Spot::whole(page)]);
                    positions.free_spot(Spot::whole(page));
                    model.remove(&page);
                }
                assert_eq!(positions.taken(), model.len() as u64);
            }
        }
        let mut positions = Positions::new(100);
        assert_eq!(positions.take(30), Some(0..30));
        assert_eq!(positions.take(30), Some(30..60));
        positions.free_unused(10..11);
        assert_eq!(positions.take(64), Some(60..100), "behind the last one first");
        assert_eq!((positions.take(5), positions.take(5)), (Some(10..11), None));
    }
}
