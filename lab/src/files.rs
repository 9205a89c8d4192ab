//! The data files: made once, cold before every run, removed at the end.

use std::env;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rustix::fs::{Advice, fadvise, statvfs};
use tempfile::TempDir;

use crate::device::check_on_disk;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::size::Size;
use crate::{PAGE_BYTES, content};

const CHUNK_PAGES: u64 = 256;
/// After how many bytes what was written is sent to the disk and dropped from memory.
const SYNC_BYTES: u64 = 64 << 20;
/// The content is made by a processor, so more writers than this only wait for the disk.
const MAX_WRITERS: usize = 4;

/// A directory of files `0`, `1`, ... of known content, removed when dropped.
#[derive(Debug)]
pub struct DataFiles {
    dir: TempDir,
    count: u64,
    size: Size,
    seed: u64,
}

impl DataFiles {
    /// Makes the directory in `parent`, or where [`default_parent`] says, and checks that there is room.
    ///
    /// # Errors
    /// If the directory is not on a disk, or has not enough room.
    pub fn prepare(parent: Option<&Path>, count: u64, size: Size, seed: u64) -> Result<Self> {
        let parent = match parent {
            Some(parent) => parent.to_owned(),
            None => default_parent()?,
        };
        check_on_disk(&parent)?;
        let total =
            Size::from_bytes(size.bytes().checked_mul(count).context("the files are too large together")?);
        let space = statvfs(&parent).with_context(|| format!("cannot look at {}", parent.display()))?;
        let free = Size::from_bytes((space.f_bavail * space.f_frsize) >> 20 << 20);
        ensure!(
            free.bytes() / 20 * 19 >= total.bytes(),
            "the files need {total}, {} has {free} free; name another --dir, or use smaller files",
            parent.display()
        );
        let dir = tempfile::Builder::new().prefix("elbowroom-lab-").tempdir_in(&parent);
        let dir = dir.with_context(|| format!("cannot make a directory in {}", parent.display()))?;
        Ok(Self { dir, count, size, seed })
    }

    /// Where the files are.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The seed of the content.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir().join(number.to_string())
    }

    /// Writes all files, and shows how far it is.
    ///
    /// # Errors
    /// If the disk fails or is full, or a signal comes.
    pub fn write(&self, interrupt: &Interrupt, progress: &mut Progress) -> Result<()> {
        let total_bytes = self.count * self.size.bytes();
        let (next, done_bytes) = (&AtomicU64::new(0), &AtomicU64::new(0));
        let writers = thread::available_parallelism().map_or(1, usize::from).min(MAX_WRITERS);
        thread::scope(|scope| {
            let work = || -> Result<()> {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= self.count {
                        return Ok(());
                    }
                    let path = self.path(number);
                    self.write_one(number, interrupt, done_bytes)
                        .with_context(|| format!("cannot write {}", path.display()))
                        // Nobody should begin another file.
                        .inspect_err(|_| next.store(self.count, Ordering::Relaxed))?;
                }
            };
            let threads: Vec<_> = (0..writers).map(|_| scope.spawn(work)).collect();
            while !threads.iter().all(|thread| thread.is_finished()) {
                let done = done_bytes.load(Ordering::Relaxed);
                progress.update(|| format!("making files: {} of {} MiB", done >> 20, total_bytes >> 20));
                thread::sleep(Duration::from_millis(10));
            }
            for thread in threads {
                thread.join().map_err(|_| anyhow!("a writer of files panicked"))??;
            }
            interrupt.check()
        })
    }

    fn write_one(&self, number: u64, interrupt: &Interrupt, done_bytes: &AtomicU64) -> Result<()> {
        let mut file = File::create_new(self.path(number))?;
        let mut chunk = vec![0; (CHUNK_PAGES * PAGE_BYTES) as usize];
        let mut unsynced_bytes = 0;
        for first in (0..self.size.pages()).step_by(CHUNK_PAGES as usize) {
            interrupt.check()?;
            let pages = CHUNK_PAGES.min(self.size.pages() - first);
            let bytes = &mut chunk[..(pages * PAGE_BYTES) as usize];
            for (page, bytes) in (first..).zip(bytes.chunks_exact_mut(PAGE_BYTES as usize)) {
                content::fill_page(bytes, self.seed, number, page);
            }
            file.write_all(bytes)?;
            done_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            unsynced_bytes += bytes.len() as u64;
            if unsynced_bytes >= SYNC_BYTES {
                drop_cached(&file)?;
                unsynced_bytes = 0;
            }
        }
        drop_cached(&file)
    }

    /// Takes all files out of the page cache, so that the next run finds them on the disk only.
    ///
    /// # Errors
    /// If a file is gone, or a signal comes.
    pub fn make_cold(&self, interrupt: &Interrupt) -> Result<()> {
        for number in 0..self.count {
            interrupt.check()?;
            make_file_cold(&self.path(number))?;
        }
        drop_caches()
    }
}

