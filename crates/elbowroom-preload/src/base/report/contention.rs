//! The table of `--contention`: which locks of the manager were waited for, how long, and where.

use crate::base::report::Nanos;
use elbowroom::{LockFigures, LockUse};
use std::fmt::{self, Display};

/// How many call sites the table has at most.
const MOST_CALLERS: usize = 30;

/// The statistics as text for people, most total wait first.
pub struct Table<'a> {
    /// The program's name.
    pub program: &'a str,
    /// The program's process id.
    pub pid: u32,
    /// The figures to show.
    pub locks: &'a LockUse,
}

impl Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockUse { by_lock, by_caller } = self.locks;
        writeln!(f, "elbowroom: locks of {} (pid {}), most total wait first", self.program, self.pid)?;
        writeln!(f, "{:>11} {:>9} {}  lock", "acquired", "contended", HEAD)?;
        for row in by_lock {
            // 0: of this lock only the waits are counted.
            let acquired = if row.acquisitions > 0 { row.acquisitions.to_string() } else { "-".to_owned() };
            writeln!(f, "{acquired:>11} {:>9} {}  {}", row.contended, Times(row), Name(row))?;
        }
        if by_caller.is_empty() {
            return writeln!(f, "  nobody has waited for a lock");
        }
        writeln!(f, "  how long they waited")?;
        let bounds = ["<1 us", "<10 us", "<100 us", "<1 ms", "<10 ms", "<100 ms", "<1 s", "longer"];
        writeln!(f, "{}  lock", Cells(bounds))?;
        for row in by_lock.iter().filter(|row| row.contended > 0) {
            writeln!(f, "{}  {}", Cells(row.waits_by_decade), Name(row))?;
        }
        writeln!(f, "  where they waited")?;
        writeln!(f, "{:>9} {}  lock, caller", "contended", HEAD)?;
        for row in by_caller.iter().take(MOST_CALLERS) {
            let caller = row.caller.as_deref().unwrap_or("call sites without room in the table");
            writeln!(f, "{:>9} {}  {}, {caller}", row.contended, Times(row), Name(row))?;
        }
        match by_caller.len().saturating_sub(MOST_CALLERS) {
            0 => Ok(()),
            more => writeln!(f, "  and at {more} more call sites, which --stats has"),
        }
    }
}

/// The titles of the columns of [`Times`].
const HEAD: &str = "total wait   avg wait   max wait   avg hold";

struct Times<'a>(&'a LockFigures);

impl Display for Times<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockFigures { wait_ns, wait_average_ns, wait_max_ns, .. } = *self.0;
        let (waited, held) = (self.0.contended > 0, self.0.holds_measured > 0);
        let cell = |known: bool, ns: u64| if known { Nanos(ns).to_string() } else { "-".to_owned() };
        let waits = [wait_ns, wait_average_ns, wait_max_ns].map(|ns| cell(waited, ns));
        waits.iter().try_for_each(|wait| write!(f, "{wait:>10} "))?;
        write!(f, "{:>10}", cell(held, self.0.hold_average_ns))
    }
}

struct Name<'a>(&'a LockFigures);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.lock)?;
        // All other locks are taken for writing only.
        if self.0.lock == "layout" { write!(f, " ({})", self.0.mode) } else { Ok(()) }
    }
}

struct Cells<T>([T; 8]);

impl<T: Display> Display for Cells<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|cell| write!(f, "{cell:>9}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(lock: &'static str, mode: &'static str, caller: Option<&str>, wait_ns: u64) -> LockFigures {
        let contended = u64::from(wait_ns > 0) * 2;
        LockFigures {
            lock,
            mode,
            lru_use: None,
            caller: caller.map(str::to_owned),
            acquisitions: 1234,
            contended,
            wait_ns,
            wait_average_ns: wait_ns / 2,
            wait_max_ns: wait_ns,
            waits_by_decade: [0, contended, 0, 0, 0, 0, 0, 0],
            holds_measured: u64::from(wait_ns > 0),
            hold_average_ns: 640,
            hold_max_ns: 640,
        }
    }

    fn shown(locks: &LockUse) -> String {
        Table { program: "a", pid: 7, locks }.to_string()
    }

    #[test]
    fn the_table_has_units_and_says_where() {
        let by_lock = vec![row("layout", "read", None, 2_500_000), row("lru", "write", None, 0)];
        let by_caller = vec![row("layout", "read", Some("src/a.rs:7"), 2_500_000)];
        let text = shown(&LockUse { by_lock, by_caller });
        assert_eq!(
            text,
            "elbowroom: locks of a (pid 7), most total wait first
   acquired contended total wait   avg wait   max wait   avg hold  lock
       1234         2     2.5 ms     1.2 ms     2.5 ms     640 ns  layout (read)
       1234         0          -          -          -          -  lru
  how long they waited
    <1 us   <10 us  <100 us    <1 ms   <10 ms  <100 ms     <1 s   longer  lock
        0        2        0        0        0        0        0        0  layout (read)
  where they waited
contended total wait   avg wait   max wait   avg hold  lock, caller
        2     2.5 ms     1.2 ms     2.5 ms     640 ns  layout (read), src/a.rs:7
"
        );
    }

    #[test]
    fn nobody_waited() {
        let text = shown(&LockUse { by_lock: vec![row("lru", "write", None, 0)], by_caller: Vec::new() });
        assert!(text.ends_with("  nobody has waited for a lock\n"), "{text}");
        assert!(text.lines().count() == 4 && !text.contains("where"), "{text}");
    }

    #[test]
    fn a_long_list_is_cut_and_says_so() {
        let by_caller = vec![row("cache", "write", None, 1_000); MOST_CALLERS + 2];
        let text = shown(&LockUse { by_lock: vec![row("cache", "write", None, 1_000)], by_caller });
        assert!(text.contains("call sites without room in the table"), "{text}");
        assert!(text.ends_with("  and at 2 more call sites, which --stats has\n"), "{text}");
    }
}
