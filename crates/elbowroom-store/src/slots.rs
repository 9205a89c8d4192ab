//! A slab of the requests that the kernel works on. A slot's index is the request's user data.

use crate::file::StoreFile;
use crate::request::Request;
use elbowroom_sync::Arc;
use io_uring::{opcode, squeue, types};
use std::os::fd::AsRawFd;

/// POSIX_FADV_DONTNEED.
const ADVICE_DONT_NEED: i32 = rustix::fs::Advice::DontNeed as i32;

/// The content of a slot.
pub(crate) enum Slot {
    /// A free slot, with the index of the next one.
    Free { next: Option<u32> },
    /// A read, with its extent and file.
    Read(Request),
    /// A request to drop the kernel's cache of a range of a file.
    DropCache { file: Arc<StoreFile>, offset: u64, len: u64 },
}

/// The slab. Free slots are used again before new ones are made, so there are as many as were ever in use
/// at a time.
#[derive(Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    /// The first free slot.
    free: Option<u32>,
}

impl Slots {
    pub(crate) fn insert(&mut self, slot: Slot) -> u32 {
        if let Some(index) = self.free
            && let Slot::Free { next } = self.slots[index as usize]
        {
            self.slots[index as usize] = slot;
            self.free = next;
            return index;
        }
        self.slots.push(slot);
        (self.slots.len() - 1) as u32
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }

    pub(crate) fn remove(&mut self, index: u32) -> Slot {
        let next = self.free.replace(index);
        std::mem::replace(&mut self.slots[index as usize], Slot::Free { next })
    }

    /// Forgets all slots without dropping their contents.
    pub(crate) fn leak(&mut self) {
        std::mem::forget(std::mem::take(self));
    }
}

impl Slot {
    /// The next submission queue entry for the slot's request. Its buffer lies inside the slot's extent and
    /// its descriptor belongs to the slot's file: it is valid as long as the slot is not emptied.
    pub(crate) fn entry(&mut self) -> Option<squeue::Entry> {
        match self {
            Slot::Free { .. } => None,
            Slot::DropCache { file, offset, len } => {
                let fd = types::Fd(file.as_fd().as_raw_fd());
                Some(opcode::Fadvise::new(fd, *len as i64, ADVICE_DONT_NEED).offset(*offset).build())
            }
            Slot::Read(request) => {
                let attempt = request.attempt();
                let fd = types::Fd(request.file.fd_of(attempt.route).as_raw_fd());
                let into = request.buf.home_ptr().wrapping_add(attempt.at);
                // An extent has at most 2 MiB.
                Some(opcode::Read::new(fd, into, attempt.asked as u32).offset(attempt.offset).build())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_used_again() {
        let temp = tempfile::NamedTempFile::new().unwrap();
        let file = Arc::new(StoreFile::open(temp.path(), false, None).unwrap());
        let mut slots = Slots::default();
        let insert =
            |slots: &mut Slots, offset| slots.insert(Slot::DropCache { file: file.clone(), offset, len: 1 });
        let offset = |slot| match slot {
            Slot::DropCache { offset, .. } => offset,
            _ => panic!("the slot holds something else"),
        };
        assert_eq!([0, 1, 2].map(|n| insert(&mut slots, n * 10)), [0, 1, 2]);
        assert_eq!([offset(slots.remove(1)), offset(slots.remove(0))], [10, 0]);
        assert!(slots.get_mut(1).entry().is_none());
        assert_eq!([3, 4, 5].map(|n| insert(&mut slots, n * 10)), [0, 1, 3]);
        assert_eq!([0, 1, 2, 3].map(|index| offset(slots.remove(index))), [30, 40, 20, 50]);
    }
}
