//! `elbowroom run --group`: memory goes to the groups that a file says, and their limits hold.

use elbowroom_tests::{Command, Outcome, Scratch, Variant, behaviour, program};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Runs the program `groups` with a spec, and before that without Elbowroom, which checks the program
/// itself.
fn run(variant: Variant, first: &[&str], mib: &str, spec: &str, options: &[&str]) -> Outcome {
    let scratch = Scratch::new();
    let files = ["first.bin", "second.data"].map(|name| scratch.file(name));
    let arguments = [first, &[&files[0], &files[1], mib]].concat();
    let plain = Command::new(program("groups")).args(&arguments).run().success();
    assert_eq!(plain.stdout, "ok\n", "{}", plain.report());
    let (path, dir) = (scratch.file("spec.toml"), scratch.file(""));
    std::fs::write(&path, spec).expect("the spec can be written");
    let mut all = vec!["--swap", "400M", "--swap-dir", &dir, "--group", &path];
    all.extend(options);
    let outcome = Command::new(program("groups")).args(&arguments).variant(variant).run_options(&all);
    let outcome = outcome.run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
    outcome
}

/// The figures of all groups.
fn groups(outcome: &Outcome) -> Value {
    let stats = outcome.stats.as_ref().and_then(|stats| stats.get("groups"));
    stats.cloned().unwrap_or_else(|| panic!("the statistics have no groups\n{}", outcome.report()))
}

fn figure(outcome: &Outcome, group: &str, key: &str) -> u64 {
    let of = &groups(outcome)[group];
    let value = key.split('.').fold(of, |value, key| &value[key]);
    value.as_u64().unwrap_or_else(|| panic!("{group} has no {key}\n{}", outcome.report()))
}

/// Checks that a group has used at least half of its `max`, and never more than all of it, and that no access
/// has failed because of the limit. At the end it may use less: the root has reclaimed its memory since.
fn was_limited(outcome: &Outcome, group: &str, max: u64) {
    let [usage, peak] = ["usage_bytes", "peak_bytes"].map(|key| figure(outcome, group, key));
    assert!((max / 2..=max).contains(&peak), "{group}: peak {peak}\n{}", outcome.report());
    assert!(usage <= peak, "{group} uses {usage}, {peak} at its peak\n{}", outcome.report());
    assert_eq!(figure(outcome, group, "max_bytes"), max);
    // A group with a `high` may be slowed down before it comes to its `max`.
    let events = ["max_events", "high_events"].map(|key| figure(outcome, group, key));
    assert!(events.iter().sum::<u64>() > 0, "{group}\n{}", outcome.report());
    assert_eq!(figure(outcome, group, "failed_events"), 0);
}

fn spec() -> String {
    let path = program("groups");
    format!(
        r#"
        [group.files.first]
        max = "2M"
        [group.files.second]
        max = "3M"
        [group.memory]
        max = "4M"
        high = "3M"
        [group.blocks]
        max = "3M"
        [group.other]
        max = "1M"

        [[rule]]
        group = "other"
        program = "groupies"
        [[rule]]
        group = "files.first"
        file = "*.bin"
        [[rule]]
        group = "files.second"
        program = "{}"
        file = "/**/second.*"
        [[rule]]
        group = "memory"
        program = "groups"
        kind = "anonymous"
        min-size = "8M"
        [[rule]]
        group = "blocks"
        kind = "heap"
        "#,
        path.display()
    )
}

fn each_kind_of_memory_goes_to_its_group(variant: Variant) {
    let outcome = run(variant, &[], "24", &spec(), &[]);
    for (group, mib) in [("files.first", 2), ("files.second", 3), ("memory", 4), ("blocks", 3)] {
        was_limited(&outcome, group, mib * MIB);
        // The 6,144 pages of 24 MiB are accessed in several passes, so more than that many are reclaimed.
        let kinds = ["file.stolen", "anonymous.stolen"].map(|key| figure(&outcome, group, key));
        let [of_kind, of_other] = if group.starts_with("files") { kinds } else { [kinds[1], kinds[0]] };
        assert!(of_kind > 10_000 && of_other == 0, "{group}: {kinds:?}\n{}", outcome.report());
    }
    let both = figure(&outcome, "files", "usage_bytes");
    let parts = ["files.first", "files.second"].map(|group| figure(&outcome, group, "usage_bytes"));
    assert_eq!(both, parts.iter().sum::<u64>(), "a group has what those below it have");
    assert!(groups(&outcome)["files"]["max_bytes"].is_null());
    assert!(figure(&outcome, "memory", "high_events") > 0);
    assert!(groups(&outcome).get("other").is_none(), "no rule for this program uses it");
}
behaviour!(each_kind_of_memory_goes_to_its_group: m64, m16, copy, threads, handlers1);

