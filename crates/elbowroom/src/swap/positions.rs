//! Which pages of a swap file are free: plain data. Linux: `scan_swap_map_slots`.

use std::ops::Range;

/// A bit for each page of the file, set if it is taken.
pub struct Positions {
    words: Vec<u64>,
    pages: u64,
    taken: u64,
    /// Where the last run ended: what goes out together lies together, and so does what goes out next.
    next: u64,
}

impl Positions {
    /// All of so many pages are free.
    pub fn new(pages: u64) -> Self {
        Self { words: vec![0; pages.div_ceil(64) as usize], pages, taken: 0, next: 0 }
    }

    /// How many are taken.
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

    /// Gives one back.
    ///
    /// # Panics
    /// If it is free.
    pub fn free(&mut self, page: u64) {
        assert!(self.is_taken(page), "a page of the swap file is freed once");
        self.words[(page / 64) as usize] &= !(1 << (page % 64));
        self.taken -= 1;
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
                    positions.free(page);
                    model.remove(&page);
                }
                assert_eq!(positions.taken(), model.len() as u64);
            }
        }
        let mut positions = Positions::new(100);
        assert_eq!(positions.take(30), Some(0..30));
        assert_eq!(positions.take(30), Some(30..60));
        positions.free(10);
        assert_eq!(positions.take(64), Some(60..100), "behind the last one first");
        assert_eq!((positions.take(5), positions.take(5)), (Some(10..11), None));
    }
}
