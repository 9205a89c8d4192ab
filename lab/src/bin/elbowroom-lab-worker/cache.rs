//! A cache of whole chunks in the worker's own memory, as programs write one where the page cache does not
//! do: direct reads, several at a time, and what was used least recently is dropped.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::ops::{Deref, Range};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use elbowroom_lab::PAGE_BYTES;
use elbowroom_lab::chunks::{Layout, REQUEST_BYTES};

use crate::memory::Mapping;
use crate::tally::Stop;

/// Threads that read, beside those of the workload.
const READERS: usize = 16;
/// Memory is handed out in blocks of at most so many bytes.
const MAX_BLOCK_BYTES: u64 = 64 << 10;

/// The cache.
pub struct Cache<'a> {
    layout: &'a Layout,
    file: File,
    memory: Mapping,
    block_bytes: u64,
    state: Mutex<State>,
    /// A read has ended, or a chunk is held no more.
    progress: Condvar,
    /// There is something to read, or the readers should come back.
    work: Condvar,
}

/// What is there, and what is to be read.
struct State {
    entries: HashMap<u64, Entry>,
    /// The chunks that may be dropped, by when they were used.
    idle: BTreeMap<u64, u64>,
    clock: u64,
    free_blocks: Vec<u32>,
    queue: VecDeque<Request>,
    is_over: bool,
    problem: Option<String>,
}

struct Entry {
    blocks: Blocks,
    /// A bit for each request whose bytes are not there.
    unread: u64,
    holders: u32,
    used_at: u64,
}

/// The blocks of a chunk. Where chunks are small there are many, and one block needs no memory beside it.
#[derive(Clone)]
enum Blocks {
    One([u32; 1]),
    Many(Arc<[u32]>),
}

impl Deref for Blocks {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        match self {
            Self::One(block) => block,
            Self::Many(blocks) => blocks,
        }
    }
}

#[derive(Clone, Copy)]
struct Request {
    chunk: u64,
    number: u64,
}

/// How many chunks of those that were asked for were there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// They were there, or were being read.
    pub here: u64,
    /// They were not.
    pub missing: u64,
}

/// A chunk that is not dropped before this is.
pub struct Held<'c, 'a> {
    cache: &'c Cache<'a>,
    chunk: u64,
    blocks: Blocks,
}

/// Opens a file for direct reads.
pub fn open_direct(path: &Path) -> Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
    file.with_context(|| format!("cannot open {} for direct reads; name another --dir", path.display()))
}

impl<'a> Cache<'a> {
    /// A cache of so many bytes, for chunks of a file.
    pub fn open(path: &Path, layout: &'a Layout, bytes: u64) -> Result<Self> {
        let largest = layout.largest().next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
        let block_bytes = if layout.largest() <= PAGE_BYTES { PAGE_BYTES } else { MAX_BLOCK_BYTES };
        let blocks = bytes / block_bytes;
        ensure!(
            blocks * block_bytes >= largest,
            "the cache of {bytes} bytes has no room for a chunk of {largest}; raise --memory"
        );
        let requests = largest.div_ceil(REQUEST_BYTES);
        ensure!(requests <= 64, "chunks of {largest} bytes take {requests} reads; make them at most 63M");
        let state = State {
            // No more than that, so that it never grows, for which it would be there twice.
            entries: HashMap::with_capacity(layout.count().min(blocks) as usize),
            idle: BTreeMap::new(),
            clock: 0,
            free_blocks: (0..u32::try_from(blocks)?).rev().collect(),
            queue: VecDeque::new(),
            is_over: false,
            problem: None,
        };
        Ok(Self {
            layout,
            file: open_direct(path)?,
            memory: Mapping::anonymous(blocks * block_bytes).context("no memory for the cache")?,
            block_bytes,
            state: Mutex::new(state),
            progress: Condvar::new(),
            work: Condvar::new(),
        })
    }

