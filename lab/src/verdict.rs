//! Whether a figure of one engine is better than that of another, judged by all runs of both: pure functions,
//! for the tables and for the page.

/// Figures whose medians are no further apart than this factor are the same.
const SAME: f64 = 1.02;
/// Figures whose runs are further apart than the medians, but no further than this factor, are the same, too.
const CLOSE: f64 = 1.1;

/// What the words in the tables mean.
pub const LEGEND: &str = "\
Beside a median stand the least and the most of its runs. better and worse are of the engine that is named \
first.\nsame: the medians are within 2 percent, or the runs of one engine are further apart than the two \
engines are, by\nat most 10 percent. unclear: they are further apart than that, so the ratio is no figure: \
more runs, longer ones,\nor a machine without other load may show one. One run alone has no word.\n";

/// Which values of a figure are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Less,
    More,
}

/// Counts of which less is better, and their like.
const LESS: [&str; 17] = [
    "device_read_bytes_per_token",
    "retry_io_miss",
    "faults",
    "faults_per_page",
    "thread_faults_per_page",
    "retries_per_major_fault",
    "layout_lock_faults",
    "layout_lock_faults_alone",
    "layout_read_acquisitions",
    "layout_waits",
    "lru_waits",
    "file_lock_waits",
    "handed_back_files",
    "killed_at_bound",
    "device_read_bytes_per_page",
    "peak_rss_bytes",
    "peak_sampled_bytes",
];
/// Counts of which more is better.
const MORE: [&str; 7] = [
    "rounds",
    "reader_passes",
    "pages_per_fault",
    "random_pages_per_fault",
    "hits_percent",
    "cyclic_hits_percent",
    "got_of_device",
];
/// The beginnings of what is neither, whatever its unit: amounts of work, and what something else is measured
/// beside.
const NEITHER: [&str; 11] = [
    "lru_hits_",
    "depth_",
    "device_megabytes_",
    "swapped_",
    "refaults_",
    "scanned_",
    "stolen_",
    "lru_acquisitions_",
    "cost_acquisitions_",
    "lz4_",
    "plain_",
];

/// Which values of the figure with a key are better, if either: by the list, or by the unit that the key ends
/// in.
pub fn direction(key: &str) -> Option<Direction> {
    if NEITHER.iter().any(|start| key.starts_with(start)) {
        return None;
    }
    if MORE.contains(&key) {
        return Some(Direction::More);
    }
    let is_time = key.split("_per_").next().is_some_and(|key| key.ends_with("_ns"));
    if is_time || key.ends_with("_percent") || key.ends_with("_ratio") || LESS.contains(&key) {
        Some(Direction::Less)
    } else if key.ends_with("_per_second") {
        Some(Direction::More)
    } else {
        None
    }
}

/// The values of a figure in the runs of one engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub least: f64,
    pub median: f64,
    pub most: f64,
    /// How many runs have the figure.
    pub runs: usize,
}

impl Spread {
    /// `None` without any value.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            1 => values[middle],
            _ => (values[middle - 1] + values[middle]) / 2.0,
        };
        Some(Self { least, median, most, runs: values.len() })
    }

    /// By which factor the most is more than the least.
    fn width(&self) -> f64 {
        factor(self.most, self.least)
    }

    /// Of values that are so many times as much.
    pub fn times(self, scale: f64) -> Self {
        let Self { least, median, most, runs } = self;
        Self { least: least * scale, median: median * scale, most: most * scale, runs }
    }

    /// The least and the most, if there are several runs.
    pub fn range(&self) -> Option<(f64, f64)> {
        (self.runs > 1).then_some((self.least, self.most))
    }

    /// The median with the range of the runs, if there are several: `1.20 (1.00 - 1.40) ms`.
    pub fn show(&self, show: impl Fn(f64) -> String) -> String {
        let median = show(self.median);
        let Some((least, most)) = self.range() else { return median };
        let (least, most) = (show(least), show(most));
        let parts = [&median, &least, &most].map(|text| text.split_once(' ').unwrap_or((text, "")));
        match parts {
            [(median, unit), (least, of_least), (most, of_most)] if unit == of_least && unit == of_most => {
                format!("{median} ({least} - {most}) {unit}").trim_end().to_owned()
            }
            _ => format!("{median} ({least} - {most})"),
        }
    }
}

