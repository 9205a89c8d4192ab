//! Bugs that are planted in tests of the tests (`.ci/mutants`): the tests beside one must find it.

use std::sync::OnceLock;

/// A bug that can be planted. The builds of model checkers have them all, and so have builds with debug
/// assertions; the environment's `ELBOWROOM_MUTANT` names the one that a run has. In every other build none
/// is there.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    name: &'static str,
}

impl Mutant {
    /// The bug with this name.
    pub const fn new(name: &'static str) -> Self {
        Self { name }
    }

    /// Whether this run has it.
    #[inline(always)]
    pub fn planted(self) -> bool {
        cfg!(any(loom, shuttle, debug_assertions)) && self.is_named()
    }

    fn is_named(self) -> bool {
        // std's, not a checker's: which bug there is does not change.
        static PLANTED: OnceLock<String> = OnceLock::new();
        PLANTED.get_or_init(|| std::env::var("ELBOWROOM_MUTANT").unwrap_or_default()) == self.name
    }
}
