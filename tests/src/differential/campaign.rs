//! Many lists of random operations, and the report of the first that fails.
//!
//! A campaign is cut into episodes of [`EPISODE`] operations, each with new engines and a seed of its own, so
//! that a failure is found again by its seed alone, whatever came before.

use std::fmt;

use crate::differential::compare::{Checks, Divergence, Pair, Tally};
use crate::differential::engine::Engine;
use crate::differential::generate::Generator;
use crate::differential::mix::Mix;
use crate::differential::op::Op;
use crate::differential::shrink::shrink;

/// The variable with the first seed, decimal or with 0x.
pub const SEED_VARIABLE: &str = "ELBOWROOM_DIFF_SEED";
/// The variable with the number of steps.
pub const STEPS_VARIABLE: &str = "ELBOWROOM_DIFF_STEPS";

/// Steps of all campaigns of a run together, unless the variable says otherwise.
pub const STEPS: u64 = 1_000_000;
/// Pages of a range.
pub const PAGES: u64 = 256;
/// Operations of an episode.
pub const EPISODE: u64 = 1000;
/// Steps between two comparisons of everything.
const EVERYTHING: usize = 100;

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// The first episode's seed; the others follow.
    pub seed: u64,
    /// Operations in all, rounded up to whole episodes.
    pub steps: u64,
    /// Pages of the range.
    pub pages: u64,
    /// What is generated.
    pub mix: Mix,
}

impl Campaign {
    /// A campaign of `percent` of the steps that `ELBOWROOM_DIFF_STEPS` says (or [`STEPS`]), from
    /// `ELBOWROOM_DIFF_SEED` (or `seed`).
    ///
    /// # Panics
    /// If a variable holds no number.
    pub fn from_environment(seed: u64, percent: u64, mix: Mix) -> Self {
        let steps = variable(STEPS_VARIABLE).unwrap_or(STEPS);
        let seed = variable(SEED_VARIABLE).unwrap_or(seed);
        Self { seed, steps: (steps * percent).div_ceil(100), pages: PAGES, mix }
    }

    /// Runs it on engines that `make` makes anew for each episode.
    ///
    /// # Errors
    /// The first failure, shrunk.
    pub fn run<L: Engine, R: Engine>(&self, mut make: impl FnMut() -> (L, R)) -> Result<Tally, Box<Failure>> {
        let mut tally = Tally::default();
        for episode in 0..self.steps.div_ceil(EPISODE) {
            let seed = self.seed.wrapping_add(episode);
            let ops = self.episode(seed);
            let _name = NameSeed(seed);
            let (left, right) = make();
            match Pair::new(left, right).run(&ops, Checks::Every(EVERYTHING)) {
                Ok(done) => tally.add(&done),
                Err(divergence) => return Err(Box::new(shrunk(seed, &ops, divergence, make))),
            }
        }
        Ok(tally)
    }

    /// Runs it on two threads, each with its own operations and the half of the steps, on engines that `make`
    /// makes for the thread's number (0, 1).
    ///
    /// # Errors
    /// The first failure of either thread. It is shrunk with that thread alone; [`Failure::again`] tells
    /// whether it fails alone.
    ///
    /// # Panics
    /// If one of them does.
    pub fn run_on_two_threads<L: Engine, R: Engine>(
        &self,
        make: impl Fn(usize) -> (L, R) + Sync,
    ) -> Result<Tally, Box<Failure>> {
        let half = |thread: usize| {
            let seed = self.seed.wrapping_add((thread as u64) << 32);
            let campaign = Self { seed, steps: self.steps.div_ceil(2), ..self.clone() };
            campaign.run(|| make(thread))
        };
        let mut both = std::thread::scope(|scope| {
            let other = scope.spawn(|| half(1));
            [half(0), other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))]
        });
        let second = std::mem::take(both[1].as_mut().map_err(|failure| failure.clone())?);
        let [first, _] = both;
        let mut tally = first?;
        tally.add(&second);
        Ok(tally)
    }

    /// The operations of the episode with this seed.
    pub fn episode(&self, seed: u64) -> Vec<Op> {
        Generator::new(seed, self.pages, self.mix.clone()).list(EPISODE as usize)
    }
}

/// Names the seed if an engine panics.
struct NameSeed(u64);

impl Drop for NameSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("a panic in the episode of {SEED_VARIABLE}={:#x}", self.0);
        }
    }
}

/// Runs a list on new engines, comparing everything after each step.
fn fails<L: Engine, R: Engine>(ops: &[Op], make: &mut impl FnMut() -> (L, R)) -> Option<Divergence> {
    let (left, right) = make();
    Pair::new(left, right).run(ops, Checks::Everything).err()
}

fn shrunk<L: Engine, R: Engine>(
    seed: u64,
    ops: &[Op],
    first: Divergence,
    mut make: impl FnMut() -> (L, R),
) -> Failure {
    // With everything compared after every step, it is seen where it happens.
    let Some(exact) = fails(ops, &mut make) else {
        return Failure { seed, ops: ops[..=first.step].to_vec(), divergence: first, again: false };
    };
    let ops = shrink(&ops[..=exact.step], |ops| fails(ops, &mut make).is_some());
    let divergence = fails(&ops, &mut make).unwrap_or(exact);
    Failure { seed, ops, divergence, again: true }
}

/// An episode that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The episode's seed.
    pub seed: u64,
    /// The shortest list that fails, or all operations if it did not fail again.
    pub ops: Vec<Op>,
    /// What differs after that list.
    pub divergence: Divergence,
    /// Whether it failed again when it was repeated.
    pub again: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "two engines differ; {SEED_VARIABLE}={:#x} repeats it", self.seed)?;
        if !self.again {
            writeln!(f, "but it did not fail again when it was repeated with more comparisons")?;
        }
        for op in &self.ops {
            writeln!(f, "  {op}")?;
        }
        write!(f, "{}", self.divergence)
    }
}

/// A number from the environment.
fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.replace('_', "").parse(),
    };
    Some(number.unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}
