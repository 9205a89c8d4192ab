//! The same tests for both reactors.

mod common;

use common::*;
use elbowroom_store::{EngineKind, Errno, Read, StoreFile, Woken};
use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

for_each_engine!(
    many_reads_with_right_contents,
    the_end_of_the_file,
    refused_requests,
    injected_errors,
    injected_short_reads,
    slow_reads_hold_nobody_up,
    errors_can_be_slow,
    direct_io_refused,
    faults_of_the_file,
    kicks,
    the_watched_descriptor,
    timeouts,
    dropped_with_reads_in_flight,
    made_here_used_there,
    buffered_reads_leave_no_cache,
);

/// More reads at a time than a ring has entries, of 1 to 8 pages, at offsets that jump about.
fn many_reads_with_right_contents(kind: EngineKind) {
    const FILE_PAGES: usize = 2048;
    let directory = directory();
    let file = open(&make_file(directory.path(), "many", FILE_PAGES * PAGE));
    let mut event_loop = Loop::new(kind, None);
    let mut pending = BTreeMap::new();
    let (mut started, mut finished, mut done) = (0_usize, 0, Vec::new());
    while finished < 3000 {
        while started < 3000 && pending.len() < 600 {
            let pages = 1 + started % 8;
            let page = started.wrapping_mul(7919) % (FILE_PAGES - 8);
            pending.insert(started as u64, (page, pages));
            event_loop.read(&file, page, pages, started as u64);
            started += 1;
        }
        assert_eq!(event_loop.reactor.in_flight(), pending.len());
        event_loop.reactor.wait(Some(LONG), &mut done).unwrap();
        for read in done.drain(..) {
            let (page, pages) = pending.remove(&read.token).expect("each token comes back once");
            assert_read(&read, page, pages * PAGE);
            finished += 1;
        }
    }
    assert_eq!(event_loop.reactor.in_flight(), 0);
    assert_eq!(event_loop.wake(Duration::from_millis(1)), Woken::default());
}

fn the_end_of_the_file(kind: EngineKind) {
    let directory = directory();
    for tail in [1, 511, 512, 1024, 1536, 4095, 4096] {
        let len = 4 * PAGE + tail;
        let file = open(&make_file(directory.path(), &format!("tail-{tail}"), len));
        let mut event_loop = Loop::new(kind, None);
        for (token, (page, pages)) in [(0, 8), (4, 1), (3, 2), (5, 1), (100, 4)].into_iter().enumerate() {
            event_loop.read(&file, page, pages, token as u64);
        }
        let mut done = event_loop.finish(5);
        done.sort_by_key(|read| read.token);
        assert_read(&done[0], 0, len);
        assert_read(&done[1], 4, tail);
        assert_read(&done[2], 3, PAGE + tail);
        assert_read(&done[3], 5, 0);
        assert_read(&done[4], 100, 0);
    }
}

fn refused_requests(kind: EngineKind) {
    let directory = directory();
    let file = open(&make_file(directory.path(), "file", 8 * PAGE));
    let mut event_loop = Loop::new(kind, None);
    let read = |offset, len, token| Read { file: file.clone(), offset, len, buf: extent(1), token };
    event_loop.reactor.read(read(0, 2 * PAGE, 0));
    event_loop.reactor.read(read(u64::MAX, PAGE, 1));
    event_loop.reactor.read(read(i64::MAX as u64, PAGE, 2));
    event_loop.reactor.read(read(0, 0, 3));
    event_loop.reactor.read(read(0, PAGE, 4));
    let mut done = event_loop.finish(5);
    done.sort_by_key(|read| read.token);
    let results: Vec<_> = done.iter().map(|read| read.result).collect();
    let refused = Err(Errno::INVAL);
    assert_eq!(results, [refused, refused, refused, Ok(0), Ok(PAGE)]);
}

fn injected_errors(kind: EngineKind) {
    let directory = directory();
    let bad = open(&make_file(directory.path(), "bad", 16 * PAGE));
    let good = open(&make_file(directory.path(), "good", 16 * PAGE));
    let mut event_loop = Loop::new(kind, faults("read:eio:file=/bad:from=8192:to=12288"));
    for page in 0..16 {
        event_loop.read(&bad, page, 1, page as u64);
        event_loop.read(&good, page, 1, 100 + page as u64);
    }
    for read in event_loop.finish(32) {
        match read.token {
            2 => assert_eq!(read.result, Err(Errno::IO)),
            token => assert_read(&read, token as usize % 100, PAGE),
        }
    }
}

