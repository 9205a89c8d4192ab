//! This process as a member of its run: of the processes that `elbowroom run` has started.
//!
//! The table of the run is a file, whose path is among the options. A process maps the table before its
//! program runs, and never unmaps it. After an exec, the new program opens the file anew.
//! docs/decisions/0033
//!
//! Synchronization: the constructor sets the statics once. The table has atomics and a lock of its own.

use crate::base::config::Options;
use crate::base::state;
use crate::base::sys;
use elbowroom::{LargestProcesses, Member, Others, ProcessTree, RunTotals};
use elbowroom_store::open_briefly;
use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};

/// A process that cannot open the table has a budget of its own: that of `--each`, or else the run's budget
/// divided by this.
const PART_WITHOUT: u64 = 16;

/// How often, at most, the last process looks whether children that are about to end have ended: once in a
/// millisecond. On a machine with more runnable threads than processors, a child took longer than 10 ms to
/// end.
const LOOKS: u32 = 200;

static MEMBER: OnceLock<Arc<Member>> = OnceLock::new();
/// The table's file, for [`ends`], which may not allocate.
static PATH: OnceLock<CString> = OnceLock::new();
/// Why the table could not be opened.
static LACK: OnceLock<String> = OnceLock::new();

/// Enters the run. Called by the constructor. A process that cannot open the table gets a budget of its
/// own.
pub fn enter(options: &mut Options) {
    let Some(path) = &options.tree else { return };
    let opened = open_briefly(|| OpenOptions::new().read(true).write(true).open(path))
        .map_err(|error| error.to_string())
        .and_then(|file| ProcessTree::open(&file).map_err(|error| error.to_string()));
    match opened {
        Ok(tree) => {
            let _ = MEMBER.set(Arc::new(Member::enter_program(Arc::new(tree))));
            if let Ok(path) = CString::new(path.as_os_str().as_bytes()) {
                let _ = PATH.set(path);
            }
        }
        Err(error) => {
            let _ = LACK.set(format!("{}: {error}", path.display()));
            let part = (options.memory_bytes / PART_WITHOUT).max(elbowroom::Config::MIN_MEMORY);
            options.memory_bytes = options.each_bytes.unwrap_or(part).min(options.memory_bytes);
        }
    }
}

/// This process as a member of its run; `None`: it is in no run.
pub fn member() -> Option<&'static Arc<Member>> {
    MEMBER.get()
}

/// Why the table of the run could not be opened; `None`: there is no table, or it was opened.
pub fn lack() -> Option<&'static str> {
    LACK.get().map(String::as_str)
}

/// The figures of the whole run so far. Allocates nothing.
pub fn totals() -> Option<RunTotals> {
    member().map(|member| RunTotals::seen_by(member))
}

/// The largest processes of the run so far. Allocates nothing.
pub fn largest() -> Option<LargestProcesses> {
    member().map(|member| LargestProcesses::of(member.tree()))
}

/// Called before an exec: gives this process's memory back to the run. If the exec fails, [`came_back`]
/// follows. Does nothing, and returns `false`, in a child that shares its parent's memory.
pub fn about_to_exec() -> bool {
    let member = member().filter(|_| state::process().is_some_and(|process| process.is_home()));
    if let Some(member) = member {
        member.leave_memory();
    }
    member.is_some()
}

/// Called after an exec that has failed: the process has its memory again. `left`: the result of
/// [`about_to_exec`].
pub fn came_back(left: bool) {
    if let Some(member) = member().filter(|_| left) {
        member.came_back();
    }
}

/// Called at the end of the process. The last process removes the file.
pub fn ends() {
    let Some(member) = member() else { return };
    member.ends();
    let Some(path) = PATH.get().filter(|_| member.others() != Others::Live) else { return };
    // A child that is about to end may have seen this process alive, and so have left the file.
    let mut looks = 0;
    while has_living_children() {
        if looks == LOOKS || member.others() != Others::End {
            return;
        }
        looks += 1;
        let pause = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        // SAFETY: the kernel reads the time, and stores nothing where it gets no address.
        unsafe { sys::system_call(libc::SYS_nanosleep, &raw const pause, std::ptr::null_mut::<u8>()) };
    }
    // SAFETY: the path is a string. Mappings of the file stay whole.
    unsafe { sys::system_call(libc::SYS_unlink, path.as_ptr()) };
}

/// Whether this process has children that are no zombies. A child that was just made, or that has just
/// executed a program, is not in the table yet, and will want the file.
fn has_living_children() -> bool {
    // Without WEXITED the kernel passes over zombies (do_wait): ECHILD, if there are no other children.
    let flags = libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    let (id, info, usage) = (0_usize, std::ptr::null_mut::<u8>(), std::ptr::null_mut::<u8>());
    // SAFETY: the kernel stores nothing where it gets no address.
    unsafe { sys::system_call(libc::SYS_waitid, libc::P_ALL as usize, id, info, flags, usage) == 0 }
}
