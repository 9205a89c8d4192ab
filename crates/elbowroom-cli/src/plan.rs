//! What the facts of a probe mean: whether `run` can work, in which mode, and what stands in the way.

use elbowroom_machine::probe::{IoUring, Limits, Memory, MemoryCgroup, Start, Trial, Userfaultfd};
use elbowroom_options::size::{Exact, Shown};
use elbowroom_options::{Faults, Io, Mmu};
use elbowroom_store::LEAST_DESCRIPTORS;
use rustix::io::Errno;
use serde::Serialize;

/// How `run` will work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mode {
    /// Where the userfaultfd comes from: `device` or `syscall`; `user-mode`: the system call, for faults of
    /// the program's own instructions only.
    pub userfaultfd: &'static str,
    /// `move` or `copy`.
    pub mmu: &'static str,
    /// `uring` or `threads`.
    pub io: &'static str,
}

/// [`Mode::userfaultfd`] where only faults of the program's own instructions are served.
pub const USER_MODE: &str = "user-mode";

/// What lets all faults be served.
pub const PERMIT: &str = "as root, `elbowroom doctor --fix` gives /dev/userfaultfd to the group elbowroom, \
                          for good (without root it prints what it would do); in a container, add `--device \
                          /dev/userfaultfd`, or allow the system call in its seccomp profile and add \
                          CAP_SYS_PTRACE";

const ENOSYS: i32 = Errno::NOSYS.raw_os_error();

/// The mode that `run` will use with these options.
///
/// # Errors
/// What is missing and what to do about it, in one line.
pub fn mode(found: &Userfaultfd, ring: &IoUring, mmu: Mmu, io: Io, faults: Faults) -> Result<Mode, String> {
    if let Some(obstacle) = userfaultfd_obstacle(found, faults) {
        return Err(obstacle);
    }
    let userfaultfd = match faults {
        Faults::Auto | Faults::All if found.device.works => "device",
        Faults::Auto | Faults::All if found.syscall.works => "syscall",
        _ => USER_MODE,
    };
    let mmu = match (mmu, found.move_page.works) {
        (Mmu::Auto | Mmu::Move, true) => "move",
        (Mmu::Auto, false) | (Mmu::Copy, _) => "copy",
        (Mmu::Move, false) => {
            return Err(
                "--mmu move: this kernel cannot move pages; use Linux 6.8 or newer, or --mmu auto".to_owned()
            );
        }
    };
    let io = match (io, ring.ring.works) {
        (Io::Auto | Io::Uring, true) => "uring",
        (Io::Auto, false) | (Io::Threads, _) => "threads",
        (Io::Uring, false) => return Err(format!("--io uring: {}, or use --io auto", ring_advice(ring))),
    };
    Ok(Mode { userfaultfd, mmu, io })
}

/// Whether no more can be had than faults of the program's own instructions.
pub fn serves_user_mode_only(found: &Userfaultfd) -> bool {
    !found.device.works && !found.syscall.works && found.user_mode_only.works
}

/// Why there is no userfaultfd that `run` could use, and what to do; `None` if there is one.
pub fn userfaultfd_obstacle(found: &Userfaultfd, faults: Faults) -> Option<String> {
    let all = found.device.works || found.syscall.works;
    let permitted = match faults {
        Faults::Auto => all || found.user_mode_only.works,
        Faults::All => all,
        Faults::UserMode => found.user_mode_only.works,
    };
    if !permitted {
        return Some(if faults == Faults::All && found.user_mode_only.works {
            format!(
                "userfaultfd is permitted for faults in user mode only: leave out --faults all. To have all \
                 served: {PERMIT}"
            )
        } else if found.syscall.errno == Some(ENOSYS) {
            "this kernel has no userfaultfd: use one built with CONFIG_USERFAULTFD (in a sandbox that is not \
             Linux, such as gVisor, there is none)"
                .to_owned()
        } else {
            let why = found.syscall.error.as_deref().unwrap_or("unknown");
            format!("userfaultfd is not permitted ({why}): {PERMIT}")
        });
    }
    if !found.features.contains(&"thread_id") {
        return Some("userfaultfd does not tell threads apart: use Linux 5.7 or newer".to_owned());
    }
    if !found.write_protect.works {
        return Some(
            "userfaultfd cannot write-protect pages, so changes would go unseen: use Linux 5.7 or newer, on \
             a machine whose kernel has CONFIG_HAVE_ARCH_USERFAULTFD_WP (x86-64, aarch64, risc-v)"
                .to_owned(),
        );
    }
    if !found.copy_page.works {
        let why = found.copy_page.error.as_deref().unwrap_or("unknown");
        return Some(format!(
            "userfaultfd cannot copy pages ({why}): this is not a usual Linux; use another machine"
        ));
    }
    None
}

