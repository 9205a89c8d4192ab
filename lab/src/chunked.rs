//! What only runs of workloads of chunks have: what a cache of whole chunks would have missed, and what the
//! device can give.

use serde::Serialize;

use crate::board::{BoardReading, CACHE_HITS, CACHE_MISSES, DEPTH_RATES, SLOT_ROUNDS};
use crate::chunks::{DEPTH_COUNT, Layout};
use crate::cli::Workload;
use crate::engine::Kind;
use crate::lru::{ChunkLru, LruResult};
use crate::routing::Routing;

/// Figures of one run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Chunked {
    /// What the accesses ask an LRU cache of whole chunks with the same budget for, in bytes, and what of
    /// that it misses. Absent for the engine `device`.
    #[serde(flatten)]
    pub lru: Option<LruResult>,
    /// Chunks that the engine `cache` had when they were wanted, and those that it had not.
    pub cache_hits: Option<u64>,
    pub cache_misses: Option<u64>,
    /// Of the engine `device`, bytes per second at each depth.
    pub depth_bytes_per_second: Option<[u64; DEPTH_COUNT]>,
    /// What the engine `device` gave in the same turn at its best depth.
    pub device_bytes_per_second: Option<u64>,
}

impl Chunked {
    /// From what the worker has counted; `None` if the workload is not of chunks.
    pub fn of(
        workload: &Workload,
        routing: Option<&Routing>,
        kind: Kind,
        board: &BoardReading,
    ) -> Option<Self> {
        let layout = workload.layout()?;
        if kind == Kind::Device {
            let rate = |number: usize| board.header(DEPTH_RATES + number).unwrap_or(0);
            let rates: [u64; DEPTH_COUNT] = std::array::from_fn(rate);
            return Some(Self { depth_bytes_per_second: Some(rates), ..Self::default() });
        }
        let of_cache = |word: usize| (kind == Kind::Cache).then(|| board.header(word).unwrap_or(0));
        Some(Self {
            lru: lru_of(workload, &layout, routing, board),
            cache_hits: of_cache(CACHE_HITS),
            cache_misses: of_cache(CACHE_MISSES),
            ..Self::default()
        })
    }

    /// Bytes per second at the best depth, of the engine `device`.
    pub fn best_rate(&self) -> Option<u64> {
        self.depth_bytes_per_second.and_then(|rates| rates.into_iter().max())
    }
}

/// The same accesses, as far as they were completed, in a cache of whole chunks.
fn lru_of(
    workload: &Workload,
    layout: &Layout,
    routing: Option<&Routing>,
    board: &BoardReading,
) -> Option<LruResult> {
    let mut lru = ChunkLru::new(workload.memory().bytes(), layout.count());
    match workload {
        Workload::Moe(args) => {
            let (model, routing) = (args.model, routing?);
            let mut ask = |chunk: u64| lru.ask(chunk, layout.len(chunk));
            for token in 0..board.total(SLOT_ROUNDS) {
                for layer in 0..model.layers {
                    ask(model.dense(layer));
                    routing.experts(token, layer).iter().for_each(|expert| ask(model.expert(layer, *expert)));
                }
            }
        }
        _ => {
            let plan = workload.plan()?;
            let mut counts: Vec<u64> = board.of_threads(SLOT_ROUNDS).collect();
            if workload.is_together() {
                // All threads read what the first one's dice say.
                counts = vec![counts.iter().sum()];
            }
            let mut step = Vec::new();
            interleave(&counts, |thread, dice: &mut _| {
                plan.draw(dice.get_or_insert_with(|| plan.dice(thread)), &mut step);
                step.iter().for_each(|access| lru.ask(access.chunk, layout.len(access.chunk)));
            });
        }
    }
    Some(lru.result())
}

/// Calls `step` as often for each thread as it is counted, all of them spread evenly over the whole, with a
/// state of the thread's own.
fn interleave<S>(counts: &[u64], mut step: impl FnMut(u64, &mut Option<S>)) {
    let mut states: Vec<Option<S>> = counts.iter().map(|_| None).collect();
    // Each thread is late by how much it should have done already; the units are shares of all steps.
    let all: u64 = counts.iter().sum();
    let mut due = vec![0_u64; counts.len()];
    for _ in 0..all {
        for (due, count) in due.iter_mut().zip(counts) {
            *due += count;
        }
        let latest = (0..due.len()).max_by_key(|thread| due[*thread]);
        let Some(thread) = latest else { return };
        due[thread] = due[thread].saturating_sub(all);
        step(thread as u64, &mut states[thread]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns_as_often_as_they_did() {
        let mut order = Vec::new();
        interleave(&[4, 0, 2], |thread, state: &mut Option<u64>| {
            *state.get_or_insert(0) += 1;
            order.push((thread, state.unwrap()));
        });
        let threads: Vec<u64> = order.iter().map(|(thread, _)| *thread).collect();
        assert_eq!(order.last().map(|(_, nth)| *nth > 1), Some(true));
        assert_eq!(threads.iter().filter(|thread| **thread == 0).count(), 4);
        assert_eq!(threads.iter().filter(|thread| **thread == 2).count(), 2);
        // Neither of them is done before the other has done half.
        assert!(threads[..3].contains(&2) && threads[3..].contains(&2), "{threads:?}");
    }
}
