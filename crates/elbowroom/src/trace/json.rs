//! A trace as JSON, in the trace event format that Chrome's tracing and Perfetto's UI (ui.perfetto.dev) read.
//!
//! Times are in microseconds since the manager's start. What a thread does is a complete event (`X`) on that
//! thread's track; such events must lie inside each other or beside each other, so where the clocks of two
//! threads have a fault end a moment after the next one began, it is cut there. Reads, of which a handler has
//! many at once, are pairs of asynchronous events (`b` and `e`).

use super::{Entry, FaultEnd, Happened, NO_FILE, TraceSnapshot, Verb};
use crate::stats::WaitCause;
use elbowroom_sync::LockStats;
use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::io::{self, Write};

/// The process that a trace is about.
pub struct TraceAbout<'a> {
    /// The program's name.
    pub program: &'a str,
    /// The number of the process.
    pub pid: u32,
    /// The names of its threads, as far as they are known.
    pub thread_name: &'a dyn Fn(u32) -> Option<String>,
}

/// On which track an entry is shown, and as which kind of event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    OnTrack,
    Beside,
}

impl Entry {
    fn end_ns(&self) -> u64 {
        self.start_ns + self.took_ns
    }

    fn shape(&self) -> Shape {
        match self.what {
            Happened::Read | Happened::ReadError => Shape::Beside,
            // Its thread sleeps in the kernel, and its number is not known here.
            Happened::Throttle if self.numbers[0] != 0 => Shape::Beside,
            _ => Shape::OnTrack,
        }
    }
}

impl TraceSnapshot {
    /// Writes it as one JSON object. `otherData` has `kept_events` and `lost_events`, and where a thread has
    /// lost some, an event of the whole process at that time says how many.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_json(&self, out: &mut impl Write, about: &TraceAbout<'_>) -> io::Result<()> {
        let TraceAbout { program, pid, thread_name } = about;
        let mut entries = self.entries.clone();
        entries.sort_by_key(|entry| (entry.thread, entry.start_ns, u64::MAX - entry.end_ns()));
        nest(&mut entries);
        write!(
            out,
            "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"program\":{},\"pid\":{pid},\"kept_events\":{},\
             \"lost_events\":{},\"traced_ns\":{}}},\"traceEvents\":[\n{{\"ph\":\"M\",\"pid\":{pid},\
             \"tid\":{pid},\"name\":\"process_name\",\"args\":{{\"name\":{0}}}}}",
            Text(program),
            self.kept(),
            self.lost(),
            self.end_ns,
        )?;
        let threads: BTreeSet<u32> = entries.iter().map(|entry| entry.thread).collect();
        for (thread, name) in threads.into_iter().filter_map(|id| Some((id, thread_name(id)?))) {
            let name = Text(&name);
            write!(
                out,
                ",\n{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{thread},\"name\":\"thread_name\",\
                 \"args\":{{\"name\":{name}}}}}"
            )?;
        }
        for (at, lost) in &self.rings {
            let at = Micros(*at);
            write!(
                out,
                ",\n{{\"ph\":\"i\",\"s\":\"p\",\"pid\":{pid},\"tid\":{pid},\"ts\":{at},\"cat\":\"lost\",\
                 \"name\":\"{lost} events of a thread lost before\",\"args\":{{\"lost\":{lost}}}}}"
            )?;
        }
        for (number, entry) in entries.iter().enumerate() {
            self.write_entry(out, *pid, number, entry)?;
        }
        out.write_all(b"\n]}\n")
    }

    fn write_entry(&self, out: &mut impl Write, pid: u32, number: usize, entry: &Entry) -> io::Result<()> {
        let (start, end, thread) = (Micros(entry.start_ns), Micros(entry.end_ns()), entry.thread);
        let (name, category) = (Name(entry, &self.locks), category(entry.what));
        let head = format_args!("\"pid\":{pid},\"tid\":{thread},\"cat\":\"{category}\",\"name\":\"{name}\"");
        let args = Args(entry, &self.locks);
        match entry.shape() {
            Shape::OnTrack => {
                let took = Micros(entry.took_ns);
                write!(out, ",\n{{\"ph\":\"X\",{head},\"ts\":{start},\"dur\":{took},\"args\":{{{args}}}}}")
            }
            Shape::Beside => {
                write!(
                    out,
                    ",\n{{\"ph\":\"b\",\"id\":\"{number:#x}\",{head},\"ts\":{start},\"args\":{{{args}}}}},\n\
                     {{\"ph\":\"e\",\"id\":\"{number:#x}\",{head},\"ts\":{end}}}"
                )
            }
        }
    }
}

