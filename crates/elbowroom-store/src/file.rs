//! A regular file whose pages are managed: how it is opened, written, and read through the kernel's cache.
//!
//! A [`StoreFile`] has two descriptors: one with O_DIRECT, where the file system allows it, and one
//! without. Aligned I/O goes through the first; the rest (an unaligned tail at the end of the file, and
//! everything if O_DIRECT is refused) goes through the second, and the kernel is then asked to drop the
//! pages that it cached, because they are in the arena and would otherwise be in memory twice. The kernel
//! keeps the two coherent: direct I/O first writes back the cached pages of its range, and a direct write
//! then drops them.
//!
//! Some file systems accept O_DIRECT when a file is opened and refuse it (EINVAL) when it is used. That is
//! remembered for the file, for reads and writes apart, and the buffered descriptor takes over.
//!
//! Neighbours: the reactors read through [`StoreFile::route`]; `inject.rs` decides which operations fail on
//! purpose.
//!
//! Synchronization: everything takes `&self`; the two flags are atomics that only ever go from true to false,
//! and a stale true costs one more EINVAL. Writes to overlapping ranges must be ordered by the caller.

use crate::calls::{Descriptor, check_span, first_end, refuses_direct, retry, whole_pages};
use crate::inject::{Inject, Operation, Verdict};
#[cfg(not(shuttle))]
use crate::lifeline::Handed;
use crate::limits;
use crate::mapped;
use crate::scatter::WriteRing;
use elbowroom_machine::{Errno, Extent, PAGE_SIZE};
use elbowroom_sync::atomic::{AtomicBool, Ordering};
use elbowroom_sync::{Arc, may_block, thread};
use rustix::fs::{self, Advice, AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io;
use std::io::IoSlice;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// A multiple of the block size of every file system.
const HOLE_UNIT: u64 = 2 << 20;

/// A file's identity: device and inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// The device that holds the file system.
    pub device: u64,
    /// The inode number in it.
    pub inode: u64,
}

/// The fields of fstat that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// Bytes.
    pub size: u64,
    /// When the contents last changed, in nanoseconds since the epoch.
    pub mtime_ns: i128,
    /// When the contents or the inode last changed, in nanoseconds since the epoch.
    pub ctime_ns: i128,
    /// How many names it has; 0: it was deleted.
    pub links: u64,
}

/// An open regular file whose pages are managed.
#[derive(Debug)]
pub struct StoreFile {
    buffered: Descriptor,
    direct: Option<Direct>,
    id: FileId,
    writable: bool,
    inject: Option<Injected>,
}

/// The descriptor with O_DIRECT, and the alignment that the file system requires.
#[derive(Debug)]
struct Direct {
    fd: Descriptor,
    /// Offsets and lengths must be multiples of this many bytes: a power of two, at most a page.
    align: u64,
    reads: AtomicBool,
    writes: AtomicBool,
}

/// The file's injected faults, and the path that their conditions are compared with.
#[derive(Debug)]
struct Injected {
    rules: Arc<Inject>,
    path: String,
}

/// Ranges of bytes of extents, which are contiguous in the file from an offset on.
pub type Write<'a> = (Vec<(&'a Extent, Range<usize>)>, u64);

/// Which of the two descriptors an operation uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    Direct,
    Buffered,
}

