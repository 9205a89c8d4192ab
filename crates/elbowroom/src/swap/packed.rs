//! How compressed pages share a page of the swap file: plain data.
//!
//! The compressed pages lie one behind the other. Their lengths, of two bytes each, lie at the end of the
//! page, that of the first last. No compressed page goes on in the next page of the file, so a page of the
//! file that is taken has the bytes of at least one page that is out. So a file of as many pages as may be
//! out always has room for them, even if most of the compressed pages beside them have been freed, and the
//! file is never compacted.
//!
//! What is read is not trusted: a checksum tells whether a page is the one that went out.

use super::tier::{Corrupt, expand};
use crate::page::Spot;
use elbowroom_machine::PAGE_SIZE;

/// Bytes of a length.
const LEN: usize = 2;

/// A page of the file in the making.
pub struct Packer {
    page: [u8; PAGE_SIZE],
    parts: usize,
    used: usize,
}

impl Packer {
    pub fn new() -> Self {
        Self { page: [0; PAGE_SIZE], parts: 0, used: 0 }
    }

    /// Adds a compressed page; returns its number in this page of the file. `None`: there is no room for
    /// it.
    pub fn add(&mut self, object: &[u8]) -> Option<usize> {
        let lengths = (self.parts + 1) * LEN;
        if self.parts == Spot::PARTS || self.used + object.len() + lengths > PAGE_SIZE {
            return None;
        }
        self.page[self.used..][..object.len()].copy_from_slice(object);
        self.page[PAGE_SIZE - lengths..][..LEN].copy_from_slice(&(object.len() as u16).to_le_bytes());
        self.used += object.len();
        self.parts += 1;
        Some(self.parts - 1)
    }

    /// Whether nothing has been added.
    pub fn is_empty(&self) -> bool {
        self.parts == 0
    }

    /// Copies the page out, and begins the next one.
    ///
    /// # Panics
    /// If `to` is not of a page's size.
    pub fn finish(&mut self, to: &mut [u8]) {
        // No bytes of earlier pages get into the file.
        self.page[self.used..PAGE_SIZE - self.parts * LEN].fill(0);
        to.copy_from_slice(&self.page);
        (self.parts, self.used) = (0, 0);
    }
}

/// Compressed page `nth` of a page of the file.
fn object(page: &[u8; PAGE_SIZE], nth: usize) -> Result<&[u8], Corrupt> {
    let length = |nth: usize| {
        let at = PAGE_SIZE - (nth + 1) * LEN;
        usize::from(u16::from_le_bytes([page[at], page[at + 1]]))
    };
    let begin: usize = (0..nth).map(length).sum();
    page.get(begin..begin + length(nth)).ok_or(Corrupt)
}

/// Expands, in place, the pages that are at these spots. At the beginning of `bytes` is what was read: the
/// pages of the file from the first spot's to the last one's; in the end `bytes` has one page for each
/// spot. `unseal` is called first with each page of the file and its number. The caller checks whether the
/// pages are those that went out.
///
/// # Errors
/// What was read cannot be expanded. `bytes` has any contents then.
///
/// # Panics
/// If the spots do not follow each other ([`follow`]).
pub fn unpack(
    bytes: &mut [u8],
    spots: &[Spot],
    mut unseal: impl FnMut(&mut [u8], u64),
) -> Result<(), Corrupt> {
    let Some(first) = spots.first().map(|spot| spot.position()) else { return Ok(()) };
    let pages = bytes.as_chunks_mut::<PAGE_SIZE>().0;
    let mut packed = [0; PAGE_SIZE];
    let mut end = spots.len();
    // The last page of the file first: each of them has at least one of the pages, so what is written does
    // not reach the pages of the file that are still to be expanded.
    for group in spots.chunk_by(|one, next| one.position() == next.position()).rev() {
        let at = (group[0].position() - first) as usize;
        let begin = end - group.len();
        assert!(at <= begin, "the spots follow each other");
        unseal(&mut pages[at], group[0].position());
        packed.copy_from_slice(&pages[at]);
        for (spot, page) in group.iter().zip(&mut pages[begin..end]) {
            match spot.nth() {
                Some(nth) => expand(object(&packed, nth)?, page)?,
                None => page.copy_from_slice(&packed),
            }
        }
        end = begin;
    }
    Ok(())
}

