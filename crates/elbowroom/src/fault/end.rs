//! How a fault ends.

use super::Faults;
use super::outcome::{Ended, Wakeup, note_waited};
use super::step::bus;
use super::table::{Counts, State};
use crate::group::GroupEvent;
use crate::page::{Answer, Flag, Folio, LockedFolio, Parked};
use crate::platform::Platform;
use crate::stats::Kind;
use crate::trace::{FaultEnd, Trace};
use crate::vma::VmaGuard;
use elbowroom_machine::{Denial, Extent, FaultEvent, MappedAt, Mmu, PAGE_SHIFT, PAGE_SIZE, UnmapError};
use elbowroom_sync::Arc;
use elbowroom_sync::epoch::Slot;

impl<P: Platform> Faults<P> {
    /// Ends a fault: its thread goes on, or learns how its access must fail.
    pub(super) fn finish(&self, mut fault: Parked, ended: Ended) {
        // A fault that has waited for too long still stalls. Its thread goes on now, or is throttled.
        fault.wait.stall = None;
        let page = fault.event.addr..fault.event.addr + PAGE_SIZE;
        let denied = ended.denial();
        if let Some(waiter) = fault.waiter.take() {
            let throttle = if let Wakeup::Throttled(pause) = ended.wakeup { Some(pause) } else { None };
            let major = fault.major;
            if let Some(trace) = &self.trace {
                note_waited(trace, &mut fault);
            }
            self.let_go(&mut fault);
            // The waiting thread counts the fault itself, and throttles itself: it sleeps on the waiter,
            // not at a page in the kernel.
            return waiter.tell(Answer { denied, throttle, major });
        }
        match ended.wakeup {
            Wakeup::None => {}
            Wakeup::Now => self.mmu.wake(page),
            Wakeup::Throttled(pause) => self.throttle(&fault.event, pause),
        }
        self.count(&mut fault, ended.state(), false);
    }

    /// Notes that the fault waits for the folio; if the folio's bytes have not been read yet, the fault is
    /// a major one. Tells whether the fault is to keep the folio from reclaim until it has been served, so
    /// that the retry finds the folio.
    pub(super) fn note_wait(&self, fault: &mut Parked, folio: &Folio) -> bool {
        if !fault.major && !folio.state.test(Flag::Uptodate) {
            (fault.major, fault.group) = (true, folio.group);
            self.groups.of(fault.group).add_waiting();
        }
        self.config.ablation.retry_under_vma_lock
    }

    /// How a fault ends that has waited for too long: by SIGBUS, if the access can be denied without losing
    /// a page that is in memory. If not, the thread is woken, so that it can take signals, and faults
    /// again.
    pub(super) fn overdue(&self, fault: &Parked) -> Ended {
        let denied = self.give_up(&fault.event) || fault.waiter.is_some();
        if denied { Ended::denied(Denial::Bus) } else { Ended::served(Wakeup::Now) }
    }

    /// Ends a fault as [`Faults::overdue`] says, after it has waited in a queue ([`State::Aside`]).
    pub(super) fn end_overdue(&self, fault: Parked) {
        let ended = self.overdue(&fault);
        State::Aside.after(ended.on());
        self.finish(fault, ended);
    }

    /// Makes an access that was not served in time fail, until the flusher's next look. `false`: it does
    /// not fail, because the page is being mapped just now, or is pinned where it is mapped. No byte is
    /// lost: a page that is swapped out stays out, and one in memory is first unmapped from its window.
    pub(super) fn give_up(&self, event: &FaultEvent) -> bool {
        let page = event.addr..event.addr + PAGE_SIZE;
        let Some(mm) = self.spaces.of(event.addr) else { return false };
        // The VMA stays locked to the end: the denial must not replace a page that another thread maps
        // meanwhile.
        let Ok(vma) = mm.enter(event.addr) else { return false };
        let number = (event.addr >> PAGE_SHIFT) as u64;
        let own = if vma.spec.is_private() { mm.anon.slot(number) } else { Slot::Empty };
        let denied = match own {
            Slot::Word(_) => self.deny_if(&vma, event.addr, || mm.anon.is_out(number)),
            Slot::Full(folio) => {
                let is_there = |folio: &Arc<Folio>| mm.anon.has(number, folio);
                self.deny_cached(&vma, event.addr, folio, is_there, || true)
            }
            Slot::Empty => {
                let none = || !vma.spec.is_private() || matches!(mm.anon.slot(number), Slot::Empty);
                let index = vma.page_at(event.addr);
                let cached = || vma.spec.object.as_ref().and_then(|object| object.lookup(index));
                match cached() {
                    None => self.deny_if(&vma, event.addr, || none() && cached().is_none()),
                    Some(folio) => self.deny_cached(&vma, event.addr, folio, |_| true, none),
                }
            }
        };
        if denied {
            self.note_refused(page);
        }
        denied
    }

