//! Tests of what is drawn, with a terminal in memory.

use elbowroom::{ProcessPressure, ProcessUse, StallAverages};
use ratatui_core::backend::TestBackend;
use ratatui_core::style::Modifier;
use ratatui_core::terminal::Terminal;
use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use crate::top::columns::Table;
use crate::top::rates::History;
use crate::top::sample::{Contention, Row, RunPressure, Sample, Shown, Stalls, Tiers};

const MIB: u64 = 1 << 20;

fn row(pid: u32, name: &str, mib: u64, counted: u64) -> Row {
    let used = ProcessUse {
        faults: counted,
        major_faults: counted / 4,
        refaults: counted / 10,
        swapped_in: counted,
        ..ProcessUse::default()
    };
    Row {
        pid,
        name: name.to_owned(),
        bytes: mib * MIB,
        peak_bytes: 2 * mib * MIB,
        noted_ms: Some(counted),
        used,
        ..Row::default()
    }
}

/// The process, which stalls for a file.
fn stalling(row: Row) -> Row {
    let pressure = ProcessPressure {
        some: averages(12.34, 99.0),
        full: averages(1.5, 0.0),
        file_read_us: 7,
        ..ProcessPressure::default()
    };
    let path = Some("/data/tokens-of-a-long-name.bin".to_owned());
    let shown = Shown {
        pressure: Some(pressure),
        tiers: Tiers {
            pool_bytes: 32 * MIB,
            swap_file_bytes: 64 * MIB,
            out_bytes: 200 * MIB,
            ..Tiers::default()
        },
        contention: Contention { lock: Some("page-table".to_owned()), wait_us: 1_500_000, lru_wait_us: 17 },
        stalls: Some(Stalls { path, inode: 3, ..Stalls::default() }),
        high_stuck: 0,
    };
    Row { shown, ..row }
}

fn averages(avg10: f64, avg60: f64) -> StallAverages {
    StallAverages { avg10, avg60, ..StallAverages::default() }
}

/// A run of three processes, with rates.
fn report() -> Report {
    let sample = |age_ms, counted: u64| Sample {
        run: 1234,
        command: "make".to_owned(),
        age_ms,
        max_bytes: 512 * MIB,
        swap_max_bytes: 2048 * MIB,
        bytes: 384 * MIB,
        peak_bytes: 500 * MIB,
        swap_bytes: 256 * MIB,
        processes: 40,
        pressure: RunPressure { some: averages(12.34, 99.0), full: averages(1.5, 0.0) },
        rows: vec![
            Row { noted_ms: None, ..row(1234, "make", 0, 0) },
            Row { low_bytes: 64 * MIB, swap_bytes: 256 * MIB, ..stalling(row(1300, "cc1", 128, counted)) },
            Row { is_gone: true, asked_bytes: 8 * MIB, cost: 17, ..row(1301, "python3", 256, counted * 2) },
        ],
        ..Sample::default()
    };
    let mut history = History::default();
    history.next(sample(3_600_000, 1000));
    history.next(sample(3_661_000, 2000))
}

fn screen(width: u16, height: u16, view: &mut View, palette: Palette) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame.buffer_mut(), &report(), view, "", palette)).unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area().width);
    let row =
        |cells: &[ratatui_core::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
    buffer.content().chunks(width).map(|cells| row(cells).trim_end().to_owned()).collect()
}

fn drawn(width: u16, height: u16) -> Vec<String> {
    lines(&screen(width, height, &mut View::new(false), Palette::Colours))
}

#[test]
fn sixty_columns() {
    assert_eq!(
        drawn(60, 11),
        [
            "run 1234  make  up 1:01:01  3 processes  40 so far",
            "mem  [||||||||||||||||||||||       ] 384M of 512M, peak 500M",
            "swap [||||                         ] 256M of 2G",
            "flt 2k/s  maj 500/s  ref 200/s  swap in 7.8M/s  out 0B/s",
            "some 12.3 99.0 0.0 %  full 1.5 0.0 0.0 %  in 10, 60, 300 s",
            "    PID NAME            USED       SIZE   SWAP  FLT/S  REF/S",
            "   1301 python3 (gone)  ||||       256M      -     1k    100",
            "   1300 cc1             #|         128M   256M     1k    100",
            "   1234 make                         0B      -      -      -",
            "",
            "q leave  ? help  Tab pressure, tiers  / filter  < > sort",
        ]
    );
}

#[test]
fn eighty_columns() {
    let lines = drawn(80, 10);
    assert_eq!(lines[3], "flt 2k/s  maj 500/s  ref 200/s  swap in 7.8M/s  out 0B/s  read 0B/s  write 0B/s");
    assert_eq!(
        lines[5..9],
        [
            "    PID NAME           USED       SIZE   PEAK   SWAP    LOW  FLT/S  MAJ/S  REF/S",
            "   1301 python3 (gone) ||||       256M   512M      -      -     1k    250    100",
            "   1300 cc1            #|         128M   256M   256M    64M     1k    250    100",
            "   1234 make                        0B     0B      -      -      -      -      -",
        ]
    );
}

