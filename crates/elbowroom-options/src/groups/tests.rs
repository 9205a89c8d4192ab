//! Specs in their compact form: what is read, and each mistake with its exact text.

use super::*;

/// The mistake in a spec in its compact form.
fn mistake(text: &str) -> String {
    GroupSpec::parse(text).expect_err(text)
}

#[test]
fn a_spec_is_read() {
    let text = "group:cache:max:256M:high:200M,group:cache.index:low:64M,rule:group:cache:file:*.bin,\
                rule:group:cache.index:program:python3:kind:anonymous:min-size:64M,\
                rule:group:root:file:/a%3ab%2cc%25/**";
    let spec = GroupSpec::parse(text).unwrap();
    let [cache, index] = &spec.groups[..] else { panic!("{spec:?}") };
    assert_eq!((cache.name.as_str(), cache.parent), ("cache", None));
    let limits = GroupLimits { max: Some(256 << 20), high: Some(200 << 20), ..GroupLimits::default() };
    assert_eq!(cache.limits, limits);
    let swap = GroupSpec::parse("group:a:swap-max:0:memory-swap-max:1.5G,rule:group:a").unwrap();
    let limits = swap.groups[0].limits;
    assert_eq!((limits.swap_max, limits.memory_swap_max, limits.max), (Some(0), Some(3 << 29), None));
    assert_eq!(
        (index.name.as_str(), index.parent, index.limits.low),
        ("cache.index", Some(0), Some(64 << 20))
    );
    let [bin, python, others] = &spec.rules[..] else { panic!("{spec:?}") };
    assert_eq!((bin.group, bin.file.as_deref(), bin.program.as_deref()), (Some(0), Some("*.bin"), None));
    assert_eq!((python.group, python.program.as_deref()), (Some(1), Some("python3")));
    assert_eq!((python.kind, python.min_size), (Some(MemoryKind::Anonymous), Some(64 << 20)));
    assert_eq!((others.group, others.file.as_deref()), (None, Some("/a:b,c%/**")));
    let entries = compact::entries(text).unwrap();
    assert_eq!(GroupSpec::encode(&entries), text);
    assert_eq!(GroupSpec::parse(""), Ok(GroupSpec::default()));
}

#[test]
fn mistakes_name_the_key_and_say_what_it_may_be() {
    let used = ",rule:group:a";
    for (text, said) in [
        ("groups:a", "\"groups:a\" begins with neither group: nor rule:"),
        ("group", "\"group\" has no name of a group"),
        ("group:a:max", "\"group:a:max\": max has no value"),
        ("group:a:max:%4", "\"group:a:max:%4\" has a % without two hexadecimal digits of a character"),
        ("group:a:max:%ff", "\"group:a:max:%ff\" has a % without two hexadecimal digits of a character"),
        (
            "group:a:size:1M",
            "group.a.size: there is no such key; a group may have min, low, high, max, swap-max, \
          memory-swap-max, dirty, swappiness",
        ),
        ("group:a:max:1M:max:2M", "group.a.max: it is there twice"),
        ("group:a:max:1000K", "group.a.max: it must be at least 1M"),
        ("group:a:high:0", "group.a.high: it must be at least 1M"),
        ("group:a:low:4095", "group.a.low: it must be at least 4K"),
        ("group:a:min:5 much", "group.a.min: 'much' is not a unit of size: write K, M, G or T, as in 512M"),
        ("group:a b", "group.a b: a group's name has 1 to 64 letters, digits, _ and -"),
        ("group:a..b", "group.a..b: a group's name has 1 to 64 letters, digits, _ and -"),
        ("group:root", "group.root: root is the group above all others: its limit is --memory, or --each"),
        (
            "group:a.max",
            "group.a.max: min, low, high, max, swap-max, memory-swap-max, dirty, swappiness are the names of \
             limits: give the group another name",
        ),
        ("group:a:swap-max:-1", "group.a.swap-max: a size cannot be below 0: write 1"),
        ("group:a:swappiness:201", "group.a.swappiness: '201' is not a whole number from 0 to 200"),
        ("group:a:dirty:1000K", "group.a.dirty: it must be at least 1M"),
        ("group:a:memory-swap-max:1000K", "group.a.memory-swap-max: it must be at least 1M"),
        ("group:a:memory-swap-max:3M:max:4M", "group.a.memory-swap-max: 3M is less than max, 4M"),
        ("group:a.b", "group.a.b: there is no group a before it"),
        ("group:a,group:a", "group.a: the group is there twice"),
        ("group:a:min:2M:low:1M", "group.a.min: 2M is more than low, 1M"),
        ("group:a:low:3M:max:2M", "group.a.low: 3M is more than max, 2M"),
        ("group:a:high:3M:max:2M", "group.a.high: 3M is more than max, 2M"),
        ("group:a", "group.a: no rule puts memory into it, or into a group below it"),
        (
            "group:a:max:4M,group:a.b:low:3M,group:a.c:min:2M,rule:group:a",
            "group.a.c.min: up to here 5M are protected, more than max of group a, 4M",
        ),
        ("rule:kind:file", "rule.group: the rule has no group: write the name of one, or root"),
        ("group:b,rule:group:a", "rule.group: there is no group 'a'; there are b, root"),
        (
            "rule:group:root:colour:red",
            "rule.colour: there is no such key; a rule may have group, program, file, kind, min-size, \
             max-size",
        ),
        ("rule:group:root:kind:stack", "rule.kind: 'stack' is none of file, anonymous, heap"),
        ("rule:group:root:min-size:0", "rule.min-size: it must be at least 1"),
        (
            "rule:group:root:min-size:2M:max-size:1M",
            "rule.max-size: the rule never fits: 1M is less than min-size, 2M",
        ),
        ("rule:group:root:file:", "rule.file: it is empty: write a pattern, as in \"*.bin\" or \"/data/**\""),
        ("rule:group:root:file:data/*", "rule.file: the rule never fits: a path begins with /"),
        (
            "rule:group:root:file:/data/",
            "rule.file: the rule never fits: a path of a file does not end with /; write dir/**",
        ),
        (
            "rule:group:root:file:*.bin:kind:heap",
            "rule.kind: the rule never fits: heap memory has no file; leave one out",
        ),
        (
            "rule:group:root:program:bin/x",
            "rule.program: write a name, as in \"python3\", or an absolute path",
        ),
        ("rule:group:root:program:", "rule.program: write a name, as in \"python3\", or an absolute path"),
        ("rule:group:root:program:/bin/", "rule.program: a directory is no program"),
        (
            "rule:group:root:kind:file,rule:group:root:file:*.bin",
            "rule: rule 2 never decides: rule 1 fits all that it fits, and is first",
        ),
        (
            "rule:group:root:program:a:min-size:1M,rule:group:root,rule:group:root:program:a",
            "rule: rule 3 never decides: rule 2 fits all that it fits, and is first",
        ),
    ] {
        assert_eq!(mistake(text), said, "{text}");
    }
    for right in [
        "group:a:min:1M:low:1M:high:1M:max:1M",
        "group:a:max:4M:swap-max:0:memory-swap-max:4M",
        "group:a:max:4M:swap-max:64M:memory-swap-max:5M",
        "group:a:memory-swap-max:1M",
        "group:a:swappiness:0",
        "group:a,rule:group:a:min-size:2M,rule:group:a:min-size:1M",
        "group:a,rule:group:a:max-size:1M",
        "group:a,rule:group:a:kind:heap,rule:group:a:kind:anonymous,rule:group:a:file:x",
    ] {
        GroupSpec::parse(&format!("{right}{used}")).unwrap();
    }
}

