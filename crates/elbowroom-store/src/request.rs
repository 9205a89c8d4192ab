//! One read as a sequence of system calls: which comes next, and when the read is done. No I/O happens in
//! [`Request`], so all reactors share it and it is tested alone; [`perform`] is the loop around it for a
//! thread that may block.

use crate::calls::{RETRIES_MAX, check_span, first_end, is_transient, refuses_direct};
use crate::file::{Route, StoreFile};
use crate::inject::{Inject, Operation, Verdict};
use crate::reactor::{Read, ReadDone};
use elbowroom_machine::{Errno, Extent};
use elbowroom_sync::time::Duration;
use elbowroom_sync::{Arc, thread};

/// A direct read whose length is not a multiple of this has met the end of the file: devices have no
/// smaller blocks.
const SECTOR_BYTES: usize = 512;

/// A read that is not finished. Owns its extent (invariant 1 of the crate).
pub(crate) struct Request {
    pub(crate) file: Arc<StoreFile>,
    pub(crate) buf: Extent,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    token: u64,
    verdict: Verdict,
    /// Bytes at the start of `buf` that are read.
    done: usize,
    /// Interrupted system calls since the last progress.
    retries: u32,
    /// The system call under way: its route, and (`asked`) how many bytes it asks for.
    route: Route,
    asked: usize,
    /// Whether a part of the read went through the kernel's cache.
    cached: bool,
    /// Whether a direct attempt has failed, so that the rest of this read goes through the kernel's cache.
    through_cache: bool,
}

/// A system call to make: `asked` bytes at `offset` of the file into `buf` at `at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) route: Route,
    pub(crate) at: usize,
    pub(crate) offset: u64,
    pub(crate) asked: usize,
}

/// What to do next: at the beginning, and after each system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Make the next [`Request::attempt`].
    Again,
    /// Give the extent back with this result.
    Finish(Result<usize, Errno>),
}

impl Request {
    /// Checks a read (invariant 2 of the crate) and begins it: attempts may be made only if the step is
    /// `Again`.
    pub(crate) fn new(read: Read, inject: Option<&Inject>) -> (Request, Step) {
        let Read { file, offset, len, buf, token } = read;
        let verdict = match inject {
            Some(rules) => rules.judge(Operation::Read, &file.fault_path(), offset, len as u64),
            None => file.judge(Operation::Read, offset, len as u64),
        };
        let valid = buf.is_home() && len <= buf.len_bytes() && check_span(offset, len).is_ok();
        let step = match verdict.error {
            _ if !valid => Step::Finish(Err(Errno::INVAL)),
            Some(error) => Step::Finish(Err(error)),
            None if len == 0 => Step::Finish(Ok(0)),
            None => Step::Again,
        };
        let (route, asked) = (Route::Buffered, 0);
        let request = Request {
            file,
            buf,
            offset,
            len,
            token,
            verdict,
            done: 0,
            retries: 0,
            route,
            asked,
            cached: false,
            through_cache: false,
        };
        (request, step)
    }

    /// The next system call.
    pub(crate) fn attempt(&mut self) -> Attempt {
        let offset = self.offset + self.done as u64;
        self.asked = first_end(self.done, self.len, self.verdict.short) - self.done;
        self.route = if self.through_cache { Route::Buffered } else { self.file.route(offset, self.asked) };
        self.cached |= self.route == Route::Buffered;
        Attempt { route: self.route, at: self.done, offset, asked: self.asked }
    }

    /// Takes the result of the last [`Request::attempt`]'s system call. It returns `Again` after progress,
    /// if a route is given up (for this read or for good), and for a bounded number of retries, so the
    /// sequence ends.
    pub(crate) fn advance(&mut self, result: Result<usize, Errno>) -> Step {
        let direct = self.route == Route::Direct;
        let result = if direct && self.verdict.no_direct { Err(Errno::INVAL) } else { result };
        match result {
            Ok(0) => Step::Finish(Ok(self.done)),
            Ok(n) => {
                self.done += n.min(self.asked);
                self.retries = 0;
                let at_end = direct && n < self.asked && n % SECTOR_BYTES != 0;
                if at_end || self.done == self.len { Step::Finish(Ok(self.done)) } else { Step::Again }
            }
            Err(error) if direct && refuses_direct(error) => {
                self.file.refuse_direct_reads();
                Step::Again
            }
            Err(error) if is_transient(error) && self.retries < RETRIES_MAX => {
                self.retries += 1;
                Step::Again
            }
            // A file system may fail a direct read of bytes that it can read through its cache. Linux
            // 6.18's ext4 returns EIO after this: a buffered write of several pages stopped halfway and was
            // written back, and then fallocate(2) made the file longer. ext4 takes the block that it had
            // reserved for the next page for data that is not written yet.
            Err(Errno::IO) if direct => {
                self.through_cache = true;
                Step::Again
            }
            Err(error) => Step::Finish(Err(error)),
        }
    }

