//! chunks, segments, vector: threads read chunks of one file, as their steps say: one chunk at random, what a
//! query of a search engine reads, or what a search for near vectors reads.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use elbowroom_lab::board::{SLOT_ROUNDS, now_ns};
use elbowroom_lab::chunks::{ChunkSizes, Layout, PIECE_BYTES};
use elbowroom_lab::plan::{Access, Plan, SegmentsShape, VectorShape};

use crate::CommonArgs;
use crate::direct;
use crate::ground::Ground;
use crate::source::{Source, Way};
use crate::tally::{Counter, Outcome, Phase, Stop, run_threads};
use crate::team::Team;

/// Which chunks there are, and how they are read.
#[derive(Debug, Clone, clap::Args)]
pub struct ChunksArgs {
    /// From which size to which they are
    #[arg(long)]
    chunk: ChunkSizes,
    /// Their beginnings are multiples of so many bytes
    #[arg(long)]
    align: u64,
    /// How uneven it is which are read
    #[arg(long)]
    skew: f64,
    /// Where they are, and in which order they are read, follows from it
    #[arg(long)]
    order: u64,
    /// All threads go through each chunk together
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    together: bool,
    #[command(flatten)]
    reading: ReadingArgs,
}

/// How chunks are read.
#[derive(Debug, Clone, clap::Args)]
pub struct ReadingArgs {
    /// By what
    #[arg(long, value_enum, default_value_t = Way::Mapped)]
    pub way: Way,
    /// Bytes of the cache, if it is by one
    #[arg(long, default_value_t = 0)]
    pub cache_bytes: u64,
}

/// Queries of a search engine, and how their chunks are read.
#[derive(Debug, Clone, clap::Args)]
pub struct SegmentsArgs {
    #[command(flatten)]
    shape: SegmentsShape,
    /// What there is, and in which order it is read, follows from it
    #[arg(long)]
    order: u64,
    #[command(flatten)]
    reading: ReadingArgs,
}

/// Searches for near vectors, and how these are read.
#[derive(Debug, Clone, clap::Args)]
pub struct VectorArgs {
    #[command(flatten)]
    shape: VectorShape,
    /// What there is, and in which order it is read, follows from it
    #[arg(long)]
    order: u64,
    #[command(flatten)]
    reading: ReadingArgs,
}

/// The file has no room for what is to be read.
const SMALL: &str = "the file is too small for a chunk";

pub fn run(common: &CommonArgs, ground: &Ground, args: &ChunksArgs) -> Result<Outcome> {
    let layout = Layout::fill(common.file_bytes, args.chunk, args.align, args.order).context(SMALL)?;
    let plan = Plan::of_chunks(layout, args.skew, args.order);
    read(common, ground, &plan, &args.reading, args.together)
}

pub fn run_segments(common: &CommonArgs, ground: &Ground, args: &SegmentsArgs) -> Result<Outcome> {
    let plan = Plan::of_segments(common.file_bytes, args.shape, args.order).context(SMALL)?;
    read(common, ground, &plan, &args.reading, false)
}

pub fn run_vector(common: &CommonArgs, ground: &Ground, args: &VectorArgs) -> Result<Outcome> {
    let plan = Plan::of_vectors(common.file_bytes, args.shape, args.order).context(SMALL)?;
    read(common, ground, &plan, &args.reading, false)
}

fn read(
    common: &CommonArgs,
    ground: &Ground,
    plan: &Plan,
    reading: &ReadingArgs,
    is_together: bool,
) -> Result<Outcome> {
    if reading.way == Way::Direct {
        return direct::run(common, ground, plan);
    }
    let source = Source::open(common, ground, &plan.layout, reading.way, reading.cache_bytes)?;
    source.with_readers(|| {
        if is_together {
            return together(common, ground, &source, plan);
        }
        run_threads(common, ground, |thread, counter| {
            match each_its_own(&source, plan, thread as u64, counter) {
                Ok(never) => match never {},
                Err(stop) => stop,
            }
        })
    })
}

/// A thread reads what one step after the other says.
fn each_its_own(
    source: &Source<'_>,
    plan: &Plan,
    thread: u64,
    counter: &Counter<'_>,
) -> Result<Infallible, Stop> {
    let (mut dice, mut step) = (plan.dice(thread), Vec::new());
    loop {
        plan.draw(&mut dice, &mut step);
        let before = now_ns();
        for Access { chunk, part } in &step {
            source.announce(counter, &[*chunk])?;
            let held = source.hold(*chunk);
            for start in part.clone().step_by(PIECE_BYTES as usize) {
                let piece = start..part.end.min(start + PIECE_BYTES);
                source.read(counter, *chunk, held.as_ref(), piece)?;
            }
        }
        counter.tally.operation_took(Phase::Busy, now_ns() - before);
        counter.bump(SLOT_ROUNDS);
    }
}

/// All threads read one chunk after the other together.
fn together(common: &CommonArgs, ground: &Ground, source: &Source<'_>, plan: &Plan) -> Result<Outcome> {
    let team = Team::new(common.threads);
    // The dice, and when the chunk began that is read.
    let course = Mutex::new((plan.dice(0), None));
    run_threads(common, ground, |_, counter| {
        team.go_through(source, counter, || {
            let mut course = course.lock().unwrap_or_else(PoisonError::into_inner);
            let (dice, began_ns) = &mut *course;
            let now = now_ns();
            if let Some(began_ns) = began_ns.replace(now) {
                counter.tally.operation_took(Phase::Busy, now - began_ns);
                counter.bump(SLOT_ROUNDS);
            }
            let mut step = Vec::new();
            plan.draw(dice, &mut step);
            let chunk = step.first().map_or(0, |access| access.chunk);
            source.announce(counter, &[chunk])?;
            Ok(chunk)
        })
    })
}
