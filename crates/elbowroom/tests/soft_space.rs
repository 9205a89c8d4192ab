//! What only soft spaces can do: fork, pins, atomic words, batches, notifications, and spaces that come and
//! go.

// The name that the manager has in the workspace.
extern crate elbowroom_manager as elbowroom;

mod spaces;
mod support;
