//! Where the bytes of a page go: plain data in, a decision out. Linux: `zswap_store`.
//!
//! A page of one word, repeated, needs no storage. What lz4 makes at least a quarter smaller is kept in the
//! pool, or goes through it to the file. All else goes to the file as it is, as does what compresses when the
//! pool may have no more.

use super::classes::LARGEST;
use elbowroom_machine::PAGE_SIZE;
use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};

/// Which places have room for a page.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// The pool may have more of the budget.
    pub pool: bool,
    /// The pool may have more pages that only pass through it to the file.
    pub passes: bool,
    /// There is a swap file.
    pub file: bool,
}

impl Room {
    /// The room for a page that the file has already: it goes to the pool only if it may stay there.
    pub fn to_stay(self) -> Self {
        Self { passes: false, ..self }
    }
}

/// Where a page goes.
#[derive(Debug, PartialEq, Eq)]
pub enum Placement<'a> {
    /// Nowhere: it is this word, 512 times.
    Filled(u64),
    /// To the pool, as these bytes.
    Pool(&'a [u8]),
    /// To the file, as it is.
    File,
    /// There is no room for it.
    Full,
}

/// The bytes of a page are not those that it went out with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;

/// The buffer into which a thread compresses pages.
pub struct Compressor {
    output: Vec<u8>,
}

impl Compressor {
    /// A buffer for one thread.
    pub fn new() -> Self {
        Self { output: vec![0; get_maximum_output_size(PAGE_SIZE)] }
    }

    /// Decides where a page goes.
    ///
    /// # Panics
    /// If `page` is not of a page's size.
    pub fn place(&mut self, page: &[u8], room: Room) -> Placement<'_> {
        assert_eq!(page.len(), PAGE_SIZE);
        if let Some(word) = filled_with(page) {
            return Placement::Filled(word);
        }
        if room.pool || room.passes {
            // The output has room for any page, even one that becomes larger.
            let len = compress_into(page, &mut self.output).unwrap_or(usize::MAX);
            if len <= LARGEST {
                return Placement::Pool(&self.output[..len]);
            }
        }
        if room.file { Placement::File } else { Placement::Full }
    }
}

/// Whether a page is all zeros.
pub fn is_zero(page: &[u8]) -> bool {
    filled_with(page) == Some(0)
}

/// Fills a page with the word.
pub fn fill(page: &mut [u8], word: u64) {
    page.as_chunks_mut::<8>().0.fill(word.to_ne_bytes());
}

/// Expands what [`Compressor::place`] has made of a page. The caller checks whether the page is the one
/// that went out.
///
/// # Errors
/// The bytes do not expand to a page. `page` has any contents then.
pub fn expand(compressed: &[u8], page: &mut [u8]) -> Result<(), Corrupt> {
    match decompress_into(compressed, page) {
        Ok(PAGE_SIZE) => Ok(()),
        _ => Err(Corrupt),
    }
}

/// The word that a page repeats; `None`: its words differ.
fn filled_with(page: &[u8]) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    let (first, last) = (words.first()?, words.last()?);
    // In most pages the first and the last word differ.
    let alike = first == last && words.iter().all(|word| word == first);
    alike.then(|| u64::from_ne_bytes(*first))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::page::checksum;

    const ALL: Room = Room { pool: true, passes: false, file: true };

    fn text() -> Vec<u8> {
        b"a page of text that says the same again ".iter().copied().cycle().take(PAGE_SIZE).collect()
    }

    /// What no compressor makes smaller.
    fn noise() -> Vec<u8> {
        let mut word = 1_u64;
        let mut next = || {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word.to_ne_bytes()
        };
        (0..PAGE_SIZE / 8).flat_map(|_| next()).collect()
    }

    #[test]
    fn the_bytes_and_the_room_decide() {
        let mut compressor = Compressor::new();
        for [pool, passes] in [[false; 2], [true, false], [false, true]] {
            for file in [false, true] {
                let room = Room { pool, passes, file };
                assert_eq!(compressor.place(&[0; PAGE_SIZE], room), Placement::Filled(0));
                let rest = if file { Placement::File } else { Placement::Full };
                assert_eq!(compressor.place(&noise(), room), rest);
                match compressor.place(&text(), room) {
                    Placement::Pool(bytes) if pool || passes => assert!(bytes.len() < 200),
                    other => assert!(!pool && !passes && other == rest, "{other:?}"),
                }
                if !pool {
                    assert_eq!(compressor.place(&text(), room.to_stay()), rest);
                }
            }
        }
        let mut almost = [0x11; PAGE_SIZE];
        assert_eq!(compressor.place(&almost, ALL), Placement::Filled(0x1111_1111_1111_1111));
        almost[PAGE_SIZE / 2] = 0;
        assert!(matches!(compressor.place(&almost, ALL), Placement::Pool(_)));
    }

    #[test]
    fn a_page_comes_back_as_it_was_or_not_at_all() {
        let mut compressor = Compressor::new();
        let (page, sum) = (text(), checksum(&text()));
        let Placement::Pool(bytes) = compressor.place(&page, ALL) else { panic!() };
        let mut found = vec![1; PAGE_SIZE];
        let checked = |bytes: &[u8], found: &mut [u8]| {
            expand(bytes, found).and_then(|()| if checksum(found) == sum { Ok(()) } else { Err(Corrupt) })
        };
        assert_eq!(checked(bytes, &mut found), Ok(()));
        assert_eq!(found, page);
        // Each bit of it, flipped, and each end that is missing.
        for bit in 0..bytes.len() * 8 {
            let mut wrong = bytes.to_vec();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let result = checked(&wrong, &mut found);
            assert!(result == Err(Corrupt) || found == page, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(checked(&bytes[..len], &mut found), Err(Corrupt));
        }
        let mut filled = [0; PAGE_SIZE];
        fill(&mut filled, 0x0102_0304_0506_0708);
        assert_eq!(compressor.place(&filled, ALL), Placement::Filled(0x0102_0304_0506_0708));
    }
}
