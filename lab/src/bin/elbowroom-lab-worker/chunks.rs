//! chunks: threads read whole chunks at random places of one file, each its own, or all through one.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use elbowroom_lab::board::{SLOT_ROUNDS, now_ns};
use elbowroom_lab::chunks::{ChunkSizes, Layout, Popularity};

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

pub fn run(common: &CommonArgs, ground: &Ground, args: &ChunksArgs) -> Result<Outcome> {
    let layout = Layout::fill(common.file_bytes, args.chunk, args.align, args.order)
        .context("the file is smaller than a chunk")?;
    let popularity = Popularity::new(layout.count(), args.skew, args.order);
    if args.reading.way == Way::Direct {
        return direct::run(common, ground, &layout, &popularity);
    }
    let ReadingArgs { way, cache_bytes } = args.reading;
    let source = Source::open(common, ground, &layout, way, cache_bytes)?;
    source.with_readers(|| {
        if args.together {
            return together(common, ground, &source, &popularity);
        }
        run_threads(common, ground, |thread, counter| {
            match each_its_own(&source, &popularity, thread as u64, counter) {
                Ok(never) => match never {},
                Err(stop) => stop,
            }
        })
    })
}

/// A thread reads one chunk after the other.
fn each_its_own(
    source: &Source<'_>,
    popularity: &Popularity,
    thread: u64,
    counter: &Counter<'_>,
) -> Result<Infallible, Stop> {
    let mut dice = popularity.dice(thread);
    loop {
        let chunk = popularity.draw(&mut dice);
        let before = now_ns();
        source.announce(counter, &[chunk])?;
        let held = source.hold(chunk);
        for piece in source.layout.pieces(chunk) {
            source.read(counter, chunk, held.as_ref(), piece)?;
        }
        drop(held);
        counter.tally.operation_took(Phase::Busy, now_ns() - before);
        counter.bump(SLOT_ROUNDS);
    }
}

/// All threads read one chunk after the other together.
fn together(
    common: &CommonArgs,
    ground: &Ground,
    source: &Source<'_>,
    popularity: &Popularity,
) -> Result<Outcome> {
    let team = Team::new(common.threads);
    // The dice, and when the chunk began that is read.
    let course = Mutex::new((popularity.dice(0), None));
    run_threads(common, ground, |_, counter| {
        team.go_through(source, counter, || {
            let mut course = course.lock().unwrap_or_else(PoisonError::into_inner);
            let (dice, began_ns) = &mut *course;
            let now = now_ns();
            if let Some(began_ns) = began_ns.replace(now) {
                counter.tally.operation_took(Phase::Busy, now - began_ns);
                counter.bump(SLOT_ROUNDS);
            }
            let chunk = popularity.draw(dice);
            source.announce(counter, &[chunk])?;
            Ok(chunk)
        })
    })
}
