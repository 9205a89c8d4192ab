//! The table of a run: three processes take pages, ask each other for some, and give them.

use elbowroom::{Member, ProcessTree, TreeLimits};
use elbowroom_shuttle::check;
use shuttle::thread;
use std::fs::File;

const PAGE: u64 = 4096;
/// Fewer than all want.
const MOST: usize = 6_000;

#[test]
fn processes_take_and_give_under_one_limit() {
    check("processes", 1, || {
        // In a model the words are not in the file.
        let file = File::open("/dev/null").unwrap();
        let limits = TreeLimits { max: MOST as u64 * PAGE, each: None, swap_max: 0 };
        let tree = shuttle::sync::Arc::new(ProcessTree::create(&file, &limits).unwrap());
        // The turns of processes are numbered from 0.
        let own = u64::from(std::process::id()) << 32 | 1 << 31;
        let process = |first: u64, takes: &'static [usize]| {
            let member = Member::enter(tree.clone());
            let tree = tree.clone();
            thread::spawn(move || {
                for pages in takes {
                    let before = member.has();
                    if member.take(*pages) {
                        assert_eq!(member.has(), before + pages);
                    } else {
                        member.ask();
                    }
                    let wanted = member.wanted();
                    assert!(wanted <= member.has());
                    member.give(wanted);
                    assert!(tree.is_within_limits(own | first), "more was taken than there is");
                }
                member.give_all();
            })
        };
        let all = [process(0, &[4_000, 1_000]), process(1, &[3_000, 2_000]), process(2, &[1_500, 600, 600])];
        all.into_iter().for_each(|process| process.join().unwrap());
        assert_eq!(tree.totals().bytes, 0);
    });
}
