//! What is known of chunks, through a file: for the same files, unchanged, and for no others.

use super::*;
use crate::learned::{Granule, Reached};
use crate::object::{ObjectTable, WhenUnmapped};
use elbowroom_sync::thread;
use elbowroom_sync::time::{Duration, UNIX_EPOCH};
use std::fs::File;
use std::process::Command;

/// A chunk of the files here: whole granules, and its pages are read one by one.
const CHUNK: u64 = 160;
const CHUNKS: u64 = 8;

/// What a process has: its files, what it knows of them, and what keeps that.
struct Process {
    table: ObjectTable,
    learned: Learned,
    kept: Kept,
}

impl Process {
    fn new(path: &Path) -> Self {
        let locks = LockStats::default();
        Self {
            table: ObjectTable::new(None, WhenUnmapped::Close, &locks),
            learned: Learned::new(64 << 20, &locks),
            kept: Kept::new(path.to_owned(), &locks),
        }
    }

    fn open(&self, path: &Path) -> Arc<FileObject> {
        let (object, _) = self.table.open(path, false).unwrap();
        self.kept.opened(&self.learned, &object);
        object
    }

    /// Reads a chunk page by page, as a program that has read another file before.
    fn read(&self, object: &FileObject, chunk: u64) {
        (chunk * CHUNK..(chunk + 1) * CHUNK).for_each(|page| self.touch(object, page));
        // Time passes for the file: touches of single pages at its end.
        (0..100).for_each(|_| self.touch(object, CHUNKS * CHUNK));
    }

    fn touch(&self, object: &FileObject, page: u64) {
        let folio = page..page + 1;
        let access = Reached { thread: 1, index: page, folio, is_first: true, of_chunk: false };
        self.learned.touched(object.serial, &access, |_| false);
    }

    /// How many pages are read at a fault at the first page of a chunk.
    fn would_read(&self, object: &FileObject, chunk: u64) -> u64 {
        let to_read = self.learned.to_read(2, (object.serial, chunk * CHUNK), 1 << 20, |_| false);
        to_read.map_or(0, |chunk| chunk.pages.end - chunk.pages.start)
    }

    fn save(&self) -> Vec<String> {
        self.kept.save(&self.learned)
    }
}

/// A directory with a file that has chunks, and a name for what keeps what is known.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.make("data");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn make(&self, name: &str) {
        File::create(self.path(name)).unwrap().set_len((CHUNKS * CHUNK + 1) << 12).unwrap();
    }

    fn process(&self) -> Process {
        Process::new(&self.path("learned"))
    }

    /// A process that reads some chunks of the file and ends.
    fn learn(&self, chunks: impl IntoIterator<Item = u64>) {
        let process = self.process();
        let object = process.open(&self.path("data"));
        chunks.into_iter().for_each(|chunk| process.read(&object, chunk));
        assert_eq!(process.save(), [""; 0]);
    }

    /// Whether a new process knows a chunk of a file.
    fn knows(&self, name: &str, chunk: u64) -> bool {
        let process = self.process();
        let object = process.open(&self.path(name));
        let pages = process.would_read(&object, chunk);
        assert!(pages == 0 || pages >= CHUNK, "{pages}");
        pages > 0
    }
}

#[test]
fn the_next_process_knows_the_chunks() {
    let place = Place::new();
    assert!(!place.knows("data", 1));
    assert!(!place.path("learned").exists(), "nothing is known");
    place.learn([1, 4]);
    assert!(place.knows("data", 1) && place.knows("data", 4) && !place.knows("data", 2));
    // A process that has not used the file loses nothing of it, nor one that knows other chunks.
    place.make("other");
    let process = place.process();
    let object = process.open(&place.path("other"));
    process.read(&object, 2);
    assert_eq!(process.save(), [""; 0]);
    place.learn([6]);
    for chunk in [1, 4, 6] {
        assert!(place.knows("data", chunk), "{chunk}");
    }
    assert!(place.knows("other", 2) && !place.knows("other", 1));
}

