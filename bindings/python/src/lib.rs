//! The extension module `elbowroom._elbowroom`: mappings of a manager as buffers of Python.
//!
//! The package `elbowroom` (python/elbowroom) makes arrays of these buffers. What is where: `mapping` and
//! `group` are where the classes are, `interpreter` how its threads wait, `errors` how errors become
//! exceptions, `lost` what becomes of accesses whose bytes cannot be had. The crate `elbowroom-house` has the
//! manager of the process and the threads that call it, mappings and budgets.
//!
//! The floors, arrows down only: classes (`mapping`, `group`) > `lost` > `interpreter` > `errors`.

mod errors;
mod group;
mod interpreter;
mod lost;
mod mapping;

use crate::interpreter::Interpreter;
use elbowroom::{Config, Division};
use elbowroom_house::caller::Caller;
use elbowroom_house::failure::Failure;
use elbowroom_house::house::{self, Capacity, Settings};
use elbowroom_house::{files, fork, shared};
use elbowroom_options::{Policy, size};
use pyo3::exceptions::{PyImportError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyString};
use std::path::PathBuf;

/// A size as users write it: a whole number of bytes, or a text such as "2GiB", "512M", "1.5 GB".
pub(crate) fn parse_size(size: &Bound<'_, PyAny>) -> PyResult<u64> {
    if let Ok(text) = size.cast::<PyString>() {
        let text = text.to_string();
        return size::parse(&text).map_err(|error| PyValueError::new_err(format!("size {text:?}: {error}")));
    }
    if size.is_instance_of::<PyBool>() || size.is_instance_of::<PyFloat>() {
        return Err(PyTypeError::new_err("a size is a whole number of bytes, or a text such as '2GiB'"));
    }
    match size.call_method0("__index__") {
        Ok(number) => number
            .extract()
            .map_err(|_| PyValueError::new_err(format!("a size is from 0 to 2**64 - 1 bytes, not {number}"))),
        Err(_) => {
            Err(PyTypeError::new_err("a size is a whole number of bytes, or a text such as '2GiB' or '512M'"))
        }
    }
}

/// Reads a size; returns bytes.
#[pyfunction(name = "parse_size")]
fn parse_size_for_python(size: &Bound<'_, PyAny>) -> PyResult<u64> {
    parse_size(size)
}

/// Chooses what the manager of the process is started with, before the first mapping starts it.
///
/// `memory`, `swap`: what all budgets together may have, in bytes. `swap_dir`: where the swap file is made.
/// `inject`: faults for tests, in the grammar of `elbowroom_store::Inject`. `table`: the path that
/// `make_table` has returned, here or in another process. `policy`: which pages of files go when memory is
/// short, a name of `elbowroom run --policy`.
#[pyfunction]
#[pyo3(signature = (memory=None, swap=None, swap_dir=None, policy=None, inject=None, table=None))]
fn configure(
    memory: Option<&Bound<'_, PyAny>>,
    swap: Option<&Bound<'_, PyAny>>,
    swap_dir: Option<PathBuf>,
    policy: Option<&str>,
    inject: Option<String>,
    table: Option<PathBuf>,
) -> PyResult<()> {
    let memory = memory.map(parse_size).transpose()?;
    let swap = swap.map(parse_size).transpose()?;
    let division = match policy {
        None => None,
        Some(name) => {
            let Some(known) = Policy::named(name) else {
                let names: Vec<_> = Policy::CHOICES.iter().map(|choice| choice.name).collect();
                let names = names.join(", ");
                return Err(PyValueError::new_err(format!("no policy is named {name:?}: there are {names}")));
            };
            Division::named(known.name())
        }
    };
    if house::started().is_some() {
        return Err(PyRuntimeError::new_err(
            "the manager runs already: call elbowroom.configure before the first array is made",
        ));
    }
    house::configure(Settings { memory, swap, swap_dir, division, inject, table, ..Settings::default() });
    Ok(())
}

