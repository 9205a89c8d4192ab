//! A set of pages within one extent.

use std::ops::Range;

/// A bitmap of up to 512 pages. It is as small as the extent allows, since there can be one set per 4 KiB
/// of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PageSet {
    /// Up to 64 pages.
    Small(u64),
    /// Up to 512 pages.
    Large(Box<[u64; 8]>),
}

impl PageSet {
    /// The empty set for an extent of 2^`order` pages.
    pub fn new(order: u8) -> Self {
        if order <= 6 { PageSet::Small(0) } else { PageSet::Large(Box::new([0; 8])) }
    }

    fn words(&self) -> &[u64] {
        match self {
            PageSet::Small(word) => std::slice::from_ref(word),
            PageSet::Large(words) => &words[..],
        }
    }

    fn words_mut(&mut self) -> &mut [u64] {
        match self {
            PageSet::Small(word) => std::slice::from_mut(word),
            PageSet::Large(words) => &mut words[..],
        }
    }

    /// How many pages the set has bits for: at least those of the extent.
    pub fn capacity(&self) -> usize {
        self.words().len() * 64
    }

    /// Whether `page` is in it.
    #[inline]
    pub fn contains(&self, page: usize) -> bool {
        self.words()[page / 64] & (1 << (page % 64)) != 0
    }

    /// Whether no page is in it.
    pub fn is_empty(&self) -> bool {
        self.words().iter().all(|&w| w == 0)
    }

    /// How many pages are in it.
    pub fn count(&self) -> usize {
        self.words().iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Adds the pages.
    pub fn insert(&mut self, pages: Range<usize>) {
        let words = self.words_mut();
        for_words(pages, |i, mask| words[i] |= mask);
    }

    /// Adds one page.
    #[inline]
    pub(crate) fn insert_page(&mut self, page: usize) {
        self.words_mut()[page / 64] |= 1 << (page % 64);
    }

    /// Takes the pages out.
    pub fn remove(&mut self, pages: Range<usize>) {
        let words = self.words_mut();
        for_words(pages, |i, mask| words[i] &= !mask);
    }

    /// Takes one page out.
    #[inline]
    pub(crate) fn remove_page(&mut self, page: usize) {
        self.words_mut()[page / 64] &= !(1 << (page % 64));
    }

    /// Takes all pages out.
    pub fn clear(&mut self) {
        self.words_mut().fill(0);
    }

    /// How many of `pages` are in it.
    pub fn count_in(&self, pages: Range<usize>) -> usize {
        let words = self.words();
        let mut n = 0;
        for_words(pages, |i, mask| n += (words[i] & mask).count_ones() as usize);
        n
    }

    /// The first maximal run of pages inside `within` that are in the set, or not in it, as `member` says.
    pub fn first_run(&self, within: Range<usize>, member: Membership) -> Option<Range<usize>> {
        let wanted = |page: usize| self.contains(page) == (member == Membership::In);
        let start = within.clone().find(|&page| wanted(page))?;
        let end = (start..within.end).find(|&page| !wanted(page)).unwrap_or(within.end);
        Some(start..end)
    }
}

/// What [`PageSet::first_run`] looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Membership {
    /// Pages in the set.
    In,
    /// Pages not in it.
    Out,
}

fn for_words(pages: Range<usize>, mut f: impl FnMut(usize, u64)) {
    let mut page = pages.start;
    while page < pages.end {
        let word = page / 64;
        let end = pages.end.min((word + 1) * 64);
        let low = u64::MAX << (page % 64);
        let high = if end.is_multiple_of(64) { u64::MAX } else { (1 << (end % 64)) - 1 };
        f(word, low & high);
        page = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_behave_as_a_set_of_numbers() {
        for order in [0, 3, 6, 7, 9] {
            let n = 1_usize << order;
            for (start, end) in [(0, n), (0, 1), (n / 2, n), (n / 3, n / 2), (n - 1, n)] {
                let mut set = PageSet::new(order);
                set.insert(start..end);
                assert!((0..n).all(|p| set.contains(p) == (start..end).contains(&p)));
                assert_eq!(
                    (set.count(), set.count_in(0..n / 2)),
                    (end - start, (end.min(n / 2)).saturating_sub(start))
                );
                if start < end {
                    assert_eq!(set.first_run(0..n, Membership::In), Some(start..end));
                    let out = if start > 0 {
                        Some(0..start)
                    } else if end < n {
                        Some(end..n)
                    } else {
                        None
                    };
                    assert_eq!(set.first_run(0..n, Membership::Out), out);
                }
                set.remove(start..end);
                assert!(set.is_empty());
            }
        }
    }
}
