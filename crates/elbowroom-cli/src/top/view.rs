//! What the live view shows, and what keys do. Pure.

use ratatui_crossterm::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::top::columns::{Column, Table};
use crate::top::rates::{RatedRow, Report};

/// The state of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// The columns that are shown.
    pub table: Table,
    /// The column that rows are sorted by.
    pub sort: Column,
    /// Whether the rows are in reversed order.
    pub is_reversed: bool,
    /// Rows whose name or id does not have this text are hidden.
    pub filter: String,
    /// What keys mean.
    pub mode: Mode,
    /// How many rows are above the screen.
    pub scroll: usize,
    /// Whether a recording is shown: then keys can move to other samples.
    pub is_replay: bool,
}

/// What keys mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Keys are commands.
    Table,
    /// Any key leaves the help.
    Help,
    /// Keys are the text of the filter.
    Filter,
}

/// What is to be done after a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Draw the view again.
    Draw,
    /// Leave.
    Quit,
    /// Stop a recording, or go on with it.
    Pause,
    /// Go so many samples forward in a recording, or back.
    Step(isize),
}

/// The keys, for the help.
pub const KEYS: [(&str, &str); 14] = [
    ("q, Ctrl-C", "leave"),
    ("?, h", "this help"),
    ("Tab, t", "the next table: what processes have and do; pressure; tiers and locks"),
    ("/", "show only rows whose name or id has a text; Enter keeps it, Esc removes it"),
    ("m", "sort by size (memory)"),
    ("w", "sort by swap"),
    ("f", "sort by faults in a second"),
    ("r", "sort by refaults in a second: pages that came back"),
    ("c", "sort by cost: what others weigh before they ask the process for pages"),
    ("p, n", "sort by id, by name"),
    ("<, >", "sort by the column to the left, to the right"),
    ("i", "sort the other way round"),
    ("Up, Down, PgUp, PgDn, Home", "scroll"),
    ("Space, Left, Right", "in a recording: stop or go on, one sample back, one forward"),
];

/// How many rows a page key moves.
const PAGE: usize = 10;

impl View {
    /// The view at the start.
    pub fn new(is_replay: bool) -> Self {
        let (table, filter, mode) = (Table::Use, String::new(), Mode::Table);
        Self { table, sort: table.sort(), is_reversed: false, filter, mode, scroll: 0, is_replay }
    }

    /// The same view with the columns of another table, sorted as that is at first.
    pub fn of(&self, table: Table) -> Self {
        Self { table, sort: table.sort(), is_reversed: false, ..self.clone() }
    }

