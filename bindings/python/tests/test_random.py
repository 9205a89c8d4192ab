"""Random operations on elbowroom.memmap beside numpy.memmap: the same bytes, shapes and classes."""

import gc
import os
import tempfile

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import elbowroom as er

DTYPES = ["u1", "<u2", ">i4", "f8", "V3", "?"]
# Around pages of 4 KiB, so that parts of pages, and pages of several rows, occur.
LENGTHS = st.integers(1, 70)


@st.composite
def slices(draw, length):
    start = draw(st.integers(-length - 1, length + 1))
    stop = draw(st.one_of(st.none(), st.integers(-length - 1, length + 1)))
    return slice(start, stop, draw(st.sampled_from([None, 1, 2, 3, -1, -2])))


@st.composite
def indices(draw, shape):
    parts = [draw(st.one_of(st.integers(-n, n - 1), slices(n))) for n in shape]
    return tuple(parts[: draw(st.integers(0, len(parts)))])


def filled(shape, dtype, value):
    count = int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
    values = np.arange(value, value + count) * 31 % 251
    return (values % 2 if dtype == "?" else values).astype("u1").view(dtype).reshape(shape)


class Pair:
    """A file of ours and one of numpy's, with the same arguments."""

    def __init__(self, directory, shape, dtype, offset, order):
        self.paths = [os.path.join(directory, name) for name in ("ours", "theirs")]
        self.arguments = {"dtype": dtype, "offset": offset, "shape": shape, "order": order}
        self.arrays = []
        self.open("w+")

    def open(self, mode, **changed):
        self.arrays.clear()
        gc.collect()
        classes = er.memmap, np.memmap
        pairs = zip(classes, self.paths, strict=True)
        self.mode = mode
        self.arrays = [made(path, mode=mode, **(self.arguments | changed)) for made, path in pairs]

    def store(self, index, value):
        for array in self.arrays:
            array[index] = filled(array[index].shape, array.dtype, value)

    def check(self, index=()):
        ours, theirs = (array[index] for array in self.arrays)
        assert np.shape(ours) == np.shape(theirs)
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()
        assert isinstance(ours, er.memmap) == isinstance(theirs, np.memmap)
        if isinstance(ours, np.ndarray):
            assert ours.strides == theirs.strides

    def check_files(self):
        ours, theirs = (open(path, "rb").read() for path in self.paths)
        assert ours == theirs


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_as_numpy(data):
    shape = tuple(data.draw(st.lists(LENGTHS, min_size=1, max_size=3), "shape"))
    dtype = data.draw(st.sampled_from(DTYPES), "dtype")
    offset = data.draw(st.sampled_from([0, 1, 8, 4095, 4096, 5000]), "offset")
    order = data.draw(st.sampled_from("CF"), "order")
    scratch = os.environ.get("ELBOWROOM_TEST_DIR", "/var/tmp")
    with tempfile.TemporaryDirectory(dir=scratch) as directory, er.budget("2MiB"):
        pair = Pair(directory, shape, dtype, offset, order)
        for value in range(data.draw(st.integers(1, 8), "steps")):
            step = data.draw(st.sampled_from(["store", "look", "flush", "reopen", "grow", "copy"]), "step")
            index = data.draw(indices(shape), "index")
            if step == "store" and pair.mode != "r":
                pair.store(index, value)
            elif step == "look":
                pair.check(index)
            elif step == "flush":
                for array in pair.arrays:
                    array.flush()
                pair.check_files()
            elif step == "reopen":
                pair.open(data.draw(st.sampled_from(["r", "r+"]), "mode"))
            elif step == "grow":
                longer = (shape[0] + data.draw(LENGTHS, "more"), *shape[1:])
                pair.open("r+", shape=longer)
                pair.check()
                pair.open("r+")
            elif step == "copy":
                pair.open("c")
            pair.check()
        pair.open("r")
        pair.check()
        pair.arrays.clear()
        gc.collect()
        pair.check_files()