/// The factor between two values, from 1 on: infinite if one of them is 0 and the other is not.
fn factor(one: f64, other: f64) -> f64 {
    let (less, more) = if one < other { (one, other) } else { (other, one) };
    if less == more { 1.0 } else { more / less.max(0.0) }
}

/// What is said of one engine's figure beside another's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Better,
    Worse,
    Same,
    /// The runs of one engine are further apart than the two engines are.
    Unclear,
}

impl Verdict {
    /// Judges `ours` beside `base`; `None` if nothing can be said: the two differ, and neither more nor less
    /// is better, or one of them was run only once, which does not tell how far apart its runs would be.
    pub fn of(key: &str, ours: &Spread, base: &Spread) -> Option<Self> {
        if ours.runs.min(base.runs) < 2 {
            return None;
        }
        let change = factor(ours.median, base.median);
        let width = ours.width().max(base.width());
        if width > change || width == f64::INFINITY {
            return Some(if width <= CLOSE { Self::Same } else { Self::Unclear });
        }
        if change <= SAME {
            return Some(Self::Same);
        }
        let is_less = ours.median < base.median;
        Some(match direction(key)? {
            Direction::Less if is_less => Self::Better,
            Direction::More if !is_less => Self::Better,
            _ => Self::Worse,
        })
    }

    /// The word in tables and in the JSON file.
    pub fn word(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "same",
            Self::Unclear => "unclear",
        }
    }
}

/// A ratio, and what is said of it, in a cell of a table: `4.50 better`.
pub fn ratio_cell(key: &str, ours: Option<Spread>, base: Option<Spread>) -> String {
    let Some((ours, base)) = ours.zip(base) else { return "-".into() };
    let ratio = ratio(ours.median, base.median).map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
    match Verdict::of(key, &ours, &base) {
        // Nothing of both.
        Some(Verdict::Same) if base.median == 0.0 => "-".into(),
        Some(verdict) => format!("{ratio} {}", verdict.word()),
        None => ratio,
    }
}

