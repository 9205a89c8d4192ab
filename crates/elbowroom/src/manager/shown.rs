//! The figures of a manager in the table of its run, and requests of other processes for its groups.
//!
//! The thread that keeps frames at hand does all of it: the figures of the process once a second, those of
//! its groups only when another process asks. Reclaim that was requested is done in pieces of [`GIVE_BOUND`],
//! so that the thread's own work and a fork are not kept waiting.

#[cfg(all(test, not(shuttle)))]
mod tests;

use crate::config::{DELAY, GIVE_BOUND};
use crate::group::{GroupEvent, GroupId, GroupStats, PressureUse, StallKinds, StallSource, StallTime};
use crate::page::Ready;
use crate::pause::{Cause, pause};
use crate::platform::Platform;
use crate::process_tree::{
    GroupRequest, GroupUse, LimitKey, Member, ProcessGauges, ProcessPressure, ProcessUse, Progress,
    StallAverages, StalledFor,
};
use crate::quiet::Rester;
use crate::reclaim::Target;
use crate::space::Spaces;
use crate::stats::Event;
use elbowroom_machine::{Errno, PAGE_SHIFT};
use elbowroom_sync::atomic::Ordering;
use elbowroom_sync::time::Instant;
use elbowroom_sync::{Arc, Awaited, LockClass};
use std::collections::HashMap;

/// Attempts in a row that may free nothing, before a request has failed.
const RETRIES: usize = 16;

/// How often in a row it is waited for pages that are on their way to the swap file.
const WAITS: usize = 40;

/// Tells the other processes of the run what this one has counted so far, and what it shows of itself.
pub(super) fn note<P: Platform>(core: &Spaces<P>) {
    if let Some(member) = &core.config.member {
        core.swap.quota.settle(core.swap.used());
        gauges(core).note(member);
        member.note_use(&counted(core));
    }
}

/// The counters of the process that the run's table has.
pub(crate) fn counted<P: Platform>(core: &Spaces<P>) -> ProcessUse {
    let c = &core.counters;
    ProcessUse {
        faults: c.get(Event::FaultsMinor) + c.get(Event::FaultsMajor),
        major_faults: c.get(Event::FaultsMajor),
        refaults: c.get(Event::RefaultPages),
        read_bytes: c.get(Event::ReadBytes),
        written_bytes: c.get(Event::WrittenBytes),
        swapped_in: c.get(Event::SwapIns),
        swapped_out: c.get(Event::SwapOuts),
    }
}

fn averages(time: StallTime) -> StallAverages {
    let StallTime { avg10, avg60, avg300, total_us } = time;
    StallAverages { avg10, avg60, avg300, total_us }
}

/// What the process shows of itself.
fn gauges<P: Platform>(core: &Spaces<P>) -> ProcessGauges {
    let figures = core.groups.of(GroupId::ROOT).pressure().figures();
    let waits = core.locks.wait_sums();
    let most = waits.most();
    ProcessGauges {
        pressure: pressure(&figures),
        pool_bytes: core.swap.pool().pages() << PAGE_SHIFT,
        swap_file_bytes: core.swap.file_pages() << PAGE_SHIFT,
        out_bytes: core.swap.used() << PAGE_SHIFT,
        lock: ProcessGauges::name(most.map_or("", |(what, _)| what.name())),
        lock_wait_us: most.map_or(0, |(_, wait_ns)| wait_ns / 1000),
        lru_wait_us: waits.of(Awaited::Lock(LockClass::Lru)) / 1000,
        stalled_for: figures.sources.first().map(stalled_for),
        high_stuck: core.groups.all().map(|group| group.counters.get(GroupEvent::HighStuck)).sum(),
    }
}

fn pressure(figures: &PressureUse) -> ProcessPressure {
    let StallKinds { file_read_us, swap_in_us, frames_us, dirty_us } = figures.kinds;
    let [some, full] = [figures.some, figures.full].map(averages);
    ProcessPressure { some, full, file_read_us, swap_in_us, frames_us, dirty_us }
}

/// A source of stalls, with its stall time in microseconds.
fn stalled_for(source: &StallSource) -> (StalledFor, u64) {
    let StallSource { device, inode, address, stall_us, .. } = *source;
    let stalled_for = match address {
        0 => StalledFor::File { device, inode },
        address => StalledFor::Memory { address: address as u64 },
    };
    (stalled_for, stall_us)
}

/// Serves requests of other processes for the groups of this one, if there are some.
pub(super) fn serve<P: Platform>(core: &Arc<Spaces<P>>) {
    if let Some(member) = core.config.member.as_ref().filter(|member| member.groups().is_asked()) {
        serve_asked(core, member);
    }
}

