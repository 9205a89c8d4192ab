//! What is managed in environments that permit less than a machine of one's own: a user without rights,
//! containers, low limits. Each row of docs/environments.md is a test here, which makes the environment by
//! mounts, filters and limits, in a mount namespace of its own.

use elbowroom_tests::{Scratch, elbowroom_exe, program, skipped};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// What became of the memory of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Managed.
    Yes,
    /// The program is right, and its memory is the kernel's.
    Kernel,
    /// `run` says why it cannot work.
    Refused,
}

use Fate::{Kernel, Refused, Yes};

const KINDS: [&str; 4] = ["heap", "array", "read", "store"];
const MEMORY: &str = "24M";
/// A user, and a group, that no machine gives to anybody.
const USER: &str = "64998";
const GROUP: &str = "64997";

/// Where a script finds what it needs: the command, its libraries and the programs, and a directory on a
/// disk in which everybody may write.
const BEGIN: &str = "set -e
mount -t tmpfs -o mode=755 none /mnt
mkdir /mnt/bin /mnt/disk
cp \"$FILES\"/* /mnt/bin
mount --bind \"$DISK\" /mnt/disk
export HOME=/mnt/disk ELBOWROOM_CONFIG=none
user() { setpriv --reuid USER --regid USER --clear-groups --inh-caps=-all -- \"$@\"; }
no_device() {
    mkdir /mnt/dev
    mount -t tmpfs -o mode=755 none /mnt/dev
    mknod -m 666 /mnt/dev/null c 1 3
    mknod -m 666 /mnt/dev/zero c 1 5
    mknod -m 666 /mnt/dev/urandom c 1 9
    mkdir -m 1777 /mnt/dev/shm
    mount -t tmpfs -o mode=1777 none /mnt/dev/shm
    mount --move /mnt/dev /dev
}
docker() {
    setpriv --bounding-set=-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,\
+setfcap,+setpcap,+net_bind_service,+sys_chroot,+kill,+audit_write -- \"$@\"
}
";

/// System calls that Docker's default profile denies to a container without further capabilities, and which a
/// manager could want.
fn denied_by_docker() -> String {
    let calls = [
        libc::SYS_userfaultfd,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        libc::SYS_fanotify_init,
        libc::SYS_kcmp,
        libc::SYS_pidfd_getfd,
        libc::SYS_process_madvise,
        libc::SYS_open_by_handle_at,
        libc::SYS_perf_event_open,
        libc::SYS_bpf,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_setns,
        libc::SYS_unshare,
    ];
    let all: Vec<_> = calls.iter().map(ToString::to_string).collect();
    format!("{} {}:{}", all.join(" "), libc::SYS_clone3, libc::ENOSYS)
}

struct Environment {
    scratch: Scratch,
    script: String,
}

impl Environment {
    /// `script` makes the environment, and runs "$@" in it.
    fn new(script: &str) -> Self {
        let scratch = Scratch::new();
        let (files, disk) = (scratch.path().join("files"), scratch.path().join("disk"));
        for directory in [&files, &disk] {
            fs::create_dir(directory).unwrap();
        }
        fs::set_permissions(&disk, fs::Permissions::from_mode(0o1777)).unwrap();
        let exe = elbowroom_exe();
        let beside = exe.parent().unwrap();
        for file in ["elbowroom", "libelbowroom_preload.so", "libelbowroom_heap.so"] {
            fs::copy(beside.join(file), files.join(file)).unwrap();
        }
        for name in ["environment", "filtered"] {
            fs::copy(program(name), files.join(name)).unwrap();
        }
        let script = format!("{BEGIN}{script}\n")
            .replace("USER", USER)
            .replace("GROUP", GROUP)
            .replace("DENIED", &denied_by_docker());
        Self { scratch, script }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new("timeout")
            .args(["120", "unshare", "--mount", "--propagation", "private", "bash", "-c", &self.script, "sh"])
            .args(arguments)
            .env("FILES", self.scratch.path().join("files"))
            .env("DISK", self.scratch.path().join("disk"))
            .env("OUTSIDE", std::process::id().to_string())
            .output()
            .expect("unshare can be run")
    }

    fn fate(&self, kind: &str, options: &[&str]) -> Fate {
        let stats = self.scratch.path().join("disk/stats");
        let _ = fs::remove_file(&stats);
        let mut arguments = vec!["/mnt/bin/elbowroom", "run", "--stats", "/mnt/disk/stats"];
        arguments.extend_from_slice(options);
        arguments.extend_from_slice(&["--", "/mnt/bin/environment", kind, "/mnt/disk/data"]);
        let output = self.run(&arguments);
        let _ = fs::remove_file(self.scratch.path().join("disk/data"));
        let said = String::from_utf8_lossy(&output.stderr);
        match output.status.code() {
            Some(125) => {
                assert!(said.contains("elbowroom: "), "{kind}: {said}");
                Refused
            }
            Some(0) => {
                assert_eq!(String::from_utf8_lossy(&output.stdout), "right\n", "{kind}: {said}");
                let stats = fs::read(&stats).unwrap_or_default();
                let stats: serde_json::Value = serde_json::from_slice(&stats).unwrap_or_default();
                // 72 MiB in 24 have been out, or were read.
                let figure = |key: &str| stats[key].as_u64().unwrap_or(0);
                if figure("pswpout") >= 1000 || figure("read_bytes") >= 32 << 20 { Yes } else { Kernel }
            }
            code => panic!("{kind}: {code:?}: {said}"),
        }
    }
}

/// The row of docs/environments.md with this name: the words for heap, array, read and store.
fn documented(name: &str) -> Vec<String> {
    let path = elbowroom_tests::place::workspace().join("docs/environments.md");
    let text = fs::read_to_string(path).expect("docs/environments.md");
    let row = text.lines().find(|line| line.starts_with(&format!("| {name} |")));
    let row = row.unwrap_or_else(|| panic!("docs/environments.md has no row \"{name}\""));
    row.split('|').skip(2).take(KINDS.len()).map(|cell| cell.trim().to_owned()).collect()
}

fn word(fate: Fate) -> &'static str {
    match fate {
        Yes => "yes",
        Kernel => "kernel",
        Refused => "no",
    }
}

