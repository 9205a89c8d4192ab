//! The page tables of all spaces: a radix tree of four levels for each, as the hardware's (Linux: pgd, pud,
//! pmd and pte levels).
//!
//! A space has 2^47 bytes; its root table uses half its links. A walk takes no lock. Its result is valid if
//! the leaf was still attached *after* the entry was read. So the link to the leaf is compared again, and
//! the root's link: upper tables are freed only with their whole space. Both carry a generation (2^31
//! attachments of one link until it comes round, all within one walk).
//!
//! Synchronization: links change under the `structure` lock (class `window`). The entries of a leaf are
//! installed and cleared under the leaf's own lock (class `page-table`), whose holder checks in `owner`
//! that the leaf is still attached at the address that was looked up.

use super::pte::Word;
use super::table::{ENTRIES, ENTRIES_SHIFT, EntryRef, Leaf, Link, Pool, UNUSED, Upper};
use super::{IDLE_TABLES, LEAF_TRIES, SPACE_BYTES, SoftConfig};
use crate::PAGE_SHIFT;
use elbowroom_sync::{LockClass, LockStats, Mutex, MutexGuard};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ops::Range;

/// The address bits above a space's own.
const ASID_SHIFT: u32 = 48;

/// The address bits below those that choose a leaf's link.
pub(super) const LEAF_SHIFT: u32 = PAGE_SHIFT + ENTRIES_SHIFT;

/// The levels above the leaves: the address bits below those that choose a link, from the root down.
const UPPER_SHIFTS: [u32; 3] = [LEAF_SHIFT + 2 * ENTRIES_SHIFT, LEAF_SHIFT + ENTRIES_SHIFT, LEAF_SHIFT];

/// Which link or entry of a table at this level an address chooses.
#[inline]
fn index(addr: usize, shift: u32) -> usize {
    (addr >> shift) % ENTRIES
}

/// Which entry of its leaf an address chooses.
#[inline]
pub(super) fn entry_index(addr: usize) -> usize {
    index(addr, PAGE_SHIFT)
}

/// Which space an address is in.
pub(super) fn asid_of(addr: usize) -> u16 {
    (addr >> ASID_SHIFT) as u16
}

/// The addresses of a space.
pub(super) fn space_range(asid: u16) -> Range<usize> {
    let start = usize::from(asid) << ASID_SHIFT;
    start..start + SPACE_BYTES
}

pub(super) struct Tree {
    /// The roots by asid; the first is never attached.
    roots: Box<[Link]>,
    uppers: Pool<Upper>,
    pub(super) leaves: Pool<Leaf>,
    structure: Mutex<Structure>,
    locks: LockStats,
}

/// What the structure lock guards, besides the links.
struct Structure {
    free_uppers: Vec<u32>,
    free_leaves: Vec<u32>,
    /// Leaves that were empty when they came here, oldest first; at most [`IDLE_TABLES`].
    idle: VecDeque<u32>,
}

/// What a walk found.
pub(super) enum Walk {
    /// The page is mapped: its entry, and the entry's word.
    Mapped(EntryRef, Word),
    /// No page is mapped.
    Nothing,
    /// The tables changed meanwhile: walk again.
    Changed,
}

impl Tree {
    pub(super) fn new(config: &SoftConfig, locks: &LockStats) -> Result<Self, Errno> {
        let structure = Structure { free_uppers: Vec::new(), free_leaves: Vec::new(), idle: VecDeque::new() };
        Ok(Self {
            roots: (0..=config.spaces).map(|_| Link::default()).collect(),
            uppers: Pool::new(config.upper_tables)?,
            leaves: Pool::new(config.tables)?,
            structure: locks.mutex(LockClass::Window, structure),
            locks: locks.clone(),
        })
    }

    /// Bytes in tables, those that wait to be used again too, and in the list of spaces.
    pub(super) fn bytes(&self) -> usize {
        self.uppers.made() * size_of::<Upper>()
            + self.leaves.made() * size_of::<Leaf>()
            + self.roots.len() * size_of::<Link>()
    }

    /// Whether `range` (not empty) is inside one space that exists.
    pub(super) fn covers(&self, range: &Range<usize>) -> bool {
        let space = space_range(asid_of(range.start));
        let inside = range.start < range.end && space.start <= range.start && range.end <= space.end;
        inside && self.root(range.start).is_some_and(|root| root.load().node().is_some())
    }

