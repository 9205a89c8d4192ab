//! Limits of address space and data that the program sets itself, once something is managed.

use elbowroom_tests::{Command, Variant, behaviour, program};

fn limit(what: &str, variant: Variant) {
    let command = Command::new(program("address_limits")).args([what]).variant(variant);
    let outcome = command.run_options(&["--swap", "400M"]).run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
}

fn data(variant: Variant) {
    limit("data", variant);
}
behaviour!(data: plain, m64, m16, copy);

fn address_space(variant: Variant) {
    limit("as", variant);
}
behaviour!(address_space: plain, m64, m16, copy);

/// The kernel's own mappings, which replace ours where memory or files go back to it, are not refused then.
fn data_below_what_is_mapped(variant: Variant) {
    limit("data-below", variant);
}
behaviour!(data_below_what_is_mapped: plain, m16, copy, fork_kernel);

fn address_space_below_what_is_mapped(variant: Variant) {
    limit("as-below", variant);
}
behaviour!(address_space_below_what_is_mapped: plain, m16, copy, fork_kernel);