#[test]
fn a_file_that_has_changed_is_another_file() {
    let place = Place::new();
    let data = place.path("data");
    type Change = fn(&Place, &Path);
    let changes: [(&str, Change); 4] = [
        ("time", |_, data| {
            File::options().write(true).open(data).unwrap().set_modified(UNIX_EPOCH).unwrap();
        }),
        ("larger", |_, data| {
            let (file, meta) = (File::options().write(true).open(data).unwrap(), data.metadata().unwrap());
            file.set_len(meta.len() + 1).unwrap();
            file.set_modified(meta.modified().unwrap()).unwrap();
        }),
        ("smaller", |_, data| File::options().write(true).open(data).unwrap().set_len(100_000).unwrap()),
        ("another", |place, data| {
            place.make("another");
            std::fs::rename(place.path("another"), data).unwrap();
        }),
    ];
    for (name, change) in changes {
        place.make("data");
        place.learn([1]);
        assert!(place.knows("data", 1), "{name}");
        // Kernels before 6.13 tell times by the tick.
        thread::sleep(Duration::from_millis(20));
        change(&place, &data);
        assert!(!place.knows("data", 1), "{name}");
    }
    // What was known before is gone from the file as soon as more is known.
    place.make("data");
    place.learn([3]);
    let bytes = std::fs::read(place.path("learned")).unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&data.metadata().unwrap());
    let entries = Contents::unpack(&bytes).unwrap().entries;
    assert_eq!(entries.iter().filter(|entry| entry.id.inode == inode).count(), 1);
}

#[test]
fn our_own_changes_of_a_file_are_no_reason_to_forget_it() {
    let place = Place::new();
    place.learn([1]);
    let process = place.process();
    let object = process.open(&place.path("data"));
    assert!(process.would_read(&object, 1) > 0);
    thread::sleep(Duration::from_millis(20));
    std::fs::write(place.path("data"), vec![1; ((CHUNKS * CHUNK + 1) << 12) as usize]).unwrap();
    assert_eq!(process.save(), [""; 0]);
    assert!(place.knows("data", 1));
}

#[test]
fn a_file_that_is_opened_again_is_known_still() {
    let place = Place::new();
    let process = place.process();
    let object = process.open(&place.path("data"));
    process.read(&object, 1);
    process.kept.closed(&object);
    process.table.give(&object);
    let again = process.open(&place.path("data"));
    assert!(again.serial != object.serial);
    assert!(process.would_read(&again, 1) >= CHUNK);
    process.read(&again, 5);
    assert_eq!(process.save(), [""; 0]);
    assert!(place.knows("data", 1) && place.knows("data", 5));
    // A child of a fork has nothing to write.
    std::fs::remove_file(place.path("learned")).unwrap();
    process.kept.forget();
    assert_eq!(process.save(), [""; 0]);
    assert!(!place.path("learned").exists());
}

#[test]
fn what_was_unlearned_is_unlearned_in_the_file() {
    let place = Place::new();
    place.learn([1, 3]);
    place.learn([1, 3]);
    let unlearn = |with: &dyn Fn()| {
        let process = place.process();
        let object = process.open(&place.path("data"));
        assert!(process.would_read(&object, 1) > 0);
        // Of all that is read ahead nothing is accessed, and threads begin in the midst.
        (0..4).for_each(|_| process.learned.unused(object.serial, CHUNK..2 * CHUNK));
        for _ in 0..4 {
            process.touch(&object, CHUNK);
            (0..100).for_each(|_| process.touch(&object, CHUNKS * CHUNK));
        }
        assert_eq!(process.would_read(&object, 1), 0);
        with();
        assert_eq!(process.save(), [""; 0]);
    };
    unlearn(&|| {});
    assert!(!place.knows("data", 1) && place.knows("data", 3));
    // It can be learned again, and meanwhile another process learns another chunk.
    (0..4).for_each(|_| place.learn([1]));
    assert!(place.knows("data", 1));
    unlearn(&|| place.learn([5]));
    assert!(place.knows("data", 5) && place.knows("data", 3));
    // A leaf that made room in the table is no reason to forget what is in the file.
    let process = place.process();
    let object = process.open(&place.path("data"));
    process.learned.0.lock().sets.iter_mut().for_each(Vec::clear);
    process.read(&object, 6);
    assert_eq!(process.save(), [""; 0]);
    assert!(place.knows("data", 3) && place.knows("data", 6));
    // All of it is unlearned: there is no entry.
    let process = place.process();
    let object = process.open(&place.path("data"));
    for set in &mut process.learned.0.lock().sets {
        set.iter_mut().for_each(|leaf| leaf.granules = [Granule::default(); 1 << LEAF_ORDER]);
    }
    assert_eq!(process.save(), [""; 0]);
    let contents = Contents::unpack(&std::fs::read(place.path("learned")).unwrap()).unwrap();
    assert!(contents.entries.is_empty() && !object.is_closed());
}

