//! What is managed, and how a call is cut up: plain data in, a plan out. No system calls, no state.

pub mod advice;
pub mod map;
pub mod remap;
