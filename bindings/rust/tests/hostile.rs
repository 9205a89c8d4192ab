//! What careless and hostile programs do with mappings.
#![allow(unsafe_code)]

mod apart;

use apart::{apart, scratch};
use elbowroom::{
    Advice, Budget, FileSharing, Mmap, MmapAsRawDesc, MmapMut, MmapOptions, MmapRaw, RemapOptions,
};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// A file with bytes that tell their places.
fn patterned(path: &Path, len: usize) -> Vec<u8> {
    let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + at / PAGE) as u8).collect();
    std::fs::write(path, &bytes).unwrap();
    bytes
}

/// Only a process with CAP_SYS_ADMIN can know that it uses a file alone.
fn is_root() -> bool {
    // SAFETY: a system call without arguments.
    unsafe { libc::geteuid() == 0 }
}

/// Maps a file for loads.
fn map(options: &MmapOptions, file: impl MmapAsRawDesc) -> io::Result<Mmap> {
    // SAFETY: the tests know that bytes change by other mappings, and take nothing for granted of them.
    unsafe { options.map(file) }
}

/// Maps a file for stores.
fn map_mut(options: &MmapOptions, file: impl MmapAsRawDesc) -> io::Result<MmapMut> {
    // SAFETY: as for `map`.
    unsafe { options.map_mut(file) }
}

/// Maps a file for stores that stay in the mapping.
fn map_copy(options: &MmapOptions, file: impl MmapAsRawDesc) -> io::Result<MmapMut> {
    // SAFETY: as for `map`.
    unsafe { options.map_copy(file) }
}

/// Maps a file for loads of what is private.
fn map_copy_read_only(options: &MmapOptions, file: impl MmapAsRawDesc) -> io::Result<Mmap> {
    // SAFETY: as for `map`.
    unsafe { options.map_copy_read_only(file) }
}

/// Maps a file for execution.
fn map_exec(options: &MmapOptions, file: impl MmapAsRawDesc) -> io::Result<Mmap> {
    // SAFETY: as for `map`; nothing is executed.
    unsafe { options.map_exec(file) }
}

/// Changes the length of a mapping.
fn remap(map: &mut MmapMut, len: usize, may_move: bool) -> io::Result<()> {
    // SAFETY: the mapping is borrowed alone, and its file is as long.
    unsafe { map.remap(len, RemapOptions::new().may_move(may_move)) }
}

#[test]
fn nothing_can_be_mapped_and_grows() {
    let directory = scratch();
    let file = open(&directory.path().join("empty"));
    let map = map(&MmapOptions::new(), &file).unwrap();
    assert!(map.is_empty());
    assert_eq!(&map[..], b"");
    let mut map = map_mut(&MmapOptions::new(), &file).unwrap();
    map.flush().unwrap();
    map.flush_async().unwrap();
    map.advise(Advice::Sequential).unwrap();
    map.lock().unwrap();
    map.unlock().unwrap();
    elbowroom::set_len(&file, 3 * PAGE as u64).unwrap();
    remap(&mut map, 3 * PAGE, true).unwrap();
    map[2 * PAGE] = 7;
    remap(&mut map, 0, false).unwrap();
    assert!(map.is_empty());
    drop(map);
    assert_eq!(std::fs::read(directory.path().join("empty")).unwrap()[2 * PAGE], 7);

    let mut map = MmapMut::map_anon(0).unwrap();
    assert!(map.is_empty());
    remap(&mut map, 5 * PAGE + 1, true).unwrap();
    map[5 * PAGE] = 3;
    assert_eq!(map.len(), 5 * PAGE + 1);
}

#[test]
fn any_byte_may_be_the_first_and_the_last() {
    let directory = scratch();
    let path = directory.path().join("bytes");
    let bytes = patterned(&path, 5 * PAGE + 77);
    let file = File::open(&path).unwrap();
    for offset in [0, 1, 77, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 5, bytes.len() - 1, bytes.len()] {
        let map = map(MmapOptions::new().offset(offset as u64), &file).unwrap();
        assert_eq!(map[..], bytes[offset..], "from {offset} on");
        for len in [0, 1, PAGE - 1, PAGE + 3].into_iter().filter(|len| offset + len <= bytes.len()) {
            let map = map_copy(MmapOptions::new().offset(offset as u64).len(len), &file).unwrap();
            assert_eq!(map[..], bytes[offset..offset + len], "{len} bytes from {offset} on");
        }
    }
}