    /// The link to the root of the address's space, if it is an address that a space can have.
    #[inline]
    fn root(&self, addr: usize) -> Option<&Link> {
        let inside = addr % (1 << ASID_SHIFT) < SPACE_BYTES;
        self.roots.get(addr >> ASID_SHIFT).filter(|_| inside)
    }

    /// The link to the leaf of an address, if the tables above it are there.
    #[inline]
    fn leaf_link<'a>(&'a self, addr: usize, root: &'a Link) -> Option<&'a Link> {
        let mut link = root;
        for shift in UPPER_SHIFTS {
            link = &self.uppers.get(link.load().node()?)?.links[index(addr, shift)];
        }
        Some(link)
    }

    /// Looks an address up.
    #[inline]
    pub(super) fn walk(&self, addr: usize) -> Walk {
        let Some(root) = self.root(addr) else { return Walk::Nothing };
        let root_seen = root.load();
        let Some(link) = self.leaf_link(addr, root) else { return Walk::Nothing };
        let seen = link.load();
        let Some(leaf) = seen.node().and_then(|node| self.leaves.get(node)) else { return Walk::Nothing };
        let entry = &leaf.entries[entry_index(addr)];
        let word = entry.load();
        if !link.is_still(seen) || !root.is_still(root_seen) {
            Walk::Changed
        } else if word.is_present() {
            Walk::Mapped(self.leaves.entry_ref(entry), word)
        } else {
            Walk::Nothing
        }
    }

