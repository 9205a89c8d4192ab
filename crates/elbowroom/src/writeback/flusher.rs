//! The flusher: the thread that writes dirty folios back. Linux: `wb_workfn`.

use super::swap_file::PoolWritten;
use super::{Obstacle, Writeback};
use crate::config::{FLUSH_AGAIN, IDLE_FILE_KEEP};
use crate::object::{ALL_PAGES, FileObject};
use crate::page::Folio;
use crate::platform::Platform;
use elbowroom_machine::Mmu;
use elbowroom_sync::Arc;
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::time::Instant;
use std::ops::Range;

/// Where background writing goes on, so that pages that are dirtied again and again at one place do not
/// keep the flusher from others. Linux: `writeback_index`.
#[derive(Default)]
struct Cursor {
    object: u64,
    page: u64,
}

impl<P: Platform> Writeback<P> {
    /// The flusher: writes what it is asked to, as much as the background limit wants, and everything at the
    /// latest after the interval.
    pub(crate) fn run_flusher(&self) {
        let interval = self.config.writeback_interval;
        let mut due = Instant::now() + interval;
        let mut cursor = Cursor::default();
        let (mut background, mut again) = (false, None);
        let (mut pool, mut pool_again) = (PoolWritten::Enough, None::<Instant>);
        while !self.stop.load(Ordering::Acquire) {
            self.rest_if_wanted();
            let folios = self.to_write.take();
            let all = {
                let mut state = self.state.lock();
                background |= std::mem::take(&mut state.background);
                std::mem::take(&mut state.all)
            };
            let ready = background && again.is_none_or(|again| Instant::now() >= again);
            if folios.is_empty() && !all && !ready && pool != PoolWritten::More {
                let retries = [again.filter(|_| background), pool_again];
                let until = retries.into_iter().flatten().fold(due, Instant::min);
                self.to_write.bell.wait(&self.stop, until.saturating_duration_since(Instant::now()));
            }
            self.write_asked(folios);
            if pool_again.is_none_or(|again| Instant::now() >= again) {
                pool = self.write_pool_down();
                pool_again = (pool == PoolWritten::NotNow).then(|| Instant::now() + FLUSH_AGAIN);
            }
            if ready {
                // Before it looks: a thread that dirties more afterwards asks again.
                self.flushing.store(false, Ordering::SeqCst);
                let before = self.flushed.load(Ordering::Relaxed);
                self.write_down(&mut cursor);
                let idle = self.flushed.load(Ordering::Relaxed) == before;
                // In a model time does not pass, and a thread that dirties more asks again.
                background = self.is_over_background() && !(idle && cfg!(shuttle));
                again = idle.then(|| Instant::now() + FLUSH_AGAIN);
            }
            if all || Instant::now() >= due {
                self.tick();
                due = Instant::now() + interval;
            }
            self.wake_throttled();
        }
    }

    /// Writes the folios that it was asked to write, neighbours together.
    fn write_asked(&self, folios: Vec<Arc<Folio>>) {
        let (folios, anonymous): (Vec<_>, Vec<_>) = folios.into_iter().partition(|folio| folio.is_cached());
        self.write_to_swap(anonymous);
        let mut wanted: Vec<(Arc<FileObject>, Range<u64>)> =
            folios.iter().filter_map(|folio| Some((folio.object()?, folio.range()))).collect();
        wanted.sort_unstable_by_key(|(object, pages)| (object.serial, pages.start));
        wanted.dedup_by(|(object, pages), (before, until)| {
            let neighbours = object.serial == before.serial && pages.start <= until.end;
            if neighbours {
                until.end = until.end.max(pages.end);
            }
            neighbours
        });
        for (object, pages) in wanted {
            // An error stays with the file; the folio stays dirty.
            let _ = self.write_back(&object, pages, Obstacle::Skip);
            self.wake_throttled();
        }
    }

    /// Writes until no more is dirty than the background limit, or all was tried. Folios that the flusher
    /// is asked to write go first: when there are some, this ends, and is to be called again.
    fn write_down(&self, cursor: &mut Cursor) {
        let mut objects = self.objects.all();
        objects.retain(|object| object.has_dirty());
        objects.sort_unstable_by_key(|object| object.serial);
        let before = objects.partition_point(|object| object.serial < cursor.object);
        objects.rotate_left(before);
        let begun = objects.first().filter(|object| object.serial == cursor.object).cloned();
        let rest = begun.map(|object| (object, 0..cursor.page));
        let pages = |object: &FileObject| {
            if object.serial == cursor.object { cursor.page..ALL_PAGES.end } else { ALL_PAGES }
        };
        let parts: Vec<_> = objects.into_iter().map(|object| (pages(&object), object)).collect();
        let parts = parts.into_iter().map(|(pages, object)| (object, pages)).chain(rest);
        for (object, pages) in parts {
            let mut goes_on = true;
            // An error stays with the file.
            let _ = self.write_back_while(&object, pages, Obstacle::Skip, |page| {
                *cursor = Cursor { object: object.serial, page };
                self.wake_throttled();
                goes_on = self.is_over_background()
                    && self.to_write.is_empty()
                    && !self.stop.load(Ordering::Relaxed);
                goes_on
            });
            if !goes_on {
                return;
            }
        }
    }

    /// Once an interval: drops pages that other processes changed, writes what is dirty, closes files that
    /// are not used any more, and undoes denials, so that accesses that failed may be tried again.
    fn tick(&self) {
        for object in self.objects.all() {
            let changed = object.changed_by_others();
            self.follow_others(&object);
            if object.take_unreadable() || changed {
                self.allow_again(&object, Obstacle::Skip);
            }
            let _ = self.write_back(&object, ALL_PAGES, Obstacle::Skip);
            // After the write-back: what was dirty is stale, too, but for the stores just written.
            if changed {
                self.drop_foreign(&object);
            } else if object.take_doubt() {
                self.drop_clean(&object, ALL_PAGES);
            }
            self.wake_throttled();
            self.drop_kernel_cache(&object);
            self.close_if_idle(&object);
        }
        self.settle_unmapped();
        let refused = std::mem::take(&mut self.state.lock().refused);
        for page in refused {
            if self.mmu.allow(page.clone()).is_err() {
                self.note_refused(page);
            }
        }
    }

    fn close_if_idle(&self, object: &Arc<FileObject>) {
        let Some(since) = object.unmapped_since() else { return };
        if self.config.close_unmapped && object.file().is_some() {
            self.close_unmapped(object, Obstacle::Skip);
        }
        // A deleted file that no mapping maps only takes up room on its disk.
        let deleted = object.file().is_some_and(|file| file.stat().is_ok_and(|s| s.links == 0));
        if object.has_dirty() || !(deleted || since.elapsed() > IDLE_FILE_KEEP) {
            return;
        }
        self.drop_clean(object, ALL_PAGES);
        if object.is_aliased() {
            // The kernel may have mappings of it still: it must not be managed again.
            return;
        }
        self.objects.forget_if_unused(object);
    }
}