/// How many times `base` a value is; `None` of nothing.
pub fn ratio(value: f64, base: f64) -> Option<f64> {
    (base != 0.0).then(|| value / base)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(values: &[f64]) -> Spread {
        Spread::of(values.to_vec()).unwrap()
    }

    fn verdict(key: &str, ours: &[f64], base: &[f64]) -> Option<Verdict> {
        Verdict::of(key, &spread(ours), &spread(base))
    }

    #[test]
    fn a_spread_has_the_middle_and_the_ends_of_all_runs() {
        assert_eq!(Spread::of(vec![]), None);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Spread { least: 1.0, median: 2.0, most: 3.0, runs: 3 });
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!((spread(&[7.0]).range(), spread(&[7.0, 8.0]).range()), (None, Some((7.0, 8.0))));
    }

    #[test]
    fn the_range_stands_beside_the_median_and_its_unit_once() {
        let show = |value: f64| format!("{value:.0} ms");
        assert_eq!(spread(&[3.0, 4.0, 209.0]).show(show), "4 (3 - 209) ms");
        assert_eq!(spread(&[3.0]).show(show), "3 ms");
        let mixed = |value: f64| if value < 10.0 { format!("{value} us") } else { "0.1 ms".into() };
        assert_eq!(spread(&[3.0, 100.0, 4.0]).show(mixed), "4 us (3 us - 0.1 ms)");
        assert_eq!(spread(&[3.0, 5.0]).show(|value| format!("{value:.2}")), "4.00 (3.00 - 5.00)");
    }

    #[test]
    fn what_is_better_depends_on_the_figure() {
        use Verdict::{Better, Worse};
        assert_eq!(verdict("pass_ns", &[1.0, 1.0], &[2.0, 2.0]), Some(Better));
        assert_eq!(verdict("pass_ns", &[2.0, 2.0], &[1.0, 1.0]), Some(Worse));
        assert_eq!(verdict("maps_per_second", &[1.0, 1.0], &[2.0, 2.0]), Some(Worse));
        assert_eq!(verdict("maps_per_second", &[2.0, 2.0], &[1.0, 1.0]), Some(Better));
        assert_eq!(verdict("vma_lock_success", &[2.0, 2.0], &[1.0, 1.0]), None);
    }

    #[test]
    fn a_median_of_4_3_and_209_is_no_figure() {
        use Verdict::{Better, Same, Unclear, Worse};
        let wild = [4.0, 3.0, 209.0];
        assert_eq!(verdict("x_ns", &wild, &[100.0, 101.0, 99.0]), Some(Unclear));
        assert_eq!(verdict("x_ns", &[100.0, 101.0, 99.0], &wild), Some(Unclear));
        // Far away from all of them, the direction is plain.
        assert_eq!(verdict("x_ns", &wild, &[1e6, 1.1e6, 0.9e6]), Some(Better));
        // As wide as the change is not wider.
        assert_eq!(verdict("x_ns", &[10.0, 14.0, 20.0], &[7.0, 7.0]), Some(Worse));
        assert_eq!(verdict("x_ns", &[10.0, 14.0, 21.0], &[7.0, 7.0]), Some(Unclear));
        // All runs nearly alike are the same, not unclear.
        assert_eq!(verdict("x_ns", &[100.0, 103.0, 98.0], &[101.0, 99.0, 102.0]), Some(Same));
        assert_eq!(verdict("x_ns", &[101.0, 101.0], &[100.0, 100.0]), Some(Same));
    }

    #[test]
    fn one_run_is_not_judged() {
        assert_eq!(verdict("x_ns", &[1.0], &[100.0, 101.0]), None);
        assert_eq!(verdict("x_ns", &[100.0, 101.0], &[1.0]), None);
        assert_eq!(verdict("x_ns", &[1.0], &[1.0]), None);
    }

    #[test]
    fn nothing_is_compared_with_nothing() {
        assert_eq!(verdict("retry_io_miss", &[0.0, 0.0], &[0.0, 0.0]), Some(Verdict::Same));
        assert_eq!(verdict("retry_io_miss", &[0.0, 0.0], &[3.0, 4.0]), Some(Verdict::Better));
        assert_eq!(verdict("retry_io_miss", &[3.0, 3.0], &[0.0, 0.0]), Some(Verdict::Worse));
        // One of the kernel's runs had none, either.
        assert_eq!(verdict("retry_io_miss", &[0.0, 0.0], &[3.0, 4.0, 0.0]), Some(Verdict::Unclear));
        let cell =
            |ours: &[f64], base: &[f64]| ratio_cell("x_ns", Spread::of(ours.into()), Spread::of(base.into()));
        assert_eq!([cell(&[0.0], &[0.0]), cell(&[], &[1.0]), cell(&[1.0], &[])], ["-", "-", "-"]);
        assert_eq!([cell(&[0.0, 0.0], &[0.0, 0.0]), cell(&[9.0], &[2.0])], ["-", "4.50"]);
        let worse = [cell(&[9.0, 9.0], &[2.0, 2.0]), cell(&[1.0, 1.0], &[0.0, 0.0])];
        assert_eq!(worse, ["4.50 worse", "- worse"]);
    }

    #[test]
    fn keys_say_by_their_unit_what_is_better() {
        use Direction::{Less, More};
        for (key, expected) in [
            ("cpu_ns_per_page", Some(Less)),
            ("file_lock_wait_ns_per_map", Some(Less)),
            ("retry_io_miss_percent", Some(Less)),
            ("first_touch_gigabytes_per_second", Some(More)),
            ("megabytes_per_second", Some(More)),
            ("hits_percent", Some(More)),
            ("got_of_device", Some(More)),
            ("read_of_device", None),
            ("lru_hits_percent", None),
            ("depth_4_megabytes_per_second", None),
            ("device_megabytes_per_second", None),
            ("amplification_ratio", Some(Less)),
            ("cpu_ns_per_megabyte", Some(Less)),
            ("device_read_bytes_per_token", Some(Less)),
            ("swapped_in_per_second", None),
            ("plain_random_ns", None),
            ("random_over_plain_ratio", Some(Less)),
            ("layout_lock_faults", Some(Less)),
            ("live_bytes", None),
        ] {
            assert_eq!(direction(key), expected, "{key}");
        }
    }
}
