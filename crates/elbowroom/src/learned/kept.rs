//! What is known of chunks, from one run of a program to the next: in a file
//! ([decision 42](../../../docs/decisions/0042-learned-file.md)).
//!
//! The file is read when a file is opened to be mapped for the first time. Its entries are kept as bytes,
//! each until the file that it is of is opened, unchanged since the entry was written. It is written once, at
//! the end ([`Kept::save`]): what this process knows is merged into what the file has by then. The bytes of
//! the file are described in [`format`](super::format).
//!
//! Synchronization: one lock for what is known of open files. Nothing is read or written while it is held,
//! and it is never held together with that of [`Learned`].

use super::format::{Contents, Entry, MOST_BYTES, MOST_FILES, PackedLeaf, Refused, Stamp, check_magic};
use super::packed::Packed;
use super::{AGREED, GRANULE_ORDER, LEAF_ORDER, Learned};
use crate::object::{FileObject, last_seen};
use elbowroom_machine::PAGE_SIZE;
use elbowroom_store::{FileId, WholeError, read_begin, read_whole, replace_whole};
use elbowroom_sync::time::Duration;
use elbowroom_sync::{Arc, LockClass, LockStats, Mutex, Weak};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// How long a process that ends waits for others that write the file. A write takes milliseconds; to lose
/// what a process has learned costs less than to have its user wait.
const PATIENCE: Duration = Duration::from_millis(500);

/// An entry that was written in one of the last so many turns is recent: it is not written again for its
/// turn.
const RECENT: u64 = 16;

/// What keeps what is known of chunks in a file.
pub(crate) struct Kept {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The entries that were not loaded yet, as bytes, by inode number and stamp: no more than the file has.
    /// `None`: it was not read yet.
    unloaded: Option<HashMap<(u64, Stamp), Vec<u8>>>,
    /// The files that were opened, at most [`MOST_FILES`].
    files: HashMap<FileId, Opened>,
    /// How many were opened.
    clock: u64,
    /// Why nothing of the file is used.
    refused: Option<String>,
}

/// A file that was opened to be mapped.
struct Opened {
    serial: u64,
    object: Weak<FileObject>,
    /// The turn of the entry that was loaded; 0: none was.
    turn: u64,
    /// What it looked like when it was opened, and when it was seen last.
    first: Stamp,
    last: Stamp,
    /// When it was opened, in files that were opened before.
    at: u64,
}

/// What this process knows of a file.
struct Known {
    id: FileId,
    first: Stamp,
    last: Stamp,
    /// The turn of the entry that was loaded; 0: none was.
    turn: u64,
    packed: Packed,
}

/// What is to be done for a file that was opened.
enum ToDo {
    Nothing,
    /// The same unchanged file was known under another number.
    Rename(u64),
    /// The file has this entry for it.
    Load(Vec<u8>),
    /// The file must be read to know whether it has an entry for it.
    Read,
}

impl Kept {
    pub(crate) fn new(path: PathBuf, locks: &LockStats) -> Self {
        Self { path, state: locks.mutex(LockClass::Streams, State::default()) }
    }

    /// A file was opened to be mapped: from now on what was learned of it in earlier runs is known.
    pub(crate) fn opened(&self, learned: &Learned, object: &Arc<FileObject>) {
        let stamp = Stamp::from(last_seen(object));
        // The lock is given up before anything is read.
        let to_do = self.state.lock().enter(object, stamp);
        let entry = match to_do {
            ToDo::Nothing => None,
            ToDo::Rename(old) => {
                learned.rename(old, object.serial, leaves_of(stamp.size));
                None
            }
            ToDo::Load(entry) => Some(entry),
            ToDo::Read => {
                let contents = self.read();
                self.state.lock().take_read(contents, (object.id().inode, stamp))
            }
        };
        if let Some(entry) = entry.as_deref().and_then(Entry::of_bytes) {
            learned.load(object.serial, &entry);
            self.loaded(object, entry.turn);
        }
    }

    /// Notes of which turn the entry was that is in the table now.
    fn loaded(&self, object: &FileObject, turn: u64) {
        if let Some(opened) = self.state.lock().files.get_mut(&object.id())
            && opened.serial == object.serial
        {
            opened.turn = turn;
        }
    }

    /// Notes what a file looks like that is about to be closed: our own stores are in it.
    pub(crate) fn closed(&self, object: &FileObject) {
        let stamp = Stamp::from(last_seen(object));
        if let Some(opened) = self.state.lock().files.get_mut(&object.id())
            && opened.serial == object.serial
        {
            opened.last = stamp;
        }
    }

