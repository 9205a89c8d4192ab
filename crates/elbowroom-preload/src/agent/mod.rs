//! Between the program's threads and the manager: the program's calls, the requests that they make of the
//! manager, and the service threads that serve these.
//!
//! A function here that a shim calls takes libc's arguments. It asks with one or two atomic loads whether the
//! call concerns the manager, and otherwise does what libc does.

pub mod advise;
pub mod aio;
pub mod attach;
pub mod bring;
pub mod cleanup;
pub mod coherence;
pub mod dump;
pub mod file_table;
pub mod flush;
pub mod groups;
pub mod lend;
pub mod map;
pub mod open;
pub mod ranges;
pub mod read;
pub mod receive;
pub mod remap;
pub mod report;
pub mod request;
pub mod resize;
pub mod rest;
pub mod seek;
pub mod serve;
pub mod service;
pub mod stderr;
pub mod stdio;
pub mod stdio_memory;
pub mod sync;
pub mod transfer;
pub mod unmap;
pub mod user;
pub mod user_mode;
pub mod write;
