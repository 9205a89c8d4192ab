//! Random operations against a naive model, and the tree's invariants after each.

use super::node::{BITS, Node, SLOTS, Tag, allocated};
use super::{Entry, MAX_ORDER, Mark, Occupied, Slot, XArray};
use elbowroom_sync::Arc;
use elbowroom_sync::epoch::{Guard, pin};
use std::collections::BTreeMap;

/// splitmix64.
struct Random(fastrand::Rng);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound)
    }

    /// Mostly near each other, so that values meet; at times near the ends of nodes of all levels, and
    /// anywhere.
    fn index(&mut self) -> u64 {
        match self.below(20) {
            0 => self.next() >> self.below(64),
            1 => (1_u64 << self.below(64)).wrapping_add(self.below(4)).wrapping_sub(2),
            2 => u64::MAX - self.below(2000),
            3..=5 => 64 * 64 * 64 - 1000 + self.below(2000),
            6..=10 => self.below(200),
            _ => self.below(3000),
        }
    }

    fn order(&mut self) -> u8 {
        if self.below(2) == 0 { 0 } else { self.below(u64::from(MAX_ORDER) + 1) as u8 }
    }

    fn mark(&mut self) -> Mark {
        Mark::ALL[self.below(3) as usize]
    }

    /// A first and a last index.
    fn range(&mut self) -> (u64, u64) {
        let (a, b) = (self.index(), self.index());
        if self.below(50) == 0 { (a.min(b), a.max(b)) } else { (a, a.saturating_add(self.below(1500))) }
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Modelled {
    order: u8,
    value: u64,
    marks: [bool; 3],
}

/// Values by their first index, and words by theirs.
#[derive(Default)]
struct Model {
    values: BTreeMap<u64, Modelled>,
    words: BTreeMap<u64, u64>,
}

fn last_of(first: u64, order: u8) -> u64 {
    first | ((1 << order) - 1)
}

impl Model {
    /// The value that covers `index`, by its first index.
    fn covering(&self, index: u64) -> Option<u64> {
        let (&first, found) = self.values.range(..=index).next_back()?;
        (last_of(first, found.order) >= index).then_some(first)
    }

    fn in_range(&self, first: u64, last: u64) -> Vec<u64> {
        let from = self.covering(first).unwrap_or(first);
        self.values.range(from..=last).map(|(&first, _)| first).collect()
    }

    fn store(&mut self, index: u64, order: u8, value: u64) -> Result<(), Occupied> {
        let last = last_of(index, order);
        if !self.in_range(index, last).is_empty() || self.words.range(index..=last).next().is_some() {
            return Err(Occupied);
        }
        self.values.insert(index, Modelled { order, value, marks: [false; 3] });
        Ok(())
    }

    fn erase(&mut self, index: u64) -> Option<u64> {
        let first = self.covering(index)?;
        Some(self.values.remove(&first)?.value)
    }

    fn slot(&self, index: u64) -> Slot<u64> {
        let value = self.covering(index).map(|first| Slot::Full(self.values[&first].value));
        let word = || self.words.get(&index).map(|word| Slot::Word(*word));
        value.or_else(word).unwrap_or(Slot::Empty)
    }

    fn exchange(&mut self, index: u64, new: Slot<u64>) -> Result<Slot<u64>, Occupied> {
        let old = self.slot(index);
        if self.covering(index).is_some_and(|first| self.values[&first].order > 0) {
            return Err(Occupied);
        }
        let marks = self.values.remove(&index).map_or([false; 3], |value| value.marks);
        self.words.remove(&index);
        match new {
            Slot::Empty => {}
            Slot::Full(value) => _ = self.values.insert(index, Modelled { order: 0, value, marks }),
            Slot::Word(word) => _ = self.words.insert(index, word),
        }
        Ok(old)
    }

    fn split(&mut self, index: u64, order: u8, base: u64) -> Option<u64> {
        let first = self.covering(index)?;
        if self.values[&first].order <= order {
            return None;
        }
        let whole = self.values.remove(&first)?;
        for part in (first..=last_of(first, whole.order)).step_by(1 << order) {
            self.values.insert(part, Modelled { order, value: base ^ part, ..whole.clone() });
        }
        Some(whole.value)
    }

    fn split_to_slots(&mut self, index: u64, part: impl Fn(u64) -> Slot<u64>) -> Option<u64> {
        let first = self.covering(index).filter(|first| self.values[first].order > 0)?;
        let whole = self.values.remove(&first)?;
        for index in first..=last_of(first, whole.order) {
            match part(index) {
                Slot::Full(value) => {
                    self.values.insert(index, Modelled { order: 0, value, ..whole.clone() });
                }
                Slot::Word(word) => _ = self.words.insert(index, word),
                Slot::Empty => {}
            }
        }
        Some(whole.value)
    }

    fn free_order(&self, index: u64, order: u8, end: u64) -> u8 {
        let fits = |&order: &u8| {
            let first = index >> order << order;
            let last = last_of(first, order);
            let words = self.words.range(first..=last).next();
            last < end && self.in_range(first, last).is_empty() && words.is_none()
        };
        (1..=order).rev().find(fits).unwrap_or(0)
    }

    fn has(&self, first: u64, mark: Mark) -> bool {
        self.values[&first].marks[mark as usize]
    }
}

/// Both, side by side.
struct Pair {
    array: XArray<u64>,
    model: Model,
    random: Random,
}

impl Pair {
    fn change(&mut self) {
        let (random, model) = (&mut self.random, &mut self.model);
        let writer = self.array.writer();
        let index = random.index();
        let fresh = random.next();
        match random.below(100) {
            0..20 => {
                let new = match random.below(5) {
                    0 => Slot::Empty,
                    1 | 2 => Slot::Full(fresh),
                    _ => Slot::Word(fresh >> 1),
                };
                let old = writer.exchange(index, map(new, Arc::new));
                assert_eq!(old.map(|old| map(old, |value| *value)), model.exchange(index, new));
            }
            20..45 => {
                let order = random.order();
                let index = index >> order << order;
                assert_eq!(writer.store(index, order, Arc::new(fresh)), model.store(index, order, fresh));
            }
            45..62 => {
                assert_eq!(writer.erase(index).map(|v| *v), model.erase(index));
            }
            62..66 => {
                let replaced = writer.replace(index, Arc::new(fresh)).ok().map(|v| *v);
                let place = model.covering(index).and_then(|first| model.values.get_mut(&first));
                assert_eq!(replaced, place.map(|place| std::mem::replace(&mut place.value, fresh)));
            }
            66..90 => {
                let (mark, on) = (random.mark(), random.below(5) < 3);
                let changed = if on { writer.set_mark(index, mark) } else { writer.clear_mark(index, mark) };
                let place = model.covering(index).and_then(|first| model.values.get_mut(&first));
                let before = place.map(|place| std::mem::replace(&mut place.marks[mark as usize], on));
                assert_eq!(changed, before == Some(!on));
            }
            96..99 => {
                // Some are words, all of a few neighbours, or all at all. Some are nothing, one by one, by
                // neighbours and by whole nodes.
                let (words, nothing) = (random.below(4), random.below(16));
                let part = |index: u64| match (fresh ^ index >> 4).is_multiple_of(2) {
                    _ if nothing < 8 && (fresh ^ index >> nothing).is_multiple_of(3) => Slot::Empty,
                    _ if nothing == 8 => Slot::Empty,
                    _ if words == 0 => Slot::Word((fresh ^ index) >> 1),
                    true if words < 3 => Slot::Word((fresh ^ index) >> 1),
                    _ => Slot::Full(fresh ^ index),
                };
                let whole = writer.split_to_slots(index, |index| map(part(index), Arc::new)).map(|v| *v);
                assert_eq!(whole, model.split_to_slots(index, part));
            }
            90..96 => {
                let order = random.order();
                let whole = writer.split(index, order, |part| Arc::new(fresh ^ part)).map(|v| *v);
                assert_eq!(whole, model.split(index, order, fresh));
            }
            _ if random.below(40) == 0 => {
                model.values.keys().for_each(|&first| drop(writer.erase(first)));
                model.words.keys().for_each(|&index| drop(writer.exchange(index, Slot::Empty)));
                *model = Model::default();
            }
            _ => {}
        }
    }

    fn question(&mut self) {
        let (random, model, array) = (&mut self.random, &self.model, &self.array);
        let guard = pin();
        let (index, mark, (first, last)) = (random.index(), random.mark(), random.range());
        let covering = model.covering(index);
        let value = covering.map(|first| model.values[&first].value);
        assert_eq!(array.load(index, &guard).copied(), value);
        assert_eq!(array.load_arc(index, &guard).map(|v| *v), value);
        assert_eq!(map(array.slot(index, &guard), |value| *value), model.slot(index));
        let words = array.words(first..=last, &guard);
        assert!(words.eq(model.words.range(first..=last).map(|(&index, &word)| (index, word))));
        assert_eq!(array.has_words(), !model.words.is_empty());
        assert_eq!(array.entry(index, &guard).map(copied), covering.map(|first| entry(model, first)));
        assert_eq!(
            array.marked(index..=index, mark, &guard).next().is_some(),
            covering.is_some_and(|first| model.has(first, mark))
        );

        let mut expected = model.in_range(first, last);
        let entries = |starts: &[u64]| starts.iter().map(|&first| entry(model, first)).collect::<Vec<_>>();
        let found: Vec<_> = array.range(first..=last, &guard).map(copied).collect();
        assert_eq!(found, entries(&expected));
        expected.retain(|&first| model.has(first, mark));
        let found: Vec<_> = array.marked(first..=last, mark, &guard).map(copied).collect();
        assert_eq!(found, entries(&expected));
        let arcs = array.marked(first..=last, mark, &guard).arcs();
        assert!(arcs.map(|found| *found.value).eq(found.iter().map(|found| found.value)));

        let (order, end) = (random.below(10) as u8, index.saturating_add(random.below(600)));
        assert_eq!(array.free_order(index, order, end, &guard), model.free_order(index, order, end));
        assert_eq!(array.is_empty(), model.values.is_empty());
        assert_eq!(array.any(mark), model.values.values().any(|value| value.marks[mark as usize]));
    }
}

fn map<V, W>(slot: Slot<V>, f: impl FnOnce(V) -> W) -> Slot<W> {
    match slot {
        Slot::Empty => Slot::Empty,
        Slot::Full(value) => Slot::Full(f(value)),
        Slot::Word(word) => Slot::Word(word),
    }
}

fn entry(model: &Model, first: u64) -> Entry<u64> {
    let Modelled { order, value, .. } = model.values[&first];
    Entry { index: first, order, value }
}

fn copied(found: Entry<&u64>) -> Entry<u64> {
    Entry { index: found.index, order: found.order, value: *found.value }
}

/// Checks a subtree; returns its bytes.
fn check<T: Send + Sync + 'static>(node: &Node<T>, guard: &Guard) -> u64 {
    assert!(!node.is_empty(), "an empty node is in the tree");
    let mut expected = [0_u64; Tag::ALL.len()];
    let mut bytes = allocated::<Node<T>>() + node.block_bytes(guard);
    let mut slot = 0;
    while slot < SLOTS {
        if let Some(held) = node.value_at(slot, guard) {
            assert_eq!(held.head, slot);
            for covered in slot..slot + (1 << held.order) {
                assert!(node.child(covered, guard).is_none());
                assert_eq!(node.value_at(covered, guard).map(|held| held.head), Some(slot));
            }
            for tag in Tag::ALL {
                expected[tag as usize] |= node.tag(tag) & (1 << slot);
            }
            slot += 1 << held.order;
            continue;
        }
        if let Some(child) = node.child(slot, guard) {
            assert_eq!(child.shift + BITS, node.shift);
            bytes += check(child, guard);
            for tag in Tag::ALL {
                expected[tag as usize] |= u64::from(child.tag(tag) != 0) << slot;
            }
        }
        if let Some(cell) = node.single_cell(slot) {
            let word = matches!(cell.load(guard), Slot::Word(_));
            expected[Tag::Word as usize] |= u64::from(word) << slot;
        }
        slot += 1;
    }
    assert_eq!(Tag::ALL.map(|tag| node.tag(tag)), expected);
    bytes
}

