//! The kernel and the model of its rules, given the same random operations; and whether the comparison would
//! notice.

use elbowroom_tests::differential::{
    Bend, Bent, Campaign, EPISODE, Kernel, Mix, Model, Ours, PAGES, Site, Tally,
};
use elbowroom_tests::skipped;

/// Kernel engines that the tests of this file have at the same time, and as many that move what was placed
/// elsewhere.
const ENGINES: u64 = 8;

/// All operations that this kernel has as the model knows them, and allows.
fn mix() -> Mix {
    let mix = Mix { named_remap: Kernel::moves_ranges(), ..Mix::default() };
    let lock = if Kernel::may_lock(ENGINES, PAGES) { mix.lock } else { 0 };
    Mix { lock, ..mix }
}

/// A run is worth its time only if operations succeed and fail in all their ways, and hardly any is passed
/// over.
fn check_coverage(tally: &Tally) {
    println!("{tally:?}");
    assert!(tally.passed_over * 50 <= tally.steps, "{} of {}", tally.passed_over, tally.steps);
    if tally.steps < 10 * EPISODE {
        return;
    }
    let seen = [
        ("map", [0, libc::EINVAL, libc::ENOMEM, libc::EEXIST, libc::EACCES, libc::EBADF].as_slice()),
        ("unmap", &[0, libc::EINVAL]),
        ("protect", &[0, libc::EINVAL, libc::ENOMEM, libc::EACCES]),
        ("remap", &[0, libc::EINVAL, libc::ENOMEM, libc::EFAULT]),
        ("advise", &[0, libc::EINVAL, libc::ENOMEM, libc::EACCES, libc::EFAULT]),
        ("sync", &[0, libc::EINVAL, libc::ENOMEM]),
        ("mincore", &[0, libc::EINVAL, libc::ENOMEM]),
        ("load", &[0, 1000 + libc::SIGBUS, 1000 + libc::SIGSEGV, 2000 + libc::SIGSEGV]),
        ("store", &[0, 1000 + libc::SIGBUS, 1000 + libc::SIGSEGV, 2000 + libc::SIGSEGV]),
    ];
    let locks = tally.count("lock", 0) > 0 || !Kernel::may_lock(ENGINES, PAGES);
    assert!(locks, "nothing was locked");
    for (kind, results) in seen {
        for &result in results {
            assert!(tally.count(kind, result) > 0, "{kind} never had the result {result}");
        }
    }
}

#[test]
fn kernel_and_model() {
    let campaign = Campaign::from_environment(1, 50, mix());
    let make = || (Kernel::new(campaign.pages), Model::new(campaign.pages));
    let tally = campaign.run(make).unwrap_or_else(|failure| panic!("{failure}"));
    check_coverage(&tally);
}

#[test]
fn kernel_and_model_while_the_file_changes_its_size() {
    let campaign = Campaign::from_environment(1 << 40, 20, mix().with_truncation());
    let make = || (Kernel::new(campaign.pages), Model::new(campaign.pages));
    let tally = campaign.run(make).unwrap_or_else(|failure| panic!("{failure}"));
    check_coverage(&tally);
    assert!(tally.count("truncate", 0) > 0);
}

#[test]
fn kernel_and_model_on_two_threads() {
    let campaign = Campaign::from_environment(2 << 40, 30, mix());
    let sites = Site::pair(campaign.pages);
    let make = |thread: usize| (Kernel::on(sites[thread]), Model::new(campaign.pages));
    let tally = campaign.run_on_two_threads(make).unwrap_or_else(|failure| panic!("{failure}"));
    check_coverage(&tally);
}

#[test]
fn planted_bugs_are_found_and_shrunk() {
    for bend in Bend::ALL {
        let campaign =
            Campaign { seed: 5, steps: 100 * EPISODE, pages: 64, mix: Mix::default().with_truncation() };
        let make = || (Model::new(campaign.pages), Bent::new(Model::new(campaign.pages), bend));
        let failure = campaign.run(make).err().unwrap_or_else(|| panic!("{bend:?} was not found"));
        println!("{bend:?}: {failure}");
        assert!(failure.again, "{bend:?}: {failure}");
        assert!(failure.ops.len() <= 5, "{bend:?} was not shrunk: {failure}");
    }
}

