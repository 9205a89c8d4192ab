//! Files with known contents, and reactors that watch a pipe.

#![allow(dead_code, unused_imports, reason = "each test program uses a part of it")]

mod shared;

pub use shared::skipped;

use elbowroom_machine::soft::{SoftConfig, SoftMmu};
use elbowroom_store::{
    EngineKind, Extent, Inject, Kicker, Reactor, Read, ReadDone, StoreFile, Woken, reactor,
};
use elbowroom_sync::LockStats;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const PAGE: usize = 4096;

/// Longer than anything here takes; a test that reaches it fails.
pub const LONG: Duration = Duration::from_secs(20);

/// A directory on the disk where the build is: `/tmp` may be in memory.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The byte at an offset of every file made here: differs between pages and inside them.
pub fn byte_at(offset: usize) -> u8 {
    let word = (offset as u64 / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word.to_le_bytes()[(offset % 8) ^ 7]
}

pub fn contents(offset: usize, len: usize) -> Vec<u8> {
    (offset..offset + len).map(byte_at).collect()
}

/// A file of `len` bytes, on the disk and not in the kernel's cache.
pub fn make_file(directory: &Path, name: &str, len: usize) -> PathBuf {
    let path = directory.join(name);
    let mut file = File::create(&path).unwrap();
    file.write_all(&contents(0, len)).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    path
}

pub fn open(path: &Path) -> Arc<StoreFile> {
    Arc::new(StoreFile::open(path, false, None).unwrap())
}

pub fn faults(text: &str) -> Option<Arc<Inject>> {
    Some(Arc::new(Inject::parse(text).unwrap()))
}

/// The smallest extent that holds `pages`, of an arena that is never dropped.
pub fn extent(pages: usize) -> Extent {
    let order = pages.next_power_of_two().trailing_zeros() as u8;
    let mmu = SoftMmu::new(SoftConfig::new(1 << order), &LockStats::new()).unwrap();
    while mmu.grow().unwrap() {}
    Box::leak(Box::new(mmu)).alloc(order).unwrap()
}

/// A reactor and the pipe that it watches.
pub struct Loop {
    pub reactor: Box<dyn Reactor>,
    pub watched: OwnedFd,
    pub writer: OwnedFd,
}

impl Loop {
    pub fn new(kind: EngineKind, faults: Option<Arc<Inject>>) -> Loop {
        use rustix::pipe::{PipeFlags, pipe_with};
        let (watched, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
        let reactor = reactor(kind, Some(watched.as_fd().as_raw_fd()), faults, None).unwrap();
        Loop { reactor, watched, writer }
    }

    pub fn read(&mut self, file: &Arc<StoreFile>, page: usize, pages: usize, token: u64) {
        let (offset, len) = ((page * PAGE) as u64, pages * PAGE);
        self.reactor.read(Read { file: file.clone(), offset, len, buf: extent(pages), token });
    }

    /// Waits until `count` reads are done.
    pub fn finish(&mut self, count: usize) -> Vec<ReadDone> {
        let (mut done, end) = (Vec::new(), Instant::now() + LONG);
        while done.len() < count {
            self.reactor.wait(Some(LONG), &mut done).unwrap();
            assert!(Instant::now() < end, "{} of {count} reads are done", done.len());
        }
        assert_eq!(done.len(), count);
        done
    }

    /// One wait that must give no completion.
    pub fn wake(&mut self, timeout: Duration) -> Woken {
        let mut done = Vec::new();
        let woken = self.reactor.wait(Some(timeout), &mut done).unwrap();
        assert!(done.is_empty());
        woken
    }

    pub fn ring(&self) {
        rustix::io::write(&self.writer, b"x").unwrap();
    }

    pub fn drain(&self) -> usize {
        let (mut buf, mut total) = ([0; 64], 0);
        while let Ok(n @ 1..) = rustix::io::read(&self.watched, &mut buf) {
            total += n;
        }
        total
    }

    pub fn kicker(&self) -> Kicker {
        self.reactor.kicker()
    }
}

/// Asserts that a read of `page` gave `len` right bytes.
pub fn assert_read(done: &ReadDone, page: usize, len: usize) {
    assert_eq!(done.result, Ok(len), "read {}", done.token);
    assert!(done.buf.bytes()[..len] == contents(page * PAGE, len)[..], "read {} has other bytes", done.token);
}

/// Makes a test for each engine out of each function of an [`EngineKind`].
#[macro_export]
macro_rules! for_each_engine {
    ($($name:ident),* $(,)?) => {
        mod uring {
            $(#[test] fn $name() { super::$name(elbowroom_store::EngineKind::Uring) })*
        }
        mod threads {
            $(#[test] fn $name() { super::$name(elbowroom_store::EngineKind::Threads) })*
        }
    };
}
