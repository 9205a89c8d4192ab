//! What swap still has of a folio that came in: plain data.
//!
//! Pages that nobody has stored to need not be compressed or written again. Nobody is told of stores, so each
//! page has the checksum that it came in with: if it has the same when it goes out, swap has its bytes.
//! Linux: a clean folio of the swap cache, whose slot is kept.

use elbowroom_sync::thread;

/// Where swap has the bytes of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In this page of the file.
    File(u64),
    /// In this slot, which no space has, and of which the pool may give up the bytes.
    Slot(u64),
}

/// What swap has of a page that is a folio's, and the checksum of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    /// Where it is.
    pub place: Place,
    /// Of 64 bits ([`checksum`](super::checksum)).
    pub sum: u64,
}

/// The homes of some pages of a folio. Belongs to who has its lock; is empty when it is dropped, since pages
/// of the file and slots must be given back.
#[derive(Default)]
pub struct Kept(Vec<(u16, Home)>);

impl Kept {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Page `page` of the folio has this one.
    pub fn add(&mut self, page: usize, home: Home) {
        // Most folios have one page.
        self.0.reserve_exact(1);
        self.0.push((page as u16, home));
    }

    /// Takes that of a page out.
    pub fn take(&mut self, page: usize) -> Option<Home> {
        let at = self.0.iter().position(|(of, _)| usize::from(*of) == page)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Takes all out.
    pub fn take_all(&mut self) -> impl Iterator<Item = Home> + use<> {
        std::mem::take(&mut self.0).into_iter().map(|(_, home)| home)
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
    fn each_page_has_its_own_home_once() {
        let mut kept = Kept::default();
        let home = |nth: u64| Home { place: Place::File(100 + nth), sum: nth };
        [3, 0, 15].into_iter().for_each(|page| kept.add(page, home(page as u64)));
        assert_eq!((kept.take(0), kept.take(0), kept.take(1)), (Some(home(0)), None, None));
        assert_eq!(kept.take_all().count(), 2);
        assert_eq!(kept.take(3), None);
    }
}
