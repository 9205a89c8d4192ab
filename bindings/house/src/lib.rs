//! The manager of a process, as the libraries for other languages run it (bindings/c, bindings/python,
//! bindings/rust).
//!
//! What is where: `house` has the manager and the threads that call it, `held` a mapping with its verbs and
//! how it is made, `part` what is asked for then, `budget` a memory group, `accounts` what was promised to
//! the mappings of all budgets, `files` reads, writes and changes of size of files, `fork` what the two
//! processes of a fork do, `kept` what a thread has over a fork, `mapped` the files that have mappings,
//! `file_table` the descriptors of the threads, `caller` how a thread of the program waits, `failure` errors,
//! `shared` a budget of several processes.
//!
//! The floors, arrows down only: `held` > `files` > `budget`, `fork` > `house` > `shared`, `accounts`,
//! `mapped`, `kept`, `file_table`, `part`, `caller` > `failure`. One arrow goes up: `house` has the manager
//! call `fork::note_late`.

mod accounts;
pub mod budget;
pub mod caller;
pub mod failure;
mod file_table;
pub mod files;
pub mod fork;
pub mod held;
pub mod house;
pub mod kept;
mod mapped;
mod part;
pub mod shared;
