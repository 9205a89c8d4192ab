//! What the behaviour tests run on: a machine is a manager, a space, and a way for a thread to reach the
//! space's memory.
#![allow(dead_code, reason = "each test program uses its part")]

mod host;
mod soft;

#[allow(unused_imports, reason = "each test program uses its part")]
pub use host::HostMachine;
#[allow(unused_imports, reason = "each test program uses its part")]
pub use soft::SoftMachine;

use elbowroom::{
    Config, FileObject, Manager, MapRequest, MoverKind, Place, Platform, Prot, Sharing, Space,
    UserfaultfdConfig, WriteTicket,
};
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::{AtomicBool, Ordering};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, Instant};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Bytes in a page.
pub const PAGE: usize = 4096;

/// The budget of the tests: the smallest that works.
pub const BUDGET: u64 = Config::MIN_MEMORY;

/// The rights to load and store.
pub const RW: Prot = Prot::READ.union(Prot::WRITE);

/// Every kind of mapping: whether of a file, and how it is shared.
pub const EVERY_KIND: [(bool, Sharing); 4] =
    [(false, Sharing::Private), (false, Sharing::Shared), (true, Sharing::Private), (true, Sharing::Shared)];

/// Real pointers by UFFDIO_MOVE, and by UFFDIO_COPY.
pub type HostMove = HostMachine<false>;
pub type HostCopy = HostMachine<true>;

/// How an access fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    NotMapped,
    Denied,
    Bus,
}

/// A thread's way to the memory.
pub trait Port {
    /// Loads bytes that must be there.
    fn load(&self, addr: usize, out: &mut [u8]);

    /// Stores bytes where that must be possible.
    fn store(&self, addr: usize, data: &[u8]);

