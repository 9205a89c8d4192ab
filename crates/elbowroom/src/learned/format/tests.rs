//! Files that keep what is known of chunks: what is written is read again, and what others have written is
//! refused or does no harm.

use super::*;
use crate::learned::{Learned, Reached};
use elbowroom_sync::LockStats;

const INODE: u64 = 7;

fn stamp(size: u64) -> Stamp {
    Stamp { size, mtime_ns: -1, ctime_ns: i128::from(u64::MAX) }
}

fn granule(random: &mut fastrand::Rng) -> Granule {
    let begins = random.i8(0..=MOST_BALANCE);
    let (first, reach) = if begins > 0 { (random.u8(0..16), random.u8(..)) } else { (0, 0) };
    Granule { link: random.i8(-MOST_BALANCE..=MOST_BALANCE), begins, first, reach }
}

/// A leaf in which each granule differs from the one before it as likely as not.
fn leaf(number: u64, random: &mut fastrand::Rng) -> PackedLeaf {
    let mut now = Granule { link: 1, ..Granule::default() };
    let granules = [(); GRANULES].map(|()| {
        if random.bool() {
            now = granule(random);
        }
        now
    });
    let packed = PackedLeaf::pack(number, 0, &granules);
    let same = |(one, other): (&Granule, &Granule)| {
        (one.link, one.begins, one.first, one.reach) == (other.link, other.begins, other.first, other.reach)
    };
    assert!(packed.unpack().iter().zip(&granules).all(same));
    packed
}

fn entry(inode: u64, turn: u64, numbers: impl Iterator<Item = u64>, random: &mut fastrand::Rng) -> Entry {
    let leaves: Vec<_> = numbers.map(|number| leaf(number, random)).collect();
    let size = leaves.last().map_or(5, |leaf| (leaf.number << 22) + 1);
    let id = FileId { device: 1 << 40, inode };
    Entry { id, stamp: stamp(size), turn, length: 1, agreed: 2 * AGREED, leaves }
}

fn some() -> Contents {
    let mut random = fastrand::Rng::with_seed(7);
    let entries = (0..4).map(|nth| entry(INODE + nth, 9 - nth, (0..5).map(|n| n * n), &mut random)).collect();
    Contents { turn: 9, entries }
}

fn is_equal(one: &Contents, other: &Contents) -> bool {
    one.turn == other.turn && one.entries == other.entries
}

#[test]
fn what_is_written_is_read_again() {
    let bytes = some().pack();
    assert!(is_equal(&Contents::unpack(&bytes).unwrap(), &some()));
    let nothing = Contents::unpack(&[]).unwrap();
    assert!(nothing.turn == 0 && nothing.entries.is_empty());
    let is_useful = |granule| {
        let mut granules = [Granule::default(); GRANULES];
        granules[5] = granule;
        PackedLeaf::pack(3, 1, &granules).is_useful()
    };
    let nothing = Granule::default();
    // A mark that does not count is no reason for a leaf, and no link is none.
    assert!(!is_useful(nothing) && !is_useful(Granule { first: 3, reach: 9, ..nothing }));
    assert!(!is_useful(Granule { link: -MOST_BALANCE, ..nothing }));
    assert!(is_useful(Granule { link: 1, ..nothing }) && is_useful(Granule { begins: 1, ..nothing }));
}

#[test]
fn what_was_used_longest_ago_makes_room() {
    let mut random = fastrand::Rng::with_seed(1);
    let entries = (0..MOST_FILES as u64 + 3).map(|nth| entry(nth, nth, 0..1, &mut random)).collect();
    let read = Contents::unpack(&Contents { turn: 2_000, entries }.pack()).unwrap();
    assert_eq!(read.entries.len(), MOST_FILES);
    assert!(read.entries.iter().all(|entry| entry.id.inode >= 3));
    // Each of these entries has a third of the bytes of a file.
    let large = |inode| entry(inode, inode, 0..MOST_BYTES as u64 / 3 / 150, &mut fastrand::Rng::with_seed(1));
    let mut entries: Vec<_> = (1..=4).map(large).collect();
    for (at, leaf) in entries[0].leaves.iter_mut().enumerate() {
        leaf.used = at as u64;
    }
    let of_one: usize = entries[0].leaves.iter().map(PackedLeaf::bytes).sum();
    assert!(of_one < MOST_BYTES / 3 + 9_000 && of_one * 4 > MOST_BYTES, "{of_one}");
    let bytes = Contents { turn: 5, entries }.pack();
    assert!(bytes.len() <= MOST_BYTES && bytes.len() > MOST_BYTES - 1_000, "{}", bytes.len());
    let read = Contents::unpack(&bytes).unwrap();
    let (first, last) = (&read.entries[0], read.entries.last().unwrap());
    assert_eq!((first.id.inode, first.leaves.len()), (4, large(4).leaves.len()));
    assert_eq!(last.id.inode, 1);
    // Entries of which no leaf has room are missing, and a large one leaves room for others.
    let huge = |inode| entry(inode, 1, 0..MOST_BYTES as u64 / 140, &mut fastrand::Rng::with_seed(1));
    let huge = huge(1);
    let entries = (1..=30).map(|inode| Entry { id: FileId { device: 1, inode }, ..huge.clone() }).collect();
    let several = Contents::unpack(&Contents { turn: 1, entries }.pack()).unwrap();
    let counts: Vec<_> = several.entries.iter().map(|entry| entry.leaves.len()).collect();
    assert!(counts.len() > 10 && counts.len() < 30 && counts.iter().all(|count| *count > 0), "{counts:?}");
    assert!(counts[0] > counts[1] && counts[1] > counts[2], "{counts:?}");
    // Of the last one the leaves are there that were used last.
    assert!(last.leaves.is_sorted_by_key(|leaf| leaf.number) && last.leaves[0].number > 0);
    assert_eq!(last.leaves.last().map(|leaf| leaf.number), large(1).leaves.last().map(|leaf| leaf.number));
}

