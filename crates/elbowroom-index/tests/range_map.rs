//! The range map against a naive one, and readers against its writer. Built twice: as an integration test
//! with the nodes' real sizes, and inside the crate with nodes of four, where a few entries make a high tree.
#![cfg(not(any(loom, shuttle)))]

use elbowroom_index::RangeMap;
use elbowroom_index::range_map::Writer;
use elbowroom_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use elbowroom_sync::epoch::pin;
use std::collections::BTreeMap;
use std::ops::Range;

/// Keys that the random operations use; the map's own space goes on behind them.
const KEYS: u64 = 1 << 14;
const SEEDS: Range<u64> = 0..4;
const STEPS: u64 = 60_000;

/// A small generator of our own (xorshift64*), so that a seed gives the same run everywhere.
struct Random(fastrand::Rng);

impl Random {
    fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound)
    }

    /// Mostly short ranges, some long, few very long, so that stores cross leaves now and then.
    fn range(&mut self) -> Range<u64> {
        let longest = [4, 16, 16, 64, 1000, KEYS][self.below(6) as usize];
        let longest = if self.below(4) > 0 { longest.min(64) } else { longest };
        let start = self.below(KEYS);
        start..(start + 1 + self.below(longest)).min(KEYS)
    }
}

/// The same map, written down without thought: start to end and value.
#[derive(Default)]
struct Naive(BTreeMap<u64, (u64, u32)>);

impl Naive {
    fn overlapping(&self, range: &Range<u64>) -> Vec<(Range<u64>, u32)> {
        let all = self.0.iter().map(|(&start, &(end, value))| (start..end, value));
        all.filter(|(at, _)| at.start < range.end && at.end > range.start).collect()
    }

    fn store(&mut self, range: Range<u64>, value: Option<u32>) {
        for (at, old) in self.overlapping(&range) {
            self.0.remove(&at.start);
            if at.start < range.start {
                self.0.insert(at.start, (range.start, old));
            }
            if at.end > range.end {
                self.0.insert(range.end, (at.end, old));
            }
        }
        if let Some(value) = value {
            self.0.insert(range.start, (range.end, value));
        }
    }

    fn get(&self, key: u64) -> Option<(Range<u64>, u32)> {
        let (&start, &(end, value)) = self.0.range(..=key).next_back()?;
        (key < end).then_some((start..end, value))
    }

    fn gaps(&self, within: &Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = 0;
        for (&start, &(end, _)) in &self.0 {
            gaps.push(at..start);
            at = end;
        }
        gaps.push(at..u64::MAX);
        let clip = |gap: Range<u64>| gap.start.max(within.start)..gap.end.min(within.end);
        gaps.into_iter().map(clip).filter(|gap| !gap.is_empty()).collect()
    }

    /// Every start in the last `align` keys of a gap is tried.
    fn gap(&self, len: u64, align: u64, phase: u64, within: Range<u64>) -> Option<u64> {
        let fits = |gap: &Range<u64>, start: u64| {
            start >= gap.start && start % align == phase && gap.end - start >= len
        };
        let gaps = self.gaps(&within).into_iter().filter(|gap| gap.end - gap.start >= len);
        gaps.rev().find_map(|gap| {
            (gap.start..=(gap.end - len)).rev().take(align as usize).find(|&start| fits(&gap, start))
        })
    }
}

fn compare(map: &RangeMap<u32>, naive: &Naive) {
    map.verify();
    let guard = pin();
    let all: Vec<_> = map.overlapping(0..u64::MAX, &guard).collect();
    assert_eq!(all, naive.overlapping(&(0..u64::MAX)));
    assert_eq!((map.len(), map.is_empty()), (all.len(), all.is_empty()));
}

fn compare_lookups(map: &RangeMap<u32>, naive: &Naive, random: &mut Random) {
    let guard = pin();
    for _ in 0..3 {
        let key = random.below(KEYS + 10);
        assert_eq!(map.get(key, &guard), naive.get(key), "get {key}");
    }
    assert_eq!(map.get(u64::MAX, &guard), None);
    let range = random.range();
    let seen: Vec<_> = map.overlapping(range.clone(), &guard).collect();
    assert_eq!(seen, naive.overlapping(&range), "overlapping {range:?}");
}

fn compare_gaps(writer: &Writer<u32>, naive: &Naive, random: &mut Random) {
    let guard = pin();
    let longest = [4, 40, 400][random.below(3) as usize];
    let len = 1 + random.below(longest);
    let align = [1, 1, 2, 8, 12, 512][random.below(6) as usize];
    let phase = random.below(align);
    let start = random.below(KEYS);
    let within = if random.below(2) == 0 { 0..u64::MAX } else { start..start + random.below(KEYS) };
    let case = format!("{len} keys, {phase} modulo {align}, in {within:?}");
    assert_eq!(
        writer.gap_down(len, align, phase, within.clone(), &guard),
        naive.gap(len, align, phase, within),
        "{case}"
    );
}

#[test]
fn random_operations_give_what_a_naive_map_gives() {
    for seed in SEEDS {
        let ((map, mut writer), mut naive) = (RangeMap::new(), Naive::default());
        let mut random = Random::new(seed);
        // Each seed has its own balance of stores and erases, and so its own sizes.
        let erases = 2 + seed;
        for step in 0..STEPS {
            let range = random.range();
            let value = (random.below(8) >= erases).then_some(step as u32);
            writer.store(range.clone(), value, &pin());
            naive.store(range, value);
            compare_lookups(&map, &naive, &mut random);
            if step % 4 == 0 {
                compare_gaps(&writer, &naive, &mut random);
            }
            if step % 128 == 0 {
                compare(&map, &naive);
            }
        }
        compare(&map, &naive);
        writer.erase(1..u64::MAX, &pin());
        naive.store(1..u64::MAX, None);
        compare(&map, &naive);
        writer.clear(&pin());
        compare(&map, &Naive::default());
    }
}

