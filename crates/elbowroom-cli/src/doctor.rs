//! `elbowroom doctor`: what this machine allows, which mode `run` will use, and what to change to get a
//! better one.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use elbowroom::{Config, DefaultSwap};
use elbowroom_machine::ShallowIdle;
use elbowroom_machine::probe::{Groups, Probe, Trial, probe, start};
use elbowroom_options::size::Shown;
use elbowroom_options::{Faults, Io, Mmu};
use elbowroom_store::{Errno, LEAST_DESCRIPTORS, Trials};
use serde::Serialize;

use crate::plan::{self, Mode};
use crate::swap::usual_directory;

mod fix;

/// Say what this machine or container allows, and what to change
///
/// Everything is tried, not looked up: a page is really moved, a ring is really made. Nothing is left behind.
/// Exits with 0 if `elbowroom run` would work here, else with 1.
#[derive(Args)]
#[command(after_long_help = KEYS)]
pub struct DoctorArgs {
    /// Print a JSON object instead; `--help` describes it
    #[arg(long)]
    json: bool,
    /// Print what is missing for users who are not root and, as root, do it
    ///
    /// It outlives a reboot: a group `elbowroom` that may use /dev/userfaultfd and /dev/cpu_dma_latency by a
    /// udev rule, the user who has called sudo in it, and settings of sysctl.
    #[arg(long, conflicts_with = "json")]
    fix: bool,
}

const KEYS: &str = "Keys of the JSON object; more may be added, these stay:
  elbowroom_version        text
  can_run                  whether `elbowroom run` would work
  mode                     {userfaultfd: device|syscall|user-mode, mmu: move|copy, io: uring|threads};
                           null if it cannot run
  default_memory_bytes     the budget of a run without --memory
  default_swap             bytes: of such a run without --swap, 0: there is no place for it;
                           directory; lack: what the directory lacks for four times the budget, or null
  advice                   [{about, required, text}]; required: without it `run` cannot work
  sharing                  watch, lease (trials): what `--sharing auto` needs to manage files that are
                           stored to, and files that are only read
  shallow_idle             trial: whether idle processors can be kept awake (`--idle shallow`)
  probe                    what was found:
    kernel_release, page_bytes
    userfaultfd            device, syscall, user_mode_only (trials), sysctl_unprivileged,
                           feature_bits, features, move_page, copy_page, write_protect, poison (trials)
    io_uring               ring (trial), feature_bits, sysctl_disabled
    huge_pages             mode: always|madvise|never, huge_page_bytes
    memory                 total_bytes, available_bytes, overcommit_mode
    limits                 max_map_count, rlimit_memlock_bytes, rlimit_nofile, rlimit_nofile_hard,
                           rlimit_address_space_bytes, rlimit_data_bytes (null: no limit)
    start                  what a process needs to be managed: procfs (trial), calls (trial: no filter
                           denies a system call that it needs), threads (trial: there is room for so many
                           as thread_count), addresses (trial: the limits leave or can be given room for
                           reserved_bytes)
    memory_cgroup          version: 1|2, path, limit_bytes, left_bytes (null: no limit), used_bytes,
                           can_make_child (trial); or null
    security               effective_uid, cap_sys_ptrace, seccomp_mode: 0|1|2, no_new_privs
A trial is {works, error, errno}; what could not be found out is null.";

/// One line of advice.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Advice {
    about: &'static str,
    required: bool,
    text: String,
}

/// The swap of a run without options about swap.
#[derive(Debug, Serialize)]
struct Swap {
    directory: PathBuf,
    bytes: u64,
    lack: Option<String>,
}

impl Swap {
    fn of(memory: u64) -> Self {
        let directory = usual_directory(memory, None);
        let DefaultSwap { bytes, lack } = DefaultSwap::of(memory, &directory);
        Self { directory, bytes, lack: lack.map(|lack| lack.to_string()) }
    }
}