fn check_all<T: Send + Sync + 'static>(array: &XArray<T>) {
    let guard = pin();
    let root = array.top.root.load(&guard);
    assert_eq!(array.memory_bytes(), root.map_or(0, |root| check(root, &guard)));
    if let Some(root) = root {
        let only_child = root.used() == 1 && root.child(0, &guard).is_some();
        assert!(!only_child, "the tree is higher than it needs to be");
    }
}

fn run(seed: u64, steps: u32) {
    let mut pair = Pair {
        array: XArray::new(),
        model: Model::default(),
        random: Random(fastrand::Rng::with_seed(seed)),
    };
    for step in 0..steps {
        pair.change();
        if step % 2 == 0 {
            pair.question();
        }
        if step % 64 == 0 {
            check_all(&pair.array);
        }
    }
    let firsts: Vec<_> = pair.model.values.keys().copied().collect();
    for first in firsts {
        assert!(pair.array.writer().erase(first).is_some());
    }
    for &index in pair.model.words.keys() {
        assert!(matches!(pair.array.writer().exchange(index, Slot::Empty), Ok(Slot::Word(_))));
    }
    check_all(&pair.array);
    assert_eq!(pair.array.memory_bytes(), 0);
}

#[test]
fn random_operations_agree_with_a_naive_model() {
    (1..=8).for_each(|seed| run(seed, 30_000));
}

#[test]
fn a_node_is_as_large_as_the_page_says() {
    assert_eq!(allocated::<Node<u64>>(), 608);
    assert_eq!(allocated::<super::node::Block<u64>>(), 528);
}

#[test]
#[should_panic(expected = "two writers")]
fn two_writers_at_once_are_a_mistake() {
    let array = XArray::<u64>::new();
    let _first = array.writer();
    let _second = array.writer();
}

#[test]
#[should_panic(expected = "order 3")]
fn a_value_begins_at_a_multiple_of_its_size() {
    let _ = XArray::new().writer().store(4, 3, Arc::new(0));
}

#[test]
fn a_split_whose_values_cannot_be_made_changes_nothing() {
    let array = XArray::new();
    array.writer().store(0, 4, Arc::new(7)).unwrap();
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        array.writer().split(3, 1, |part| if part < 8 { Arc::new(1) } else { panic!("no memory") })
    }));
    assert!(failed.is_err());
    check_all(&array);
    assert_eq!(array.load(9, &pin()), Some(&7));
    assert!(array.writer().erase(0).is_some());
}