/// Whether neighbouring pages that have these spots can be read at once: the page of the file with `next`
/// is that with `one`, or the next one.
pub fn follow(one: Spot, next: Spot) -> bool {
    let (one, next) = (one.position(), next.position());
    next == one || next == one + 1
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::super::classes::LARGEST;
    use super::super::tier::{Compressor, Placement, Room};
    use super::*;

    /// A page that lz4 makes smaller the fewer of its words are any words.
    fn page(seed: u64, any: usize) -> Vec<u8> {
        let mut word = seed | 1;
        let mut next = |at: usize| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if at < any { (word ^ word >> 29).to_ne_bytes() } else { (at as u64 / 7 + seed).to_ne_bytes() }
        };
        (0..PAGE_SIZE / 8).flat_map(&mut next).collect()
    }

    /// Puts pages into a file of as many pages, as the way from the pool does; tells their spots.
    fn pack(pages: &[Vec<u8>]) -> (Vec<u8>, Vec<Spot>) {
        let (mut file, mut spots) = (Vec::new(), Vec::new());
        let (mut packer, mut compressor) = (Packer::new(), Compressor::new());
        let finish = |packer: &mut Packer, file: &mut Vec<u8>| {
            let mut page = vec![0xEE; PAGE_SIZE];
            packer.finish(&mut page);
            file.extend(page);
        };
        for page in pages {
            match compressor.place(page, Room { pool: true, passes: false, file: true }) {
                Placement::Pool(object) => {
                    let nth = packer.add(object).unwrap_or_else(|| {
                        finish(&mut packer, &mut file);
                        packer.add(object).expect("it has room in an empty page")
                    });
                    spots.push(Spot::part((file.len() / PAGE_SIZE) as u64, nth));
                }
                _ => {
                    if !packer.is_empty() {
                        finish(&mut packer, &mut file);
                    }
                    spots.push(Spot::whole((file.len() / PAGE_SIZE) as u64));
                    file.extend(page);
                }
            }
        }
        if !packer.is_empty() {
            finish(&mut packer, &mut file);
        }
        (file, spots)
    }

    #[test]
    fn pages_share_pages_of_the_file_and_come_back() {
        for seed in 0..200_u64 {
            let any = |nth: u64| ((seed * 37 + nth * nth * 11) % 640) as usize;
            let pages: Vec<_> = (0..16).map(|nth| page(seed * 16 + nth, any(nth))).collect();
            let (file, spots) = pack(&pages);
            assert!(spots.windows(2).all(|two| follow(two[0], two[1])), "{spots:?}");
            // All together, and each run of them.
            for (begin, len) in [(0, 16), (0, 1), (3, 1), (4, 4), (8, 8), (15, 1), (5, 7)] {
                let spots = &spots[begin..begin + len];
                let range = spots[0].position() as usize..spots[len - 1].position() as usize + 1;
                let mut bytes = vec![0; len * PAGE_SIZE];
                bytes[..range.len() * PAGE_SIZE]
                    .copy_from_slice(&file[range.start * PAGE_SIZE..range.end * PAGE_SIZE]);
                let mut unsealed = Vec::new();
                unpack(&mut bytes, spots, |_, position| unsealed.push(position as usize)).unwrap();
                assert!(unsealed.iter().rev().copied().eq(range), "{unsealed:?}");
                assert_eq!(bytes, pages[begin..begin + len].concat());
            }
        }
    }

    #[test]
    fn as_many_share_a_page_as_have_room() {
        let mut packer = Packer::new();
        let object = |len: usize| vec![len as u8; len];
        assert_eq!([2045, 2047, 1].map(|len| packer.add(&object(len))), [Some(0), Some(1), None]);
        let mut page = [0xEE; PAGE_SIZE];
        packer.finish(&mut page);
        assert!(packer.is_empty());
        assert_eq!(super::object(&page, 0), Ok(&object(2045)[..]));
        assert_eq!(super::object(&page, 1), Ok(&object(2047)[..]));
        // Many small ones; and no byte of those before is left.
        assert!((0..Spot::PARTS).all(|nth| packer.add(&[nth as u8; 3]) == Some(nth)));
        assert_eq!(packer.add(&[1]), None);
        packer.finish(&mut page);
        assert_eq!(super::object(&page, Spot::PARTS - 1), Ok(&[Spot::PARTS as u8 - 1; 3][..]));
        assert!(page[3 * Spot::PARTS..PAGE_SIZE - LEN * Spot::PARTS].iter().all(|byte| *byte == 0));
        assert_eq!(packer.add(&object(LARGEST)), Some(0));
    }

    #[test]
    fn any_bytes_are_no_page_or_some_page() {
        let mut seed = 1;
        for _ in 0..2000 {
            seed += 1;
            let mut bytes = page(seed, 512);
            let spots = [Spot::part(9, (seed % Spot::PARTS as u64) as usize)];
            // Whatever it makes of them: a checksum is compared.
            let _ = unpack(&mut bytes, &spots, |_, _| ());
        }
    }
}
