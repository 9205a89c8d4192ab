//! The columns of the table of processes: titles, widths, texts, and the order of rows by a column.

use std::cmp::Ordering;

use crate::top::rates::{RatedRow, Rates};

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// The id.
    Pid,
    /// The name.
    Name,
    /// A bar: the memory that the process has, as a part of the run's max.
    Bar,
    /// The memory that the process has.
    Size,
    /// The most memory that it had at a time.
    Peak,
    /// Its memory in swap.
    Swap,
    /// How much of its memory is protected from other processes.
    Low,
    /// How much the process needs its pages: pages that came back lately, for each 1,024 that it has, in a
    /// second.
    Cost,
    /// Page faults in a second.
    Faults,
    /// Of these, faults that needed I/O.
    Major,
    /// Pages that came back after they had gone out, in a second.
    Refaults,
    /// The memory that other processes want of it.
    Asked,
}

/// All columns, from left to right.
const ALL: [Column; 12] = [
    Column::Pid,
    Column::Name,
    Column::Bar,
    Column::Size,
    Column::Peak,
    Column::Swap,
    Column::Low,
    Column::Cost,
    Column::Faults,
    Column::Major,
    Column::Refaults,
    Column::Asked,
];

/// The columns, the most important first. A narrow terminal shows as many of the first as fit.
const BY_WORTH: [Column; 12] = [
    Column::Pid,
    Column::Name,
    Column::Size,
    Column::Faults,
    Column::Refaults,
    Column::Bar,
    Column::Swap,
    Column::Low,
    Column::Major,
    Column::Peak,
    Column::Cost,
    Column::Asked,
];

/// The greatest widths of the name, of which the kernel keeps 15 characters, and of the bar.
const WIDEST_NAME: usize = 15;
const WIDEST_BAR: usize = 60;

impl Column {
    /// The title.
    pub fn title(self) -> &'static str {
        match self {
            Column::Pid => "PID",
            Column::Name => "NAME",
            Column::Bar => "USED",
            Column::Size => "SIZE",
            Column::Peak => "PEAK",
            Column::Swap => "SWAP",
            Column::Low => "LOW",
            Column::Cost => "COST",
            Column::Faults => "FLT/S",
            Column::Major => "MAJ/S",
            Column::Refaults => "REF/S",
            Column::Asked => "ASKED",
        }
    }

    /// Whether the column has text, which stands at its left side, and not numbers.
    pub fn is_text(self) -> bool {
        matches!(self, Column::Name | Column::Bar)
    }

    /// The least width, in characters.
    fn width(self) -> usize {
        match self {
            Column::Pid => 7,
            Column::Name => 10,
            Column::Bar => 8,
            Column::Cost => 5,
            _ => 6,
        }
    }

    /// The text of a row in this column; empty for the bar, which `page` draws.
    pub fn text(self, row: &RatedRow) -> String {
        let RatedRow { row, rates } = row;
        let rate =
            |of: fn(&Rates) -> f64| rates.as_ref().map_or_else(|| "-".to_owned(), |rates| rate(of(rates)));
        let size_or_none = |bytes| if bytes == 0 { "-".to_owned() } else { size(bytes) };
        match self {
            Column::Pid => row.pid.to_string(),
            Column::Name if row.is_gone => format!("{} (gone)", row.name),
            Column::Name => row.name.clone(),
            Column::Bar => String::new(),
            Column::Size => size(row.bytes),
            Column::Peak => size(row.peak_bytes),
            Column::Swap => size_or_none(row.swap_bytes),
            Column::Low => size_or_none(row.low_bytes),
            Column::Cost => rate_or_count(row.cost as f64),
            Column::Faults => rate(|rates| rates.faults),
            Column::Major => rate(|rates| rates.major),
            Column::Refaults => rate(|rates| rates.refaults),
            Column::Asked => size_or_none(row.asked_bytes),
        }
    }

    /// The order of two rows by this column: names and ids upwards, amounts downwards. Rows with equal
    /// values are ordered by id, so that they do not change places from sample to sample.
    pub fn order(self, one: &RatedRow, other: &RatedRow) -> Ordering {
        let bytes = |of: fn(&RatedRow) -> u64| of(other).cmp(&of(one));
        let rate = |of: fn(&Rates) -> f64| {
            let of = |row: &RatedRow| row.rates.as_ref().map_or(-1.0, of);
            of(other).total_cmp(&of(one))
        };
        let by_column = match self {
            Column::Pid => Ordering::Equal,
            Column::Name => one.row.name.cmp(&other.row.name),
            Column::Bar | Column::Size => bytes(|row| row.row.bytes),
            Column::Peak => bytes(|row| row.row.peak_bytes),
            Column::Swap => bytes(|row| row.row.swap_bytes),
            Column::Low => bytes(|row| row.row.low_bytes),
            Column::Cost => bytes(|row| row.row.cost),
            Column::Asked => bytes(|row| row.row.asked_bytes),
            Column::Faults => rate(|rates| rates.faults),
            Column::Major => rate(|rates| rates.major),
            Column::Refaults => rate(|rates| rates.refaults),
        };
        by_column.then(one.row.pid.cmp(&other.row.pid))
    }

    /// The column `step` places to the right of this one, or to the left if `step` is negative. The bar is
    /// skipped: its order is that of the sizes.
    pub fn beside(self, step: isize) -> Self {
        let sortable: Vec<_> = ALL.into_iter().filter(|column| *column != Column::Bar).collect();
        let at = sortable.iter().position(|column| *column == self).unwrap_or_default() as isize;
        sortable[(at + step).clamp(0, sortable.len() as isize - 1) as usize]
    }
}

