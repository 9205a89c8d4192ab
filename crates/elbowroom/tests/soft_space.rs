//! What only soft spaces can do: fork, pins, atomic words, batches, notifications, and spaces that come and
//! go.

mod spaces;
mod support;
