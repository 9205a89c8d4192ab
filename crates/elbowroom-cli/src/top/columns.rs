//! The columns of the table of processes: titles, widths, texts, and the order of rows by a column.

use std::cmp::Ordering;

use elbowroom::ProcessPressure;

use crate::top::rates::{RatedRow, Rates};
use crate::top::sample::{Row, stall_kind};

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
    /// Percent of the last 10 s in which a thread stalled.
    Some10,
    /// Percent of the last 60 s.
    Some60,
    /// Percent of the last 300 s.
    Some300,
    /// Percent of the last 10 s in which a thread stalled, and none ran.
    Full10,
    /// Percent of the last 60 s.
    Full60,
    /// Percent of the last 300 s.
    Full300,
    /// The kind of stall of which it has the most, and the file or memory.
    Stalls,
    /// Its memory in which compressed pages are.
    Pool,
    /// What it uses of the swap file.
    File,
    /// Its pages that are out.
    Out,
    /// The lock for which its threads waited longest.
    Lock,
    /// For how long they waited for it.
    Wait,
    /// For how long they waited for the lock of the LRU lists.
    Lru,
}

/// A set of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// What processes have and do.
    Use,
    /// How long their threads wait for memory, and for what.
    Pressure,
    /// Where their pages are, and how long their threads wait for locks.
    Tiers,
}

impl Table {
    /// All tables, in the order of the key that goes from one to the next.
    pub const ALL: [Self; 3] = [Self::Use, Self::Pressure, Self::Tiers];

    /// The table after this one.
    pub fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }

    /// The column that rows are sorted by at first.
    pub fn sort(self) -> Column {
        match self {
            Self::Use | Self::Tiers => Column::Size,
            Self::Pressure => Column::Some10,
        }
    }

    /// All columns, from left to right.
    fn columns(self) -> &'static [Column] {
        use Column::*;
        match self {
            Self::Use => &[Pid, Name, Bar, Size, Peak, Swap, Low, Cost, Faults, Major, Refaults, Asked],
            Self::Pressure => &[Pid, Name, Some10, Some60, Some300, Full10, Full60, Full300, Stalls],
            Self::Tiers => &[Pid, Name, Size, Pool, File, Out, Lock, Wait, Lru],
        }
    }

    /// The columns, the most important first. A narrow terminal shows as many of the first as fit.
    fn by_worth(self) -> &'static [Column] {
        use Column::*;
        match self {
            Self::Use => &[Pid, Name, Size, Faults, Refaults, Bar, Swap, Low, Major, Peak, Cost, Asked],
            Self::Pressure => &[Pid, Name, Some10, Full10, Stalls, Some60, Full60, Some300, Full300],
            Self::Tiers => &[Pid, Name, Size, Pool, File, Lock, Wait, Out, Lru],
        }
    }
}

