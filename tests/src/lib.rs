//! What the behaviour tests share: a place on a real disk, C programs compiled once, and runs of real
//! programs under the plain kernel and under `elbowroom run`.
//!
//! A behaviour test is a program that checks itself, run in several variants ([`Variant`]). The plain kernel
//! is one of them and validates the test: what holds there must hold under every other. [`behaviour!`] makes
//! one `#[test]` of each program and variant, so that a failure is named.
//!
//! Nothing here hangs: a run has a time limit, after which its whole process group is killed and the panic
//! shows what each of its threads was doing.
//!
//! * [`differential`]: the same random operations on two engines
//! * [`kills`]: processes that share files and are ended at any moment
//! * [`modules`]: which modules of a crate use which, for the tidy test
//! * [`place`]: scratch directories, and the binary under test
//! * [`mod@program`]: the C programs of `tests/programs`
//! * [`mod@public`]: programs that other people have written, as rows of a table
//! * [`random`]: random calls of one program, compared with the plain kernel
//! * [`run`]: processes, their output, and how they ended
//! * [`source`]: the source files, for the tidy test
//! * [`variant`]: the ways in which a program is run

pub mod differential;
pub mod kills;
pub mod modules;
pub mod place;
pub mod program;
pub mod public;
pub mod random;
pub mod run;
pub mod source;
pub mod types;
pub mod variant;

pub use place::{Scratch, elbowroom_exe};
pub use program::{Pattern, program};
pub use run::{Command, Outcome, Running};
pub use variant::Variant;

/// Says that a test, or the rest of it, cannot be made here: past the harness, which keeps what passing tests
/// print to itself.
pub fn skipped(reason: impl std::fmt::Display) {
    // If nobody can be told, there is nobody to tell.
    let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("SKIPPED: {reason}\n"));
}

/// Whether this process, and so what it runs, has CAP_SYS_ADMIN: what watches on files need.
pub fn may_watch() -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    u64::from_str_radix(effective.trim(), 16).is_ok_and(|capabilities| capabilities & CAP_SYS_ADMIN != 0)
}

/// One `#[test]` for each named variant of a behaviour: `behaviour!(name: plain, m64, m16);` calls
/// `fn name(variant: Variant)` as the tests `name::plain`, `name::m64` and `name::m16`.
#[macro_export]
macro_rules! behaviour {
    ($name:ident: $($variant:ident),+ $(,)?) => {
        mod $name {
            $(
                #[test]
                fn $variant() {
                    super::$name($crate::Variant::$variant());
                }
            )+
        }
    };
}
