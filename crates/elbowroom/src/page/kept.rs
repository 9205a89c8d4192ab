//! What swap still has of a folio that came in: plain data.
//!
//! A page that was not stored to since it came in need not be compressed or written again. Stores are not
//! seen, so the checksum with which the page came in is kept: if it is the same when the page goes out,
//! swap has its bytes. Linux: a clean folio of the swap cache, whose slot is kept.

use elbowroom_sync::thread;

/// Where the swap file has the bytes of a page: all of a page of the file, or one of the compressed pages
/// that share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spot(u64);

impl Spot {
    /// Compressed pages that share a page of the file, at most.
    pub const PARTS: usize = 7;

    /// All of page `position` of the file.
    pub fn whole(position: u64) -> Self {
        Self(position << 3 | Self::PARTS as u64)
    }

    /// Compressed page `nth` in page `position` of the file.
    ///
    /// # Panics
    /// If `nth` is not below [`Spot::PARTS`].
    pub fn part(position: u64, nth: usize) -> Self {
        assert!(nth < Self::PARTS);
        Self(position << 3 | nth as u64)
    }

    /// The page of the file.
    pub fn position(self) -> u64 {
        self.0 >> 3
    }

    /// Which of the compressed pages it is; `None`: the page of the file is one uncompressed page.
    pub fn nth(self) -> Option<usize> {
        Some((self.0 & 7) as usize).filter(|nth| *nth < Self::PARTS)
    }

    /// The spot's bit among those of its page of the file: one for each compressed page, and one for all of
    /// the page.
    pub fn bit(self) -> u8 {
        1 << (self.0 & 7)
    }

    /// The same spot in the page of the file that lies so many `pages` earlier.
    pub fn less(self, pages: u64) -> Self {
        Self(self.0 - (pages << 3))
    }

    /// The spot as one number, for [`Spot::from_number`].
    pub fn number(self) -> u64 {
        self.0
    }

    /// Undoes [`Spot::number`].
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// What swap still has of a page that a folio has, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapCopy {
    /// The slot, which is at no page of a space. Swap may drop its bytes.
    pub slot: u64,
    /// The checksum of the bytes, of 64 bits ([`checksum`](super::checksum)).
    pub sum: u64,
}

/// What swap has of some pages of a folio. Belongs to the thread that holds the folio's lock. Must be empty
/// when it is dropped, since its slots have to be given back.
#[derive(Default)]
pub struct Kept(Vec<(u16, SwapCopy)>);

impl Kept {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds what swap has of page `page` of the folio.
    pub fn add(&mut self, page: usize, copy: SwapCopy) {
        // Most folios have one page.
        self.0.reserve_exact(1);
        self.0.push((page as u16, copy));
    }

    /// Takes what swap has of a page out.
    pub fn take(&mut self, page: usize) -> Option<SwapCopy> {
        let at = self.0.iter().position(|(of, _)| usize::from(*of) == page)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Takes all out.
    pub fn take_all(&mut self) -> impl Iterator<Item = SwapCopy> + use<> {
        std::mem::take(&mut self.0).into_iter().map(|(_, copy)| copy)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        debug_assert!(self.0.is_empty() || thread::panicking(), "what swap has is lost");
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_spot_is_all_of_a_page_or_a_part_of_it() {
        for position in [0, 1, 1 << 40] {
            let whole = Spot::whole(position);
            let parts = (0..Spot::PARTS).map(|nth| (Spot::part(position, nth), Some(nth)));
            let mut bits = 0;
            for (spot, nth) in parts.chain([(whole, None)]) {
                assert_eq!((spot.position(), spot.nth()), (position, nth));
                assert_eq!((bits & spot.bit(), Spot::from_number(spot.number())), (0, spot));
                bits |= spot.bit();
            }
        }
    }

    #[test]
    fn each_page_has_its_own_home_once() {
        let mut kept = Kept::default();
        let copy = |nth: u64| SwapCopy { slot: 100 + nth, sum: nth };
        [3, 0, 15].into_iter().for_each(|page| kept.add(page, copy(page as u64)));
        assert_eq!((kept.take(0), kept.take(0), kept.take(1)), (Some(copy(0)), None, None));
        assert_eq!(kept.take_all().count(), 2);
        assert_eq!(kept.take(3), None);
    }
}
