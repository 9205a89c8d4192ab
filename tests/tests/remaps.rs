//! One file that a process maps, unmaps and maps again.

use elbowroom_tests::{Command, Outcome, Scratch, Variant, behaviour, may_watch, program};

fn remaps(scratch: &Scratch, variant: Variant, kind: &str, rounds: u32) -> Outcome {
    let arguments = [kind, &scratch.file("data"), &rounds.to_string(), "3"].map(str::to_owned);
    let command = Command::new(program("remaps")).args(arguments).variant(variant);
    command.run_options(&["--min-size", "4K"]).run().success()
}

/// Every byte is as it was stored or written, in whatever way and order.
fn mixed(variant: Variant) {
    let outcome = remaps(&Scratch::new(), variant, "mixed", 1000);
    if !variant.is_plain() && may_watch() {
        assert_eq!(outcome.left_to_kernel("not_alone"), 0, "{}", outcome.report());
    }
}
behaviour!(mixed: plain, m64, m16, copy, threads);

/// What another process opens, had open or inherited between two mappings is seen by both.
fn between_mappings(variant: Variant) {
    let scratch = Scratch::new();
    let command = Command::new(program("between")).args([&scratch.file("data")]).variant(variant);
    let outcome = command.run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
    if !variant.is_plain() && may_watch() {
        // Those mappings, and no others: 15 times opened, once open before, 30 times inherited.
        assert_eq!(outcome.left_to_kernel("not_alone"), 46, "{}", outcome.report());
    }
}
behaviour!(between_mappings: plain, m64, m16, copy);

/// Which processes have the file open is looked up once, and not at each mapping. A look costs about as much
/// as 300 mappings by the kernel.
#[test]
fn a_mapping_costs_no_look_at_all_processes() {
    if !may_watch() {
        return elbowroom_tests::skipped("watches on files need CAP_SYS_ADMIN");
    }
    let scratch = Scratch::new();
    let fastest = |variant: fn() -> Variant| {
        let time = |_| remaps(&scratch, variant(), "private", 500).stdout.trim().parse::<u64>().unwrap();
        (0..3).map(time).min().unwrap()
    };
    let (plain, managed) = (fastest(Variant::plain), fastest(Variant::m64));
    assert!(managed < 60 * plain, "{managed} ns instead of {plain}");
}