#[test]
fn files_of_another_kind_or_version_are_told_apart() {
    let refused = |bytes: &[u8]| Contents::unpack(bytes).err();
    assert_eq!(refused(b"\x7fELF and more"), Some(Refused::Foreign));
    assert_eq!(refused(b"e"), Some(Refused::Damaged));
    assert_eq!(refused(b"x"), Some(Refused::Foreign));
    assert_eq!(refused(MAGIC), Some(Refused::Damaged));
    let mut bytes = some().pack();
    bytes[8] = 2;
    assert_eq!(refused(&bytes), Some(Refused::Version(2)));
    bytes[8] = 1;
    assert_eq!(refused(&bytes), None);
    bytes.resize(MOST_BYTES + 1, 0);
    assert_eq!(refused(&bytes), Some(Refused::Damaged));
}

#[test]
fn what_no_process_writes_is_refused() {
    let refused = |change: fn(&mut Contents)| {
        let mut contents = some();
        change(&mut contents);
        Contents::unpack(&contents.pack()).err()
    };
    assert_eq!(refused(|_| {}), None);
    let damaged = Some(Refused::Damaged);
    assert_eq!(refused(|contents| contents.entries[1].turn = u64::MAX), damaged, "turn");
    assert_eq!(refused(|contents| contents.entries[1].id = contents.entries[0].id), damaged, "twice");
    assert_eq!(refused(|contents| contents.entries[1].length = 0), damaged, "agreed on nothing");
    assert_eq!(refused(|contents| contents.turn = u64::MAX), damaged, "the last turn");
}

#[test]
fn damage_is_seen() {
    let bytes = some().pack();
    for len in 1..bytes.len() {
        assert!(Contents::unpack(&bytes[..len]).is_err(), "cut to {len}");
    }
    for at in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(Contents::unpack(&bytes).is_err(), "byte {at}");
    }
}

/// A forged file has a right checksum, too.
#[test]
fn what_somebody_else_has_written_does_no_harm() {
    let mut random = fastrand::Rng::with_seed(3);
    let bytes = some().pack();
    let (mut read, mut refused) = (0, 0);
    for _ in 0..5_000 {
        let mut bytes = bytes.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(CHECKED_FROM..bytes.len());
            let odd = [0, 1, 0x7f, 0x80, 0xff, random.u8(..)];
            bytes[at] = odd[random.usize(..odd.len())];
        }
        if random.u8(..) < 50 {
            bytes.truncate(random.usize(HEAD..=bytes.len()));
        }
        let sum = checksum(&bytes);
        bytes[16..24].copy_from_slice(&sum.to_le_bytes());
        match Contents::unpack(&bytes) {
            Err(why) => {
                assert_eq!(why, Refused::Damaged);
                refused += 1;
            }
            Ok(contents) => {
                read += 1;
                assert!(is_equal(&Contents::unpack(&bytes).unwrap(), &contents));
                // Others are loaded rarely, since that takes long.
                if read % 16 == 0 {
                    contents.entries.iter().for_each(|entry| do_no_harm(entry, &mut random));
                }
            }
        }
    }
    assert!(read > 250 && refused > 250, "{read} were read, {refused} refused");
}

/// What is to be read by such an entry is what can be read, and accesses are learned from as ever.
fn do_no_harm(entry: &Entry, random: &mut fastrand::Rng) {
    let learned = Learned::new(16 << 20, &LockStats::default());
    learned.load(INODE, entry);
    let pages = entry.stamp.size.div_ceil(PAGE_SIZE as u64).max(1);
    for _ in 0..20 {
        let (index, most) = (random.u64(..pages), 1 << random.u32(..12));
        let is_mapped = random.bool();
        if let Ok(chunk) = learned.to_read(1, (INODE, index), most, |_| is_mapped) {
            assert!(chunk.pages.start == index && chunk.pages.end > index, "{chunk:?}");
            assert!(chunk.pages.end - index <= most, "{chunk:?} of at most {most}");
        }
        if let Some(end) = learned.end(INODE, index, most) {
            assert!(end >= index && end - index <= most, "{end} from {index}, at most {most}");
        }
        let access = Reached { thread: 1, index, folio: index..index + 1, is_first: true, of_chunk: false };
        learned.touched(INODE, &access, |_| is_mapped);
        learned.unused(INODE, index..index + most);
    }
}
