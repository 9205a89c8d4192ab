//! Injected faults, so that tests can see what happens when a disk fails, is slow or is full.
//!
//! [`Inject`] is the text, parsed; files and reactors ask it for a [`Verdict`] on each operation. Nothing
//! is random, except which of two operations that run at the same time is counted first.
//!
//! Synchronization: one atomic counter a rule.

use elbowroom_machine::Errno;
use elbowroom_options::duration;
use elbowroom_sync::atomic::{AtomicU64, Ordering};
use elbowroom_sync::time::Duration;

/// An operation on a file, or, for `Keep`, on a page of anonymous memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Open,
    Read,
    Write,
    Sync,
    Keep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Fail(Errno),
    Short,
    Slow(Duration),
    NoDirect,
    Corrupt,
}

/// What the rules do to one operation. The default is nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Fail with this error, and do nothing else.
    pub(crate) error: Option<Errno>,
    /// Ask for half of the bytes in the first system call.
    pub(crate) short: bool,
    /// Refuse O_DIRECT.
    pub(crate) no_direct: bool,
    /// Change a bit of the page that is kept.
    pub(crate) corrupt: bool,
    /// End the operation this much later.
    pub(crate) delay: Duration,
}

#[derive(Debug)]
struct Rule {
    operation: Operation,
    fault: Fault,
    file: String,
    from: u64,
    to: u64,
    after: u64,
    every: u64,
    times: u64,
    /// How many operations have met the conditions on file and range so far.
    matched: AtomicU64,
}

/// Faults to inject into a store, for tests, parsed from a text.
///
/// # Grammar
/// ```text
/// faults    := [ rule { "," rule } ]
/// rule      := operation ":" fault { ":" condition }
/// operation := "open" | "read" | "write" | "sync" | "keep"
/// fault     := "eio" | "enospc" | "short" | "slow=" DURATION | "nodirect" | "corrupt"
/// condition := "file=" TEXT | "from=" BYTES | "to=" BYTES | "after=" N | "every=" N | "times=" N
/// DURATION  := a duration as the command line has it: 500us, 5ms, 1.5s
/// ```
/// White space around a rule is ignored; BYTES and N are decimal digits. TEXT can contain neither `:` nor
/// `,`.
///
/// The faults, the operations that can have them, and what happens then:
/// * `eio`, `enospc` (read, write, sync): the operation fails with that error and moves no bytes.
/// * `short` (read, write): the first system call of the request asks for half of it.
/// * `slow=D` (read, write, sync): the operation ends D later than it would have. A slow read does not
///   delay other reads, unless 16 of them occupy all blocking threads.
/// * `nodirect` (open): the file system refuses O_DIRECT when the file is opened.
/// * `nodirect` (read, write): the file system refuses O_DIRECT (EINVAL) when it is used.
/// * `corrupt` (keep): a page of anonymous memory is kept, compressed, with one wrong bit. The conditions
///   on file and bytes do not apply.
///
/// A rule applies to an operation if all its conditions hold: `file` is a part of the path that the opened
/// descriptor resolves to; the operation's bytes overlap `from..to` (`from` included, `to` not; `open` and
/// `sync` concern the whole file). Of the operations that meet these conditions, `after` skips the first N,
/// `every` takes each Nth of the others, and `times` ends after N of those. If several rules apply, they
/// apply together; of two errors the first wins, of two delays the longer.
///
/// Example: `read:eio:file=NAME:from=4096:to=8192,write:enospc:after=3,read:slow=5ms,read:short`.
#[derive(Debug)]
pub struct Inject {
    rules: Vec<Rule>,
}

impl Inject {
    /// Parses the text. An empty text is no rules.
    ///
    /// # Errors
    /// A sentence that names the rule and the word that is wrong and says what would be right.
    pub fn parse(text: &str) -> Result<Inject, String> {
        let rules = text.split(',').map(str::trim).filter(|rule| !rule.is_empty());
        Ok(Inject { rules: rules.map(Rule::parse).collect::<Result<_, _>>()? })
    }

    /// Whether a page that is being kept, compressed, is to be corrupted. Counts the operation.
    pub fn corrupts_page(&self) -> bool {
        self.judge(Operation::Keep, "", 0, 0).corrupt
    }

