//! Ends of threads: what the kernel stores to then is there, though the rest of the memory is out.

use elbowroom_tests::{Command, Variant, behaviour, program};

/// More than the largest budget here, in MiB.
const PRESSURE: &str = "110";

fn ends(mode: &str, variant: Variant) {
    let command = Command::new(program("thread_ends")).args([mode, PRESSURE]).variant(variant);
    let outcome = command.run_options(&["--swap", "400M"]).run().success();
    assert_eq!(outcome.stdout, "ok\n", "{}", outcome.report());
}

macro_rules! ends {
    ($($name:ident: $($mode:literal),+;)+) => {
        $(
            fn $name(variant: Variant) {
                $(ends($mode, variant);)+
            }
            behaviour!($name: plain, m64, copy);
        )+
    };
}

ends! {
    robust_mutexes_of_threads: "return", "exit", "cancel", "c11";
    robust_mutex_that_a_destructor_locks: "key";
    many_robust_mutexes: "many";
    robust_mutex_of_a_process: "process";
    the_word_that_clone_is_given: "clone";
    stacks_that_the_program_gives: "stack";
}
