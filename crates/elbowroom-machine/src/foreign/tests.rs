//! The marks against a plain list of sides: exhaustive in the small, random in the large, and with readers
//! beside writers.

use super::*;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

fn marks(pages: usize) -> Foreign {
    let memory = vec![0_u64; Foreign::bytes(pages) / 8].leak();
    // SAFETY: zeros, long enough, aligned for words, and leaked.
    unsafe { Foreign::new(memory.as_ptr().cast(), pages) }
}

/// A xorshift generator.
struct Random(fastrand::Rng);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0.usize(..n)
    }

    /// A range in `0..pages`, often short, often with ends where nodes end.
    fn range(&mut self, pages: usize) -> Range<usize> {
        let grain = [1, 1, NODE_ENTRIES, NODE_ENTRIES * NODE_ENTRIES][self.below(4)];
        let start = self.below(pages) / grain * grain;
        let most = [1, 3, 40, 1500, pages][self.below(5)].min(pages);
        start..(start + (1 + self.below(most)).next_multiple_of(grain)).min(pages)
    }
}

fn check(marks: &Foreign, expected: &[Side]) {
    for side in [Side::Managed, Side::Kernel] {
        let mut at = 0;
        while let Some(run) = marks.first_run(at..expected.len(), side) {
            assert!(expected[at..run.start].iter().all(|s| *s != side), "{run:?} is not the first from {at}");
            assert!(expected[run.clone()].iter().all(|s| *s == side), "{run:?} is not of one kind");
            assert!(expected.get(run.end).is_none_or(|s| *s != side), "{run:?} goes on");
            at = run.end;
        }
        assert!(expected[at..].iter().all(|s| *s != side), "nothing was found from {at}");
    }
}

#[test]
fn any_three_ranges_of_a_small_window() {
    // 34 pages: two nodes and one above. Ends where they matter.
    const PAGES: usize = 34;
    let ends = [0, 1, 2, 31, 32, 33, 34];
    let ranges: Vec<_> =
        ends.iter().flat_map(|&a| ends.iter().filter(move |&&b| b > a).map(move |&b| a..b)).collect();
    for a in &ranges {
        for b in &ranges {
            for c in &ranges {
                for sides in 0..8 {
                    let marks = marks(PAGES);
                    let mut expected = [Side::Managed; PAGES];
                    for (bit, range) in [a, b, c].into_iter().enumerate() {
                        let side = if sides >> bit & 1 == 0 { Side::Kernel } else { Side::Managed };
                        marks.set(range.clone(), side);
                        expected[range.clone()].fill(side);
                    }
                    check(&marks, &expected);
                }
            }
        }
    }
}

#[test]
fn random_ranges_of_windows_of_many_sizes() {
    for (seed, pages) in [1, 31, 32, 33, 1023, 1024, 1025, 5000, 40_000].into_iter().enumerate() {
        let mut random = Random(fastrand::Rng::with_seed(seed as u64));
        let marks = marks(pages);
        let mut expected = vec![Side::Managed; pages];
        for step in 0..400 {
            let range = random.range(pages);
            let side = if random.below(2) == 0 { Side::Kernel } else { Side::Managed };
            marks.set(range.clone(), side);
            expected[range].fill(side);
            if step % 8 == 0 || pages < 2000 {
                check(&marks, &expected);
            }
            let part = random.range(pages);
            let found = marks.first_run(part.clone(), Side::Managed);
            let first = part.clone().find(|&p| expected[p] == Side::Managed);
            assert_eq!(found.map(|f| f.start), first, "{part:?}");
        }
    }
}

#[test]
fn a_terabyte_takes_little_memory_and_few_steps() {
    let pages = 1 << 28;
    let bytes = Foreign::bytes(pages);
    assert!(bytes < 70 << 20, "{bytes}");
    let marks = marks(pages);
    marks.set(1..pages - 1, Side::Kernel);
    assert_eq!(marks.first_run(0..pages, Side::Managed), Some(0..1));
    assert_eq!(marks.first_run(1..pages, Side::Managed), Some(pages - 1..pages));
    marks.set(pages / 2..pages / 2 + 1, Side::Managed);
    assert_eq!(marks.first_run(0..pages, Side::Kernel), Some(1..pages / 2));
    assert_eq!(marks.first_run(1..pages, Side::Managed), Some(pages / 2..pages / 2 + 1));
    marks.set(0..pages, Side::Managed);
    assert_eq!(marks.first_run(0..pages, Side::Kernel), None);
}

/// Readers beside two writers: what they know to be foreign, or ours, from before is seen so, whatever
/// happens to the rest.
#[test]
fn readers_beside_writers() {
    const PAGES: usize = 70_000;
    const CHANGES: usize = 60_000;
    // Every so-manieth page keeps its side: readers ask for these.
    const FIXED: usize = 997;
    let marks = marks(PAGES);
    let side_of = |page: usize| if (page / FIXED).is_multiple_of(2) { Side::Kernel } else { Side::Managed };
    for page in (0..PAGES).step_by(FIXED) {
        marks.set(page..page + 1, side_of(page));
    }
    let writer = Mutex::new(());
    let running = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for seed in 1..3 {
            let (marks, writer) = (&marks, &writer);
            let running = &running;
            scope.spawn(move || {
                let mut random = Random(fastrand::Rng::with_seed(seed));
                for _ in 0..CHANGES {
                    let range = random.range(PAGES);
                    let side = if random.below(2) == 0 { Side::Kernel } else { Side::Managed };
                    let _writing = writer.lock().unwrap();
                    // A range may cover pages that are fixed only where they are on its side.
                    let clear = range.clone().find(|p| p % FIXED == 0 && side_of(*p) != side);
                    marks.set(range.start..clear.unwrap_or(range.end), side);
                }
                running.store(false, std::sync::atomic::Ordering::Release);
            });
        }
        for seed in 1..3 {
            let (marks, running) = (&marks, &running);
            scope.spawn(move || {
                let mut random = Random(fastrand::Rng::with_seed(!seed));
                while running.load(std::sync::atomic::Ordering::Acquire) {
                    let page = random.below(PAGES) / FIXED * FIXED;
                    let side = side_of(page);
                    assert_eq!(marks.first_run(page..page + 1, side), Some(page..page + 1), "page {page}");
                    let around = page.saturating_sub(50)..(page + 50).min(PAGES);
                    let other = if side == Side::Kernel { Side::Managed } else { Side::Kernel };
                    let run = marks.first_run(around, other);
                    assert!(run.as_ref().is_none_or(|run| !run.contains(&page)), "page {page} in {run:?}");
                }
            });
        }
    });
}
