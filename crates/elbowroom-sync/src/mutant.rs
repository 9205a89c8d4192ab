//! Bugs that are planted in tests of the tests (`.ci/mutants`): the tests beside one must find it.

/// A bug that can be planted. One build has them all, with `--cfg elbowroom_mutants`, and the environment's
/// `ELBOWROOM_MUTANT` names the one that a run has. In every other build none is there.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    #[cfg(elbowroom_mutants)]
    name: &'static str,
}

impl Mutant {
    /// The bug with this name.
    #[cfg_attr(not(elbowroom_mutants), expect(unused_variables, reason = "none is there"))]
    pub const fn new(name: &'static str) -> Self {
        Self {
            #[cfg(elbowroom_mutants)]
            name,
        }
    }

    /// Whether this run has it.
    #[cfg(elbowroom_mutants)]
    pub fn planted(self) -> bool {
        // std's, not a checker's: which bug there is does not change.
        static PLANTED: std::sync::OnceLock<String> = std::sync::OnceLock::new();
        PLANTED.get_or_init(|| std::env::var("ELBOWROOM_MUTANT").unwrap_or_default()) == self.name
    }

    /// Whether this run has it: it has not.
    #[cfg(not(elbowroom_mutants))]
    #[inline(always)]
    pub const fn planted(self) -> bool {
        false
    }
}