    /// Runs `work` beside threads that read.
    pub fn with_readers<R>(&self, work: impl FnOnce() -> R) -> R {
        /// Ends the readers also if `work` panics.
        struct Ending<'e, 'a>(&'e Cache<'a>);
        impl Drop for Ending<'_, '_> {
            fn drop(&mut self) {
                self.0.lock().is_over = true;
                self.0.work.notify_all();
            }
        }
        thread::scope(|scope| {
            let _ending = Ending(self);
            for _ in 0..READERS {
                scope.spawn(|| self.read_until_over());
            }
            work()
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many reads a chunk takes.
    fn requests(&self, chunk: u64) -> u64 {
        let pages = self.layout.pages(chunk);
        // A page more, of a chunk that begins within one, is no read of its own.
        (pages.end - pages.start).saturating_sub(PAGE_BYTES).max(1).div_ceil(REQUEST_BYTES)
    }

    /// What a read of a chunk brings, in bytes from the first page of the chunk on.
    fn bytes_of(&self, request: Request) -> Range<u64> {
        let pages = self.layout.pages(request.chunk);
        let is_last = request.number + 1 == self.requests(request.chunk);
        let end = if is_last { pages.end - pages.start } else { (request.number + 1) * REQUEST_BYTES };
        request.number * REQUEST_BYTES..end
    }

    /// Asks for chunks. The reads of those that are not there are queued, as far as there is room.
    pub fn ask(&self, chunks: &[u64]) -> Asked {
        let mut state = self.lock();
        let mut asked = Asked::default();
        let queued = state.queue.len();
        for chunk in chunks {
            if state.touch(*chunk) {
                asked.here += 1;
            } else {
                self.begin(&mut state, *chunk);
                asked.missing += 1;
            }
        }
        // Whoever waits for the chunks does one of the reads.
        for _ in queued + 1..state.queue.len() {
            self.work.notify_one();
        }
        asked
    }

    /// Takes blocks for a chunk and queues its reads. `false` if what is there is all in use.
    fn begin(&self, state: &mut State, chunk: u64) -> bool {
        let pages = self.layout.pages(chunk);
        let count = (pages.end - pages.start).div_ceil(self.block_bytes) as usize;
        while state.free_blocks.len() < count {
            let Some((_, oldest)) = state.idle.pop_first() else { return false };
            if let Some(entry) = state.entries.remove(&oldest) {
                state.free_blocks.extend_from_slice(&entry.blocks);
            }
        }
        let left = state.free_blocks.len() - count;
        let blocks = match state.free_blocks[left..] {
            [block] => Blocks::One([block]),
            ref blocks => Blocks::Many(blocks.into()),
        };
        state.free_blocks.truncate(left);
        let requests = self.requests(chunk);
        let entry = Entry { blocks, unread: u64::MAX >> (64 - requests), holders: 0, used_at: state.tick() };
        state.entries.insert(chunk, entry);
        state.queue.extend((0..requests).map(|number| Request { chunk, number }));
        true
    }

    /// Holds a chunk, which is read if it is not there. Waits for room if all that is there is in use.
    pub fn hold(&self, chunk: u64) -> Held<'_, 'a> {
        let mut state = self.lock();
        loop {
            if state.touch(chunk) || self.begin(&mut state, chunk) {
                break;
            }
            state = self.help_or_wait(state);
        }
        let entry = state.entries.get_mut(&chunk).expect("it was just there");
        entry.holders += 1;
        let (used_at, blocks) = (entry.used_at, entry.blocks.clone());
        state.idle.remove(&used_at);
        Held { cache: self, chunk, blocks }
    }

    /// Does a read that is queued, or waits for something to happen if there is none.
    fn help_or_wait<'s>(&'s self, mut state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        match state.queue.pop_front() {
            Some(request) => self.read(state, request),
            None => self.progress.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }

    fn read_until_over(&self) {
        let mut state = self.lock();
        while !state.is_over {
            state = match state.queue.pop_front() {
                Some(request) => self.read(state, request),
                None => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Does one read, without the lock.
    fn read<'s>(&'s self, state: MutexGuard<'s, State>, request: Request) -> MutexGuard<'s, State> {
        let bytes = self.bytes_of(request);
        let blocks = &state.entries[&request.chunk].blocks;
        let blocks = &blocks[(bytes.start / self.block_bytes) as usize..];
        let parts: Vec<Range<u64>> = (bytes.start..bytes.end)
            .step_by(self.block_bytes as usize)
            .zip(blocks)
            .map(|(at, block)| {
                let start = u64::from(*block) * self.block_bytes;
                start..start + self.block_bytes.min(bytes.end - at)
            })
            .collect();
        drop(state);
        let read = self.memory.fill(&parts, &self.file, self.layout.pages(request.chunk).start + bytes.start);
        let mut state = self.lock();
        if let Err(error) = read {
            state.problem.get_or_insert(format!("a direct read failed: {error}"));
        }
        let entry = state.entries.get_mut(&request.chunk).expect("what is being read is not dropped");
        entry.unread &= !(1 << request.number);
        state.settle(request.chunk);
        self.progress.notify_all();
        state
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Notes that a chunk is used, if it is there.
    fn touch(&mut self, chunk: u64) -> bool {
        let now = self.tick();
        let Some(entry) = self.entries.get_mut(&chunk) else { return false };
        let before = std::mem::replace(&mut entry.used_at, now);
        if self.idle.remove(&before).is_some() {
            self.idle.insert(now, chunk);
        }
        true
    }

    /// Lets a chunk be dropped if nobody holds it and all of it is read.
    fn settle(&mut self, chunk: u64) {
        let entry = &self.entries[&chunk];
        if entry.holders == 0 && entry.unread == 0 {
            self.idle.insert(entry.used_at, chunk);
        }
    }
}

impl Held<'_, '_> {
    /// Waits until a part of the file, of this chunk, is there, and does reads meanwhile.
    pub fn wait_for(&self, of_file: Range<u64>) -> Result<(), Stop> {
        let first_page = self.cache.layout.pages(self.chunk).start;
        let last = self.cache.requests(self.chunk) - 1;
        let request = |byte: u64| ((byte - first_page) / REQUEST_BYTES).min(last);
        let (from, to) = (request(of_file.start), request(of_file.end - 1));
        let wanted = u64::MAX >> (63 - to) & u64::MAX << from;
        let mut state = self.cache.lock();
        loop {
            if let Some(problem) = &state.problem {
                return Err(Stop::Failed(anyhow!("{problem}")));
            }
            if state.entries[&self.chunk].unread & wanted == 0 {
                return Ok(());
            }
            state = self.cache.help_or_wait(state);
        }
    }

    /// Eight bytes at a place of the file, of this chunk, as a little-endian number.
    #[inline]
    pub fn word_at(&self, offset: u64) -> u64 {
        let of_chunk = offset - self.cache.layout.pages(self.chunk).start;
        let block = u64::from(self.blocks[(of_chunk / self.cache.block_bytes) as usize]);
        self.cache.memory.word_at(block * self.cache.block_bytes + of_chunk % self.cache.block_bytes)
    }
}

impl Drop for Held<'_, '_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        let entry = state.entries.get_mut(&self.chunk).expect("what is held is not dropped");
        entry.holders -= 1;
        state.settle(self.chunk);
        drop(state);
        self.cache.progress.notify_all();
    }
}
