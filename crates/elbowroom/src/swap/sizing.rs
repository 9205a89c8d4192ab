//! How many frames the pool of compressed pages should have, where there is a file for the rest: plain data.
//!
//! A frame of the pool keeps some pages from being read from the file; the same frame in the lists keeps a
//! page from going out at all. Which is worth more is seen by how late pages come back. Pages that come
//! back soon after they went out would not have gone out if there were a few frames more for the lists.
//! Pages that have been out for a little longer than the oldest of the pool would have been in the pool if
//! it were a little larger. So the costs of the two kinds are added up, and the pool grows or shrinks by a
//! step. Distances are counted in pages that went out meanwhile, as refault distances are (Linux:
//! mm/workingset.c); comparing what is lost at the two ends is how ARC balances its lists (Megiddo, Modha,
//! FAST 2003).
//!
//! A pool has a cost of its own: what only passes through it on its way to the file is compressed, finds its
//! room there, is copied, and is expanded when it comes back. A pool that does not earn that is given up, and
//! is tried again where one of half its size would.

/// What a fault on a compressed page costs, in microseconds: the fault itself, and for each page that comes,
/// expanding it and compressing another one.
const FAULT_COST_US: u64 = 10;
const PAGE_COST_US: u64 = 5;

/// How much more it costs to read from the file.
const FILE_COST_US: u64 = 50;

/// What it costs that a page goes to the file through the pool.
const PASS_COST_US: u64 = 15;

/// Faults between two looks.
const LOOK_EVERY: u32 = 256;

/// The pool can grow and shrink by one part in this many of the most that it may have.
const STEPS: u64 = 16;

/// One part in this many of the arena is the window, in pages that went out: a page with a smaller distance
/// has come back at once, and one that is less than a window behind the pool's oldest page would have been
/// in a pool that is a little larger.
const WINDOWS: u64 = 8;

/// How many compressed pages a frame is assumed to have while there is no pool by which to measure it.
const ASSUMED_PAGES: u64 = 3;

/// More compressed pages to a frame than this are counted as this many.
const MOST_PAGES: u64 = 64;

/// What the pool has now.
#[derive(Debug, Clone, Copy)]
pub struct Reach {
    /// Frames.
    pub frames: u64,
    /// How many pages have gone out since its oldest did.
    pub pages: u64,
}

/// A fault on a page that was out.
#[derive(Debug, Clone, Copy)]
pub struct Back {
    /// How many pages went out since it did.
    pub distance: u64,
    /// How many pages come.
    pub pages: u64,
    /// Its bytes were in the pool.
    pub from_pool: bool,
}

/// How large the pool should be. Numbers are pages, or frames of a page.
pub struct Sizing {
    most: u64,
    target: u64,
    window: u64,
    reach: Reach,
    near_us: u64,
    far_us: u64,
    /// What the pool has saved or, while there is none, what one of half of `most` would have saved.
    saved_us: u64,
    /// At the last look: how many pages had gone through the pool to the file or, without a pool, how many
    /// had gone out.
    passed: u64,
    /// What it has cost that pages pass through the pool, or would have cost with one.
    passed_us: u64,
    faults: u32,
}

impl Sizing {
    /// For a pool that may have `most` of the arena's `frames`. Its target begins with half of `most`.
    pub fn new(most: u64, frames: u64) -> Self {
        Self {
            most,
            target: most / 2,
            window: (frames / WINDOWS).max(1),
            reach: Reach { frames: 0, pages: 0 },
            near_us: 0,
            far_us: 0,
            saved_us: 0,
            passed: 0,
            passed_us: 0,
            faults: 0,
        }
    }

    /// How many frames the pool should have.
    pub fn target(&self) -> u64 {
        self.target
    }

    /// Notes a fault. Tells whether it is time for [`Sizing::look`].
    pub fn note(&mut self, back: Back) -> bool {
        let Back { distance, pages, from_pool } = back;
        if distance < self.window {
            self.near_us += FAULT_COST_US + PAGE_COST_US * pages;
        }
        if (self.reach.pages..self.reach.pages + self.window).contains(&distance) {
            self.far_us += FILE_COST_US;
        }
        // In the frames of a pool of half of `most` the lists have one page to a frame, which is
        // subtracted.
        let would = self.target == 0 && distance < (ASSUMED_PAGES - 1) * self.most / 2;
        if from_pool || would {
            self.saved_us += FILE_COST_US;
        }
        self.faults += 1;
        self.faults >= LOOK_EVERY
    }