/// What a process lacks to start a manager, besides userfaultfd: for each lack its subject, and a line that
/// says what to do.
pub fn start_obstacles(found: &Start, limits: &Limits) -> Vec<(&'static str, String)> {
    let mut lacks = Vec::new();
    let why = |trial: &Trial| trial.error.clone().unwrap_or_else(|| "unknown".to_owned());
    if !found.procfs.works {
        let text = format!("/proc cannot be read ({}): `mount -t proc proc /proc`", why(&found.procfs));
        lacks.push(("/proc", text));
    }
    if !found.calls.works {
        let text = format!(
            "a filter (seccomp) denies a system call that a manager needs ({}): have it allowed",
            why(&found.calls)
        );
        lacks.push(("system calls", text));
    }
    if !found.threads.works {
        let text = format!(
            "a managed process has {} threads more, and they cannot be started ({}): raise `ulimit -u`, or \
             pids.max of the control group",
            found.thread_count,
            why(&found.threads)
        );
        lacks.push(("threads", text));
    }
    if !found.addresses.works {
        let show =
            |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |bytes| Shown(bytes).to_string());
        let text = format!(
            "a managed process reserves {} of addresses beside its own, and the limits (`ulimit -v`: {}, \
             `ulimit -d`: {}) cannot be raised ({}): `ulimit -v unlimited -d unlimited` before, or a hard \
             limit that is higher",
            Shown(found.reserved_bytes),
            show(limits.rlimit_address_space_bytes),
            show(limits.rlimit_data_bytes),
            why(&found.addresses)
        );
        lacks.push(("address space", text));
    }
    if let Some(hard) = limits.rlimit_nofile_hard.filter(|hard| *hard < LEAST_DESCRIPTORS) {
        let text = format!(
            "{hard} open files are too few for managed files and a swap file: a hard limit (`ulimit -Hn`) of \
             {LEAST_DESCRIPTORS} or more, better 1024"
        );
        lacks.push(("open files", text));
    }
    lacks
}

/// How root sets a number of the kernel, now and at each start of the machine.
pub fn set(name: &str, value: u64) -> String {
    format!("as root, `echo {name}={value} >> /etc/sysctl.d/60-elbowroom.conf; sysctl {name}={value}`")
}

/// What to do about io_uring that does not work.
pub fn ring_advice(found: &IoUring) -> String {
    let why = found.ring.error.as_deref().unwrap_or("unknown");
    match found.sysctl_disabled {
        Some(1 | 2) => {
            format!("io_uring is switched off ({why}): {}", set("kernel.io_uring_disabled", 0))
        }
        _ if found.ring.errno == Some(ENOSYS) => {
            format!("there is no io_uring here ({why}): use Linux 5.6 or newer with CONFIG_IO_URING")
        }
        _ => format!(
            "io_uring does not work ({why}): allow it in the container's seccomp profile; \
             `ulimit -l` may be low"
        ),
    }
}

/// The budget where none is given: half of what is available, or of what the memory group has left if that
/// is less, in whole MiB, and at least `least_bytes`. The other half is for the programs' other memory.
pub fn default_memory_bytes(memory: &Memory, group: Option<&MemoryCgroup>, least_bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    let left = group.and_then(|group| group.left_bytes);
    let half = memory.available_bytes.into_iter().chain(left).min().unwrap_or(0) / 2;
    (half / MIB * MIB).max(least_bytes)
}

