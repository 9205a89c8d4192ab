//! Neighbouring pages that are out, and where their bytes are: what one fault may bring at once.

use crate::config::RUN_ORDER;
use crate::page::Spot;
use crate::swap::{Source, Swap, follow};
use std::ops::Range;

/// Neighbouring pages that are out, and come in together.
pub(super) struct OutRun {
    pub(super) first: u64,
    /// Of each page; as many as a power of two, and aligned to it.
    pub(super) slots: Vec<u64>,
    /// Where the bytes are.
    pub(super) bytes: Bytes,
}

/// Where the bytes of a run are.
pub(super) enum Bytes {
    Memory,
    /// In the file, at these spots, one for each page, which follow each other.
    File(Vec<Spot>),
}

impl Bytes {
    /// The bytes of pages that have these sources; `None`: they are not together, or some are nobody's.
    pub(super) fn of(sources: impl Iterator<Item = Option<Source>>) -> Option<Self> {
        let mut sources = sources.peekable();
        if sources.peek()? == &Some(Source::Memory) {
            return sources.all(|source| source == Some(Source::Memory)).then_some(Bytes::Memory);
        }
        let mut spots: Vec<Spot> = Vec::with_capacity(1 << RUN_ORDER);
        for source in sources {
            let Some(Source::File(spot)) = source else { return None };
            if spots.last().is_some_and(|last| !follow(*last, spot)) {
                return None;
            }
            spots.push(spot);
        }
        Some(Bytes::File(spots))
    }
}

impl OutRun {
    pub(super) fn pages(&self) -> Range<u64> {
        self.first..self.first + self.slots.len() as u64
    }

    /// log2 of how many there are.
    pub(super) fn order(&self) -> u8 {
        self.slots.len().ilog2() as u8
    }

    /// The 2^`order` of them around one, or all if they are fewer.
    pub(super) fn around(self, page: u64, order: u8) -> OutRun {
        let first = (page >> order << order).max(self.first);
        let before = (first - self.first) as usize;
        let part = before..before + self.slots.len().min(1 << order);
        let bytes = match self.bytes {
            Bytes::Memory => Bytes::Memory,
            Bytes::File(spots) => Bytes::File(spots[part.clone()].to_vec()),
        };
        OutRun { first, slots: self.slots[part].to_vec(), bytes }
    }

    /// Whether their bytes seem to be there still. They are, for who has the slots' counts.
    pub(super) fn is_where_it_was(&self, swap: &Swap) -> bool {
        let mut seen = self.slots.iter().map(|slot| swap.seems(*slot));
        match &self.bytes {
            Bytes::Memory => seen.all(|seen| seen == Some(Source::Memory)),
            Bytes::File(spots) => seen.eq(spots.iter().map(|spot| Some(Source::File(*spot)))),
        }
    }
}
