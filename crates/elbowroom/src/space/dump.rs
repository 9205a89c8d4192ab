//! Prepares memory for a core dump by the kernel, or by a debugger: it can have only pages that are mapped,
//! since no thread of ours runs then, and a page that is out cannot come in. Without this, windows are left
//! out of core dumps (they are a terabyte each).

use super::Space;
use super::change::{BeginOptions, VmaPart};
use crate::object::FileObject;
use crate::platform::Host;
use crate::vma::VmaFlags;
use elbowroom_machine::PAGE_SHIFT;
use elbowroom_sync::Arc;
use elbowroom_sync::time::Instant;
use std::ops::Range;

/// How much memory is given to the kernel at once, in bytes: meanwhile there are two copies of it.
const STEP_BYTES: usize = 64 << 20;

/// How much of the private memory a core dump can have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dumpable {
    /// Bytes of private memory, and of private copies of files' pages, that were given to the kernel. A
    /// dump has all of them.
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
    /// Makes managed memory appear in a core dump. Up to `most_bytes` of private memory is given to the
    /// kernel, including pages that are out; so are files, with private copies of their pages, if
    /// `most_bytes` is not 0. Of memory that is not given, a dump has the pages that are in memory. After
    /// `until` nothing more is given. The mapping at the address `except` stays as it is: an access that
    /// failed there is to fail again.
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
                // The file was shown above: a dump has its pages that are in memory.
                done.missing_bytes += private.iter().map(|range| self.out_bytes(range)).sum::<u64>();
            }
        }
        done
    }

    /// Has core dumps include the pages of the range that are in memory, unless the program has excluded
    /// the mapping (MADV_DONTDUMP).
    fn show(&self, part: &VmaPart, range: Range<usize>) {
        if !part.spec.flags.contains(VmaFlags::DONT_DUMP) {
            // If this fails, the dump only lacks these pages.
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
