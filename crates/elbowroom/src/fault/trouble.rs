//! What is done when something inside the manager is broken: it is reported, and the process ends if it
//! cannot go on.

use super::Faults;
use crate::config::{CHANGE_LOOK, LAST_FLUSH_BOUND, STOPPED};
use crate::group::{GroupEvent, GroupId, OverLimit};
use crate::page::Parked;
use crate::pause::{Cause, pause};
use crate::platform::Platform;
use crate::process_tree::RunTotals;
use elbowroom_machine::PAGE_SHIFT;
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::time::{Duration, Instant};

/// Reports, once, that groups have given what their `min` protects.
pub(super) fn tell_of_min<P: Platform>(faults: &Faults<P>) {
    if faults.groups.starving.is_min_to_be_told() {
        faults.report(
            "memory is full of what the min of groups protects, and an access waited for a page: groups give \
             below their min where nothing else is left. Their min together should leave more of the budget",
        );
    }
}

/// Nobody has reported that memory is full.
pub(super) const FULL_UNSAID: u32 = 0;
/// A thread is reporting it.
const FULL_BEING_SAID: u32 = 1;
/// It has been reported.
const FULL_SAID: u32 = 2;

/// Reports what was used up when there was no memory for an access.
fn report_full<P: Platform>(faults: &Faults<P>, addr: usize, over: Option<(OverLimit, GroupId)>) {
    let mebibytes = |bytes: u64| bytes >> 20;
    let (budget, swap) = (mebibytes(faults.config.memory), mebibytes(faults.config.swap));
    let (used, in_file) = (faults.swap.used() << PAGE_SHIFT, faults.swap.file_pages() << PAGE_SHIFT);
    let (used, in_file) = (mebibytes(used), mebibytes(in_file));
    let waited = faults.config.bounds.memory_wait;
    if let Some((over, group)) = over {
        let limits = faults.groups.limits(group);
        let what = match (over, faults.groups.full_swap(group)) {
            (OverLimit::MemorySwap(_), _) => format!(
                "may have {} MiB in memory and swap together, and no page of a file can be reclaimed. It \
                 needs a larger memory-swap-max",
                mebibytes(limits.memory_swap_max)
            ),
            (_, Some(full)) => format!(
                "may use {} MiB, and nothing of that can be reclaimed: {full} has all of the {} MiB in \
                 swap that it may have. It needs a larger max or swap-max",
                mebibytes(limits.max),
                mebibytes(faults.groups.limits(full).swap_max)
            ),
            (_, None) => format!(
                "may use {} MiB, and nothing of that can be reclaimed. It needs a larger max",
                mebibytes(limits.max)
            ),
        };
        return faults.report(&format!(
            "memory is full: an access at {addr:#x} has waited {waited:.0?} for a page, and fails. \
             Its memory group, or one above it ({group}), {what}"
        ));
    }
    let run = faults.config.member.as_ref().map(|member| RunTotals::seen_by(member));
    if let Some(run) = run.filter(|run| run.processes > 1) {
        let figures = [run.bytes, run.max_bytes, run.swap_bytes, run.swap_max_bytes];
        let [has, max, out, swap] = figures.map(mebibytes);
        return faults.report(&format!(
            "memory is full: an access at {addr:#x} has waited {waited:.0?} for a page, and fails. \
             The processes of the run have {has} of the budget of {max} MiB, and {out} of {swap} MiB of \
             swap, {used} of it this one. They need a larger budget or more swap"
        ));
    }
    // Pages of a group at its limit have to stay, although there is room in swap.
    let full = faults.groups.ids().find_map(|group| faults.groups.full_swap(group));
    let full = full.map_or(String::new(), |full| {
        format!(". Pages of memory {full} stay in memory: its swap is at its swap-max")
    });
    let with_more = match faults.swap.is_on() {
        true => "a larger budget or more swap",
        false => "a larger budget",
    };
    faults.report(&format!(
        "memory is full: an access at {addr:#x} has waited {waited:.0?} for a page, and \
         fails. All of the budget of {budget} MiB is in use, and {used} of {swap} MiB of swap, {in_file} \
         of it in the swap file. It needs {with_more}{full}"
    ));
}

impl<P: Platform> Faults<P> {
    /// How long something that waits since `since` has waited, counting only from the last time the whole
    /// process went on after it had been stopped (by SIGSTOP, a debugger, a freezer).
    pub(crate) fn waited(&self, since: Instant) -> Duration {
        if cfg!(shuttle) {
            return since.elapsed();
        }
        let now = self.born.elapsed().as_nanos() as u64;
        // The watchdog calls this once a second. So if no call came for much longer, no thread of the
        // process ran.
        let before = self.alive.swap(now, Ordering::AcqRel);
        if now.saturating_sub(before) > STOPPED.as_nanos() as u64 {
            self.resumed.store(now, Ordering::Release);
        }
        let resumed = Duration::from_nanos(self.resumed.load(Ordering::Acquire));
        since.elapsed().min(self.born.elapsed() - resumed)
    }

    /// Reports what went wrong inside the manager: to the configured function, or on standard error.
    pub(crate) fn report(&self, line: &str) {
        match &self.config.hooks.report {
            Some(report) => report(line),
            None => eprintln!("elbowroom: {line}"),
        }
    }

    /// Counts a fault that ends by SIGBUS since there is no memory for it, and reports the first one.
    /// `false`: another thread is reporting just now. The fault must not end then: SIGBUS may end the
    /// process, and the report with it.
    pub(crate) fn note_starved(&self, fault: &Parked) -> bool {
        let (not, now) = (FULL_UNSAID, FULL_BEING_SAID);
        let before = self.said_full.compare_exchange(not, now, Ordering::AcqRel, Ordering::Acquire);
        if before == Err(FULL_BEING_SAID) {
            return false;
        }
        let addr = fault.event.addr;
        let over = match fault.limited.short {
            Some(over @ (OverLimit::Group(group) | OverLimit::MemorySwap(group))) => Some((over, group)),
            Some(OverLimit::Arena) | None => None,
        };
        over.iter().for_each(|(_, group)| self.groups.count(*group, GroupEvent::Failed, 1));
        if before.is_ok() {
            report_full(self, addr, over);
            self.said_full.store(FULL_SAID, Ordering::Release);
        }
        true
    }

    /// Ends the process after a thread of the manager has panicked: what that thread had locked stays
    /// locked, and threads that wait for it would wait for ever. Dirty pages are written first, if the
    /// flusher still works.
    pub(crate) fn end_process(&self, thread: &str) -> ! {
        self.report(&format!("internal error: thread {thread} has panicked, so the process ends"));
        let until = Instant::now() + LAST_FLUSH_BOUND;
        while self.groups.dirty_pages() > 0 && Instant::now() < until {
            self.write_all_soon();
            pause(Cause::LastFlush, CHANGE_LOOK);
        }
        if let Some(end) = &self.config.hooks.end_process {
            end();
        }
        std::process::abort()
    }
}
