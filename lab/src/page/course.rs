//! The course of a run: how much was done per second, the mean of several runs.

/// The distance of the points of a curve.
const STEP_MS: f64 = 250.0;

/// Rates (per second) at the ends of steps of [`STEP_MS`] (in seconds), the mean of all runs that lasted
/// until then. Each run is a list of milliseconds since its start, and what had been done by then.
///
/// Samples of different runs are not of the same moments: one that is taken late moves all after it. So each
/// run is read off at the same moments, between its samples, and no point depends on how many runs have an
/// n-th sample.
pub fn rates(runs: &[Vec<(f64, f64)>]) -> Vec<(f64, f64)> {
    let end = runs.iter().filter_map(|run| Some(run.last()?.0)).fold(0.0, f64::max);
    let steps = (end / STEP_MS) as usize;
    let rate = |step: usize, run: &[(f64, f64)]| {
        let (from, to) = ((step - 1) as f64 * STEP_MS, step as f64 * STEP_MS);
        let done = done_at(run, to)? - done_at(run, from)?;
        Some(done.max(0.0) / STEP_MS * 1e3)
    };
    let point = |step: usize| {
        let rates: Vec<f64> = runs.iter().filter_map(|run| rate(step, run)).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        (!rates.is_empty()).then_some((step as f64 * STEP_MS / 1e3, mean))
    };
    (1..=steps).filter_map(point).collect()
}

/// What a run had done at a moment, by its samples before and after; `None` after its last.
fn done_at(run: &[(f64, f64)], ms: f64) -> Option<f64> {
    let mut before = (0.0, 0.0);
    for &(at, done) in run {
        if at >= ms {
            let share = if at > before.0 { (ms - before.0) / (at - before.0) } else { 1.0 };
            return Some(before.1 + share * (done - before.1));
        }
        before = (at, done);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_forwards_whatever_runs_have_an_nth_sample() {
        // The mean of the second samples (0.85 s) is after the third sample of the only run with one (0.75).
        let even = vec![(250.0, 10.0), (500.0, 20.0), (750.0, 30.0), (1000.0, 40.0)];
        let late = vec![(600.0, 60.0), (1200.0, 120.0)];
        let points = rates(&[even, late]);
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0), "{points:?}");
        let expected = [(0.25, 70.0), (0.5, 70.0), (0.75, 70.0), (1.0, 70.0)];
        assert_eq!(points.len(), expected.len());
        for (point, expected) in points.iter().zip(expected) {
            assert!(point.0 == expected.0 && (point.1 - expected.1).abs() < 1e-9, "{points:?}");
        }
    }

    #[test]
    fn a_run_counts_as_long_as_it_lasts() {
        let (short, long) = (vec![(250.0, 25.0)], vec![(250.0, 75.0), (500.0, 100.0)]);
        assert_eq!(rates(&[short, long]), [(0.25, 200.0), (0.5, 100.0)]);
        assert_eq!(rates(&[]), []);
        assert_eq!(rates(&[vec![]]), []);
    }
}