    /// Makes the pool's target larger or smaller, or leaves it. `left`: so many pages have gone from the
    /// pool to the file so far; `outs`: so many have gone out.
    pub fn look(&mut self, reach: Reach, left: u64, outs: u64) {
        let step = (self.most / STEPS).max(1);
        let passed = if self.target == 0 { outs } else { left };
        self.passed_us += passed.saturating_sub(self.passed) * PASS_COST_US;
        let earns = self.saved_us > self.passed_us;
        let before = self.target;
        if self.target == 0 {
            // What it would cost the lists to give such a pool its frames.
            let lists = self.near_us * (self.most / 2) / self.window;
            // It must save clearly more, so that the pool does not come and go.
            if self.saved_us * 2 > (self.passed_us + lists) * 3 {
                self.target = self.most / 2;
            }
        } else if !earns {
            self.target = if self.target > 2 * step { self.target / 2 } else { 0 };
        } else {
            // A frame that leaves the pool takes so many pages out of memory, and brings one back.
            let pages_to_frame = if reach.frames < step {
                ASSUMED_PAGES
            } else {
                (reach.pages / reach.frames).clamp(1, MOST_PAGES)
            };
            let (lists, pool) = (self.near_us, self.far_us * (pages_to_frame - 1));
            if lists > pool {
                self.target = self.target.saturating_sub(step);
            } else if lists * 4 < pool * 3 {
                self.target = (self.target + step).min(self.most);
            }
        }
        self.reach = reach;
        self.faults = 0;
        self.passed = if self.target == 0 { outs } else { left };
        // What was seen before counts, but less and less. What was counted without a pool says nothing
        // about one that there is, and the other way round.
        let seen = if (before == 0) == (self.target == 0) { 2 } else { u64::MAX };
        for us in [&mut self.near_us, &mut self.far_us] {
            *us /= 2;
        }
        for us in [&mut self.saved_us, &mut self.passed_us] {
            *us /= seen;
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const FRAMES: u64 = 8000;
    const MOST: u64 = 3200;

    /// A pool whose frames have three pages each, and what has happened so far.
    struct Model {
        sizing: Sizing,
        left: u64,
        outs: u64,
    }

    impl Model {
        fn new() -> Self {
            Self { sizing: Sizing::new(MOST, FRAMES), left: 0, outs: 0 }
        }

        /// So many faults, each of so many pages at a distance that `distance` tells from the number of the
        /// fault and what the pool reaches.
        fn faults(&mut self, faults: u64, pages: u64, distance: impl Fn(u64, u64) -> u64) -> u64 {
            for fault in 0..faults {
                let reach = 3 * self.sizing.target();
                let distance = distance(fault, reach);
                let from_pool = distance < reach;
                self.outs += pages;
                // What comes in from the file has left the pool, if there was one.
                self.left += if from_pool || reach == 0 { 0 } else { pages };
                if self.sizing.note(Back { distance, pages, from_pool }) {
                    let frames = self.sizing.target();
                    self.sizing.look(Reach { frames, pages: reach }, self.left, self.outs);
                }
            }
            self.sizing.target()
        }
    }

    #[test]
    fn there_is_no_pool_for_pages_that_come_back_late() {
        let mut model = Model::new();
        assert_eq!(model.sizing.target(), MOST / 2);
        assert_eq!(model.faults(50_000, 1, |fault, _| 20_000 + fault % 20_000), 0);
        assert_eq!(model.faults(50_000, 16, |fault, _| fault * 7919 % 40_000), 0);
    }

    #[test]
    fn pages_that_come_back_a_little_too_late_want_a_pool() {
        let mut model = Model::new();
        assert!(model.faults(50_000, 1, |fault, _| 1500 + fault % 1500) > 0);
        assert_eq!(model.faults(50_000, 1, |fault, reach| reach.saturating_sub(500) + fault % 1000), MOST);
    }

    #[test]
    fn pages_that_come_back_at_once_want_the_frames_for_themselves() {
        let mut model = Model::new();
        assert!(model.faults(50_000, 1, |fault, _| 1500 + fault % 1500) > 0);
        assert!(model.faults(100_000, 1, |fault, _| fault % 500) < MOST / 2);
    }

    #[test]
    fn a_pool_that_pages_only_pass_through_is_given_up_and_comes_back_when_it_is_of_use() {
        let mut model = Model::new();
        assert!(model.faults(50_000, 1, |fault, _| 1500 + fault % 1500) > 0);
        assert_eq!(model.faults(20_000, 16, |fault, _| 30_000 + fault % 300), 0);
        assert!(model.faults(50_000, 1, |fault, _| 1500 + fault % 1500) > 0);
    }

    #[test]
    fn what_compresses_very_well_is_kept_compressed() {
        // Thirty pages to a frame: a small pool reaches far.
        let mut sizing = Sizing::new(MOST, FRAMES);
        sizing.target = MOST / 2;
        for fault in 0..50_000_u64 {
            let reach = Reach { frames: sizing.target(), pages: 30 * sizing.target() };
            // Most come back from the pool, some at once, and a few from just behind it.
            let distance = match fault % 20 {
                0 => sizing.reach.pages + fault % 500,
                1..4 => fault % 500,
                _ => reach.pages / 2,
            };
            if sizing.note(Back { distance, pages: 1, from_pool: distance < reach.pages }) {
                sizing.look(reach, fault / 20, fault);
            }
        }
        assert_eq!(sizing.target(), MOST);
    }
}