/// Memory that no rule fits goes to the root. A rule can send memory there, too, before a later rule takes
/// it.
fn what_no_rule_takes_stays_in_the_root(variant: Variant) {
    let spec = "[group.files]\nmax = \"2M\"\n[[rule]]\ngroup = \"root\"\nfile = \"second.*\"\n\
                [[rule]]\ngroup = \"files\"\nkind = \"file\"\n";
    let outcome = run(variant, &[], "24", spec, &[]);
    was_limited(&outcome, "files", 2 * MIB);
    let pages = 24 * MIB / 4096;
    let (faults, stolen) = (figure(&outcome, "files", "pgfault"), figure(&outcome, "files", "file.stolen"));
    assert!(outcome.stat("pgfault") > faults && stolen < 4 * pages, "{stolen} of {pages}");
    assert!(outcome.stat("peak_bytes") > 48 * MIB, "the rest had the budget\n{}", outcome.report());
}
behaviour!(what_no_rule_takes_stays_in_the_root: m64);

/// A forked child has the same groups as its parent, and the parent keeps its own.
fn groups_over_a_fork(variant: Variant) {
    let outcome = run(variant, &["child"], "12", &spec(), &[]);
    for (group, mib) in [("memory", 4), ("blocks", 3)] {
        was_limited(&outcome, group, mib * MIB);
    }
}
behaviour!(groups_over_a_fork: m64);

/// With `--heap all`, small blocks are of the kind heap, too.
fn all_blocks(variant: Variant) {
    let spec = "[group.blocks]\nmax = \"8M\"\n[[rule]]\ngroup = \"blocks\"\nkind = \"heap\"\n";
    let outcome = run(variant, &[], "24", spec, &["--heap", "all"]);
    was_limited(&outcome, "blocks", 8 * MIB);
}
behaviour!(all_blocks: m64);

/// With 24 MiB of its own a group has at least 20 MiB in swap where it may have 4 in memory, and never more
/// than it may.
fn swap_is_limited(variant: Variant) {
    for limits in ["swap-max = \"23M\"", "memory-swap-max = \"27M\"\nswap-max = \"24M\""] {
        let spec = format!(
            "[group.above.memory]\nmax = \"4M\"\n[group.above]\n{limits}\n\
             [[rule]]\ngroup = \"above.memory\"\nkind = \"anonymous\"\nmin-size = \"8M\"\n"
        );
        let outcome = run(variant, &[], "24", &spec, &[]);
        was_limited(&outcome, "above.memory", 4 * MIB);
        for group in ["above", "above.memory"] {
            let peak = figure(&outcome, group, "swap_peak_bytes");
            assert!((20 * MIB..=24 * MIB).contains(&peak), "{group}: {peak}\n{}", outcome.report());
            assert!(figure(&outcome, group, "swap_bytes") <= peak, "{}", outcome.report());
        }
        let most = figure(&outcome, "above", "swap_max_bytes");
        assert!(figure(&outcome, "above", "swap_peak_bytes") <= most, "{}", outcome.report());
        assert!(groups(&outcome)["above.memory"]["swap_max_bytes"].is_null());
        assert_eq!(figure(&outcome, "above", "failed_events"), 0);
    }
    // Pages stay in memory that have no place in swap.
    let spec = "[group.memory]\nswap-max = 0\n\
                [[rule]]\ngroup = \"memory\"\nkind = \"anonymous\"\nmin-size = \"8M\"\n";
    let outcome = run(variant, &[], "8", spec, &[]);
    assert_eq!(figure(&outcome, "memory", "swap_peak_bytes"), 0, "{}", outcome.report());
    assert!(figure(&outcome, "memory", "peak_bytes") >= 8 * MIB, "{}", outcome.report());
}
behaviour!(swap_is_limited: m64, copy);

/// A group may protect all of the budget, and its own process has to go on all the same.
fn min_may_be_the_whole_budget(variant: Variant) {
    let spec = "[group.memory]\nmin = \"63M\"\n[[rule]]\ngroup = \"memory\"\nkind = \"anonymous\"\n";
    let outcome = run(variant, &[], "72", spec, &[]);
    assert!(figure(&outcome, "memory", "peak_bytes") > 48 * MIB, "{}", outcome.report());
    assert_eq!(figure(&outcome, "memory", "failed_events"), 0);
}
behaviour!(min_may_be_the_whole_budget: m64);

/// The summary has a line for each group.
#[test]
fn the_summary_has_the_groups() {
    let scratch = Scratch::new();
    let files = ["a.bin", "b.bin"].map(|name| scratch.file(name));
    let path = scratch.file("spec.toml");
    std::fs::write(&path, "[group.a]\nmax = \"2M\"\n[[rule]]\ngroup = \"a\"\nfile = \"a.*\"\n").unwrap();
    let command = Command::new(program("groups")).args([&files[0], &files[1], "8"]);
    let outcome = command.variant(Variant::m64()).run_options(&["--group", &path]).with_summary();
    let outcome = outcome.run().success();
    assert!(outcome.stderr.contains("\n  groups          a: "), "{}", outcome.report());
    assert!(outcome.stderr.contains(" MiB of 2.0 MiB, "), "{}", outcome.report());
}