/// Makes the table of a budget that several processes share; returns the path of its file. The arguments are
/// those of `configure`.
#[pyfunction]
#[pyo3(signature = (memory=None, swap=None, swap_dir=None))]
fn make_table(
    memory: Option<&Bound<'_, PyAny>>,
    swap: Option<&Bound<'_, PyAny>>,
    swap_dir: Option<PathBuf>,
) -> PyResult<PathBuf> {
    let memory = memory.map(parse_size).transpose()?;
    let swap = swap.map(parse_size).transpose()?;
    if let Some(memory) = memory.filter(|memory| *memory < Config::MIN_MEMORY) {
        let least = Config::MIN_MEMORY;
        return Err(PyValueError::new_err(format!(
            "{memory} bytes are too little memory for several processes, at least {least} are needed: is a \
             unit missing?"
        )));
    }
    let settings = Settings { memory, swap, swap_dir, ..Settings::default() };
    let capacity = Capacity::of(&settings).map_err(errors::StartError::new_err)?;
    shared::make(capacity.memory, capacity.swap, &capacity.swap_dir)
        .map_err(|error| errors::of(Failure::of_io(&error, "cannot make the table of a shared budget")))
}

/// The statistics of the whole process, as a JSON object; `None`: nothing was mapped yet.
#[pyfunction]
fn stats(py: Python<'_>) -> PyResult<Option<String>> {
    let Some(house) = house::started() else { return Ok(None) };
    let stats = house.ask(Interpreter(py), |house| serde_json::to_string(&house.manager.stats()))?;
    stats.map(Some).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Writes all changed pages of all files to them.
#[pyfunction]
fn flush_all(py: Python<'_>) -> PyResult<()> {
    let Some(house) = house::started() else { return Ok(()) };
    house
        .ask(Interpreter(py), |house| house.manager.flush_all())?
        .map_err(|errno| Interpreter(py).error(Failure::of(errno, "cannot write a file back")))
}

/// Makes the file that `fd` has open `length` bytes long.
#[pyfunction]
fn resize(py: Python<'_>, fd: i32, length: u64) -> PyResult<()> {
    files::resize(Interpreter(py), fd, length)
}

/// Whether only faults of instructions are served: a system call on an array whose pages are not in memory
/// fails then. False before the first mapping.
#[pyfunction]
fn serves_user_mode_only() -> bool {
    house::started().is_some_and(|house| house.manager.stats().userfaultfd.served == "user-mode")
}

/// What all budgets together can have: bytes of memory, bytes of swap, and the directory of the swap file.
/// Starts the manager.
#[pyfunction]
fn capacity(py: Python<'_>) -> PyResult<(u64, u64, PathBuf)> {
    let capacity = &house::house(Interpreter(py))?.capacity;
    Ok((capacity.memory, capacity.swap, capacity.swap_dir.clone()))
}

/// Exceptions of accesses are raised in threads of one interpreter, and classes are that interpreter's.
fn refuse_sub_interpreters() -> PyResult<()> {
    // SAFETY: functions without conditions, for a thread that has an interpreter.
    match unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) } {
        0 => Ok(()),
        _ => Err(PyImportError::new_err(
            "elbowroom works in the main interpreter only, not in a sub-interpreter: use threads",
        )),
    }
}

#[pymodule]
fn _elbowroom(module: &Bound<'_, PyModule>) -> PyResult<()> {
    refuse_sub_interpreters()?;
    house::speak(&interpreter::WORDS);
    fork::register_with(&lost::AT_FORK);
    module.add_class::<group::Group>()?;
    module.add_class::<mapping::Hold>()?;
    module.add_class::<mapping::Mapping>()?;
    module.add_function(wrap_pyfunction!(parse_size_for_python, module)?)?;
    module.add_function(wrap_pyfunction!(configure, module)?)?;
    module.add_function(wrap_pyfunction!(make_table, module)?)?;
    module.add_function(wrap_pyfunction!(stats, module)?)?;
    module.add_function(wrap_pyfunction!(flush_all, module)?)?;
    module.add_function(wrap_pyfunction!(resize, module)?)?;
    module.add_function(wrap_pyfunction!(capacity, module)?)?;
    module.add_function(wrap_pyfunction!(serves_user_mode_only, module)?)?;
    module.add_function(wrap_pyfunction!(lost::set_access_error, module)?)?;
    module.add_function(wrap_pyfunction!(lost::take_note, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("StartError", module.py().get_type::<errors::StartError>())?;
    Ok(())
}
