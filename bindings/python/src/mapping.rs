//! The class of mappings: a buffer of Python, as long as a view of it lives.

use crate::errors;
use crate::group::Group;
use crate::interpreter::{Detached, Interpreter};
use crate::lost::{FileOf, Known, Rights};
use elbowroom::{Advice, Errno, Place};
use elbowroom_house::caller::Caller;
use elbowroom_house::failure::Failure;
use elbowroom_house::held::{FilePart, Held, Mode, Wishes};
use elbowroom_house::house;
use elbowroom_machine::PAGE_SIZE;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A mapping of which accesses that fail are exceptions.
struct Watched {
    /// Dropped before `held`: when `held` unmaps the addresses, another mapping may get them, and these must
    /// not be known as this one's.
    _known: Known,
    held: Held,
}

impl Watched {
    /// `path`: of its file.
    fn new(py: Python<'_>, held: Held, mode: Mode, offset: u64, path: PathBuf) -> PyResult<Arc<Self>> {
        let rights = match mode {
            Mode::Read => Rights::Read,
            Mode::Write => Rights::Write,
            Mode::Copy => Rights::Copy,
        };
        let file = held.file().map(|id| FileOf { path, id, offset });
        let range = held.start()..held.start() + held.len();
        Ok(Arc::new(Self { _known: Known::new(py, range, rights, file)?, held }))
    }
}

/// Gives up a mapping. What was stored is in the file then, even if a job that reads ahead keeps the mapping
/// a little longer.
///
/// # Errors
/// The write-back's, if such a job keeps the mapping.
fn give_up<C: Caller>(caller: C, held: Arc<Watched>, mode: Mode) -> Result<(), C::Error> {
    let is_kept = mode == Mode::Write && Arc::strong_count(&held) > 1 && held.is_managed();
    let written = if is_kept { held.flush(caller, 0, held.len()) } else { Ok(()) };
    caller.run(move || drop(held));
    written
}

impl Deref for Watched {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

/// Memory that a manager serves: a part of a file, or anonymous memory. Its buffer is bytes. It is unmapped
/// when it is closed, or when nothing refers to it and its views any more.
#[pyclass(frozen, subclass, module = "elbowroom._elbowroom", weakref)]
pub struct Mapping {
    held: Mutex<Option<Arc<Watched>>>,
    start: usize,
    /// The address of the buffer's first byte: a mapping begins at a page.
    first: usize,
    len: usize,
    mode: Mode,
    /// Where in the file the buffer begins, in bytes.
    offset: u64,
    /// Why the manager has not managed it from the beginning.
    reason: Option<String>,
    views: AtomicUsize,
}

fn mode_of(mode: &str) -> PyResult<Mode> {
    match mode {
        "r" => Ok(Mode::Read),
        "r+" | "w+" => Ok(Mode::Write),
        "c" => Ok(Mode::Copy),
        _ => Err(PyValueError::new_err(format!("mode must be 'r', 'r+', 'w+' or 'c', not {mode:?}"))),
    }
}

/// The advice that concerns the bytes of a mapping; `None`: the number is that of no such advice.
fn advice_of(number: i32) -> Option<Advice> {
    Some(match number {
        libc::MADV_NORMAL => Advice::Normal,
        libc::MADV_RANDOM => Advice::Random,
        libc::MADV_SEQUENTIAL => Advice::Sequential,
        libc::MADV_WILLNEED => Advice::WillNeed,
        libc::MADV_DONTNEED => Advice::DontNeed,
        libc::MADV_FREE => Advice::Free,
        libc::MADV_COLD => Advice::Cold,
        libc::MADV_PAGEOUT => Advice::PageOut,
        _ => return None,
    })
}

impl Mapping {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Watched>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_view(&self) -> PyResult<()> {
        // With the lock, so that nobody closes it meanwhile.
        let held = self.lock();
        if held.is_none() {
            return Err(PyValueError::new_err("the mapping is closed"));
        }
        self.views.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    fn end_view(&self) {
        self.views.fetch_sub(1, Ordering::AcqRel);
    }