impl StoreFile {
    /// Opens `path` (a real path or `/proc/<tid>/fd/<n>`, also of a deleted file) to read, and if
    /// `writable` also to write. Tries O_DIRECT and falls back to buffered I/O; with buffered I/O the
    /// kernel's cache of each range is dropped after it was read or written (posix_fadvise). Needs `/proc`.
    /// The descriptors belong to the calling thread's file table.
    ///
    /// `inject` applies to all operations of this file, and to reads of it through a reactor that has no
    /// faults of its own.
    ///
    /// # Errors
    /// [`Errno::INVAL`] if it is not a regular file (nothing is opened then, so that a FIFO or a device does
    /// not notice); else what open(2) and fstat(2) say.
    pub fn open(path: &Path, writable: bool, inject: Option<Arc<Inject>>) -> Result<StoreFile, Errno> {
        may_block();
        let place = limits::open_briefly(|| open_at(path, OFlags::PATH)).map(Descriptor::from)?;
        let stat = fs::fstat(&place)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        // Opening through /proc, and not by the path again, makes sure that both descriptors are of the
        // same file.
        let place_path = place.proc_path();
        let access = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        let reopen = |flags: OFlags| limits::open_kept(|| open_at(Path::new(&place_path), access | flags));
        let buffered = reopen(OFlags::empty())?;
        // The manager does its own readahead; pages that the kernel reads ahead would stay in its cache. A
        // hint, so it may fail.
        let _ = fs::fadvise(&buffered, 0, None, Advice::Random);
        let inject = match inject {
            Some(rules) => Some(Injected { rules, path: resolved_path(&buffered)? }),
            None => None,
        };
        let mut file = StoreFile {
            buffered,
            direct: None,
            id: FileId { device: stat.st_dev, inode: stat.st_ino },
            writable,
            inject,
        };
        let refused = file.judge(Operation::Open, 0, 0).no_direct;
        if let Some(align) = direct_align(&file.buffered).filter(|_| !refused)
            && let Ok(fd) = reopen(OFlags::DIRECT)
        {
            let (reads, writes) = (AtomicBool::new(true), AtomicBool::new(true));
            file.direct = Some(Direct { fd, align, reads, writes });
        }
        Ok(file)
    }

    /// A new file without a name, in the directory `dir`, that only its owner may read: it is deleted when
    /// it is closed, even if the process is killed. Its size is `bytes` from the beginning, with no blocks
    /// allocated, so that it can be written up to there whatever RLIMIT_FSIZE the program has by then; the
    /// size is smaller if the kernel refuses it. Otherwise as [`StoreFile::open`].
    ///
    /// # Errors
    /// What open(2) says, of the directory or of its file system.
    pub fn temporary(dir: &Path, bytes: u64, inject: Option<Arc<Inject>>) -> Result<StoreFile, Errno> {
        may_block();
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let made = limits::open_briefly(|| retry(|| fs::open(dir, flags | OFlags::TMPFILE, mode)));
        let file = match made {
            // The file system cannot make files without a name.
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => {
                limits::open_briefly(|| named_then_unlinked(dir, flags, mode))?
            }
            made => made?,
        };
        let file = Descriptor::from(file);
        // This may fail for a size beyond the limit: then writes behind the limit fail.
        let _ = limits::with_highest_file_limit(|limit| set_size(&file, bytes, limit));
        StoreFile::open(Path::new(&file.proc_path()), true, inject)
    }

    /// The file's descriptors, for the child of a fork.
    #[cfg(not(shuttle))]
    pub fn handed(&self) -> Vec<Handed> {
        let direct = self.direct.as_ref().map(|direct| Handed::of(&direct.fd, OFlags::RDWR | OFlags::DIRECT));
        std::iter::once(Handed::of(&self.buffered, OFlags::RDWR)).chain(direct).collect()
    }

    /// In the child of a fork: whether its descriptors still are of the same file.
    #[cfg(not(shuttle))]
    pub fn is_there(&self) -> bool {
        let is = |fd: &Descriptor| {
            fs::fstat(fd).is_ok_and(|stat| self.id == FileId { device: stat.st_dev, inode: stat.st_ino })
        };
        is(&self.buffered) && self.direct.as_ref().is_none_or(|direct| is(&direct.fd))
    }

    /// Device and inode.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Whether it can be written.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Whether reads bypass the kernel's page cache, as far as is known: it can turn false at the first read.
    pub fn direct(&self) -> bool {
        self.direct.as_ref().is_some_and(|d| d.reads.load(Ordering::Relaxed))
    }

    /// Size and times now.
    ///
    /// # Errors
    /// What fstat(2) says.
    pub fn stat(&self) -> Result<FileStat, Errno> {
        may_block();
        let stat = retry(|| fs::fstat(&self.buffered))?;
        let ns = |seconds: i128, ns: i128| seconds * 1_000_000_000 + ns;
        Ok(FileStat {
            size: stat.st_size as u64,
            mtime_ns: ns(stat.st_mtime.into(), stat.st_mtime_nsec.into()),
            ctime_ns: ns(stat.st_ctime.into(), stat.st_ctime_nsec.into()),
            links: stat.st_nlink,
        })
    }

