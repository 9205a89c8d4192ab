//! Sizes in which compressed pages are kept: plain data.
//!
//! As many objects of a size as fit share a block of one to four pages, which need not be neighbours: an
//! object may begin in one page and end in the next. So a block can be made of whatever frames are free.
//! Linux: `calculate_zspage_chain_size` and `can_merge` in mm/zsmalloc.c.

use elbowroom_machine::PAGE_SIZE;

/// The sizes differ by this, in bytes.
const STEP: usize = 32;

/// The largest object, in bytes: what does not save a quarter of its page is not worth the time.
pub const LARGEST: usize = PAGE_SIZE / 4 * 3;

/// Pages of a block, at most.
pub const BLOCK_PAGES: usize = 4;

/// Objects of a block, at most.
pub const BLOCK_OBJECTS: usize = BLOCK_PAGES * PAGE_SIZE / STEP;

/// How objects up to a size are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeClass {
    /// The room of an object, in bytes.
    pub bytes: usize,
    /// Pages of a block.
    pub pages: usize,
    /// Objects of a block.
    pub objects: usize,
}

/// All classes, the smallest first, and for each multiple of [`STEP`] the class that has it.
pub struct Classes {
    pub all: Vec<SizeClass>,
    by_step: Vec<u8>,
}

impl Classes {
    pub fn new() -> Self {
        let mut all: Vec<SizeClass> = Vec::new();
        for bytes in (1..=LARGEST / STEP).rev().map(|steps| steps * STEP) {
            let class = best_block(bytes);
            // A larger class that has no fewer objects of as many pages serves this one as well.
            if all.last().is_none_or(|larger| (larger.pages, larger.objects) != (class.pages, class.objects))
            {
                all.push(class);
            }
        }
        all.reverse();
        let serving = |steps: usize| all.partition_point(|class| class.bytes < steps * STEP) as u8;
        let by_step = (0..=LARGEST / STEP).map(serving).collect();
        Self { all, by_step }
    }

    /// The class for an object of 1 to [`LARGEST`] bytes.
    pub fn of(&self, bytes: usize) -> u8 {
        self.by_step[bytes.div_ceil(STEP)]
    }
}

/// The block that wastes the smallest part of itself; the smaller one of two that waste as much.
fn best_block(bytes: usize) -> SizeClass {
    let waste = |pages: usize| (pages * PAGE_SIZE % bytes) * 12 / pages;
    let pages = (1..=BLOCK_PAGES).min_by_key(|&pages| waste(pages)).unwrap_or(1);
    SizeClass { bytes, pages, objects: pages * PAGE_SIZE / bytes }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_the_smallest_class_that_has_room_and_little_is_wasted() {
        let classes = Classes::new();
        assert!(classes.all.len() < 100 && classes.all.len() <= usize::from(u8::MAX));
        assert!(classes.all.is_sorted_by_key(|class| class.bytes));
        let mut wasted = 0.0;
        for bytes in 1..=LARGEST {
            let number = usize::from(classes.of(bytes));
            let class = classes.all[number];
            assert!(class.bytes >= bytes && (number == 0 || classes.all[number - 1].bytes < bytes));
            assert!(class.objects * class.bytes <= class.pages * PAGE_SIZE);
            assert!(class.pages <= BLOCK_PAGES && class.objects <= BLOCK_OBJECTS);
            let share = 1.0 - (class.objects * bytes) as f64 / (class.pages * PAGE_SIZE) as f64;
            assert!(bytes < 512 || share < 0.14, "{bytes} bytes in {class:?}: {share}");
            wasted += share;
        }
        assert!(wasted / (LARGEST as f64) < 0.06, "{}", wasted / LARGEST as f64);
    }
}
