//! What the program's handles stand for.
//!
//! A handle is a number that is never used again, so one that was given up, or was never given, is an error
//! and nothing worse. Mappings are found by their addresses.
//!
//! Synchronization: one mutex, which is held for moments only, and by a thread that forks. The calls that are
//! under way are counted: the manager is stopped when there are none.

use crate::border::{call, invalid};
use elbowroom::{FileId, Place};
use elbowroom_house::budget::Budget;
use elbowroom_house::failure::{Failure, Kind};
use elbowroom_house::files::Opened;
use elbowroom_house::held::Held;
use elbowroom_house::house::House;
use elbowroom_house::kept::Kept;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An open file. The descriptor is in the program's table, where the program may close it.
pub struct File {
    /// The descriptor.
    pub fd: RawFd,
    /// The file that it was when it was opened.
    pub id: FileId,
    /// Flags of `er_open`.
    pub flags: u32,
}

impl File {
    /// The descriptor, if it still is this file's.
    ///
    /// # Errors
    /// EBADF: the program has closed it.
    pub fn fd(&self) -> Result<RawFd, Failure> {
        if Opened::look(self.fd).is_ok_and(|opened| opened.id == self.id) {
            return Ok(self.fd);
        }
        let text = format!("the program has closed descriptor {}, which was an open er_file", self.fd);
        Err(Failure { errno: libc::EBADF, ..invalid(text) })
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.fd().is_ok() {
            // SAFETY: the library has opened it.
            unsafe { libc::close(self.fd) };
        }
    }
}