/// Checks a row: what becomes of memory of each kind, with these options.
fn check(name: &str, script: &str, options: &[&str], expected: [Fate; 4]) {
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        return skipped("only root can make other environments");
    }
    let environment = Environment::new(script);
    let made = environment.run(&["true"]);
    if !made.status.success() {
        let why = String::from_utf8_lossy(&made.stderr);
        return skipped(format_args!("{name}: it cannot be made here: {}", why.trim_end()));
    }
    let found = KINDS.map(|kind| environment.fate(kind, options));
    assert_eq!(found, expected, "{name}: of {KINDS:?}");
    assert_eq!(documented(name), expected.map(word), "{name}");
}

const BUDGET: &[&str] = &["--memory", MEMORY];

#[test]
fn root() {
    check("root", "\"$@\"", BUDGET, [Yes; 4]);
}

#[test]
fn a_user() {
    check("a user", "user \"$@\"", BUDGET, [Yes, Yes, Yes, Kernel]);
}

#[test]
fn a_user_who_trusts() {
    check("a user, `--sharing trust`", "user \"$@\"", &["--memory", MEMORY, "--sharing", "trust"], [Yes; 4]);
}

#[test]
fn a_member_of_the_group() {
    let script = "mknod -m 660 /mnt/userfaultfd c 10 \
                      $(awk '$2 == \"userfaultfd\" { print $1 }' /proc/misc)\n\
                  chown 0:GROUP /mnt/userfaultfd\n\
                  mount -o remount,dev /mnt\n\
                  mount --bind /mnt/userfaultfd /dev/userfaultfd\n\
                  setpriv --reuid USER --regid USER --groups GROUP --inh-caps=-all -- \"$@\"";
    if !Path::new("/dev/userfaultfd").exists() {
        return skipped("the kernel has no /dev/userfaultfd (Linux 6.1)");
    }
    check("a user in the group `elbowroom`", script, BUDGET, [Yes, Yes, Yes, Kernel]);
    let environment = Environment::new(script);
    let doctor = environment.run(&["/mnt/bin/elbowroom", "doctor"]);
    let text = String::from_utf8_lossy(&doctor.stdout);
    assert!(text.contains("userfaultfd by device"), "{text}");
}

