//! What a service thread does for a request: the manager's verbs, and the answers as plain numbers.

use super::groups;
use super::report;
use super::request::{
    Answer, Change, Counted, Durable, Flush, MAPPED_BY_KERNEL, NO_ADDRESSES, NOT_ALONE, OPEN_FAILED, Op,
    RESIDENT_PAGES, Reply, Request, Ticket,
};
use super::{dump, rest, stderr, user};
use crate::base::reason::Reason;
use crate::base::state::{self, Process};
use crate::base::streams::Kind;
use crate::base::sys::{ADDRESS_END, PAGE};
use crate::rules::map::{MapArgs, place, prot};
use elbowroom::{
    Area, Errno, FileId, FileObject, Host, Manager, MapRequest, OpenError, Origin, Place, Prot, Remap,
    Sharing, Space, WriteTicket,
};
use elbowroom_store::open_briefly;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// How often a file is opened anew that was closed before it was mapped.
const MAP_ROUNDS: usize = 100;

/// A write that has begun, which [`Op::WriteBegin`] gives a ticket for.
struct Begun {
    object: Arc<FileObject>,
    ticket: WriteTicket,
}

/// Serves a request, and stores the reply. A panic ends the process; the panic hook has said what happened.
pub fn serve(process: &Process, manager: &Manager, space: &Space<Host>, request: &mut Request) {
    let op = request.op.clone();
    let resident = &mut request.resident;
    request.reply = manager.serve("elbowroom-serve", || perform(process, manager, space, op, resident));
}

fn perform(
    process: &Process,
    manager: &Manager,
    space: &Space<Host>,
    op: Op,
    resident: &mut [u8; RESIDENT_PAGES],
) -> Reply {
    let done = match op {
        Op::Map { args, id, tid, writable } => {
            return map(process, manager, space, &Wanted { args, id, tid, writable });
        }
        Op::MapMemory(args) => return at(map_object(space, &args, false, None)),
        Op::MapMemoryThere(args) => {
            if space.add_addresses(args.addr, args.rounded()).is_err() {
                return Err(NO_ADDRESSES);
            }
            return at(map_object(space, &args, false, None));
        }
        Op::Unmap(range) => space.unmap_ours(range.start, range.len()),
        Op::Protect(range, prot) => {
            return match space.protect(range.start, range.len(), prot) {
                // Private pages would become writable: the kernel's business.
                Err(Errno::OPNOTSUPP) => Ok(Answer::ByKernel),
                protected => protected.map(|()| Answer::Done).map_err(number),
            };
        }
        Op::Remap { old, new_len, how } => {
            return at(space.remap(old.start, old.len(), new_len, how));
        }
        Op::Cut { old, new_len } => return at(cut(space, old, new_len)),
        Op::Mapped(counted) => return Ok(Answer::At(mapped_bytes(space, counted))),
        Op::IsMapped(page) => match space.areas(page..page + PAGE).is_empty() {
            true => Err(Errno::FAULT),
            false => Ok(()),
        },
        // Locked memory is the kernel's, so nothing is refused for MS_INVALIDATE.
        Op::Sync(range, Durable::Yes) => space.sync(range.start, range.len(), true, false),
        Op::Sync(range, Durable::No) => space.sync_later(range.start, range.len(), false),
        Op::Advise(range, advice) => space.advise(range.start, range.len(), advice),
        Op::Resident(range) => {
            let pages = (range.len() / PAGE).min(RESIDENT_PAGES);
            space.resident(range.start, &mut resident[..pages])
        }
        Op::Unlock(range) => space.unlock(range.start, range.len()),
        Op::HandBack(range) => space.hand_back(range.start, range.len()),
        Op::HandBackFile(id) => space.give_file(id).map(|_| ()),
        Op::KernelMaps(id, writes) => space.give_if_stored_to(id, writes),
        Op::MakeRoom(range) => space.make_room(range.start, range.len()),
        Op::MakeRoomBelow(range) => space.make_room_below(range.end, range.len()),
        Op::HandBackShared => {
            let shared = space.give_shared();
            // The kernel copies private memory for the child.
            shared.and(space.give_private())
        }
        Op::ForkBegins(forker) => return rest::begin(manager, space, forker).map(Answer::Rests),
        Op::StreamOpens(id, kind) => give_to_stream(process, manager, space, id, kind),
        Op::WriteBegin(id, range, flush) => return write_begin(manager, id, range, flush),
        Op::WriteEnd { ticket, change } => {
            // SAFETY: a caller ends each write that began exactly once, with the ticket that it was given.
            let Begun { object, ticket } = *unsafe { ticket.take::<Begun>() };
            end_change(manager, &object, ticket, change);
            Ok(())
        }
        Op::Refresh(id, change) => {
            refresh(manager, id, change);
            Ok(())
        }
        Op::WriteBack(id, range) => match manager.find(id) {
            Some(object) => manager.write_back(&object, range),
            None => Ok(()),
        },
        Op::TakeError(id) => match manager.find(id).and_then(|object| object.take_error()) {
            Some(error) => Err(error),
            None => Ok(()),
        },
        Op::FlushAll => manager.flush_all(),
        Op::MakeDumpable { most_bytes, address } => {
            return Ok(Answer::Text(String::leak(dump::prepare(space, most_bytes, address))));
        }
        Op::Say(text) => {
            stderr::write(text.as_bytes());
            Ok(())
        }
        Op::StandardErrorChanged => {
            stderr::look();
            Ok(())
        }
        Op::Report => return Ok(Answer::Text(String::leak(report::collect(process, manager)))),
    };
    done.map(|()| Answer::Done).map_err(number)
}