/// The greatest widths of the name, of which the kernel keeps 15 characters, and of the bar.
const WIDEST_NAME: usize = 15;
const WIDEST_BAR: usize = 60;
/// The greatest width of what a process stalls for.
const WIDEST_STALLS: usize = 40;

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
            Column::Some10 => "SOME10",
            Column::Some60 => "SOME60",
            Column::Some300 => "SOM300",
            Column::Full10 => "FULL10",
            Column::Full60 => "FULL60",
            Column::Full300 => "FUL300",
            Column::Stalls => "STALLS FOR",
            Column::Pool => "POOL",
            Column::File => "FILE",
            Column::Out => "OUT",
            Column::Lock => "LOCK",
            Column::Wait => "WAIT",
            Column::Lru => "LRU",
        }
    }

    /// Whether the column has text, which stands at its left side, and not numbers.
    pub fn is_text(self) -> bool {
        matches!(self, Column::Name | Column::Bar | Column::Stalls | Column::Lock)
    }

    /// The least width, in characters.
    fn width(self) -> usize {
        match self {
            Column::Pid => 7,
            Column::Name => 10,
            Column::Bar => 8,
            Column::Cost => 5,
            Column::Stalls => 14,
            Column::Lock => 8,
            _ => 6,
        }
    }

    /// The pressure that this column shows, in percent. `None`: the process has noted none, or the column
    /// shows something else.
    fn stalled(self, row: &Row) -> Option<f64> {
        let ProcessPressure { some, full, .. } = row.shown.pressure.as_ref()?;
        match self {
            Column::Some10 => Some(some.avg10),
            Column::Some60 => Some(some.avg60),
            Column::Some300 => Some(some.avg300),
            Column::Full10 => Some(full.avg10),
            Column::Full60 => Some(full.avg60),
            Column::Full300 => Some(full.avg300),
            _ => None,
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
            Column::Some10
            | Column::Some60
            | Column::Some300
            | Column::Full10
            | Column::Full60
            | Column::Full300 => {
                self.stalled(row).map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}"))
            }
            Column::Stalls => {
                let kind = row.shown.pressure.as_ref().and_then(stall_kind);
                let source = row.shown.stalls.as_ref().map(|stalls| stalls.short());
                let parts: Vec<_> = kind.map(str::to_owned).into_iter().chain(source).collect();
                if parts.is_empty() { "-".to_owned() } else { parts.join(" ") }
            }
            Column::Pool => size_or_none(row.shown.tiers.pool_bytes),
            Column::File => size_or_none(row.shown.tiers.swap_file_bytes),
            Column::Out => size_or_none(row.shown.tiers.out_bytes),
            Column::Lock => row.shown.contention.lock.clone().unwrap_or_else(|| "-".to_owned()),
            Column::Wait => time(row.shown.contention.wait_us),
            Column::Lru => time(row.shown.contention.lru_wait_us),
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
        let text = || self.text(one).cmp(&self.text(other));
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
            Column::Some10
            | Column::Some60
            | Column::Some300
            | Column::Full10
            | Column::Full60
            | Column::Full300 => {
                let percent = |row: &RatedRow| self.stalled(&row.row).unwrap_or(-1.0);
                percent(other).total_cmp(&percent(one))
            }
            Column::Stalls | Column::Lock => text(),
            Column::Pool => bytes(|row| row.row.shown.tiers.pool_bytes),
            Column::File => bytes(|row| row.row.shown.tiers.swap_file_bytes),
            Column::Out => bytes(|row| row.row.shown.tiers.out_bytes),
            Column::Wait => bytes(|row| row.row.shown.contention.wait_us),
            Column::Lru => bytes(|row| row.row.shown.contention.lru_wait_us),
        };
        by_column.then(one.row.pid.cmp(&other.row.pid))
    }

    /// The column of a table `step` places to the right of this one, or to the left if `step` is negative.
    /// The bar is skipped: its order is that of the sizes.
    pub fn beside(self, table: Table, step: isize) -> Self {
        let is_sortable = |column: &Column| *column != Column::Bar;
        let sortable: Vec<_> = table.columns().iter().copied().filter(is_sortable).collect();
        let at = sortable.iter().position(|column| *column == self).unwrap_or_default() as isize;
        sortable[(at + step).clamp(0, sortable.len() as isize - 1) as usize]
    }
}

