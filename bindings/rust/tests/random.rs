//! Threads map, store, resize and drop at random, each with a file and a budget of its own; a plain
//! model says what every byte is. A failure prints the seed: ELBOWROOM_TEST_SEED repeats it.
#![allow(unsafe_code)]

use elbowroom::{Budget, Mmap, MmapMut, MmapOptions, RemapOptions};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const FILE: usize = 600 * PAGE;
const TIME: Duration = Duration::from_secs(2);

/// A mapping, in the state in which it is.
enum Mapped {
    Loads(Mmap),
    Stores(MmapMut),
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Mapped::Loads(map) => map,
            Mapped::Stores(map) => map,
        }
    }
}

/// Where the bytes of a mapping are in the model.
enum Model {
    /// In the file, from this byte on.
    File(usize),
    /// In the file, but for pages that were stored to.
    Copy(usize, Vec<Option<Vec<u8>>>),
    /// Here.
    Memory(Vec<u8>),
}

struct Pair {
    mapped: Mapped,
    model: Model,
}

impl Pair {
    /// What the bytes of a range should be.
    fn expected(&self, file: &[u8], range: Range<usize>) -> Vec<u8> {
        match &self.model {
            Model::File(first) => file[first + range.start..first + range.end].to_vec(),
            Model::Memory(bytes) => bytes[range].to_vec(),
            Model::Copy(first, pages) => range
                .map(|at| {
                    let place = first + at;
                    let page = &pages[place / PAGE - first / PAGE];
                    page.as_ref().map_or(file[place], |page| page[place % PAGE])
                })
                .collect(),
        }
    }

    fn store(&mut self, file: &mut [u8], range: Range<usize>, byte: u8) {
        let Mapped::Stores(map) = &mut self.mapped else { return };
        map[range.clone()].fill(byte);
        match &mut self.model {
            Model::File(first) => file[*first + range.start..*first + range.end].fill(byte),
            Model::Memory(bytes) => bytes[range].fill(byte),
            Model::Copy(first, pages) => {
                for place in *first + range.start..*first + range.end {
                    let start = place / PAGE * PAGE;
                    let page = &mut pages[place / PAGE - *first / PAGE];
                    page.get_or_insert_with(|| file[start..start + PAGE].to_vec())[place % PAGE] = byte;
                }
            }
        }
    }
}

struct Run {
    random: fastrand::Rng,
    path: PathBuf,
    file: File,
    bytes: Vec<u8>,
    budget: Budget,
    pairs: Vec<Pair>,
    /// Looks at mappings that the manager serves, and at others.
    looks: [u64; 2],
}

