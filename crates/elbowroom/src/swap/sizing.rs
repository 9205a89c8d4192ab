//! How many frames the pool of compressed pages should have, where there is a file for the rest: plain data.
//!
//! A frame of the pool keeps some pages from being read from the file; the same frame in the lists keeps a
//! page from going out at all. Which is worth more is seen by how late pages come back. Pages that went out
//! just now would not have gone if there were a few frames more for the lists. Pages that have been out for a
//! little longer than the oldest of the pool would have been in the pool if it were a little larger. So the
//! costs of the two kinds are added up, and the pool grows or shrinks by a step. Distances are counted in
//! pages that went out meanwhile, as refault distances are (Linux: mm/workingset.c); comparing what is lost
//! at the two ends is how ARC balances its lists (Megiddo, Modha, FAST 2003).

/// What a fault on a compressed page costs, in microseconds: the fault itself, and for each page that comes,
/// expanding it and compressing another one.
const FAULT_COST_US: u64 = 10;
const PAGE_COST_US: u64 = 5;

/// How much more it costs to read from the file.
const FILE_COST_US: u64 = 50;

/// Faults between two looks.
const LOOK_EVERY: u32 = 256;

/// The pool can grow and shrink by one part in this many of the most that it may have.
const STEPS: u64 = 16;

/// Parts of the arena that are in a window: the distance in which a page has come back at once, and how far
/// behind the pool's oldest page a little longer is.
const WINDOWS: u64 = 8;

/// What is assumed of pages, in pages to a frame, while there is no pool to see it by.
const ASSUMED_PAGES: u64 = 3;

/// What the pool has now.
#[derive(Debug, Clone, Copy)]
pub struct Reach {
    /// Frames.
    pub frames: u64,
    /// How many pages have gone out since its oldest did.
    pub pages: u64,
}

/// How large the pool should be. Numbers are pages, or frames of a page.
pub struct Sizing {
    most: u64,
    target: u64,
    window: u64,
    reach: Reach,
    near_us: u64,
    far_us: u64,
    faults: u32,
}

impl Sizing {
    /// For a pool that may have `most` of `frames`. It begins with half of them.
    pub fn new(most: u64, frames: u64) -> Self {
        Self {
            most,
            target: most / 2,
            window: (frames / WINDOWS).max(1),
            reach: Reach { frames: 0, pages: 0 },
            near_us: 0,
            far_us: 0,
            faults: 0,
        }
    }

    /// How many frames the pool should have.
    pub fn target(&self) -> u64 {
        self.target
    }

    /// Notes a fault that brought so many pages, which went out `distance` pages ago. Tells whether it is
    /// time for [`Sizing::look`].
    pub fn note(&mut self, distance: u64, pages: u64) -> bool {
        if distance < self.window {
            self.near_us += FAULT_COST_US + PAGE_COST_US * pages;
        }
        if (self.reach.pages..self.reach.pages + self.window).contains(&distance) {
            self.far_us += FILE_COST_US;
        }
        self.faults += 1;
        self.faults >= LOOK_EVERY
    }

    /// Makes the pool's size, as it should be, larger or smaller by a step, or leaves it.
    pub fn look(&mut self, reach: Reach) {
        let step = (self.most / STEPS).max(1);
        // A frame that leaves the pool takes so many pages out of memory, and brings one back.
        let pages_to_frame = if reach.frames < step {
            ASSUMED_PAGES
        } else {
            (reach.pages / reach.frames).clamp(1, 2 * ASSUMED_PAGES)
        };
        let (lists, pool) = (self.near_us, self.far_us * (pages_to_frame - 1));
        if lists > pool {
            self.target = self.target.saturating_sub(step);
        } else if lists * 4 < pool * 3 {
            self.target = (self.target + step).min(self.most);
        }
        self.reach = reach;
        self.faults = 0;
        // What was seen before counts, but less and less.
        (self.near_us, self.far_us) = (self.near_us / 2, self.far_us / 2);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const FRAMES: u64 = 8000;
    const MOST: u64 = 3200;
    /// Without a pool, what comes back at once comes from the file: it goes to and fro by one step.
    const SMALLEST: u64 = MOST / STEPS;

    /// The size after many faults, each of so many pages at a distance that `distance` tells from the
    /// number of the fault and what the pool reaches. Three pages are in a frame.
    fn settled(pages: u64, distance: impl Fn(u64, u64) -> u64) -> u64 {
        let mut sizing = Sizing::new(MOST, FRAMES);
        for fault in 0..100_000 {
            let reach = 3 * sizing.target();
            if sizing.note(distance(fault, reach), pages) {
                let frames = sizing.target();
                sizing.look(Reach { frames, pages: reach });
            }
        }
        sizing.target()
    }

    #[test]
    fn pages_that_come_back_at_once_want_the_frames_for_themselves() {
        assert!(settled(1, |fault, _| fault % 500) <= SMALLEST);
        assert!(settled(16, |fault, _| fault % 500) <= SMALLEST);
    }

    #[test]
    fn pages_that_come_back_a_little_too_late_want_a_larger_pool() {
        assert_eq!(settled(1, |fault, reach| reach + fault % 500), MOST);
    }

    #[test]
    fn what_is_used_evenly_is_compressed_if_it_comes_page_by_page() {
        // Accesses at random to 40,000 pages: as many come back from any distance as from any other.
        let evenly = |fault: u64, _| fault * 7919 % 40_000;
        assert_eq!(settled(1, evenly), MOST);
        // Expanding 16 pages takes as long as reading them.
        assert!(settled(16, evenly) < MOST);
    }

    #[test]
    fn a_pool_that_is_of_no_use_stays_small_and_comes_back_when_it_is() {
        let mut sizing = Sizing::new(MOST, FRAMES);
        let faults = |sizing: &mut Sizing, distance: &dyn Fn(u64) -> u64| {
            for fault in 0..50_000 {
                if sizing.note(distance(fault), 1) {
                    sizing.look(Reach { frames: sizing.target(), pages: 3 * sizing.target() });
                }
            }
        };
        faults(&mut sizing, &|fault| fault % 300);
        assert!(sizing.target() <= SMALLEST);
        faults(&mut sizing, &|fault| 100 * (fault % 400));
        assert_eq!(sizing.target(), MOST);
    }
}
