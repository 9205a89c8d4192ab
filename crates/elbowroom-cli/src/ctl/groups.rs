//! The groups of a run's processes: `ctl` lists them, changes their limits, and has their memory reclaimed.
//!
//! A process notes the figures of its groups in the run's table when it is asked, and does there what is
//! requested. So a stopped process shows what it noted before, and does nothing.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use elbowroom::{GroupAnswer, GroupRequest, GroupRow, GroupTable, GroupUse, LimitKey, StallAverages};
use elbowroom_machine::Errno;
use elbowroom_options::size::{Exact, Shown};
use serde::Serialize;

use super::wait;
use super::words::GroupName;
use crate::failure::{Failure, NOT_DONE};
use crate::runs::{Run, milliseconds, printable};

/// How long is waited for the figures of groups.
const FIGURES_BOUND: Duration = Duration::from_secs(1);

/// The longest name of a group that the table has, in bytes.
const NAME_BYTES: usize = 128;

/// A group as JSON.
#[derive(Serialize)]
pub struct Group {
    pid: u32,
    name: String,
    /// How old the figures are, in milliseconds; null: the process has never answered.
    noted_ms_ago: Option<u64>,
    usage_bytes: u64,
    peak_bytes: u64,
    #[serde(flatten)]
    limits: Limits,
    high_events: u64,
    high_stuck: u64,
    max_events: u64,
    failed_events: u64,
    pgfault: u64,
    pgmajfault: u64,
    #[serde(flatten)]
    pressure: Pressure,
}

/// The limits of a group; null: none.
#[derive(Serialize)]
struct Limits {
    max_bytes: Option<u64>,
    high_bytes: Option<u64>,
    low_bytes: u64,
    min_bytes: u64,
}

/// The pressure of a group.
#[derive(Serialize)]
struct Pressure {
    some: StallAverages,
    full: StallAverages,
}

impl Group {
    pub fn of(row: &GroupRow) -> Self {
        let used = row.used;
        Self {
            pid: row.pid,
            name: printable(&row.name),
            noted_ms_ago: row.age().map(milliseconds),
            usage_bytes: used.usage_bytes,
            peak_bytes: used.peak_bytes,
            limits: Limits {
                max_bytes: GroupUse::limit(used.max_bytes),
                high_bytes: GroupUse::limit(used.high_bytes),
                low_bytes: used.low_bytes,
                min_bytes: used.min_bytes,
            },
            high_events: used.high_events,
            high_stuck: used.high_stuck,
            max_events: used.max_events,
            failed_events: used.failed_events,
            pgfault: used.pgfault,
            pgmajfault: used.pgmajfault,
            pressure: Pressure { some: used.some, full: used.full },
        }
    }
}

fn table(run: &Run) -> GroupTable<'_> {
    GroupTable::of(&run.tree)
}

/// The name of a group with its process.
pub fn name(row: &GroupRow) -> String {
    format!("{}/{}", row.pid, printable(&row.name))
}

/// A limit in words.
fn limit(bytes: u64) -> String {
    GroupUse::limit(bytes).map_or_else(|| "-".to_owned(), |bytes| Shown(bytes).to_string())
}

/// The titles of [`cells`].
pub const TITLES: [&str; 9] = ["GROUP", "", "USED", "PEAK", "MAX", "HIGH", "LOW", "FAULTS", "MAJOR"];

/// The cells of a group in a table. The second one says whether its figures are old.
pub fn cells(row: &GroupRow) -> [String; 9] {
    let used = &row.used;
    let note = match row.age() {
        None => "(no answer)".to_owned(),
        Some(age) if age > FIGURES_BOUND => format!("({} s old)", age.as_secs()),
        Some(_) => String::new(),
    };
    let [usage, peak] = [used.usage_bytes, used.peak_bytes].map(|bytes| Shown(bytes).to_string());
    let low = used.low_bytes.max(used.min_bytes);
    [
        name(row),
        note,
        usage,
        peak,
        limit(used.max_bytes),
        limit(used.high_bytes),
        if low == 0 { "-".to_owned() } else { Shown(low).to_string() },
        used.pgfault.to_string(),
        used.pgmajfault.to_string(),
    ]
}

