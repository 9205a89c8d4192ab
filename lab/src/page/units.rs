//! How a figure is shown. Its key says what it is of: keys end in their unit.

/// A number with commas between thousands.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (number, digit) in digits.chars().enumerate() {
        if number > 0 && (digits.len() - number).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 && text != "0" { format!("\u{2212}{text}") } else { text }
}

/// Three digits that mean something, and as many before the point as there are.
pub fn three_digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => grouped(value),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        0.0 => "0".into(),
        size if size >= 0.0001 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    }
}

/// Nanoseconds in the unit that fits.
pub fn time(ns: f64) -> String {
    match ns.abs() {
        size if size < 1e3 => format!("{} ns", three_digits(ns)),
        size if size < 1e6 => format!("{} \u{b5}s", three_digits(ns / 1e3)),
        size if size < 1e9 => format!("{} ms", three_digits(ns / 1e6)),
        _ => format!("{} s", three_digits(ns / 1e9)),
    }
}

/// A text with microseconds as they are written.
pub fn micro(text: &str) -> String {
    text.replace("us", "\u{b5}s")
}

/// Bytes in the unit that fits.
pub fn bytes(bytes: f64) -> String {
    match bytes.abs() {
        size if size < 1024.0 => format!("{} B", three_digits(bytes)),
        size if size < 1_048_576.0 => format!("{} KiB", three_digits(bytes / 1024.0)),
        size if size < 1_073_741_824.0 => format!("{} MiB", three_digits(bytes / 1_048_576.0)),
        _ => format!("{} GiB", three_digits(bytes / 1_073_741_824.0)),
    }
}

/// A figure with its unit.
pub fn show(key: &str, value: f64) -> String {
    // What it is of; `_per_page` and the like come behind the unit.
    let of = ["_per_page", "_per_map", "_per_megabyte", "_per_token"];
    let unit = of.into_iter().find_map(|of| key.split_once(of)).map_or(key, |(unit, _)| unit);
    if unit.ends_with("_ns") {
        time(value)
    } else if unit.ends_with("_bytes") {
        bytes(value)
    } else if unit.ends_with("_percent") {
        format!("{} %", three_digits(value))
    } else if unit.ends_with("gigabytes_per_second") {
        format!("{} GB/s", three_digits(value))
    } else if unit.ends_with("megabytes_per_second") {
        format!("{} MB/s", three_digits(value))
    } else if value.fract() == 0.0 {
        grouped(value)
    } else {
        three_digits(value)
    }
}

/// How much a figure has changed.
pub fn change(percent: f64) -> String {
    match percent {
        percent if percent >= 900.0 => format!("\u{d7} {}", three_digits(percent / 100.0 + 1.0)),
        // Not rounded to all of it.
        percent if percent < -99.0 && percent > -100.0 => {
            format!("\u{2212}{} %", (-percent * 1000.0).floor() / 1000.0)
        }
        percent => format!("{percent:+.1} %").replace('-', "\u{2212}"),
    }
}

/// By how many percent `after` is more than `before`.
pub fn change_of(before: f64, after: f64) -> Option<f64> {
    (before != 0.0).then(|| (after / before - 1.0) * 100.0)
}

/// For an axis: few characters.
pub fn short(value: f64) -> String {
    let digits = |value: f64| {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match value.abs() {
        size if size >= 1e9 => format!("{} G", digits(value / 1e9)),
        size if size >= 1e6 => format!("{} M", digits(value / 1e6)),
        size if size >= 1e3 => format!("{} k", digits(value / 1e3)),
        _ => digits(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_say_the_unit() {
        for (key, value, expected) in [
            ("pass_ns", 650_980_200.0, "651 ms"),
            ("layout_read_wait_ns", 10_695_877_000.0, "10.7 s"),
            ("cpu_ns_per_page", 900.0, "900 ns"),
            ("file_lock_wait_ns_per_map", 1_500.0, "1.50 \u{b5}s"),
            ("device_read_bytes_per_page", 4096.0, "4.00 KiB"),
            ("retry_io_miss_percent", 0.0, "0 %"),
            ("first_pass_gigabytes_per_second", 1.5, "1.50 GB/s"),
            ("megabytes_per_second", 1430.0, "1,430 MB/s"),
            ("cpu_ns_per_megabyte", 658_400.0, "658 \u{b5}s"),
            ("device_read_bytes_per_token", 1_048_576.0, "1.00 MiB"),
            ("rounds", 22_711.0, "22,711"),
            ("faults_per_page", 0.0625, "0.0625"),
            ("maps", 1_204_124.0, "1,204,124"),
        ] {
            assert_eq!(show(key, value), expected, "{key}");
        }
    }

    #[test]
    fn a_change_of_nearly_all_is_not_all() {
        for (before, after, expected) in [
            (100.0, 0.0, "\u{2212}100.0 %"),
            (100_000.0, 1.0, "\u{2212}99.999 %"),
            (1_000_000.0, 1.0, "\u{2212}99.999 %"),
            (2.0, 1.0, "\u{2212}50.0 %"),
            (1.0, 12.0, "\u{d7} 12.0"),
        ] {
            assert_eq!(change_of(before, after).map(change).as_deref(), Some(expected));
        }
        assert_eq!(change_of(0.0, 1.0), None);
        assert_eq!([1.5e6, 1200.0, 3.0].map(short), ["1.5 M", "1.2 k", "3"]);
    }
}
