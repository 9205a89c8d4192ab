//! A small manager, and the means to judge what is read from its memory.

use crate::Keep;
use elbowroom::{
    Config, Cpu, EngineKind, Errno, FileObject, GroupId, Manager, MapRequest, Place, Prot, Sharing, Soft,
    Space,
};
use elbowroom_sync::{Arc, thread};
use std::path::PathBuf;
// Not the facade's: what a scenario notes must not be a point at which shuttle runs another task.
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// A manager with one space.
pub struct World {
    /// The space; it goes before its manager.
    pub space: Arc<Keep<Space<Soft>>>,
    manager: Keep<Manager<Soft>>,
}

impl World {
    /// One with `frames` frames, at least 24.
    pub fn new(frames: u64) -> Self {
        Self::configured(frames, |_| ())
    }

    /// The same, with something else than the defaults.
    pub fn configured(frames: u64, change: impl FnOnce(&mut Config)) -> Self {
        // What is left of the reserve (1 MiB and 1/16) is what was asked for.
        let memory = ((frames * PAGE as u64 + (1 << 20)) * 16).div_ceil(15);
        let mut config = Config { handlers: 1, engine: EngineKind::Threads, ..Config::with_memory(memory) };
        change(&mut config);
        assert!(frames <= config.arena_frames() as u64 && config.arena_frames() as u64 <= frames + 1);
        let manager = Manager::<Soft>::start_on(config).expect("a soft manager starts anywhere");
        let space = manager.create_space().expect("there is room for a space");
        Self { space: Arc::new(Keep::new(space)), manager: Keep::new(manager) }
    }

    /// An address of the space.
    pub fn at(&self, page: usize) -> usize {
        self.space.base() + (1 << 30) + page * PAGE
    }

    /// The object of a file.
    pub fn open(&self, files: &Files, writable: bool) -> Arc<FileObject> {
        self.manager.open(&files.path, writable).expect("the file is there")
    }

    /// The manager.
    pub fn manager(&self) -> &Manager<Soft> {
        &self.manager
    }

    /// Maps anonymous memory there, in the place of what is there.
    pub fn map(&self, addr: usize, pages: usize, prot: Prot, sharing: Sharing) {
        map(&self.space, addr, pages, prot, sharing, None);
    }

    /// Maps private memory of a group there.
    pub fn map_of(&self, addr: usize, pages: usize, group: GroupId) {
        let request = MapRequest { group: Some(group), ..of(addr, pages, Sharing::Private, None) };
        assert_eq!(self.space.map(request), Ok::<_, Errno>(addr));
    }

    /// Maps a file there.
    pub fn map_file(&self, addr: usize, pages: usize, prot: Prot, sharing: Sharing, file: &Arc<FileObject>) {
        map(&self.space, addr, pages, prot, sharing, Some(file.clone()));
    }

    /// Starts a thread with a processor of its own.
    pub fn spawn(
        &self,
        name: &str,
        body: impl FnOnce(&Space<Soft>, &Cpu) + Send + 'static,
    ) -> thread::JoinHandle<()> {
        spawn(name, &self.space, body)
    }
}

fn map(
    space: &Space<Soft>,
    addr: usize,
    pages: usize,
    prot: Prot,
    sharing: Sharing,
    object: Option<Arc<FileObject>>,
) {
    let request = MapRequest { prot, ..of(addr, pages, sharing, object) };
    assert_eq!(space.map(request), Ok::<_, Errno>(addr));
}

/// A mapping of a file from its first page on, with all rights.
pub fn request(addr: usize, pages: usize, sharing: Sharing, object: &Arc<FileObject>) -> MapRequest {
    of(addr, pages, sharing, Some(object.clone()))
}

fn of(addr: usize, pages: usize, sharing: Sharing, object: Option<Arc<FileObject>>) -> MapRequest {
    MapRequest {
        place: Place::Fixed(addr),
        len: pages * PAGE,
        prot: Prot::READ | Prot::WRITE,
        may_write: true,
        sharing,
        object,
        offset: 0,
        populate: false,
        locked: false,
        no_reserve: false,
        group: None,
    }
}

/// Starts a thread with a processor of its own on `space`.
fn spawn(
    name: &str,
    space: &Arc<Keep<Space<Soft>>>,
    body: impl FnOnce(&Space<Soft>, &Cpu) + Send + 'static,
) -> thread::JoinHandle<()> {
    let space = space.clone();
    let started = thread::spawn(name, move || {
        let cpu = Keep::new(space.cpu());
        body(&space, &cpu);
    });
    started.expect("shuttle has room for another task")
}

/// A word that tells where it belongs: 16 bits of what it is a part of, 16 of its page, 16 of its place.
pub fn encode(whole: u64, page: usize, place: usize) -> u64 {
    0x5AA5 << 48 | (whole & 0xffff) << 32 | (page as u64 & 0xffff) << 16 | (place as u64 & 0xffff)
}

/// Generations of something that comes and goes: 1, 2, 3 and so on, one at a time.
#[derive(Default)]
pub struct Witness {
    opened: AtomicU64,
    closed: AtomicU64,
}

impl Witness {
    /// The next generation is about to begin.
    pub fn open(&self) -> u64 {
        self.opened.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The generation has ended for certain.
    pub fn close(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// The last generation that has ended: what begins now is later than it.
    pub fn ended(&self) -> u64 {
        self.closed.load(Ordering::Relaxed)
    }

    /// The last that has begun: what ends now is not later than it.
    pub fn begun(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }
}

/// A file whose words are [`encode`]d with 0.
pub struct Files {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Files {
    /// One of `pages` pages.
    pub fn new(pages: usize) -> Self {
        let dir = tempfile::tempdir().expect("a directory for scratch files");
        let path = dir.path().join("file");
        let word = |i: usize| encode(0, i * 8 / PAGE, i * 8 % PAGE).to_ne_bytes();
        let bytes: Vec<u8> = (0..pages * PAGE / 8).flat_map(word).collect();
        std::fs::write(&path, bytes).expect("the scratch file is written");
        Self { path, _dir: dir }
    }

    /// Cuts the file, or lets it grow, past all managers.
    pub fn resize(&self, pages: usize) {
        let file = std::fs::File::options().write(true).open(&self.path).expect("the file is there");
        file.set_len((pages * PAGE) as u64).expect("the file has another size");
    }

    /// A word of the file, past all managers.
    pub fn load(&self, offset: u64) -> u64 {
        use std::os::unix::fs::FileExt;
        let mut word = [0; 8];
        let file = std::fs::File::open(&self.path).expect("the file is there");
        file.read_exact_at(&mut word, offset).expect("the word is there");
        u64::from_ne_bytes(word)
    }

    /// Puts a word into the file, past all managers.
    pub fn store(&self, offset: u64, word: u64) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(&self.path).expect("the file is there");
        file.write_all_at(&word.to_ne_bytes(), offset).expect("the word is written");
    }
}
