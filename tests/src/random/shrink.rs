//! The fewest steps that still make a difference: pieces are left out, large ones first (delta debugging by Zeller and
//! Hildebrandt, 2002, without its complements).

use std::time::{Duration, Instant};

use crate::random::case::Step;

/// The shortest list that was found until `limit` has passed. `fails` is asked about parts of the list; the whole list
/// is known to fail.
pub fn shrink(steps: &[Step], limit: Duration, mut fails: impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    let end = Instant::now() + limit;
    let mut steps = steps.to_vec();
    let mut size = (steps.len() / 2).max(1);
    loop {
        let before = steps.len();
        // From the begin: what matters is mostly near the end, where it failed.
        let mut start = 0;
        while start < steps.len() {
            if Instant::now() >= end {
                return steps;
            }
            let piece = start..(start + size).min(steps.len());
            let rest: Vec<Step> = steps[..piece.start].iter().chain(&steps[piece.end..]).copied().collect();
            if fails(&rest) {
                steps = rest;
            } else {
                start = piece.end;
            }
        }
        if size == 1 && steps.len() == before {
            return steps;
        }
        size = (size / 2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_is_left_out() {
        let steps: Vec<Step> = (0..1000).map(|step| (0, step)).collect();
        let fails = |steps: &[Step]| [17, 400, 401, 999].iter().all(|step| steps.contains(&(0, *step)));
        let few = shrink(&steps, Duration::from_secs(60), fails);
        assert_eq!(few, [(0, 17), (0, 400), (0, 401), (0, 999)]);
    }
}