    /// Makes an access to a page of a folio fail, if the folio `is_there` still, and if `wanted`, asked
    /// when other threads can see the denial, says that the access is still to fail.
    fn deny_cached(
        &self,
        vma: &VmaGuard<'_>,
        addr: usize,
        folio: Arc<Folio>,
        is_there: impl Fn(&Arc<Folio>) -> bool,
        wanted: impl Fn() -> bool,
    ) -> bool {
        match LockedFolio::try_lock(folio, &self.waits, self.handlers()) {
            Ok(mut folio) => {
                is_there(folio.arc()) && self.take_away(&mut folio, addr) && self.deny_if(vma, addr, wanted)
            }
            // The folio is locked by another thread. If it is being read, none of its pages is mapped, so
            // the access can be denied. Otherwise the lock's owner may be about to map the page, and it is
            // not denied.
            Err(folio) => {
                let is_read = || !folio.state.test(Flag::Uptodate) && !folio.state.test(Flag::Dead);
                let reads = || is_read() && is_there(&folio) && wanted();
                reads() && self.deny_if(vma, addr, reads)
            }
        }
    }

    fn deny_if(&self, vma: &VmaGuard<'_>, addr: usize, wanted: impl Fn() -> bool) -> bool {
        self.mmu.deny(addr, bus(vma), wanted) == Ok(true)
    }

    /// Unmaps a locked folio from the place that has `addr`; `false`: its page at `addr` is pinned there.
    fn take_away(&self, folio: &mut LockedFolio<'_>, addr: usize) -> bool {
        // A dead folio has left the cache, and may have no extent.
        if folio.state.test(Flag::Dead) {
            return true;
        }
        let extent = folio.body_mut().extent();
        let there =
            |extent: &Extent| extent.places().iter().find(|place| place.has(addr)).map(MappedAt::base);
        let Some(base) = there(extent) else { return true };
        // Busy may mean another page of the folio: this one may have been unmapped.
        self.mmu.unmap_at(extent, base) != Err(UnmapError::Busy) || there(extent).is_none()
    }

    /// Releases the folio that a fault that has ended kept from reclaim, and counts the fault as waiting
    /// for I/O no more.
    pub(super) fn let_go(&self, fault: &mut Parked) {
        fault.let_go();
        if fault.major {
            self.groups.of(fault.group).remove_waiting();
        }
    }

    /// Counts a fault that has ended in `state`, and lets go of what it held. `major`: a handler has waited
    /// for I/O for it.
    pub(super) fn count(&self, fault: &mut Parked, state: State, major: bool) {
        self.let_go(fault);
        let (event, kind) = match state.counts() {
            Counts::Fault(_, with_io) if fault.major || major => (with_io, Kind::Major),
            Counts::Fault(event, _) => (event, Kind::Minor),
            Counts::One(event) => (event, Kind::Unserved),
            Counts::Nothing => return,
        };
        self.counters.add(event, 1);
        match kind {
            Kind::Minor => self.groups.count(fault.group, GroupEvent::FaultsMinor, 1),
            Kind::Major => self.groups.count(fault.group, GroupEvent::FaultsMajor, 1),
            _ => {}
        }
        self.counters.latencies.record(kind, fault.since.elapsed().as_nanos() as u64);
        if let Some(trace) = &self.trace {
            self.note(trace, fault, state, kind);
        }
    }

