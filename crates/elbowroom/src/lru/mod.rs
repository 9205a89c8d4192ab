//! The lists of folios that reclaim chooses from, three for each group and kind, and what is known of the
//! folios that reclaim evicted.
//!
//! ```text
//!   new --> inactive --(taken out of its window)--> standby --(clean, untouched)--> free
//!              ^   \--(a clean page, while hardly any on standby is touched)----------> free
//!              |                                       |
//!              |            touched again since        |
//!   active <---+---------------------------------------+
//!      |       ^
//!      +-------+ too many active, and not touched since the last look
//! ```
//! A folio waits in a batch of the thread that lists it, until the batch is full (`additions`). Moves are
//! lazy, as in a clock: a fault only sets a flag, and reclaim moves the folio when it meets it.

mod additions;
mod list;
mod lruvec;
mod lruvecs;
mod shadow;

pub(crate) use lruvec::{Batch, List, Lruvec, Next, Sizes, Taken};
pub(crate) use lruvecs::{Lruvecs, Refault};