/// The columns that fit into `width` characters, each with its own width. One blank is between two columns.
pub fn fit(width: usize) -> Vec<(Column, usize)> {
    let mut left = width;
    let mut fitting = Vec::new();
    for column in BY_WORTH {
        let needs = column.width() + usize::from(!fitting.is_empty());
        if needs > left {
            break;
        }
        left -= needs;
        fitting.push(column);
    }
    let mut columns: Vec<_> =
        ALL.iter().filter(|column| fitting.contains(column)).map(|c| (*c, c.width())).collect();
    for (grows, widest) in [(Column::Name, WIDEST_NAME), (Column::Bar, WIDEST_BAR)] {
        if let Some((column, width)) = columns.iter_mut().find(|(column, _)| *column == grows) {
            let more = left.min(widest - column.width());
            *width += more;
            left -= more;
        }
    }
    columns
}

/// A size in at most six characters: `512M`, `1.5G`.
pub fn size(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["B", "K", "M", "G", "T", "P", "E"])
}

/// A rate in at most six characters: `17`, `0.3`, `12.3k`.
pub fn rate(rate: f64) -> String {
    if rate > 0.0 && rate < 9.95 { format!("{rate:.1}") } else { rate_or_count(rate) }
}

fn rate_or_count(number: f64) -> String {
    scaled(number, 1000.0, &["", "k", "M", "G", "T", "P", "E"])
}