#[test]
fn places_that_no_file_has_are_errors() {
    let directory = scratch();
    let path = directory.path().join("short");
    patterned(&path, 100);
    let file = File::open(&path).unwrap();
    let failed = |options: &MmapOptions| map(options, &file).unwrap_err();
    assert_eq!(failed(MmapOptions::new().offset(101)).kind(), ErrorKind::InvalidData);
    assert_eq!(failed(MmapOptions::new().offset(u64::MAX)).kind(), ErrorKind::InvalidData);
    assert_eq!(failed(MmapOptions::new().len(usize::MAX)).kind(), ErrorKind::InvalidData);
    let error = failed(MmapOptions::new().offset(u64::MAX - 5).len(1));
    assert_eq!(error.raw_os_error(), Some(libc::EOVERFLOW));
    let error = failed(MmapOptions::new().offset(i64::MAX as u64).len(PAGE));
    assert_eq!(error.raw_os_error(), Some(libc::EOVERFLOW));
    let error = failed(MmapOptions::new().len(isize::MAX as usize));
    assert_eq!(error.raw_os_error(), Some(libc::ENOMEM), "{error}");
    let error = MmapOptions::new().len(isize::MAX as usize).no_reserve_swap().map_anon().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOMEM), "{error}");
    assert_eq!(MmapMut::map_anon(usize::MAX).unwrap_err().kind(), ErrorKind::InvalidData);
    assert_eq!(MmapMut::map_anon(isize::MAX as usize).unwrap_err().kind(), ErrorKind::OutOfMemory);
    assert_eq!(
        MmapOptions::new().huge(Some(30)).len(1 << 30).map_anon().unwrap_err().kind(),
        ErrorKind::Unsupported
    );

    // Beyond the end, but not touched.
    let map = map(MmapOptions::new().offset(1 << 30).len(PAGE), &file).unwrap();
    assert_eq!(map.len(), PAGE);
}

#[test]
fn descriptors_that_do_not_permit_it_are_errors() {
    let directory = scratch();
    let path = directory.path().join("file");
    patterned(&path, PAGE);
    let denied = |file: &File| {
        let map = map_mut(MmapOptions::new().len(10), file);
        map.unwrap_err().raw_os_error().unwrap()
    };
    assert_eq!(denied(&File::open(&path).unwrap()), libc::EACCES);
    let for_writing = OpenOptions::new().write(true).open(&path).unwrap();
    assert_eq!(denied(&for_writing), libc::EACCES);
    let error = map(&MmapOptions::new(), &for_writing).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    let only_a_path = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(&path).unwrap();
    assert_eq!(denied(&only_a_path), libc::EBADF);
    assert_eq!(map(&MmapOptions::new(), -1).unwrap_err().raw_os_error(), Some(libc::EBADF));
    let directory_itself = File::open(directory.path()).unwrap();
    assert!(map(MmapOptions::new().len(10), &directory_itself).is_err());

    let map = map(&MmapOptions::new(), &File::open(&path).unwrap()).unwrap();
    assert_eq!(map.make_mut().unwrap_err().kind(), ErrorKind::PermissionDenied);
    let zeros = map_copy(MmapOptions::new().len(PAGE), &File::open("/dev/zero").unwrap()).unwrap();
    assert_eq!((zeros[PAGE - 1], zeros.is_managed()), (0, false));
    let code = map_exec(&MmapOptions::new(), &File::open(&path).unwrap()).unwrap();
    assert!(!code.is_managed() && code.unmanaged_reason().is_some());
}

