//! Files that are read and replaced whole: by several threads at once, and where that cannot be done.

use super::*;
use rustix::thread::{self, CapabilitySet};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;

const PATIENCE: Duration = Duration::from_secs(30);

fn replace(path: &Path, bytes: &[u8]) -> Result<(), WholeError> {
    replace_whole(path, 100, PATIENCE, |_| Some(bytes.to_vec()))
}

fn names(dir: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(name).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_made_and_replaced_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    assert_eq!(read_whole(&path, 100), Ok(None));
    replace_whole(&path, 100, PATIENCE, |before| {
        assert_eq!(before, Ok(Vec::new()));
        Some(b"one".to_vec())
    })
    .unwrap();
    assert_eq!(read_whole(&path, 3), Ok(Some(b"one".to_vec())));
    assert_eq!(read_whole(&path, 2), Err(WholeError::TooLarge));
    assert_eq!(read_begin(&path, 2), Ok(Some(b"on".to_vec())));
    let old = std::fs::metadata(&path).unwrap();
    assert_eq!(old.permissions().mode() & 0o777, 0o600);
    replace_whole(&path, 100, PATIENCE, |before| Some([before.unwrap(), b"two".to_vec()].concat())).unwrap();
    assert_eq!(read_whole(&path, 100), Ok(Some(b"onetwo".to_vec())));
    assert_ne!(std::fs::metadata(&path).unwrap().ino(), old.ino());
    replace_whole(&path, 2, PATIENCE, |before| {
        assert_eq!(before, Err(WholeError::TooLarge));
        None
    })
    .unwrap();
    assert_eq!(read_whole(&path, 100), Ok(Some(b"onetwo".to_vec())), "no bytes were given");
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn changes_by_many_at_once_are_all_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..25 {
                    replace_whole(path, 200, PATIENCE, |before| {
                        Some([before.unwrap(), vec![thread]].concat())
                    })
                    .unwrap();
                    assert!(read_whole(path, 200).unwrap().is_some_and(|bytes| !bytes.is_empty()));
                }
            });
        }
    });
    let bytes = read_whole(&path, 200).unwrap().unwrap();
    for thread in 0..4 {
        assert_eq!(bytes.iter().filter(|byte| **byte == thread).count(), 25);
    }
}

#[test]
fn a_lock_that_another_process_keeps_is_waited_for_within_a_bound() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, "theirs").unwrap();
    let theirs = std::fs::File::open(&path).unwrap();
    fs::flock(&theirs, FlockOperation::LockExclusive).unwrap();
    let since = Instant::now();
    let busy = replace_whole(&path, 100, Duration::from_millis(50), |_| panic!("it is locked"));
    assert_eq!(busy, Err(WholeError::Busy));
    assert!(since.elapsed() < Duration::from_secs(10));
    assert_eq!(read_whole(&path, 100), Ok(Some(b"theirs".to_vec())));
    drop(theirs);
    replace(&path, b"ours").unwrap();
}

#[test]
fn what_is_no_regular_file_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for path in [fifo.as_path(), dir.path(), Path::new("/dev/null")] {
        assert_eq!(read_whole(path, 100), Err(WholeError::NotRegular), "{}", path.display());
        assert_eq!(replace(path, b"x"), Err(WholeError::NotRegular), "{}", path.display());
    }
    let missing = dir.path().join("no/file");
    assert_eq!(read_whole(&missing, 100), Ok(None));
    assert_eq!(replace(&missing, b"x"), Err(WholeError::System(Errno::NOENT)));
    assert_eq!(names(dir.path()), ["fifo"]);
}

#[test]
fn the_file_behind_a_symbolic_link_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (file, link, lost) = (dir.path().join("file"), dir.path().join("link"), dir.path().join("lost"));
    std::fs::write(&file, "old").unwrap();
    symlink("file", &link).unwrap();
    symlink("nothing", &lost).unwrap();
    replace(&link, b"new").unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"new");
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(replace(&lost, b"x"), Err(WholeError::System(Errno::NOENT)), "a link to nothing");
    assert_eq!(names(dir.path()), ["file", "link", "lost"]);
}

#[test]
fn a_link_in_the_place_of_the_new_file_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (file, other) = (dir.path().join("file"), dir.path().join("other"));
    std::fs::write(&other, "not ours").unwrap();
    // Others have taken all of the names that come next.
    let taken = |count: u32| dir.path().join(format!("file.elbowroom-new.{}.{count}", std::process::id()));
    (0..1000).for_each(|count| symlink(&other, taken(count)).unwrap());
    assert_eq!(replace(&file, b"ours"), Err(WholeError::System(Errno::EXIST)));
    assert!(!file.exists(), "it was made to be locked");
    (0..1000).for_each(|count| std::fs::remove_file(taken(count)).unwrap());
    replace(&file, b"ours").unwrap();
    assert_eq!(std::fs::read(&other).unwrap(), b"not ours");
    assert_eq!(names(dir.path()), ["file", "other"]);
}

#[test]
fn a_file_that_others_have_put_in_its_place_stays() {
    let dir = tempfile::tempdir().unwrap();
    let (file, other) = (dir.path().join("file"), dir.path().join("other"));
    replace(&file, b"ours").unwrap();
    std::fs::write(&other, "a novel").unwrap();
    let moved = replace_whole(&file, 100, PATIENCE, |_| {
        std::fs::rename(&other, &file).unwrap();
        Some(b"again".to_vec())
    });
    assert_eq!(moved, Err(WholeError::Busy));
    assert_eq!(std::fs::read(&file).unwrap(), b"a novel");
    assert_eq!(names(dir.path()), ["file"]);
    // Nothing was to be written into a file that was not there.
    replace_whole(&other, 100, PATIENCE, |_| None).unwrap();
    assert_eq!(names(dir.path()), ["file"]);
}

#[test]
fn the_owner_the_group_and_the_permissions_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let about = || {
        let meta = std::fs::metadata(&path).unwrap();
        (meta.uid(), meta.gid(), meta.permissions().mode() & 0o7777)
    };
    replace(&path, b"one").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o664)).unwrap();
    let (uid, gid, _) = about();
    replace(&path, b"two").unwrap();
    assert_eq!(about(), (uid, gid, 0o664));
    // Only root can give a file away.
    if std::os::unix::fs::chown(&path, Some(uid + 1), Some(gid + 2)).is_err() {
        return;
    }
    replace(&path, b"three").unwrap();
    assert_eq!(about(), (uid + 1, gid + 2, 0o664));
    // A thread that may write everywhere, but may not give files away.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sets = thread::capabilities(None).unwrap();
            sets.effective -= CapabilitySet::CHOWN;
            thread::set_capabilities(None, sets).unwrap();
            assert_eq!(replace(&path, b"four"), Err(WholeError::Owner));
        });
    });
    assert_eq!(std::fs::read(&path).unwrap(), b"three");
    assert_eq!((about(), names(dir.path())), ((uid + 1, gid + 2, 0o664), vec!["file".to_owned()]));
}