#[test]
fn there_is_a_most_of_groups_and_of_rules() {
    let entries = |groups: usize, rules: usize| {
        let group = |number| Entry { what: What::Group(format!("g{number}")), pairs: Vec::new() };
        let rule = |number: usize| Entry {
            what: What::Rule,
            pairs: vec![
                ("group".to_owned(), format!("g{}", number.min(groups - 1))),
                ("program".to_owned(), format!("p{number}")),
            ],
        };
        (0..groups).map(group).chain((0..rules).map(rule)).collect::<Vec<_>>()
    };
    GroupSpec::of(&entries(MOST_GROUPS, MOST_RULES)).unwrap();
    let mistake = GroupSpec::of(&entries(MOST_GROUPS + 1, 0)).unwrap_err();
    assert_eq!(
        (mistake.entry, mistake.to_string().as_str()),
        (MOST_GROUPS, "group.g1023: there can be 1023 groups, and no more")
    );
    let mistake = GroupSpec::of(&entries(1, MOST_RULES + 1)).unwrap_err();
    assert_eq!(
        (mistake.entry, mistake.to_string().as_str()),
        (MOST_RULES + 1, "rule: there can be 1024 rules, and no more")
    );
}

#[test]
fn the_run_decides() {
    let run = RunFacts {
        budget_bytes: 64 << 20,
        is_without_swap: false,
        heap: Heap::Large,
        heap_min_bytes: 256 << 10,
    };
    let check = |text: &str, run: &RunFacts| {
        let entries = compact::entries(text).unwrap();
        GroupSpec::of(&entries).unwrap().check(&entries, run).map_err(|mistake| mistake.to_string())
    };
    let protected = "group:a:low:40M:min:8M,group:b:min:24M,rule:group:a:kind:heap,rule:group:b";
    assert_eq!(check(protected, &run), Ok(()));
    assert_eq!(
        check(protected, &RunFacts { budget_bytes: 63 << 20, ..run }),
        Err("group.b.min: up to here 64M are protected, more than the budget of a process, 63M".to_owned())
    );
    assert_eq!(
        check("rule:group:root:kind:anonymous", &RunFacts { is_without_swap: true, ..run }),
        Err("rule.kind: the rule never fits: with --swap 0 this memory is the kernel's".to_owned())
    );
    let without = RunFacts { is_without_swap: true, ..run };
    assert_eq!(check("group:a:swap-max:0,rule:group:a", &without), Ok(()));
    assert_eq!(
        check("group:a:swap-max:1M,rule:group:a", &without),
        Err("group.a.swap-max: with --swap 0 nothing of the group is ever in swap".to_owned())
    );
    assert_eq!(
        check(protected, &RunFacts { heap: Heap::Off, ..run }),
        Err("rule.kind: the rule never fits: with --heap off the heap is the kernel's".to_owned())
    );
    assert_eq!(
        check("rule:group:root:kind:heap:max-size:255K", &run),
        Err("rule.max-size: the rule never fits: blocks below --heap-min, 256K, are the kernel's".to_owned())
    );
}