fn injected_short_reads(kind: EngineKind) {
    let directory = directory();
    let file = open(&make_file(directory.path(), "file", 64 * PAGE + 700));
    let mut event_loop = Loop::new(kind, faults("read:short"));
    for (token, (page, pages)) in [(0, 1), (1, 2), (3, 32), (64, 1), (60, 8)].into_iter().enumerate() {
        event_loop.read(&file, page, pages, token as u64);
    }
    let mut done = event_loop.finish(5);
    done.sort_by_key(|read| read.token);
    for (read, (page, len)) in
        done.iter().zip([(0, PAGE), (1, 2 * PAGE), (3, 32 * PAGE), (64, 700), (60, 4 * PAGE + 700)])
    {
        assert_read(read, page, len);
    }
}

/// So slow that what is not slow is done before on any machine.
fn slow_reads_hold_nobody_up(kind: EngineKind) {
    let directory = directory();
    let slow = open(&make_file(directory.path(), "slow", 4 * PAGE));
    let fast = open(&make_file(directory.path(), "fast", 4 * PAGE));
    let mut event_loop = Loop::new(kind, faults("read:slow=5s:file=/slow"));
    let start = Instant::now();
    for page in 0..4 {
        event_loop.read(&slow, page, 1, page as u64);
        event_loop.read(&fast, page, 1, 100 + page as u64);
    }
    assert!(event_loop.finish(4).iter().all(|read| read.token >= 100));
    assert_eq!(event_loop.reactor.in_flight(), 4);
    for read in event_loop.finish(4) {
        assert_read(&read, read.token as usize, PAGE);
    }
    // One after the other they would take 20 s.
    let took = start.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(15), "{took:?}");
}

fn errors_can_be_slow(kind: EngineKind) {
    let directory = directory();
    let file = open(&make_file(directory.path(), "file", PAGE));
    let mut event_loop = Loop::new(kind, faults("read:eio,read:slow=400ms"));
    let start = Instant::now();
    event_loop.read(&file, 0, 1, 5);
    // A wait may end before the read is done, and never gives it back before its time.
    let mut done = Vec::new();
    assert_eq!(event_loop.reactor.wait(Some(Duration::from_millis(5)), &mut done), Ok(Woken::default()));
    assert!(done.is_empty() || start.elapsed() >= Duration::from_millis(400));
    if done.is_empty() {
        done = event_loop.finish(1);
    }
    assert_eq!(done[0].result, Err(Errno::IO));
    assert!(start.elapsed() >= Duration::from_millis(400));
}

/// Both ways in which a file system refuses O_DIRECT: at once, and when it is used.
fn direct_io_refused(kind: EngineKind) {
    let directory = directory();
    let path = make_file(directory.path(), "file", 300 * PAGE + 1000);
    for text in ["open:nodirect", "read:nodirect"] {
        let file = Arc::new(StoreFile::open(&path, false, faults(text)).unwrap());
        let mut event_loop = Loop::new(kind, None);
        for page in 0..300 {
            event_loop.read(&file, page, 2, page as u64);
        }
        for read in event_loop.finish(300) {
            let page = read.token as usize;
            assert_read(&read, page, if page == 299 { PAGE + 1000 } else { 2 * PAGE });
        }
        assert!(!file.direct(), "{text}");
    }
}

fn faults_of_the_file(kind: EngineKind) {
    let directory = directory();
    let path = make_file(directory.path(), "file", 4 * PAGE);
    let file = Arc::new(StoreFile::open(&path, false, faults("read:enospc:after=1:times=1")).unwrap());
    let mut event_loop = Loop::new(kind, None);
    let mut results = Vec::new();
    for token in 0..3 {
        event_loop.read(&file, 0, 1, token);
        results.push(event_loop.finish(1)[0].result);
    }
    assert_eq!(results, [Ok(PAGE), Err(Errno::NOSPC), Ok(PAGE)]);
}