    /// The rows that are shown, in their order.
    pub fn rows<'r>(&self, report: &'r Report) -> Vec<&'r RatedRow> {
        let filter = self.filter.to_lowercase();
        let is_shown = |row: &&RatedRow| {
            row.row.name.to_lowercase().contains(&filter) || row.row.pid.to_string().contains(&filter)
        };
        let mut rows: Vec<_> = report.rows.iter().filter(is_shown).collect();
        rows.sort_by(|one, other| self.sort.order(one, other));
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }

    /// Handles a key. Returns what is to be done.
    pub fn key(&mut self, key: KeyEvent) -> Action {
        if key.kind == KeyEventKind::Release {
            return Action::Draw;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Action::Quit } else { Action::Draw };
        }
        match self.mode {
            Mode::Table => return self.command(key.code),
            Mode::Help if key.code == KeyCode::Char('q') => return Action::Quit,
            Mode::Help => self.mode = Mode::Table,
            Mode::Filter => self.edit_filter(key.code),
        }
        Action::Draw
    }

    fn edit_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.mode = Mode::Table,
            KeyCode::Esc => {
                self.filter.clear();
                self.mode = Mode::Table;
            }
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        self.scroll = 0;
    }

    fn command(&mut self, key: KeyCode) -> Action {
        match key {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Tab | KeyCode::Char('t') => *self = self.of(self.table.next()),
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('m') => self.sort_by(Column::Size),
            KeyCode::Char('w') => self.sort_by(Column::Swap),
            KeyCode::Char('f') => self.sort_by(Column::Faults),
            KeyCode::Char('r') => self.sort_by(Column::Refaults),
            KeyCode::Char('c') => self.sort_by(Column::Cost),
            KeyCode::Char('p') => self.sort_by(Column::Pid),
            KeyCode::Char('n') => self.sort_by(Column::Name),
            KeyCode::Char('<') => self.sort_by(self.sort.beside(self.table, -1)),
            KeyCode::Char('>') => self.sort_by(self.sort.beside(self.table, 1)),
            KeyCode::Char('i') => self.is_reversed = !self.is_reversed,
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down => self.scroll = self.scroll.saturating_add(1),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(PAGE),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_add(PAGE),
            KeyCode::Home => self.scroll = 0,
            KeyCode::Char(' ') if self.is_replay => return Action::Pause,
            KeyCode::Left if self.is_replay => return Action::Step(-1),
            KeyCode::Right if self.is_replay => return Action::Step(1),
            _ => {}
        }
        Action::Draw
    }

    fn sort_by(&mut self, column: Column) {
        (self.sort, self.is_reversed, self.scroll) = (column, false, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample::Row;

    fn press(view: &mut View, keys: &str) -> Action {
        let key = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE);
        keys.chars().map(|c| view.key(key(c))).last().unwrap()
    }

    fn key(view: &mut View, code: KeyCode) -> Action {
        view.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn report() -> Report {
        let row = |pid, name: &str, bytes| RatedRow {
            row: Row { pid, name: name.to_owned(), bytes, ..Row::default() },
            rates: None,
        };
        let rows = vec![row(11, "make", 5), row(12, "Cc1", 50), row(23, "cc1", 40), row(31, "as", 1)];
        Report { rows, ..Report::default() }
    }

    fn shown(view: &View) -> Vec<u32> {
        view.rows(&report()).iter().map(|row| row.row.pid).collect()
    }

    #[test]
    fn keys_sort() {
        let mut view = View::new(false);
        assert_eq!(shown(&view), [12, 23, 11, 31]);
        press(&mut view, "i");
        assert_eq!(shown(&view), [31, 11, 23, 12]);
        press(&mut view, "p");
        assert_eq!((shown(&view), view.is_reversed), (vec![11, 12, 23, 31], false));
        press(&mut view, ">");
        assert_eq!((shown(&view), view.sort), (vec![12, 31, 23, 11], Column::Name));
        for (name, column) in
            [("m", Column::Size), ("w", Column::Swap), ("f", Column::Faults), ("r", Column::Refaults)]
        {
            press(&mut view, name);
            assert_eq!(view.sort, column);
        }
    }

    #[test]
    fn a_key_goes_from_table_to_table() {
        let mut view = View::new(false);
        press(&mut view, "/c");
        key(&mut view, KeyCode::Enter);
        for (table, sort) in [
            (Table::Pressure, Column::Some10),
            (Table::Tiers, Column::Size),
            (Table::Use, Column::Size),
            (Table::Pressure, Column::Some10),
        ] {
            key(&mut view, KeyCode::Tab);
            assert_eq!((view.table, view.sort, view.filter.as_str()), (table, sort, "c"));
        }
        press(&mut view, ">");
        assert_eq!(view.sort, Column::Some60);
        press(&mut view, "t");
        assert_eq!(view.table, Table::Tiers);
    }

    #[test]
    fn a_filter_is_typed_kept_and_removed() {
        let mut view = View::new(false);
        // In a filter q is a letter.
        assert_eq!(press(&mut view, "/cq"), Action::Draw);
        assert_eq!((shown(&view), view.mode), (vec![], Mode::Filter));
        key(&mut view, KeyCode::Backspace);
        assert_eq!(shown(&view), [12, 23], "capitals and others are alike");
        key(&mut view, KeyCode::Enter);
        assert_eq!((shown(&view), view.mode), (vec![12, 23], Mode::Table));
        key(&mut view, KeyCode::Esc);
        assert_eq!(shown(&view).len(), 4);
        press(&mut view, "/3");
        assert_eq!(shown(&view), [23, 31], "ids, too");
        key(&mut view, KeyCode::Esc);
        assert_eq!((shown(&view).len(), view.mode), (4, Mode::Table));
    }

    #[test]
    fn keys_that_leave() {
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for before in ["m", "?", "/x"] {
            let mut view = View::new(false);
            press(&mut view, before);
            assert_eq!(view.key(control_c), Action::Quit, "after {before}");
        }
        let mut view = View::new(false);
        assert_eq!(press(&mut view, "q"), Action::Quit);
        assert_eq!(press(&mut view, "?x"), Action::Draw);
        assert_eq!(view.mode, Mode::Table);
        assert_eq!(press(&mut view, "?q"), Action::Quit);
    }

    #[test]
    fn only_in_a_recording_keys_move_in_time() {
        let mut live = View::new(false);
        assert_eq!((press(&mut live, " "), key(&mut live, KeyCode::Left)), (Action::Draw, Action::Draw));
        let mut replay = View::new(true);
        assert_eq!(press(&mut replay, " "), Action::Pause);
        assert_eq!(key(&mut replay, KeyCode::Left), Action::Step(-1));
        assert_eq!(key(&mut replay, KeyCode::Right), Action::Step(1));
    }
}
