//! Lets engines take turns, run by run.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Stage;
use super::area::Ground;
use super::compare::{Comparison, Record};
use super::swap_in::Swapping;
use crate::cli::TurnArgs;
use crate::engine::Engine;
use crate::size::Size;

/// Who takes turns, and how often.
pub struct Turns<'a> {
    pub engines: &'a [Engine],
    /// The budget of a manager.
    pub memory: Size,
    pub runs: usize,
    /// Where a manager may put anonymous memory; `None`: nowhere.
    pub swap: Option<Swapping>,
}

impl<'a> Turns<'a> {
    /// As the command line says.
    pub fn of(args: &'a TurnArgs) -> Self {
        Self { engines: &args.engines, memory: args.memory, runs: args.repeat.runs, swap: None }
    }

    /// The same, with swap.
    pub fn with_swap(args: &'a TurnArgs, swap: Swapping) -> Self {
        Self { swap: Some(swap), ..Self::of(args) }
    }

    /// Measures by `one`; the table and the JSON object.
    ///
    /// # Errors
    /// If no engine can run here, a wrong byte was read, or a signal came.
    pub fn take(
        &self,
        mut comparison: Comparison,
        stage: &mut Stage,
        one: impl Fn(&Ground, &Stage) -> Result<Record>,
    ) -> Result<(String, Value)> {
        let mut grounds = Vec::new();
        for engine in self.engines {
            match Ground::with_swap(*engine, self.memory, self.swap.as_ref()) {
                Ok(ground) => grounds.push((*engine, ground)),
                Err(error) => {
                    stage.progress.keep(&format!("{engine} is left out: {error:#}"));
                    comparison.skipped.push((*engine, format!("{error:#}")));
                }
            }
        }
        ensure!(!grounds.is_empty(), "none of the engines can run here (see `elbowroom doctor`)");
        comparison.engines = grounds.iter().map(|(engine, _)| *engine).collect();
        for run in 1..=self.runs {
            for (engine, ground) in &grounds {
                let label = format!("run {run}/{} {engine}", self.runs);
                stage.progress.update(|| label.clone());
                let record = one(ground, stage).with_context(|| label.clone())?;
                stage.progress.keep(&format!("{label}: {}", comparison.line(&record)));
                comparison.push(*engine, run, record);
            }
        }
        Ok((comparison.table()?, comparison.json()?))
    }
}
