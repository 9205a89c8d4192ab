//! The class of mappings: a buffer of Python, as long as a view of it lives.

use crate::group::Group;
use crate::interpreter::Interpreter;
use elbowroom::Place;
use elbowroom_house::held::{FilePart, Held, Mode, Wishes};
use elbowroom_house::house;
use elbowroom_machine::PAGE_SIZE;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory that a manager serves: a part of a file, or anonymous memory. Its buffer is bytes. It is unmapped
/// when it is closed, or when nothing refers to it and its views any more.
#[pyclass(frozen, module = "elbowroom._elbowroom", weakref)]
pub struct Mapping {
    held: Mutex<Option<Arc<Held>>>,
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

impl Mapping {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Held>>> {
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

    fn held(&self) -> PyResult<Arc<Held>> {
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
        let held = Some(Arc::new(held)).into();
        Ok(Self { held, start, first, len: length, mode, offset, reason, views: 0.into() })
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
        let (start, held) = (held.start(), Some(Arc::new(held)).into());
        let (mode, offset, reason) = (Mode::Copy, 0, None);
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
        py.detach(move || drop(held));
        Ok(())
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
        // Unmapping may write to a disk: other threads of the interpreter go on meanwhile.
        let mut held = Some(held);
        let taken = &mut held;
        Python::try_attach(move |py| py.detach(move || drop(taken.take())));
        drop(held);
    }
}