/// What `--sharing auto` needs.
#[derive(Debug, Serialize)]
struct Sharing {
    /// A fanotify mark that asks before a file is opened.
    watch: Trial,
    /// A read lease of a file of our own.
    lease: Trial,
}

impl Sharing {
    fn tried() -> Self {
        match file_to_try() {
            Ok(file) => {
                let trials = Trials::make(file.as_fd());
                Self { watch: trial(trials.watch), lease: trial(trials.lease) }
            }
            Err(error) => {
                let none = |error: &std::io::Error| Trial {
                    works: false,
                    error: Some(format!("no file to try it with: {error}")),
                    errno: error.raw_os_error(),
                };
                Self { watch: none(&error), lease: none(&error) }
            }
        }
    }
}

/// Whether idle processors can be kept from sleeping deeply; tried by doing it for a moment.
fn awake() -> Trial {
    let refused = |error: String, errno| Trial { works: false, error: Some(error), errno };
    match ShallowIdle::new().map(|mut idle| idle.hold()) {
        Some(Ok(())) => Trial { works: true, error: None, errno: None },
        Some(Err(error)) => refused(error.to_string(), error.raw_os_error()),
        None => refused(format!("there are more than {} processors", ShallowIdle::MOST_PROCESSORS), None),
    }
}

/// A file that no process has open for writing, and that has no name any more.
fn file_to_try() -> std::io::Result<File> {
    let path = std::env::temp_dir().join(format!("elbowroom-doctor-{}", std::process::id()));
    drop(File::create_new(&path)?);
    let file = File::open(&path);
    std::fs::remove_file(&path)?;
    file
}

fn trial(result: Result<(), Errno>) -> Trial {
    let error = result.err().map(std::io::Error::from);
    Trial {
        works: error.is_none(),
        errno: error.as_ref().and_then(std::io::Error::raw_os_error),
        error: error.map(|error| error.to_string()),
    }
}

/// The JSON object.
#[derive(Serialize)]
struct Report<'a> {
    elbowroom_version: &'static str,
    can_run: bool,
    mode: Option<&'a Mode>,
    default_memory_bytes: u64,
    default_swap: &'a Swap,
    advice: &'a [Advice],
    sharing: &'a Sharing,
    shallow_idle: &'a Trial,
    probe: &'a Probe,
}

