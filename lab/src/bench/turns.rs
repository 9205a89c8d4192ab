//! Lets engines take turns, run by run.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Stage;
use super::apart::Killed;
use super::area::Ground;
use super::compare::{Comparison, Record};
use super::terms::Terms;
use crate::cli::TurnArgs;
use crate::engine::Engine;
use crate::load::{Begun, Load};

/// Who takes turns, and how often.
pub struct Turns<'a> {
    pub engines: &'a [Engine],
    pub runs: usize,
    /// What each of them has.
    pub terms: Terms,
}

impl<'a> Turns<'a> {
    /// As the command line says.
    pub fn of(args: &'a TurnArgs) -> Self {
        Self::on(args, Terms::of(args.memory))
    }

    /// The same, on other terms.
    pub fn on(args: &'a TurnArgs, terms: Terms) -> Self {
        Self { engines: &args.engines, runs: args.repeat.runs, terms }
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
            match Ground::on(*engine, &self.terms) {
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
                if !comparison.engines.contains(engine) {
                    continue;
                }
                let label = format!("run {run}/{} {engine}", self.runs);
                stage.progress.update(|| label.clone());
                let begun = Load::begin();
                let record = one(ground, stage);
                let load = begun.and_then(Begun::end);
                let record = match record {
                    // That there is not enough memory for it is a figure, too.
                    Err(error) if error.is::<Killed>() && comparison.engines.len() > 1 => {
                        stage.progress.keep(&format!("{label}: {error:#}"));
                        comparison.leave_out(*engine, format!("{error:#}"));
                        continue;
                    }
                    record => record.with_context(|| label.clone())?,
                };
                stage.progress.keep(&format!("{label}: {}", comparison.line(&record)));
                comparison.push(*engine, run, record, load);
            }
        }
        Ok((comparison.table()?, comparison.json()?))
    }
}