#[test]
fn what_the_file_says_already_is_not_written_again() {
    let place = Place::new();
    // A page of each of many files.
    let process = place.process();
    let object = process.open(&place.path("data"));
    process.touch(&object, 7);
    assert_eq!(process.save(), [""; 0]);
    assert!(!place.path("learned").exists());
    let bytes = || std::fs::read(place.path("learned")).unwrap();
    let turns = || {
        let contents = Contents::unpack(&bytes()).unwrap();
        (contents.turn, contents.entries.iter().map(|entry| entry.turn).collect::<Vec<_>>())
    };
    place.learn([1]);
    place.learn([1]);
    let before = bytes();
    place.learn([1]);
    place.learn([]);
    assert_eq!(bytes(), before);
    place.learn([1, 3]);
    assert_ne!(bytes(), before);
    place.learn([1, 3]);
    // What is used stays among the recent entries.
    let (mut turn, _) = turns();
    place.make("other");
    for nth in 1..=RECENT {
        let process = place.process();
        let other = process.open(&place.path("other"));
        (0..4).for_each(|_| process.read(&other, nth % CHUNKS));
        process.kept.state.lock().files.retain(|_, opened| opened.serial == other.serial);
        // Each time it is another file.
        thread::sleep(Duration::from_millis(20));
        File::options().write(true).open(place.path("other")).unwrap().set_modified(UNIX_EPOCH).unwrap();
        assert_eq!(process.save(), [""; 0]);
        turn += 1;
        assert_eq!(turns().0, turn);
        let before = bytes();
        place.learn([1, 3]);
        assert_eq!(bytes() == before, nth < RECENT, "{nth}");
        turn = turns().0;
    }
    assert!(place.knows("data", 1) && place.knows("data", 3));
}

#[test]
fn processes_that_end_at_once_all_leave_what_they_know() {
    let place = Place::new();
    thread::scope(|scope| {
        for chunk in 0..CHUNKS {
            let place = &place;
            scope.spawn(move || place.learn([chunk]));
        }
    });
    (0..CHUNKS).for_each(|chunk| assert!(place.knows("data", chunk), "{chunk}"));
    // Files are apart.
    (0..CHUNKS).for_each(|nth| place.make(&format!("data{nth}")));
    thread::scope(|scope| {
        for nth in 0..CHUNKS {
            let place = &place;
            scope.spawn(move || {
                let process = place.process();
                let object = process.open(&place.path(&format!("data{nth}")));
                process.read(&object, nth);
                assert_eq!(process.save(), [""; 0]);
            });
        }
    });
    (0..CHUNKS).for_each(|nth| assert!(place.knows(&format!("data{nth}"), nth), "{nth}"));
}

#[test]
fn a_damaged_file_is_made_anew_and_another_kind_of_file_is_left() {
    let place = Place::new();
    let path = place.path("learned");
    place.learn([1]);
    let bytes = std::fs::read(&path).unwrap();
    let learn = |expected: &str| {
        let process = place.process();
        let object = process.open(&place.path("data"));
        assert_eq!(process.would_read(&object, 1), 0);
        process.read(&object, 2);
        let lines = process.save();
        assert!(lines.len() == 1 && lines[0].contains(expected), "{lines:?}");
    };
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(check_learned_file(&path), Ok(()));
    learn("was ignored: it is damaged; it is made anew");
    assert!(place.knows("data", 2) && !place.knows("data", 1));
    let mut other = bytes.clone();
    other[8] = 77;
    std::fs::write(&path, &other).unwrap();
    learn("it has version 77");
    assert!(place.knows("data", 2));
    std::fs::write(&path, "a novel").unwrap();
    assert!(check_learned_file(&path).unwrap_err().contains("name another file"));
    learn("cannot keep in");
    assert_eq!(std::fs::read(&path).unwrap(), b"a novel");
    // Too large to be looked at.
    std::fs::write(&path, &bytes).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    learn("it is too large");
    assert_eq!(path.metadata().unwrap().len(), 1 << 40);
    std::fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert!(check_learned_file(&path).is_err());
    learn("it is no regular file");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    learn("it is no regular file");
}