fn mapped_bytes(space: &Space<Host>, counted: Counted) -> usize {
    let areas = space.areas(0..ADDRESS_END);
    let is_counted = |area: &&Area| {
        counted == Counted::All || area.sharing == Sharing::Private && area.prot.contains(Prot::WRITE)
    };
    areas.iter().filter(is_counted).map(|area| area.range.len()).sum()
}

fn at(mapped: Result<usize, Errno>) -> Reply {
    mapped.map(Answer::At).map_err(number)
}

/// Makes a mapping shorter where it is. The tail is free once the manager has unmapped it, and another
/// thread may map something there at once: so this is the last step. If a part of the tail is the kernel's
/// by then, nothing is changed.
fn cut(space: &Space<Host>, old: Range<usize>, new_len: usize) -> Result<usize, Errno> {
    let tail = old.start + new_len..old.end;
    // A remap to the same length changes nothing, but fails if the part that is kept is not one mapping.
    space.remap(old.start, new_len, new_len, Remap::InPlace)?;
    space.unmap_ours(tail.start, tail.len()).map(|()| old.start)
}

fn number(error: Errno) -> i32 {
    error.raw_os_error()
}

/// Gives the file back if a stream of this kind excludes what is mapped of it.
fn give_to_stream(
    process: &Process,
    manager: &Manager,
    space: &Space<Host>,
    id: FileId,
    kind: Kind,
) -> Result<(), Errno> {
    match manager.find(id) {
        Some(object) if kind.conflicts(object.is_open_for_writing()) => {
            process.count(Reason::Stdio);
            space.give_file(id).map(|_| ())
        }
        Some(_) | None => Ok(()),
    }
}

fn write_begin(manager: &Manager, id: FileId, range: Range<u64>, flush: Flush) -> Reply {
    let Some(object) = manager.find(id) else { return Ok(Answer::Done) };
    if flush == Flush::First {
        manager.write_back(&object, 0..u64::MAX).map_err(number)?;
    }
    let ticket = manager.write_begin(&object, range);
    Ok(Answer::Begun(Ticket::of(Box::new(Begun { object, ticket }))))
}

