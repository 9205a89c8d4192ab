//! Which mappings are managed, to which group they belong, and who does an mremap: plain data in, a plan
//! out. No system calls, no state.

pub mod advice;
pub mod glob;
pub mod group;
pub mod map;
pub mod remap;
