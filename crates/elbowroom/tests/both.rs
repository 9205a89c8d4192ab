//! What mappings do, the same on every machine: soft spaces, and real pointers by UFFDIO_MOVE and by
//! UFFDIO_COPY.
#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges, some of which have one")]

mod behaviour;
mod support;
