//! Each system call that the library makes in a program's process, denied by a filter before anything is
//! mapped: the program is right and ends as it would, managed or with a line.

use elbowroom_tests::{Command, Scratch, Variant, behaviour, elbowroom_exe, program};
use libc::c_long;

/// What a program makes of a call, and of those of the library, from the first mapping on (strace -f -c has
/// told, for io_uring and for threads). Without exit_group: without that no process of several threads can
/// end, the library's or its own; and without getpid, by which a process is told from a child that shares its
/// memory.
const CALLS: &[(&str, c_long)] = &[
    ("access", libc::SYS_access),
    ("arch_prctl", libc::SYS_arch_prctl),
    ("brk", libc::SYS_brk),
    ("capget", libc::SYS_capget),
    ("clone3", libc::SYS_clone3),
    ("close", libc::SYS_close),
    ("close_range", libc::SYS_close_range),
    ("eventfd2", libc::SYS_eventfd2),
    ("execve", libc::SYS_execve),
    ("exit", libc::SYS_exit),
    ("faccessat2", libc::SYS_faccessat2),
    ("fadvise64", libc::SYS_fadvise64),
    ("fanotify_init", libc::SYS_fanotify_init),
    ("fanotify_mark", libc::SYS_fanotify_mark),
    ("fcntl", libc::SYS_fcntl),
    ("fstat", libc::SYS_fstat),
    ("fstatfs", libc::SYS_fstatfs),
    ("ftruncate", libc::SYS_ftruncate),
    ("futex", libc::SYS_futex),
    ("get_robust_list", libc::SYS_get_robust_list),
    ("getdents64", libc::SYS_getdents64),
    ("getrandom", libc::SYS_getrandom),
    ("gettid", libc::SYS_gettid),
    ("getuid", libc::SYS_getuid),
    ("io_uring_enter", libc::SYS_io_uring_enter),
    ("io_uring_register", libc::SYS_io_uring_register),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("ioctl", libc::SYS_ioctl),
    ("kcmp", libc::SYS_kcmp),
    ("lseek", libc::SYS_lseek),
    ("madvise", libc::SYS_madvise),
    ("memfd_create", libc::SYS_memfd_create),
    ("mmap", libc::SYS_mmap),
    ("mprotect", libc::SYS_mprotect),
    ("munmap", libc::SYS_munmap),
    ("newfstatat", libc::SYS_newfstatat),
    ("open", libc::SYS_open),
    ("openat", libc::SYS_openat),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("pipe2", libc::SYS_pipe2),
    ("poll", libc::SYS_poll),
    ("ppoll", libc::SYS_ppoll),
    ("prctl", libc::SYS_prctl),
    ("pread64", libc::SYS_pread64),
    ("prlimit64", libc::SYS_prlimit64),
    ("process_madvise", libc::SYS_process_madvise),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("pwrite64", libc::SYS_pwrite64),
    ("read", libc::SYS_read),
    ("readlink", libc::SYS_readlink),
    ("rseq", libc::SYS_rseq),
    ("rt_sigaction", libc::SYS_rt_sigaction),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask),
    ("sched_getaffinity", libc::SYS_sched_getaffinity),
    ("sched_yield", libc::SYS_sched_yield),
    ("set_robust_list", libc::SYS_set_robust_list),
    ("set_tid_address", libc::SYS_set_tid_address),
    ("sigaltstack", libc::SYS_sigaltstack),
    ("signalfd4", libc::SYS_signalfd4),
    ("statfs", libc::SYS_statfs),
    ("statx", libc::SYS_statx),
    ("sysinfo", libc::SYS_sysinfo),
    ("userfaultfd", libc::SYS_userfaultfd),
    ("write", libc::SYS_write),
];

/// The bytes of the file that the program maps, and what it ends with: 41 if it cannot map itself.
const FILE_BYTES: u64 = 4 << 20;
const RIGHT: [i32; 2] = [41, 42];

fn deny(variant: Variant, errno: i32) {
    let scratch = Scratch::new();
    let file = scratch.file("mapped");
    for (name, call) in CALLS {
        elbowroom_tests::Pattern::zeros(&file, FILE_BYTES);
        let arguments = [call.to_string(), errno.to_string(), file.clone()];
        let command = || Command::new(program("denied")).args(&arguments).maybe_unmanaged();
        let plain = command().run();
        assert!(RIGHT.map(Some).contains(&plain.status.code()), "{name}: {}", plain.report());
        let outcome = command().variant(variant).run();
        assert_eq!(outcome.status, plain.status, "{name}: {}", outcome.report());
        // Either it is managed, or a line says what is not.
        let is_managed = outcome.stats.as_ref().is_some_and(|stats| stats["pgfault"].as_u64() > Some(0));
        let is_said = outcome.stderr.contains("elbowroom: denied (pid ");
        let cannot_say = *name == "write";
        assert!(is_managed || is_said || cannot_say, "{name}: {:?} {}", outcome.stats, outcome.report());
        assert!(!outcome.stderr.contains("panic"), "{name}: {}", outcome.report());
    }
}

fn eperm(variant: Variant) {
    deny(variant, libc::EPERM);
}
behaviour!(eperm: m16, threads);

fn enosys(variant: Variant) {
    deny(variant, libc::ENOSYS);
}
behaviour!(enosys: m16, copy);

/// The same, denied to the command as well, by which a filter is seen before the program begins: a program
/// that is right is managed.
#[test]
fn to_the_command() {
    let scratch = Scratch::new();
    let file = scratch.file("mapped");
    elbowroom_tests::Pattern::zeros(&file, FILE_BYTES);
    let denied = program("denied");
    let stats = scratch.file("stats");
    let allowed = "1000000";
    for (name, call) in CALLS {
        let _ = std::fs::remove_file(&stats);
        let mut command = std::process::Command::new("timeout");
        command.args(["60".as_ref(), denied.as_os_str()]).args([&call.to_string(), "1", "--"]);
        command.arg(elbowroom_exe()).args(["run", "--memory", "16M", "--stats", &stats, "--"]);
        command.arg(&denied).args([allowed, "0", &file]);
        let output = command.output().expect("it can be run");
        let stderr = String::from_utf8_lossy(&output.stderr);
        // What timeout says of a command that hangs.
        assert_ne!(output.status.code(), Some(124), "{name}: {stderr}");
        assert!(!stderr.contains("panicked"), "{name}: {stderr}");
        if !RIGHT.map(Some).contains(&output.status.code()) {
            continue;
        }
        let stats: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&stats).unwrap_or_default()).unwrap_or_default();
        assert!(stats["pgfault"].as_u64() > Some(0), "{name} is denied, and nothing is managed: {stderr}");
    }
}