#[test]
fn ranges_outside_of_a_mapping_are_errors() {
    let map = MmapMut::map_anon(2 * PAGE).unwrap();
    for (offset, len) in [(2 * PAGE, 1), (1, 2 * PAGE), (usize::MAX, 2), (0, usize::MAX), (PAGE, usize::MAX)]
    {
        let kinds = [
            map.flush_range(offset, len).unwrap_err().kind(),
            map.flush_async_range(offset, len).unwrap_err().kind(),
            map.advise_range(Advice::Random, offset, len).unwrap_err().kind(),
        ];
        assert_eq!(kinds, [ErrorKind::InvalidInput; 3], "{len} bytes from {offset} on");
    }
    map.flush_range(2 * PAGE, 0).unwrap();
    assert_eq!(map.advise(Advice::HwPoison).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn mappings_of_one_file_see_each_other() {
    let directory = scratch();
    let path = directory.path().join("shared");
    patterned(&path, 3 * PAGE);
    let file = open(&path);
    let mut one = map_mut(&MmapOptions::new(), &file).unwrap();
    let mut other = map_mut(MmapOptions::new().offset(PAGE as u64), &open(&path)).unwrap();
    let loads = map(&MmapOptions::new(), &file).unwrap();
    let copy = map_copy(&MmapOptions::new(), &file).unwrap();
    // Before they are used in turn, all the time: then the file may go to the kernel.
    if is_root() {
        assert!(one.is_managed() && other.is_managed() && loads.is_managed(), "{:?}", one.unmanaged_reason());
    }
    for round in 0..50_u8 {
        one[PAGE + 3] = round;
        assert_eq!((other[3], loads[PAGE + 3], copy[PAGE + 3]), (round, round, round));
        other[4] = round ^ 0xff;
        assert_eq!((one[PAGE + 4], loads[PAGE + 4]), (round ^ 0xff, round ^ 0xff));
    }
    // And when one of them is the kernel's: then all are.
    let code = map_exec(&MmapOptions::new(), &file).unwrap();
    assert!(!one.is_managed() && !loads.is_managed());
    one[5] = 99;
    assert_eq!((loads[5], code[5]), (99, 99));
}

#[test]
fn copies_are_private() {
    let directory = scratch();
    let path = directory.path().join("copied");
    let bytes = patterned(&path, 3 * PAGE);
    let file = File::open(&path).unwrap();
    let mut one = map_copy(&MmapOptions::new(), &file).unwrap();
    let mut other = map_copy_read_only(&MmapOptions::new(), &file).unwrap().make_mut().unwrap();
    one.fill(1);
    other[PAGE] = 2;
    one.flush().unwrap();
    assert_eq!((one[PAGE], other[PAGE], other[0]), (1, 2, bytes[0]));
    drop((one, other));
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

#[test]
fn what_is_flushed_or_dropped_is_read_by_others() {
    let directory = scratch();
    let path = directory.path().join("flushed");
    patterned(&path, 4 * PAGE);
    let mut file = open(&path);
    let mut map = map_mut(&MmapOptions::new(), &file).unwrap();
    for round in 1..20_u8 {
        map[PAGE..PAGE + 10].fill(round);
        map.flush_range(PAGE + 3, 1).unwrap();
        let mut read = [0; 10];
        file.seek(SeekFrom::Start(PAGE as u64)).unwrap();
        file.read_exact(&mut read).unwrap();
        assert_eq!(read, [round; 10]);
    }
    map[3 * PAGE] = 77;
    drop(map);
    assert_eq!(std::fs::read(&path).unwrap()[3 * PAGE], 77);

    // Without either, within the write-back's interval.
    let mut map = map_mut(&MmapOptions::new(), &file).unwrap();
    map[2 * PAGE] = 78;
    let deadline = Instant::now() + Duration::from_secs(10);
    while std::fs::read(&path).unwrap()[2 * PAGE] != 78 {
        assert!(Instant::now() < deadline, "never written back");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_mapping_can_be_dropped_anywhere() {
    let directory = scratch();
    let path = directory.path().join("sent");
    patterned(&path, 64 * PAGE);
    let file = open(&path);
    let threads: Vec<_> = (0..16_usize)
        .map(|nth| {
            let mut map = map_mut(&MmapOptions::new(), &file).unwrap();
            thread::spawn(move || {
                map[nth * PAGE] = 200 + nth as u8;
                let last = thread::spawn(move || drop(map));
                last.join().unwrap();
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    drop(file);
    let read = std::fs::read(&path).unwrap();
    assert!((0..16).all(|nth| read[nth * PAGE] == 200 + nth as u8));
}

/// The process's resident bytes, descriptors and lines of /proc/self/maps.
fn footprint() -> (u64, usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let rss = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kib: u64 = rss.split_whitespace().nth(1).unwrap().parse().unwrap();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    (kib << 10, descriptors, std::fs::read_to_string("/proc/self/maps").unwrap().lines().count())
}

#[test]
fn ten_thousand_mappings_leave_nothing() {
    let directory = scratch();
    let ended = apart("ten_thousand_mappings_leave_nothing", directory.path(), |directory| {
        let path = directory.join("again");
        let bytes = patterned(&path, 4 * PAGE);
        let round = |nth: usize| {
            let budget = (nth.is_multiple_of(64)).then(|| Budget::with_memory("8MiB").unwrap());
            let mut options = MmapOptions::new();
            if let Some(budget) = &budget {
                options.budget(budget);
            }
            let map = map(&options, &File::open(&path).unwrap()).unwrap();
            assert_eq!(map[nth % bytes.len()], bytes[nth % bytes.len()]);
            drop(map);
            if nth.is_multiple_of(4) {
                let mut memory = options.len(3 * PAGE).map_anon().unwrap();
                memory[PAGE] = 1;
            }
            if nth.is_multiple_of(16) {
                let mut map = map_mut(&MmapOptions::new(), &open(&path)).unwrap();
                map[0] = bytes[0];
            }
        };
        // A place for a group keeps what it was made of; there are 1,023.
        (0..1_100).for_each(|_| drop(Budget::with_memory("8MiB").unwrap()));
        (0..1_000).for_each(round);
        let (rss, descriptors, maps) = footprint();
        (1_000..10_000).for_each(round);
        let after = footprint();
        assert!(after.0 < rss + (3 << 20), "{rss} bytes resident, then {}", after.0);
        assert!(after.1 <= descriptors + 2, "{descriptors} descriptors, then {}", after.1);
        assert!(after.2 <= maps + 20, "{maps} mappings of the kernel, then {}", after.2);
    });
    if let Some((status, text)) = ended {
        assert!(status.success(), "{status}: {text}");
    }
}

#[test]
fn a_load_beyond_a_new_end_is_sigbus() {
    let directory = scratch();
    let ended = apart("a_load_beyond_a_new_end_is_sigbus", directory.path(), |directory| {
        let path = directory.join("cut");
        patterned(&path, 8 * PAGE);
        let file = open(&path);
        let mut map = map_mut(&MmapOptions::new(), &file).unwrap();
        map[5 * PAGE] = 1;
        elbowroom::set_len(&file, 2 * PAGE as u64).unwrap();
        map[PAGE] = 9;
        map.flush().unwrap();
        assert_eq!(file.metadata().unwrap().len(), 2 * PAGE as u64, "what was cut is written again");
        elbowroom::set_len(&file, 6 * PAGE as u64).unwrap();
        assert_eq!((map[PAGE], map[5 * PAGE]), (9, 0), "what was cut is there again");
        elbowroom::set_len(&file, PAGE as u64).unwrap();
        eprintln!("as it should be so far");
        std::hint::black_box(map[3 * PAGE]);
        eprintln!("a byte beyond the end could be loaded");
    });
    if let Some((status, text)) = ended {
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}: {text}");
        assert!(text.contains("as it should be so far"), "{text}");
    }
}

#[test]
fn a_file_that_is_cut_behind_the_managers_back_is_sigbus_at_last() {
    let name = "a_file_that_is_cut_behind_the_managers_back_is_sigbus_at_last";
    let directory = scratch();
    let ended = apart(name, directory.path(), |directory| {
        let path = directory.join("cut");
        let bytes = patterned(&path, 8 * PAGE);
        let map = map(&MmapOptions::new(), &File::open(&path).unwrap()).unwrap();
        assert_eq!(map[7 * PAGE], bytes[7 * PAGE]);
        open(&path).set_len(10).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            // What is in memory may be loaded for a moment.
            assert_eq!(std::hint::black_box(map[7 * PAGE]), bytes[7 * PAGE]);
            thread::sleep(Duration::from_millis(20));
        }
    });
    if let Some((status, text)) = ended {
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}: {text}");
    }
}

#[test]
fn a_fork_in_the_middle_of_faults_leaves_both_sides_right() {
    let directory = scratch();
    let ended =
        apart("a_fork_in_the_middle_of_faults_leaves_both_sides_right", directory.path(), |directory| {
            let path = directory.join("forked");
            let bytes = patterned(&path, 2048 * PAGE);
            let budget = Budget::with_memory("4MiB").unwrap();
            let file = File::open(&path).unwrap();
            let map = map(&budget.options(), &file).unwrap();
            let mut memory = budget.map_anon(2048 * PAGE).unwrap();
            memory.iter_mut().zip(&bytes).step_by(PAGE).for_each(|(byte, is)| *byte = !*is);
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                for nth in 0..3_usize {
                    let (map, bytes, stop) = (&map, &bytes, &stop);
                    scope.spawn(move || {
                        let mut at = nth * 700 * PAGE;
                        while !stop.load(Ordering::Relaxed) {
                            at = (at + 17 * PAGE + 1) % bytes.len();
                            assert_eq!(map[at], bytes[at]);
                        }
                    });
                }
                for round in 0..3_u8 {
                    // SAFETY: the child only loads, stores and ends.
                    let child = unsafe { libc::fork() };
                    if child == 0 {
                        let right = (0..bytes.len()).step_by(3 * PAGE).all(|at| map[at] == bytes[at]);
                        let own = (0..bytes.len()).step_by(PAGE).all(|at| memory[at] == !bytes[at]);
                        memory[0] = 99;
                        let own = own && memory[0] == 99;
                        let anew =
                            crate::map(&MmapOptions::new(), &file).is_ok_and(|map| map[PAGE] == bytes[PAGE]);
                        // SAFETY: ends the child without running what the parent has at its end.
                        unsafe {
                            libc::_exit(i32::from(!right) + 2 * i32::from(!own) + 4 * i32::from(!anew))
                        };
                    }
                    assert!(child > 0);
                    let mut status = 0;
                    // SAFETY: waits for the child just made.
                    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                    assert_eq!(status, 0, "of child {round}");
                    assert_eq!(memory[0], !bytes[0], "a store of a child");
                }
                stop.store(true, Ordering::Relaxed);
            });
            // Threads that start children do so all the time.
            assert!(Command::new("/bin/true").status().unwrap().success());
        });
    if let Some((status, text)) = ended {
        assert!(status.success(), "{status}: {text}");
    }
}

#[test]
fn a_process_that_closes_all_descriptors_keeps_its_mappings() {
    let directory = scratch();
    let ended =
        apart("a_process_that_closes_all_descriptors_keeps_its_mappings", directory.path(), |directory| {
            let path = directory.join("daemon");
            let bytes = patterned(&path, 4096 * PAGE);
            let budget = Budget::with_memory("2MiB").unwrap();
            let map = map(&budget.options(), &File::open(&path).unwrap()).unwrap();
            let mut memory = budget.map_anon(4 << 20).unwrap();
            memory.fill(5);
            // SAFETY: what this process has open is not used any more.
            unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
            assert!(map[..] == bytes[..], "the file's bytes");
            assert!(memory.iter().all(|byte| *byte == 5), "the memory's bytes");
        });
    if let Some((status, text)) = ended {
        assert!(status.success(), "{status}: {text}");
    }
}

#[test]
fn what_is_stored_is_in_the_file_after_the_end_of_the_process() {
    let directory = scratch();
    let ended =
        apart("what_is_stored_is_in_the_file_after_the_end_of_the_process", directory.path(), |directory| {
            let path = directory.join("left");
            patterned(&path, 4 * PAGE);
            let mut map = map_mut(&MmapOptions::new(), &open(&path)).unwrap();
            map[PAGE] = 123;
            // As a static's value: it is never dropped.
            std::mem::forget(map);
            std::process::exit(0);
        });
    if let Some((status, text)) = ended {
        assert!(status.success(), "{status}: {text}");
        assert_eq!(std::fs::read(directory.path().join("left")).unwrap()[PAGE], 123);
    }
}

#[test]
fn a_machine_that_lacks_something_is_an_error_that_says_what() {
    let directory = scratch();
    let name = "a_machine_that_lacks_something_is_an_error_that_says_what";
    let ended = apart(name, directory.path(), |_| {
        let limit = libc::rlimit { rlim_cur: 1 << 28, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: reads one `rlimit`.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
        for _ in 0..3 {
            let error = MmapMut::map_anon(PAGE).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().len() > 20, "{error}");
            eprintln!("{error}");
        }
        let all = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const all) }, 0);
        let mut map = MmapMut::map_anon(PAGE).unwrap();
        map[0] = 1;
    });
    if let Some((status, text)) = ended {
        assert!(status.success(), "{status}: {text}");
        assert!(text.contains("elbowroom: "), "{text}");
    }
}

#[test]
fn a_budget_holds_and_its_limit_can_be_changed() {
    let directory = scratch();
    let path = directory.path().join("large");
    let bytes = patterned(&path, 16 << 20);
    let budget = Budget::with_swap("4MiB", "64MiB").unwrap();
    let map = map(&budget.options(), &File::open(&path).unwrap()).unwrap();
    assert!(map[..] == bytes[..]);
    let mut memory = budget.map_anon(16 << 20).unwrap();
    memory.copy_from_slice(&bytes);
    assert!(memory[..] == bytes[..]);
    let stats = budget.stats().unwrap();
    assert!(stats.peak_bytes <= 4 << 20 && stats.swap_bytes > 8 << 20, "{stats:?}");
    budget.set_limit("2MiB").unwrap();
    assert!(budget.stats().unwrap().usage_bytes <= 2 << 20);
    assert!(memory[..] == bytes[..] && map[..] == bytes[..]);
    assert_eq!(budget.set_limit("1MiB").map_err(|e| e.kind()), Ok(()));
    assert_eq!(budget.set_limit("4k").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(Budget::with_memory(3).unwrap_err().kind(), ErrorKind::InvalidInput);

    let error = budget.map_anon(60 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    let inner = budget.inner("1MiB").unwrap();
    let error = inner.map_anon(60 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "the outer one: {error}");
    drop(memory);
    let mut memory = inner.map_anon(2 << 20).unwrap();
    memory.fill(1);
    assert_eq!(budget.stats().unwrap().anonymous_bytes, 2 << 20);
    remap(&mut memory, PAGE, false).unwrap();
    assert_eq!(budget.stats().unwrap().anonymous_bytes, PAGE as u64);
    assert!(remap(&mut memory, 1 << 30, true).is_err());
    assert_eq!((memory[PAGE - 1], budget.stats().unwrap().anonymous_bytes), (1, PAGE as u64));
}

#[test]
fn a_file_that_another_process_has_open_is_the_kernels_once_it_is_stored_to() {
    let directory = scratch();
    let path = directory.path().join("contested");
    let bytes = patterned(&path, 4 * PAGE);
    let file = open(&path);
    // Its descriptor 0 is the file. No fork is made for that, which would give all files to the kernel.
    let stdin = Stdio::from(file.try_clone().unwrap());
    let mut child = Command::new("/bin/sleep").arg("30").stdin(stdin).spawn().unwrap();

    let map = map(&MmapOptions::new(), &file).unwrap();
    assert!(map.is_managed(), "{:?}", map.unmanaged_reason());
    assert!(map[..] == bytes[..]);
    let mut map = map.make_mut().unwrap();
    assert!(!map.is_managed());
    map[PAGE] = 1;
    assert_eq!(std::fs::read(&path).unwrap()[PAGE], 1);
    let again = MmapRaw::map_raw(&file).unwrap();
    assert!(again.unmanaged_reason().is_some());
    // SAFETY: the byte is in the mapping.
    assert_eq!(unsafe { again.as_ptr().add(PAGE).read_volatile() }, 1);
    drop((map, again));

    let trusted = directory.path().join("trusted");
    patterned(&trusted, PAGE);
    let trusted = map_mut(MmapOptions::new().sharing(FileSharing::Trust), &open(&trusted)).unwrap();
    assert!(trusted.is_managed());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_descriptor_that_others_close_and_open_again_never_shows_other_bytes() {
    let directory = scratch();
    let (one, other) = (directory.path().join("one"), directory.path().join("other"));
    std::fs::write(&one, vec![1; PAGE]).unwrap();
    std::fs::write(&other, vec![2; 64 * PAGE]).unwrap();
    let stop = AtomicBool::new(false);
    let number = File::open(&one).unwrap();
    let fd = number.as_raw_fd();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for path in [&other, &one] {
                    let file = File::open(path).unwrap();
                    // SAFETY: replaces a descriptor that is this test's.
                    assert!(unsafe { libc::dup2(file.as_raw_fd(), fd) } >= 0);
                }
            }
        });
        for _ in 0..2_000 {
            // A length that both files have: which of the two is mapped is chance, but it is one of them.
            if let Ok(map) = map(MmapOptions::new().len(PAGE), fd) {
                assert!(map.iter().all(|byte| *byte == map[0]) && [1, 2].contains(&map[0]));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn mappings_are_written_by_many_threads_at_once() {
    let directory = scratch();
    let path = directory.path().join("threads");
    let mut file = open(&path);
    file.write_all(&vec![0; 8 << 20]).unwrap();
    let budget = Budget::with_memory("2MiB").unwrap();
    let mut map = map_mut(&budget.options(), &file).unwrap();
    thread::scope(|scope| {
        for (nth, part) in map.chunks_mut(1 << 20).enumerate() {
            scope.spawn(move || {
                part.fill(nth as u8 + 1);
                assert!(part.iter().all(|byte| *byte == nth as u8 + 1));
            });
        }
    });
    map.flush().unwrap();
    let read = std::fs::read(&path).unwrap();
    assert!(
        read.chunks(1 << 20).enumerate().all(|(nth, part)| part.iter().all(|byte| *byte == nth as u8 + 1))
    );
}

/// Found by random.rs: the manager mapped a file for stores that the kernel mapped already, for loads.
#[test]
fn a_file_that_the_kernel_maps_stays_the_kernels() {
    let directory = scratch();
    let path = directory.path().join("kernels");
    patterned(&path, 2 * PAGE);
    let file = open(&path);
    let first = map_exec(&MmapOptions::new(), &file).unwrap();
    let mut second = map_mut(&MmapOptions::new(), &file).unwrap();
    second[PAGE] = 200;
    assert_eq!(first[PAGE], 200, "a store is not seen by the other mapping");
    assert!(!second.is_managed() && second.unmanaged_reason().is_some());
    drop((first, second));
    // When the last of these is gone, the manager can have it.
    let again = map_mut(&MmapOptions::new(), &file).unwrap();
    assert_eq!((again[PAGE], again.is_managed()), (200, is_root()));
}

#[test]
fn a_mapping_by_the_kernel_keeps_no_descriptor() {
    let ended = apart("a_mapping_by_the_kernel_keeps_no_descriptor", Path::new("/dev/shm"), |directory| {
        let path = directory.join(format!("elbowroom-{}", std::process::id()));
        let bytes = patterned(&path, 4 * PAGE);
        let file = open(&path);
        std::fs::remove_file(&path).unwrap();
        let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let first = map(&MmapOptions::new(), &file).unwrap();
        let before = descriptors();
        let second = map(&MmapOptions::new(), &file).unwrap();
        assert!(!second.is_managed() && second[..] == bytes[..]);
        assert_eq!(descriptors(), before);
        let mut stored = second.make_mut().unwrap();
        stored[PAGE] = !bytes[PAGE];
        assert_eq!(first[PAGE], !bytes[PAGE]);
    });
    if let Some((status, text)) = ended {
        assert!(status.success(), "{status}: {text}");
    }
}