    /// Blocking buffered read, through the kernel's page cache, of `buf.len()` bytes at `offset`; returns the
    /// bytes read, fewer only at the end of the file. The kernel's cache of the range is dropped afterwards.
    ///
    /// # Errors
    /// What pread(2) says; `buf` may be written in part then.
    pub fn read_buffered(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let done = self.read_cached(buf, offset)?;
        self.drop_cache(offset, done as u64);
        Ok(done)
    }

    /// [`StoreFile::read_buffered`] without dropping the kernel's cache. For data that a write has just
    /// left in the cache: dropping it would make the kernel write it to the device at once.
    ///
    /// # Errors
    /// As for [`StoreFile::read_buffered`].
    pub fn read_cached(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        may_block();
        let verdict = self.judge(Operation::Read, offset, buf.len() as u64);
        thread_delay(verdict);
        if let Some(error) = verdict.error {
            return Err(error);
        }
        let mut done = 0;
        while done < buf.len() {
            let end = first_end(done, buf.len(), verdict.short);
            match retry(|| io::pread(&self.buffered, &mut buf[done..end], offset + done as u64))? {
                0 => break,
                n => done += n,
            }
        }
        Ok(done)
    }

    /// Blocking write of the bytes `range` of `extent` (whose pages are all at home) to `offset`, where the
    /// first of these bytes goes. O_DIRECT for the aligned part, buffered for the rest, which is an unaligned
    /// tail if `offset` is page-aligned. Writes all or gives the error; never writes outside `offset..offset
    /// + range.len()`.
    ///
    /// # Errors
    /// [`Errno::INVAL`] if `range` is not inside the extent, a page of it is away, or the file would end
    /// beyond 2^63 bytes; [`Errno::BADF`] if the file is not writable; else what pwrite(2) says. After an
    /// error any part of the range may be written.
    pub fn write(&self, extent: &Extent, range: Range<usize>, offset: u64) -> Result<(), Errno> {
        let bytes = home_bytes(extent, range)?;
        check_span(offset, bytes.len())?;
        let verdict = self.begin_write(offset, bytes.len())?;
        self.write_one(bytes, offset, verdict)
    }

    /// [`StoreFile::write`] of bytes of several extents, which are contiguous in the file. `parts` has at
    /// most 1024. The aligned parts at the beginning are written by one system call.
    ///
    /// # Errors
    /// As for [`StoreFile::write`].
    pub fn write_vectored(&self, parts: &[(&Extent, Range<usize>)], offset: u64) -> Result<(), Errno> {
        if let [(extent, range)] = parts {
            return self.write(extent, range.clone(), offset);
        }
        let parts = parts.iter().map(|(extent, range)| home_bytes(extent, range.clone()));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        let len = parts.iter().map(|bytes| bytes.len()).sum();
        check_span(offset, len)?;
        let verdict = self.begin_write(offset, len)?;
        let mut done = match &self.direct {
            Some(direct)
                if direct.writes.load(Ordering::Relaxed) && !(verdict.no_direct || verdict.short) =>
            {
                if limits::is_beyond_file_limit(offset + len as u64) {
                    if self.write_mapped(&parts, offset).is_ok() { len } else { 0 }
                } else {
                    direct.write_vectored(&parts, offset)
                }
            }
            _ => 0,
        };
        // The rest is written part by part; if that fails, it returns the error.
        let mut offset = offset;
        for bytes in parts {
            let skipped = done.min(bytes.len());
            done -= skipped;
            offset += skipped as u64;
            let rest = &bytes[skipped..];
            if !rest.is_empty() {
                self.write_one(rest, offset, verdict)?;
                offset += rest.len() as u64;
            }
        }
        Ok(())
    }