    /// Describes the bytes to the interpreter.
    ///
    /// # Safety
    /// `view` can be filled. `owner`, or the view, keeps the mapping from being closed as long as it lives.
    unsafe fn fill(&self, owner: &Bound<'_, PyAny>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let readonly = c_int::from(self.mode == Mode::Read);
        let (first, len) = (self.first as *mut c_void, self.len as ffi::Py_ssize_t);
        // SAFETY: the caller's promise.
        match unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), first, len, readonly, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(owner.py())),
        }
    }

    fn held(&self) -> PyResult<Arc<Watched>> {
        self.lock().clone().ok_or_else(|| PyValueError::new_err("the mapping is closed"))
    }
}

/// What the arrays of a mapping are made of. An array gives the buffer that it is made of back at once, and
/// keeps only its owner: so the owner counts as a view as long as it lives.
#[pyclass(frozen, module = "elbowroom._elbowroom")]
pub struct Hold {
    mapping: Py<Mapping>,
}

#[pymethods]
impl Hold {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let mapping = slf.get().mapping.get();
        // SAFETY: the interpreter passes a `Py_buffer` to fill. The view refers to this object, which counts.
        unsafe { mapping.fill(slf.as_any(), view, flags) }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.mapping.get().end_view();
    }
}

#[pymethods]
impl Mapping {
    /// Maps `length` bytes from `offset` on of the file that `fd` has open.
    #[staticmethod]
    #[pyo3(signature = (fd, length, offset, mode, group, trust))]
    fn of_file(
        py: Python<'_>,
        fd: RawFd,
        length: usize,
        offset: u64,
        mode: &str,
        group: &Group,
        trust: bool,
    ) -> PyResult<Self> {
        let mode = mode_of(mode)?;
        if length == 0 {
            return Err(PyValueError::new_err("nothing cannot be mapped"));
        }
        let before = (offset % PAGE_SIZE as u64) as usize;
        let too_large = || PyValueError::new_err("the mapping is too large");
        let len = before.checked_add(length).ok_or_else(too_large)?;
        let part = FilePart::new(fd, offset - before as u64, len, mode, trust);
        let house = house::house(Interpreter(py))?;
        let (held, reason) = Held::of_file(Interpreter(py), house, part, Some(group.budget()))?;
        let start = held.start();
        let first = start + before;
        let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        let held = Some(Watched::new(py, held, mode, offset - before as u64, path)?).into();
        Ok(Self { held, start, first, len: length, mode, offset, reason, views: 0.into() })
    }

    /// For subclasses: as `of_file`, or, if `fd` is `None`, as `of_memory`.
    #[new]
    #[pyo3(signature = (fd, length, offset, mode, group, trust))]
    fn new(
        py: Python<'_>,
        fd: Option<RawFd>,
        length: usize,
        offset: u64,
        mode: &str,
        group: &Group,
        trust: bool,
    ) -> PyResult<Self> {
        match fd {
            Some(fd) => Self::of_file(py, fd, length, offset, mode, group, trust),
            None => Self::of_memory(py, length, group),
        }
    }

    /// Maps `length` bytes of zeros.
    #[staticmethod]
    fn of_memory(py: Python<'_>, length: usize, group: &Group) -> PyResult<Self> {
        if length == 0 {
            return Err(PyValueError::new_err("nothing cannot be mapped"));
        }
        let held = Held::of_memory(
            Interpreter(py),
            house::house(Interpreter(py))?,
            length,
            Place::Anywhere,
            Wishes::default(),
            Some(group.budget()),
        )?;
        let (mode, offset, reason) = (Mode::Copy, 0, None);
        let (start, watched) = (held.start(), Watched::new(py, held, mode, offset, PathBuf::new())?);
        let held = Some(watched).into();
        Ok(Self { held, start, first: start, len: length, mode, offset, reason, views: 0.into() })
    }

