//! How a mapping is made: by the manager, or by the kernel.
//!
//! A file is the manager's or the kernel's, never both, since the bytes in their two caches would differ
//! (docs/decisions/0015-one-owner.md). If the kernel must map a file that is managed, the file goes to the
//! kernel first, with all of its mappings, at the same addresses. While the kernel maps a file in this
//! process, for whatever, all further mappings of it are the kernel's, too.

use crate::budget::{Budget, Promise, check_manager};
use crate::caller::Caller;
use crate::failure::{Failure, Kind};
use crate::files::Opened;
use crate::fork::is_child;
use crate::held::Held;
use crate::house::{self, House};
use crate::mapped::{Mapped, is_kernels};
use crate::part::{FilePart, Mode, Opening, Wishes};
use elbowroom::{Errno, FileId, MapRequest, OpenError, Place, Prot, Sharing};
use elbowroom_machine::PAGE_SIZE;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// How often a file is opened anew that was closed between opening and mapping it.
const STALE_ROUNDS: usize = 16;

/// What came of an attempt to have the manager map a file.
enum Attempt {
    Managed(Held),
    /// The kernel has to map it, for this reason.
    Kernels(String),
}

impl Held {
    /// Maps a part of a file. In the second place is why the manager does not manage it, if so.
    ///
    /// # Errors
    /// EACCES: the descriptor does not permit it. EOPNOTSUPP: the kernel would have to map it. ENOTSUP:
    /// [`check_manager`]. What the manager and the kernel say.
    pub fn of_file<C: Caller>(
        caller: C,
        house: &'static House,
        part: FilePart,
        budget: Option<&Arc<Budget>>,
    ) -> Result<(Self, Option<String>), C::Error> {
        let failed = |error: io::Error| caller.error(Failure::of_io(&error, "cannot map the file"));
        let opened = check(&part).map_err(failed)?;
        if !opened.is_regular {
            return Err(failed(io::Error::from(Errno::NODEV)));
        }
        check_manager(budget.map(Arc::as_ref)).map_err(|failure| caller.error(failure))?;
        let id = opened.id;
        // SAFETY: a system call without arguments.
        let tid = unsafe { libc::gettid() } as u32;
        let reason = match kernels_reason(id) {
            Some(reason) => reason,
            None => {
                let budget = budget.cloned();
                let counted = Mapped::new(id, false);
                let mapped =
                    house.ask(caller, move |house| by_manager(house, tid, &part, budget, counted))?;
                match mapped.map_err(|errno| caller.error(Failure::of(errno, "cannot map the file")))? {
                    Attempt::Managed(held) => {
                        // Another thread may have had the kernel map the file meanwhile.
                        let reason = kernels_reason(id);
                        if reason.is_some() {
                            give(caller, house, id)?;
                        }
                        return Ok((held, reason));
                    }
                    Attempt::Kernels(reason) => reason,
                }
            }
        };
        if !part.or_kernel {
            let text = format!("the file cannot be managed: {reason}");
            let failure = Failure { errno: libc::EOPNOTSUPP, ..Failure::new(Kind::State, text) };
            return Err(caller.error(failure));
        }
        Ok((by_kernel(caller, house, &part, &opened)?, Some(reason)))
    }

    /// Has the kernel map a part of an open file, of whatever kind. If the file is managed, it goes to the
    /// kernel before.
    ///
    /// # Errors
    /// EACCES: the descriptor does not permit it. What the manager and the kernel say.
    pub fn of_kernel<C: Caller>(caller: C, house: &'static House, part: &FilePart) -> Result<Self, C::Error> {
        let opened = check(part);
        let opened = opened.map_err(|error| caller.error(Failure::of_io(&error, "cannot map the file")))?;
        by_kernel(caller, house, part, &opened)
    }

