//! The largest processes of a run, as a table of the summary. Allocates nothing.

use super::text::{Buffer, Bytes, line};
use elbowroom::{LargeProcess, LargestProcesses};
use std::fmt::{self, Display, Write};
use std::time::Duration;

/// A line of titles, and a line for each process; nothing if there is none.
pub(super) fn lines(f: &mut fmt::Formatter<'_>, largest: &LargestProcesses) -> fmt::Result {
    for (nth, process) in largest.iter().enumerate() {
        if nth == 0 {
            let titles = format_args!("    PID NAME                  PEAK     FAULTS    SWAPPED       TIME");
            line(f, "largest", titles)?;
        }
        let LargeProcess { pid, peak_bytes, faults, swapped_out_bytes, time, .. } = *process;
        let [peak, swapped] = [peak_bytes, swapped_out_bytes].map(Bytes);
        let (name, time) = (Padded::of(Name(process)), Padded::of(Seconds(time)));
        let [peak, swapped] = [peak, swapped].map(Padded::of);
        line(f, "", format_args!("{pid:>7} {name:15} {peak:>10} {faults:>10} {swapped:>10} {time:>10}"))?;
    }
    Ok(())
}

/// The text of a value in a buffer, which has a width, as the value itself does not.
struct Padded(Buffer<24>);

impl Padded {
    fn of(value: impl Display) -> Self {
        let mut text = Buffer::new();
        let _ = write!(text, "{value}");
        Self(text)
    }
}

impl Display for Padded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(std::str::from_utf8(self.0.as_bytes()).unwrap_or("?"))
    }
}

/// The name of a process. Bytes that a terminal would obey, or that are no ASCII, are shown as `?`.
struct Name<'a>(&'a LargeProcess);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |byte: u8| if matches!(byte, b' '..=b'~') { char::from(byte) } else { '?' };
        self.0.name().try_for_each(|byte| f.write_char(shown(byte)))
    }
}

/// A time in seconds with one decimal.
struct Seconds(Duration);

impl Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.0.as_secs_f64())
    }
}