/// The groups of a run, with figures of this moment where their processes answer within [`FIGURES_BOUND`].
/// Sorted by process and name.
pub fn all(run: &Run) -> Vec<GroupRow> {
    some(run, |_| true)
}

/// [`all`] of some processes, by their ids. The others are not asked.
fn some(run: &Run, of: impl Fn(u32) -> bool) -> Vec<GroupRow> {
    let began = Instant::now();
    let rows = || table(run).rows().into_iter().filter(|group| of(group.pid));
    let pids: BTreeSet<_> = rows().map(|group| group.pid).collect();
    pids.iter().for_each(|pid| _ = table(run).ask(*pid));
    loop {
        let mut groups: Vec<_> = rows().collect();
        let waited = began.elapsed();
        let is_old = |group: &GroupRow| group.age().is_none_or(|age| age > waited);
        if waited > FIGURES_BOUND || !groups.iter().any(is_old) {
            groups.sort_by(|one, other| (one.pid, &one.name).cmp(&(other.pid, &other.name)));
            return groups;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The groups that a command names: one at least.
pub fn named(run: &Run, named: &GroupName) -> Result<Vec<GroupRow>, Failure> {
    choose(run.main_pid, all(run), named).map_err(|why| Failure::new(NOT_DONE, why))
}

fn choose(run: u32, all: Vec<GroupRow>, named: &GroupName) -> Result<Vec<GroupRow>, String> {
    let shown = named.name.get(..NAME_BYTES).unwrap_or(&named.name);
    let is_it = |group: &GroupRow| group.name == shown && named.pid.is_none_or(|pid| pid == group.pid);
    let (found, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_it);
    let of = named.pid.map_or_else(String::new, |pid| format!("{pid}/"));
    match (found.is_empty(), others.is_empty()) {
        (false, _) => Ok(found),
        (true, true) => {
            Err(format!("no process of run {run} has groups: `elbowroom run --group FILE` makes them"))
        }
        (true, false) => {
            let list: String = others.iter().map(|group| format!("\n  {}", name(group))).collect();
            Err(format!("run {run} has no group {of}{}; its groups are:{list}", named.name))
        }
    }
}

/// Sends a request for a group to its process, and waits for the answer.
fn request(run: &Run, group: &GroupRow, request: GroupRequest) -> Result<GroupAnswer, Failure> {
    let failure = |why: String| Failure::new(NOT_DONE, why);
    if !table(run).request(group, request, std::process::id()) {
        return Err(failure(format!(
            "another command changes group {} just now, or its process has ended",
            name(group)
        )));
    }
    let is_answered =
        wait(|| table(run).answer(group).is_some(), || format!("{}: it is being done", name(group)));
    let answer = table(run).answer(group);
    table(run).end_request(group);
    match answer {
        Some(answer) if is_answered => Ok(answer),
        _ => Err(failure(format!(
            "process {} has not done it within 2 s: it is stopped, or has more to write than it can by then",
            group.pid
        ))),
    }
}

/// Changes a limit of groups. `groups`: with their present figures.
pub fn set(run: &Run, groups: &[GroupRow], limit_of: LimitKey, value: u64) -> Result<String, Failure> {
    groups.iter().try_for_each(|group| check(group, limit_of, value))?;
    let (mut said, mut failed) = (String::new(), Vec::new());
    for group in groups {
        match set_one(run, group, limit_of, value) {
            Ok(line) => said += &line,
            Err(failure) => failed.push(failure),
        }
    }
    if failed.is_empty() {
        return Ok(said);
    }
    // Groups of other processes may have been changed: that is said, too.
    let mut lines: Vec<_> = failed.into_iter().map(|failure| failure.message).collect();
    lines.extend(said.lines().map(|line| format!("changed: {line}")));
    Err(Failure::new(NOT_DONE, lines.join("\n")))
}

/// Changes a limit of one group.
fn set_one(run: &Run, group: &GroupRow, limit_of: LimitKey, value: u64) -> Result<String, Failure> {
    let answer = request(run, group, GroupRequest::Set(limit_of, value))?;
    let (name, now) = (name(group), used(run, group));
    match answer.errno {
        0 => {}
        errno if errno == errno_of(Errno::BUSY) && limit_of == LimitKey::MemorySwapMax => {
            let why = format!(
                "group {name} may have {} in memory and swap together now, and still has more, {now} of it \
                 in memory: only pages of files could be given up; it gets no more",
                Shown(value)
            );
            return Err(Failure::new(NOT_DONE, why));
        }
        errno if errno == errno_of(Errno::BUSY) => {
            let why = format!(
                "group {name} may have {} now, and still has {now}: nothing more of it can be reclaimed; it \
                 gets no more",
                Shown(value)
            );
            return Err(Failure::new(NOT_DONE, why));
        }
        errno => return Err(failed(&name, errno)),
    }
    let before =
        in_order(group, limit_of).map_or(String::new(), |before| format!(" (was {})", limit(before)));
    let value = if limit_of == LimitKey::Swappiness { value.to_string() } else { limit(value) };
    Ok(format!("group {name}: {} {value}{before}, {now} used\n", limit_of.name()))
}

/// Checks that the limits of a group are in their order after a change: `min`, `low`, `high`, `max`.
fn check(group: &GroupRow, changed: LimitKey, bytes: u64) -> Result<(), Failure> {
    if group.noted_at.is_none() {
        let why = format!("process {} has not answered yet: it is stopped, or just starts", group.pid);
        return Err(Failure::new(NOT_DONE, why));
    }
    let max = group.used.max_bytes;
    if changed == LimitKey::MemorySwapMax && max != u64::MAX && bytes < max {
        let (name, bytes, max) = (name(group), limit_exact(bytes), limit_exact(max));
        let why = format!("group {name}: memory-swap-max, {bytes}, would be less than max, {max}");
        return Err(Failure::new(NOT_DONE, why));
    }
    let of = |limit| if limit == changed { Some(bytes) } else { in_order(group, limit) };
    // A limit that is none is in no order.
    let given: Vec<(LimitKey, u64)> = [LimitKey::Min, LimitKey::Low, LimitKey::High, LimitKey::Max]
        .into_iter()
        .filter_map(|limit| Some((limit, of(limit)?)))
        .filter(|(_, bytes)| !matches!(*bytes, 0 | u64::MAX))
        .collect();
    let wrong = given.windows(2).find(|pair| pair[0].1 > pair[1].1);
    wrong.map_or(Ok(()), |pair| {
        let [(one, less), (other, more)] =
            [pair[0], pair[1]].map(|(limit, of)| (limit.name(), limit_exact(of)));
        let why = format!("group {}: {one}, {less}, would be more than {other}, {more}", name(group));
        Err(Failure::new(NOT_DONE, why))
    })
}

/// The present value of one of the limits that are in an order.
fn in_order(group: &GroupRow, limit: LimitKey) -> Option<u64> {
    match limit {
        LimitKey::Max => Some(group.used.max_bytes),
        LimitKey::High => Some(group.used.high_bytes),
        LimitKey::Low => Some(group.used.low_bytes),
        LimitKey::Min => Some(group.used.min_bytes),
        _ => None,
    }
}

fn limit_exact(bytes: u64) -> String {
    GroupUse::limit(bytes).map_or_else(|| "no limit".to_owned(), |bytes| Exact(bytes).to_string())
}

fn errno_of(errno: Errno) -> u64 {
    u64::from(errno.raw_os_error().unsigned_abs())
}

fn failed(name: &str, errno: u64) -> Failure {
    // The word is written by the other process.
    let errno = i32::try_from(errno).ok().filter(|errno| (1..4096).contains(errno));
    let why =
        errno.map_or("it answers nonsense".to_owned(), |errno| Errno::from_raw_os_error(errno).to_string());
    Failure::new(NOT_DONE, format!("group {name}: it cannot be done: {why}"))
}

/// What a group uses by now, as text.
fn used(run: &Run, group: &GroupRow) -> Shown {
    let same = |other: &GroupRow| other.name == group.name;
    let now = some(run, |pid| pid == group.pid).into_iter().find(same);
    Shown(now.map_or(group.used.usage_bytes, |now| now.used.usage_bytes))
}

/// Has memory of a group reclaimed.
pub fn reclaim(run: &Run, groups: &[GroupRow], bytes: u64) -> Result<String, Failure> {
    let [group] = groups else {
        let list: String = groups.iter().map(|group| format!("\n  {}", name(group))).collect();
        let why = format!("{} processes have such a group; name one with its process:{list}", groups.len());
        return Err(Failure::new(NOT_DONE, why));
    };
    let name = name(group);
    let answer = request(run, group, GroupRequest::Reclaim(bytes))?;
    let done = format!("group {name}: {} reclaimed, {} used", Shown(answer.freed_bytes), used(run, group));
    match answer.errno {
        0 => Ok(done + "\n"),
        errno if errno == errno_of(Errno::BUSY) => {
            let why = format!("{done}: nothing more of it can be reclaimed now");
            Err(Failure::new(NOT_DONE, why))
        }
        errno => Err(failed(&name, errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use elbowroom::{Member, ProcessTree, TreeLimits};

    fn tables() -> (tempfile::NamedTempFile, ProcessTree) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let limits = TreeLimits { max: 1 << 30, each: None, swap_max: 0 };
        let tree = ProcessTree::create(file.as_file(), &limits).unwrap();
        (file, tree)
    }

    fn group(pid: Option<u32>, name: &str) -> GroupName {
        GroupName { pid, name: name.to_owned() }
    }

    #[test]
    fn a_group_is_found_by_its_name_and_process() {
        let (_file, tree) = tables();
        let tree = std::sync::Arc::new(tree);
        let member = Member::enter(tree.clone());
        let none = choose(9, GroupTable::of(&tree).rows(), &group(None, "a")).unwrap_err();
        assert!(none.contains("elbowroom run --group"), "{none}");
        let long = "x".repeat(200);
        member.groups().show_names(&["a", "a.b", &long]);
        let (all, own) = (|| GroupTable::of(&tree).rows(), std::process::id());
        for (named, found) in [
            (group(None, "a"), "a"),
            (group(Some(own), "a.b"), "a.b"),
            (group(None, &long), &long[..NAME_BYTES]),
        ] {
            let groups = choose(9, all(), &named).unwrap();
            let [one] = &groups[..] else { panic!("{groups:?}") };
            assert_eq!((one.pid, one.name.as_str()), (own, found));
        }
        for named in [group(None, "b"), group(Some(1), "a")] {
            let why = choose(9, all(), &named).unwrap_err();
            assert!(why.contains(&format!("\n  {own}/a.b")), "{why}");
        }
        // Never noted: no answer.
        assert_eq!(cells(&all()[0])[..2], [format!("{own}/a"), "(no answer)".to_owned()]);
    }

    #[test]
    fn limits_stay_in_their_order() {
        let (_file, tree) = tables();
        let tree = std::sync::Arc::new(tree);
        Member::enter(tree.clone()).groups().show_names(&["a"]);
        let mut row = GroupTable::of(&tree).rows().remove(0);
        assert!(check(&row, LimitKey::Low, 1 << 20).unwrap_err().message.contains("has not answered yet"));
        row.noted_at = Some(1);
        let (max_bytes, high_bytes) = (256 << 20, u64::MAX);
        row.used =
            GroupUse { max_bytes, high_bytes, low_bytes: 0, min_bytes: 8 << 20, ..GroupUse::default() };
        // A high that is none is no mistake.
        let of = |limit, mib: u64| check(&row, limit, mib << 20).map_err(|failure| failure.message);
        for (limit, mib) in [
            (LimitKey::Max, 8),
            (LimitKey::Low, 8),
            (LimitKey::Low, 0),
            (LimitKey::Min, 256),
            (LimitKey::High, 256),
            (LimitKey::MemorySwapMax, 256),
            (LimitKey::SwapMax, 0),
        ] {
            assert_eq!(of(limit, mib), Ok(()), "{limit:?} {mib}");
        }
        for (limit, mib, said) in [
            (LimitKey::Max, 7, "min, 8M, would be more than max, 7M"),
            (LimitKey::High, 300, "high, 300M, would be more than max, 256M"),
            (LimitKey::Low, 7, "min, 8M, would be more than low, 7M"),
            (LimitKey::MemorySwapMax, 255, "memory-swap-max, 255M, would be less than max, 256M"),
        ] {
            let why = of(limit, mib).unwrap_err();
            assert!(why.contains(said), "{why}");
        }
    }
}
