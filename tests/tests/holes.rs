//! Where the library keeps its own memory: never in addresses that the program has given up, and out of its
//! reach.

use elbowroom_tests::{Command, Pattern, Scratch, Variant, behaviour, program};

fn run(variant: Variant, seed: u64) {
    let scratch = Scratch::new();
    let file = scratch.file("data");
    Pattern::create(&file, 24 << 20, seed);
    let seed = seed.to_string();
    // What is mapped over a hole is the kernel's: what the manager maps there leaves a window.
    let command = Command::new(program("holes")).args([&file, &seed, "4"]).run_options(&["--swap", "0"]);
    let outcome = command.variant(variant).run().success();
    let expected = if outcome.stats.is_some() { "others out of reach\n" } else { "others absent\n" };
    assert_eq!(outcome.stdout, expected);
    if let Some(stats) = &outcome.stats {
        assert!(stats["left_to_kernel"]["library_memory"].as_u64() >= Some(6), "{}", outcome.report());
    }
}

fn holes_stay_empty(variant: Variant) {
    run(variant, 11);
}
behaviour!(holes_stay_empty: plain, m64, m16, copy, threads, handlers1);

/// What happened in 2 of 40 runs.
#[test]
fn fifty_short_runs() {
    for seed in 100..150 {
        run(if seed % 2 == 0 { Variant::m16() } else { Variant::threads() }, seed);
    }
}