    /// The verdict on `operation` on the bytes `offset..offset + len` of the file at `path`. Counts the
    /// operation.
    pub(crate) fn judge(&self, operation: Operation, path: &str, offset: u64, len: u64) -> Verdict {
        let mut verdict = Verdict::default();
        for rule in &self.rules {
            if !rule.holds(operation, path, offset, offset.saturating_add(len)) {
                continue;
            }
            match rule.fault {
                Fault::Fail(error) => verdict.error = verdict.error.or(Some(error)),
                Fault::Short => verdict.short = true,
                Fault::NoDirect => verdict.no_direct = true,
                Fault::Corrupt => verdict.corrupt = true,
                Fault::Slow(delay) => verdict.delay = verdict.delay.max(delay),
            }
        }
        verdict
    }
}

impl Rule {
    fn holds(&self, operation: Operation, path: &str, from: u64, to: u64) -> bool {
        let whole_file = matches!(operation, Operation::Open | Operation::Sync | Operation::Keep);
        let overlaps = whole_file || (from < self.to && self.from < to);
        if operation != self.operation || !overlaps || !path.contains(&self.file) {
            return false;
        }
        let earlier = self.matched.fetch_add(1, Ordering::Relaxed);
        earlier >= self.after && {
            let number = earlier - self.after;
            (number + 1).is_multiple_of(self.every) && number / self.every < self.times
        }
    }

    fn parse(text: &str) -> Result<Rule, String> {
        let wrong = |what: String| format!("fault rule `{text}`: {what}");
        let mut words = text.split(':');
        let operation = match words.next().unwrap_or_default() {
            "open" => Operation::Open,
            "read" => Operation::Read,
            "write" => Operation::Write,
            "sync" => Operation::Sync,
            "keep" => Operation::Keep,
            other => {
                return Err(wrong(format!("`{other}` is no operation; use open, read, write, sync or keep")));
            }
        };
        let fault = match words.next() {
            Some(word) => parse_fault(operation, word).map_err(wrong)?,
            None => return Err(wrong("it names no fault; write for example `read:eio`".to_owned())),
        };
        let (file, matched) = (String::new(), AtomicU64::new(0));
        let mut rule = Rule {
            operation,
            fault,
            file,
            from: 0,
            to: u64::MAX,
            after: 0,
            every: 1,
            times: u64::MAX,
            matched,
        };
        for word in words {
            rule.condition(word).map_err(wrong)?;
        }
        if rule.from >= rule.to {
            return Err(wrong("`from` must be below `to`".to_owned()));
        }
        Ok(rule)
    }

    fn condition(&mut self, word: &str) -> Result<(), String> {
        let number = |value: &str| {
            value.parse::<u64>().map_err(|_| format!("`{word}` needs a whole number in decimal digits"))
        };
        match word.split_once('=') {
            Some(("file", "")) => return Err("`file=` needs a part of a path".to_owned()),
            Some(("file", value)) => self.file = value.to_owned(),
            Some(("from", value)) => self.from = number(value)?,
            Some(("to", value)) => self.to = number(value)?,
            Some(("after", value)) => self.after = number(value)?,
            Some(("every", value)) => {
                self.every = number(value)?;
                if self.every == 0 {
                    return Err("`every=0` is none; use 1 or more".to_owned());
                }
            }
            Some(("times", value)) => self.times = number(value)?,
            _ => {
                return Err(format!(
                    "`{word}` is no condition; use file=TEXT, from=BYTES, to=BYTES, after=N, every=N or \
                     times=N"
                ));
            }
        }
        Ok(())
    }
}

fn parse_fault(operation: Operation, word: &str) -> Result<Fault, String> {
    let fault = match word.split_once('=') {
        None => match word {
            "eio" => Fault::Fail(Errno::IO),
            "enospc" => Fault::Fail(Errno::NOSPC),
            "short" => Fault::Short,
            "nodirect" => Fault::NoDirect,
            "corrupt" => Fault::Corrupt,
            _ => return Err(no_fault(word)),
        },
        Some(("slow", value)) => {
            let wrong = |error| format!("`slow={value}` needs a duration such as 500us, 5ms or 2s: {error}");
            Fault::Slow(duration::parse(value).map_err(wrong)?)
        }
        Some(_) => return Err(no_fault(word)),
    };
    let possible = match fault {
        Fault::NoDirect => !matches!(operation, Operation::Sync | Operation::Keep),
        Fault::Short => matches!(operation, Operation::Read | Operation::Write),
        Fault::Fail(_) | Fault::Slow(_) => !matches!(operation, Operation::Open | Operation::Keep),
        Fault::Corrupt => operation == Operation::Keep,
    };
    if !possible {
        return Err(format!(
            "`{word}` has no meaning for this operation; see the table in the documentation"
        ));
    }
    Ok(fault)
}

