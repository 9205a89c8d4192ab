"""elbowroom.memmap: what it adds to numpy.memmap."""

import errno
import gc
import os
import pickle
import stat
import subprocess
import sys
import warnings

import numpy as np
import pytest

import elbowroom as er
from conftest import MIB


def made(path, count=100_000, dtype="u4"):
    data = np.arange(count, dtype=dtype)
    data.tofile(path)
    return data


def test_it_is_managed_and_has_the_bytes_of_the_file(path):
    data = made(path)
    a = er.memmap(path, dtype="u4", mode="r", memory="16MiB")
    assert a.managed and isinstance(a, np.memmap) and not a.flags.writeable
    assert (a.filename, a.mode, a.offset, a.shape) == (path, "r", 0, data.shape)
    np.testing.assert_array_equal(a, data)
    with pytest.raises(ValueError):
        a[0] = 1


@pytest.mark.parametrize("mode", ["r+", "w+"])
def test_stores_reach_the_file(path, mode):
    data = made(path)
    a = er.memmap(path, dtype="u4", mode=mode, shape=data.shape)
    if mode == "w+":
        assert not a.any()
    a[5:10] = 7
    a.flush()
    assert np.fromfile(path, "u4")[5:10].tolist() == [7] * 5
    a[10] = 8
    del a
    gc.collect()
    assert np.fromfile(path, "u4")[10] == 8


def test_stores_to_a_copy_stay_there(path):
    data = made(path)
    a = er.memmap(path, dtype="u4", mode="c")
    a[:] = 1
    a.flush()
    assert a.managed and a.sum() == len(data)
    np.testing.assert_array_equal(np.fromfile(path, "u4"), data)


def test_arguments_as_numpys(path):
    data = made(path, 1000, "u2")
    a = er.memmap(path, "u2", "r", 2 * 10, (30, 33), "F")
    b = np.memmap(path, "u2", "r", 2 * 10, (30, 33), "F")
    np.testing.assert_array_equal(a, b)
    assert a.flags.f_contiguous and a.offset == 20
    assert er.memmap(path, "u2", "readonly", shape=10).shape == (10,)
    with open(path, "rb") as file:
        c = er.memmap(file, "u2", "r")
    np.testing.assert_array_equal(c, data)
    assert c.filename == path


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"mode": "x"}, ValueError, "mode must be"),
        ({"mode": "w+"}, ValueError, "shape must be given"),
        ({"dtype": "V3", "mode": "r"}, ValueError, "no multiple"),
        ({"mode": "r", "shape": 10**7}, ValueError, "only"),
        ({"mode": "r", "offset": -1, "shape": 1}, ValueError, "no bytes from"),
        ({"mode": "r", "memory": "2 GiG"}, ValueError, "not a unit"),
        ({"mode": "r", "memory": 4096}, ValueError, "too small"),
        ({"mode": "r", "memory": 1.5e9}, TypeError, "whole number"),
        ({"mode": "r", "memory": -1}, ValueError, "from 0"),
        ({"mode": "r", "sharing": "always"}, ValueError, "sharing must be"),
    ],
)
def test_wrong_arguments_are_errors_that_say_what_is_right(path, arguments, error, text):
    made(path, 1000)
    with pytest.raises(error, match=text):
        er.memmap(path, **arguments)


def test_a_missing_file_is_an_error_at_once(path):
    with pytest.raises(FileNotFoundError):
        er.memmap(path, mode="r")
    with pytest.raises(FileNotFoundError):
        er.memmap(path, mode="r+", shape=5)
    open(path, "w").close()
    with pytest.raises(ValueError, match="empty"):
        er.memmap(path, mode="r")
    with open(path, "wb") as file, pytest.raises(OSError) as failed:
        file.write(b"12")
        er.memmap(file, mode="r", shape=1)
    assert failed.value.errno == errno.EACCES
    with open(path, "rb") as file, pytest.raises(OSError) as failed:
        er.memmap(file, mode="r+", shape=1)
    assert failed.value.errno == errno.EACCES


def test_views_keep_the_mapping_and_the_last_one_ends_it(path):
    data = made(path)
    a = er.memmap(path, dtype="u4", mode="r", memory="16MiB")
    mapping = a._mmap
    part = a[10:20].view("u2")
    plain = np.asarray(a)[5:6]
    with pytest.raises(BufferError):
        mapping.close()
    del a
    assert part.tolist() == data[10:20].view("u2").tolist()
    del part
    assert plain[0] == data[5] and not mapping.closed
    del plain
    gc.collect()
    mapping.close()
    assert mapping.closed
    with pytest.raises(ValueError):
        memoryview(mapping)