    /// The leaf of an address, locked; `None` if there is none.
    #[track_caller]
    pub(super) fn lock_leaf(&self, addr: usize) -> Option<LockedLeaf<'_>> {
        for _ in 0..LEAF_TRIES {
            let node = self.leaf_link(addr, self.root(addr)?)?.load().node()?;
            let leaf = self.leaves.get(node)?;
            let state = leaf.state.lock();
            if state.owner == addr >> LEAF_SHIFT {
                return Some(LockedLeaf { node, leaf, state });
            }
        }
        None
    }

    /// The leaf of an address, locked; made if there is none.
    ///
    /// # Errors
    /// ENOENT: no such space. ENOMEM: as many tables as there may be.
    pub(super) fn lock_or_make_leaf(&self, addr: usize) -> Result<LockedLeaf<'_>, Errno> {
        for _ in 0..LEAF_TRIES {
            if let Some(leaf) = self.lock_leaf(addr) {
                return Ok(leaf);
            }
            self.make_leaf(addr)?;
        }
        Err(Errno::AGAIN)
    }

    /// Makes and attaches the tables that are missing on the way to an address.
    fn make_leaf(&self, addr: usize) -> Result<(), Errno> {
        let mut structure = self.structure.lock();
        let root = self.root(addr).ok_or(Errno::NOENT)?;
        let mut node = root.load().node().ok_or(Errno::NOENT)?;
        for shift in [UPPER_SHIFTS[0], UPPER_SHIFTS[1]] {
            let link = &self.upper(node).links[index(addr, shift)];
            node = match link.load().node() {
                Some(node) => node,
                None => {
                    let made = self.take_upper(&mut structure)?;
                    link.attach(made);
                    made
                }
            };
        }
        let link = &self.upper(node).links[index(addr, UPPER_SHIFTS[2])];
        if link.load().node().is_none() {
            let made = self.take_leaf(&mut structure)?;
            let leaf = self.leaves.get(made).expect("it was just taken");
            leaf.state.lock().owner = addr >> LEAF_SHIFT;
            link.attach(made);
        }
        Ok(())
    }

    fn upper(&self, node: u32) -> &Upper {
        self.uppers.get(node).expect("links refer to tables that were made")
    }

    fn take_upper(&self, structure: &mut Structure) -> Result<u32, Errno> {
        structure.free_uppers.pop().or_else(|| self.uppers.make(Upper::new)).ok_or(Errno::NOMEM)
    }

    fn take_leaf(&self, structure: &mut Structure) -> Result<u32, Errno> {
        let made = structure.free_leaves.pop().or_else(|| self.leaves.make(|| Leaf::new(&self.locks)));
        if let Some(leaf) = made {
            return Ok(leaf);
        }
        while let Some(idle) = structure.idle.pop_front() {
            self.detach_if_empty(structure, idle);
        }
        structure.free_leaves.pop().ok_or(Errno::NOMEM)
    }

    /// Notes that a leaf has become empty. It stays attached for a while, since it may soon be used again;
    /// the leaf that has been in the list longest leaves it if the list is full, and is freed if it is
    /// still empty.
    fn note_idle(&self, node: u32) {
        let mut structure = self.structure.lock();
        structure.idle.push_back(node);
        if structure.idle.len() > IDLE_TABLES
            && let Some(oldest) = structure.idle.pop_front()
        {
            self.detach_if_empty(&mut structure, oldest);
        }
    }

    /// Takes a leaf that has left the idle list out of the tree, if it is empty; returns whether it is out
    /// of the tree.
    fn detach_if_empty(&self, structure: &mut Structure, node: u32) -> bool {
        let leaf = self.leaves.get(node).expect("it is on the list");
        let mut state = leaf.state.lock();
        state.idle = false;
        if state.owner == UNUSED || state.used > 0 {
            return state.owner == UNUSED;
        }
        let addr = state.owner << LEAF_SHIFT;
        let link = self.root(addr).and_then(|root| self.leaf_link(addr, root));
        link.expect("an attached leaf has a way to it").detach();
        state.owner = UNUSED;
        drop(state);
        structure.free_leaves.push(node);
        true
    }

    /// Makes a space.
    ///
    /// # Errors
    /// ENOMEM: as many spaces, or tables, as there may be.
    pub(super) fn create_space(&self) -> Result<u16, Errno> {
        let mut structure = self.structure.lock();
        let free = (1..self.roots.len()).find(|&asid| self.roots[asid].load().node().is_none());
        let asid = free.ok_or(Errno::NOMEM)?;
        let root = self.take_upper(&mut structure)?;
        self.roots[asid].attach(root);
        Ok(asid as u16)
    }

    /// Ends a space and frees its tables.
    ///
    /// # Errors
    /// ENOENT: there is none. EBUSY: a page is mapped in it; nothing has changed.
    pub(super) fn destroy_space(&self, asid: u16) -> Result<(), Errno> {
        let mut structure = self.structure.lock();
        let root = self.roots.get(usize::from(asid)).ok_or(Errno::NOENT)?;
        let node = root.load().node().ok_or(Errno::NOENT)?;
        self.detach_leaves(&mut structure, node, &UPPER_SHIFTS)?;
        // All leaves are out, and the lock keeps other threads from attaching new ones, so nothing can be
        // mapped here any more.
        root.detach();
        self.free_uppers(&mut structure, node, &UPPER_SHIFTS);
        Ok(())
    }

    /// Takes all leaves below a table out. EBUSY if one is not empty; the leaves before it are out by then,
    /// and are made again when needed.
    fn detach_leaves(&self, structure: &mut Structure, table: u32, levels: &[u32]) -> Result<(), Errno> {
        for below in self.upper(table).links.iter().filter_map(|link| link.load().node()) {
            if levels.len() > 1 {
                self.detach_leaves(structure, below, &levels[1..])?;
            } else {
                structure.idle.retain(|&node| node != below);
                if !self.detach_if_empty(structure, below) {
                    return Err(Errno::BUSY);
                }
            }
        }
        Ok(())
    }

    fn free_uppers(&self, structure: &mut Structure, table: u32, levels: &[u32]) {
        for link in &self.upper(table).links {
            if levels.len() > 1
                && let Some(below) = link.load().node()
            {
                self.free_uppers(structure, below, &levels[1..]);
                link.detach();
            }
        }
        structure.free_uppers.push(table);
    }
}

/// A leaf with its lock held.
pub(super) struct LockedLeaf<'a> {
    node: u32,
    pub(super) leaf: &'a Leaf,
    pub(super) state: MutexGuard<'a, super::table::LeafState>,
}

impl LockedLeaf<'_> {
    /// Unlocks the leaf; notes it as idle if it has become empty.
    pub(super) fn release(mut self, tree: &Tree) {
        let idle = self.state.used == 0 && !self.state.idle;
        self.state.idle |= idle;
        let node = self.node;
        drop(self);
        if idle {
            tree.note_idle(node);
        }
    }
}