/// Makes the entries of a track lie inside each other or beside each other. `entries`: by thread, then by
/// their beginnings, the longest first.
fn nest(entries: &mut [Entry]) {
    // The entries in which the current one may lie, outermost first.
    let mut around: Vec<usize> = Vec::new();
    for this in 0..entries.len() {
        let Entry { thread, start_ns, what, .. } = entries[this];
        if entries[this].shape() == Shape::Beside {
            continue;
        }
        while let Some(&outer) = around.last() {
            let outer = &mut entries[outer];
            let over = outer.thread != thread || outer.end_ns() <= start_ns;
            // A thread has one fault at a time: the fault before is over.
            let cut = !over && matches!((outer.what, what), (Happened::Fault(_), Happened::Fault(_)));
            if cut {
                outer.took_ns = start_ns - outer.start_ns;
            }
            if !over && !cut {
                break;
            }
            around.pop();
        }
        if let Some(&outer) = around.last() {
            let end = entries[outer].end_ns();
            let this = &mut entries[this];
            this.took_ns = this.took_ns.min(end - this.start_ns);
        }
        around.push(this);
    }
}

fn category(what: Happened) -> &'static str {
    match what {
        Happened::Fault(_) => "fault",
        Happened::Wait(_) => "wait",
        Happened::Serve => "handler",
        Happened::Read | Happened::ReadError | Happened::Write | Happened::WriteError => "io",
        Happened::Reclaim | Happened::Grow => "memory",
        Happened::Throttle => "throttle",
        Happened::Verb(..) => "verb",
        Happened::Lock => "lock",
    }
}

/// The name of an event.
struct Name<'a>(&'a Entry, &'a LockStats);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(entry, locks) = self;
        f.write_str(match entry.what {
            Happened::Fault(FaultEnd::Minor) => "minor fault",
            Happened::Fault(FaultEnd::Major) => "major fault",
            Happened::Fault(FaultEnd::Denied) => "denied fault",
            Happened::Fault(FaultEnd::Foreign) => "foreign fault",
            Happened::Fault(FaultEnd::Stopped) => "stopped fault",
            Happened::Wait(WaitCause::Io) => "wait for a read",
            Happened::Wait(WaitCause::Writeback) => "wait for a write-back",
            Happened::Wait(WaitCause::FolioLock) => "wait for a folio's lock",
            Happened::Wait(WaitCause::Frame) => "wait for memory",
            Happened::Wait(WaitCause::Tables) => "wait for page tables",
            Happened::Wait(WaitCause::Writer) => "wait for a change of the layout",
            Happened::Wait(WaitCause::Pin) => "wait for a pinned page",
            Happened::Wait(WaitCause::Handler) => "wait for a handler",
            Happened::Wait(WaitCause::High) => "wait for less memory in use",
            Happened::Wait(WaitCause::Turn) => "wait for others",
            Happened::Serve => "serve",
            Happened::Read => "read",
            Happened::ReadError => "read error",
            Happened::Write => "write",
            Happened::WriteError => "write error",
            Happened::Reclaim => "reclaim",
            Happened::Grow => "grow the arena",
            Happened::Throttle => "throttle",
            Happened::Verb(Verb::Map, _) => "mmap",
            Happened::Verb(Verb::Unmap, _) => "munmap",
            Happened::Verb(Verb::Protect, _) => "mprotect",
            Happened::Verb(Verb::Remap, _) => "mremap",
            Happened::Verb(Verb::Advise, _) => "madvise",
            Happened::Verb(Verb::Sync, _) => "msync",
            Happened::Verb(Verb::Fork, _) => "fork",
            Happened::Verb(Verb::GiveBack, _) => "give back",
            Happened::Verb(Verb::Regroup, _) => "move to a group",
            Happened::Lock => {
                let site = locks.call_site(entry.numbers[0] as usize);
                return write!(f, "wait for lock {}", site.map_or("of many", |(what, _)| what.name()));
            }
        })
    }
}

/// What is between the braces of an event's arguments.
struct Args<'a>(&'a Entry, &'a LockStats);

impl Display for Args<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(entry, locks) = self;
        let [first, second] = entry.numbers;
        match entry.what {
            Happened::Fault(_) => {
                let access = if second == 1 { "store" } else { "load" };
                write!(f, "\"addr\":\"{first:#x}\",\"access\":\"{access}\"")
            }
            Happened::Wait(_) | Happened::Serve | Happened::Throttle => write!(f, "\"addr\":\"{first:#x}\""),
            Happened::Read | Happened::ReadError | Happened::Write | Happened::WriteError => {
                write!(f, "\"offset\":{first},\"bytes\":{second}")?;
                if entry.inode == NO_FILE { Ok(()) } else { write!(f, ",\"inode\":{}", entry.inode) }
            }
            Happened::Reclaim => write!(f, "\"wanted_pages\":{first},\"freed_pages\":{second}"),
            Happened::Grow => write!(f, "\"grown\":{}", first == 1),
            Happened::Verb(_, errno) => {
                write!(f, "\"addr\":\"{first:#x}\",\"bytes\":{second},\"errno\":{errno}")
            }
            Happened::Lock => match locks.call_site(first as usize) {
                Some((_, at)) => {
                    let file = Text(at.file());
                    write!(f, "\"file\":{file},\"line\":{}", at.line())
                }
                None => Ok(()),
            },
        }
    }
}

/// Nanoseconds as a number of microseconds, exactly.
struct Micros(u64);

impl Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// A string of JSON.
struct Text<'a>(&'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if u32::from(c) < 0x20 => write!(f, "\\u{:04x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}
