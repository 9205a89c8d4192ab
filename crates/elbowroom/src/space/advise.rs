//! madvise.

use super::change::Pages;
use super::page_range;
use crate::core::Core;
use crate::vma::{Pattern, Sharing};
use elbowroom_machine::Errno;

/// Advice that concerns file mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Detect streams.
    Normal,
    /// Read single pages.
    Random,
    /// Read as much as is allowed at once.
    Sequential,
    /// Start reading now.
    WillNeed,
    /// Take the pages out of the window; what the file has is read again when touched.
    DontNeed,
    /// The pages will not be needed soon.
    Cold,
    /// Evict them.
    PageOut,
    /// Read them.
    PopulateRead,
    /// Read them, to be written.
    PopulateWrite,
    /// Free them in the file, too: they read as zeros.
    Remove,
}

impl Core {
    /// Acts on advice.
    ///
    /// # Errors
    /// ENOMEM if a part of the range is not mapped (the rest is done all the same); EINVAL for what file mappings cannot do; EACCES for
    /// Remove on a mapping without the right to write.
    pub(crate) fn advise(&self, addr: usize, len: usize, advice: Advice) -> Result<(), Errno> {
        if len == 0 {
            return Ok(());
        }
        let range = page_range(addr, len)?;
        let vmas = self.vmas.overlapping(&range);
        let mapped: usize =
            vmas.iter().map(|v| v.range.end.min(range.end) - v.range.start.max(range.start)).sum();
        let pieces: Vec<_> = vmas
            .iter()
            .map(|v| {
                let part = v.range.start.max(range.start)..v.range.end.min(range.end);
                (v.spec.clone(), v.page_at(part.start)..v.page_at(part.end))
            })
            .collect();
        drop(vmas);
        match advice {
            Advice::Normal => self.set_pattern(range.clone(), Pattern::Detect)?,
            Advice::Random => self.set_pattern(range.clone(), Pattern::Random)?,
            Advice::Sequential => self.set_pattern(range.clone(), Pattern::Sequential)?,
            Advice::WillNeed | Advice::PopulateRead | Advice::PopulateWrite => {
                pieces.iter().for_each(|(spec, pages)| self.will_need(&spec.object, pages.clone()));
            }
            Advice::DontNeed | Advice::Cold => {
                let change = self.begin_change(range.clone(), |_| Ok(Pages::Leave))?;
                self.undo_change(change);
            }
            Advice::PageOut => {
                for (spec, pages) in &pieces {
                    // What cannot be written now stays; its error is reported by msync.
                    let _ = self.write_back(&spec.object, pages.clone(), crate::writeback::Obstacle::Skip);
                    self.drop_clean(&spec.object, pages.clone());
                }
            }
            Advice::Remove => {
                for (spec, pages) in &pieces {
                    if spec.sharing != Sharing::Shared || !spec.may_write {
                        return Err(Errno::ACCESS);
                    }
                    let bytes = spec.object.bytes_of(pages.clone());
                    let ticket = self.write_begin(&spec.object, bytes.clone());
                    let punched = spec.object.file().punch_hole(bytes.clone());
                    if punched.is_ok() {
                        self.resized(&spec.object, bytes);
                    }
                    self.write_end(ticket, 0..0);
                    punched?;
                }
            }
        }
        if mapped == range.len() { Ok(()) } else { Err(Errno::NOMEM) }
    }

    fn set_pattern(&self, range: std::ops::Range<usize>, pattern: Pattern) -> Result<(), Errno> {
        let change = self.begin_change(range, |_| Ok(Pages::Stay))?;
        let new = change.parts.iter().map(|part| part.with(|spec| spec.pattern = pattern)).collect();
        self.finish_change(change, new, |layout, change| layout.release(&change.free));
        Ok(())
    }
}