    #[cold]
    fn note(&self, trace: &Trace, fault: &mut Parked, state: State, kind: Kind) {
        note_waited(trace, fault);
        let end = match (state, kind) {
            (_, Kind::Minor) => FaultEnd::Minor,
            (_, Kind::Major) => FaultEnd::Major,
            (State::Foreign, _) => FaultEnd::Foreign,
            (State::Stopped, _) => FaultEnd::Stopped,
            _ => FaultEnd::Denied,
        };
        let numbers = [fault.event.addr as u64, u64::from(fault.event.write)];
        trace.fault(fault.track, end, fault.since, numbers);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::fault::Pass;
    use crate::fault::outcome::{Outcome, Verdict, Wakeup};
    use crate::page::{Parked, Ready};
    use crate::{Config, Host, Manager, MapRequest, Place, Prot, Sharing, Soft};
    use elbowroom_machine::{Denial, FaultEvent, PAGE_SIZE};

    /// A fault whose read failed looks whether the page has been read since. If so, the access must not be
    /// denied: that would unmap the page and lose what was stored to it.
    #[test]
    fn a_read_that_failed_once_denies_no_page_that_is_there() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4 * PAGE_SIZE as u64).unwrap();
        let manager = Manager::<Soft>::start_on(Config::with_memory(16 << 20)).unwrap();
        let space = manager.create_space().unwrap();
        let request = MapRequest {
            place: Place::Anywhere,
            len: 4 * PAGE_SIZE,
            prot: Prot::READ.union(Prot::WRITE),
            may_write: true,
            sharing: Sharing::Shared,
            object: Some(manager.open(file.path(), true).unwrap()),
            offset: 0,
            populate: false,
            locked: false,
            no_reserve: false,
            group: None,
        };
        let (start, cpu, core) = (space.map(request).unwrap(), space.cpu(), &space.core);
        cpu.write_u64(start, 7).unwrap();
        let event = FaultEvent { addr: start, thread: 1, write: true, present: false };
        let (mut fault, ready) = (Parked::new(event), Ready::default());
        fault.failed = true;
        let step = Pass::new(core, None, &ready).step(&mut fault);
        assert!(
            matches!(step, Outcome::Ended(ended) if ended.verdict == Verdict::Served),
            "the page is there"
        );
        assert!(!fault.failed);
        assert!(!core.give_up(&event) || core.refused() == 1);
        assert_eq!(cpu.read_u64(start), Ok(7));
    }

    /// The mapping was unmapped after a first thread's fault had mapped the page, and before the event of a
    /// second thread was served.
    #[test]
    fn the_address_of_a_late_event_stays_ours() {
        let (manager, space) = match Manager::<Host>::start(Config::with_memory(16 << 20)) {
            Ok(started) => started,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let memory = || MapRequest::private_memory(PAGE_SIZE);
        let request = |place| MapRequest { place, prot: Prot::READ, ..memory() };
        let addr = space.map(request(Place::Anywhere)).unwrap();
        let event = FaultEvent { addr, thread: 1, write: false, present: false };
        let look = |fault: &Parked| space.core.look_with_layout(fault);
        let ours = || manager.windows().covers(addr, PAGE_SIZE);
        let woken = Outcome::served(Wakeup::Now);
        let (late, again) = (Parked::new(event), Parked::new(event));
        space.unmap(addr, PAGE_SIZE).unwrap();
        for fault in [&late, &again] {
            assert!(matches!(look(fault), Outcome::Ended(ended) if Outcome::Ended(ended).on() == woken.on()));
            assert!(ours(), "both were read before anything was missed");
        }
        space.map(request(Place::Fixed(addr))).unwrap();
        space.unmap(addr, PAGE_SIZE).unwrap();
        assert!(matches!(look(&Parked::new(event)), Outcome::Ended(ended) if ended.denial().is_none()));
        assert!(ours(), "it may have been served meanwhile");
        let wrong = look(&Parked::new(event));
        assert!(matches!(wrong, Outcome::Ended(ended) if ended.denial() == Some(Denial::NotMapped)));
        assert!(!ours(), "the kernel says SIGSEGV");
    }
}
