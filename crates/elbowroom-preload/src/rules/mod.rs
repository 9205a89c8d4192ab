//! Which mappings are managed, and who does an mremap: plain data in, a plan out. No system calls, no
//! state.

pub mod advice;
pub mod map;
pub mod remap;
