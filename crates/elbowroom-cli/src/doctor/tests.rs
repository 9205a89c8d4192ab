//! Advice on probes that are made up, so that what is missing elsewhere is tested here.

use elbowroom_machine::probe::{MemoryCgroup, Start};

use super::*;

fn refused() -> Trial {
    Trial { works: false, error: Some("Operation not permitted".to_owned()), errno: Some(1) }
}

fn works() -> Trial {
    Trial { works: true, error: None, errno: None }
}

fn all_sharing() -> Sharing {
    Sharing { watch: works(), lease: works() }
}

fn all_swap() -> Swap {
    Swap { directory: "/var/tmp".into(), bytes: 256 << 20, lack: None }
}

/// A machine on which nothing is missing.
fn perfect() -> Probe {
    let mut found = probe();
    let yes = works();
    let uffd = &mut found.userfaultfd;
    uffd.features = vec!["pagefault_flag_wp", "thread_id", "poison", "move"];
    for trial in [
        &mut uffd.device,
        &mut uffd.syscall,
        &mut uffd.move_page,
        &mut uffd.copy_page,
        &mut uffd.write_protect,
        &mut uffd.poison,
        &mut found.io_uring.ring,
    ] {
        *trial = yes.clone();
    }
    found.huge_pages.mode = Some("madvise".to_owned());
    found.limits.max_map_count = Some(65_530);
    found.limits.rlimit_nofile = None;
    found.limits.rlimit_nofile_hard = None;
    found.start = Start {
        procfs: works(),
        calls: works(),
        threads: works(),
        addresses: works(),
        thread_count: 14,
        reserved_bytes: 1 << 40,
    };
    found.limits.rlimit_address_space_bytes = None;
    found.memory.overcommit_mode = Some(0);
    found.memory_cgroup = Some(MemoryCgroup {
        version: 2,
        path: "/sys/fs/cgroup/x".into(),
        limit_bytes: None,
        used_bytes: Some(1),
        left_bytes: None,
        can_make_child: yes,
    });
    found
}

fn report_of(found: &Probe) -> String {
    report_in(found, usize::MAX)
}

fn report_in(found: &Probe, columns: usize) -> String {
    let mode = plan::mode(&found.userfaultfd, &found.io_uring, Mmu::Auto, Io::Auto, Faults::Auto).ok();
    let advice = advise(found, &all_sharing(), &works(), &all_swap());
    let report = Report {
        elbowroom_version: "0",
        can_run: mode.is_some(),
        mode: mode.as_ref(),
        default_memory_bytes: 64 << 20,
        default_swap: &all_swap(),
        shallow_idle: &works(),
        advice: &advice,
        sharing: &all_sharing(),
        probe: found,
    };
    render(&report, columns)
}

#[test]
fn nothing_missing_no_advice() {
    let found = perfect();
    assert_eq!(advise(&found, &all_sharing(), &works(), &all_swap()), []);
    let text = report_of(&found);
    assert!(
        text.contains(
            "works here: userfaultfd by device, --mmu move, --io uring, --memory 64 MiB --swap 256 MiB"
        ),
        "{text}"
    );
    assert!(!text.contains("What "), "{text}");
}

