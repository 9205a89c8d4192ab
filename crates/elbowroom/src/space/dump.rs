//! What the kernel reads for a core dump, or a debugger for its own: pages that are there while no thread of
//! ours runs. Windows are left out of core dumps as they are (a terabyte each), and a page that is out cannot
//! come in then.

use super::Space;
use super::change::{BeginOptions, VmaPart};
use crate::object::FileObject;
use crate::platform::Host;
use crate::vma::VmaFlags;
use elbowroom_machine::PAGE_SHIFT;
use elbowroom_sync::Arc;
use elbowroom_sync::time::Instant;
use std::ops::Range;

/// So much memory goes to the kernel at once, in bytes: both copies of it are there meanwhile.
const STEP_BYTES: usize = 64 << 20;

/// How much of what is managed a core dump can have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dumpable {
    /// Bytes of private memory that went to the kernel, private copies of files' pages with them. A dump has
    /// all of them.
    pub given_bytes: u64,
    /// Bytes of such memory that are out, and that a dump does not have.
    pub missing_bytes: u64,
}

/// A file that is mapped.
struct Mapped {
    object: Arc<FileObject>,
    /// Its private mappings.
    private: Vec<Range<usize>>,
    /// Whether one of its mappings is to stay as it is.
    stays: bool,
}

impl Space<Host> {
    /// Has a core dump find what is managed. As much private memory as `most_bytes` goes to the kernel, with
    /// what is out of it, and so do files, with private copies of their pages, if `most_bytes` is not 0. Of
    /// what stays, a dump has what is in memory. Nothing begins after `until`. The mapping at the address
    /// `except` stays as it is: an access that failed there is to fail again.
    pub fn make_dumpable(&self, most_bytes: u64, until: Instant, except: Option<usize>) -> Dumpable {
        let mut done = Dumpable::default();
        let stays = |part: &VmaPart| except.is_some_and(|address| part.range.contains(&address));
        let fits = |given: u64, bytes: u64| given + bytes <= most_bytes && Instant::now() < until;
        let mut files: Vec<Mapped> = Vec::new();
        for part in self.parts(&self.everything()) {
            if let Some(object) = part.spec.object.as_deref() {
                self.show(&part, part.range.clone());
                let known = files.iter().position(|file| Arc::ptr_eq(&file.object, object));
                let nth = known.unwrap_or_else(|| {
                    files.push(Mapped { object: object.clone(), private: Vec::new(), stays: false });
                    files.len() - 1
                });
                files[nth].stays |= stays(&part);
                if part.spec.is_private() {
                    files[nth].private.push(part.range.clone());
                }
                continue;
            }
            let mut start = part.range.start;
            while start < part.range.end {
                let range = start..part.range.end.min(start.saturating_add(STEP_BYTES));
                start = range.end;
                let bytes = self.owned_bytes(&range);
                if bytes == 0 {
                    continue;
                }
                let goes = !stays(&part) && fits(done.given_bytes, bytes);
                if goes && self.give_memory(range.clone(), BeginOptions::default()).is_ok() {
                    done.given_bytes += bytes;
                } else {
                    self.show(&part, range.clone());
                    done.missing_bytes += self.out_bytes(&range);
                }
            }
        }
        for Mapped { object, private, stays } in files {
            let bytes: u64 = private.iter().map(|range| self.owned_bytes(range)).sum();
            let goes = most_bytes > 0 && !stays && fits(done.given_bytes, bytes);
            if goes && self.give_object(&object).is_ok() {
                done.given_bytes += bytes;
            } else {
                // A dump has what is in memory of it.
                done.missing_bytes += private.iter().map(|range| self.out_bytes(range)).sum::<u64>();
            }
        }
        done
    }

    /// A dump is to have what is in memory of the range, unless the program does not want that.
    fn show(&self, part: &VmaPart, range: Range<usize>) {
        if !part.spec.flags.contains(VmaFlags::DONT_DUMP) {
            // Without it less is in the dump.
            let _ = self.core.mmu.show_in_dumps(range);
        }
    }

    /// How many bytes of private memory are out in the range.
    fn out_bytes(&self, range: &Range<usize>) -> u64 {
        (self.mm.anon.out_in(pages(range)).len() as u64) << PAGE_SHIFT
    }

    /// How many bytes of private memory there are in the range, in memory or out.
    fn owned_bytes(&self, range: &Range<usize>) -> u64 {
        let pages = pages(range);
        let within =
            |owned: Range<u64>| owned.end.min(pages.end).saturating_sub(owned.start.max(pages.start));
        self.mm.anon.owned_in(pages.clone()).map(within).sum::<u64>() << PAGE_SHIFT
    }
}

fn pages(range: &Range<usize>) -> Range<u64> {
    (range.start >> PAGE_SHIFT) as u64..(range.end >> PAGE_SHIFT) as u64
}
