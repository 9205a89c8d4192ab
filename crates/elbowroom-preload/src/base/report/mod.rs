//! The summary at the end: text for people, JSON for `--stats`. No allocation here, so that a process can
//! report from wherever it ends.

pub mod contention;
mod groups;
mod largest;
mod text;

pub use self::groups::GroupFigures;
use self::text::line;
pub use self::text::{Buffer, Bytes, Nanos};
use crate::base::config::Heap;
use crate::base::reason::{Counts, Met, NAMES, Reason};
use crate::base::state::{self, Process};
use crate::base::{run, sys, tree};
use elbowroom::{Brought, LargestProcesses, LockUse, PressureUse, RunTotals, Stats, SwapFileIo};
use serde::{Serialize, Serializer};
use std::fmt::{self, Display};
use std::sync::atomic::Ordering;

/// CAP_SYS_ADMIN, which is needed to watch files for other processes.
const CAP_SYS_ADMIN: u32 = 21;

/// What is reported.
#[derive(Serialize)]
pub struct Report<'a> {
    /// The manager's figures.
    #[serde(flatten)]
    pub stats: Stats,
    /// How the manager's locks were used. Empty, and without an allocation, if there is no manager.
    pub locks: LockUse,
    /// The time that threads lost because memory lacked. As `locks` if there is no manager.
    pub pressure: PressureUse,
    /// The memory groups that were asked for. As `locks` if there is no manager.
    #[serde(serialize_with = "groups::as_map", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupFigures<'a>>,
    /// Forked processes of this program's tree that neither executed a program nor got a manager.
    pub forked_unmanaged: u64,
    /// The run, of which the process is one, so far; in the report of the process that the command became.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunTotals>,
    /// The largest processes of the run, if they are asked for, in the same report.
    #[serde(skip)]
    pub largest: Option<LargestProcesses>,
    /// What was left to the kernel.
    #[serde(flatten, serialize_with = "as_maps")]
    pub left_to_kernel: Left<'a>,
    /// The process.
    pub pid: u32,
    /// The program's name as it was called.
    pub program: &'a str,
    /// Whether there was a manager at all.
    #[serde(skip)]
    pub managed: bool,
}

/// Two maps with the names of the reasons as keys.
fn as_maps<S: Serializer>(left: &Left<'_>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Maps<T, B> {
        left_to_kernel: T,
        left_to_kernel_bytes: B,
    }
    let times = Map(left.counts, |met| met.times);
    let bytes = Map(left.counts, |met| met.bytes);
    Maps { left_to_kernel: times, left_to_kernel_bytes: bytes }.serialize(serializer)
}

/// Serializes as one figure of each reason that was met.
struct Map<'a>(&'a Counts, fn(&Met) -> u64);

impl Serialize for Map<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.met().map(|met| (met.name, (self.1)(&met))))
    }
}

impl Report<'_> {
    /// The JSON object and a newline.
    ///
    /// # Errors
    /// When `out` has no room.
    pub fn json(&self, mut out: impl std::io::Write) -> std::io::Result<()> {
        serde_json::to_writer(&mut out, self)?;
        out.write_all(b"\n")
    }
}

