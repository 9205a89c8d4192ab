//! Cutting a range of addresses into the parts inside windows and the parts outside.

use std::ops::Range;

/// Which side a part of a range is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// All of it inside windows: the manager's.
    Managed,
    /// None of it: the kernel's.
    Kernel,
}

/// Calls `each` for the parts of `range` in address order, joined as far as they go; stops at the first
/// error.
///
/// `intersects` and `covers` say whether any or all of a range is inside windows. The boundaries are found by
/// halving, so a range of any size takes about 40 questions per boundary and no memory. `range` must be a whole
/// number of `page`s (a power of two) from a multiple of it.
pub fn parts<E>(
    range: Range<usize>,
    page: usize,
    intersects: &dyn Fn(Range<usize>) -> bool,
    covers: &dyn Fn(Range<usize>) -> bool,
    each: &mut dyn FnMut(Side, Range<usize>) -> Result<(), E>,
) -> Result<(), E> {
    let mut joined: Option<(Side, Range<usize>)> = None;
    // Halving goes depth first with the lower half on top; a half is at most as deep as the address has bits.
    let mut stack = [const { 0..0 }; usize::BITS as usize + 1];
    let mut depth = 0;
    if !range.is_empty() {
        stack[0] = range;
        depth = 1;
    }
    while depth > 0 {
        depth -= 1;
        let part = stack[depth].clone();
        let side = if !intersects(part.clone()) {
            Side::Kernel
        } else if covers(part.clone()) || part.len() <= page {
            Side::Managed
        } else {
            let middle = part.start + (part.len() / 2).next_multiple_of(page);
            stack[depth] = middle..part.end;
            stack[depth + 1] = part.start..middle;
            depth += 2;
            continue;
        };
        match &mut joined {
            Some((before, so_far)) if *before == side => so_far.end = part.end,
            _ => {
                if let Some((before, so_far)) = joined.replace((side, part)) {
                    each(before, so_far)?;
                }
            }
        }
    }
    match joined {
        Some((side, part)) => each(side, part),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(range: Range<usize>, windows: &[Range<usize>]) -> Vec<(Side, Range<usize>)> {
        let inside = |page: usize| windows.iter().any(|w| w.contains(&page));
        let mut found = Vec::new();
        parts::<()>(
            range,
            1,
            &|r| r.into_iter().any(inside),
            &|r| r.into_iter().all(inside),
            &mut |side, part| {
                found.push((side, part));
                Ok(())
            },
        )
        .unwrap();
        found
    }

    #[test]
    fn parts_are_exact_joined_and_in_order() {
        // Every range and every pair of windows over a small space.
        let n = 9;
        for start in 0..n {
            for end in start..=n {
                for a in 0..n {
                    for b in a..=n {
                        for c in b..=n {
                            check(start..end, &[a..b, c..n.min(c + 2)]);
                        }
                    }
                }
            }
        }
    }

    fn check(range: Range<usize>, windows: &[Range<usize>]) {
        let found = run(range.clone(), windows);
        let mut at = range.start;
        let mut before = None;
        for (side, part) in found {
            assert_eq!(part.start, at);
            assert!(!part.is_empty() && before != Some(side));
            for page in part.clone() {
                assert_eq!(side == Side::Managed, windows.iter().any(|w| w.contains(&page)));
            }
            (at, before) = (part.end, Some(side));
        }
        assert_eq!(at, range.end);
    }

    #[test]
    fn huge_ranges_take_few_questions() {
        let asked = std::cell::Cell::new(0);
        let window = (1usize << 40)..(1 << 41);
        let mut found = Vec::new();
        parts::<()>(
            0..1 << 47,
            4096,
            &|r| {
                asked.set(asked.get() + 1);
                r.start < window.end && window.start < r.end
            },
            &|r| window.start <= r.start && r.end <= window.end,
            &mut |side, part| {
                found.push((side, part));
                Ok(())
            },
        )
        .unwrap();
        assert_eq!(found[1], (Side::Managed, window));
        assert!(asked.get() < 200, "{}", asked.get());
    }

    #[test]
    fn the_first_error_stops() {
        let mut calls = 0;
        let r = parts(0..8, 1, &|r| r.end > 4, &|r| r.start >= 4, &mut |_, _| {
            calls += 1;
            Err(calls)
        });
        assert_eq!((r, calls), (Err(1), 1));
    }
}
