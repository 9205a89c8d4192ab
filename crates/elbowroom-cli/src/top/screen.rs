//! The terminal: in raw mode and on the alternate screen for the view, and restored on every way out, also
//! after a panic or a signal.

use std::io::{self, Stdout, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui_core::buffer::Buffer;
use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::Show;
use ratatui_crossterm::crossterm::event::{self, Event};
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The terminal in raw mode and on the alternate screen. Restored when this is dropped.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Switches the terminal to raw mode and to the alternate screen.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> io::Result<Self> {
        let before = std::panic::take_hook();
        // The terminal is restored before the message of a panic is printed: the alternate screen vanishes
        // with its text.
        std::panic::set_hook(Box::new(move |about| {
            put_back();
            before(about);
        }));
        enable_raw_mode()?;
        let opened = execute!(stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())))
            .map(|terminal| Self { terminal });
        opened.inspect_err(|_| put_back())
    }

    /// Draws what `draw` puts on the screen.
    ///
    /// # Errors
    /// The kernel's.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        self.terminal.draw(|frame| draw(frame.buffer_mut())).map(drop)
    }

    /// Waits for an event of the terminal, for at most `bound`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn event(&self, bound: Duration) -> io::Result<Option<Event>> {
        event::poll(bound)?.then(event::read).transpose()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        put_back();
    }
}

/// Restores the terminal. Errors are ignored: they only mean that the terminal is gone.
fn put_back() {
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}

/// A flag that SIGHUP, SIGINT and SIGTERM set. They do not end the process at once, so that the terminal is
/// restored first.
pub struct Ended(Arc<AtomicBool>);

impl Ended {
    /// Makes the signals set the flag from now on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn watch() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, flag.clone())?;
        }
        Ok(Self(flag))
    }

    /// Whether such a signal has come.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