/// Probes the machine, and prints what was found.
pub fn doctor(args: DoctorArgs) -> ExitCode {
    let mut found = probe();
    if args.fix {
        return fix::fix(&found);
    }
    let mode = plan::mode(&found.userfaultfd, &found.io_uring, Mmu::Auto, Io::Auto, Faults::Auto);
    let (sharing, awake) = (Sharing::tried(), awake());
    let memory = default_memory_bytes(&found);
    // As `run` tries it: with as many addresses reserved as the budget has bytes.
    found.start = start(0, memory, Groups::read().as_ref());
    let swap = Swap::of(memory);
    let advice = advise(&found, &sharing, &awake, &swap);
    let can_run = !advice.iter().any(|advice| advice.required);
    let report = Report {
        elbowroom_version: env!("CARGO_PKG_VERSION"),
        can_run,
        mode: mode.as_ref().ok().filter(|_| can_run),
        default_memory_bytes: memory,
        default_swap: &swap,
        advice: &advice,
        sharing: &sharing,
        shallow_idle: &awake,
        probe: &found,
    };
    let text = if args.json {
        // Plain data with text keys always serializes.
        serde_json::to_string_pretty(&report).map_or_else(|error| error.to_string(), |json| json + "\n")
    } else {
        render(&report, columns())
    };
    // An error is ignored: a reader that has closed the pipe does not want the text, and the exit code
    // still tells.
    let _ = std::io::stdout().write_all(text.as_bytes());
    if report.can_run { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How wide lines may be: the terminal's width, or what COLUMNS says, as for the help of the command. Lines
/// for other programs are not broken.
fn columns() -> usize {
    const NARROWEST: usize = 40;
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    let terminal = terminal_size::terminal_size_of(std::io::stdout()).map(|(width, _)| usize::from(width.0));
    terminal.or_else(variable).unwrap_or(usize::MAX).max(NARROWEST)
}

fn default_memory_bytes(found: &Probe) -> u64 {
    plan::default_memory_bytes(&found.memory, found.memory_cgroup.as_ref(), Config::MIN_MEMORY)
}

/// One line of advice for everything that is missing, the necessary first.
fn advise(found: &Probe, sharing: &Sharing, awake: &Trial, swap: &Swap) -> Vec<Advice> {
    let mut advice = Vec::new();
    let mut add = |about, required, text| advice.push(Advice { about, required, text });
    let userfaultfd = plan::userfaultfd_obstacle(&found.userfaultfd, Faults::Auto);
    let works = userfaultfd.is_none();
    if let Some(text) = userfaultfd {
        add("userfaultfd", true, text);
    }
    if works && plan::serves_user_mode_only(&found.userfaultfd) {
        let text = format!(
            "only faults of instructions are served. Calls of libc's that are given managed memory are made \
             with copies of it; system calls of other kinds may fail with \"Bad address\". To serve all: {}",
            plan::PERMIT
        );
        add("user mode only", false, text);
    }
    for (about, text) in plan::start_obstacles(&found.start, &found.limits) {
        add(about, true, text);
    }
    if works && !found.userfaultfd.move_page.works {
        let why = reason(&found.userfaultfd.move_page);
        add("move", false, format!("pages are copied, which costs more CPU ({why}): use Linux 6.8 or newer"));
    }
    if !found.io_uring.ring.works {
        add("io_uring", false, plan::ring_advice(&found.io_uring));
    }
    match found.huge_pages.mode.as_deref() {
        Some("never") => add(
            "huge pages",
            false,
            "they are off: as root, `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`, and, for \
             each start of the machine, transparent_hugepage=madvise on the kernel's command line"
                .to_owned(),
        ),
        None => add(
            "huge pages",
            false,
            "this kernel has none: use one with CONFIG_TRANSPARENT_HUGEPAGE".to_owned(),
        ),
        Some(_) => {}
    }
    if !sharing.watch.works {
        let left = if sharing.lease.works {
            "files that are mapped for storing, or that somebody has open for writing, stay with the kernel"
        } else {
            "no file is managed"
        };
        let why = reason(&sharing.watch);
        let text = format!(
            "files cannot be watched ({why}), so with `--sharing auto` {left}: run as root, in a container \
             add CAP_SYS_ADMIN, or use `--sharing trust` for files that no other process uses"
        );
        add("sharing", false, text);
    }
    // Without an errno the obstacle is that there are many processors, and there is nothing to do about
    // that.
    if !awake.works && awake.errno.is_some() {
        let text = format!(
            "idle processors sleep deeply, so each fault takes longer, in a virtual machine twice as long \
             ({}): run as root, or have `doctor --fix` give you /dev/cpu_dma_latency",
            reason(awake)
        );
        add("idle processors", false, text);
    }
    if let Some(lack) = &swap.lack {
        let less = match swap.bytes {
            0 => "anonymous memory cannot be managed".to_owned(),
            bytes => format!("by default there is swap for {} only", Shown(bytes)),
        };
        let dir = swap.directory.display();
        let else_say =
            if swap.bytes == 0 { ", or leave that memory to the kernel with --swap 0" } else { "" };
        let text =
            format!("{less}, since in {dir}, {lack}: name a directory on a disk with --swap-dir{else_say}");
        add("swap", swap.bytes == 0, text);
    }
    advise_on_limits(found, &mut add);
    advise_on_group(found, &mut add);
    match &found.memory_cgroup {
        None => add(
            "memory cgroup",
            false,
            "none is visible, and only the lab's comparison needs one: mount cgroup2 at /sys/fs/cgroup"
                .to_owned(),
        ),
        Some(group) if !group.can_make_child.works => add(
            "memory cgroup",
            false,
            format!(
                "no group can be made in it ({}), and only the lab's comparison needs that: run the lab as \
                 root, or under `systemd-run --user --scope -p Delegate=yes`",
                reason(&group.can_make_child)
            ),
        ),
        Some(_) => {}
    }
    advice
}

/// Advice on the memory group: its limit ends programs without a message.
fn advise_on_group(found: &Probe, add: &mut impl FnMut(&'static str, bool, String)) {
    let Some(group) = &found.memory_cgroup else { return };
    let (Some(limit), Some(left)) = (group.limit_bytes, group.left_bytes) else { return };
    let budget = default_memory_bytes(found);
    let text = plan::group_warning(budget, Some(group), Config::MIN_MEMORY).unwrap_or_else(|| {
        format!(
            "{} of the limit of {} are left, and all processes of a run have {} of that together by default: \
             two runs at a time need less for each, by --memory",
            Shown(left),
            Shown(limit),
            Shown(budget)
        )
    });
    add("memory limit", false, text);
}

fn advise_on_limits(found: &Probe, add: &mut impl FnMut(&'static str, bool, String)) {
    /// What Linux has by default, and what a program with many mappings gets near to.
    const USUAL_MAPS: u64 = 65_530;
    const USUAL_FILES: u64 = 1024;
    if let Some(maps) = found.limits.max_map_count.filter(|&maps| maps < USUAL_MAPS) {
        let text = format!("{maps} mappings are few: {}", plan::set("vm.max_map_count", USUAL_MAPS));
        add("max_map_count", false, text);
    }
    let few = |files: &u64| *files < USUAL_FILES;
    let hard = found.limits.rlimit_nofile_hard;
    // A limit that is too low to start at all was reported already.
    let enough = hard.is_none_or(|files| files >= LEAST_DESCRIPTORS);
    if let Some(files) = hard.filter(few).filter(|_| enough) {
        let text = format!(
            "a hard limit of {files} open files is low, and each managed file takes 3 or 4 in a table of \
             their own: `ulimit -Hn {USUAL_FILES}` or more"
        );
        add("open files", false, text);
    }
    if found.memory.overcommit_mode == Some(2) {
        let set = plan::set("vm.overcommit_memory", 0);
        let text = format!("reservations count as memory in mode 2, so large windows may fail: {set}");
        add("overcommit", false, text);
    }
}

fn reason(trial: &Trial) -> &str {
    trial.error.as_deref().unwrap_or("not tried")
}

/// The report for people, in lines of at most `columns`: a table, the mode, the advice.
fn render(report: &Report<'_>, columns: usize) -> String {
    // Lines of a shell are copied from here, so no word of theirs is broken at a hyphen.
    let whole = textwrap::WordSplitter::NoHyphenation;
    let options = textwrap::Options::new(columns).break_words(false).word_splitter(whole);
    let fill = |line: &str, indent: &str| textwrap::fill(line, options.clone().subsequent_indent(indent));
    let rows = rows(report.probe, report.sharing, report.shallow_idle);
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    let indent = " ".repeat(width + 2);
    for (name, value) in rows {
        text.push_str(&format!("{}\n", fill(&format!("{name:width$}  {value}"), &indent)));
    }
    let verdict = match report.mode {
        Some(Mode { userfaultfd, mmu, io }) => format!(
            "elbowroom run works here: userfaultfd by {userfaultfd}, --mmu {mmu}, --io {io}, \
             --memory {} --swap {} by default",
            Shown(report.default_memory_bytes),
            Shown(report.default_swap.bytes)
        ),
        None => "elbowroom run cannot work here; `elbowroom run --fallback kernel` runs programs unmanaged"
            .to_owned(),
    };
    text.push_str(&format!("\n{}\n", fill(&verdict, "")));
    for (required, title) in [(true, "What must change:"), (false, "What could be better:")] {
        let lines: Vec<_> = report.advice.iter().filter(|advice| advice.required == required).collect();
        if !lines.is_empty() {
            text.push_str(&format!("\n{title}\n"));
        }
        for Advice { about, text: line, .. } in lines {
            text.push_str(&format!("{}\n", fill(&format!("  {about}: {line}"), "    ")));
        }
    }
    text
}

fn rows(found: &Probe, sharing: &Sharing, awake: &Trial) -> Vec<(&'static str, String)> {
    let uffd = &found.userfaultfd;
    let mut rows = vec![
        ("kernel", format!("Linux {}", found.kernel_release)),
        ("userfaultfd, device", show_trial(&uffd.device)),
        ("userfaultfd, system call", show_trial(&uffd.syscall)),
        ("userfaultfd, user mode only", show_trial(&uffd.user_mode_only)),
        ("  moves pages", show_trial(&uffd.move_page)),
        ("  copies pages", show_trial(&uffd.copy_page)),
        ("  write-protects pages", show_trial(&uffd.write_protect)),
        ("  poisons pages", show_trial(&uffd.poison)),
        ("  vm.unprivileged_userfaultfd", show_number(uffd.sysctl_unprivileged)),
        ("io_uring", show_trial(&found.io_uring.ring)),
        ("  kernel.io_uring_disabled", show_number(found.io_uring.sysctl_disabled)),
        ("sharing, watches on files", show_trial(&sharing.watch)),
        ("sharing, leases of files", show_trial(&sharing.lease)),
        ("idle processors kept awake", show_trial(awake)),
        ("huge pages", found.huge_pages.mode.clone().unwrap_or_else(|| "none".to_owned())),
        ("memory", show_memory(found)),
        ("vm.overcommit_memory", show_number(found.memory.overcommit_mode)),
        ("vm.max_map_count", show_number(found.limits.max_map_count)),
        ("limit of locked memory", found.limits.rlimit_memlock_bytes.map_or_else(unlimited, show_size)),
        ("limit of open files", found.limits.rlimit_nofile.map_or_else(unlimited, |files| files.to_string())),
        ("  hard", found.limits.rlimit_nofile_hard.map_or_else(unlimited, |files| files.to_string())),
        ("limit of address space", found.limits.rlimit_address_space_bytes.map_or_else(unlimited, show_size)),
        ("limit of data", found.limits.rlimit_data_bytes.map_or_else(unlimited, show_size)),
        ("  can be raised", show_trial(&found.start.addresses)),
        ("/proc", show_trial(&found.start.procfs)),
        ("threads for a manager", show_trial(&found.start.threads)),
        ("system calls for it", show_trial(&found.start.calls)),
    ];
    match &found.memory_cgroup {
        None => rows.push(("memory cgroup", "none".to_owned())),
        Some(group) => {
            let limit = group.limit_bytes.map_or_else(unlimited, show_size);
            rows.push(("memory cgroup", format!("version {}, {}", group.version, group.path.display())));
            rows.push(("  limit", limit));
            rows.push(("  left of it", group.left_bytes.map_or_else(unlimited, show_size)));
            rows.push(("  can make a group in it", show_trial(&group.can_make_child)));
        }
    }
    let seccomp = match found.security.seccomp_mode {
        Some(0) => "none",
        Some(1) => "strict",
        Some(2) => "filters",
        _ => "unknown",
    };
    rows.push(("seccomp", seccomp.to_owned()));
    rows
}

fn show_memory(found: &Probe) -> String {
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), show_size);
    format!("{}, {} available", size(found.memory.total_bytes), size(found.memory.available_bytes))
}

fn show_trial(trial: &Trial) -> String {
    match (&trial.error, trial.works) {
        (_, true) => "yes".to_owned(),
        (Some(why), false) => format!("no: {why}"),
        (None, false) => "no".to_owned(),
    }
}

fn show_number(number: Option<u64>) -> String {
    number.map_or_else(|| "not there".to_owned(), |number| number.to_string())
}

fn show_size(bytes: u64) -> String {
    Shown(bytes).to_string()
}

fn unlimited() -> String {
    "unlimited".to_owned()
}

#[cfg(test)]
mod tests;
