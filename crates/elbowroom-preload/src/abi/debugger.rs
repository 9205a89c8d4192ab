//! What a debugger calls in a stopped program.

use crate::process::core_dump;
use libc::c_int;

export! {
    elbowroom_core() -> c_int = core_dump::for_debugger;
}
