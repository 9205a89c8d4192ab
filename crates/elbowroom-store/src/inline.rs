//! The reactor for shuttle: every read is one blocking pread, made by the thread that waits for it.
//!
//! Shuttle runs all threads of an execution on one OS thread, one at a time, so no thread may wait in the
//! kernel for another. [`Reactor::read`] queues a read, and each later wait makes one of them, so that
//! other threads can run in between, as they can while a disk works.

use crate::bell::Bell;
use crate::inject::Inject;
use crate::reactor::{Kicker, Reactor, Read, ReadDone, Woken};
use crate::request::{Request, Step, perform};
use elbowroom_machine::Errno;
use elbowroom_sync::time::Duration;
use elbowroom_sync::{Arc, thread};
use std::collections::VecDeque;

pub(crate) struct Inline {
    queue: VecDeque<(Request, Step)>,
    bell: Arc<Bell>,
    inject: Option<Arc<Inject>>,
}

impl Inline {
    pub(crate) fn new(bell: Arc<Bell>, inject: Option<Arc<Inject>>) -> Self {
        Self { queue: VecDeque::new(), bell, inject }
    }
}

impl Reactor for Inline {
    fn read(&mut self, read: Read) {
        self.queue.push_back(Request::new(read, self.inject.as_deref()));
    }

    fn submit(&mut self) {
        // Reads are made only in `wait`.
    }

    fn wait(&mut self, timeout: Option<Duration>, done: &mut Vec<ReadDone>) -> Result<Woken, Errno> {
        let read = self.queue.pop_front();
        if read.is_none() {
            match timeout {
                Some(timeout) => thread::sleep(timeout),
                None => self.bell.wait(),
            }
        }
        done.extend(read.map(|(request, step)| perform(request, step)));
        Ok(Woken { readable: false, kicked: self.bell.take_kick() })
    }

    fn kicker(&self) -> Kicker {
        Kicker::new(&self.bell)
    }

    fn in_flight(&self) -> usize {
        self.queue.len()
    }
}