/// Filling from the front, from the back and in strides, then taking all away again: sizes that random stores
/// with their long ranges do not reach.
#[test]
fn maps_of_many_small_ranges() {
    const COUNT: u64 = 3000;
    for stride in [1, COUNT - 1, 7, 1009] {
        let ((map, mut writer), mut naive) = (RangeMap::new(), Naive::default());
        for i in 0..COUNT {
            let at = i * stride % COUNT * 3;
            writer.store(at..at + 2, Some(i as u32), &pin());
            naive.store(at..at + 2, Some(i as u32));
        }
        compare(&map, &naive);
        for i in 0..COUNT {
            let at = i * stride % COUNT * 3;
            writer.erase(at..at + 2, &pin());
            naive.store(at..at + 2, None);
            if i % 100 == 0 {
                compare(&map, &naive);
            }
        }
        compare(&map, &naive);
        assert_eq!(writer.gap_down(u64::MAX, 1, 0, 0..u64::MAX, &pin()), Some(0));
    }
}

#[test]
fn a_bulk_build_is_the_map_of_the_same_stores() {
    for count in [0, 1, 2, 3, 15, 16, 17, 100, 5000] {
        let mut random = Random::new(count);
        let mut at = 0;
        let ranges: Vec<_> = (0..count)
            .map(|i| {
                let start = at + random.below(3);
                at = start + 1 + random.below(5);
                (start..at, i as u32)
            })
            .collect();
        let (map, _) = RangeMap::from_sorted(ranges.iter().cloned()).unwrap();
        let mut naive = Naive::default();
        ranges.iter().for_each(|(range, value)| naive.store(range.clone(), Some(*value)));
        compare(&map, &naive);
    }
    let (to_the_end, _) = RangeMap::from_sorted([(5..u64::MAX, 1)]).unwrap();
    assert_eq!(to_the_end.get(u64::MAX - 1, &pin()), Some((5..u64::MAX, 1)));
}

#[test]
fn a_bulk_build_refuses_what_is_not_sorted() {
    for wrong in [5..5, 9..12, 3..4] {
        let ranges = [(5..10, 1), (wrong.clone(), 2)];
        assert_eq!(RangeMap::from_sorted(ranges).err().unwrap().range, wrong);
    }
}

#[test]
fn empty_ranges_change_nothing() {
    let (map, mut writer) = RangeMap::new();
    writer.store(7..7, Some(1), &pin());
    assert!(map.is_empty());
    assert_eq!(writer.gap_down(0, 1, 0, 0..10, &pin()), None);
    assert_eq!(writer.gap_down(1, 1, 0, 10..10, &pin()), None);
    assert_eq!(map.overlapping(0..0, &pin()).count(), 0);
}

/// What [`readers_never_see_a_gap_that_is_not_there`] always keeps covered.
const COVERED: Range<u64> = 1000..9000;

/// A writer replaces covered ranges with others that cover the same keys, over one leaf and over many, beside
/// ranges that come and go. No reader may see a gap where there never is one, a value older than one that it
/// has seen, or one older than what was stored before it looked.
#[test]
fn readers_never_see_a_gap_that_is_not_there() {
    const STORES: u64 = 60_000;
    let (map, mut writer) = RangeMap::new();
    writer.store(COVERED, Some(0_u64), &pin());
    let done = AtomicBool::new(false);
    let newest: Vec<AtomicU64> = COVERED.map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (map, done, newest) = (&map, &done, &newest);
            scope.spawn(move || {
                let mut random = Random::new(100 + seed);
                while !done.load(Ordering::Relaxed) {
                    read_once(map, newest, &mut random);
                }
            });
        }
        let mut random = Random::new(1);
        for number in 1..=STORES {
            let long = if random.below(50) == 0 { 4000 } else { 30 };
            let start = COVERED.start + random.below(COVERED.end - COVERED.start);
            let range = start..(start + 1 + random.below(long)).min(COVERED.end);
            writer.store(range.clone(), Some(number), &pin());
            for key in range {
                newest[(key - COVERED.start) as usize].store(number, Ordering::Release);
            }
            let beside = random.below(COVERED.start - 5) + if random.below(2) == 0 { 0 } else { COVERED.end };
            writer.store(beside..beside + 5, (number % 2 == 0).then_some(number), &pin());
        }
        done.store(true, Ordering::Relaxed);
    });
    map.verify();
}

/// Looks one key up, then goes over a part of what is always covered.
fn read_once(map: &RangeMap<u64>, newest: &[AtomicU64], random: &mut Random) {
    let key = COVERED.start + random.below(COVERED.end - COVERED.start);
    let before = newest[(key - COVERED.start) as usize].load(Ordering::Acquire);
    let guard = pin();
    let (range, value) = map.get(key, &guard).expect("a gap that was never there");
    assert!(range.contains(&key) && value >= before, "{value} after the store of {before}");
    let (range, again) = map.get(key, &guard).expect("a gap that was never there");
    assert!(range.contains(&key) && again >= value, "{again} after {value}");
    let part = key..(key + 200).min(COVERED.end);
    let mut at = part.start;
    for (range, _) in map.overlapping(part.clone(), &guard) {
        assert!(range.start <= at && range.end > at, "nothing at {at}, then {range:?}");
        at = range.end;
    }
    assert!(at >= part.end, "nothing from {at} to {}", part.end);
}