    /// In the child of a fork, which has no file: what the parent knows is the parent's to write.
    pub(crate) fn forget(&self) {
        self.state.lock().files.clear();
    }

    fn read(&self) -> Result<Contents, String> {
        let bytes = read_whole(&self.path, MOST_BYTES).map_err(|error| error.to_string())?;
        Contents::unpack(&bytes.unwrap_or_default()).map_err(|why| why.to_string())
    }

    /// Writes what this process knows into the file, beside what other processes have written there, if the
    /// file does not say it already. Gives lines about what went wrong.
    pub(crate) fn save(&self, learned: &Learned) -> Vec<String> {
        let (known, refused) = self.known(learned);
        let path = self.path.display();
        let ignored = |why: &str| format!("what was learned of files in {path} was ignored: {why}");
        if known.is_empty() {
            return refused.iter().map(|why| ignored(why)).collect();
        }
        let mut kept_as_it_is = None;
        let mut lines = Vec::new();
        let written = replace_whole(&self.path, MOST_BYTES, PATIENCE, |before| {
            let contents = match before.map_err(|error| error.to_string()).and_then(before_of) {
                Ok(Ok(contents)) => contents,
                Ok(Err(why)) => {
                    lines.push(ignored(&format!("{why}; it is made anew")));
                    Contents::default()
                }
                Err(why) => {
                    kept_as_it_is = Some(why);
                    return None;
                }
            };
            merged(contents, known).map(Contents::pack)
        });
        let failed = written.err().map(|error| error.to_string()).or(kept_as_it_is);
        if let Some(why) = failed {
            lines = vec![format!("cannot keep in {path} what was learned of files: {why}")];
        } else if lines.is_empty() {
            // Another process has made it anew.
            lines.extend(refused.iter().map(|why| ignored(why)));
        }
        lines
    }

    /// What this process knows of the files that were opened, and why nothing of the file was used.
    fn known(&self, learned: &Learned) -> (Vec<Known>, Option<String>) {
        let mut state = self.state.lock();
        let refused = state.refused.take();
        let files: Vec<_> = state
            .files
            .iter()
            .map(|(id, opened)| {
                let Opened { serial, ref object, turn, first, last, .. } = *opened;
                (*id, serial, object.upgrade(), turn, first, last)
            })
            .collect();
        drop(state);
        let mut packed = learned.packed(files.iter().map(|file| file.1));
        let mut known = Vec::new();
        for (id, serial, object, turn, first, last) in files {
            let open = object.filter(|object| !object.is_closed()).and_then(|object| object.file());
            let last = open.and_then(|file| file.stat().ok()).map_or(last, Stamp::from);
            let packed = packed.remove(&serial).unwrap_or_default();
            // Of a file of which some pages were touched nothing is known that helps another run. But what
            // was unlearned is to be unlearned in the file, too.
            if packed.leaves.values().any(|leaf| leaf.is_useful() || leaf.is_loaded) {
                known.push(Known { id, first, last, turn, packed });
            }
        }
        (known, refused)
    }
}

impl State {
    fn enter(&mut self, object: &Arc<FileObject>, stamp: Stamp) -> ToDo {
        let (id, serial) = (object.id(), object.serial);
        self.clock += 1;
        let new = Opened {
            serial,
            object: Arc::downgrade(object),
            turn: 0,
            first: stamp,
            last: stamp,
            at: self.clock,
        };
        if let Some(opened) = self.files.get_mut(&id) {
            if opened.serial == serial {
                return ToDo::Nothing;
            }
            if opened.last == stamp {
                let old = opened.serial;
                *opened = Opened { first: opened.first, turn: opened.turn, ..new };
                return ToDo::Rename(old);
            }
        } else if self.files.len() >= MOST_FILES
            && let Some(oldest) = self.files.iter().min_by_key(|(_, opened)| opened.at).map(|(id, _)| *id)
        {
            self.files.remove(&oldest);
        }
        self.files.insert(id, new);
        match &mut self.unloaded {
            Some(unloaded) => unloaded.remove(&(id.inode, stamp)).map_or(ToDo::Nothing, ToDo::Load),
            None => ToDo::Read,
        }
    }

    /// Keeps what was read, unless another thread was first, and takes the entry of a file out of it.
    fn take_read(&mut self, read: Result<Contents, String>, of: (u64, Stamp)) -> Option<Vec<u8>> {
        let unloaded = self.unloaded.get_or_insert_with(|| {
            let contents = read.unwrap_or_else(|why| {
                self.refused = Some(why);
                Contents::default()
            });
            let by_file = |entry: Entry| ((entry.id.inode, entry.stamp), entry.to_bytes());
            contents.entries.into_iter().map(by_file).collect()
        });
        unloaded.remove(&of)
    }
}