/// The pages beyond a new end go before write-back may run again: it would make the file longer.
fn end_change(manager: &Manager, object: &Arc<FileObject>, ticket: WriteTicket, change: Change) {
    let written = match change {
        Change::Written(written) => written,
        Change::Resized(changed) => {
            manager.resized(object, changed);
            0..0
        }
        Change::Moved(moved) => {
            manager.moved(object, moved.start);
            0..0
        }
    };
    manager.write_end(ticket, written);
}

/// Announces, late, a change that began before the file was managed, and ends it at once.
fn refresh(manager: &Manager, id: FileId, change: Change) {
    let Some(object) = manager.find(id) else { return };
    let (Change::Written(range) | Change::Resized(range) | Change::Moved(range)) = &change;
    let ticket = manager.write_begin(&object, range.clone());
    end_change(manager, &object, ticket, change);
}

/// A mapping that the manager is to make.
struct Wanted {
    args: MapArgs,
    id: FileId,
    tid: u32,
    writable: bool,
}

fn map(process: &Process, manager: &Manager, space: &Space<Host>, wanted: &Wanted) -> Reply {
    for _ in 0..MAP_ROUNDS {
        let (object, origin) = open(process, manager, wanted)?;
        match map_object(space, &wanted.args, wanted.writable, Some((object, origin))) {
            // The file had no mapping for a moment, and was closed.
            Err(Errno::STALE) => {}
            // The file goes to the kernel at this moment.
            Err(Errno::OPNOTSUPP) => return Err(MAPPED_BY_KERNEL),
            mapped => return at(mapped),
        }
    }
    Err(number(Errno::STALE))
}

/// The object of the file, and the open file description that it is mapped through.
fn open(
    process: &Process,
    manager: &Manager,
    wanted: &Wanted,
) -> Result<(Arc<FileObject>, Arc<Origin>), i32> {
    let id = wanted.id;
    // Before the file is managed, so that no read or write of it is missed afterwards.
    process.managed.add(id.device, id.inode);
    let (object, origin) =
        manager.open_through(wanted.tid, wanted.args.fd, wanted.writable).map_err(|error| match error {
            OpenError::Failed(_) => OPEN_FAILED,
            OpenError::NotAlone => {
                user::note(process, id);
                NOT_ALONE
            }
        })?;
    if object.id() != id {
        // Another thread has closed the descriptor and opened something else under its number: as if it had
        // come first.
        manager.close_unused(&object);
        return Err(OPEN_FAILED);
    }
    // Asked after the file can be found: a thread that has the kernel map it notes that first, and looks
    // for the file afterwards, so one of the two sees the other.
    fence(Ordering::SeqCst);
    if let Some(additions) = state::KERNEL_MAPPED.additions(id.device, id.inode) {
        let stored_to = wanted.writable || !object.is_leased();
        if !Looked::of(object.mark()).is_enough(additions, stored_to) {
            if still_mapped_by_kernel(id.inode, stored_to) {
                manager.close_unused(&object);
                return Err(MAPPED_BY_KERNEL);
            }
            object.set_mark(Looked { additions, stored_to }.mark());
        }
    }
    process.file_opened();
    Ok((object, origin))
}

/// Maps a file, through a description of it, or memory.
fn map_object(
    space: &Space<Host>,
    args: &MapArgs,
    may_write: bool,
    file: Option<(Arc<FileObject>, Arc<Origin>)>,
) -> Result<usize, Errno> {
    let (object, origin) = file.unzip();
    let nonblocking = args.flags & libc::MAP_NONBLOCK != 0;
    let place = place(args);
    match place {
        Place::Fixed(at) => space.take_back(at, args.rounded())?,
        Place::Hint(at) => {
            // Where there is no room, the mapping goes elsewhere.
            let _ = space.take_back_free(at, args.rounded());
        }
        Place::Anywhere | Place::FixedNoReplace(_) => {}
    }
    let request = MapRequest {
        place,
        len: args.rounded(),
        prot: prot(args.prot),
        sharing: if args.shared() == Some(true) { Sharing::Shared } else { Sharing::Private },
        offset: if object.is_some() { args.offset as u64 } else { 0 },
        object,
        may_write: may_write || args.shared() == Some(false),
        populate: args.flags & libc::MAP_POPULATE != 0 && !nonblocking,
        locked: false,
        no_reserve: args.flags & libc::MAP_NORESERVE != 0,
        group: groups::of(args, origin.as_deref()),
    };
    space.map_through(request, origin)
}

