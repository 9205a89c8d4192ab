//! Signals that a program sets by raw system calls: they mean what they mean to the kernel, whenever they
//! were set.

use elbowroom_tests::{Command, Variant, behaviour, program};

/// A way of setting them, before and after the first managed mapping, as in a plain run.
fn raw(mode: &str, variant: Variant) {
    for order in ["early", "late"] {
        let run = |variant| Command::new(program("raw_signals")).args([mode, order]).variant(variant).run();
        let plain = run(Variant::plain());
        assert_ne!(plain.status.code(), Some(99), "{}", plain.report());
        run(variant).same_as(&plain);
    }
}

macro_rules! raw {
    ($($name:ident: $mode:literal;)+) => {
        $(
            fn $name(variant: Variant) {
                raw($mode, variant);
            }
            behaviour!($name: m64, m16);
        )+
    };
}

raw! {
    threads_that_unblock_signals: "mask";
    handlers_that_are_left: "left";
    handlers_that_call_the_one_before: "forward";
    handlers_that_make_it_the_default: "default";
    handlers_of_bus_errors: "bus";
    handlers_that_are_taken_away: "restore";
}