fn kicks(kind: EngineKind) {
    let kicked = Woken { readable: false, kicked: true };
    let mut event_loop = Loop::new(kind, None);
    // Before the wait: kept for it, and several are one.
    let kicker = event_loop.kicker();
    kicker.kick();
    kicker.clone().kick();
    assert_eq!(event_loop.wake(LONG), kicked);
    assert_eq!(event_loop.wake(Duration::from_millis(20)), Woken::default());
    // From other threads, as an answer to each other: none may be lost.
    let (asks, asked) = std::sync::mpsc::channel();
    let other = std::thread::spawn(move || asked.iter().for_each(|()| kicker.kick()));
    let start = Instant::now();
    for _ in 0..2000 {
        asks.send(()).unwrap();
        assert_eq!(event_loop.wake(LONG), kicked);
    }
    // Each may have to wait for a processor.
    assert!(start.elapsed() < 10 * LONG);
    drop(asks);
    other.join().unwrap();
    // What is over does not keep the loop busy.
    let cpu = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let before = cpu();
    assert_eq!(event_loop.wake(Duration::from_millis(300)), Woken::default());
    let used = Duration::try_from(cpu() - before).unwrap();
    assert!(used < Duration::from_millis(100), "an idle wait used {used:?} of CPU");
}

fn the_watched_descriptor(kind: EngineKind) {
    let readable = Woken { readable: true, kicked: false };
    let mut event_loop = Loop::new(kind, None);
    // Readable before the first wait.
    event_loop.ring();
    assert_eq!(event_loop.wake(LONG), readable);
    assert_eq!(event_loop.drain(), 1);
    // Again and again, from another thread that goes on only after the drain.
    let (asks, asked) = std::sync::mpsc::channel();
    let writer = event_loop.writer.try_clone().unwrap();
    let other = std::thread::spawn(move || {
        asked.iter().for_each(|()| {
            rustix::io::write(&writer, b"ab").unwrap();
        });
    });
    for _ in 0..2000 {
        asks.send(()).unwrap();
        let mut drained = 0;
        while drained == 0 {
            assert_eq!(event_loop.wake(LONG), readable);
            drained = event_loop.drain();
        }
        assert_eq!(drained, 2);
    }
    drop(asks);
    other.join().unwrap();
}

fn timeouts(kind: EngineKind) {
    let mut event_loop = Loop::new(kind, None);
    // No time is no time; but the processor may be taken away in any single one of these waits.
    let no_time = (0..20).map(|_| {
        let start = Instant::now();
        assert_eq!(event_loop.wake(Duration::ZERO), Woken::default());
        start.elapsed()
    });
    let least = no_time.min().unwrap();
    assert!(least < Duration::from_millis(100), "{least:?}");
    let start = Instant::now();
    assert_eq!(event_loop.wake(Duration::from_millis(50)), Woken::default());
    assert!(start.elapsed() >= Duration::from_millis(50));
    // No bound at all still ends by a kick.
    let kicker = event_loop.kicker();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        kicker.kick();
    });
    let woken = event_loop.reactor.wait(None, &mut Vec::new()).unwrap();
    assert!(woken.kicked);
    other.join().unwrap();
}

/// After the drop nothing may write into the buffers any more.
fn dropped_with_reads_in_flight(kind: EngineKind) {
    // The pool may be faster than a thread that has lost its processor.
    assert!((0..5).any(|_| drop_with_reads_in_flight(kind)), "no read was in flight");
}

/// Tells whether there were reads in flight.
fn drop_with_reads_in_flight(kind: EngineKind) -> bool {
    const PAGES: usize = 64;
    let directory = directory();
    let file = open(&make_file(directory.path(), "file", 1024 * PAGE));
    let mut event_loop = Loop::new(kind, None);
    let mut places = Vec::new();
    for token in 0..300 {
        let buf = extent(PAGES);
        places.push(buf.home_ptr());
        let offset = (token % 16) * (PAGES * PAGE) as u64;
        event_loop.reactor.read(Read { file: file.clone(), offset, len: PAGES * PAGE, buf, token });
    }
    event_loop.reactor.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap();
    let in_flight = event_loop.reactor.in_flight();
    drop(event_loop);
    for &place in &places {
        // SAFETY: the memory of test extents is never freed, and the reactor that owned this one is gone.
        unsafe { place.write_bytes(0xa5, PAGES * PAGE) };
    }
    std::thread::sleep(Duration::from_millis(100));
    for &place in &places {
        // SAFETY: as above; it was initialized just now.
        let bytes = unsafe { std::slice::from_raw_parts(place, PAGES * PAGE) };
        assert!(bytes.iter().all(|&b| b == 0xa5), "a read was still in flight");
    }
    in_flight > 0
}

