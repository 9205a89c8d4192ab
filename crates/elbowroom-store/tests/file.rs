//! Files: opening, writing, and what must not change.

mod common;

use common::*;
use elbowroom_store::{Errno, Extent, StoreFile};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// An extent full of `byte`.
fn filled(pages: usize, byte: u8) -> Extent {
    let mut extent = extent(pages);
    extent.bytes_mut().fill(byte);
    extent
}

/// Writes tails of many lengths under each set of faults that must not change the outcome.
#[test]
fn writes_put_exactly_their_bytes() {
    let directory = directory();
    for text in ["", "open:nodirect", "write:nodirect", "write:short", "write:nodirect,write:short"] {
        for len in [1, 100, 511, 512, 513, 4096, 4097, 8192, 8704, 12_000] {
            let path = make_file(directory.path(), "file", 4 * PAGE);
            let file = StoreFile::open(&path, true, faults(text)).unwrap();
            // The file ends where the range does, as it does when the last page is clipped at the size.
            let size = PAGE + len;
            std::fs::File::options().write(true).open(&path).unwrap().set_len(size as u64).unwrap();
            file.write(&filled(4, 0xee), 0..len, PAGE as u64).unwrap();
            file.sync_data().unwrap();
            let found = std::fs::read(&path).unwrap();
            assert_eq!(found.len(), size, "{text} {len}");
            assert!(found[..PAGE] == contents(0, PAGE)[..], "{text} {len}: bytes before the range");
            assert!(found[PAGE..].iter().all(|&b| b == 0xee), "{text} {len}");
            assert_eq!(file.stat().unwrap().size, size as u64);
        }
    }
}

#[test]
fn writes_take_any_range_and_leave_the_rest() {
    let directory = directory();
    for (range, offset) in
        [(0..4096, 4096), (4096..12_288, 8192), (100..300, 5000), (512..5000, 512), (0..0, 0)]
    {
        let path = make_file(directory.path(), "file", 8 * PAGE);
        let file = StoreFile::open(&path, true, None).unwrap();
        let mut extent = extent(4);
        for (at, byte) in extent.bytes_mut().iter_mut().enumerate() {
            *byte = !byte_at(at);
        }
        file.write(&extent, range.clone(), offset as u64).unwrap();
        let mut expected = contents(0, 8 * PAGE);
        expected[offset..offset + range.len()].copy_from_slice(&extent.bytes()[range]);
        let mut found = vec![0; 9 * PAGE];
        assert_eq!(file.read_buffered(&mut found, 0), Ok(8 * PAGE));
        assert!(found[..8 * PAGE] == expected[..]);
        assert!(std::fs::read(&path).unwrap() == expected);
    }
}

#[test]
fn a_write_grows_the_file_by_its_range_at_most() {
    let directory = directory();
    let path = make_file(directory.path(), "file", 100);
    let file = StoreFile::open(&path, true, None).unwrap();
    file.write(&filled(4, 1), 0..PAGE + 10, 2 * PAGE as u64).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), (3 * PAGE + 10) as u64);
}

#[test]
fn wrong_writes_are_errors() {
    let directory = directory();
    let path = make_file(directory.path(), "file", 2 * PAGE);
    let extent = filled(1, 1);
    let read_only = StoreFile::open(&path, false, None).unwrap();
    assert!(!read_only.writable());
    assert_eq!(read_only.write(&extent, 0..PAGE, 0), Err(Errno::BADF));
    let file = StoreFile::open(&path, true, None).unwrap();
    assert!(file.writable());
    assert_eq!(file.write(&extent, 0..PAGE + 1, 0), Err(Errno::INVAL));
    assert_eq!(file.write(&extent, 0..PAGE, u64::MAX - 1), Err(Errno::INVAL));
    assert!(std::fs::read(&path).unwrap() == contents(0, 2 * PAGE));
}

#[test]
fn injected_faults_of_writes_and_syncs() {
    let directory = directory();
    let path = make_file(directory.path(), "file", 4 * PAGE);
    let rules =
        "write:enospc:after=1:times=1,write:eio:from=12288,sync:eio:times=1,sync:slow=50ms,read:eio:to=4096";
    let file = StoreFile::open(&path, true, faults(rules)).unwrap();
    let extent = filled(1, 9);
    let start = Instant::now();
    let write = |page: usize| file.write(&extent, 0..PAGE, (page * PAGE) as u64);
    assert_eq!([write(0), write(1), write(1), write(3)], [Ok(()), Err(Errno::NOSPC), Ok(()), Err(Errno::IO)]);
    assert_eq!([file.sync_data(), file.sync_data()], [Err(Errno::IO), Ok(())]);
    assert!(start.elapsed() >= Duration::from_millis(100));
    let mut page = [0; PAGE];
    assert_eq!(file.read_buffered(&mut page, 0), Err(Errno::IO));
    assert_eq!(file.read_buffered(&mut page, PAGE as u64), Ok(PAGE));
    assert_eq!(page, [9; PAGE]);
    assert!(std::fs::read(&path).unwrap()[3 * PAGE..] == contents(3 * PAGE, PAGE)[..]);
}

#[test]
fn a_deleted_file_opens_through_proc() {
    let directory = directory();
    let path = make_file(directory.path(), "file", 3 * PAGE);
    let held = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let proc_path = format!("/proc/self/fd/{}", held.as_raw_fd());
    let file = StoreFile::open(Path::new(&proc_path), true, faults("write:eio:file=/file:to=1")).unwrap();
    let metadata = held.metadata().unwrap();
    assert_eq!((file.id().device, file.id().inode), (metadata.dev(), metadata.ino()));
    // Its own descriptors outlive the one it was opened through.
    drop(held);
    file.write(&filled(1, 3), 0..PAGE, PAGE as u64).unwrap();
    assert_eq!(file.write(&filled(1, 3), 0..PAGE, 0), Err(Errno::IO));
    let mut found = vec![0; 4 * PAGE];
    assert_eq!(file.read_buffered(&mut found, 0), Ok(3 * PAGE));
    assert!(found[..PAGE] == contents(0, PAGE)[..] && found[PAGE..2 * PAGE] == [3; PAGE]);
}

#[test]
fn what_stat_says() {
    let directory = directory();
    let path = make_file(directory.path(), "file", 1234);
    let file = StoreFile::open(&path, false, None).unwrap();
    let (stat, metadata) = (file.stat().unwrap(), std::fs::metadata(&path).unwrap());
    let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
    assert_eq!(stat.size, 1234);
    assert_eq!(stat.mtime_ns, ns(metadata.mtime(), metadata.mtime_nsec()));
    assert_eq!(stat.ctime_ns, ns(metadata.ctime(), metadata.ctime_nsec()));
}

#[test]
fn only_regular_files_open() {
    let directory = directory();
    let fifo = directory.path().join("fifo");
    let status = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(status.success());
    for path in [directory.path(), &fifo, Path::new("/dev/null")] {
        assert_eq!(StoreFile::open(path, true, None).unwrap_err(), Errno::INVAL, "{}", path.display());
    }
    let absent = directory.path().join("absent");
    assert_eq!(StoreFile::open(&absent, false, None).unwrap_err(), Errno::NOENT);
}