    /// The address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.first
    }

    /// Where in the file the first byte is.
    #[getter]
    fn offset(&self) -> u64 {
        self.offset
    }

    /// What stores do: "r", "r+" or "c".
    #[getter]
    fn mode(&self) -> &'static str {
        match self.mode {
            Mode::Read => "r",
            Mode::Write => "r+",
            Mode::Copy => "c",
        }
    }

    /// Whether the bytes may not be stored to.
    #[getter]
    fn readonly(&self) -> bool {
        self.mode == Mode::Read
    }

    /// Whether the manager serves it now, within the budget; else the kernel does, beside the budget.
    #[getter]
    fn managed(&self) -> PyResult<bool> {
        Ok(self.held()?.is_managed())
    }

    /// How many bytes of it can be in memory at a time; `None`: all, or the kernel has it.
    #[getter]
    fn most_in_memory(&self) -> Option<u64> {
        self.lock().as_ref().and_then(|held| held.most_in_memory())
    }

    /// Has parts of `length` bytes read from the disk, as far as there is room, and does not wait for it.
    /// `offsets`: where they begin, a contiguous buffer of numbers of the type int64.
    fn will_need(&self, py: Python<'_>, offsets: PyBuffer<i64>, length: usize) -> PyResult<()> {
        let before = self.first - self.start;
        let firsts = offsets.to_vec(py)?.into_iter().filter_map(|offset| usize::try_from(offset).ok());
        let firsts = firsts.filter_map(|offset| offset.checked_add(before)).collect();
        let held = self.held()?;
        held.will_need(firsts, length, held.clone());
        // The last reference, if the mapping was closed meanwhile.
        py.detach(move || drop(held));
        Ok(())
    }

    /// Why it was not managed when it was made; `None`: it was.
    #[getter]
    fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.lock().is_none()
    }

    fn __len__(&self) -> usize {
        self.len
    }

    /// Writes what was stored to it, or to `length` bytes from `offset` on, to the file, and waits until that
    /// is durable.
    #[pyo3(signature = (offset=0, length=None))]
    fn flush(&self, py: Python<'_>, offset: usize, length: Option<usize>) -> PyResult<()> {
        let held = self.held()?;
        let left = self.len.checked_sub(offset).ok_or_else(|| PyValueError::new_err("beyond the end"))?;
        let length = length.unwrap_or(left).min(left);
        if self.mode != Mode::Write {
            return Ok(());
        }
        let flushed = held.flush(Interpreter(py), self.first - self.start + offset, length);
        // The last reference, if the mapping was closed meanwhile.
        py.detach(move || drop(held));
        flushed
    }

    /// madvise(2) for `length` bytes from `offset` on.
    fn advise(&self, py: Python<'_>, advice: i32, offset: usize, length: usize) -> PyResult<()> {
        let held = self.held()?;
        let left = self.len.checked_sub(offset).ok_or_else(|| PyValueError::new_err("beyond the end"))?;
        let range = (self.first - self.start + offset, length.min(left));
        // As madvise(2): the page before has other bytes, too.
        if !range.0.is_multiple_of(PAGE_SIZE) {
            return Err(errors::of(Failure::of(Errno::INVAL, "cannot advise")));
        }
        let advised = held.advise(Interpreter(py), range, advice_of(advice), advice);
        py.detach(move || drop(held));
        advised
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!("<elbowroom.Mapping of {} bytes, mode '{}'{state}>", self.len, self.mode())
    }

    /// Unmaps it. What was stored is in the file then.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let held = {
            let mut held = self.lock();
            if self.views.load(Ordering::Acquire) > 0 {
                return Err(PyBufferError::new_err("arrays or other views of the mapping exist"));
            }
            held.take()
        };
        held.map_or(Ok(()), |held| give_up(Interpreter(py), held, self.mode))
    }

    /// A buffer of the same bytes that keeps the mapping from being closed as long as it lives.
    fn hold(slf: Bound<'_, Self>) -> PyResult<Hold> {
        slf.get().begin_view()?;
        Ok(Hold { mapping: slf.unbind() })
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        this.begin_view()?;
        // SAFETY: the interpreter passes a `Py_buffer` to fill. The view refers to this object, and counts.
        let filled = unsafe { this.fill(slf.as_any(), view, flags) };
        filled.inspect_err(|_| this.end_view())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.end_view();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let held = self.held.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(held) = held else { return };
        let (mut held, mode) = (Some(held), self.mode);
        // Nobody takes an error here.
        let mut give_up = || held.take().map(|held| give_up(Detached, held, mode));
        // Unmapping may write to a disk: other threads of the interpreter go on meanwhile.
        Python::try_attach(|py| _ = py.detach(&mut give_up));
        // If there is no interpreter any more.
        give_up();
    }
}