def test_a_with_block_flushes(path):
    with er.memmap(path, dtype="u1", mode="w+", shape=10) as a:
        a[:] = 9
    with open(path, "rb") as file:
        assert file.read() == b"\x09" * 10
    a[0] = 1


def test_a_file_that_is_made_anew_has_nothing_of_before(path):
    a = er.memmap(path, dtype="u1", mode="w+", shape=3 * MIB)
    a[:] = 1
    b = er.memmap(path, dtype="u1", mode="w+", shape=3 * MIB)
    assert not b.any()
    del a, b
    gc.collect()
    assert not np.fromfile(path, "u1").any()


def test_two_arrays_of_a_file_are_one_cache(path):
    made(path)
    for modes in [("r+", "r"), ("r", "r+"), ("r+", "r+")]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", er.UnmanagedWarning)
            a, b = (er.memmap(path, dtype="u4", mode=mode) for mode in modes)
        writer, reader = (a, b) if modes[0] == "r+" else (b, a)
        for value in range(1, 5):
            writer[:] = value
            assert (reader == value).all()
        del a, b, writer, reader


def test_a_file_that_another_process_uses_is_left_to_the_kernel_and_said(path):
    data = made(path)
    other = subprocess.Popen(
        [sys.executable, "-c", "import sys; f = open(sys.argv[1], 'r+b'); print(1, flush=1); input()", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    other.stdout.readline()
    with pytest.warns(er.UnmanagedWarning, match="another process") as said:
        a = er.memmap(path, dtype="u4", mode="r+")
    assert said[0].filename == __file__ and not a.managed
    np.testing.assert_array_equal(a, data)
    a[0] = 5
    a.flush()
    assert np.fromfile(path, "u4", 1)[0] == 5
    del a, said
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a = er.memmap(path, dtype="u4", mode="r+", sharing="trust")
    assert a.managed
    a[1] = 6
    a.flush()
    assert np.fromfile(path, "u4", 2).tolist() == [5, 6]
    other.communicate(b"\n")
    del a


def test_open_is_a_buffer(path):
    data = made(path)
    with er.open(path, memory="16MiB") as mapping:
        assert len(mapping) == data.nbytes and mapping.readonly and mapping.managed and mapping.mode == "r"
        view = memoryview(mapping)
        assert view[:8] == data[:2].tobytes() and view.readonly
        view.release()
    assert mapping.closed and "closed" in repr(mapping)
    mapping = er.open(path, "r+")
    memoryview(mapping)[0] = 255
    mapping.flush()
    mapping.close()
    assert np.fromfile(path, "u1", 1)[0] == 255
    with pytest.raises(ValueError):
        er.open(path, "w+")


class TestPickle:
    def reopened(self, array):
        text = pickle.dumps(array, protocol=pickle.HIGHEST_PROTOCOL)
        again = pickle.loads(text)
        np.testing.assert_array_equal(np.asarray(again), np.asarray(array))
        assert again.dtype == array.dtype
        return text, again

    @pytest.mark.parametrize(
        "index",
        [
            np.s_[:],
            np.s_[3:50, 7:9],
            np.s_[::-1, ::-2],
            np.s_[5],
            np.s_[:, 3],
            np.s_[..., None],
            np.s_[99:50:-3, 1::4],
        ],
    )
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_views_are_pickled_by_reference(self, path, index, order):
        made(path)
        a = er.memmap(path, dtype="u4", mode="r", offset=40, shape=(100, 200), order=order)[index]
        text, again = self.reopened(a)
        assert len(text) < 1000 and again.strides == a.strides and type(again) is er.memmap
        assert again.filename == path and again.managed

    def test_transposed_and_of_another_type(self, path):
        made(path)
        a = er.memmap(path, dtype="u4", mode="r", shape=(100, 200))
        for view in (a.T, a.view("u2")[:, 1:5], a.T[3:5]):
            text, _ = self.reopened(view)
            assert len(text) < 1000

    def test_what_was_stored_is_there(self, path, run_python):
        a = er.memmap(path, dtype="u4", mode="w+", shape=1000)
        a[:] = np.arange(1000)
        with open(path + ".pickle", "wb") as file:
            pickle.dump(a[100:200], file)
        program = """
            import pickle, sys, warnings
            warnings.simplefilter("ignore")
            a = pickle.load(open(sys.argv[1], "rb"))
            print(a.sum(), a.flags.writeable)
            """
        assert run_python(program, path + ".pickle").stdout.split() == [str(sum(range(100, 200))), "True"]

    def test_copies_are_pickled_by_value(self, path):
        made(path)
        a = er.memmap(path, dtype="u4", mode="c")
        a[0] = 77
        assert er.memmap(path, dtype="u4", mode="r")[5:5].shape == self.reopened(a[5:5])[1].shape
        text, again = self.reopened(a)
        assert len(text) > a.nbytes and type(again) is np.ndarray
        text, again = self.reopened(a[:100] + 1)
        b = er.memmap(path, dtype="u4", mode="r")
        text, again = self.reopened(b[[1, 5, 7]])
        assert type(again) is np.ndarray

    def test_a_file_that_is_gone_or_shorter_is_an_error(self, path):
        made(path)
        text = pickle.dumps(er.memmap(path, dtype="u4", mode="r"))
        gc.collect()
        os.truncate(path, 100)
        with pytest.raises(ValueError, match="shorter"):
            pickle.loads(text)
        os.remove(path)
        with pytest.raises(FileNotFoundError):
            pickle.loads(text)


def test_ten_thousand_arrays_leave_nothing_behind(path):
    made(path, 5000)

    def figures():
        gc.collect()
        with open("/proc/self/maps") as maps, open("/proc/self/statm") as statm:
            lines = len(maps.readlines())
            resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return lines, resident, len(os.listdir("/proc/self/fd"))

    def rounds(count):
        for nth in range(count):
            memory = {"memory": "16MiB"} if nth % 4 == 0 else {}
            a = er.memmap(path, dtype="u4", mode="r" if nth % 2 else "r+", **memory)
            assert a[nth % 5000] == nth % 5000
            b = er.zeros(3000, "u1")
            b[0] = 1

    rounds(500)
    before = figures()
    rounds(10_000)
    after = figures()
    print(before, after)
    assert after[0] <= before[0] + 20 and after[1] <= before[1] + 16 * MIB and after[2] == before[2]
    with er.budget("16MiB"):
        pass


def test_the_permissions_of_a_new_file_are_those_of_open(path):
    er.memmap(path, mode="w+", shape=1)
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o666 & ~umask


@pytest.mark.parametrize(
    "wrong",
    [
        {"memory": "2 GiG"},
        {"sharing": "perhaps"},
        {"dtype": "no such type"},
        {"shape": (-1,)},
        {"offset": -1},
        {"order": "X"},
    ],
)
def test_wrong_arguments_leave_the_file_as_it_is(tmp_path, wrong):
    path = tmp_path / "data"
    path.write_bytes(b"kept")
    with pytest.raises((ValueError, TypeError)):
        er.memmap(path, mode="w+", **{"shape": (8,), **wrong})
    assert path.read_bytes() == b"kept"


OPERATIONS = {
    "number": lambda s: s + 1,
    "from the left": lambda s: 1 - s,
    "scalar": lambda s: s + np.float64(2),
    "list": lambda s: s * [1, 2, 3],
    "itself": lambda s: s + s,
    "minus": lambda s: -s,
    "comparison": lambda s: s < 2,
    "array": lambda s: s + np.ones(3),
    "array from the left": lambda s: np.ones(3) + s,
    "two results": lambda s: divmod(s, 2),
    "sum": lambda s: s.sum(),
    "reduce": lambda s: np.add.reduce(s[None], axis=0),
    "outer": lambda s: np.multiply.outer(s, [1, 2]),
    "out": lambda s: np.add(s, 1, out=s),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_results_of_a_subclass_are_of_the_classes_of_numpys(path, name):
    np.arange(3, dtype="f8").tofile(path)
    results = []
    for base in (np.memmap, er.memmap):
        subclass = type("S", (base,), {})
        result = OPERATIONS[name](subclass(path, dtype="f8", mode="c"))
        parts = result if isinstance(result, tuple) else (result,)
        results.append([(type(part).__name__, np.asarray(part).tolist()) for part in parts])
    assert results[0] == results[1]
