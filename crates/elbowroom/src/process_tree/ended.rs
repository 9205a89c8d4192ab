//! The largest processes of a run, for a table at its end. Those that have ended are in a list of the
//! table's head: a process enters it when its row is freed.

use super::table::{ProcessTree, head, row};
use super::view::name_of;
use elbowroom_machine::{PAGE_SIZE, boot_time};
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::time::Duration;

/// How many processes the list has room for.
pub(super) const PLACES: usize = 10;
/// Words of an entry: id, name (2), peak, faults, pages swapped out, time.
pub(super) const WORDS: usize = 7;

const PID: usize = 0;
const NAME: usize = 1;
const PEAK: usize = 3;
const FAULTS: usize = 4;
const SWAPPED: usize = 5;
const TIME: usize = 6;

/// A process of a run that has ended or not, in a few figures. Allocates nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LargeProcess {
    /// Its id.
    pub pid: u32,
    name: [u64; 2],
    /// The most bytes that it had at a time.
    pub peak_bytes: u64,
    /// Its page faults.
    pub faults: u64,
    /// Bytes that it has put out to swap in all.
    pub swapped_out_bytes: u64,
    /// For how long it was in the run, or is.
    pub time: Duration,
}

impl LargeProcess {
    /// The bytes of its name, which are any but zeros: a program may give its process any name.
    pub fn name(&self) -> impl Iterator<Item = u8> {
        self.name.into_iter().flat_map(u64::to_le_bytes).take_while(|byte| *byte != 0)
    }

    /// Its name, without what is not UTF-8.
    pub fn name_text(&self) -> String {
        name_of(self.name)
    }

    fn words(&self) -> [u64; WORDS] {
        let pages = |bytes: u64| bytes / PAGE_SIZE as u64;
        let Self { pid, name, peak_bytes, faults, swapped_out_bytes, time } = *self;
        let time = time.as_nanos() as u64;
        [u64::from(pid), name[0], name[1], pages(peak_bytes), faults, pages(swapped_out_bytes), time]
    }

    fn of(words: [u64; WORDS]) -> Self {
        let bytes = |pages: u64| pages.saturating_mul(PAGE_SIZE as u64);
        Self {
            pid: words[PID] as u32,
            name: [words[NAME], words[NAME + 1]],
            peak_bytes: bytes(words[PEAK]),
            faults: words[FAULTS],
            swapped_out_bytes: bytes(words[SWAPPED]),
            time: Duration::from_nanos(words[TIME]),
        }
    }

    /// The process of a row.
    fn of_row(tree: &ProcessTree, row: usize) -> Self {
        let word = |word| tree.row(row, word).load(Ordering::Relaxed);
        let age = boot_time().saturating_sub(word(row::SINCE));
        Self::of([
            u64::from(tree.owner(row)),
            word(row::NAME),
            word(row::NAME + 1),
            word(row::PEAK),
            tree.row_use(row).faults,
            tree.row_use(row).swapped_out,
            age,
        ])
    }
}

/// The largest processes, by their peaks, the largest first.
#[derive(Debug, Clone, Copy, Default)]
pub struct LargestProcesses {
    places: [LargeProcess; PLACES],
}

impl LargestProcesses {
    /// The processes. At most 10, none of which had nothing at any time.
    pub fn iter(&self) -> impl Iterator<Item = &LargeProcess> {
        self.places.iter().filter(|process| process.peak_bytes > 0)
    }

    /// Puts a process into its place, unless all places have larger ones.
    fn add(&mut self, process: LargeProcess) {
        let Some(at) = self.places.iter().position(|other| other.peak_bytes < process.peak_bytes) else {
            return;
        };
        self.places[at..].rotate_right(1);
        self.places[at] = process;
    }

    /// The largest processes of a run so far, those that have ended included. Allocates nothing.
    pub fn of(tree: &ProcessTree) -> Self {
        let mut largest = Self::ended(tree);
        for row in tree.rows().filter(|row| tree.owner(*row) != 0) {
            largest.add(LargeProcess::of_row(tree, row));
        }
        largest
    }

    fn ended(tree: &ProcessTree) -> Self {
        let word =
            |place: usize, word| tree.head(head::LARGEST + place * WORDS + word).load(Ordering::Relaxed);
        let mut ended = Self::default();
        (0..PLACES).for_each(|place| {
            ended.add(LargeProcess::of(std::array::from_fn(|at| word(place, at))));
        });
        ended
    }

    /// Notes the process of a row that is about to be emptied. The caller has the lock of the table.
    pub(super) fn note_ended(tree: &ProcessTree, row: usize) {
        let before = Self::ended(tree);
        let mut largest = before;
        largest.add(LargeProcess::of_row(tree, row));
        if largest.places == before.places {
            return;
        }
        for (place, process) in largest.places.iter().enumerate() {
            for (at, word) in process.words().into_iter().enumerate() {
                tree.head(head::LARGEST + place * WORDS + at).store(word, Ordering::Relaxed);
            }
        }
    }
}
