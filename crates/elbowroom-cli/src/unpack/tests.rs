//! Unpacking where places are bad, files were changed, and several processes start at a time.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::thread;

use tempfile::TempDir;

use super::*;

const FILES: Files<'_> = &[("a.so", b"the first"), ("b.so", b"the second")];

/// Directories of this test: `home`, `runtime`, and `common`, which all may write to.
struct Ground {
    dir: TempDir,
}

impl Ground {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["home", "runtime", "common"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::set_permissions(dir.path().join("common"), fs::Permissions::from_mode(0o1777)).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn places(&self, home: Option<&str>) -> Places {
        let user = rustix::process::geteuid().as_raw();
        let home = home.map(|name| self.path(name));
        Places::new(user, None, home, Some(self.path("runtime")), vec![self.path("common")])
    }
}

fn check(directory: &Path, expected: &Path) {
    assert_eq!(directory, expected);
    for (name, contents) in FILES {
        assert_eq!(fs::read(directory.join(name)).unwrap(), *contents);
    }
    let names = fs::read_dir(directory).unwrap().count();
    assert_eq!(names, FILES.len(), "drafts are left");
}

#[test]
fn the_cache_of_the_user_is_the_first_place() {
    let ground = Ground::new();
    let home = ground.places(Some("home"));
    check(&home.unpack("1-x", FILES).unwrap(), &ground.path("home/.cache/elbowroom/1-x"));
    let cache = Places::new(home.user, Some(ground.path("cache")), Some(ground.path("home")), None, vec![]);
    check(&cache.unpack("1-x", FILES).unwrap(), &ground.path("cache/elbowroom/1-x"));
    // The specification has it so that a path that is not absolute counts as none.
    let relative = Places::new(home.user, Some("cache".into()), Some(ground.path("home")), None, vec![]);
    check(&relative.unpack("2", FILES).unwrap(), &ground.path("home/.cache/elbowroom/2"));
    let before = fs::metadata(ground.path("home/.cache/elbowroom/1-x/a.so")).unwrap();
    home.unpack("1-x", FILES).unwrap();
    let after = fs::metadata(ground.path("home/.cache/elbowroom/1-x/a.so")).unwrap();
    assert_eq!(before.ino(), after.ino(), "what is right is not written again");
}

#[test]
fn without_a_home_another_place_is_found() {
    let ground = Ground::new();
    check(&ground.places(None).unpack("1", FILES).unwrap(), &ground.path("runtime/elbowroom/1"));
    check(&ground.places(Some("no")).unpack("1", FILES).unwrap(), &ground.path("runtime/elbowroom/1"));
    assert!(!ground.path("no").exists(), "a home is not made");
    let mut places = ground.places(Some("no"));
    places.own.truncate(1);
    let user = places.user;
    check(&places.unpack("1", FILES).unwrap(), &ground.path(&format!("common/elbowroom-{user}/1")));
    places.common.clear();
    let refused = places.unpack("1", FILES).unwrap_err();
    assert!(refused.contains("/no: No such file"), "{refused}");
}

#[test]
fn a_path_that_the_loader_would_split_is_passed_over() {
    let ground = Ground::new();
    for name in ["my home", "a:b", "$ORIGIN"] {
        fs::create_dir(ground.path(name)).unwrap();
        let directory = ground.places(Some(name)).unpack("1", FILES).unwrap();
        check(&directory, &ground.path("runtime/elbowroom/1"));
    }
    // What counts is where a link leads.
    symlink(ground.path("my home"), ground.path("link")).unwrap();
    let directory = ground.places(Some("link")).unpack("1", FILES).unwrap();
    check(&directory, &ground.path("runtime/elbowroom/1"));
}

#[test]
fn what_others_can_write_is_not_trusted() {
    let ground = Ground::new();
    let open = |path: &str, mode| {
        fs::create_dir_all(ground.path(path)).unwrap();
        fs::set_permissions(ground.path(path), fs::Permissions::from_mode(mode)).unwrap();
    };
    for (path, mode) in [
        ("home/.cache/elbowroom/1", 0o777),
        ("home/.cache/elbowroom", 0o775),
        ("home/.cache", 0o777),
        // Others could take the name first in the next one.
        ("home/.cache/elbowroom/1", 0o1777),
    ] {
        open(path, mode);
        let directory = ground.places(Some("home")).unpack("1", FILES).unwrap();
        check(&directory, &ground.path("runtime/elbowroom/1"));
        fs::remove_dir_all(ground.path("home/.cache")).unwrap();
    }
    // Only root can give directories away.
    let mut places = ground.places(Some("home"));
    if places.user == 0 {
        places.own.remove(1);
        fs::create_dir(ground.path("common/elbowroom-0")).unwrap();
        std::os::unix::fs::chown(ground.path("common/elbowroom-0"), Some(65_533), None).unwrap();
        std::os::unix::fs::chown(ground.path("home"), Some(65_533), None).unwrap();
        let refused = places.unpack("1", FILES).unwrap_err();
        assert_eq!(refused.matches("belongs to another user (uid 65533)").count(), 2, "{refused}");
        assert!(!ground.path("home/.cache").exists(), "nothing is made in another user's home");
    }
}

#[test]
fn a_file_that_was_changed_is_replaced() {
    let ground = Ground::new();
    let places = ground.places(Some("home"));
    let directory = places.unpack("1", FILES).unwrap();
    let file = directory.join("a.so");
    type Change = (&'static str, fn(&Path));
    let bad: [Change; 7] = [
        ("as long", |file| fs::write(file, "the fifth").unwrap()),
        ("longer", |file| fs::write(file, "the first, and more").unwrap()),
        ("shorter", |file| fs::write(file, "the fir").unwrap()),
        ("gone", |_| ()),
        ("for all", |file| {
            fs::write(file, "the first").unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
        }),
        ("a link", |file| {
            fs::write(file.with_file_name("../other"), "the first").unwrap();
            symlink("../other", file).unwrap();
        }),
        ("a pipe", |file| {
            assert!(Command::new("mkfifo").arg(file).status().unwrap().success());
        }),
    ];
    for (name, change) in bad {
        let held = File::open(&file).unwrap();
        fs::remove_file(&file).unwrap();
        change(&file);
        check(&places.unpack("1", FILES).unwrap(), &directory);
        let found = fs::symlink_metadata(&file).unwrap();
        assert!(found.is_file() && found.mode() & OTHERS_WRITE == 0, "{name}");
        assert!(are(held, b"the first").unwrap(), "{name}: who has the old file open keeps it");
    }
}

#[test]
fn a_place_without_room_is_passed_over() {
    let ground = Ground::new();
    let directory = ground.path("home/.cache/elbowroom/1");
    // A directory with the file's name cannot be replaced by a file.
    fs::create_dir_all(directory.join("b.so")).unwrap();
    let found = ground.places(Some("home")).unpack("1", FILES).unwrap();
    check(&found, &ground.path("runtime/elbowroom/1"));
    let names: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "no draft is left: {names:?}");
}

#[test]
fn starts_at_the_same_time_all_find_whole_files() {
    let ground = Ground::new();
    let large: Vec<u8> = (0..3_000_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let files: Files<'_> = &[("a.so", &large), ("b.so", &large[1..])];
    for version in ["1", "2", "3"] {
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let directory = ground.places(Some("home")).unpack(version, files).unwrap();
                    for (name, contents) in files {
                        assert!(fs::read(directory.join(name)).unwrap() == *contents, "{name}");
                    }
                });
            }
        });
        let directory = ground.path("home/.cache/elbowroom").join(version);
        assert_eq!(fs::read_dir(directory).unwrap().count(), 2);
    }
}