#[test]
fn everything_missing_has_one_line() {
    type Change = (&'static str, bool, fn(&mut Probe));
    let changes: [Change; 14] = [
        ("user mode only", false, |found| {
            (found.userfaultfd.device, found.userfaultfd.syscall) = (refused(), refused());
            found.userfaultfd.user_mode_only = works();
        }),
        ("userfaultfd", true, |found| {
            (found.userfaultfd.device, found.userfaultfd.syscall) = (refused(), refused());
            found.userfaultfd.user_mode_only = refused();
        }),
        ("move", false, |found| found.userfaultfd.move_page = refused()),
        ("io_uring", false, |found| found.io_uring.ring = refused()),
        ("huge pages", false, |found| found.huge_pages.mode = Some("never".to_owned())),
        ("max_map_count", false, |found| found.limits.max_map_count = Some(1000)),
        ("open files", false, |found| found.limits.rlimit_nofile_hard = Some(256)),
        ("address space", true, |found| found.start.addresses = refused()),
        ("threads", true, |found| found.start.threads = refused()),
        ("system calls", true, |found| found.start.calls = refused()),
        ("/proc", true, |found| found.start.procfs = refused()),
        ("memory limit", false, |found| {
            let Some(group) = &mut found.memory_cgroup else { return };
            (group.limit_bytes, group.left_bytes) = (Some(1 << 30), Some(1 << 29));
        }),
        ("overcommit", false, |found| found.memory.overcommit_mode = Some(2)),
        ("memory cgroup", false, |found| found.memory_cgroup = None),
    ];
    let mut all = perfect();
    for (about, required, change) in changes {
        let mut found = perfect();
        change(&mut found);
        change(&mut all);
        let advice = advise(&found, &all_sharing(), &works(), &all_swap());
        assert_eq!(advice.len(), 1, "{about}: {advice:?}");
        assert_eq!((advice[0].about, advice[0].required), (about, required));
        assert!(!advice[0].text.contains('\n'), "{about}");
    }
    // Which faults are served, and whether pages would be moved or copied, matters only where there is a
    // userfaultfd, and the limit of a group only where there is one.
    assert_eq!(advise(&all, &all_sharing(), &works(), &all_swap()).len(), changes.len() - 3);
    let text = report_of(&all);
    assert!(text.contains("cannot work here") && text.contains("--fallback kernel"), "{text}");
    assert!(text.contains("What must change:\n  userfaultfd:"), "{text}");
}

#[test]
fn what_is_left_to_the_kernel_without_watches_is_said() {
    let advice = |sharing: &Sharing| {
        let mut advice = advise(&perfect(), sharing, &works(), &all_swap());
        assert_eq!(advice.len(), 1, "{advice:?}");
        let Advice { about, required, text } = advice.remove(0);
        assert_eq!((about, required), ("sharing", false));
        text
    };
    let leases = Sharing { watch: refused(), ..all_sharing() };
    assert!(advice(&leases).contains("mapped for storing"));
    assert!(advice(&Sharing { lease: refused(), ..leases }).contains("no file is managed"));
    assert_eq!(advise(&perfect(), &Sharing { lease: refused(), ..all_sharing() }, &works(), &all_swap()), []);
}

#[test]
fn what_a_swap_file_lacks_is_said() {
    let advice = |bytes, lack: &str, needed| {
        let swap = Swap { bytes, lack: Some(lack.to_owned()), ..all_swap() };
        let mut advice = advise(&perfect(), &all_sharing(), &works(), &swap);
        assert_eq!(advice.len(), 1, "{advice:?}");
        let Advice { about, required, text } = advice.remove(0);
        assert_eq!((about, required), ("swap", needed));
        text
    };
    let none = advice(0, "its file system is in memory", true);
    assert!(none.contains("cannot be managed, since in /var/tmp, its file system is in memory"), "{none}");
    let little = advice(64 << 20, "80 MiB are free there", false);
    assert!(little.contains("swap for 64 MiB only, since in /var/tmp, 80 MiB are free"), "{little}");
}

#[test]
fn who_may_not_keep_processors_awake_is_told() {
    let advice = |awake: &Trial| advise(&perfect(), &all_sharing(), awake, &all_swap());
    let told = advice(&refused());
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(!told[0].required && told[0].text.contains("/dev/cpu_dma_latency"), "{told:?}");
    let many = Trial { works: false, error: Some("there are more than 16 processors".into()), errno: None };
    assert_eq!(advice(&many), [], "nothing can be done about it");
}

#[test]
fn sharing_is_tried_on_a_file_that_is_gone_afterwards() {
    let file = file_to_try().unwrap();
    assert!(std::os::unix::fs::MetadataExt::nlink(&file.metadata().unwrap()) == 0);
    drop(file);
    let sharing = Sharing::tried();
    assert!(sharing.lease.works, "{sharing:?}");
}

#[test]
fn values_are_aligned() {
    let text = report_of(&perfect());
    let table = text.split("\n\n").next().unwrap();
    let column = table.lines().next().unwrap().find("Linux").unwrap();
    for line in table.lines() {
        let (name, value) = line.split_at(column);
        assert!(name.ends_with("  ") && !value.starts_with(' '), "{line:?}");
    }
}

#[test]
fn lines_fit_the_terminal() {
    let mut found = perfect();
    found.limits.max_map_count = Some(1000);
    found.start.threads = refused();
    let text = report_in(&found, 60);
    assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
    assert!(text.contains("\n    "), "{text}");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&text), words(&report_of(&found)), "nothing is lost");
}