#[test]
fn what_was_used_last_is_first_to_have_room() {
    let place = Place::new();
    let process = place.process();
    let inodes = |names: &[&str]| {
        let inode = |name: &&str| std::os::unix::fs::MetadataExt::ino(&place.path(name).metadata().unwrap());
        names.iter().map(inode).collect::<Vec<_>>()
    };
    let names = ["data", "data1", "data2", "data3", "data4"];
    names.iter().for_each(|name| place.make(name));
    let objects: Vec<_> = names.iter().map(|name| process.open(&place.path(name))).collect();
    for nth in [3, 0, 4, 1, 2] {
        process.read(&objects[nth], 1);
    }
    assert_eq!(process.save(), [""; 0]);
    let contents = Contents::unpack(&std::fs::read(place.path("learned")).unwrap()).unwrap();
    let order: Vec<_> = contents.entries.iter().map(|entry| entry.id.inode).collect();
    assert_eq!(order, inodes(&["data2", "data1", "data4", "data", "data3"]));
}

#[test]
fn what_is_in_use_makes_no_room_for_what_is_loaded() {
    let place = Place::new();
    place.learn([1]);
    let process = place.process();
    let count = |of: u64| {
        let table = process.learned.0.lock();
        table.sets.iter().flatten().filter(|leaf| leaf.object == of).count()
    };
    // Another file, of which more is known than has room.
    let in_use = 1 << 40;
    (0..10_000).for_each(|number| _ = process.learned.0.lock().leaf_mut(in_use, number));
    let before = count(in_use);
    let object = process.open(&place.path("data"));
    assert_eq!((count(in_use), count(object.serial)), (before, 0));
    // All of it gets another number, in as many parts as that takes, and no file is noted that is not known.
    for leaves in [10_000, u64::MAX] {
        let (old, new) = if leaves == 10_000 { (in_use, in_use + 1) } else { (in_use + 1, in_use + 2) };
        process.learned.rename(old, new, leaves);
        assert_eq!((count(old), count(new) > before / 2), (0, true), "{leaves}");
        assert!(process.learned.0.lock().use_of(old).is_none());
    }
    // Few leaves are looked for by their numbers.
    (0..8).for_each(|number| _ = process.learned.0.lock().leaf_mut(7, number));
    process.learned.rename(7, 8, 4);
    assert_eq!((count(7), count(8)), (4, 4));
    // What was not loaded is not lost.
    process.read(&object, 3);
    assert_eq!(process.save(), [""; 0]);
    assert!(place.knows("data", 1) && place.knows("data", 3));
}

#[test]
fn files_beyond_the_bound_are_forgotten_first_of_all() {
    let place = Place::new();
    let process = place.process();
    let first = process.open(&place.path("data"));
    process.read(&first, 1);
    let mut state = process.kept.state.lock();
    for nth in 0..MOST_FILES as u64 - 1 {
        let id = FileId { device: 0, inode: 1 << 40 | nth };
        let stamp = Stamp { size: 0, mtime_ns: 0, ctime_ns: 0 };
        let opened = Opened {
            serial: 1 << 40 | nth,
            object: Weak::new(),
            turn: 0,
            first: stamp,
            last: stamp,
            at: nth + 2,
        };
        assert!(state.files.insert(id, opened).is_none());
    }
    state.clock = MOST_FILES as u64 + 1;
    drop(state);
    place.make("other");
    let other = process.open(&place.path("other"));
    process.read(&other, 1);
    assert_eq!(process.kept.state.lock().files.len(), MOST_FILES);
    assert_eq!(process.save(), [""; 0]);
    assert!(place.knows("other", 1) && !place.knows("data", 1));
}
