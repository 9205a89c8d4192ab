//! What mappings do, the same on every machine: soft spaces, and real pointers by UFFDIO_MOVE and by
//! UFFDIO_COPY.
#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges, some of which have one")]

// The name that the manager has in the workspace.
extern crate elbowroom_manager as elbowroom;

mod behaviour;
mod support;
