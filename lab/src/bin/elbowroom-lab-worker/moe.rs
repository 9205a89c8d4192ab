//! moe: a model of experts that is larger than memory. All threads read the dense weights of a layer
//! together, then the experts that the token uses in it, and go on to the next layer.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use elbowroom_lab::board::{SLOT_ROUNDS, now_ns};
use elbowroom_lab::plan::Plan;
use elbowroom_lab::routing::{Model, Routing, Weights};

use crate::CommonArgs;
use crate::chunks::ReadingArgs;
use crate::direct;
use crate::ground::Ground;
use crate::source::{Source, Way};
use crate::tally::{Counter, Outcome, Phase, Stop, run_threads};
use crate::team::Team;

/// The model, and how it is read.
#[derive(Debug, Clone, clap::Args)]
pub struct MoeArgs {
    #[command(flatten)]
    model: Model,
    /// Bytes of an expert
    #[arg(long)]
    expert_bytes: u64,
    /// Bytes of the dense weights of a layer
    #[arg(long)]
    dense_bytes: u64,
    /// Parts begin at multiples of so many bytes
    #[arg(long)]
    align: u64,
    /// Where the parts are follows from it
    #[arg(long)]
    order: u64,
    /// Which experts the tokens use
    #[arg(long)]
    routing: PathBuf,
    #[command(flatten)]
    reading: ReadingArgs,
}

pub fn run(common: &CommonArgs, ground: &Ground, args: &MoeArgs) -> Result<Outcome> {
    let weights = Weights { expert_bytes: args.expert_bytes, dense_bytes: args.dense_bytes };
    let layout = args.model.layout(weights, args.align, args.order);
    let ReadingArgs { way, cache_bytes } = args.reading;
    if way == Way::Direct {
        return direct::run(common, ground, &Plan::of_chunks(layout, 0.0, args.order));
    }
    let routing = Routing::read(&args.routing, args.model)?;
    let source = Source::open(common, ground, &layout, way, cache_bytes)?;
    let team = Team::new(common.threads);
    let course = Mutex::new(Course::new(args.model, &routing));
    source.with_readers(|| {
        run_threads(common, ground, |_, counter| {
            team.go_through(&source, counter, || {
                course.lock().unwrap_or_else(PoisonError::into_inner).next(&source, counter)
            })
        })
    })
}

/// Where the model's threads are.
struct Course<'a> {
    model: Model,
    routing: &'a Routing,
    /// What is announced next.
    token: u64,
    layer: u64,
    part: Part,
    /// What is announced, and not read yet.
    ahead: VecDeque<u64>,
    /// 0 before the first token.
    token_began_ns: u64,
}

/// A part of a layer.
#[derive(Clone, Copy)]
enum Part {
    Dense,
    Experts,
}

impl<'a> Course<'a> {
    fn new(model: Model, routing: &'a Routing) -> Self {
        let ahead = VecDeque::new();
        Self { model, routing, token: 0, layer: 0, part: Part::Dense, ahead, token_began_ns: 0 }
    }

    /// The chunk that is read next; all before it is read.
    fn next(&mut self, source: &Source<'_>, counter: &Counter<'_>) -> Result<u64, Stop> {
        if self.ahead.is_empty() {
            self.go_on(counter);
            source.announce(counter, self.ahead.make_contiguous())?;
        }
        Ok(self.ahead.pop_front().expect("each part has a chunk"))
    }

    /// Takes the next part: the dense weights of a layer, which say what experts it needs, or these.
    fn go_on(&mut self, counter: &Counter<'_>) {
        match self.part {
            Part::Dense => {
                if self.layer == 0 {
                    self.begin_token(counter);
                }
                self.ahead.push_back(self.model.dense(self.layer));
                self.part = Part::Experts;
            }
            Part::Experts => {
                let experts = self.routing.experts(self.token, self.layer);
                self.ahead.extend(experts.iter().map(|expert| self.model.expert(self.layer, *expert)));
                self.part = Part::Dense;
                self.layer += 1;
                if self.layer == self.model.layers {
                    (self.layer, self.token) = (0, self.token + 1);
                }
            }
        }
    }

    /// Counts the token before, if there was one.
    fn begin_token(&mut self, counter: &Counter<'_>) {
        let now = now_ns();
        let began_ns = std::mem::replace(&mut self.token_began_ns, now);
        if began_ns > 0 {
            counter.tally.operation_took(Phase::Busy, now - began_ns);
            counter.bump(SLOT_ROUNDS);
        }
    }
}