impl Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = &self.stats;
        writeln!(f, "elbowroom: {} (pid {})", self.program, self.pid)?;
        if self.managed {
            let (budget, peak) = (Bytes(stats.budget_bytes), Bytes(stats.peak_bytes));
            line(f, "memory", format_args!("{peak} at most, of {budget}"))?;
            if let Some(need) = &stats.need {
                let (allocated, needed) = (Bytes(need.allocated_bytes), Bytes(need.needed_bytes));
                line(f, "", format_args!("{allocated} allocated, {needed} needed"))?;
            }
            line(
                f,
                "faults",
                format_args!("{} minor, {} major", stats.pgfault - stats.pgmajfault, stats.pgmajfault),
            )?;
            let [p50, p99, max] = [stats.fault_p50_ns, stats.fault_p99_ns, stats.fault_max_ns].map(Nanos);
            line(f, "fault latency", format_args!("p50 {p50}, p99 {p99}, max {max}"))?;
            let (read, written) = (Bytes(stats.read_bytes), Bytes(stats.written_bytes));
            line(f, "input/output", format_args!("{read} read, {written} written"))?;
            if stats.pswpout > 0 {
                let [out, back] = [stats.pswpout, stats.pswpin].map(|n| Bytes(n * sys::PAGE as u64));
                line(f, "swap", format_args!("{out} out, {back} in, {} errors", stats.swap_errors))?;
            }
            let SwapFileIo { swap_read_bytes, swap_written_bytes } = stats.swap_io;
            if swap_read_bytes + swap_written_bytes > 0 {
                let (read, written) = (Bytes(swap_read_bytes), Bytes(swap_written_bytes));
                line(f, "swap file", format_args!("{read} read, {written} written"))?;
            }
            let (reads, writes, lost) = (stats.read_errors, stats.write_errors, stats.lost_dirty_pages);
            line(
                f,
                "I/O errors",
                format_args!("{reads} reads, {writes} writes, {lost} pages of stores lost"),
            )?;
            pressure_line(f, &self.pressure)?;
            more_memory_line(f, stats)?;
            groups::lines(f, &self.groups)?;
            line(f, "layout lock", format_args!("taken by {} faults", stats.layout_lock_faults))?;
        } else {
            line(f, "memory", format_args!("nothing was managed, of {}", Bytes(stats.budget_bytes)))?;
        }
        if let Some(run) = self.run.as_ref().filter(|run| run.processes > 1) {
            let (processes, peak, max) = (run.processes, Bytes(run.peak_bytes), Bytes(run.max_bytes));
            line(f, "whole run", format_args!("{processes} processes, {peak} at most, of {max} together"))?;
            let (faults, major) = (run.used.faults, run.used.major_faults);
            let [out, back] =
                [run.used.swapped_out, run.used.swapped_in].map(|n| Bytes(n * sys::PAGE as u64));
            let minor = faults.saturating_sub(major);
            line(f, "", format_args!("{minor} minor faults, {major} major; swap: {out} out, {back} in"))?;
        }
        if let Some(largest) = &self.largest {
            largest::lines(f, largest)?;
        }
        if stats.userfaultfd.served == "user-mode" {
            line(f, "faults served", format_args!("of instructions only (`elbowroom doctor`)"))?;
        }
        if self.forked_unmanaged > 0 {
            let n = self.forked_unmanaged;
            line(f, "forked children", format_args!("nothing was managed in {n} of them"))?;
        }
        self.left_to_kernel.fmt(f)
    }
}

/// The time in which threads stalled, if that is more than a hundredth of all.
fn pressure_line(f: &mut fmt::Formatter<'_>, pressure: &PressureUse) -> fmt::Result {
    let PressureUse { elapsed_us, some, full, kinds, .. } = pressure;
    let percent = |us: u64| 100.0 * us as f64 / (*elapsed_us).max(1) as f64;
    if percent(some.total_us) <= 1.0 {
        return Ok(());
    }
    let kinds = [
        ("file reads", kinds.file_read_us),
        ("swap", kinds.swap_in_us),
        ("free memory", kinds.frames_us),
        ("write-back", kinds.dirty_us),
    ];
    let (most, us) = kinds.into_iter().max_by_key(|(_, us)| *us).unwrap_or_default();
    let all: u64 = kinds.iter().map(|(_, us)| us).sum();
    let part = 100.0 * us as f64 / all.max(1) as f64;
    let [some, full] = [some, full].map(|time| percent(time.total_us));
    line(
        f,
        "pressure",
        format_args!("threads waited {some:.1} % of the time, all {full:.1} %; {part:.0} % for {most}"),
    )
}

/// What more memory would have spared, if some megabytes came back.
fn more_memory_line(f: &mut fmt::Formatter<'_>, stats: &Stats) -> fmt::Result {
    const LEAST_PAGES: u64 = 1024;
    const LEAST_PERCENT: f64 = 1.0;
    let back = stats.brought.refault_pages + stats.pswpin;
    let part = |near: u64| 100.0 * near.min(back) as f64 / back.max(1) as f64;
    let Brought { near_quarter_pages, near_half_pages, near_pages, .. } = stats.brought;
    let [quarter, half, twice] = [near_quarter_pages, near_half_pages, near_pages].map(part);
    // With `--memory auto` pages did not go because memory was short.
    if stats.need.is_some() || back < LEAST_PAGES || twice < LEAST_PERCENT {
        return Ok(());
    }
    let back = Bytes(back * sys::PAGE as u64);
    line(
        f,
        "more memory",
        format_args!(
            "a quarter more would have spared {quarter:.0} % of the {back} that came back, half more \
             {half:.0} %, twice as much {twice:.0} %"
        ),
    )
}

/// What was left to the kernel, and what can be done about it.
pub struct Left<'a> {
    /// How much, by reason.
    pub counts: &'a Counts,
    /// The name of another process that had a file open, when a file was first left to the kernel for that
    /// reason.
    pub user_of_file: Option<&'a str>,
    /// Whether the process has CAP_SYS_ADMIN. Without it, no file can be watched for other processes.
    pub may_watch: bool,
    /// Nothing was managed, and only small blocks of the heap could have been, which `--heap` leaves out.
    pub small_blocks: bool,
}