    /// Makes several writes at different offsets at the same time, where that is possible; tells for each
    /// of `writes` whether it is done. The caller makes the others by [`StoreFile::write_vectored`], which
    /// returns the error. At most [`SCATTERED_WRITES`](crate::SCATTERED_WRITES) are tried.
    pub fn write_scattered(&self, ring: &mut WriteRing, writes: &[Write<'_>]) -> Vec<bool> {
        may_block();
        let mut done = vec![false; writes.len()];
        let direct = self.direct.as_ref().filter(|direct| direct.writes.load(Ordering::Relaxed));
        // With injected faults nothing is done here, since faults are decided for single writes.
        let (Some(direct), None) = (direct, &self.inject) else { return done };
        let possible = writes.iter().enumerate().filter_map(|(number, (parts, offset))| {
            let slices = parts.iter().map(|(extent, range)| home_bytes(extent, range.clone()).ok());
            let slices = direct.aligned(slices.collect::<Option<Vec<_>>>()?, *offset)?;
            let len = slices.iter().map(|slice| slice.len()).sum::<usize>();
            check_span(*offset, len).ok()?;
            (!limits::is_beyond_file_limit(offset + len as u64)).then_some((number, len, (slices, *offset)))
        });
        let (numbers, writes): (Vec<_>, Vec<_>) =
            possible.map(|(number, len, write)| ((number, len), write)).unzip();
        for ((number, len), written) in numbers.into_iter().zip(ring.write(direct.fd.as_fd(), &writes)) {
            done[number] = written == len;
        }
        done
    }

    /// The verdict of the injected faults on a write; waits first as long as they say.
    fn begin_write(&self, offset: u64, len: usize) -> Result<Verdict, Errno> {
        may_block();
        let verdict = self.judge(Operation::Write, offset, len as u64);
        thread_delay(verdict);
        verdict.error.map_or(Ok(verdict), Err)
    }

    fn write_one(&self, bytes: &[u8], offset: u64, verdict: Verdict) -> Result<(), Errno> {
        // Checked before the write, because the kernel would send SIGXFSZ. The program's limit is not meant
        // to stop this write, since the file is that long already.
        if limits::is_beyond_file_limit(offset + bytes.len() as u64) {
            return self.write_mapped(&[bytes], offset);
        }
        match self.write_allowed(bytes, offset, verdict) {
            // The program has lowered its limit since the check. SIGXFSZ went to this thread only, and is
            // blocked on our threads.
            Err(Errno::FBIG) => self.write_mapped(&[bytes], offset),
            result => result,
        }
    }

    fn write_allowed(&self, bytes: &[u8], offset: u64, verdict: Verdict) -> Result<(), Errno> {
        let direct_done = match &self.direct {
            Some(direct) if direct.writes.load(Ordering::Relaxed) => direct.write(bytes, offset, verdict)?,
            _ => 0,
        };
        if direct_done < bytes.len() {
            let (rest, rest_offset) = (&bytes[direct_done..], offset + direct_done as u64);
            let (written, result) = write_loop(&self.buffered, rest, rest_offset, verdict.short);
            self.drop_cache(rest_offset, written as u64);
            result?;
        }
        Ok(())
    }

    fn write_mapped(&self, parts: &[&[u8]], offset: u64) -> Result<(), Errno> {
        let result = mapped::write(self.buffered.as_fd(), parts, offset);
        self.drop_cache(offset, parts.iter().map(|bytes| bytes.len() as u64).sum());
        result
    }

    /// Frees the bytes of the range, which read as zeros afterwards. The size stays.
    ///
    /// # Errors
    /// What fallocate(2) says; EOPNOTSUPP where the filesystem has no holes.
    pub fn punch_hole(&self, range: Range<u64>) -> Result<(), Errno> {
        may_block();
        let flags = fs::FallocateFlags::PUNCH_HOLE | fs::FallocateFlags::KEEP_SIZE;
        retry(|| fs::fallocate(&self.buffered, flags, range.start, range.end - range.start))
    }

    /// fdatasync: returns when all earlier writes are on the disk.
    ///
    /// # Errors
    /// What fdatasync(2) says. The kernel reports a failed write-back once, and then takes the pages for
    /// clean.
    pub fn sync_data(&self) -> Result<(), Errno> {
        may_block();
        let verdict = self.judge(Operation::Sync, 0, 0);
        thread_delay(verdict);
        match verdict.error {
            Some(error) => Err(error),
            None => retry(|| fs::fdatasync(&self.buffered)),
        }
    }

    /// The descriptor without O_DIRECT, for mmap by the thread that owns this file table.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.buffered.as_fd()
    }