/// The columns of a table that fit into `width` characters, each with its own width. One blank is between two
/// columns.
pub fn fit(table: Table, width: usize) -> Vec<(Column, usize)> {
    let mut left = width;
    let mut fitting = Vec::new();
    for column in table.by_worth().iter().copied() {
        let needs = column.width() + usize::from(!fitting.is_empty());
        if needs > left {
            break;
        }
        left -= needs;
        fitting.push(column);
    }
    let mut columns: Vec<_> =
        table.columns().iter().filter(|column| fitting.contains(column)).map(|c| (*c, c.width())).collect();
    let growing = [(Column::Name, WIDEST_NAME), (Column::Bar, WIDEST_BAR), (Column::Stalls, WIDEST_STALLS)];
    for (grows, widest) in growing {
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

/// A time in microseconds in at most six characters: `17us`, `1.2s`; `-`: none.
fn time(us: u64) -> String {
    match us as f64 {
        0.0 => "-".to_owned(),
        us if us < 999.5 => format!("{us:.0}us"),
        us if us < 999_500.0 => format!("{:.0}ms", us / 1e3),
        us if us < 99_950_000.0 => format!("{:.1}s", us / 1e6),
        us if us < 99_999_500_000.0 => format!("{:.0}s", us / 1e6),
        us => format!("{:.0}h", (us / 3.6e9).min(99_999.0)),
    }
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
    use crate::top::sample::{Row, Stalls};
    use elbowroom::StallAverages;

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
        let of = |table, width| fit(table, width).into_iter().map(|(column, _)| column).collect::<Vec<_>>();
        let wide = |table, width| fit(table, width).iter().map(|(_, width)| width + 1).sum::<usize>();
        for table in Table::ALL {
            for width in 7..400 {
                assert!(wide(table, width) <= width + 1, "{width}");
                let fewer = of(table, width - 1).len();
                assert!(width == 7 || of(table, width).len() >= fewer, "{width}");
            }
            assert_eq!(of(table, 160), table.columns());
            let mut ordered = table.by_worth().to_vec();
            ordered.sort_by_key(|column| table.columns().iter().position(|other| other == column));
            assert_eq!(ordered, table.columns(), "each column is in both lists");
        }
        let (shown, sum) = (|width| of(Table::Use, width), |width| wide(Table::Use, width));
        use Column::{Bar, Faults, Low, Major, Name, Peak, Pid, Refaults, Size, Swap};
        assert_eq!(shown(60), [Pid, Name, Bar, Size, Swap, Faults, Refaults]);
        assert_eq!(shown(80), [Pid, Name, Bar, Size, Peak, Swap, Low, Faults, Major, Refaults]);
        assert_eq!((sum(60), sum(80), sum(140)), (61, 81, 141), "all of the width is used");
        assert_eq!((shown(7), shown(6)), (vec![Pid], vec![]));
        use Column::{File, Full10, Lock, Pool, Some10, Some60, Stalls, Wait};
        assert_eq!(of(Table::Pressure, 60), [Pid, Name, Some10, Some60, Full10, Stalls]);
        assert_eq!(of(Table::Tiers, 60), [Pid, Name, Size, Pool, File, Lock, Wait]);
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
        let table = Table::Use;
        assert_eq!(column.beside(table, -1), Column::Pid);
        for expected in table.columns().iter().filter(|column| **column != Column::Bar).skip(1) {
            column = column.beside(table, 1);
            assert_eq!(column, *expected);
        }
        assert_eq!((column.beside(table, 1), column.beside(table, -1)), (Column::Asked, Column::Refaults));
    }

    #[test]
    fn texts_of_a_row() {
        let mut gone = row(9, "make", 1 << 20, None);
        gone.row.is_gone = true;
        assert_eq!(Column::Name.text(&gone), "make (gone)");
        assert_eq!((Column::Size.text(&gone), Column::Low.text(&gone)), ("1M".to_owned(), "-".to_owned()));
        assert_eq!(Column::Faults.text(&gone), "-");
        assert_eq!(Column::Faults.text(&row(9, "make", 0, Some(1500.0))), "1.5k");
        // A process that has noted nothing yet, or not for some seconds, has no pressure that is known.
        assert_eq!(
            (Column::Some10.text(&gone), Column::Stalls.text(&gone)),
            ("-".to_owned(), "-".to_owned())
        );
    }

    #[test]
    fn what_a_process_stalls_for_is_named() {
        let mut process = row(9, "make", 1 << 20, None);
        let averages = StallAverages { avg10: 12.34, ..StallAverages::default() };
        let pressure = ProcessPressure { some: averages, file_read_us: 7, ..ProcessPressure::default() };
        process.row.shown.pressure = Some(pressure);
        let stalls = Stalls { inode: 77, stall_us: 7, ..Stalls::default() };
        process.row.shown.stalls = Some(stalls.clone());
        assert_eq!(
            (Column::Some10.text(&process), Column::Full10.text(&process)),
            ("12.3".into(), "0.0".into())
        );
        assert_eq!(Column::Stalls.text(&process), "read inode 77");
        process.row.shown.stalls = Some(Stalls { path: Some("/data/tokens.bin".to_owned()), ..stalls });
        assert_eq!(Column::Stalls.text(&process), "read tokens.bin");
        process.row.shown.pressure = Some(ProcessPressure { swap_in_us: 8, ..pressure });
        process.row.shown.stalls = Some(Stalls { address: 1 << 40, ..Stalls::default() });
        assert_eq!(Column::Stalls.text(&process), "swap-in memory");
    }

    #[test]
    fn times_are_short() {
        for (us, shown) in [
            (0, "-"),
            (17, "17us"),
            (1_500, "2ms"),
            (999_400, "999ms"),
            (1_250_000, "1.2s"),
            (100_000_000, "100s"),
            (3_600_000_000 * 100, "100h"),
        ] {
            assert_eq!(time(us), shown);
        }
        let mut us = 1_u64;
        while let Some(next) = us.checked_mul(3) {
            assert!(time(us).len() <= 6, "{us} {}", time(us));
            us = next / 2 + 1;
        }
    }
}
