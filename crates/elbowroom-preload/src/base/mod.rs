//! The ground floor: raw system calls, what a process knows of itself, memory of our own, and reports.
//!
//! Nothing here knows the manager's verbs, or asks anything of a service thread.

pub mod allocator;
pub mod changes;
pub mod config;
pub mod executable;
pub mod ids;
pub mod lane;
pub mod own_thread;
pub mod real;
pub mod reason;
pub mod regions;
pub mod report;
pub mod reserve;
pub mod run;
pub mod said;
pub mod state;
pub mod stderr;
pub mod streams;
pub mod sys;
pub mod tree;
pub mod turns;
pub mod word_lock;