impl Display for Left<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut title = "left to kernel";
        for Met { name, words, times, bytes } in self.counts.met_by_size() {
            let calls = if times == 1 { "call" } else { "calls" };
            if bytes > 0 {
                let bytes = Bytes(bytes);
                line(f, title, format_args!("{bytes} in {times} {calls}: {words} ({name})"))?;
            } else {
                line(f, title, format_args!("{times} {calls}: {words} ({name})"))?;
            }
            title = "";
            if name == NAMES[Reason::NotAlone as usize] {
                self.explain_other_users(f)?;
            }
        }
        if title.is_empty() {
            return Ok(());
        }
        let small = match state::serves_user_mode_only() {
            true => "small blocks of the heap",
            false => "small blocks of the heap (--heap all manages them)",
        };
        line(f, title, format_args!("{}", if self.small_blocks { small } else { "nothing" }))
    }
}

impl Left<'_> {
    /// Says why a file that other processes may use is not managed, and which option helps.
    fn explain_other_users(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.user_of_file, self.may_watch) {
            (Some(user), _) => line(f, "", format_args!("  open in {user}"))?,
            (None, false) => {
                let lack = "CAP_SYS_ADMIN is missing, by which files are watched for other processes";
                line(f, "", format_args!("  {lack}"))?;
            }
            (None, true) => {}
        }
        let way = "--sharing trust manages them: right where nobody else writes to them";
        line(f, "", format_args!("  {way}"))
    }
}

/// The figures of a process, with those of its manager if there is one.
pub fn report_of(process: &Process, figures: Option<(Stats, LockUse, PressureUse)>) -> Report<'_> {
    let managed = figures.is_some();
    let budget_bytes = state::options().map_or(0, |options| options.memory_bytes);
    let is_main = state::options().is_some_and(|options| options.main_pid == sys::getpid());
    let is_verbose = state::options().is_some_and(|options| options.report.verbose);
    let (stats, locks, pressure) = figures.unwrap_or_else(|| {
        (Stats { budget_bytes, ..Stats::default() }, LockUse::default(), PressureUse::default())
    });
    Report {
        stats,
        locks,
        pressure,
        groups: Vec::new(),
        forked_unmanaged: tree::unmanaged_children(),
        run: if is_main { run::totals() } else { None },
        largest: if is_main && is_verbose { run::largest() } else { None },
        left_to_kernel: Left {
            counts: &process.left,
            // SAFETY: null, or leaked.
            user_of_file: unsafe { process.user_of_file.load(Ordering::Acquire).as_ref() }
                .map(String::as_str),
            may_watch: sys::has_capability(CAP_SYS_ADMIN),
            small_blocks: !managed && state::options().is_some_and(|options| options.heap == Heap::Large),
        },
        pid: sys::getpid(),
        program: program_name(),
        managed,
    }
}

