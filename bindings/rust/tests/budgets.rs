//! What budgets promise.
#![allow(unsafe_code)]

mod apart;

use apart::{apart, scratch};
use elbowroom::{Budget, MmapMut, MmapOptions, Process};
use std::cell::RefCell;
use std::io::ErrorKind;
use std::thread;

const PAGE: usize = 4096;

#[test]
fn settings_count_before_the_first_mapping_only() {
    let directory = scratch();
    let ended = apart("settings_count_before_the_first_mapping_only", directory.path(), |directory| {
        let wrong = [Process::new().memory("much"), Process::new().memory("1M"), Process::new().swap("-3")];
        for settings in wrong {
            let error = settings.clone().start().unwrap_err();
            assert!(error.to_string().len() > 20, "{settings:?}: {error}");
        }
        let nowhere = Process::new().memory("64M").swap("64M").swap_dir(directory.join("nowhere"));
        assert_eq!(nowhere.start().unwrap_err().kind(), ErrorKind::Unsupported);
        Process::new().memory("64M").swap("128M").swap_dir(directory).start().unwrap();
        assert_eq!(elbowroom::stats().unwrap().budget_bytes, 64 << 20);
        assert_eq!(Process::new().start().unwrap_err().kind(), ErrorKind::AlreadyExists);
        // What all have together: 192 MiB.
        let half = MmapMut::map_anon(100 << 20).unwrap();
        let error = MmapMut::map_anon(100 << 20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        let sparse = MmapOptions::new().len(1 << 40).no_reserve_swap().map_anon().unwrap();
        drop((half, sparse));
        let mut all = MmapMut::map_anon(150 << 20).unwrap();
        all.chunks_mut(PAGE)
            .enumerate()
            .for_each(|(nth, page)| page[..4].copy_from_slice(&(nth as u32).to_le_bytes()));
        let right = |(nth, page): (usize, &[u8])| page[..4] == (nth as u32).to_le_bytes();
        assert!(all.chunks(PAGE).enumerate().all(right));
    });
    if let Some((status, text)) = ended {
        assert!(status.success(), "{status}: {text}");
    }
}

#[test]
fn a_thread_has_the_budget_of_the_innermost_within() {
    let (outer, inner) = (Budget::with_memory("2MiB").unwrap(), Budget::with_memory("1MiB").unwrap());
    let held = |budget: &Budget| budget.stats().unwrap().anonymous_bytes;
    outer.within(|| {
        let _in_outer = MmapMut::map_anon(PAGE).unwrap();
        inner.within(|| {
            let _in_inner = MmapMut::map_anon(2 * PAGE).unwrap();
            let _named = outer.map_anon(4 * PAGE).unwrap();
            assert_eq!((held(&outer), held(&inner)), (5 * PAGE as u64, 2 * PAGE as u64));
        });
        let failed = std::panic::catch_unwind(|| inner.within(|| std::panic::resume_unwind(Box::new(()))));
        assert!(failed.is_err());
        let _in_outer_again = MmapMut::map_anon(8 * PAGE).unwrap();
        assert_eq!((held(&outer), held(&inner)), (9 * PAGE as u64, 0));
    });
    let _nowhere = MmapMut::map_anon(PAGE).unwrap();
    assert_eq!((held(&outer), held(&inner)), (0, 0));
}

#[test]
fn budgets_that_need_the_same_swap_promise_no_more_than_there_is() {
    let directory = scratch();
    let name = "budgets_that_need_the_same_swap_promise_no_more_than_there_is";
    let ended = apart(name, directory.path(), |directory| {
        Process::new().memory("64MiB").swap("40MiB").swap_dir(directory).start().unwrap();
        let budgets = [(); 3].map(|()| Budget::with_memory("8MiB").unwrap());
        // Each needs 17 MiB of swap, with the mebibyte that is kept free for pages that come in.
        let mut maps = budgets.each_ref().map(|budget| budget.map_anon(24 << 20));
        assert_eq!(maps[2].as_ref().unwrap_err().kind(), ErrorKind::OutOfMemory);
        let [Ok(one), Ok(other), _] = &mut maps else { panic!("{maps:?}") };
        for round in 0..3 {
            one.fill(round);
            other.fill(round);
        }
        // What is in memory promises nothing of swap.
        let mut rest = budgets[2].map_anon(8 << 20).unwrap();
        rest.fill(1);
        let error = budgets[1].set_limit("1MiB").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert_eq!(budgets[1].limit(), 8 << 20);
    });
    if let Some((status, text)) = ended {
        assert!(status.success(), "{status}: {text}");
    }
}

#[test]
fn the_budget_of_a_manager_that_a_child_cannot_have_is_unsupported_there() {
    let directory = scratch();
    let name = "the_budget_of_a_manager_that_a_child_cannot_have_is_unsupported_there";
    let ended = apart(name, directory.path(), |directory| {
        Process::new().memory("64MiB").swap("64MiB").swap_dir(directory).start().unwrap();
        let budget = Budget::with_memory("8MiB").unwrap();
        let map = budget.map_anon(32 << 20).unwrap();
        // SAFETY: integers, and structs of this function's. The child ends below.
        let child = unsafe {
            let mut limit = std::mem::zeroed();
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            let none = libc::rlimit { rlim_cur: 3, ..limit };
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none);
            let child = libc::fork();
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
            child
        };
        if child == 0 {
            let unsupported = |kind: Option<ErrorKind>| assert_eq!(kind, Some(ErrorKind::Unsupported));
            unsupported(budget.stats().err().map(|error| error.kind()));
            unsupported(budget.set_limit("9MiB").err().map(|error| error.kind()));
            unsupported(budget.inner("2MiB").err().map(|error| error.kind()));
            unsupported(budget.map_anon(PAGE).err().map(|error| error.kind()));
            let unpromised = budget.options().len(PAGE).no_reserve_swap().map_anon();
            unsupported(unpromised.err().map(|error| error.kind()));
            let new = Budget::with_memory("2MiB").unwrap();
            drop((map, budget));
            assert_eq!(new.stats().unwrap().anonymous_bytes, 0);
            new.map_anon(4 << 20).unwrap().fill(1);
            std::process::exit(0);
        }
        let mut status = 1;
        // SAFETY: an integer of this function's.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    });
    if let Some((status, text)) = ended {
        assert!(status.success(), "{status}: {text}");
    }
}

#[test]
fn a_destructor_of_a_thread_may_map() {
    struct Maps;
    impl Drop for Maps {
        fn drop(&mut self) {
            MmapMut::map_anon(PAGE).unwrap().fill(1);
        }
    }
    thread_local! {
        static MAPS: RefCell<Option<Maps>> = const { RefCell::new(None) };
    }
    let budget = Budget::with_memory("2MiB").unwrap();
    // Destructors run in the reverse order of their first use.
    thread::spawn(move || {
        MAPS.set(Some(Maps));
        budget.within(|| MmapMut::map_anon(PAGE).unwrap()).fill(1);
    })
    .join()
    .unwrap();
}
