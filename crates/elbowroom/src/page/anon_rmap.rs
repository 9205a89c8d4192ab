//! Where a folio of anonymous memory is in the spaces that have it: what reclaim needs to take it out of
//! them. Linux: the reverse map of anonymous pages, `rmap_walk_anon`, which looks through whole mappings for
//! them.

/// The first pages of a folio, by the numbers of their addresses: of one space, or of several since a fork.
/// No two spaces have the same addresses, so each of them tells its space, too. Guarded by the folio's lock.
#[derive(Debug)]
pub struct AnonRmap(Pages);

#[derive(Debug)]
enum Pages {
    One(u64),
    /// Boxed, so that a folio of a file, which has none, is not larger for it.
    #[expect(clippy::box_collection, reason = "a folio has room for two words")]
    Many(Box<Vec<u64>>),
}

impl AnonRmap {
    /// One.
    pub fn new(page: u64) -> Self {
        Self(Pages::One(page))
    }

    /// All of them.
    pub fn pages(&self) -> &[u64] {
        match &self.0 {
            Pages::One(page) => std::slice::from_ref(page),
            Pages::Many(pages) => pages,
        }
    }

    /// One more.
    pub fn add(&mut self, page: u64) {
        match &mut self.0 {
            Pages::One(first) => self.0 = Pages::Many(Box::new(vec![*first, page])),
            Pages::Many(pages) => pages.push(page),
        }
    }

    /// One fewer; `true`: it was the last.
    pub fn remove(&mut self, page: u64) -> bool {
        match &mut self.0 {
            Pages::One(only) => {
                debug_assert_eq!(*only, page, "a folio knows where it is");
                true
            }
            Pages::Many(pages) => {
                if let Some(at) = pages.iter().position(|&there| there == page) {
                    pages.swap_remove(at);
                }
                if let [last] = pages[..] {
                    self.0 = Pages::One(last);
                }
                false
            }
        }
    }

    /// It is at `to` now, no longer at `from`.
    pub fn change(&mut self, from: u64, to: u64) {
        let pages = match &mut self.0 {
            Pages::One(page) => std::slice::from_mut(page),
            Pages::Many(pages) => pages,
        };
        if let Some(page) = pages.iter_mut().find(|page| **page == from) {
            *page = to;
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn spaces_come_and_go() {
        assert_eq!(size_of::<AnonRmap>(), 16);
        let mut rmap = AnonRmap::new(7);
        rmap.add(100);
        rmap.add(200);
        rmap.change(7, 8);
        assert_eq!(rmap.pages(), [8, 100, 200]);
        assert!(!rmap.remove(8));
        assert!(!rmap.remove(200));
        assert_eq!(rmap.pages(), [100]);
        rmap.change(100, 3);
        assert!(rmap.remove(3));
    }
}
