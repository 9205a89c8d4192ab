//! Programs of Debian's that nobody here wrote, plainly and under `elbowroom run`: the same output, status
//! and files.
//!
//! Each is a row ([`Program`]) and a test of its name. What is not installed is skipped, which is said on
//! standard error past the capture of the test harness; with `ELBOWROOM_REQUIRE_PROGRAMS=1`, as in CI, it is
//! a failure.
//!
//! * [`mod@archives`]: what packs, copies and compares files
//! * [`mod@binaries`]: compilers, linkers, debuggers
//! * [`mod@databases`]: databases of one process
//! * [`mod@languages`]: interpreters and compilers whose programs map files
//! * [`mod@memory`]: suites of what uses anonymous memory, under `--swap`
//! * [`mod@search`]: what looks something up in files
//! * [`mod@servers`]: servers, most of which fork
//! * [`mod@shared`]: databases of two processes at once, one of them plain or both managed

mod archives;
mod binaries;
mod databases;
mod languages;
mod memory;
mod search;
mod servers;
mod shared;

/// A test of the row's name.
macro_rules! program {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $value:expr),+ $(,)? }) => {
        $(#[$doc])*
        #[test]
        fn $name() {
            #[allow(clippy::needless_update, reason = "a row may have all fields")]
            elbowroom_tests::public::Program {
                name: stringify!($name),
                $($field: $value,)+
                ..elbowroom_tests::public::Program::NONE
            }
            .compare();
        }
    };
}
use program;