    /// Loads a word.
    fn word(&self, addr: usize) -> u64 {
        let mut bytes = [0; 8];
        self.load(addr, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Stores a word.
    fn set_word(&self, addr: usize, word: u64) {
        self.store(addr, &word.to_le_bytes());
    }

    /// Loads a word, if its page can be had; `None`: SIGBUS, or its errno.
    fn try_word(&self, addr: usize) -> Option<u64>;

    /// Stores a word; `false`: as above.
    fn try_set_word(&self, addr: usize, word: u64) -> bool;

    /// Whether a load of a byte succeeds.
    fn can_load(&self, addr: usize) -> bool;

    /// Checks that a load of a byte fails; so, if the machine can tell.
    fn load_fails(&self, addr: usize, how: Failure);

    /// The same of a store.
    fn store_fails(&self, addr: usize, how: Failure);
}

/// The configuration, with the improvements off that `ELBOWROOM_TEST_ABLATE` names, and with swap for so many
/// budgets as `ELBOWROOM_TEST_SWAP` says.
pub fn ablated(mut config: Config) -> Config {
    if let Ok(budgets) = std::env::var("ELBOWROOM_TEST_SWAP") {
        config.swap = config.swap.max(budgets.parse::<u64>().unwrap() * config.memory);
    }
    if let Ok(names) = std::env::var("ELBOWROOM_TEST_ABLATE") {
        config.ablation = elbowroom::Ablation::without(&names).unwrap();
    }
    config
}

/// A manager with a space.
pub trait Machine: Sized + Sync {
    type Platform: Platform;

    /// Starts one; `None`, said loudly, if that is not possible here.
    fn start(config: Config) -> Option<Self>;

    fn manager(&self) -> &Manager<Self::Platform>;

    fn space(&self) -> &Space<Self::Platform>;

    /// The space's lowest address.
    fn base(&self) -> usize;

    /// A way to the memory, for one thread.
    fn port(&self) -> impl Port;

    fn word(&self, addr: usize) -> u64 {
        self.port().word(addr)
    }

    fn set_word(&self, addr: usize, word: u64) {
        self.port().set_word(addr, word);
    }

    /// Maps, which must work.
    fn map(&self, request: MapRequest) -> usize {
        self.space().map(request).unwrap()
    }

    /// Maps all of a file of `pages` pages.
    fn map_file(&self, object: &Arc<FileObject>, pages: usize, sharing: Sharing) -> usize {
        self.map(request(Some(object), pages, sharing))
    }

    /// Maps anonymous memory.
    fn map_anon(&self, pages: usize, sharing: Sharing) -> usize {
        self.map(request(None, pages, sharing))
    }

    /// Stores the page's stamp for `seed` at the beginning and the end of each page; page 0 is at `addr`.
    fn mark(&self, addr: usize, pages: Range<usize>, seed: u64) {
        let port = self.port();
        for page in pages {
            port.set_word(addr + page * PAGE, stamp(page) ^ seed);
            port.set_word(addr + page * PAGE + PAGE - 8, stamp(page) ^ seed);
        }
    }

    /// Checks that what [`Machine::mark`] stores for `pages` is there, from `addr` on.
    #[track_caller]
    fn check_marks(&self, addr: usize, pages: Range<usize>, seed: u64) {
        let port = self.port();
        for (i, page) in pages.enumerate() {
            let words = [0, PAGE - 8].map(|at| port.word(addr + i * PAGE + at));
            assert_eq!(words, [stamp(page) ^ seed; 2], "page {page}, the {i}th at {addr:#x}");
        }
    }

    /// Checks that the pages are zero.
    #[track_caller]
    fn check_zero(&self, addr: usize, pages: usize) {
        let port = self.port();
        for page in 0..pages {
            let mut bytes = [1; PAGE];
            port.load(addr + page * PAGE, &mut bytes);
            assert!(bytes.iter().all(|&b| b == 0), "page {page} from {addr:#x} is not zero");
        }
    }

    /// Truncates or extends a file, as ftruncate(2) of a program does it.
    fn resize(&self, object: &Arc<FileObject>, path: &Path, size: u64) {
        let manager = self.manager();
        let ticket = manager.write_begin(object, size..u64::MAX);
        std::fs::File::options().write(true).open(path).unwrap().set_len(size).unwrap();
        manager.resized(object, size..u64::MAX);
        manager.write_end(ticket, size..size);
    }

    /// Writes to a file, as pwrite(2) of a program does it.
    fn write_file(&self, object: &Arc<FileObject>, path: &Path, offset: u64, data: &[u8]) {
        let range = offset..offset + data.len() as u64;
        let ticket: WriteTicket = self.manager().write_begin(object, range.clone());
        let file = std::fs::File::options().write(true).open(path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, data, offset).unwrap();
        self.manager().write_end(ticket, range);
    }
}

/// What fills page `page` of a stamped file.
pub fn stamp(page: usize) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// A request to map all of `pages` pages, with all rights.
pub fn request(object: Option<&Arc<FileObject>>, pages: usize, sharing: Sharing) -> MapRequest {
    MapRequest {
        place: Place::Anywhere,
        len: pages * PAGE,
        prot: RW,
        may_write: true,
        sharing,
        object: object.cloned(),
        offset: 0,
        populate: false,
        locked: false,
        no_reserve: false,
        group: None,
    }
}

/// A directory for files on a real file system.
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A file whose page `i` is filled with a stamp of `i`.
pub fn stamped(dir: &Path, name: &str, pages: usize) -> PathBuf {
    let path = dir.join(name);
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
    for page in 0..pages {
        (0..PAGE / 8).for_each(|_| file.write_all(&stamp(page).to_le_bytes()).unwrap());
    }
    file.into_inner().unwrap().sync_all().unwrap();
    path
}

/// The word of a file at an offset.
pub fn file_word(path: &Path, offset: usize) -> u64 {
    let file = std::fs::File::open(path).unwrap();
    let mut bytes = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, offset as u64).unwrap();
    u64::from_le_bytes(bytes)
}

/// Tells the other threads of a test to end, also when it fails: a scope would wait for them for ever.
pub struct StopAtTheEnd<'a>(pub &'a AtomicBool);

impl Drop for StopAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Says that a test, or the rest of it, cannot be made here: past the harness, which keeps what passing tests
/// print to itself.
pub fn skipped(reason: impl std::fmt::Display) {
    // If nobody can be told, there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {reason}");
}

/// Something that is dropped unless the test has failed: dropping what a bug has damaged may panic again,
/// which would end all tests.
pub struct Sound<T>(Option<T>);

impl<T> Sound<T> {
    pub fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T> std::ops::Deref for Sound<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl<T> Drop for Sound<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(self.0.take());
        }
    }
}

/// Runs the body of a test that might hang in a thread of its own.
///
/// # Panics
/// As `body` does; or if it has not ended after `bound`. Its thread is left behind then.
#[track_caller]
pub fn ends_within<R: Send + 'static>(bound: Duration, body: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = thread::spawn("body", move || {
        // Nobody listens any more once the bound is over.
        let _ = sender.send(body());
    });
    let until = Instant::now() + bound;
    let result = receiver.recv_timeout(bound);
    match result {
        Ok(result) => result,
        Err(_) if Instant::now() >= until => panic!("it has not ended after {bound:?}"),
        Err(_) => match thread.unwrap().join() {
            Ok(()) => unreachable!("it has sent nothing, so it has panicked"),
            Err(panic) => std::panic::resume_unwind(panic),
        },
    }
}

/// The configuration of a host machine.
fn host_config(config: Config, copy: bool) -> Config {
    let mover = if copy { MoverKind::Copy } else { MoverKind::Move };
    let userfaultfd = UserfaultfdConfig { mover, served: None };
    Config { userfaultfd, ..config }
}
