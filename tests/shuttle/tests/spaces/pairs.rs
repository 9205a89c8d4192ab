//! Every pair of what happens to mappings and their pages, beside a reader: docs/fault.md has the matrix, and
//! each of its cells is a test of this file.
//!
//! A file is mapped shared and, somewhere else, privately. Whatever two threads do to it, a load gives the
//! bytes of the page, and after all is done no store to the shared mapping has been lost, in memory or in the
//! file; only a truncation may take what it cuts off.

use elbowroom::{AccessError, Cpu, Errno, FileObject, Intent, Prot, Remap, Sharing, Soft, Space};
use elbowroom_shuttle::{Files, Keep, PAGE, World, check, encode, request};
use elbowroom_sync::atomic::{AtomicU8, Ordering};
use elbowroom_sync::{Arc, thread};
use shuttle::rand::{Rng, thread_rng};
use std::sync::atomic::AtomicU64;

/// Fewer than the file has pages. Half as many are the pins there may be, and each processor keeps some.
const FRAMES: u64 = 64;
const FILE_PAGES: usize = 96;
/// Pages of the mappings that the verbs are about.
const PAGES: usize = 4;
const TURNS: usize = 2;
const LOADS: usize = 4;

/// Where a page has the word that tells which page it is.
const STAMP: usize = 8;
/// Where the two threads store to the shared mapping.
const COUNTS: [usize; 2] = [16, 24];
/// Where they store to the private one.
const OWN: usize = 32;

/// Part of 2,000 schedules that each pair has: 1 in so many.
const SHARE: u64 = 40;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Fault,
    Unmap,
    Protect,
    Remap,
    Truncate,
    WriteBack,
    Reclaim,
    Fork,
    Pin,
}

use Verb::{Fault, Fork, Pin, Protect, Reclaim, Remap as Move, Truncate, Unmap, WriteBack};

struct Scene {
    world: World,
    files: Files,
    file: Arc<FileObject>,
    /// The file, shared; the file, private; where parts of the first are moved to and back; all of the file.
    shared: usize,
    private: usize,
    aside: usize,
    rest: usize,
    verbs: [Verb; 2],
    /// What each thread has stored last to each page.
    stored: [[AtomicU64; 2]; PAGES],
}

impl Scene {
    fn new(verbs: [Verb; 2]) -> Self {
        let files = Files::new(FILE_PAGES);
        // With so little, whoever stores is throttled.
        let [dirty, swap, to_file] = [(); 3].map(|()| thread_rng().gen_range(0..2) == 0);
        let world = World::configured(FRAMES, |config| {
            config.dirty = dirty.then_some(2 * PAGE as u64);
            // What is private may go out.
            config.swap = if swap { 1 << 20 } else { 0 };
            if to_file {
                config.swap_dir = Some(std::env::temp_dir());
                config.ablation.tuning.pool_percent = 0;
            }
        });
        let file = world.open(&files, true);
        let [shared, private, aside, rest] = [0, 1024, 2048, 4096].map(|page| world.at(page));
        let all = Prot::READ | Prot::WRITE;
        world.map_file(shared, PAGES, all, Sharing::Shared, &file);
        world.map_file(private, PAGES, all, Sharing::Private, &file);
        world.map_file(rest, FILE_PAGES, Prot::READ, Sharing::Shared, &file);
        let cpu = Keep::new(world.space.cpu());
        for page in 0..PAGES {
            cpu.write_u64(private + page * PAGE + OWN, encode(1, page, OWN)).unwrap();
        }
        drop(cpu);
        Self { world, files, file, shared, private, aside, rest, verbs, stored: Default::default() }
    }

    fn has(&self, verb: Verb) -> bool {
        self.verbs.contains(&verb)
    }

