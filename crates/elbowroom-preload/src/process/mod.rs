//! What happens to the whole process: its first managed mapping, forks, programs that it executes, its ends,
//! its signals and its limits.

mod address_use;
pub mod by_number;
pub mod children;
pub mod core_dump;
pub mod end;
pub mod exec;
pub mod fork;
pub mod inherit;
pub mod limit_calls;
pub mod limits;
pub mod mask;
mod sanitizer;
pub mod signals;
pub mod start;
pub mod threads;
pub mod unmanaged;