    /// Maps anonymous memory, of zeros.
    ///
    /// # Errors
    /// ENOMEM: the budget does not have so much, or there are no addresses for it. ENOTSUP:
    /// [`check_manager`].
    pub fn of_memory<C: Caller>(
        caller: C,
        house: &'static House,
        len: usize,
        place: Place,
        wishes: Wishes,
        budget: Option<&Arc<Budget>>,
    ) -> Result<Self, C::Error> {
        let too_large = || Failure::of(Errno::NOMEM, "cannot map memory");
        let bytes = len.checked_next_multiple_of(PAGE_SIZE).ok_or_else(|| caller.error(too_large()))? as u64;
        check_manager(budget.map(Arc::as_ref)).map_err(|failure| caller.error(failure))?;
        let promise = (!wishes.no_reserve).then(|| Promise::of(house, bytes, budget)).transpose();
        let promise = promise.map_err(|failure| caller.error(failure))?;
        let group = budget.map(|budget| budget.id());
        let budget = budget.cloned();
        let unmapped = Self { start: 0, len: 0, promise, budget, file: None, has_stores: true };
        let mapped = house.ask(caller, move |house| {
            let request = MapRequest {
                place,
                len,
                prot: Prot::READ.union(Prot::WRITE),
                may_write: true,
                sharing: Sharing::Private,
                object: None,
                offset: 0,
                populate: wishes.populate,
                locked: false,
                no_reserve: wishes.no_reserve,
                group,
            };
            have_addresses(house, place, len)?;
            let start = house.space.map(request)?;
            let mut held = unmapped;
            (held.start, held.len) = (start, len);
            Ok(held)
        })?;
        mapped.map_err(|errno: Errno| caller.error(Failure::of(errno, "cannot map memory")))
    }
}

/// Makes a fixed place a place of the manager's.
fn have_addresses(house: &House, place: Place, len: usize) -> Result<(), Errno> {
    match place {
        Place::Anywhere | Place::Hint(_) => Ok(()),
        Place::Fixed(at) | Place::FixedNoReplace(at) if house.manager.windows().covers(at, len.max(1)) => {
            Ok(())
        }
        Place::Fixed(at) | Place::FixedNoReplace(at) => house.space.add_addresses(at, len),
    }
}

/// Checks what mmap(2) would check of rights.
fn check(part: &FilePart) -> io::Result<Opened> {
    let opened = Opened::look(part.fd)?;
    let permitted = match part.mode {
        Mode::Write => opened.is_for_both(),
        Mode::Read | Mode::Copy => opened.is_for_loads(),
    };
    if permitted { Ok(opened) } else { Err(io::Error::from(Errno::ACCESS)) }
}

/// Why the kernel maps all further parts of a file, if so.
fn kernels_reason(id: FileId) -> Option<String> {
    if is_child() {
        let fork = house::words().fork;
        Some(format!("this process was forked from one that has managed memory: {fork}"))
    } else if is_kernels(id) {
        let text = "the kernel maps the file in this process already, as long as other mappings of it exist";
        Some(text.to_owned())
    } else {
        None
    }
}

/// Gives a file to the kernel, with all of its mappings.
fn give<C: Caller>(caller: C, house: &'static House, id: FileId) -> Result<(), C::Error> {
    let given = house.ask(caller, move |house| house.space.give_file(id))?;
    given.map(drop).map_err(|errno| caller.error(Failure::of(errno, "cannot give the file to the kernel")))
}

fn by_manager(
    house: &House,
    tid: u32,
    part: &FilePart,
    budget: Option<Arc<Budget>>,
    counted: Mapped,
) -> Result<Attempt, Errno> {
    let mut counted = Some(counted);
    let mut attempt = Attempt::Kernels("no way to open the file is asked for".to_owned());
    for opening in part.openings {
        attempt = by_opening(house, tid, part, *opening, budget.as_ref(), &mut counted)?;
        if let Attempt::Managed(_) = attempt {
            break;
        }
    }
    Ok(attempt)
}