fn no_fault(word: &str) -> String {
    format!("`{word}` is no fault; use eio, enospc, short, slow=DURATION, nodirect or corrupt")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Inject {
        Inject::parse(text).unwrap()
    }

    #[test]
    fn the_documented_example_parses_and_selects() {
        let inject =
            parse("read:eio:file=NAME:from=4096:to=8192,write:enospc:after=3, read:slow=5ms,read:short");
        let slow_short = Verdict { short: true, delay: Duration::from_millis(5), ..Verdict::default() };
        assert_eq!(inject.judge(Operation::Read, "/a/NAME", 0, 4096), slow_short);
        let failed = Verdict { error: Some(Errno::IO), ..slow_short };
        assert_eq!(inject.judge(Operation::Read, "/a/NAME.x", 0, 4097), failed);
        assert_eq!(inject.judge(Operation::Read, "/a/NAME", 8191, 1), failed);
        assert_eq!(inject.judge(Operation::Read, "/a/NAME", 8192, 4096), slow_short);
        assert_eq!(inject.judge(Operation::Read, "/a/other", 4096, 1), slow_short);
        assert_eq!(inject.judge(Operation::Sync, "/a/NAME", 0, 0), Verdict::default());
        let writes: Vec<_> = (0..5).map(|_| inject.judge(Operation::Write, "x", 0, 1).error).collect();
        assert_eq!(writes, [None, None, None, Some(Errno::NOSPC), Some(Errno::NOSPC)]);
    }

    #[test]
    fn after_and_times_count_matching_operations_only() {
        let inject = parse("sync:eio:file=a:after=1:times=2");
        let mut failed = Vec::new();
        for path in ["/a", "/b", "/a", "/b", "/a", "/a"] {
            failed.push(inject.judge(Operation::Sync, path, 0, 0).error.is_some());
        }
        assert_eq!(failed, [false, false, true, false, true, false]);
    }

    #[test]
    fn every_takes_each_nth_after_those_that_are_skipped() {
        let inject = parse("read:eio:after=2:every=3:times=2");
        let failed = |_: &u64| inject.judge(Operation::Read, "/a", 0, 1).error.is_some();
        assert_eq!((1..20).filter(failed).collect::<Vec<_>>(), [5, 8]);
    }

    #[test]
    fn pages_that_are_kept_are_counted_like_operations() {
        let inject = parse("keep:corrupt:after=1:every=2:times=2,read:eio");
        let corrupted: Vec<_> = (0..7).map(|_| inject.corrupts_page()).collect();
        assert_eq!(corrupted, [false, false, true, false, true, false, false]);
        assert!(!parse("keep:corrupt:file=a").corrupts_page(), "no file has it");
    }

    #[test]
    fn durations_and_the_longest_delay() {
        let inject = parse("write:slow=500us,write:slow=2s,write:slow=3ms");
        assert_eq!(inject.judge(Operation::Write, "", 0, 1).delay, Duration::from_secs(2));
    }

    #[test]
    fn bad_texts_say_what_is_wrong() {
        for (text, part) in [
            ("erase:eio", "`erase` is no operation"),
            ("read", "names no fault"),
            ("read:eoi", "`eoi` is no fault"),
            ("read:slow=5", "needs a duration"),
            ("read:slow=99999999999999999999s", "needs a duration"),
            ("read:eio:from=1k", "whole number"),
            ("read:eio:from=5:to=5", "below `to`"),
            ("read:eio:path=x", "`path=x` is no condition"),
            ("read:eio:every=0", "`every=0` is none"),
            ("read:eio:file=", "part of a path"),
            ("sync:short", "no meaning"),
            ("open:eio", "no meaning"),
            ("keep:eio", "no meaning"),
            ("write:corrupt", "no meaning"),
        ] {
            let said = Inject::parse(text).unwrap_err();
            assert!(said.contains(part) && said.contains(text), "{text}: {said}");
        }
        assert_eq!(parse("").judge(Operation::Read, "x", 0, 1), Verdict::default());
    }
}
