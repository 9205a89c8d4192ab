"""Rows by an index of numbers, of an array larger than its budget: read ahead, with NumPy's results."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import elbowroom as er
from conftest import MIB

ROWS, WIDTH = 4096, 300


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """ROWS x WIDTH of 4 bytes in a budget of a third of that, and NumPy's array of the same file."""
    path = tmp_path_factory.mktemp("gather") / "rows.bin"
    np.arange(ROWS * WIDTH, dtype="u4").tofile(path)
    ours = er.memmap(path, "u4", "r", shape=(ROWS, WIDTH), memory="1536KiB")
    assert ours._mmap.most_in_memory == 1536 << 10
    return ours, np.memmap(path, "u4", "r", shape=(ROWS, WIDTH))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rows_are_numpys(both, data):
    ours, numpys = both
    kind = data.draw(st.sampled_from(["i8", "i4", "i2", "u8", "u2", "u1"]))
    least = 0 if kind[0] == "u" else -ROWS
    most = min(ROWS - 1, np.iinfo(kind).max)
    least = max(least, np.iinfo(kind).min)
    shape = data.draw(st.sampled_from([(40,), (900,), (7, 11), (3, 4, 5), (1, 64), (0, 64)]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    index = rng.integers(least, most, shape, endpoint=True).astype(kind)
    step = data.draw(
        st.sampled_from([slice(None), slice(100, 3900, 3), slice(None, None, -1), slice(5, None)])
    )
    if step != slice(None):
        index = index % 1000 if kind != "u1" else index
    width = data.draw(st.sampled_from([slice(None), slice(0, 7), slice(10, None), slice(None, None, 2)]))
    found, wanted = ours[step, width][index], numpys[step, width][index]
    assert np.array_equal(found, wanted) and found.dtype == wanted.dtype and type(found) is np.ndarray
    assert np.array_equal(ours[step, width].take(index, axis=0), wanted)
    # One axis.
    assert np.array_equal(ours.reshape(-1)[index], numpys.reshape(-1)[index])


def test_what_numpy_refuses_is_refused(both):
    ours, numpys = both
    for wrong in ([ROWS] * 40, [-ROWS - 1] * 40, [2**40] * 40, np.full(40, 2**63, "u8"), np.ones(40)):
        index = np.asarray(wrong)
        for array in both:
            with pytest.raises(IndexError):
                array[index]
    assert np.array_equal(ours[np.zeros((0,), "i8")], numpys[np.zeros((0,), "i8")])
    assert np.array_equal(ours.take(np.arange(50)), numpys.take(np.arange(50)))
    assert np.array_equal(ours.take(np.arange(5000) % 4096, 0, mode="wrap"), numpys[np.arange(5000) % 4096])


def test_rows_are_read_before_they_are_touched(run_python, tmp_path):
    path = str(tmp_path / "large.bin")
    np.arange(16 * MIB, dtype="u4").tofile(path)
    text = """
    import elbowroom as er, numpy as np, os, sys
    er.configure(memory="64MiB", swap=0)
    fd = os.open(sys.argv[1], os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    a = er.memmap(sys.argv[1], "u4", "r", shape=(16384, 1024), memory="8MiB")
    index = np.random.default_rng(5).permutation(16384)[:4000]
    rows = a[index]
    assert (rows == index[:, None] * 1024 + np.arange(1024)).all()
    stats = er.stats()
    # A page for each row, and nothing around them; the threads of this program waited for few of them.
    assert stats["read_bytes"] < 4000 * 4096 * 1.5, stats["read_bytes"]
    print(stats["pgmajfault"])
    """
    assert int(run_python(text, path).stdout) < 2000