    /// What an access gave; `None`: it failed, as it may beside these verbs.
    fn expect<T>(&self, result: Result<T, AccessError>) -> Option<T> {
        let holes = [Unmap, Protect, Move].iter().any(|verb| self.has(*verb));
        match result {
            Ok(value) => Some(value),
            Err(AccessError::NotMapped(_) | AccessError::Denied(_)) if holes => None,
            Err(AccessError::Bus(_)) if self.has(Truncate) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Whether a verb was done; beside others it may fail for these reasons.
    fn done<T>(&self, result: Result<T, Errno>) -> bool {
        let allowed = |error: &Errno| match *error {
            Errno::BUSY | Errno::AGAIN => self.has(Pin),
            Errno::NOMEM | Errno::FAULT => [Unmap, Move].iter().any(|verb| self.has(*verb)),
            _ => false,
        };
        match result {
            Ok(_) => true,
            Err(error) => {
                assert!(allowed(&error), "{error:?}");
                false
            }
        }
    }

    fn check_stamp(&self, word: u64, page: usize) {
        let cut = self.has(Truncate) && page > 0 && word == 0;
        assert!(cut || word == encode(0, page, STAMP), "page {page} has {word:#x}");
    }

    fn look(&self, cpu: &Cpu, base: usize, page: usize) {
        if let Some(word) = self.expect(cpu.read_u64(base + page * PAGE + STAMP)) {
            self.check_stamp(word, page);
        }
    }

    /// Does it some times, as one of the two threads.
    fn run(&self, thread: usize, space: &Space<Soft>, cpu: &Cpu) {
        for turn in 1..=TURNS {
            let first = thread_rng().gen_range(0..PAGES);
            let pages = thread_rng().gen_range(1..=PAGES - first);
            let private = thread_rng().gen_ratio(1, 2) && self.verbs[thread] != WriteBack;
            let (base, sharing) =
                if private { (self.private, Sharing::Private) } else { (self.shared, Sharing::Shared) };
            let (addr, len) = (base + first * PAGE, pages * PAGE);
            match self.verbs[thread] {
                Fault => self.store(thread, turn as u64, first, cpu),
                Unmap => {
                    if self.done(space.unmap(addr, len)) {
                        let part = elbowroom::MapRequest {
                            offset: (first * PAGE) as u64,
                            ..request(addr, pages, sharing, &self.file)
                        };
                        self.done(space.map(part));
                    }
                }
                Protect => {
                    for prot in [[Prot::READ, Prot::empty()][turn % 2], Prot::READ | Prot::WRITE] {
                        self.done(space.protect(addr, len, prot));
                    }
                }
                Move => {
                    let aside = self.aside + thread * PAGES * PAGE;
                    if self.done(space.remap(addr, len, len, Remap::Fixed(aside))) {
                        self.look(cpu, aside.wrapping_sub(first * PAGE), first);
                        self.done(space.remap(aside, len, len, Remap::Fixed(addr)));
                    }
                }
                Truncate => {
                    for pages in [1, FILE_PAGES] {
                        self.files.resize(pages);
                        self.world.manager().resized(&self.file, PAGE as u64..u64::MAX);
                    }
                }
                WriteBack => {
                    self.done(space.sync(addr, len, turn == 1, false));
                }
                Reclaim => (0..FILE_PAGES).for_each(|page| self.look(cpu, self.rest, page)),
                Fork => self.fork(thread, first, space),
                Pin => self.pin(first, cpu),
            }
        }
    }

    fn store(&self, thread: usize, value: u64, page: usize, cpu: &Cpu) {
        let addr = self.shared + page * PAGE;
        if self.expect(cpu.write_u64(addr + COUNTS[thread], value)).is_some() {
            self.stored[page][thread].store(value, Ordering::Relaxed);
        }
        let own = self.private + page * PAGE;
        self.expect(cpu.write_u64(own + OWN, encode(1, page, OWN)));
        if let Some(word) = self.expect(cpu.read_u64(own + OWN)) {
            // Others may drop the copy, and then the file's page is seen, or what is left of that.
            let dropped = [Truncate, Unmap, Move].iter().any(|verb| self.has(*verb));
            let file = dropped && [0, encode(0, page, OWN)].contains(&word);
            assert!(file || word == encode(1, page, OWN), "page {page} has {word:#x}");
        }
        self.look(cpu, self.shared, page);
        self.look(cpu, self.private, page);
    }

    /// The child stores to its own pages, which the parent never sees.
    fn fork(&self, thread: usize, page: usize, space: &Space<Soft>) {
        let child = match space.fork() {
            Ok(child) => Keep::new(child),
            Err(error) => return assert_eq!((error, self.has(Pin)), (Errno::AGAIN, true)),
        };
        let cpu = Keep::new(child.cpu());
        let there = |addr: usize| addr.wrapping_sub(space.base()).wrapping_add(child.base());
        let own = there(self.private) + page * PAGE + OWN;
        if self.expect(cpu.write_u64(own, encode(2 + thread as u64, page, OWN))).is_some()
            && let Some(word) = self.expect(cpu.read_u64(own))
            && !(self.has(Truncate) && page > 0)
        {
            assert_eq!(word, encode(2 + thread as u64, page, OWN), "page {page}");
        }
        self.look(&cpu, there(self.shared), page);
        self.look(&cpu, there(self.private), page);
    }

    /// The page stays what it is for as long as it is pinned.
    fn pin(&self, page: usize, cpu: &Cpu) {
        let addr = self.shared + page * PAGE + STAMP;
        let Some(pinned) = self.expect(cpu.pin(addr, 8, Intent::Read)) else { return };
        let word =
            |bytes: &[AtomicU8]| -> [u8; 8] { std::array::from_fn(|i| bytes[i].load(Ordering::Acquire)) };
        for _ in 0..2 {
            self.check_stamp(u64::from_ne_bytes(word(&pinned)), page);
            thread::yield_now();
        }
    }

    /// What is there when all is done.
    fn judge(&self) {
        let cpu = Keep::new(self.world.space.cpu());
        let kept = |page: usize| !self.has(Truncate) || page == 0;
        let stored = |page: usize, thread: usize| self.stored[page][thread].load(Ordering::Relaxed);
        let fresh = self.world.at(8192);
        self.world.map_file(fresh, PAGES, Prot::READ, Sharing::Shared, &self.file);
        for page in 0..PAGES {
            for base in [self.shared, self.private, fresh] {
                if let Some(word) = self.expect(cpu.read_u64(base + page * PAGE + STAMP)) {
                    let right = if kept(page) { encode(0, page, STAMP) } else { 0 };
                    assert_eq!(word, right, "page {page}, at last");
                }
            }
            if let Some(word) = self.expect(cpu.read_u64(self.private + page * PAGE + OWN)) {
                let right = [0, 1].map(|whole| encode(whole, page, OWN));
                assert!(right.contains(&word) || !kept(page), "page {page} has {word:#x} of a child");
            }
            for (thread, at) in COUNTS.into_iter().enumerate().filter(|_| kept(page)) {
                let last = stored(page, thread);
                let word = cpu.read_u64(fresh + page * PAGE + at).unwrap();
                assert!(word == last || last == 0, "{word} instead of {last} in page {page}");
            }
        }
        self.world.space.sync(fresh, PAGES * PAGE, false, false).unwrap();
        for page in (0..PAGES).filter(|page| kept(*page)) {
            for (thread, at) in COUNTS.into_iter().enumerate() {
                let (word, last) = (self.files.load((page * PAGE + at) as u64), stored(page, thread));
                assert!(word == last || last == 0, "{word} instead of {last} in page {page} of the file");
            }
        }
    }
}

fn scenario(verbs: [Verb; 2]) {
    let scene = Arc::new(Scene::new(verbs));
    let for_reader = scene.clone();
    let reader = scene.world.spawn("reader", move |_, cpu| {
        for _ in 0..LOADS {
            let base = [for_reader.shared, for_reader.private][thread_rng().gen_range(0..2)];
            for_reader.look(cpu, base, thread_rng().gen_range(0..PAGES));
        }
    });
    let for_first = scene.clone();
    let first = scene.world.spawn("first", move |space, cpu| for_first.run(0, space, cpu));
    {
        let cpu = Keep::new(scene.world.space.cpu());
        scene.run(1, &scene.world.space, &cpu);
    }
    [reader, first].into_iter().for_each(|thread| thread.join().unwrap());
    scene.judge();
}

macro_rules! pairs {
    ($($name:ident: $first:ident, $second:ident;)*) => {$(
        #[test]
        fn $name() {
            check(stringify!($name), SHARE, || scenario([Verb::$first, Verb::$second]));
        }
    )*};
}

pairs! {
    fault_and_fault: Fault, Fault;
    fault_and_unmap: Fault, Unmap;
    fault_and_protect: Fault, Protect;
    fault_and_remap: Fault, Remap;
    fault_and_truncate: Fault, Truncate;
    fault_and_write_back: Fault, WriteBack;
    fault_and_reclaim: Fault, Reclaim;
    fault_and_fork: Fault, Fork;
    fault_and_pin: Fault, Pin;
    unmap_and_unmap: Unmap, Unmap;
    unmap_and_protect: Unmap, Protect;
    unmap_and_remap: Unmap, Remap;
    unmap_and_truncate: Unmap, Truncate;
    unmap_and_write_back: Unmap, WriteBack;
    unmap_and_reclaim: Unmap, Reclaim;
    unmap_and_fork: Unmap, Fork;
    unmap_and_pin: Unmap, Pin;
    protect_and_protect: Protect, Protect;
    protect_and_remap: Protect, Remap;
    protect_and_truncate: Protect, Truncate;
    protect_and_write_back: Protect, WriteBack;
    protect_and_reclaim: Protect, Reclaim;
    protect_and_fork: Protect, Fork;
    protect_and_pin: Protect, Pin;
    remap_and_remap: Remap, Remap;
    remap_and_truncate: Remap, Truncate;
    remap_and_write_back: Remap, WriteBack;
    remap_and_reclaim: Remap, Reclaim;
    remap_and_fork: Remap, Fork;
    remap_and_pin: Remap, Pin;
    truncate_and_truncate: Truncate, Truncate;
    truncate_and_write_back: Truncate, WriteBack;
    truncate_and_reclaim: Truncate, Reclaim;
    truncate_and_fork: Truncate, Fork;
    truncate_and_pin: Truncate, Pin;
    write_back_and_write_back: WriteBack, WriteBack;
    write_back_and_reclaim: WriteBack, Reclaim;
    write_back_and_fork: WriteBack, Fork;
    write_back_and_pin: WriteBack, Pin;
    reclaim_and_reclaim: Reclaim, Reclaim;
    reclaim_and_fork: Reclaim, Fork;
    reclaim_and_pin: Reclaim, Pin;
    fork_and_fork: Fork, Fork;
    fork_and_pin: Fork, Pin;
    pin_and_pin: Pin, Pin;
}