impl Run {
    fn new(seed: u64, directory: &Path) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let path = directory.join(format!("{seed}"));
        let bytes: Vec<u8> = (0..FILE).map(|at| (at / PAGE) as u8 ^ random.u8(0..4)).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let budget = Budget::with_memory("1MiB").unwrap();
        Self { random, path, file, bytes, budget, pairs: Vec::new(), looks: [0; 2] }
    }

    fn range(&mut self, len: usize) -> Range<usize> {
        let start = self.random.usize(0..=len);
        let most = if self.random.u8(0..8) == 0 { len } else { 3 * PAGE };
        start..start + self.random.usize(0..=(len - start).min(most))
    }

    fn map(&mut self) {
        let range = self.range(FILE);
        let mut options = self.budget.options();
        options.offset(range.start as u64).len(range.len());
        let pages = range.end / PAGE - range.start / PAGE + 1;
        let copy = || Model::Copy(range.start, vec![None; pages]);
        // SAFETY: the file is this thread's own, and the slices of its mappings are used one after the other.
        let (mapped, model) = unsafe {
            match self.random.u8(0..6) {
                // Populating a copy takes its pages from the file now, others when they are stored to.
                0 => (Mapped::Loads(options.populate().map(&self.file).unwrap()), Model::File(range.start)),
                1 => (Mapped::Stores(options.map_mut(&self.file).unwrap()), Model::File(range.start)),
                2 => (Mapped::Stores(options.map_copy(&self.file).unwrap()), copy()),
                3 => (Mapped::Loads(options.map_copy_read_only(&self.file).unwrap()), copy()),
                // Then all of the file's mappings are the kernel's, until the last of them is gone.
                5 if self.random.u8(0..8) == 0 => {
                    (Mapped::Loads(options.map_exec(&self.file).unwrap()), Model::File(range.start))
                }
                _ => {
                    let len = range.len().min(64 * PAGE);
                    let memory = MmapOptions::new().budget(&self.budget).len(len).map_anon().unwrap();
                    (Mapped::Stores(memory), Model::Memory(vec![0; len]))
                }
            }
        };
        self.pairs.push(Pair { mapped, model });
    }

    fn change_rights(&mut self, nth: usize) {
        let Pair { mapped, model } = self.pairs.swap_remove(nth);
        let mapped = match mapped {
            Mapped::Loads(map) => Mapped::Stores(map.make_mut().unwrap()),
            Mapped::Stores(map) if self.random.u8(0..8) == 0 => Mapped::Loads(map.make_exec().unwrap()),
            Mapped::Stores(map) => Mapped::Loads(map.make_read_only().unwrap()),
        };
        self.pairs.push(Pair { mapped, model });
    }

    fn resize(&mut self, nth: usize) {
        let may_move = RemapOptions::new().may_move(true);
        let most = match &self.pairs[nth] {
            Pair { model: Model::File(first), .. } => FILE - *first,
            Pair { model: Model::Memory(_), mapped: Mapped::Stores(_) } => 64 * PAGE,
            // A copy that grows again has some of its stores, by whole pages: the model does not say which.
            _ => return,
        };
        let len = self.random.usize(0..=most);
        let Pair { mapped, model } = &mut self.pairs[nth];
        // SAFETY: no slice is in use; the file has these bytes.
        let resized = unsafe {
            match mapped {
                Mapped::Loads(map) => map.remap(len, may_move),
                Mapped::Stores(map) => map.remap(len, may_move),
            }
        };
        resized.unwrap();
        if let (Model::Memory(bytes), Mapped::Stores(map)) = (model, mapped) {
            bytes.resize(len, 0);
            // What is cut off of a page that stays would be there again when the mapping grows.
            // SAFETY: as above.
            unsafe { map.remap(len.next_multiple_of(PAGE), may_move).unwrap() };
            map[len..].fill(0);
            // SAFETY: as above.
            unsafe { map.remap(len, may_move).unwrap() };
        }
    }

    fn check(&mut self, nth: usize, range: Range<usize>) {
        let pair = &self.pairs[nth];
        let managed = match &pair.mapped {
            Mapped::Loads(map) => map.is_managed(),
            Mapped::Stores(map) => map.is_managed(),
        };
        self.looks[usize::from(!managed)] += 1;
        let expected = pair.expected(&self.bytes, range.clone());
        let kind = match &pair.model {
            Model::File(first) => format!("the file from {first} on"),
            Model::Copy(first, pages) => {
                let stored: Vec<_> = (0..pages.len()).filter(|nth| pages[*nth].is_some()).collect();
                format!("a copy of the file from {first} on, with stores to pages {stored:?}")
            }
            Model::Memory(_) => "memory".to_owned(),
        };
        let wrong = pair.mapped[range.clone()].iter().zip(&expected).position(|(is, should)| is != should);
        if let Some(at) = wrong {
            let at = range.start + at;
            panic!(
                "byte {at} of {kind}, managed: {managed}: {} instead of {}",
                pair.mapped[at],
                expected[at - range.start]
            );
        }
    }

    fn step(&mut self) {
        let verb = self.random.u8(0..20);
        if self.pairs.is_empty() || verb < 3 && self.pairs.len() < 6 {
            return self.map();
        }
        let nth = self.random.usize(0..self.pairs.len());
        let range = self.range(self.pairs[nth].mapped.len());
        match verb {
            3 | 4 => drop(self.pairs.swap_remove(nth)),
            5 => self.change_rights(nth),
            6 => self.resize(nth),
            7 => {
                if let Pair { mapped: Mapped::Stores(map), model } = &self.pairs[nth] {
                    map.flush().unwrap();
                    if let Model::File(first) = *model {
                        let mut read = Vec::new();
                        File::open(&self.path).unwrap().read_to_end(&mut read).unwrap();
                        let part = first..first + map.len();
                        assert!(read[part.clone()] == self.bytes[part], "the file after a flush");
                    }
                }
            }
            8..14 => {
                let byte = self.random.u8(..);
                self.pairs[nth].store(&mut self.bytes, range, byte);
            }
            _ => self.check(nth, range),
        }
    }

    fn run(mut self, until: Instant) -> [u64; 2] {
        while Instant::now() < until {
            self.step();
        }
        for nth in 0..self.pairs.len() {
            self.check(nth, 0..self.pairs[nth].mapped.len());
        }
        self.pairs.clear();
        assert!(std::fs::read(&self.path).unwrap() == self.bytes, "the file at the end");
        self.looks
    }
}

#[test]
fn what_threads_do_at_random_is_what_a_model_says() {
    let given = std::env::var("ELBOWROOM_TEST_SEED").ok().map(|seed| seed.parse().unwrap());
    let seed: u64 = given.unwrap_or_else(|| fastrand::u64(0..1 << 32));
    eprintln!("ELBOWROOM_TEST_SEED={seed}");
    let disk =
        std::env::var_os("ELBOWROOM_TEST_DIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let directory = tempfile::tempdir_in(disk).unwrap();
    let until = Instant::now() + TIME;
    thread::scope(|scope| {
        let runs: Vec<_> = (0..4)
            .map(|nth| {
                let directory = directory.path();
                scope.spawn(move || Run::new(seed + nth, directory).run(until))
            })
            .collect();
        let looks: Vec<_> = runs.into_iter().map(|run| run.join().unwrap()).collect();
        eprintln!("looks at what is managed, and at what is the kernel's: {looks:?}");
        assert!(looks.iter().any(|[managed, _]| *managed > 0), "nothing was managed");
    });
}
