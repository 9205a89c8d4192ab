//! Where the bytes of anonymous memory are while they are not in frames of their own. Linux: mm/swapfile.c,
//! mm/zswap.c, mm/zsmalloc.c.
//!
//! `area` has the slots, `tier` decides where a page goes (pure), `classes` how compressed pages of a size
//! share frames (pure), `pool` keeps them, and `chunks` has its free frames (pure); `positions` has the free
//! pages of the swap file (pure), and `packed` tells how compressed pages share one (pure); `sizing` says how
//! large the pool should be (pure). The plan is docs/decisions/0023-anonymous-memory-and-swap.md, and that of
//! the file docs/decisions/0028-a-file-that-keeps-pages-compressed.md.

mod area;
mod chunks;
mod cipher;
mod classes;
mod outs;
mod packed;
mod pool;
mod pool_room;
mod positions;
mod quota;
mod sizing;
mod tier;

#[cfg(any(debug_assertions, shuttle))]
pub use area::groups_of_slots;
pub use area::{Again, CameIn, NotLoaded, Oldest, OutPage, Released, Short, Source, Swap};
pub use cipher::Cipher;
pub use classes::LARGEST;
pub use packed::{Packer, follow};
pub use quota::Quota;
pub use sizing::Back;
pub use tier::{Compressor, Placement, Room, is_zero};