    /// The descriptor to use for a read of `len` bytes at `offset`.
    pub(crate) fn route(&self, offset: u64, len: usize) -> Route {
        match &self.direct {
            Some(d) if (offset | len as u64) & (d.align - 1) == 0 && d.reads.load(Ordering::Relaxed) => {
                Route::Direct
            }
            _ => Route::Buffered,
        }
    }

    /// The descriptor of a route.
    pub(crate) fn fd_of(&self, route: Route) -> BorrowedFd<'_> {
        match (route, &self.direct) {
            (Route::Direct, Some(direct)) => direct.fd.as_fd(),
            _ => self.buffered.as_fd(),
        }
    }

    /// Remembers that the file system refuses direct reads of this file.
    pub(crate) fn refuse_direct_reads(&self) {
        if let Some(direct) = &self.direct {
            direct.reads.store(false, Ordering::Relaxed);
        }
    }

    /// The verdict of the file's own faults on an operation.
    pub(crate) fn judge(&self, operation: Operation, offset: u64, len: u64) -> Verdict {
        match &self.inject {
            Some(injected) => injected.rules.judge(operation, &injected.path, offset, len),
            None => Verdict::default(),
        }
    }

    /// The path that conditions of faults are compared with; read from /proc at each call if the file was
    /// opened without faults.
    pub(crate) fn fault_path(&self) -> String {
        match &self.inject {
            Some(injected) => injected.path.clone(),
            None => resolved_path(&self.buffered).unwrap_or_default(),
        }
    }

    /// Asks the kernel to drop its cache of a range. A hint: for dirty pages the kernel only begins
    /// write-back.
    pub fn drop_cache(&self, offset: u64, len: u64) {
        let (start, len) = whole_pages(offset, len);
        if let Some(len) = NonZeroU64::new(len) {
            let _ = fs::fadvise(&self.buffered, start, Some(len), Advice::DontNeed);
        }
    }
}

