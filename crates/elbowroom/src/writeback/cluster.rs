//! Writing several dirty folios together. Linux: `write_cache_pages`, and the bios that file systems make of
//! what it finds.
//!
//! What is dirty of folios that follow each other in the file goes to the device in as few writes as
//! possible, of up to [`CLUSTER_PAGES`], in the order of the file. Where there are gaps, up to
//! [`SCATTERED_WRITES`] writes are under way at the same time: most devices take many at once in the time
//! of one, and a thread that calls msync for pages all over a file waits for all of them.
//!
//! All folios of a cluster are locked meanwhile. Only the first one's lock is waited for: a thread that
//! waits for a folio with others locked could wait for a thread that waits for those.

use super::Writeback;
use super::end::Tail;
use crate::config::CLUSTER_PAGES;
use crate::object::FileObject;
use crate::page::{Flag, Folio, LockedFolio};
use crate::platform::Platform;
use crate::stats::Event;
use elbowroom_machine::{Errno, Extent, Membership, PAGE_SHIFT, PageSet};
use elbowroom_store::{SCATTERED_WRITES, WriteRing};
use elbowroom_sync::Arc;
use elbowroom_sync::time::Instant;
use std::ops::Range;

/// Dirty pages that are neighbours in one folio.
struct Run {
    /// Which folio of the cluster.
    folio: usize,
    pages: Range<usize>,
    /// Bytes of the folio, and where they go in the file.
    bytes: Range<usize>,
    offset: u64,
}

impl<P: Platform> Writeback<P> {
    /// Writes the first of `folios`, which are dirty, and some that follow it in the file, as far as they
    /// can be locked: without a gap, or with a few gaps where several writes may be under way at once.
    /// Returns how many folios it has dealt with, at least one, and the first error; EBUSY: the first folio
    /// met an obstacle.
    pub(super) fn write_cluster(
        &self,
        object: &Arc<FileObject>,
        folios: &[Arc<Folio>],
    ) -> (usize, Result<(), Errno>) {
        let mut taken: Vec<LockedFolio<'_>> = Vec::new();
        let mut done = 0;
        let mut pages = 0;
        // One folio alone needs no ring.
        let mut ring = if folios.len() > 1 { self.rings.take() } else { None };
        let mut gaps_left = if ring.is_some() { SCATTERED_WRITES - 1 } else { 0 };
        for folio in folios {
            let follows = taken.last().is_none_or(|last| last.range().end == folio.index);
            if done > 0 && (!follows && gaps_left == 0 || pages + folio.pages() > CLUSTER_PAGES) {
                break;
            }
            gaps_left -= usize::from(done > 0 && !follows);
            let mut locked = if done == 0 {
                self.lock(folio)
            } else {
                match LockedFolio::try_lock(folio.clone(), &self.waits, self.handlers()) {
                    Ok(locked) => locked,
                    Err(_) => break,
                }
            };
            match self.take_to_write(object, &mut locked) {
                Ok(true) => {
                    pages += folio.pages();
                    taken.push(locked);
                }
                Ok(false) => {}
                Err(error) if done == 0 => {
                    self.rings.give_back(ring);
                    return (1, Err(error));
                }
                // This folio is the first of the next cluster.
                Err(_) => break,
            }
            done += 1;
        }
        let result = self.write_taken(object, &mut taken, ring.as_mut());
        self.rings.give_back(ring);
        (done, result)
    }

    /// Writes the dirty pages of locked folios, in the order of the file, whose pages are all home.
    fn write_taken(
        &self,
        object: &Arc<FileObject>,
        taken: &mut Vec<LockedFolio<'_>>,
        ring: Option<&mut WriteRing>,
    ) -> Result<(), Errno> {
        if taken.is_empty() {
            return Ok(());
        }
        let begin = Instant::now();
        taken.iter().for_each(|folio| folio.begin_io(Flag::Writeback));
        // No store can happen any more, so the size that is asked for now is not older than any store. A
        // file that cannot be asked keeps the size it had.
        let _ = object.refresh_size();
        // A write call of the program that is under way may have made the file longer just now.
        let tail = if object.writers.any() { Tail::OfTheFile } else { Tail::Stored };
        for folio in taken.iter_mut() {
            self.cut_at_end(object, folio, tail);
        }
        let mut failed: Vec<PageSet> = taken.iter().map(|folio| folio.body().dirty.pages().clone()).collect();
        let mut result = Ok(());
        let runs = runs_of(object, taken, &failed);
        let together: Vec<&[Run]> =
            runs.chunk_by(|run, next| run.offset + run.bytes.len() as u64 == next.offset).collect();
        let done = match ring {
            Some(ring) if together.len() > 1 => self.write_at_once(object, taken, &together, ring),
            _ => vec![false; together.len()],
        };
        for (runs, done) in together.into_iter().zip(done) {
            if done {
                runs.iter().for_each(|run| failed[run.folio].remove(run.pages.clone()));
            } else {
                result = result.and(self.write_together(object, taken, runs, &mut failed));
            }
        }
        let mut written = 0;
        for (folio, failed) in taken.iter_mut().zip(failed) {
            written += self.end_write(object, folio, failed);
            folio.end_io(Flag::Writeback);
        }
        // An error is reported even if a second try has succeeded.
        if let Err(e) = result {
            self.counters.add(Event::WriteErrors, 1);
            object.record_error(e);
        }
        taken.clear();
        if written > 0 {
            self.note_written(written as u64, begin);
        }
        result
    }