fn made_here_used_there(kind: EngineKind) {
    let directory = directory();
    let file = open(&make_file(directory.path(), "file", 4 * PAGE));
    let mut event_loop = Loop::new(kind, None);
    event_loop.read(&file, 1, 1, 1);
    let mut event_loop = std::thread::spawn(move || {
        assert_read(&event_loop.finish(1)[0], 1, PAGE);
        event_loop
    })
    .join()
    .unwrap();
    // A ring belongs to the thread that waited first: another one gets an error, and may drop it.
    event_loop.read(&file, 2, 1, 2);
    let mut done = Vec::new();
    match event_loop.reactor.wait(Some(LONG), &mut done) {
        Ok(_) => assert_read(&done[0], 2, PAGE),
        Err(error) => assert_eq!((kind, error), (EngineKind::Uring, Errno::EXIST)),
    }
}

fn buffered_reads_leave_no_cache(kind: EngineKind) {
    let directory = directory();
    let path = make_file(directory.path(), "file", 64 * PAGE + 100);
    let file = Arc::new(StoreFile::open(&path, false, faults("open:nodirect")).unwrap());
    if is_in_memory(&file) {
        return skipped(
            "files of this directory are in memory, where there is nothing but the kernel's cache",
        );
    }
    let mut event_loop = Loop::new(kind, None);
    event_loop.read(&file, 0, 64, 0);
    event_loop.read(&file, 64, 1, 1);
    assert_eq!(event_loop.finish(2).len(), 2);
    let end = Instant::now() + LONG;
    while let pages @ 1.. = cached_pages(&file) {
        assert!(Instant::now() < end, "{pages} pages are still cached");
        event_loop.wake(Duration::from_millis(1));
    }
}

fn is_in_memory(file: &StoreFile) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    rustix::fs::fstatfs(file.as_fd()).unwrap().f_type as i64 == TMPFS_MAGIC
}

/// The pages of the file that the kernel caches. It must not look by reading: a page that is read while the
/// kernel drops its cache is in use, and stays.
fn cached_pages(file: &StoreFile) -> u64 {
    /// The same number on all architectures, but for alpha; since Linux 6.5.
    const CACHESTAT: libc::c_long = 451;
    let whole = [0u64; 2];
    let mut cached = [0u64; 5];
    // SAFETY: the kernel reads an offset and a length and writes five counts; both arrays are large enough
    // and live.
    let result = unsafe { libc::syscall(CACHESTAT, file.as_fd().as_raw_fd(), &whole, &mut cached, 0) };
    if result == 0 {
        return cached[0];
    }
    let error = std::io::Error::last_os_error();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSYS), "{error}");
    skipped("this kernel cannot say which pages of a file it caches (cachestat needs Linux 6.5)");
    0
}

#[test]
fn auto_takes_what_there_is() {
    let mut event_loop = Loop::new(EngineKind::Auto, None);
    event_loop.kicker().kick();
    assert!(event_loop.wake(LONG).kicked);
    for kind in [EngineKind::Auto, EngineKind::Uring, EngineKind::Threads] {
        assert!(matches!(elbowroom_store::reactor(kind, Some(-1), None, None), Err(Errno::BADF)));
    }
}

/// A descriptor that is not open is an error of the wait, at once and each time.
#[test]
fn a_closed_descriptor_is_an_error() {
    for kind in [EngineKind::Uring, EngineKind::Threads] {
        let mut reactor = elbowroom_store::reactor(kind, Some(1_000_000), None, None).unwrap();
        for _ in 0..2 {
            assert_eq!(reactor.wait(Some(LONG), &mut Vec::new()), Err(Errno::BADF), "{kind:?}");
        }
    }
}
