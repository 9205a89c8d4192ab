//! What is known of chunks, taken out of the table and put into it: for the file of [`Kept`](super::kept),
//! and for a file that is opened again.

use super::format::{Entry, PackedLeaf};
use super::{AGREED, Leaf, Learned, Table, WAYS};
use std::collections::HashMap;

/// Leaves that are put into the table while its lock is held once.
const AT_ONCE: usize = 256;

/// What is known of an object.
#[derive(Default)]
pub(super) struct Packed {
    /// The usual length of its chunks, in pages, and how many of them agreed on it.
    pub(super) length: u64,
    pub(super) agreed: i8,
    /// The leaves of the table, by number.
    pub(super) leaves: HashMap<u64, PackedLeaf>,
}

impl Learned {
    /// What is known of these objects. Faults may change it meanwhile: the lock is held for a set at a time.
    pub(super) fn packed(&self, objects: impl IntoIterator<Item = u64>) -> HashMap<u64, Packed> {
        let mut all: HashMap<u64, Packed> =
            objects.into_iter().map(|object| (object, Packed::default())).collect();
        let sets = self.0.lock().sets.len();
        for set in 0..sets {
            for Leaf { object, number, used, granules } in &self.0.lock().sets[set] {
                if let Some(packed) = all.get_mut(object) {
                    let mut leaf = PackedLeaf::pack(*number, used.at(), granules);
                    leaf.is_loaded = used.is_loaded();
                    packed.leaves.insert(*number, leaf);
                }
            }
        }
        for file in &self.0.lock().files {
            if let Some(packed) = all.get_mut(&file.object).filter(|_| file.length > 0) {
                (packed.length, packed.agreed) = (file.length, file.agreed);
            }
        }
        all
    }

    /// Adds what an entry of the file knows to what is known of an object, as far as that is nothing yet and
    /// has room: what is in use stays.
    pub(super) fn load(&self, object: u64, entry: &Entry) {
        for part in entry.leaves.chunks(AT_ONCE) {
            let mut table = self.0.lock();
            for leaf in part {
                let set = &table.sets[table.set_of(object, leaf.number)];
                if set.len() < WAYS && set.iter().all(|known| !known.is(object, leaf.number)) {
                    let new = table.leaf_mut(object, leaf.number);
                    new.granules = leaf.unpack();
                    new.used.set_loaded(true);
                }
            }
        }
        let mut table = self.0.lock();
        let file = table.file(object);
        if file.agreed == 0 {
            (file.length, file.agreed) = (entry.length, entry.agreed.min(AGREED));
        }
    }

    /// What was known of the object `old` is known of `new` from now on: the same file of so many leaves.
    pub(super) fn rename(&self, old: u64, new: u64, leaves: u64) {
        let sets = self.0.lock().sets.len();
        let is_all = leaves > (sets * WAYS) as u64;
        let parts = if is_all { sets as u64 } else { leaves };
        // All are taken first, so that none makes room for another one.
        let mut taken = Vec::new();
        for part in (0..parts).step_by(AT_ONCE) {
            let part = part..(part + AT_ONCE as u64).min(parts);
            let mut table = self.0.lock();
            for number in part {
                let set = if is_all { number as usize } else { table.set_of(old, number) };
                let is_it = |leaf: &mut Leaf| leaf.object == old && (is_all || leaf.number == number);
                taken.extend(table.sets[set].extract_if(.., is_it));
            }
        }
        for part in taken.chunks(AT_ONCE) {
            let mut table = self.0.lock();
            for leaf in part {
                let renamed = table.leaf_mut(new, leaf.number);
                renamed.granules = leaf.granules;
                renamed.used.set_loaded(leaf.used.is_loaded());
            }
        }
        let mut table = self.0.lock();
        if let Some(before) = table.use_of(old).copied() {
            let file = table.file(new);
            (file.length, file.agreed) = (before.length, before.agreed);
        }
    }
}

impl Table {
    /// The leaf of an object, which is made if there is none; the one that was used longest ago makes room.
    pub(super) fn leaf_mut(&mut self, object: u64, number: u64) -> &mut Leaf {
        let set = self.set_of(object, number);
        self.uses += 1;
        let (set, used) = (&mut self.sets[set], self.uses);
        let found = set.iter().position(|leaf| leaf.is(object, number));
        let nth = found.unwrap_or_else(|| {
            let new = Leaf::new(object, number);
            let oldest = (0..set.len()).min_by_key(|&nth| set[nth].used.at()).filter(|_| set.len() >= WAYS);
            match oldest {
                Some(oldest) => set[oldest] = new,
                None => set.push(new),
            }
            oldest.unwrap_or(set.len() - 1)
        });
        set[nth].used.set_at(used);
        &mut set[nth]
    }
}
