"""CPython's own tests of mmap.mmap, with elbowroom.mmap in its place, and what it adds."""

import importlib.util
import mmap as standard
import os
import re
import unittest

import numpy as np
import pytest

import elbowroom as er

# Not ours to pass, each with its reason.
EXCEPT = {
    "MmapTests.test_access_parameter": "it asks for PROT_EXEC, which memory of a budget cannot have",
    "MmapTests.test_repr": "it asks for the text 'mmap.mmap'; ours is 'elbowroom.mmap'",
    "MmapTests.test_resize_past_pos": "memory cannot be resized",
}


class Module:
    """The standard module with our class."""

    mmap = er.mmap

    def __getattr__(self, name):
        return getattr(standard, name)


def _load():
    try:
        spec = importlib.util.find_spec("test.test_mmap")
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        pytest.skip("the interpreter was installed without its tests (Debian: libpython3.11-testsuite)")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.mmap is standard
    module.mmap = Module()
    return module


@pytest.mark.filterwarnings("ignore::elbowroom.UnmanagedWarning")
def test_cpythons_own_tests(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = []
    new = er.mmap.__new__
    monkeypatch.setattr(er.mmap, "__new__", lambda cls, *a, **k: made.append(cls) or new(cls, *a, **k))
    tests = unittest.defaultTestLoader.loadTestsFromModule(_load())
    names = [each.id().split(".", 2)[-1] for suite in tests for each in suite]
    assert set(EXCEPT) <= {name.split("test_mmap.")[-1] for name in names}, names
    chosen = unittest.TestSuite(
        each for suite in tests for each in suite if not any(each.id().endswith(name) for name in EXCEPT)
    )
    result = unittest.TestResult()
    chosen.run(result)
    wrong = [f"{test.id()}\n{text}" for test, text in result.failures + result.errors]
    assert not wrong, "\n".join(wrong)
    ran = result.testsRun - len(result.skipped)
    assert ran > 20 and len(made) > 100, (ran, len(made))


def test_access_as_the_standard_class(path):
    with open(path, "w+b") as file:
        file.write(b"abc\ndef\n" * 10)
        file.flush()
        with er.mmap(file.fileno(), 0, access=standard.ACCESS_READ) as m:
            assert m.managed and m.readline() == b"abc\n" and m.readline() == b"def\n"
            for store in (lambda: m.write(b"x"), lambda: m.write_byte(1), lambda: m.__setitem__(0, 1)):
                with pytest.raises(TypeError):
                    store()
            with pytest.raises(TypeError):
                m.resize(5)
            assert list(m)[:2] == [b"a", b"b"] and b"def" in m and b"no" not in m
        with pytest.raises(ValueError):
            m[0]
        with er.mmap(file.fileno(), 0, access=standard.ACCESS_COPY) as m:
            m[:3] = b"XYZ"
            assert m.rfind(b"XYZ", 0) == 0 and m[:3] == b"XYZ"
        with pytest.raises(ValueError, match="prot"):
            er.mmap(file.fileno(), 0, prot=standard.PROT_READ | standard.PROT_EXEC)
        with pytest.raises(ValueError, match="access"):
            er.mmap(file.fileno(), 0, access=9)
        with pytest.raises(ValueError, match="greater"):
            er.mmap(file.fileno(), 81)
    assert open(path, "rb").read(3) == b"abc"


def test_descriptors_and_views(path):
    np.zeros(5000, "u1").tofile(path)
    before = len(os.listdir("/proc/self/fd"))
    with open(path, "r+b") as file:
        m = er.mmap(file.fileno(), 0, memory="1MiB", sharing="trust")
    assert m.managed and m.size() == 5000
    a = np.frombuffer(m, "u1")
    m.madvise(standard.MADV_WILLNEED)
    with pytest.raises(OSError):
        m.madvise(12345)
    with pytest.raises(SystemError):
        m.resize(10)
    m[10] = 3
    assert a[10] == 3
    with pytest.raises(BufferError):
        m.close()
    assert m[10] == 3 and m.size() == 5000
    del a
    m.close()
    m.close()
    assert len(os.listdir("/proc/self/fd")) == before
    for _ in range(3):
        with open(path, "r+b") as file:
            er.mmap(file.fileno(), 0, sharing="trust")
    assert len(os.listdir("/proc/self/fd")) == before
    assert np.fromfile(path, "u1")[10] == 3


@pytest.mark.parametrize("end", ["close", "del"])
def test_stores_are_in_the_file_after_the_end_while_it_is_read_ahead(path, end):
    """A job that reads ahead keeps the mapping beyond close and the last reference."""
    count = 4096
    np.zeros(count * standard.PAGESIZE, "u1").tofile(path)
    # One page in two, so that the job has much to do.
    offsets = np.tile(np.arange(0, count, 2), 100) * standard.PAGESIZE
    with open(path, "r+b") as file:
        for turn in range(1, 6):
            mapped = er.mmap(file.fileno(), 0, memory="4MiB", sharing="trust")
            assert mapped.managed
            mapped[5] = turn
            mapped.will_need(offsets, 100)
            if end == "close":
                mapped.close()
            del mapped
            assert os.pread(file.fileno(), 1, 5) == bytes([turn])


@pytest.mark.parametrize("length", [1 << 10, 1025, (1 << 20) + 5, 2 << 20])
def test_large_needles_are_found_without_patterns(monkeypatch, length):
    """Patterns of this size are slow to compile, and re keeps them."""
    compile_pattern = re.compile

    def compile_small(pattern, flags=0):
        assert len(pattern) < 10_000
        return compile_pattern(pattern, flags)

    monkeypatch.setattr(re, "compile", compile_small)
    needle, size = bytes(np.random.default_rng(1).integers(1, 256, length, "u1")), 5 << 20
    with er.mmap(-1, size) as m:
        assert m.find(needle, 0) == -1 == m.rfind(needle, 0)
        for where in (0, 7, (1 << 20) - 2, size - length - 1, size - length):
            m[where : where + length] = needle
            assert m.find(needle, 0) == where == m.find(needle, where) == m.rfind(needle, 0)
            assert m.find(needle, where + 1) == -1 == m.find(needle, 0, where + length - 1)
            assert m.find(needle, 0, where + length) == where
            m[where : where + length] = bytes(length)


def test_rfind_across_chunks():
    with er.mmap(-1, 3 << 20) as m:
        for where in (0, (1 << 20) - 2, (2 << 20) - 1, (3 << 20) - 3):
            m[where : where + 3] = b"abc"
            assert m.rfind(b"abc", 0) == where and m.find(b"abc", where) == where
            assert m.rfind(b"abc", 0, where + 2) == m[: where + 2].rfind(b"abc")
            m[where : where + 3] = b"\0\0\0"
        assert m.rfind(b"abc", 0) == -1 == m.find(b"abc", 0) and m.rfind(b"", 5) == 3 << 20
