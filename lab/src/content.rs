//! What the data files hold: every page is a function of a seed, the file's number and the page's number.
//!
//! The first eight bytes of a page are its stamp, so one load tells whether the right page was read. The rest
//! is pseudo-random, so that no layer below can store it as a hole or compress it away.

use crate::PAGE_BYTES;

/// The eight bytes at the start of a page, as a little-endian number.
///
/// It is a bijection of (file, page) for a given seed as long as both are below 2^32, so two pages never
/// share it.
pub fn stamp(seed: u64, file: u64, page: u64) -> u64 {
    mix(seed ^ (file << 32 | page))
}

/// Fills one page.
///
/// # Panics
/// If `page_bytes` is not exactly one page long.
pub fn fill_page(page_bytes: &mut [u8], seed: u64, file: u64, page: u64) {
    assert_eq!(page_bytes.len() as u64, PAGE_BYTES);
    let first = stamp(seed, file, page);
    for (index, word) in page_bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = word_of(first, index as u64).to_le_bytes();
    }
}

/// Any eight bytes of a page, as a little-endian number: by the page's stamp, and how many words stand before
/// them.
#[inline]
pub fn word_of(stamp: u64, index: u64) -> u64 {
    // The first word must be the stamp itself, which readers compare with.
    if index == 0 { stamp } else { mix(stamp.wrapping_add(index)) }
}

/// The finalizer of splitmix64: a bijection on 64 bits in which every input bit moves every output bit.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A small generator of page numbers (splitmix64), good enough to defeat every readahead.
#[derive(Debug, Clone)]
pub struct PageDice {
    state: u64,
}

impl PageDice {
    /// A generator whose sequence depends on `seed` only.
    pub fn new(seed: u64) -> Self {
        Self { state: mix(seed) }
    }

    /// The next number, evenly spread over `0..pages`.
    ///
    /// # Panics
    /// Never; `pages` = 0 gives 0.
    pub fn next_below(&mut self, pages: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mix(self.state)) * u128::from(pages)) >> 64) as u64
    }
}

/// A number from 0 to 1, evenly spread, 1 excluded.
pub fn share(dice: &mut PageDice) -> f64 {
    const STEPS: u64 = 1 << 53;
    dice.next_below(STEPS) as f64 / STEPS as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_page_starts_with_its_stamp_and_no_two_pages_share_one() {
        let mut seen = HashSet::new();
        let mut bytes = vec![0; PAGE_BYTES as usize];
        for file in 0..8 {
            for page in 0..64 {
                fill_page(&mut bytes, 7, file, page);
                assert_eq!(u64::from_le_bytes(bytes[..8].try_into().unwrap()), stamp(7, file, page));
                assert!(seen.insert(bytes.clone()));
            }
        }
    }

    #[test]
    fn dice_stay_in_range_and_reach_everything() {
        let mut dice = PageDice::new(3);
        let seen: HashSet<u64> = (0..1000).map(|_| dice.next_below(17)).collect();
        assert_eq!(seen, (0..17).collect());
    }
}
