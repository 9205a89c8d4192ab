//! Where the bytes of chunks come from: a mapping, or a cache of the worker's own.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use elbowroom_lab::board::{CACHE_HITS, CACHE_MISSES};
use elbowroom_lab::chunks::Layout;
use elbowroom_lab::{PAGE_BYTES, content};

use crate::CommonArgs;
use crate::cache::{Cache, Held};
use crate::ground::{Ground, View};
use crate::memory::Rights;
use crate::tally::{Counter, Stop};

/// One word is read of each cache line: its first one, or the first one that the chunk has.
const LINE_BYTES: u64 = 64;

/// How chunks are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Way {
    /// Through a mapping, without advice
    Mapped,
    /// Through a mapping that is said to be read at random
    Random,
    /// Through a mapping, and each chunk is said to be needed before it is read
    Willneed,
    /// Into a cache of whole chunks, by direct reads
    Cache,
    /// By direct reads, and nothing is kept
    Direct,
}

/// The chunks of file 0, and a way to read them.
pub struct Source<'a> {
    pub layout: &'a Layout,
    common: &'a CommonArgs,
    bytes: Bytes<'a>,
}

enum Bytes<'a> {
    Mapped { view: View<'a>, is_advised: bool },
    Cached(Cache<'a>),
}

impl<'a> Source<'a> {
    /// Opens the file. A cache takes `cache_bytes`.
    pub fn open(
        common: &'a CommonArgs,
        ground: &'a Ground,
        layout: &'a Layout,
        way: Way,
        cache_bytes: u64,
    ) -> Result<Self> {
        let end = layout.end();
        ensure!(end <= common.file_bytes, "the chunks need a file of {end} bytes, not {}", common.file_bytes);
        let bytes = match way {
            Way::Cache => Bytes::Cached(Cache::open(&common.file(0), layout, cache_bytes)?),
            _ => {
                let file = ground.open(&common.file(0), Rights::Read)?;
                let view = ground.map(&file, 0..common.file_bytes, Rights::Read)?;
                if way == Way::Random {
                    view.advise_random().context("madvise(MADV_RANDOM) failed")?;
                }
                Bytes::Mapped { view, is_advised: way == Way::Willneed }
            }
        };
        Ok(Self { layout, common, bytes })
    }

    /// Runs `work` beside what the way needs: threads that read.
    pub fn with_readers<R>(&self, work: impl FnOnce() -> R) -> R {
        match &self.bytes {
            Bytes::Mapped { .. } => work(),
            Bytes::Cached(cache) => cache.with_readers(work),
        }
    }

    /// Says that these chunks are read next, so that a way that can begins to read all of them.
    pub fn announce(&self, counter: &Counter<'_>, chunks: &[u64]) -> Result<(), Stop> {
        match &self.bytes {
            Bytes::Mapped { view, is_advised: true } => {
                for chunk in chunks {
                    let advised = view.advise_willneed(self.layout.pages(*chunk));
                    advised.context("madvise(MADV_WILLNEED) failed")?;
                }
            }
            Bytes::Mapped { .. } => {}
            Bytes::Cached(cache) => {
                let asked = cache.ask(chunks);
                counter.tally.add(CACHE_HITS, asked.here);
                counter.tally.add(CACHE_MISSES, asked.missing);
            }
        }
        Ok(())
    }

    /// Keeps a chunk in the cache, if there is one, until what is returned is dropped.
    pub fn hold(&self, chunk: u64) -> Option<Held<'_, 'a>> {
        match &self.bytes {
            Bytes::Mapped { .. } => None,
            Bytes::Cached(cache) => Some(cache.hold(chunk)),
        }
    }

    /// Reads a word of each cache line of a part of a chunk, in order, compares each with what it must be,
    /// and counts the pages. The part is in bytes from the chunk's beginning, a multiple of 8.
    pub fn read(
        &self,
        counter: &Counter<'_>,
        chunk: u64,
        held: Option<&Held<'_, 'a>>,
        part: Range<u64>,
    ) -> Result<(), Stop> {
        if counter.tally.stopped() {
            return Err(Stop::Over);
        }
        let start = self.layout.bytes(chunk).start;
        let of_file = start + part.start..start + part.end;
        match (&self.bytes, held) {
            (Bytes::Mapped { view, .. }, _) => {
                self.verify(of_file, |offset| view.word_at(&counter.hand, offset).map_err(Stop::Failed))?;
            }
            (Bytes::Cached(_), Some(held)) => {
                held.wait_for(of_file.clone())?;
                self.verify(of_file, |offset| Ok(held.word_at(offset)))?;
            }
            (Bytes::Cached(_), None) => unreachable!("a chunk of the cache is held while it is read"),
        }
        counter.add_pages(part.end / PAGE_BYTES - part.start / PAGE_BYTES);
        Ok(())
    }

    /// Compares a word of each cache line of the file.
    #[inline]
    fn verify(&self, of_file: Range<u64>, word_at: impl Fn(u64) -> Result<u64, Stop>) -> Result<(), Stop> {
        let mut offset = of_file.start;
        while offset < of_file.end {
            let page = offset / PAGE_BYTES;
            let stamp = content::stamp(self.common.seed, 0, page);
            let end = of_file.end.min((page + 1) * PAGE_BYTES);
            while offset < end {
                let got = word_at(offset)?;
                let expected = content::word_of(stamp, offset % PAGE_BYTES / 8);
                if got != expected {
                    let byte = offset % PAGE_BYTES;
                    return Err(Stop::Wrong(format!(
                        "wrong content: file 0, page {page}, byte {byte} has {got:#018x}, \
                         {expected:#018x} expected"
                    )));
                }
                offset = (offset / LINE_BYTES + 1) * LINE_BYTES;
            }
        }
        Ok(())
    }
}
