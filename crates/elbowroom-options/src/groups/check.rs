//! Checks of a spec as a whole.

use super::{Entry, Group, GroupSpec, LIMITS, Mistake, Reader, Rule, RunFacts};
use crate::choices::{Heap, MemoryKind};
use crate::size::Exact;

fn mistake(entries: &[Entry], entry: usize, key: &str, why: String) -> Mistake {
    Reader { number: entry, entry: &entries[entry] }.mistake(key, why)
}

/// Checks of a spec what does not depend on the run.
pub(super) fn all(spec: &GroupSpec, entries: &[Entry]) -> Result<(), Mistake> {
    for group in &spec.groups {
        limits(group).map_err(|(key, why)| mistake(entries, group.entry, key, why))?;
    }
    for (number, group) in spec.groups.iter().enumerate() {
        if let Some(max) = group.limits.max {
            let whose = format!("max of group {}", group.name);
            protection(spec, entries, Some(number), (max, &whose))?;
        }
    }
    for (number, rule) in spec.rules.iter().enumerate() {
        conditions(rule).map_err(|(key, why)| mistake(entries, rule.entry, key, why))?;
        if let Some(earlier) = spec.rules[..number].iter().position(|earlier| covers(earlier, rule)) {
            let (number, earlier) = (number + 1, earlier + 1);
            let why =
                format!("rule {number} never decides: rule {earlier} fits all that it fits, and is first");
            return Err(mistake(entries, rule.entry, "", why));
        }
    }
    for (number, group) in spec.groups.iter().enumerate() {
        if !is_used(spec, number) {
            let why = "no rule puts memory into it, or into a group below it".to_owned();
            return Err(mistake(entries, group.entry, "", why));
        }
    }
    Ok(())
}

/// Checks of a spec what depends on the other options of the run.
pub(super) fn run(spec: &GroupSpec, entries: &[Entry], run: &RunFacts) -> Result<(), Mistake> {
    protection(spec, entries, None, (run.budget_bytes, "the budget of a process"))?;
    for group in spec.groups.iter().filter(|_| run.is_without_swap) {
        if group.limits.swap_max.is_some_and(|most| most > 0) {
            let why = "with --swap 0 nothing of the group is ever in swap".to_owned();
            return Err(mistake(entries, group.entry, "swap-max", why));
        }
    }
    for rule in &spec.rules {
        let never = |key, why| Err(mistake(entries, rule.entry, key, why));
        let is_private = matches!(rule.kind, Some(MemoryKind::Anonymous | MemoryKind::Heap));
        if is_private && run.is_without_swap {
            return never(
                "kind",
                "the rule never fits: with --swap 0 this memory is the kernel's".to_owned(),
            );
        }
        if rule.kind != Some(MemoryKind::Heap) {
            continue;
        }
        if run.heap == Heap::Off {
            return never("kind", "the rule never fits: with --heap off the heap is the kernel's".to_owned());
        }
        if rule.max_size.is_some_and(|most| most < run.heap_min_bytes) {
            let least = Exact(run.heap_min_bytes);
            let why = format!("the rule never fits: blocks below --heap-min, {least}, are the kernel's");
            return never("max-size", why);
        }
    }
    Ok(())
}

/// Checks that each limit of a group is at most the next one, and that memory and swap together may be as
/// much as memory alone.
fn limits(group: &Group) -> Result<(), (&'static str, String)> {
    let given = LIMITS.into_iter().zip(group.limits.all());
    let given: Vec<_> = given.filter_map(|(key, bytes)| Some((key, bytes?))).collect();
    for pair in given.windows(2) {
        let [(key, bytes), (next, most)] = [pair[0], pair[1]];
        if bytes > most {
            let (bytes, most) = (Exact(bytes), Exact(most));
            return Err((key, format!("{bytes} is more than {next}, {most}")));
        }
    }
    if let (Some(both), Some(max)) = (group.limits.memory_swap_max, group.limits.max)
        && both < max
    {
        let (both, max) = (Exact(both), Exact(max));
        return Err(("memory-swap-max", format!("{both} is less than max, {max}")));
    }
    Ok(())
}

/// Checks that the groups directly below `parent` protect together at most `most` bytes. `whose`: the limit
/// that `most` is, for the message.
fn protection(
    spec: &GroupSpec,
    entries: &[Entry],
    parent: Option<usize>,
    (most, whose): (u64, &str),
) -> Result<(), Mistake> {
    let mut sum = 0_u64;
    for group in spec.groups.iter().filter(|group| group.parent == parent) {
        sum = sum.saturating_add(group.limits.protected());
        if sum > most {
            let key = if group.limits.low >= group.limits.min { "low" } else { "min" };
            let (sum, most) = (Exact(sum), Exact(most));
            let why = format!("up to here {sum} are protected, more than {whose}, {most}");
            return Err(mistake(entries, group.entry, key, why));
        }
    }
    Ok(())
}

/// Checks that memory can meet all conditions of a rule at once.
fn conditions(rule: &Rule) -> Result<(), (&'static str, String)> {
    let wrong = |key, why: &str| Err((key, why.to_owned()));
    if let Some(program) = &rule.program {
        if program.is_empty() || program.contains('/') && !program.starts_with('/') {
            return wrong("program", "write a name, as in \"python3\", or an absolute path");
        }
        if program.ends_with('/') {
            return wrong("program", "a directory is no program");
        }
    }
    if let Some(file) = &rule.file {
        if file.is_empty() {
            return wrong("file", "it is empty: write a pattern, as in \"*.bin\" or \"/data/**\"");
        }
        if file.contains('/') && !file.starts_with(['/', '*', '?']) {
            return wrong("file", "the rule never fits: a path begins with /");
        }
        if file.ends_with('/') {
            return wrong("file", "the rule never fits: a path of a file does not end with /; write dir/**");
        }
        if let Some(kind @ (MemoryKind::Anonymous | MemoryKind::Heap)) = rule.kind {
            let name = kind.name();
            return Err(("kind", format!("the rule never fits: {name} memory has no file; leave one out")));
        }
    }
    if let (Some(least), Some(most)) = (rule.min_size, rule.max_size)
        && least > most
    {
        let (least, most) = (Exact(least), Exact(most));
        return Err(("max-size", format!("the rule never fits: {most} is less than min-size, {least}")));
    }
    Ok(())
}

/// Whether memory that fits `rule` is certain to fit `earlier`.
fn covers(earlier: &Rule, rule: &Rule) -> bool {
    let same = |wide: &Option<String>, narrow: &Option<String>| wide.is_none() || wide == narrow;
    let is_of_kind = match (earlier.kind, rule.kind) {
        (None, _) => true,
        // Only files have names.
        (Some(MemoryKind::File), None) => rule.file.is_some(),
        (wide, narrow) => wide == narrow,
    };
    let least = earlier.min_size.unwrap_or(0) <= rule.min_size.unwrap_or(0);
    let most = earlier.max_size.unwrap_or(u64::MAX) >= rule.max_size.unwrap_or(u64::MAX);
    same(&earlier.program, &rule.program) && same(&earlier.file, &rule.file) && is_of_kind && least && most
}

/// Whether a rule names the group, or a group below it.
fn is_used(spec: &GroupSpec, group: usize) -> bool {
    let above = |number: &usize| spec.groups[*number].parent;
    let mut named = spec.rules.iter().filter_map(|rule| rule.group);
    named.any(|named| std::iter::successors(Some(named), above).any(|number| number == group))
}