/// Says that the memory group's limit will end a program with a budget of `memory` bytes, if so: the budget
/// is all of the limit, or nearly, and the program has some memory beside it. A budget has at least
/// `least_bytes`.
pub fn group_warning(memory: u64, group: Option<&MemoryCgroup>, least_bytes: u64) -> Option<String> {
    /// What the smallest program takes beside its budget, with the memory that describes the budget's
    /// frames.
    const BESIDE: u64 = 16 << 20;
    let limit = group?.limit_bytes?;
    if memory.saturating_add(memory / 32).saturating_add(BESIDE) <= limit {
        return None;
    }
    let half = (limit / 2) >> 20 << 20;
    let less =
        if half < least_bytes { String::new() } else { format!("use --memory {} or less, or ", Exact(half)) };
    let (memory, limit) = (Shown(memory), Shown(limit));
    Some(format!(
        "a budget of {memory} does not fit into the memory group's limit of {limit} with what a program \
         takes beside it, so the kernel may kill the program: {less}raise the group's limit"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yes() -> Trial {
        Trial { works: true, error: None, errno: None }
    }

    fn no(errno: i32) -> Trial {
        Trial {
            works: false,
            error: Some(std::io::Error::from_raw_os_error(errno).to_string()),
            errno: Some(errno),
        }
    }

    fn good() -> (Userfaultfd, IoUring) {
        let mut found = Userfaultfd {
            features: vec!["pagefault_flag_wp", "thread_id", "move"],
            ..Userfaultfd::default()
        };
        for trial in [&mut found.device, &mut found.syscall, &mut found.user_mode_only, &mut found.move_page]
        {
            *trial = yes();
        }
        (found.copy_page, found.write_protect) = (yes(), yes());
        (found, IoUring { ring: yes(), feature_bits: 1, sysctl_disabled: Some(0) })
    }

    #[test]
    fn the_best_that_works_and_what_was_asked_for() {
        let (mut found, mut ring) = good();
        let of = |found: &_, ring: &_, mmu, io| mode(found, ring, mmu, io, Faults::Auto);
        let names = |mode: Mode| (mode.userfaultfd, mode.mmu, mode.io);
        assert_eq!(of(&found, &ring, Mmu::Auto, Io::Auto).map(names), Ok(("device", "move", "uring")));
        assert_eq!(of(&found, &ring, Mmu::Copy, Io::Threads).map(names), Ok(("device", "copy", "threads")));
        found.device = no(2);
        found.move_page = no(95);
        ring.ring = no(1);
        ring.sysctl_disabled = Some(2);
        assert_eq!(of(&found, &ring, Mmu::Auto, Io::Auto).map(names), Ok(("syscall", "copy", "threads")));
        assert!(of(&found, &ring, Mmu::Move, Io::Auto).unwrap_err().contains("6.8"));
        assert!(of(&found, &ring, Mmu::Auto, Io::Uring).unwrap_err().contains("io_uring_disabled"));
    }

    #[test]
    fn without_rights_faults_of_instructions_are_served() {
        let (mut found, ring) = good();
        let chosen = |found: &Userfaultfd, faults| {
            mode(found, &ring, Mmu::Auto, Io::Auto, faults).map(|mode| mode.userfaultfd)
        };
        assert_eq!(chosen(&found, Faults::UserMode), Ok(USER_MODE));
        assert!(!serves_user_mode_only(&found));
        (found.device, found.syscall) = (no(13), no(1));
        assert!(serves_user_mode_only(&found));
        assert_eq!(chosen(&found, Faults::Auto), Ok(USER_MODE));
        assert!(chosen(&found, Faults::All).unwrap_err().contains("user mode only: leave out"));
        found.user_mode_only = no(1);
        assert!(chosen(&found, Faults::Auto).unwrap_err().contains("doctor --fix"));
    }

    #[test]
    fn obstacles_say_what_to_do() {
        let obstacle = |change: fn(&mut Userfaultfd)| {
            let mut found = good().0;
            (found.device, found.syscall) = (no(13), no(1));
            change(&mut found);
            userfaultfd_obstacle(&found, Faults::Auto).unwrap()
        };
        assert!(obstacle(|found| found.user_mode_only = no(1)).contains("not permitted (Operation"));
        assert!(obstacle(|found| found.user_mode_only = no(1)).contains("`elbowroom doctor --fix`"));
        let missing =
            |found: &mut Userfaultfd| (found.syscall, found.user_mode_only) = (no(ENOSYS), no(ENOSYS));
        assert!(obstacle(missing).contains("CONFIG_USERFAULTFD"));
        let old = |found: &mut Userfaultfd| (found.device, found.write_protect) = (yes(), no(95));
        assert!(obstacle(old).contains("5.7"));
        assert_eq!(userfaultfd_obstacle(&good().0, Faults::Auto), None);
    }

    fn group(limit_bytes: Option<u64>) -> MemoryCgroup {
        MemoryCgroup {
            version: 2,
            path: "/g".into(),
            limit_bytes,
            used_bytes: None,
            left_bytes: limit_bytes,
            can_make_child: Trial::default(),
        }
    }

    #[test]
    fn a_budget_that_a_group_cannot_hold_is_warned_of() {
        const MIB: u64 = 1 << 20;
        let of = |memory, limit| group_warning(memory, Some(&group(limit)), 16 * MIB);
        let warning = |memory| of(memory, Some(128 * MIB));
        assert_eq!((warning(64 * MIB), warning(108 * MIB)), (None, None));
        for memory in [112 * MIB, 128 * MIB, 1 << 40] {
            assert!(warning(memory).unwrap().contains("limit of 128 MiB"), "{memory}");
        }
        assert!(warning(128 * MIB).unwrap().contains("--memory 64M or less"));
        let small = of(16 * MIB, Some(24 * MIB)).unwrap();
        assert!(small.contains("the program: raise the") && !small.contains("--memory"), "{small}");
        assert_eq!((of(1 << 40, None), group_warning(1 << 40, None, 16 * MIB)), (None, None));
    }

    #[test]
    fn what_a_start_lacks_is_said() {
        let good = Start {
            procfs: yes(),
            calls: yes(),
            threads: yes(),
            addresses: yes(),
            thread_count: 14,
            reserved_bytes: 1 << 40,
        };
        let limits = Limits { rlimit_nofile_hard: Some(1024), ..Limits::default() };
        assert_eq!(start_obstacles(&good, &limits), []);
        let few = Limits { rlimit_nofile_hard: Some(64), rlimit_data_bytes: Some(1 << 30), ..limits };
        let bad = Start { procfs: no(2), calls: no(1), threads: no(11), addresses: no(1), ..good };
        let lacks = start_obstacles(&bad, &few);
        let about: Vec<_> = lacks.iter().map(|(about, _)| *about).collect();
        assert_eq!(about, ["/proc", "system calls", "threads", "address space", "open files"]);
        let words = ["mount -t proc", "a filter", "14 threads more", "`ulimit -d`: 1 GiB", "64 open files"];
        for ((about, text), said) in lacks.iter().zip(words) {
            assert!(text.contains(said) && !text.contains('\n'), "{about}: {text}");
        }
    }

    #[test]
    fn default_memory_is_half_of_the_smaller() {
        const MIB: u64 = 1 << 20;
        let memory = Memory { available_bytes: Some(1001 * MIB), ..Memory::default() };
        let group = |left_bytes| MemoryCgroup { left_bytes, ..group(Some(1 << 30)) };
        let bytes = |group: Option<MemoryCgroup>| default_memory_bytes(&memory, group.as_ref(), 16 * MIB);
        assert_eq!(bytes(None), 500 * MIB);
        assert_eq!(bytes(Some(group(None))), 500 * MIB);
        assert_eq!(bytes(Some(group(Some(300 * MIB)))), 150 * MIB);
        assert_eq!(bytes(Some(group(Some(20 * MIB)))), 16 * MIB);
        assert_eq!(default_memory_bytes(&Memory::default(), None, 16 * MIB), 16 * MIB);
    }
}