/// The name of the program as it was called.
pub fn program_name() -> &'static str {
    unsafe extern "C" {
        static program_invocation_short_name: *const libc::c_char;
    }
    // SAFETY: libc sets it before any of our code can end the process, to a string that is never freed.
    let name = unsafe {
        if program_invocation_short_name.is_null() {
            return "?";
        }
        std::ffi::CStr::from_ptr(program_invocation_short_name)
    };
    name.to_str().unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    fn of(counts: &Counts) -> Left<'_> {
        Left { counts, user_of_file: None, may_watch: true, small_blocks: false }
    }

    #[test]
    fn units_are_for_people() {
        let bytes = [0, 1023, 1024, 1536, 240 << 20, (1 << 30) - 1, 5 << 40].map(|n| Bytes(n).to_string());
        assert_eq!(bytes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "240.0 MiB", "1.0 GiB", "5.0 TiB"]);
        let times = [999, 1_000, 2_340_000, 9_500_000_000].map(|n| Nanos(n).to_string());
        assert_eq!(times, ["999 ns", "1.0 us", "2.3 ms", "9.5 s"]);
    }

    #[test]
    fn what_could_have_been_managed_is_named() {
        let left = Counts::new();
        assert_eq!(of(&left).to_string(), "  left to kernel  nothing\n");
        let text = Left { small_blocks: true, ..of(&left) }.to_string();
        assert!(text.contains("small blocks") && text.contains("--heap all"), "{text}");
        left.count(Reason::TooSmall, 4096);
        assert!(!Left { small_blocks: true, ..of(&left) }.to_string().contains("small blocks"));
    }

    #[test]
    fn the_statistics_are_one_json_object() {
        let left = Counts::new();
        left.count(Reason::TooSmall, 12_288);
        let stats = Stats { budget_bytes: 16 << 20, ..Stats::default() };
        let report = Report {
            stats,
            locks: LockUse::default(),
            pressure: PressureUse::default(),
            groups: Vec::new(),
            run: None,
            largest: None,
            forked_unmanaged: 3,
            left_to_kernel: of(&left),
            pid: 9,
            program: "a \"b\"",
            managed: false,
        };
        let mut out = Vec::new();
        report.json(&mut out).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["budget_bytes"], 16 << 20);
        assert_eq!(value["left_to_kernel"], serde_json::json!({"too_small": 1}));
        assert_eq!((&value["pid"], &value["program"]), (&9.into(), &"a \"b\"".into()));
        assert_eq!(value["forked_unmanaged"], 3);
        assert_eq!(value["locks"], serde_json::json!({"by_lock": [], "by_caller": []}));
        assert_eq!(value["pressure"]["some"]["total_us"], 0);
        assert_eq!(value["left_to_kernel_bytes"], serde_json::json!({"too_small": 12_288}));
        assert!(
            report.to_string().contains("\n  left to kernel  12.0 KiB in 1 call: shorter than"),
            "{report}"
        );
        assert!(report.to_string().contains("nothing was managed in 3 of them"));
    }

    #[test]
    fn what_went_out_is_said_if_anything_did() {
        let left = Counts::new();
        let report = |pswpout| Report {
            stats: Stats {
                pswpout,
                pswpin: pswpout / 2,
                swap_io: SwapFileIo { swap_written_bytes: 16 * pswpout, ..SwapFileIo::default() },
                ..Stats::default()
            },
            locks: LockUse::default(),
            pressure: PressureUse::default(),
            groups: Vec::new(),
            run: None,
            largest: None,
            forked_unmanaged: 0,
            left_to_kernel: of(&left),
            pid: 9,
            program: "a",
            managed: true,
        };
        let text = report(512).to_string();
        let swap = "\n  swap            2.0 MiB out, 1.0 MiB in, 0 errors\n\
                    \x20 swap file       0 B read, 8.0 KiB written\n";
        assert!(text.contains(swap), "{text}");
        assert!(text.contains("\n  input/output    0 B read, 0 B written\n"), "{text}");
        assert!(!report(0).to_string().contains("swap"));
    }

    #[test]
    fn other_users_of_a_file_are_named_or_the_right_that_is_missing() {
        let counts = Counts::new();
        counts.count(Reason::NotAlone, 3 << 20);
        counts.count(Reason::NotAlone, 1 << 20);
        counts.count(Reason::Stdio, 0);
        let text = |user_of_file, may_watch| Left { user_of_file, may_watch, ..of(&counts) }.to_string();
        let named = text(Some("sleep (pid 7)"), true);
        assert!(named.starts_with("  left to kernel  4.0 MiB in 2 calls: another process"), "{named}");
        assert!(named.contains("  open in sleep (pid 7)\n") && named.contains("--sharing trust"), "{named}");
        assert!(
            named.ends_with("\n                  1 call: a stdio stream or aio uses the file (stdio)\n"),
            "{named}"
        );
        assert!(text(None, false).contains("CAP_SYS_ADMIN is missing"));
        assert!(!text(None, true).contains("CAP_SYS_ADMIN"));
    }

    #[test]
    fn pressure_is_said_from_a_hundredth_of_the_time_on() {
        struct Line(PressureUse);
        impl Display for Line {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                pressure_line(f, &self.0)
            }
        }
        let mut pressure = PressureUse { elapsed_us: 1_000_000, ..PressureUse::default() };
        assert_eq!(Line(pressure.clone()).to_string(), "");
        pressure.some.total_us = 10_000;
        assert_eq!(Line(pressure.clone()).to_string(), "");
        (pressure.some.total_us, pressure.full.total_us) = (125_000, 60_000);
        (pressure.kinds.file_read_us, pressure.kinds.swap_in_us) = (50_000, 150_000);
        let text = "  pressure        threads waited 12.5 % of the time, all 6.0 %; 75 % for swap\n";
        assert_eq!(Line(pressure).to_string(), text);
    }

    #[test]
    fn a_full_buffer_cuts_off() {
        let mut buffer = Buffer::<4>::new();
        write!(buffer, "abcdef").unwrap();
        assert_eq!(buffer.as_bytes(), b"abcd");
    }
}
