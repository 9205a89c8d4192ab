"""Other libraries use the bytes of an array where they are: addresses are compared. What is not installed is
skipped; pip has all of them but torch, of which Debian has a small build (python3-torch)."""

import gc
import os
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import elbowroom as er
from conftest import MIB


def address(array):
    return array.__array_interface__["data"][0]


@pytest.fixture
def array(path):
    np.arange(MIB, dtype="i8").tofile(path)
    a = er.memmap(path, dtype="i8", mode="r+", sharing="trust", memory="16MiB")
    assert a.managed
    return a


def test_dlpack(array):
    b = np.from_dlpack(array)
    assert address(b) == address(array) and int(b.sum()) == int(np.arange(MIB).sum())
    kept = b[5:6]
    del array, b
    gc.collect()
    assert kept[0] == 5


def test_pyarrow(array, path):
    pa = pytest.importorskip("pyarrow")
    buffer = pa.py_buffer(array)
    assert buffer.address == address(array) and buffer.size == array.nbytes
    column = pa.Array.from_buffers(pa.int64(), len(array), [None, buffer])
    assert int(pa.compute.sum(column).as_py() if hasattr(pa, "compute") else column[7].as_py()) >= 7
    mapping = er.open(path, memory="16MiB")
    buffer = pa.py_buffer(mapping)
    assert buffer.address == mapping.address
    with pytest.raises(BufferError):
        mapping.close()
    del buffer
    gc.collect()
    mapping.close()


def test_pandas(array):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": np.asarray(array)}, copy=False)
    assert address(frame["a"].to_numpy()) == address(array)
    assert int(frame["a"].sum()) == int(np.arange(MIB).sum())


def test_polars(array):
    pl = pytest.importorskip("polars")
    pa = pytest.importorskip("pyarrow")
    column = pa.Array.from_buffers(pa.int64(), len(array), [None, pa.py_buffer(array)])
    series = pl.from_arrow(column)
    assert address(series.to_numpy(allow_copy=False)) == address(array)
    assert series.sum() == int(np.arange(MIB).sum())


def test_polars_and_a_file_that_is_cut(path):
    """Its threads are none of Python's: the thread that waits for them gets the exception."""
    pl = pytest.importorskip("polars")
    pa = pytest.importorskip("pyarrow")
    np.arange(MIB, dtype="i8").tofile(path)
    mapping = er.open(path, memory="16MiB")
    column = pa.Array.from_buffers(pa.int64(), MIB, [None, pa.py_buffer(mapping)])
    os.truncate(path, 4096)
    result = None
    with pytest.raises(er.AccessError) as raised:
        frame = pl.DataFrame({"a": pl.from_arrow(column)})
        a = pl.col("a")
        result = frame.select(a.sum(), a.max().alias("b"), (a * 2).sum().alias("c"))
    assert result is None and raised.value.filename == path


def test_torch(path):
    """Under Debian's interpreter, which has torch, with this package."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(er.__file__)))
    python = shutil.which("python3", path="/usr/bin:/bin")
    probe = [python or sys.executable, "-c", "import torch, numpy"]
    if python is None or subprocess.run(probe, capture_output=True, timeout=120).returncode != 0:
        pytest.skip("no torch here: apt install python3-torch")
    program = """
        import os, sys, warnings
        warnings.simplefilter("ignore")
        import numpy, torch
        # Not the directory of packages, which may have another numpy.
        import importlib.util
        where = os.path.join(sys.argv[1], "elbowroom", "__init__.py")
        spec = importlib.util.spec_from_file_location("elbowroom", where)
        er = sys.modules["elbowroom"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(er)
        numpy.arange(1 << 20).tofile(sys.argv[2])
        a = er.memmap(sys.argv[2], dtype="i8", mode="r+", sharing="trust", memory="16MiB")
        t = torch.from_numpy(a)
        assert a.managed and t.data_ptr() == a.ctypes.data and int(t.sum()) == sum(range(1 << 20))
        t[3] = 7
        assert a[3] == 7
        os.truncate(sys.argv[2], 4096)
        del a, t
        b = er.memmap(sys.argv[2], dtype="i8", mode="r+", shape=1 << 20, sharing="trust", memory="16MiB")
        t = torch.from_numpy(b)
        os.truncate(sys.argv[2], 4096)
        try:
            t.sum()
            print("no exception")
        except er.AccessError as error:
            assert error.filename == sys.argv[2]
            print("good")
        """
    command = [python, "-c", textwrap.dedent(program), package, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "good\n", done.stderr


def test_sub_interpreters_are_refused(run_python):
    program = """
        import sys
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            import _interpreters as interpreters
        import elbowroom
        other = interpreters.create()
        code = '''if True:
            import sys
            sys.path[:0] = %r
            try:
                import elbowroom._elbowroom
                print("imported", flush=True)
            except ImportError as error:
                print("ImportError", error, flush=True)
            ''' % (sys.path,)
        # numpy does not load a second time: the extension module is asked for alone.
        code = code.replace("import elbowroom._elbowroom", "import importlib.util; "
            "spec = importlib.util.spec_from_file_location('elbowroom._elbowroom', %r); "
            "spec.loader.exec_module(importlib.util.module_from_spec(spec))" % elbowroom._elbowroom.__file__)
        interpreters.run_string(other, code)
        """
    said = run_python(program).stdout
    assert said.startswith("ImportError") and "interpreter" in said, said


def test_ten_thousand_mappings_leave_no_budgets_nor_places(path):
    """Beside what test_memmap counts: groups, and the table that the handler of signals reads."""
    np.arange(5000, dtype="u4").tofile(path)
    with open(path, "r+b") as file:
        for nth in range(3000):
            m = er.mmap(file.fileno(), 0, memory="1MiB", sharing="trust")
            assert m[0] == 0
            if nth % 2:
                m.close()
    gc.collect()
    # There are 1,023 budgets at a time.
    budgets = [er.budget("1MiB") for _ in range(900)]
    del budgets