impl Direct {
    /// The parts of a write, contiguous in the file from `offset` on, as slices for O_DIRECT; `None`: a
    /// part is not aligned.
    fn aligned<'a>(&self, parts: Vec<&'a [u8]>, offset: u64) -> Option<Vec<IoSlice<'a>>> {
        let mask = self.align as usize - 1;
        let is_aligned = |bytes: &&[u8]| (bytes.as_ptr() as usize | bytes.len()) & mask == 0;
        let all = offset as usize & mask == 0 && parts.iter().all(is_aligned);
        all.then(|| parts.into_iter().map(IoSlice::new).collect())
    }

    /// Writes the aligned parts at the beginning of `parts`, which are contiguous in the file, with one
    /// system call. Returns how many bytes were written, 0 after an error: the caller goes on from there.
    fn write_vectored(&self, parts: &[&[u8]], offset: u64) -> usize {
        let mask = self.align as usize - 1;
        let is_aligned = |bytes: &&[u8]| bytes.as_ptr() as usize & mask == 0 && bytes.len() & mask == 0;
        if offset as usize & mask != 0 {
            return 0;
        }
        // Only the part at the end of a file can be unaligned.
        let aligned = parts.iter().take_while(|bytes| is_aligned(bytes));
        let slices: Vec<_> = aligned.map(|bytes| IoSlice::new(bytes)).collect();
        if slices.len() < 2 {
            return 0;
        }
        retry(|| io::pwritev(&self.fd, &slices, offset)).unwrap_or(0)
    }

    /// Writes the aligned part of `bytes` and returns how much was written: less than the aligned part only
    /// if O_DIRECT is refused or a partial write ended off the alignment; the caller goes on from there with
    /// buffered writes.
    fn write(&self, bytes: &[u8], offset: u64, verdict: Verdict) -> Result<usize, Errno> {
        let mask = self.align - 1;
        if offset & mask != 0 || bytes.as_ptr() as u64 & mask != 0 {
            return Ok(0);
        }
        let aligned = bytes.len() & !(mask as usize);
        let mut done = 0;
        while done < aligned && done as u64 & mask == 0 {
            let end = first_end(done, aligned, verdict.short) as u64;
            let end = (end & !mask) as usize;
            let end = if end > done { end } else { aligned };
            let wrote = if verdict.no_direct {
                Err(Errno::INVAL)
            } else {
                retry(|| io::pwrite(&self.fd, &bytes[done..end], offset + done as u64))
            };
            match wrote {
                Ok(0) => return Err(Errno::IO),
                Ok(n) => done += n,
                Err(error) if refuses_direct(error) => {
                    self.writes.store(false, Ordering::Relaxed);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

/// The bytes `range` of an extent; EINVAL unless all its pages are at home.
fn home_bytes(extent: &Extent, range: Range<usize>) -> Result<&[u8], Errno> {
    if !extent.is_home() {
        return Err(Errno::INVAL);
    }
    extent.bytes().get(range).ok_or(Errno::INVAL)
}

/// Writes all of `bytes`; returns how many bytes were written, and the error that stopped it.
fn write_loop(fd: &Descriptor, bytes: &[u8], offset: u64, short: bool) -> (usize, Result<(), Errno>) {
    let mut done = 0;
    while done < bytes.len() {
        let end = first_end(done, bytes.len(), short);
        match retry(|| io::pwrite(fd, &bytes[done..end], offset + done as u64)) {
            Ok(0) => return (done, Err(Errno::IO)),
            Ok(n) => done += n,
            Err(error) => return (done, Err(error)),
        }
    }
    (done, Ok(()))
}

/// The alignment that O_DIRECT requires of offsets and lengths in this file; `None` if O_DIRECT is not
/// possible, or requires more than page alignment.
fn direct_align(fd: &Descriptor) -> Option<u64> {
    let Ok(stat) = fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Some(PAGE_SIZE as u64);
    };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        // The file system does not tell. Page alignment is enough for every known one, and if not, the
        // first read fails and falls back.
        return Some(PAGE_SIZE as u64);
    }
    let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
    let possible = memory != 0 && offset.is_power_of_two() && memory.max(offset) as usize <= PAGE_SIZE;
    // One number for both keeps the arithmetic simple: buffers are pages, so memory never asks for more.
    possible.then_some(u64::from(offset.max(memory)).next_power_of_two())
}

fn open_at(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    retry(|| fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()))
}

/// Sets the size of an empty file to `bytes`, without allocating blocks. `limit` is the program's
/// RLIMIT_FSIZE.
fn set_size(file: &Descriptor, bytes: u64, limit: u64) -> Result<(), Errno> {
    // Beyond the limit the kernel would send a signal.
    let allowed = bytes.min(limit);
    retry(|| fs::ftruncate(file, allowed))?;
    if allowed == 0 || allowed == bytes {
        return Ok(());
    }
    // Inserting a hole at the beginning makes the file longer, too, and the kernel does not check the limit
    // for it. Not all file systems support that, and those that do require whole blocks.
    let hole = (bytes - allowed).next_multiple_of(HOLE_UNIT);
    retry(|| fs::fallocate(file, fs::FallocateFlags::INSERT_RANGE, 0, hole))
}

/// Creates a file under a name, and removes the name at once.
fn named_then_unlinked(dir: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    for attempt in 0..1000 {
        let name = dir.join(format!(".elbowroom-swap-{}-{attempt}", std::process::id()));
        match retry(|| fs::open(&name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode)) {
            Ok(file) => {
                fs::unlink(&name)?;
                return Ok(file);
            }
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::EXIST)
}

fn resolved_path(fd: &Descriptor) -> Result<String, Errno> {
    Ok(fs::readlink(fd.proc_path(), Vec::new())?.to_string_lossy().into_owned())
}

fn thread_delay(verdict: Verdict) {
    if !verdict.delay.is_zero() {
        thread::sleep(verdict.delay);
    }
}
