//! Which of several lists takes its turn next, each as often as its weight says.

/// 2^64 divided by the golden ratio: its multiples modulo 2^64 are spread evenly, however many are taken.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The index of the weight that turn number `turn` picks; `None` if all are 0. Of any number of successive
/// turns, each weight gets its part, give or take a few.
pub(crate) fn pick(weights: impl Iterator<Item = u64> + Clone, turn: usize) -> Option<usize> {
    // The sum saturates: no machine has weights of more than 2^64 in all.
    let all = weights.clone().fold(0, u64::saturating_add);
    let spread = (turn as u64).wrapping_mul(GOLDEN);
    let mut left = ((u128::from(spread) * u128::from(all)) >> 64) as u64;
    for (number, weight) in weights.enumerate() {
        match left.checked_sub(weight) {
            Some(more) => left = more,
            None => return Some(number),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_as_many_turns_as_its_weight_says() {
        for weights in [vec![1, 1], vec![3, 0, 1], vec![1 << 40, 1 << 38], vec![7, 11, 13, 1, 0, 5], vec![9]]
        {
            let all: u64 = weights.iter().sum();
            for (start, turns) in [(0, 1000), (usize::MAX - 300, 1000), (12_345, 64)] {
                let mut had = vec![0_usize; weights.len()];
                for turn in 0..turns {
                    had[pick(weights.iter().copied(), start.wrapping_add(turn)).unwrap()] += 1;
                }
                for (had, weight) in had.iter().zip(&weights) {
                    let due = turns as f64 * *weight as f64 / all as f64;
                    assert!((*had as f64 - due).abs() < 4.0, "{had} turns instead of {due} of {weights:?}");
                    assert!(*weight > 0 || *had == 0);
                }
            }
        }
        assert_eq!(pick([0, 0].into_iter(), 5), None);
        assert_eq!(pick([].into_iter(), 5), None);
    }
}
