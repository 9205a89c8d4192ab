//! The C library: `include/elbowroom.h`, which cbindgen makes of this crate, and `include/umap/umap.h`.
//!
//! What is where: `manager`, `files`, `mappings`, `groups`, `stats` and `umap` have the calls, `table` what
//! the program's handles stand for, `border` how errors and panics pass to C. The crate `elbowroom-house` has
//! the manager of the process and the threads that call it.
//!
//! The floors, arrows down only: `umap` > `manager`, `files`, `mappings`, `groups`, `stats` > `table` >
//! `border`.
#![allow(non_camel_case_types, reason = "names of C")]

mod border;
mod files;
mod groups;
mod manager;
mod mappings;
mod stats;
mod table;
mod umap;