fn soft_manager() -> std::sync::Arc<elbowroom::Manager<elbowroom::Soft>> {
    let config = elbowroom::Config::with_memory(64 << 20);
    std::sync::Arc::new(elbowroom::Manager::start_on(config).expect("a soft manager starts anywhere"))
}

#[test]
fn model_and_soft_space() {
    let campaign = Campaign::from_environment(3 << 40, 50, mix());
    let manager = soft_manager();
    let make = || (Model::new(campaign.pages), Ours::soft(&manager, campaign.pages));
    let tally = campaign.run(make).unwrap_or_else(|failure| panic!("{failure}"));
    check_coverage(&tally);
}

#[test]
fn model_and_soft_space_while_the_file_changes_its_size() {
    let campaign = Campaign::from_environment(4 << 40, 20, mix().with_truncation());
    let manager = soft_manager();
    let make = || (Model::new(campaign.pages), Ours::soft(&manager, campaign.pages));
    let tally = campaign.run(make).unwrap_or_else(|failure| panic!("{failure}"));
    check_coverage(&tally);
    assert!(tally.count("truncate", 0) > 0);
}

#[test]
fn model_and_soft_space_on_two_threads() {
    let campaign = Campaign::from_environment(5 << 40, 30, mix());
    let manager = soft_manager();
    let make = |thread: usize| {
        // Two ranges of one space, with a page between them that nobody maps.
        static SPACES: std::sync::Mutex<Vec<std::sync::Arc<elbowroom::Space<elbowroom::Soft>>>> =
            std::sync::Mutex::new(Vec::new());
        let space = {
            let mut spaces = SPACES.lock().unwrap();
            if spaces.is_empty() {
                spaces.push(std::sync::Arc::new(manager.create_space().expect("there is room")));
            }
            spaces[0].clone()
        };
        let offset = (1 << 40) + thread as u64 * (campaign.pages + 1) * 4096;
        (Model::new(campaign.pages), Ours::soft_at(&manager, &space, campaign.pages, offset))
    };
    let tally = campaign.run_on_two_threads(make).unwrap_or_else(|failure| panic!("{failure}"));
    check_coverage(&tally);
}

/// A manager of real pointers and its space, unless the machine forbids them.
fn host() -> Option<(std::sync::Arc<elbowroom::Manager>, std::sync::Arc<elbowroom::Space<elbowroom::Host>>)> {
    match elbowroom::Manager::start(elbowroom::Config::with_memory(64 << 20)) {
        Ok((manager, space)) => Some((std::sync::Arc::new(manager), std::sync::Arc::new(space))),
        Err(why) => {
            skipped(why);
            None
        }
    }
}

#[test]
fn model_and_host_space() {
    let campaign = Campaign::from_environment(6 << 40, 10, mix().with_truncation());
    let Some((manager, space)) = host() else { return };
    let mut episode = 0;
    let make = || {
        episode += 1;
        let offset = episode % 512 * (16 << 20);
        (Model::new(campaign.pages), Ours::host_at(&manager, &space, campaign.pages, offset))
    };
    let tally = campaign.run(make).unwrap_or_else(|failure| panic!("{failure}"));
    check_coverage(&tally);
}

#[test]
fn model_and_host_space_on_two_threads() {
    let campaign = Campaign::from_environment(7 << 40, 10, mix());
    let Some((manager, space)) = host() else { return };
    let make = |thread: usize| {
        let offset = thread as u64 * (campaign.pages + 1) * 4096;
        (Model::new(campaign.pages), Ours::host_at(&manager, &space, campaign.pages, offset))
    };
    let tally = campaign.run_on_two_threads(make).unwrap_or_else(|failure| panic!("{failure}"));
    check_coverage(&tally);
}