fn serve_asked<P: Platform>(core: &Arc<Spaces<P>>, member: &Member) {
    let until = Instant::now() + GIVE_BOUND;
    let groups: HashMap<u64, GroupId> = core.groups.ids().map(|group| (group.key(), group)).collect();
    let act = |key: u64, request: GroupRequest, began_bytes: Option<u64>| {
        let Some(group) = groups.get(&key) else { return (0, 0, failed(Errno::NOENT)) };
        let began_bytes = began_bytes.unwrap_or_else(|| used_bytes(core, *group));
        let progress = act(core, *group, request, began_bytes, until);
        (began_bytes, used_bytes(core, *group), progress)
    };
    let used = |key: u64| {
        let group = *groups.get(&key)?;
        let stats = core.groups.stats(group).ok()?;
        Some(used(&stats, &core.groups.of(group).pressure().figures()))
    };
    member.groups().serve(act, used);
}

fn failed(errno: Errno) -> Progress {
    Progress::Done(u64::from(errno.raw_os_error().unsigned_abs()))
}

/// Bytes that a group uses, with the groups below it.
fn used_bytes<P: Platform>(core: &Spaces<P>, group: GroupId) -> u64 {
    core.groups.stats(group).map_or(0, |stats| stats.usage_bytes)
}

/// Begins a request for a group, or goes on with one. `began_bytes`: the use of the group when the request
/// was begun.
fn act<P: Platform>(
    core: &Arc<Spaces<P>>,
    group: GroupId,
    request: GroupRequest,
    began_bytes: u64,
    until: Instant,
) -> Progress {
    let groups = &core.groups;
    match request {
        GroupRequest::Reclaim(bytes) => {
            let target = began_bytes.saturating_sub(bytes);
            let beyond = || used_bytes(core, group).saturating_sub(target) >> PAGE_SHIFT;
            reclaim(core, group.into(), until, beyond)
        }
        GroupRequest::Set(key, value) => {
            if let Err(errno) = groups.change_limits(group, |limits| limits.with(key, value)) {
                return failed(errno);
            }
            match key {
                LimitKey::Max => reclaim(core, group.into(), until, || groups.beyond_max(group)),
                LimitKey::MemorySwapMax => {
                    let target = Target::memory_and_swap(group);
                    reclaim(core, target, until, || groups.beyond_memory_swap(group))
                }
                _ => Progress::Done(0),
            }
        }
    }
}

/// Reclaims pages until `wanted`, which says how many are to be reclaimed still, wants no more, or
/// until a moment.
fn reclaim<P: Platform>(
    core: &Arc<Spaces<P>>,
    target: Target,
    until: Instant,
    wanted: impl Fn() -> u64,
) -> Progress {
    let (mut failures, mut waits) = (0, 0);
    loop {
        let want = wanted();
        if want == 0 {
            return Progress::Done(0);
        }
        if failures == RETRIES {
            return Progress::Done(u64::from(Errno::BUSY.raw_os_error().unsigned_abs()));
        }
        let is_interrupted = core.stop.load(Ordering::Acquire) || core.quiet.is_wanted(Rester::Helper);
        if Instant::now() > until || is_interrupted {
            return Progress::Begun;
        }
        // Pages that are on their way to the swap file are freed when they are there: if more were sent
        // before, too many would go out. Others' pages may keep the file busy for ever, so the wait has a
        // bound.
        if core.to_write.own() > 0 && waits < WAITS {
            waits += 1;
            pause(Cause::Frames, DELAY);
            continue;
        }
        let ready = Ready::default();
        let some = core.shrink(target, (want as usize).min(core.tuning().reclaim_batch_pages), &ready);
        core.dispatch(ready.take());
        waits = 0;
        if some == 0 && core.to_write.own() == 0 {
            failures += 1;
            pause(Cause::Frames, DELAY);
        }
    }
}

fn used(stats: &GroupStats, figures: &PressureUse) -> GroupUse {
    GroupUse {
        usage_bytes: stats.usage_bytes,
        peak_bytes: stats.peak_bytes,
        max_bytes: stats.limits.max,
        high_bytes: stats.limits.high,
        low_bytes: stats.limits.low,
        min_bytes: stats.limits.min,
        high_events: stats.high,
        high_stuck: stats.high_stuck,
        max_events: stats.max,
        failed_events: stats.failed,
        pgfault: stats.pgfault,
        pgmajfault: stats.pgmajfault,
        some: averages(figures.some),
        full: averages(figures.full),
    }
}
