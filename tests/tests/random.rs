//! Random calls of the mmap family, loads, stores and file calls by one program, compared with the plain
//! kernel step by step. docs/testing.md says how to run it long, how to run one seed again, and how to read a
//! difference.

use elbowroom_tests::Variant;
use elbowroom_tests::random::{Campaign, Kinds};

/// Steps of all tests here together, if the environment has no other number.
const STEPS: u64 = 1_000_000;
/// The tests that `behaviour!` makes below.
const PARTS: u64 = 15;

/// Mappings of files only.
fn files(variant: Variant) {
    Campaign::from_environment(STEPS, PARTS).run(Kinds::Files, variant);
}
elbowroom_tests::behaviour!(files: m16, m64, copy, threads);

/// Anonymous mappings too.
fn all(variant: Variant) {
    Campaign::from_environment(STEPS, PARTS).run(Kinds::All, variant);
}
elbowroom_tests::behaviour!(all: m16, m64, copy, threads);

/// Private memory is managed, too.
fn private(variant: Variant) {
    Campaign::from_environment(STEPS, PARTS).run(Kinds::Private, variant);
}
elbowroom_tests::behaviour!(private: m16, m64, copy, threads, heap_all, encrypted, fork_kernel);