#[derive(Default)]
struct Table {
    last: usize,
    manager: Option<(usize, &'static House)>,
    calls: usize,
    files: BTreeMap<usize, Arc<File>>,
    groups: BTreeMap<usize, Arc<Budget>>,
    mappings: BTreeMap<usize, Arc<Held>>,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

struct Locked(MutexGuard<'static, Option<Table>>);

impl Locked {
    fn new() -> Self {
        Self(TABLE.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn table(&mut self) -> &mut Table {
        self.0.get_or_insert_default()
    }
}

impl Table {
    /// A new handle: an odd number, so that it is no pointer of C.
    fn handle(&mut self) -> usize {
        self.last += 2;
        self.last | 1
    }

    fn house(&self) -> Result<&'static House, Failure> {
        self.manager
            .map(|(_, house)| house)
            .ok_or_else(|| invalid("there is no manager: call er_start first"))
    }
}

thread_local! {
    static FORKS: Kept<Locked> = const { Kept::new() };
}

unsafe extern "C" fn before_fork() {
    FORKS.with(|kept| kept.set(Locked::new()));
}

unsafe extern "C" fn after_fork_in_parent() {
    drop(FORKS.with(Kept::take));
}

unsafe extern "C" fn after_fork_in_child() {
    if let Some(mut locked) = FORKS.with(Kept::take) {
        let table = locked.table();
        // The other threads of the parent are not here.
        table.calls = 0;
        // The house of the child, or none if it could not be made.
        table.manager =
            table.manager.and_then(|(handle, _)| Some((handle, elbowroom_house::house::started()?)));
        if table.manager.is_none() {
            // Another manager, which the child may start, has other groups.
            table.groups.clear();
        }
    }
}

/// Registers what is done at forks when the library is loaded, before a thread can fork: what another thread
/// had begun to register at a fork would never be registered in the child.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = register;

/// Registers what is done at forks, once. libc calls hooks before a fork in the reverse order of
/// registration: the table is locked after the manager has come to rest.
pub extern "C" fn register() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if IS_DONE.swap(true, Ordering::AcqRel) {
        return;
    }
    // SAFETY: the library is never unloaded, so the functions stay.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), None) };
    elbowroom_house::fork::register();
    // SAFETY: as above. In the child, the table is unlocked when the manager was taken over.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
}

/// A call under way, which keeps the manager.
pub struct Call {
    /// The manager's.
    pub house: &'static House,
}

impl Call {
    fn begin(table: &mut Table) -> Result<Self, Failure> {
        let house = table.house()?;
        table.calls += 1;
        Ok(Self { house })
    }

    /// For a handle of the manager.
    pub fn of_manager(handle: usize) -> Result<Self, Failure> {
        let mut locked = Locked::new();
        let table = locked.table();
        match table.manager {
            Some((known, _)) if known == handle => Self::begin(table),
            _ => Err(invalid("this is no manager, or one that was stopped")),
        }
    }

    /// For the manager that runs; `None`: there is none.
    pub fn of_any() -> Option<Self> {
        Self::begin(Locked::new().table()).ok()
    }

    /// For a handle of a file.
    pub fn of_file(handle: usize) -> Result<(Self, Arc<File>), Failure> {
        let mut locked = Locked::new();
        let table = locked.table();
        let file = table.files.get(&handle).cloned();
        let file = file.ok_or_else(|| invalid("this is no open file, or one that was closed"))?;
        Ok((Self::begin(table)?, file))
    }

    /// For a handle of a group.
    pub fn of_group(handle: usize) -> Result<(Self, Arc<Budget>), Failure> {
        let mut locked = Locked::new();
        let table = locked.table();
        let group = table.groups.get(&handle).cloned();
        let group = group.ok_or_else(|| invalid("this is no group, or one that was removed"))?;
        Ok((Self::begin(table)?, group))
    }

    /// Enters a file; gives its handle.
    pub fn enter_file(&self, file: File) -> usize {
        let mut locked = Locked::new();
        let table = locked.table();
        let handle = table.handle();
        table.files.insert(handle, Arc::new(file));
        handle
    }

    /// Enters a group; gives its handle.
    pub fn enter_group(&self, group: Arc<Budget>) -> usize {
        let mut locked = Locked::new();
        let table = locked.table();
        let handle = table.handle();
        table.groups.insert(handle, group);
        handle
    }

    /// Enters a mapping.
    pub fn enter_mapping(&self, held: Held) {
        Locked::new().table().mappings.insert(held.start(), Arc::new(held));
    }

    /// Takes a file out. The last call that uses it closes it.
    pub fn take_file(&self, handle: usize) -> Option<Arc<File>> {
        Locked::new().table().files.remove(&handle)
    }

    /// Takes a group out.
    pub fn take_group(&self, handle: usize) -> Option<Arc<Budget>> {
        Locked::new().table().groups.remove(&handle)
    }

    /// Takes out the mapping that begins at an address. The last call that uses it unmaps it.
    ///
    /// # Errors
    /// EINVAL: there is none.
    pub fn take_mapping(&self, at: usize) -> Result<Arc<Held>, Failure> {
        let held = Locked::new().table().mappings.remove(&at);
        held.ok_or_else(|| {
            invalid(format!("no mapping begins at {at:#x}: er_map has not given this address"))
        })
    }

    /// Has `map` map a range at its place. If a mapping of a file has all of it already, it is replaced
    /// there.
    ///
    /// # Errors
    /// Those of `map`. EBUSY: calls that use the old mapping are under way.
    pub fn replacing(
        &self,
        range: Range<usize>,
        map: impl FnOnce(Place) -> Result<Held, Failure>,
    ) -> Result<Held, Failure> {
        let around = {
            let mut locked = Locked::new();
            let mappings = &mut locked.table().mappings;
            let last = mappings.range(..=range.start).next_back();
            let has_all = |held: &Held| held.is_of_file() && range.end <= held.start() + held.len();
            let found = last.filter(|(_, held)| has_all(held)).map(|(start, _)| *start);
            found.and_then(|start| mappings.remove(&start))
        };
        let Some(old) = around else { return map(Place::FixedNoReplace(range.start)) };
        let old = Arc::try_unwrap(old).map_err(|old| {
            Locked::new().table().mappings.insert(old.start(), old);
            Failure::new(Kind::State, "calls that use the mapping there are under way".to_owned())
        })?;
        match map(Place::Fixed(range.start)) {
            Ok(new) => {
                old.cut(range).into_iter().for_each(|part| self.enter_mapping(part));
                Ok(new)
            }
            Err(failure) => {
                self.enter_mapping(old);
                Err(failure)
            }
        }
    }

    /// The mapping that has all of a range.
    ///
    /// # Errors
    /// EINVAL: there is none.
    pub fn mapping(&self, at: usize, len: usize) -> Result<Arc<Held>, Failure> {
        let mut locked = Locked::new();
        let held = locked.table().mappings.range(..=at).next_back().map(|(_, held)| held.clone());
        let end = at.checked_add(len);
        held.filter(|held| end.is_some_and(|end| end - held.start() <= held.len())).ok_or_else(|| {
            invalid(format!("the {len} bytes at {at:#x} are not all in one mapping of er_map"))
        })
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut locked = Locked::new();
        let table = locked.table();
        // The count is 0 only if this thread has forked during its call, which no call does.
        table.calls = table.calls.saturating_sub(1);
    }
}

/// Enters the manager; gives its handle.
pub fn enter_manager(house: &'static House) -> usize {
    let mut locked = Locked::new();
    let table = locked.table();
    let handle = table.handle();
    table.manager = Some((handle, house));
    handle
}

/// Takes the manager out, with all files and groups.
///
/// # Errors
/// EINVAL: it is none. EBUSY: there are mappings, or other threads' calls.
pub fn take_manager(handle: usize) -> Result<&'static House, Failure> {
    let mut locked = Locked::new();
    let table = locked.table();
    let house = match table.manager {
        Some((known, house)) if known == handle => house,
        _ => return Err(invalid("this is no manager, or one that was stopped")),
    };
    let busy = |text: String| Err(Failure::new(Kind::State, text));
    if !table.mappings.is_empty() {
        return busy(format!("{} mappings exist: er_unmap them first", table.mappings.len()));
    }
    if table.calls > 0 {
        return busy(format!("{} calls of other threads are under way: wait for them", table.calls));
    }
    table.manager = None;
    let (files, groups) = (std::mem::take(&mut table.files), std::mem::take(&mut table.groups));
    // Groups are removed by jobs, which lock nothing of the table.
    drop(locked);
    drop(groups);
    drop(files);
    Ok(house)
}

/// [`call`] with the call of a manager.
pub fn with_manager(handle: usize, f: impl FnOnce(&Call) -> Result<(), Failure>) -> std::ffi::c_int {
    call(|| f(&Call::of_manager(handle)?))
}