    /// How long to delay giving the extent back.
    pub(crate) fn delay(&self) -> Duration {
        self.verdict.delay
    }

    /// Whether the kernel may have cached the range.
    pub(crate) fn cached(&self) -> bool {
        self.cached
    }

    /// Gives the extent back.
    pub(crate) fn finish(self, result: Result<usize, Errno>) -> ReadDone {
        ReadDone { token: self.token, buf: self.buf, result }
    }
}

/// Does a read, blocking.
pub(crate) fn perform(mut request: Request, mut step: Step) -> ReadDone {
    elbowroom_sync::may_block();
    let result = loop {
        match step {
            Step::Finish(result) => break result,
            Step::Again => {
                let attempt = request.attempt();
                let into = &mut request.buf.bytes_mut()[attempt.at..attempt.at + attempt.asked];
                let read = pread(&request.file, attempt.route, into, attempt.offset);
                step = request.advance(read);
            }
        }
    };
    if request.cached() {
        request.file.drop_cache(request.offset, request.len as u64);
    }
    if !request.delay().is_zero() {
        thread::sleep(request.delay());
    }
    request.finish(result)
}

fn pread(file: &StoreFile, route: Route, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
    rustix::io::pread(file.fd_of(route), into, offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A request for two pages of a file, and whether the file system has O_DIRECT.
    fn request(faults: &str) -> (Request, bool) {
        let mut temp = tempfile::NamedTempFile::new().unwrap();
        temp.write_all(&[7; 8192]).unwrap();
        let inject = Arc::new(Inject::parse(faults).unwrap());
        let file = Arc::new(StoreFile::open(temp.path(), false, Some(inject)).unwrap());
        let direct = file.direct();
        let read = Read { file, offset: 0, len: 8192, buf: crate::test_extent::extent(1), token: 9 };
        let (request, step) = Request::new(read, None);
        assert_eq!(step, Step::Again);
        (request, direct)
    }

    #[test]
    fn a_short_result_continues_and_zero_ends() {
        let (mut request, _) = request("open:nodirect");
        assert_eq!(request.attempt(), Attempt { route: Route::Buffered, at: 0, offset: 0, asked: 8192 });
        assert_eq!(request.advance(Ok(4001)), Step::Again);
        assert_eq!(
            request.attempt(),
            Attempt { route: Route::Buffered, at: 4001, offset: 4001, asked: 4191 }
        );
        assert_eq!(request.advance(Ok(0)), Step::Finish(Ok(4001)));
        assert!(request.cached());
    }

    #[test]
    fn a_direct_read_that_ends_off_a_sector_is_the_end() {
        let (mut request, direct) = request("");
        if direct {
            assert_eq!(request.attempt().route, Route::Direct);
            assert_eq!(request.advance(Ok(4096)), Step::Again);
            assert_eq!(request.attempt().asked, 4096);
            assert_eq!(request.advance(Ok(513)), Step::Finish(Ok(4609)));
            assert!(!request.cached());
        }
    }

    #[test]
    fn a_refused_direct_read_goes_on_buffered_and_so_does_the_file() {
        let (mut request, direct) = request("read:nodirect");
        if direct {
            assert_eq!(request.attempt().route, Route::Direct);
            assert_eq!(request.advance(Ok(8192)), Step::Again);
            assert!(!request.file.direct());
        }
        assert_eq!(request.attempt(), Attempt { route: Route::Buffered, at: 0, offset: 0, asked: 8192 });
        assert_eq!(request.advance(Ok(8192)), Step::Finish(Ok(8192)));
    }

    #[test]
    fn interruptions_are_retried_and_bounded() {
        let (mut request, _) = request("");
        let mut again = 0;
        while request.advance(Err(Errno::INTR)) == Step::Again {
            again += 1;
        }
        assert_eq!(again, RETRIES_MAX);
        assert_eq!(request.advance(Err(Errno::AGAIN)), Step::Finish(Err(Errno::AGAIN)));
        assert_eq!(request.advance(Err(Errno::IO)), Step::Finish(Err(Errno::IO)));
    }

    #[test]
    fn a_direct_read_that_fails_is_tried_once_through_the_cache_and_the_file_stays_direct() {
        let (mut request, direct) = request("");
        if direct {
            assert_eq!(request.attempt().route, Route::Direct);
            assert_eq!(request.advance(Err(Errno::IO)), Step::Again);
            assert!(request.file.direct());
        }
        assert_eq!(request.attempt().route, Route::Buffered);
        assert_eq!(request.advance(Err(Errno::IO)), Step::Finish(Err(Errno::IO)));
    }
}