    /// Writes each of `together`, runs that follow each other in the file, with one write, all at the same
    /// time. Tells for each whether it was written.
    fn write_at_once(
        &self,
        object: &FileObject,
        taken: &[LockedFolio<'_>],
        together: &[&[Run]],
        ring: &mut WriteRing,
    ) -> Vec<bool> {
        let Some(file) = object.file() else { return vec![false; together.len()] };
        let offset = |runs: &[Run]| runs.first().map_or(0, |run| run.offset);
        let writes: Vec<_> =
            together.iter().map(|runs| (parts_of(taken, runs).collect::<Vec<_>>(), offset(runs))).collect();
        let begun_ns = self.begin_transfer();
        let done = file.write_scattered(ring, &writes);
        for ((parts, offset), &done) in writes.iter().zip(&done) {
            let bytes = parts.iter().map(|part| part.1.len() as u64).sum();
            self.note_transfer(object.id(), done, begun_ns, [*offset, bytes]);
        }
        done
    }

    /// Writes runs that follow each other in the file, and takes those pages out of `failed` that were
    /// written. If not all can be written at once, each folio's pages are tried apart: what stops one page,
    /// a full disk perhaps, need not stop the next one.
    fn write_together(
        &self,
        object: &FileObject,
        taken: &mut [LockedFolio<'_>],
        runs: &[Run],
        failed: &mut [PageSet],
    ) -> Result<(), Errno> {
        let written = {
            let parts: Vec<_> = parts_of(taken, runs).collect();
            let bytes: usize = parts.iter().map(|(_, bytes)| bytes.len()).sum();
            let file = object.file().ok_or(Errno::BADF);
            match (bytes, file, runs.first()) {
                (1.., Ok(file), Some(first)) => {
                    let begun_ns = self.begin_transfer();
                    let written = file.write_vectored(&parts, first.offset);
                    let place = [first.offset, bytes as u64];
                    self.note_transfer(object.id(), written.is_ok(), begun_ns, place);
                    written
                }
                (0, ..) | (_, _, None) => Ok(()),
                (_, Err(closed), _) => Err(closed),
            }
        };
        for run in runs {
            if written.is_ok() {
                failed[run.folio].remove(run.pages.clone());
                continue;
            }
            let (head, body) = taken[run.folio].parts();
            if let [_] = runs {
                self.write_apart(object, head, body.extent(), run.pages.clone(), &mut failed[run.folio]);
                break;
            }
            let mut left = PageSet::new(head.order);
            left.insert(run.pages.clone());
            // The first error is the one that is reported.
            let _ = self.write_runs(object, head, body.extent(), &mut left);
            for page in run.pages.clone().filter(|&page| !left.contains(page)) {
                failed[run.folio].remove(page..page + 1);
            }
        }
        written
    }
}

/// The bytes of runs, where there are any.
fn parts_of<'a>(
    taken: &'a [LockedFolio<'_>],
    runs: &'a [Run],
) -> impl Iterator<Item = (&'a Extent, Range<usize>)> {
    let part = |run: &Run| {
        let extent: Option<&Extent> = taken[run.folio].body().extent.as_deref();
        (extent.expect("the owner of a folio's lock has its frames"), run.bytes.clone())
    };
    runs.iter().map(part).filter(|(_, bytes)| !bytes.is_empty())
}

/// The runs of dirty pages of folios, with no bytes where they are beyond the end of the file.
fn runs_of(object: &FileObject, taken: &[LockedFolio<'_>], dirty: &[PageSet]) -> Vec<Run> {
    let mut runs = Vec::new();
    for (number, (folio, dirty)) in taken.iter().zip(dirty).enumerate() {
        let mut pages = 0..folio.pages() as usize;
        while let Some(run) = dirty.first_run(pages.clone(), Membership::In) {
            pages.start = run.end;
            let wanted = object.bytes_of(folio.index + run.start as u64..folio.index + run.end as u64);
            let start = run.start << PAGE_SHIFT;
            let bytes = start..start + (wanted.end - wanted.start) as usize;
            runs.push(Run { folio: number, pages: run, bytes, offset: wanted.start });
        }
    }
    runs
}
