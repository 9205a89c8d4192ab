//! Where the library keeps its own memory: never in addresses that the program has given up, and out of its
//! reach.

use elbowroom_tests::{Command, Pattern, Scratch, Variant, behaviour, program};

fn run(variant: Variant, seed: u64, options: &[&str]) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, 24 << 20, seed);
    let seed = seed.to_string();
    let command = Command::new(program("holes")).args([&file, &seed, "4"]).run_options(options);
    let outcome = command.variant(variant).run().success();
    let has_rings = outcome.stats.is_some() && variant.name != "threads";
    let others = if outcome.stats.is_some() { "out of reach" } else { "absent" };
    let forbidden = outcome.stdout.ends_with("rings forbidden\n");
    if forbidden {
        eprintln!("skipped: where rings lie; io_uring is forbidden here");
    }
    let rings = ["no rings", "rings", "rings forbidden"][if forbidden { 2 } else { usize::from(has_rings) }];
    assert_eq!(outcome.stdout, format!("others {others}, {rings}\n"));
    if let Some(stats) = &outcome.stats {
        assert!(stats["left_to_kernel"]["library_memory"].as_u64() >= Some(6), "{}", outcome.report());
    }
}

fn holes_stay_empty(variant: Variant) {
    run(variant, 11, &["--swap", "0"]);
}
behaviour!(holes_stay_empty: plain, m64, m16, copy, threads, handlers1);

/// Private memory that is managed goes back to the kernel, and is filled somewhere before it does.
fn holes_stay_empty_with_swap(variant: Variant) {
    run(variant, 12, &["--min-size", "4K"]);
}
behaviour!(holes_stay_empty_with_swap: m64, m16, copy, threads, handlers1);

/// What happened in 2 of 40 runs.
#[test]
fn fifty_short_runs() {
    for seed in 100..150 {
        run(if seed % 2 == 0 { Variant::m16() } else { Variant::threads() }, seed, &["--swap", "0"]);
    }
}