/// Runs a test of this file in a mount namespace of its own, after a line of a shell. Says so if that cannot
/// be done here.
fn in_own_mounts(test: &str, line: &str) {
    let script = format!("{line} || exit 99; exec \"$@\"");
    let exe = env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(exe);
    command.args(["--exact", &format!("unpack::tests::{test}"), "--nocapture"]).env("IN_OWN_MOUNTS", "1");
    let output = command.output().unwrap();
    if matches!(output.status.code(), Some(1 | 99))
        && !String::from_utf8_lossy(&output.stdout).contains("running")
    {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        let _ = writeln!(io::stderr(), "SKIPPED: `{line}` cannot be done here: {}", why.trim_end());
        return;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the name of the test is wrong");
}

#[test]
fn a_mount_without_execution_or_writing_is_passed_over() {
    if env::var_os("IN_OWN_MOUNTS").is_none() {
        let test = "a_mount_without_execution_or_writing_is_passed_over";
        in_own_mounts(test, "mount -t tmpfs -o noexec none /mnt");
        return;
    }
    let ground = Ground::new();
    let mut places = ground.places(None);
    places.own.insert(0, ("/mnt".into(), "elbowroom".into()));
    check(&places.unpack("1", FILES).unwrap(), &ground.path("runtime/elbowroom/1"));
    places.own.truncate(1);
    places.common.clear();
    let refused = places.unpack("1", FILES).unwrap_err();
    assert!(refused.contains("mounted noexec"), "{refused}");
    assert!(!Path::new("/mnt/elbowroom/1/a.so").exists());

    let remount = |options: &str| {
        let status = Command::new("mount").args(["-o", options, "/mnt"]).status().unwrap();
        assert!(status.success());
    };
    remount("remount,exec");
    check(&places.unpack("1", FILES).unwrap(), Path::new("/mnt/elbowroom/1"));
    remount("remount,ro");
    // What is there and right needs no writing.
    check(&places.unpack("1", FILES).unwrap(), Path::new("/mnt/elbowroom/1"));
    let refused = places.unpack("2", FILES).unwrap_err();
    assert!(refused.contains("Read-only file system"), "{refused}");
}