/// Takes a file out of the page cache.
///
/// # Errors
/// If it is gone.
pub fn make_file_cold(path: &Path) -> Result<()> {
    let cold = File::open(path).map_err(anyhow::Error::from).and_then(|file| drop_cached(&file));
    cold.with_context(|| format!("cannot take {} out of the page cache", path.display()))
}

/// Drops what [`make_file_cold`] may leave, such as pages on their way between lists. Permitted to root only.
///
/// # Errors
/// If the kernel fails at it.
pub fn drop_caches() -> Result<()> {
    match fs::write("/proc/sys/vm/drop_caches", "1") {
        Err(error)
            if !matches!(
                error.kind(),
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotFound
            ) =>
        {
            Err(error).context("cannot drop the page cache")
        }
        _ => Ok(()),
    }
}

fn drop_cached(file: &File) -> Result<()> {
    file.sync_all()?;
    fadvise(file, 0, None::<NonZeroU64>, Advice::DontNeed)?;
    Ok(())
}

/// The first of `$TMPDIR`, the current directory and /var/tmp that is on a disk.
///
/// # Errors
/// If none is.
pub fn default_parent() -> Result<PathBuf> {
    let named = env::var_os("TMPDIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let places = named.into_iter().chain(env::current_dir().ok()).chain([PathBuf::from("/var/tmp")]);
    places
        .into_iter()
        .find(|dir| check_on_disk(dir).is_ok())
        .context("neither $TMPDIR, nor the current directory, nor /var/tmp is on a disk; name one with --dir")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_disk() -> PathBuf {
        default_parent().unwrap()
    }

    #[test]
    fn files_hold_what_the_worker_expects_and_go_away() {
        let files = DataFiles::prepare(Some(&on_disk()), 3, Size::from_bytes(300 * PAGE_BYTES), 5).unwrap();
        let interrupt = Interrupt::install().unwrap();
        files.write(&interrupt, &mut Progress::new()).unwrap();
        for number in 0..3 {
            let bytes = fs::read(files.path(number)).unwrap();
            assert_eq!(bytes.len(), 300 * PAGE_BYTES as usize);
            let mut expected = vec![0; PAGE_BYTES as usize];
            for (page, bytes) in (0..).zip(bytes.chunks_exact(PAGE_BYTES as usize)) {
                content::fill_page(&mut expected, 5, number, page);
                assert_eq!(bytes, expected, "file {number}, page {page}");
            }
        }
        let dir = files.dir().to_owned();
        drop(files);
        assert!(!dir.exists());
    }

    #[test]
    fn no_room_and_no_disk_are_said_before_anything_is_written() {
        let huge = DataFiles::prepare(Some(&on_disk()), 1 << 20, Size::from_bytes(1 << 40), 0).unwrap_err();
        assert!(huge.to_string().contains("free"), "{huge}");
        let memory = DataFiles::prepare(Some(Path::new("/dev/shm")), 1, Size::from_bytes(PAGE_BYTES), 0);
        assert!(memory.unwrap_err().to_string().contains("--dir"));
    }
}
