//! Faults against everything that changes mappings, under shuttle. Run with `.ci/models shuttle -p
//! elbowroom-shuttle --test spaces`; without `--cfg shuttle` there is nothing here. How a schedule that
//! failed is run again is said in the documentation of `elbowroom_shuttle`.
//!
//! Each scenario judges what its threads see by what was true for certain at some moment of the access. With
//! a bug planted (see .ci/mutants), the same runs must fail.
#![cfg(shuttle)]

mod all;
mod fork;
mod pairs;
mod pin;
mod processes;
mod protect;
mod reclaim;
mod remap;
mod swap;
mod truncate;
mod twice;
mod unmap;