#[test]
fn a_hundred_and_sixty_columns() {
    let lines = drawn(160, 10);
    // The bar begins in column 24.
    let after_bar = |line: usize| {
        let (before, after) = lines[line].split_at(24);
        (before.trim().to_owned(), after.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let row = |before: &str, after: &str| (before.to_owned(), after.to_owned());
    assert_eq!(after_bar(5), row("PID NAME", "USED SIZE PEAK SWAP LOW COST FLT/S MAJ/S REF/S ASKED"));
    let bar = "|".repeat(30);
    assert_eq!(after_bar(6), row("1301 python3 (gone)", &format!("{bar} 256M 512M - - 17 1k 250 100 8M")));
    let bar = format!("{}{}", "#".repeat(8), "|".repeat(7));
    assert_eq!(after_bar(7), row("1300 cc1", &format!("{bar} 128M 256M 256M 64M 0 1k 250 100 -")));
    assert_eq!(after_bar(8), row("1234 make", "0B 0B - - 0 - - - -"));
}

#[test]
fn the_other_tables_in_sixty_columns() {
    let shown = |table| {
        let view = View::new(false);
        lines(&screen(60, 10, &mut view.of(table), Palette::None))[5..9].to_vec()
    };
    assert_eq!(
        shown(Table::Pressure),
        [
            "    PID NAME            SOME10 SOME60 FULL10 STALLS FOR",
            "   1300 cc1               12.3   99.0    1.5 read tokens-of-",
            "   1234 make                 -      -      - -",
            "   1301 python3 (gone)       -      -      - -",
        ]
    );
    assert_eq!(
        shown(Table::Tiers),
        [
            "    PID NAME              SIZE   POOL   FILE LOCK       WAIT",
            "   1301 python3 (gone)    256M      -      - -             -",
            "   1300 cc1               128M    32M    64M page-tab   1.5s",
            "   1234 make                0B      -      - -             -",
        ]
    );
}

#[test]
fn without_colour_nothing_is_coloured_and_the_text_is_the_same() {
    let mut view = View::new(false);
    let coloured = screen(80, 10, &mut view, Palette::Colours);
    let plain = screen(80, 10, &mut view, Palette::None);
    let has_colour = |buffer: &Buffer| buffer.content().iter().any(|cell| cell.fg != Color::Reset);
    assert!(has_colour(&coloured) && !has_colour(&plain));
    assert_eq!(lines(&coloured), lines(&plain));
    // Titles are reversed, and the title of the column that the rows are sorted by is bold as well.
    let title = plain.content().iter().skip(80 * 5).take(80);
    let sorted_by = title.filter(|cell| cell.modifier.contains(Modifier::BOLD | Modifier::REVERSED));
    assert_eq!(sorted_by.map(|cell| cell.symbol()).collect::<String>().trim(), "SIZE");
}

#[test]
fn any_size_can_be_drawn() {
    for width in 0..100 {
        for height in 0..12 {
            for mode in [Mode::Table, Mode::Help, Mode::Filter] {
                let mut view = View { mode, scroll: 5, ..View::new(true) };
                let mut buffer = Buffer::empty(ratatui_core::layout::Rect::new(0, 0, width, height));
                draw(&mut buffer, &report(), &mut view, "a note", Palette::None);
            }
        }
    }
}

#[test]
fn scrolling_stops_at_the_last_row() {
    let mut view = View::new(false);
    for _ in 0..50 {
        view.key(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE));
    }
    // Of eight lines the header has five, the titles one, the footer one.
    let last = lines(&screen(80, 8, &mut view, Palette::None));
    assert!(last[6].contains("1234 make"), "{last:?}");
    assert_eq!(view.scroll, 2);
    view.key(KeyEvent::new(KeyCode::Up, KeyModifiers::NONE));
    let before = lines(&screen(80, 8, &mut view, Palette::None));
    assert!(before[6].contains("1300 cc1"), "{before:?}");
}

#[test]
fn help_and_filter_are_shown() {
    let mut view = View { mode: Mode::Help, ..View::new(false) };
    let help = lines(&screen(60, 40, &mut view, Palette::None)).join("\n");
    for keys in ["q, Ctrl-C", "?, h", "Tab, t", "<, >", "Space, Left, Right"] {
        assert!(help.contains(keys), "{help}");
    }
    view = View { mode: Mode::Filter, filter: "cc".to_owned(), ..View::new(false) };
    let filtered = lines(&screen(60, 9, &mut view, Palette::None));
    assert_eq!((filtered[8].as_str(), filtered[7].as_str()), ("only rows with: cc_", ""));
    assert!(filtered[6].contains("1300 cc1"), "{filtered:?}");
}