/// A number in the smallest unit in which it has at most three digits before the point. Below 100 it has
/// one decimal, unless that is 0 or there is no unit.
fn scaled(number: f64, step: f64, units: &[&str]) -> String {
    let mut number = number;
    let mut unit = 0;
    // 999.5 would be rounded to 1000, which has four digits.
    while number >= 999.5 && unit + 1 < units.len() {
        number /= step;
        unit += 1;
    }
    let has_fraction = unit > 0 && number < 99.95 && (number * 10.0).round() % 10.0 != 0.0;
    let digits = usize::from(has_fraction);
    format!("{number:.digits$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample::Row;

    #[test]
    fn sizes_and_rates_are_short() {
        for (bytes, shown) in [
            (0, "0B"),
            (999, "999B"),
            (1023, "1K"),
            (1536, "1.5K"),
            (512 << 20, "512M"),
            (1 << 30, "1G"),
            (3 << 29, "1.5G"),
            ((1 << 30) - 1, "1G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(size(bytes), shown);
        }
        for (number, shown) in
            [(0.0, "0"), (0.26, "0.3"), (9.96, "10"), (17.4, "17"), (999.6, "1k"), (12_345.0, "12.3k")]
        {
            assert_eq!(rate(number), shown);
        }
        let mut bytes = 1_u64;
        while let Some(next) = bytes.checked_mul(3) {
            assert!(size(bytes).len() <= 6 && rate(bytes as f64).len() <= 6, "{bytes}");
            bytes = next / 2 + 1;
        }
    }

    #[test]
    fn columns_fit_and_what_matters_least_goes_first() {
        let shown = |width| fit(width).into_iter().map(|(column, _)| column).collect::<Vec<_>>();
        let sum = |width| fit(width).iter().map(|(_, width)| width + 1).sum::<usize>();
        for width in 7..400 {
            assert!(sum(width) <= width + 1, "{width}");
            assert!(width == 7 || shown(width).len() >= shown(width - 1).len(), "{width}");
        }
        use Column::{Bar, Faults, Low, Major, Name, Peak, Pid, Refaults, Size, Swap};
        assert_eq!(shown(60), [Pid, Name, Bar, Size, Swap, Faults, Refaults]);
        assert_eq!(shown(80), [Pid, Name, Bar, Size, Peak, Swap, Low, Faults, Major, Refaults]);
        assert_eq!(shown(160), ALL);
        assert_eq!((sum(60), sum(80), sum(140)), (61, 81, 141), "all of the width is used");
        assert_eq!((shown(7), shown(6)), (vec![Pid], vec![]));
    }

    fn row(pid: u32, name: &str, bytes: u64, faults: Option<f64>) -> RatedRow {
        let rates = faults.map(|faults| Rates { faults, ..Rates::default() });
        RatedRow { row: Row { pid, name: name.to_owned(), bytes, ..Row::default() }, rates }
    }

    #[test]
    fn rows_are_ordered_by_a_column() {
        let rows = [row(3, "c", 7, None), row(1, "a", 5, Some(0.0)), row(2, "b", 7, Some(2.0))];
        let ordered = |column: Column| {
            let mut rows = rows.to_vec();
            rows.sort_by(|one, other| column.order(one, other));
            rows.iter().map(|row| row.row.pid).collect::<Vec<_>>()
        };
        assert_eq!(ordered(Column::Pid), [1, 2, 3]);
        assert_eq!(ordered(Column::Name), [1, 2, 3]);
        assert_eq!(ordered(Column::Size), [2, 3, 1], "the largest first, then by ids");
        assert_eq!(ordered(Column::Faults), [2, 1, 3], "unknown rates last");
        assert_eq!(ordered(Column::Swap), [1, 2, 3]);
    }

    #[test]
    fn the_column_to_sort_by_moves_over_the_table_and_not_beyond() {
        let mut column = Column::Pid;
        assert_eq!(column.beside(-1), Column::Pid);
        for expected in ALL.into_iter().filter(|column| *column != Column::Bar).skip(1) {
            column = column.beside(1);
            assert_eq!(column, expected);
        }
        assert_eq!((column.beside(1), column.beside(-1)), (Column::Asked, Column::Refaults));
    }

    #[test]
    fn texts_of_a_row() {
        let mut gone = row(9, "make", 1 << 20, None);
        gone.row.is_gone = true;
        assert_eq!(Column::Name.text(&gone), "make (gone)");
        assert_eq!((Column::Size.text(&gone), Column::Low.text(&gone)), ("1M".to_owned(), "-".to_owned()));
        assert_eq!(Column::Faults.text(&gone), "-");
        assert_eq!(Column::Faults.text(&row(9, "make", 0, Some(1500.0))), "1.5k");
    }
}