fn by_opening(
    house: &House,
    tid: u32,
    part: &FilePart,
    opening: Opening,
    budget: Option<&Arc<Budget>>,
    counted: &mut Option<Mapped>,
) -> Result<Attempt, Errno> {
    let has_stores = opening.has_stores();
    let path = format!("/proc/self/task/{tid}/fd/{}", part.fd);
    for _ in 0..STALE_ROUNDS {
        let opened = match opening {
            Opening::Loads | Opening::Stores => {
                let opened = house.manager.open(Path::new(&path), has_stores);
                opened.map(|object| (object, None)).map_err(OpenError::from)
            }
            Opening::LoadsAlone | Opening::StoresAlone => {
                let opened = house.manager.open_through(tid, part.fd, has_stores);
                opened.map(|(object, origin)| (object, Some(origin)))
            }
        };
        let kernels = |reason: &str| Ok(Attempt::Kernels(reason.to_owned()));
        let (object, origin) = match opened {
            Ok(opened) => opened,
            Err(OpenError::NotAlone) => {
                let trust = house::words().trust;
                return Ok(Attempt::Kernels(format!(
                    "another process uses the file, or it cannot be known whether one does (that takes \
                     CAP_SYS_ADMIN): {trust}"
                )));
            }
            // The descriptor permits what opening the file anew does not.
            Err(OpenError::Failed(Errno::ACCESS | Errno::PERM)) => {
                return kernels("the file may not be opened again by this process");
            }
            Err(OpenError::Failed(errno)) => return Err(errno),
        };
        // Another thread may have closed the descriptor, and opened another file under its number.
        if counted.as_ref().is_none_or(|counted| counted.id() != object.id()) {
            house.manager.close_unused(&object);
            return Err(Errno::BADF);
        }
        let writes = part.prot & libc::PROT_WRITE != 0;
        let request = MapRequest {
            place: part.place,
            len: part.len,
            prot: if writes { Prot::READ.union(Prot::WRITE) } else { Prot::READ },
            may_write: part.mode != Mode::Read || has_stores,
            sharing: part.mode.sharing(),
            object: Some(object.clone()),
            offset: part.offset,
            populate: part.wishes.populate,
            locked: false,
            no_reserve: part.wishes.no_reserve,
            group: budget.map(|budget| budget.id()),
        };
        let mapped = have_addresses(house, part.place, part.len);
        match mapped.and_then(|()| house.space.map_through(request, origin)) {
            Ok(start) => {
                let (len, budget, file) = (part.len, budget.cloned(), counted.take());
                return Ok(Attempt::Managed(Held { start, len, promise: None, budget, file, has_stores }));
            }
            Err(Errno::STALE) => {}
            Err(errno) => {
                house.manager.close_unused(&object);
                return match errno {
                    Errno::OPNOTSUPP => kernels("the file was given to the kernel before"),
                    errno => Err(errno),
                };
            }
        }
    }
    Err(Errno::STALE)
}

fn by_kernel<C: Caller>(
    caller: C,
    house: &'static House,
    part: &FilePart,
    opened: &Opened,
) -> Result<Held, C::Error> {
    let id = opened.id;
    // Entered before the file is given up, so that no other thread has the manager map it meanwhile.
    let counted = Mapped::new(id, true);
    give(caller, house, id)?;
    let mapped = map_in_kernel(part);
    let start = mapped.map_err(|error| caller.error(Failure::of_io(&error, "cannot map the file")))?;
    let has_stores = part.mode != Mode::Read || opened.is_for_both();
    Ok(Held { start, len: part.len, promise: None, budget: None, file: Some(counted), has_stores })
}

fn map_in_kernel(part: &FilePart) -> io::Result<usize> {
    let (at, mut flags) = match part.place {
        Place::Anywhere => (0, 0),
        Place::Hint(at) => (at, 0),
        // The manager's own addresses are not the kernel's to map.
        Place::Fixed(at) | Place::FixedNoReplace(at) => (at, libc::MAP_FIXED_NOREPLACE),
    };
    flags |= if part.mode == Mode::Copy { libc::MAP_PRIVATE } else { libc::MAP_SHARED };
    if part.wishes.populate {
        flags |= libc::MAP_POPULATE;
    }
    if part.wishes.no_reserve {
        flags |= libc::MAP_NORESERVE;
    }
    let (len, prot, offset) = (part.len, part.prot, part.offset as libc::off_t);
    // SAFETY: a new mapping, which replaces none.
    let at = unsafe { libc::mmap(at as *mut _, len, prot, flags, part.fd, offset) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at as usize) }
}