/// A search of the kernel's list of mappings (/proc/self/maps) that found no mapping of a file that
/// conflicts with ours. The record is kept with the file, so that the list is not made each time if a
/// program maps the file again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Looked {
    /// What [`state::KERNEL_MAPPED`] gave as the file's additions then.
    additions: u64,
    /// As for [`still_mapped_by_kernel`].
    stored_to: bool,
}

impl Looked {
    /// No search was made.
    const NEVER: Self = Self { additions: 0, stored_to: false };

    fn of(mark: u64) -> Self {
        Self { additions: mark >> 1, stored_to: mark & 1 != 0 }
    }

    fn mark(self) -> u64 {
        self.additions << 1 | u64::from(self.stored_to)
    }

    /// Whether a new search would find no conflict, either: the kernel was not asked to map the file since.
    /// Mappings that were unmapped since make no difference.
    fn is_enough(self, additions: u64, stored_to: bool) -> bool {
        self != Self::NEVER && self.additions == additions && (self.stored_to || !stored_to)
    }
}

/// Whether the kernel maps the file, and one of the two sides could store to it: then each would miss the
/// other's stores. Compares the inode number alone: the device that /proc shows is not always the one that
/// fstat(2) gives, and a wrong "yes" costs only this mapping. `stored_to`: our mapping could store to the
/// file, or the file may be open for writing, so that a mapping of the kernel's could get the right.
fn still_mapped_by_kernel(inode: u64, stored_to: bool) -> bool {
    let maps = open_briefly(|| std::fs::read_to_string("/proc/self/maps"));
    let Ok(maps) = maps else { return true };
    maps.lines().any(|line| conflicts(line, inode, stored_to))
}

fn conflicts(line: &str, inode: u64, writable: bool) -> bool {
    let mut fields = line.split_ascii_whitespace();
    let rights = fields.nth(1).unwrap_or_default().as_bytes();
    let same = fields.nth(2).and_then(|field| field.parse().ok()) == Some(inode);
    let stores = rights.get(3) == Some(&b's') && rights.get(1) == Some(&b'w');
    same && inode != 0 && (writable || stores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_that_conflict_are_found_in_the_kernels_list() {
        let line = "7f00-7f01 rw-s 00001000 fe:00 4711    /srv/data 4712";
        assert!(conflicts(line, 4711, false));
        assert!(!conflicts(line, 4712, true));
        let read_only = "7f00-7f01 r--s 00001000 fe:00 4711    /srv/data";
        assert!(!conflicts(read_only, 4711, false));
        assert!(conflicts(read_only, 4711, true));
        let private = "7f00-7f01 rw-p 00001000 fe:00 4711    /srv/data";
        assert!(!conflicts(private, 4711, false));
        assert!(conflicts(private, 4711, true), "it shows what is stored to the file");
        assert!(!conflicts("7f00-7f01 rw-p 0 00:00 0", 0, true));
    }

    #[test]
    fn a_look_is_enough_until_the_kernel_maps_the_file_again_or_more_is_wanted() {
        let looked = |stored_to| Looked::of(Looked { additions: 3, stored_to }.mark());
        assert!(looked(false).is_enough(3, false) && looked(true).is_enough(3, false));
        assert!(!looked(false).is_enough(3, true) && looked(true).is_enough(3, true));
        assert!(!looked(true).is_enough(4, false));
        assert!(!Looked::of(0).is_enough(0, false), "no look yet");
    }
}
