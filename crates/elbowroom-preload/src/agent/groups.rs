//! The memory groups of the process, as the file of `--group` has them. They are made with the manager, on a
//! service thread, and each new mapping gets its group there.
//!
//! Synchronization: the groups are set once. A forked child with a manager of its own makes the same groups
//! in the same order, so their ids are the same.

use crate::base::config::Options;
use crate::base::executable;
use crate::base::report::{GroupFigures, program_name};
use crate::base::sys;
use crate::rules::group::{Program, Rules};
use crate::rules::map::{Caller, MapArgs};
use elbowroom::{Errno, GroupId, Limits, Manager, Origin};
use elbowroom_options::{Group, GroupSpec, MemoryKind};
use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

/// The groups of the process.
struct Placement {
    spec: GroupSpec,
    rules: Rules,
    /// The id of each group of the spec, by its number there; `None`: the group was not made.
    made: Vec<Option<GroupId>>,
}

static PLACEMENT: OnceLock<Placement> = OnceLock::new();

/// Makes the groups that rules for this program use.
///
/// # Errors
/// A group cannot be made: its name and why. Memory that should go there goes to the root.
pub fn make(options: &Options, manager: &Manager) -> Result<(), String> {
    let Some(text) = &options.groups.spec else { return Ok(()) };
    // The constructor has refused a text that cannot be read.
    let spec = GroupSpec::parse(text)?;
    let rules = Rules::of(&spec, &program());
    let (mut made, mut failed) = (Vec::with_capacity(spec.groups.len()), Ok(()));
    for (number, group) in spec.groups.iter().enumerate() {
        let above = group.parent.map_or(Some(GroupId::ROOT), |parent: usize| made[parent]);
        let id = above.filter(|_| rules.use_group(&spec, number)).map(|above| create(manager, above, group));
        made.push(id.transpose().unwrap_or_else(|errno| {
            failed = Err(format!("group {} cannot be made, its memory is the root's: {errno}", group.name));
            None
        }));
    }
    let named = spec.groups.iter().zip(&made).filter_map(|(group, id)| Some(((*id)?, group.name.as_str())));
    manager.groups().show(&named.collect::<Vec<_>>());
    let _ = PLACEMENT.set(Placement { spec, rules, made });
    failed
}

fn create(manager: &Manager, above: GroupId, group: &Group) -> Result<GroupId, Errno> {
    let usual = Limits::default();
    let limits = Limits {
        max: group.limits.max.unwrap_or(u64::MAX),
        high: group.limits.high.unwrap_or(u64::MAX),
        low: group.limits.low.unwrap_or(0),
        min: group.limits.min.unwrap_or(0),
        swap_max: group.limits.swap_max.unwrap_or(u64::MAX),
        memory_swap_max: group.limits.memory_swap_max.unwrap_or(u64::MAX),
        dirty: group.limits.dirty.unwrap_or(u64::MAX),
        swappiness: group.limits.swappiness.unwrap_or(usual.swappiness),
    };
    manager.groups().create(above, &limits)
}

/// The group of a new mapping; `None`: the root. `origin`: the file that is mapped, if there is one.
pub fn of(args: &MapArgs, origin: Option<&Origin>) -> Option<GroupId> {
    let Placement { rules, made, .. } = PLACEMENT.get()?;
    let kind = match (origin, args.caller) {
        (Some(_), _) => MemoryKind::File,
        (None, Caller::Heap) => MemoryKind::Heap,
        (None, Caller::Program) => MemoryKind::Anonymous,
    };
    let number = rules.group(kind, args.len as u64, || origin.and_then(path));
    number.and_then(|number| made[number])
}

/// The current path of a file. For a file that was removed, the last path that it had.
fn path(origin: &Origin) -> Option<String> {
    let path = std::fs::read_link(origin.path()).ok()?.to_string_lossy().into_owned();
    let is_removed = sys::fstat(origin.as_fd().as_raw_fd()).is_some_and(|stat| stat.st_nlink == 0);
    Some(match path.strip_suffix(" (deleted)") {
        Some(named) if is_removed => named.to_owned(),
        _ => path,
    })
}

/// The name of the group with this number ([`GroupId::number`]).
pub fn name(number: usize) -> &'static str {
    let Some(Placement { spec, made, .. }) = PLACEMENT.get() else { return "root" };
    let at = made.iter().position(|id| id.is_some_and(|id| id.number() == number));
    at.map_or("root", |at| &spec.groups[at].name)
}

/// The figures of all groups that were made, in the order of the spec.
pub fn figures(manager: &Manager) -> Vec<GroupFigures<'static>> {
    let Some(Placement { spec, made, .. }) = PLACEMENT.get() else { return Vec::new() };
    let stats: HashMap<_, _> = manager.groups().all_stats().into_iter().collect();
    let figures = |(group, id): (&'static Group, &Option<GroupId>)| {
        Some(GroupFigures::of(&group.name, stats.get(&(*id)?)?))
    };
    spec.groups.iter().zip(made).filter_map(figures).collect()
}

/// The program that this process runs.
fn program() -> Program {
    let mut paths = Vec::new();
    paths.extend(std::fs::read_link("/proc/self/exe").ok().map(|path| path.to_string_lossy().into_owned()));
    paths.extend(executable::path_given());
    Program { paths, name: program_name().to_owned() }
}
