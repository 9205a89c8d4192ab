//! At which pages the spaces have a folio of anonymous memory: reclaim needs that to take the folio out of
//! them. Linux: the reverse map of anonymous pages, `rmap_walk_anon`, which searches whole mappings for
//! them.

/// The number of the folio's first page in each space that has the folio: in one space or, after a fork, in
/// several. No two spaces have the same addresses, so a page number tells the space, too. Guarded by the
/// folio's lock.
#[derive(Debug)]
pub struct AnonRmap(Pages);

#[derive(Debug)]
enum Pages {
    One(u64),
    /// Boxed, so that it does not make the folios of files larger, which have no such list.
    #[expect(clippy::box_collection, reason = "a folio has room for two words")]
    Many(Box<Vec<u64>>),
}

impl AnonRmap {
    /// The map of a folio that one space has, at `page`.
    pub fn new(page: u64) -> Self {
        Self(Pages::One(page))
    }

    /// The folio's first page in each of the spaces.
    pub fn pages(&self) -> &[u64] {
        match &self.0 {
            Pages::One(page) => std::slice::from_ref(page),
            Pages::Many(pages) => pages,
        }
    }

    /// Adds the folio's first page in another space.
    pub fn add(&mut self, page: u64) {
        match &mut self.0 {
            Pages::One(first) => self.0 = Pages::Many(Box::new(vec![*first, page])),
            Pages::Many(pages) => pages.push(page),
        }
    }

    /// The space that had the folio at `page` gives it up; `true`: no other space has it.
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

    /// A space has moved the folio from page `from` to page `to`.
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
