//! Each of these runs in a process of its own, since limits are a process's.

use super::*;
use std::fs::File;
use std::process::Command;
use std::sync::mpsc;

/// Runs `body` in a child that runs only the test of this name, with these limits.
fn alone(name: &str, soft: u64, hard: u64, body: impl FnOnce()) {
    const MARK: &str = "ELBOWROOM_LIMITS_TEST";
    if std::env::var_os(MARK).is_some() {
        set(soft, hard);
        return body();
    }
    let _alone = crate::shared::one_at_a_time();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("limits::tests::{name}"), "--nocapture"]).env(MARK, "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn set(soft: u64, hard: u64) {
    let limit = Rlimit { current: Some(soft), maximum: Some(hard) };
    rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
}

fn soft() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap()
}

fn null() -> Result<OwnedFd, Errno> {
    File::open("/dev/null").map(OwnedFd::from).map_err(|error| Errno::from_io_error(&error).unwrap())
}

#[test]
fn low_numbers_are_left_when_no_others_are() {
    alone("low_numbers_are_left_when_no_others_are", 20, 200, || {
        let any = null().unwrap();
        assert!(is_room(any.as_fd()));
        let mut kept: Vec<Descriptor> = Vec::new();
        while is_room(any.as_fd()) {
            kept.push(open_kept(null).unwrap());
        }
        assert_eq!(kept.len() as u64, 200 - SPARE - FIRST_KEPT as u64);
        let error = loop {
            match open_kept(null) {
                Ok(fd) => kept.push(fd),
                Err(error) => break error,
            }
        };
        assert_eq!((error, kept.len() as u64), (Errno::MFILE, 200 - FIRST_KEPT as u64));
        assert!(kept.iter().all(|fd| fd.as_fd().as_raw_fd() >= FIRST_KEPT));
        assert!(open_briefly(null).is_ok());
        assert_eq!(with_room(any.as_fd(), || 7), Some(7));
        let mut low = Vec::new();
        while let Ok(fd) = raised(null) {
            low.push(fd);
        }
        assert_eq!(with_room(any.as_fd(), || 7), None);
        low.pop();
        assert_eq!(with_room(any.as_fd(), || 7), Some(7));
        assert_eq!(soft(), 20);
    });
}

#[test]
fn nothing_is_kept_below_a_low_hard_limit() {
    alone("nothing_is_kept_below_a_low_hard_limit", 20, 30, || {
        let any = null().unwrap();
        assert!(!is_room(any.as_fd()));
        assert_eq!(open_kept(null).unwrap_err(), Errno::MFILE);
        assert!(open_briefly(null).is_ok());
    });
}

#[test]
fn calls_that_need_the_raised_limit_do_not_wait_for_each_other() {
    alone("calls_that_need_the_raised_limit_do_not_wait_for_each_other", 20, 200, || {
        raised(|| {
            assert_eq!(soft(), 200);
            std::thread::scope(|scope| {
                scope.spawn(|| raised(|| assert_eq!(soft(), 200))).join().unwrap();
                scope.spawn(|| assert_eq!(own_soft(), None)).join().unwrap();
            });
            assert_eq!(soft(), 200);
        });
        assert_eq!((soft(), own_soft()), (20, Some(20)));
    });
}

#[test]
fn a_limit_that_the_program_sets_meanwhile_stays() {
    alone("a_limit_that_the_program_sets_meanwhile_stays", 20, 200, || {
        let (begins, begun) = mpsc::channel();
        let setter = raised(|| {
            let begins = begins.clone();
            let setter = std::thread::spawn(move || {
                begins.send(()).unwrap();
                // What is set is what the limit is raised to.
                with_own_limit(|| (soft(), set(200, 200))).0
            });
            begun.recv().unwrap();
            setter
        });
        assert_eq!(setter.join().unwrap(), 20, "it has seen its own");
        assert_eq!(soft(), 200);
        with_own_limit(|| set(30, 100));
        raised(|| assert_eq!(soft(), 100));
        assert_eq!(soft(), 30);
    });
}

/// An exec, for one, which may wait for our threads.
#[test]
fn a_long_call_with_the_own_limit_holds_nobody_up() {
    alone("a_long_call_with_the_own_limit_holds_nobody_up", 20, 200, || {
        with_own_limit(|| {
            let inside = std::thread::spawn(|| raised(soft)).join().unwrap();
            assert_eq!(inside, 20, "not raised");
        });
        assert_eq!(raised(soft), 200);
    });
}

#[test]
fn a_file_of_our_own_gets_its_size_under_a_low_limit() {
    alone("a_file_of_our_own_gets_its_size_under_a_low_limit", 100, 200, || {
        let own = Rlimit { current: Some(4096), maximum: getrlimit(Resource::Fsize).maximum };
        rustix::process::setrlimit(Resource::Fsize, own).unwrap();
        let dir = std::env::temp_dir();
        let file = crate::StoreFile::temporary(&dir, 1 << 20, None).unwrap();
        assert_eq!(file.stat().unwrap().size, 1 << 20);
        assert_eq!(getrlimit(Resource::Fsize), own, "as before");
        with_own_limit(|| {
            let file = crate::StoreFile::temporary(&dir, 1 << 20, None).unwrap();
            // As large as may be, and no signal; or larger where the file system puts a hole in front.
            let size = file.stat().unwrap().size;
            assert!(size == 4096 || size >= 1 << 20, "{size}");
        });
        // What is written beyond the limit goes where it belongs, in one part or several.
        let extents = [7, 8, 9].map(|byte| {
            let mut extent = crate::test_extent::extent(0);
            extent.bytes_mut().fill(byte);
            extent
        });
        let parts: Vec<_> = extents.iter().map(|extent| (extent, 0..4096)).collect();
        file.write_vectored(&parts, 8192).unwrap();
        file.write(&extents[2], 0..100, 5).unwrap();
        let mut found = vec![0; 8192 + 3 * 4096];
        assert_eq!(file.read_buffered(&mut found, 0), Ok(found.len()));
        for (at, byte) in found.iter().enumerate() {
            let expected = match at {
                5..105 => 9,
                0..8192 => 0,
                _ => 7 + ((at - 8192) / 4096) as u8,
            };
            assert_eq!(*byte, expected, "byte {at}");
        }
    });
}