/// What a file has; inside: why nothing of it is used, so that it is made anew.
///
/// # Errors
/// It is no file of ours, and must stay as it is.
fn before_of(bytes: Vec<u8>) -> Result<Result<Contents, Refused>, String> {
    match Contents::unpack(&bytes) {
        Err(Refused::Foreign) => Err(Refused::Foreign.to_string()),
        contents => Ok(contents),
    }
}

/// Whether an entry is of a file that looks so. The device is not compared: its number may be another one
/// after the machine has started again, and of two files with the same inode number, size and times to the
/// nanosecond one is a copy of the other.
fn is_same(file: (FileId, Stamp), entry: (FileId, Stamp)) -> bool {
    (file.0.inode, file.1) == (entry.0.inode, entry.1)
}

fn leaves_of(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE_SIZE as u64).div_ceil(1 << (LEAF_ORDER + GRANULE_ORDER))
}

/// What the file had, and what this process knows. Entries of files that are not as they were are dropped.
/// `None`: the file says all of that, and none of its entries is written again to become a recent one.
fn merged(contents: Contents, known: Vec<Known>) -> Option<Contents> {
    let Contents { turn, mut entries } = contents;
    let turn = turn.saturating_add(1);
    let (mut new, mut differs) = (Vec::new(), false);
    for Known { id, first, last, turn: loaded, packed } in known {
        let is_it = |entry: &Entry| [first, last].iter().any(|s| is_same((id, *s), (entry.id, entry.stamp)));
        let before: Vec<_> = entries.extract_if(.., |entry| entry.id == id || is_it(entry)).collect();
        let (had, before) = (before.len(), before.into_iter().find(is_it));
        let was = before.clone();
        let Packed { mut length, mut agreed, leaves: mut ours } = packed;
        let mut leaves: Vec<PackedLeaf> = Vec::new();
        if let Some(before) = before {
            // If no other process has written it since, it knows nothing that is not in a leaf that was
            // loaded.
            let is_same = before.turn <= loaded;
            if length == 0 || agreed == 0 && !is_same {
                (length, agreed) = (before.length, before.agreed);
            } else if length == before.length && agreed.min(before.agreed) >= AGREED {
                // More certain than that makes no difference.
                agreed = agreed.max(before.agreed);
            }
            for theirs in before.leaves {
                match ours.get_mut(&theirs.number) {
                    Some(ours) if ours.is_loaded && is_same => {}
                    Some(ours) => ours.add(&theirs),
                    None => leaves.push(theirs),
                }
            }
        }
        leaves.extend(ours.into_values());
        leaves.retain(|leaf| leaf.number < leaves_of(last.size) && leaf.is_useful());
        leaves.sort_by_key(|leaf| leaf.number);
        if length > last.size.div_ceil(PAGE_SIZE as u64) {
            (length, agreed) = (0, 0);
        }
        let entry = Entry { id, stamp: last, turn, length, agreed, leaves };
        let is_written = !entry.leaves.is_empty();
        let is_as_before =
            was.is_some_and(|was| was.says_as(&entry) && was.turn >= turn.saturating_sub(RECENT));
        differs |= had > usize::from(is_written) || is_written && !is_as_before;
        if is_written {
            new.push(entry);
        }
    }
    // What was used last is first to have room.
    new.sort_by_cached_key(|entry| {
        std::cmp::Reverse(entry.leaves.iter().map(|leaf| leaf.used).max().unwrap_or(0))
    });
    new.extend(entries);
    differs.then_some(Contents { turn, entries: new })
}

/// Whether a file can be one that keeps what is known of chunks, for
/// [`RecordConfig::learned`](crate::RecordConfig::learned): it is one, or is empty, or there is none. Only
/// its first bytes are read, without waiting.
///
/// # Errors
/// What it is instead, in words that follow its name.
pub fn check_learned_file(path: &Path) -> Result<(), String> {
    let begin = match read_begin(path, 8) {
        Ok(begin) => begin.unwrap_or_default(),
        // A file that only its owner may read is found out when it is written.
        Err(WholeError::System(_)) => return Ok(()),
        Err(_) => return Err("is no regular file: name another one".to_owned()),
    };
    match check_magic(&begin) {
        Err(Refused::Foreign) => {
            Err("has something else in it, and would be lost: name another file".to_owned())
        }
        _ => Ok(()),
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
