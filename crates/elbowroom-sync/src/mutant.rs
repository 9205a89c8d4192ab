//! Bugs that are planted in tests of the tests (`.ci/mutants`): the tests beside a bug must find it.

use std::sync::OnceLock;

/// A bug that can be planted. Builds for model checkers and builds with debug assertions contain all of
/// them; the environment variable `ELBOWROOM_MUTANT` names the one that is active in a run. Other builds
/// contain none.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    name: &'static str,
}

impl Mutant {
    /// The bug with this name.
    pub const fn new(name: &'static str) -> Self {
        Self { name }
    }

    /// Whether the bug is active in this run.
    #[inline(always)]
    pub fn planted(self) -> bool {
        cfg!(any(loom, shuttle, debug_assertions)) && self.is_named()
    }

    fn is_named(self) -> bool {
        // std's, not a checker's: the name does not change during a run.
        static PLANTED: OnceLock<String> = OnceLock::new();
        PLANTED.get_or_init(|| std::env::var("ELBOWROOM_MUTANT").unwrap_or_default()) == self.name
    }
}
