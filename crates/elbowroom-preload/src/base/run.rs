//! This process as one of those that `elbowroom run` has started.
//!
//! The table of the run is a file, whose path is among the options. A process maps the table before its
//! program runs, and never unmaps it; a program that is executed opens the file anew. docs/decisions/0033
//!
//! Synchronization: set once, by the constructor; then atomics of the table.

use crate::base::config::Options;
use crate::base::state;
use crate::base::sys;
use elbowroom::{Member, ProcessTree, RunTotals};
use elbowroom_store::open_briefly;
use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};

/// A process that cannot open the table has this part of the budget for itself, unless `--each` says more.
const PART_WITHOUT: u64 = 16;

static MEMBER: OnceLock<Arc<Member>> = OnceLock::new();
/// The table's file, for [`ends`], which may not allocate.
static PATH: OnceLock<CString> = OnceLock::new();
/// Why the table cannot be opened.
static LACK: OnceLock<String> = OnceLock::new();

/// Enters the run. Called by the constructor. A process that cannot has a budget of its own.
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

/// This process as one of its run, if it is one.
pub fn member() -> Option<&'static Arc<Member>> {
    MEMBER.get()
}

/// Why the table of the run cannot be opened, if it cannot.
pub fn lack() -> Option<&'static str> {
    LACK.get().map(String::as_str)
}

/// The run so far. Allocates nothing.
pub fn totals() -> Option<RunTotals> {
    member().map(|member| member.tree().totals())
}

/// The process is about to execute a program; [`came_back`] follows if it did not. Does nothing in a child
/// that shares its parent's memory.
pub fn about_to_exec() -> bool {
    let member = member().filter(|_| state::process().is_some_and(|process| process.is_home()));
    if let Some(member) = member {
        member.leave_memory();
    }
    member.is_some()
}

/// The program was not executed. `left`: what [`about_to_exec`] gave.
pub fn came_back(left: bool) {
    if let Some(member) = member().filter(|_| left) {
        member.came_back();
    }
}

/// The process ends. What it has is not the others' before the kernel has it again, which they notice. The
/// last process removes the file.
pub fn ends() {
    let Some(member) = member() else { return };
    if member.has() == 0 {
        member.leave();
    }
    if let Some(path) = PATH.get().filter(|_| member.is_last()) {
        // SAFETY: the path is a string. Mappings of the file stay whole.
        unsafe { sys::system_call(libc::SYS_unlink, path.as_ptr()) };
    }
}