#[test]
fn docker() {
    let script = "no_device; docker /mnt/bin/filtered DENIED -- \"$@\"";
    check("Docker", script, BUDGET, [Refused; 4]);
    let environment = Environment::new(script);
    assert_eq!(environment.fate("array", &["--fallback", "kernel"]), Kernel);
}

#[test]
fn docker_with_the_device() {
    let script = "docker /mnt/bin/filtered DENIED -- \"$@\"";
    check("Docker, `--device /dev/userfaultfd`", script, BUDGET, [Yes, Yes, Yes, Kernel]);
    // Standard error is a file, of which the library cannot have the program's own description.
    let environment = Environment::new(script);
    let log = "exec 2>/mnt/disk/log; echo first >&2; \
               /mnt/bin/elbowroom run --memory 24M -- /mnt/bin/environment array x; echo last >&2";
    environment.run(&["sh", "-c", log]);
    let log = fs::read_to_string(environment.scratch.path().join("disk/log")).unwrap();
    assert!(log.starts_with("first\nelbowroom: environment (pid ") && log.ends_with("\nlast\n"), "{log}");
}

#[test]
fn docker_with_the_call() {
    let denied = denied_by_docker().replace(&format!("{} ", libc::SYS_userfaultfd), "");
    let script = format!("no_device; docker /mnt/bin/filtered {denied} -- \"$@\"");
    check("Docker, a profile with `userfaultfd`", &script, BUDGET, [Yes, Yes, Yes, Kernel]);
}

#[test]
fn without_root() {
    let script = "user unshare --user --map-root-user -- \"$@\"";
    check("rootless (a user namespace)", script, BUDGET, [Yes, Yes, Yes, Kernel]);
}

#[test]
fn no_proc_sys() {
    let script = "mount -t tmpfs none /proc/sys; user \"$@\"";
    check("a user, no /proc/sys", script, BUDGET, [Yes, Yes, Yes, Kernel]);
}

#[test]
fn a_read_only_root() {
    let script = "mount -t tmpfs -o mode=1777 none /tmp\n\
                  mount -t tmpfs -o mode=1777,ro none /var/tmp\n\
                  cd /; unset HOME TMPDIR\n\
                  user \"$@\"";
    check("a user, a read-only root with tmpfs", script, BUDGET, [Refused, Refused, Refused, Refused]);
    check(
        "the same, `--swap 0`",
        script,
        &["--memory", MEMORY, "--swap", "0"],
        [Kernel, Kernel, Yes, Kernel],
    );
    let volume = &["--memory", MEMORY, "--swap-dir", "/mnt/disk"];
    check("the same, `--swap-dir` on a volume", script, volume, [Yes, Yes, Yes, Kernel]);
}

#[test]
fn no_var_tmp() {
    let script = "mount -t tmpfs -o mode=000 none /var/tmp; export TMPDIR=/mnt/disk; user \"$@\"";
    check("a user, no /var/tmp, but TMPDIR on a disk", script, BUDGET, [Yes, Yes, Yes, Kernel]);
}

#[test]
fn few_descriptors() {
    let script = "user prlimit --nofile=256:256 \"$@\"";
    check("a user, `ulimit -n 256`", script, BUDGET, [Yes, Yes, Yes, Kernel]);
}

#[test]
fn few_addresses() {
    let script = "user prlimit --as=2147483648:2147483648 \"$@\"";
    check("a user, `ulimit -v` of 2 GiB", script, BUDGET, [Refused; 4]);
}

/// A control group, which is removed when this is dropped.
struct Removed(std::path::PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_small_control_group() {
    let root = Path::new("/sys/fs/cgroup/memory");
    let group = root.join(format!("elbowroom-environment-{}", std::process::id()));
    if fs::create_dir(&group).is_err() {
        return skipped("no memory group (cgroup v1) can be made here");
    }
    let _removed = Removed(group.clone());
    fs::write(group.join("memory.limit_in_bytes"), "96M").unwrap();
    let script = format!("echo $$ >{}/cgroup.procs; user \"$@\"", group.display());
    // The budget that is chosen fits into the group.
    check("a user, a control group of 96 MiB", &script, &[], [Yes, Yes, Yes, Kernel]);
}

#[test]
fn one_processor() {
    let script = "user taskset -c 0 \"$@\"";
    check("a user, one processor", script, BUDGET, [Yes, Yes, Yes, Kernel]);
}
