//! A step of a fault: several looks at it, and, between two looks, getting what the earlier one found
//! missing.
//!
//! A look is inside an epoch section and has a VMA locked for reading; threads that change the layout wait
//! for both. So nothing in a look may block. What the look lacks (frames that reclaim or the kernel must
//! make, a size that the file must be asked for) is got between two looks, and the reads that it prepares
//! are queued after it, when nothing is held.

use super::Pass;
use super::io::Parts;
use super::outcome::{Outcome, Reason};
use crate::group::{Frames, GroupId, Payer, Purpose, StallKind};
use crate::object::FileObject;
use crate::page::Parked;
use crate::platform::Platform;
use crate::reclaim::see_to_high;
use elbowroom_machine::Mmu;
use elbowroom_sync::Arc;

/// How often a step gets what a look found missing and looks again, at most, before other faults get their
/// turn.
const LOOKS_AT_ONCE: usize = 4;

/// What a look at a fault found missing and could not get at once. Getting it may take longer than a VMA
/// may be kept locked, so it is got with nothing held, for the next look.
pub(super) enum Need {
    /// 2^n frames for a group, or fewer.
    Frames(Payer, u8),
    /// 2^n contiguous frames for a group, if they can be had without freeing any.
    WholeRun(GroupId, u8),
    /// Less memory in use in a group, or one above it, that is over its `high`.
    High(GroupId),
    /// The size of the file as it is now: the file may have grown without our knowing.
    Size(Arc<FileObject>),
}

/// What has been got for a fault.
#[derive(Default)]
pub(super) struct Got {
    frames: Option<Frames>,
    /// What the frames are for.
    purpose: Purpose,
    /// Whether getting a [`Need::WholeRun`] was tried, perhaps without success.
    tried_run: bool,
    /// Whether less memory was brought into use, or that was tried.
    saw_high: bool,
    /// Whether the file was asked for its size.
    pub(super) asked_size: bool,
}

impl<P: Platform> Pass<'_, P> {
    /// One step of a fault: a look, further looks with what the one before found missing, and then the
    /// reads that they have prepared.
    pub(super) fn step(&mut self, fault: &mut Parked) -> Outcome {
        let mut step = self.look(fault);
        // Each need comes up once, unless other threads take meanwhile what was got.
        for _ in 0..LOOKS_AT_ONCE {
            let Some(need) = self.need.take() else { break };
            if let Err(reason) = self.get(need, fault) {
                step = Outcome::Wait(reason);
                break;
            }
            step = self.look(fault);
        }
        self.need = None;
        if let Some(unused) = std::mem::take(&mut self.got).frames {
            self.core.free(unused);
        }
        self.begin_reads();
        if let Some((object, pages)) = self.ahead.take() {
            let count = pages.end - pages.start;
            if self.prefetch(&object, pages.clone(), &Parts::UpTo(count)) {
                self.core.streams.lock().note(fault.event.thread, object.serial, pages.start, count);
            }
        }
        step
    }

    /// Ends a look with the result that `need` is to be got; the next look follows at once.
    pub(super) fn needs(&mut self, need: Need) -> Outcome {
        self.need = Some(need);
        Outcome::Again
    }

    /// Gets what a look found missing, with nothing held. `Err`: what the fault has to wait for first.
    fn get(&mut self, need: Need, fault: &mut Parked) -> Result<(), Reason> {
        let core = self.core;
        if let Some(other) = self.got.frames.take() {
            core.free(other);
        }
        match need {
            Need::Frames(payer, order) => {
                let populated = core.mmu.populated_frames();
                // Growing the arena takes time, too, but is no sign that memory lacks.
                let begin_stall =
                    || core.begin_stall(StallKind::Frames, fault.track, fault.event.addr, Some(payer.group));
                let stall = if core.can_grow() { None } else { begin_stall() };
                let frames = core.frames(payer, order, self.ready);
                drop(stall);
                if core.mmu.populated_frames() != populated
                    && let Some(io) = self.io.as_deref_mut()
                {
                    io.load.forgive();
                }
                fault.limited.short = frames.as_ref().err().copied();
                self.got.frames = Some(frames.map_err(|_| Reason::Frames)?);
                self.got.purpose = payer.purpose;
            }
            Need::WholeRun(group, order) => {
                self.got.frames = core.whole_run(group, order);
                self.got.purpose = Purpose::New;
                self.got.tried_run = true;
            }
            Need::High(group) => {
                self.got.saw_high = true;
                // Once for each fault: then it goes on, however much the group uses.
                if !std::mem::replace(&mut fault.limited.paid_high, true)
                    && let Some(time) = see_to_high(core, group, self.ready)
                {
                    return Err(Reason::High(time));
                }
            }
            Need::Size(object) => {
                // A file that cannot be asked keeps the size it had.
                let _ = object.refresh_size();
                self.got.asked_size = true;
            }
        }
        Ok(())
    }

    /// 2^`order` frames for a group, or fewer: those that were got for this look, or free ones. `Err`: none
    /// are free; they are got for the next look.
    pub(super) fn take_frames(&mut self, payer: impl Into<Payer>, order: u8) -> Result<Frames, Outcome> {
        let (groups, payer) = (&self.core.groups, payer.into());
        let Payer { group, purpose } = payer;
        // A limit may not have been looked at for frames that were got for another purpose.
        let is_for_this = self.got.purpose == purpose;
        if !self.got.saw_high && groups.over_high(group).is_some() {
            return Err(self.needs(Need::High(group)));
        }
        match self.got.frames.take() {
            Some(extent)
                if is_for_this && extent.order() <= order && extent.group() == groups.paying(group) =>
            {
                return Ok(extent);
            }
            Some(other) => self.core.free(other),
            None => {}
        }
        self.core.frames_at_hand(payer, order).ok_or_else(|| self.needs(Need::Frames(payer, order)))
    }

    /// 2^`order` contiguous frames for a group. `None`: there are none, as was found before this look.
    /// `Err`: the next look has them, if they can be had.
    pub(super) fn take_run(&mut self, group: GroupId, order: u8) -> Result<Option<Frames>, Outcome> {
        let group_pays = |frames: &Frames| frames.group() == self.core.groups.paying(group);
        let is_new = self.got.purpose == Purpose::New;
        let whole = |frames: &Frames| is_new && frames.order() == order && group_pays(frames);
        if let Some(extent) = self.got.frames.take_if(|frames| whole(frames)) {
            return Ok(Some(extent));
        }
        // Where memory is to be used more slowly, it is used by the page.
        if self.got.tried_run || self.core.groups.over_high(group).is_some() {
            return Ok(None);
        }
        match self.core.frames_at_hand(group, order) {
            Some(extent) => Ok(Some(extent)),
            None => Err(self.needs(Need::WholeRun(group, order))),
        }
    }
}
