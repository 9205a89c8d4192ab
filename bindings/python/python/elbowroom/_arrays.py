"""Arrays over mappings."""

import contextlib
import operator
import os

import numpy as np

try:
    from numpy.lib.array_utils import byte_bounds
except ImportError:
    # Before numpy 2.
    from numpy import byte_bounds

from . import _budget, _elbowroom
from ._files import MODES, check_sharing, map_file, open_file


def _shape_of(shape):
    """A shape as a tuple of whole numbers."""
    try:
        return (operator.index(shape),)
    except TypeError:
        # More than one number.
        pass
    return tuple(operator.index(length) for length in shape)


def _count(shape):
    count = 1
    for length in shape:
        if length < 0:
            raise ValueError(f"a shape has no negative lengths: {shape}")
        count *= length
    return count


def _name_of(filename, file):
    """The absolute name of the file, as numpy.memmap has it; None: it has no name."""
    if isinstance(filename, os.PathLike):
        return filename.resolve() if hasattr(filename, "resolve") else os.path.abspath(filename)
    name = getattr(file, "name", None) if hasattr(filename, "read") else os.fspath(filename)
    return os.path.abspath(name) if isinstance(name, (str, bytes)) else None


def _plain(operand):
    return operand.view(np.ndarray) if isinstance(operand, memmap) else operand


# So many bytes are copied at a time for a system call.
_PORTION = 4 << 20


class _Copied:
    """Writes copies of its parts, since a system call can read only those pages that are in memory."""

    def tofile(self, fid, sep="", format="%s"):
        """As numpy.ndarray.tofile."""
        if sep or not _elbowroom.serves_user_mode_only() or self.nbytes == 0:
            return np.ndarray.tofile(self, fid, sep, format)
        if not hasattr(fid, "write"):
            with open(fid, "wb") as file:
                return self.tofile(file)
        count = max(_PORTION // self.itemsize, 1)
        items = self.flat
        if self.flags.c_contiguous:
            items = self.reshape(-1)
        for at in range(0, self.size, count):
            np.array(items[at : at + count], subok=False).tofile(fid)


class _Array(_Copied, np.ndarray):
    """An array of memory where only faults of instructions are served."""

    def __array_wrap__(self, array, context=None, return_scalar=False):
        array = np.ndarray.__array_wrap__(self, array, context)
        if array is self:
            return array
        return array[()] if return_scalar else array.view(np.ndarray)


class memmap(_Copied, np.memmap):
    """An array of a file's bytes, with a budget. Arguments and attributes are those of numpy.memmap.

    `memory`: a budget for this array alone. Without it the array has the budget of the `with er.budget` that
    it is made in, or the default one.
    `sharing`: "auto" manages a file that can be stored to only while no other process uses it, and leaves it
    to the kernel otherwise, beside the budget, with a warning. "trust" manages it in any case: what others
    write is seen within a second, and of two stores to one page the last one wins with the whole page. The
    default is "trust" for the modes "r" and "c", and "auto" for "r+" and "w+".

    What was stored is in the file within a second, after flush, and when the last view of the array is gone.
    An array of a named file is pickled by reference: whoever unpickles it maps the file.
    """

    def __new__(
        subtype,
        filename,
        dtype=np.uint8,
        mode="r+",
        offset=0,
        shape=None,
        order="C",
        *,
        memory=None,
        sharing=None,
    ):
        mode = MODES.get(mode, mode)
        if mode not in ("r", "c", "r+", "w+"):
            raise ValueError(f"mode must be 'r', 'c', 'r+', 'w+', or a long name of these, not {mode!r}")
        if mode == "w+" and shape is None:
            raise ValueError("with mode 'w+' a shape must be given")
        # All that can be wrong is found before the file is made empty or longer.
        sharing = check_sharing(sharing, mode)
        dtype = np.dtype(dtype)
        if shape is not None:
            shape = _shape_of(shape)
            ends = offset + _count(shape) * dtype.itemsize
            if offset < 0 or ends > 1 << 62:
                raise ValueError(f"the file has no bytes from {offset} to {ends}")
        np.ndarray.__new__(np.ndarray, (0,), dtype, order=order)
        group = _budget.group_for(memory, None)
        if hasattr(filename, "read"):
            context = contextlib.nullcontext(filename)
        else:
            context = open_file(os.fspath(filename), mode)
        with context as file:
            file.seek(0, os.SEEK_END)
            size = file.tell()
            if shape is None:
                if dtype.itemsize == 0 or (size - offset) % dtype.itemsize:
                    raise ValueError(
                        f"the file has {size - offset} bytes from the offset on: no multiple of the "
                        f"{dtype.itemsize} bytes of an item"
                    )
                shape = _shape_of(((size - offset) // dtype.itemsize,))
            length = _count(shape) * dtype.itemsize
            if offset < 0 or offset + length > 1 << 62:
                raise ValueError(f"the file has no bytes from {offset} to {offset + length}")
            end = offset + length
            if mode in ("r+", "w+") and size < max(end, 1):
                # A file of nothing cannot be mapped.
                size = max(end, 1)
                _elbowroom.resize(file.fileno(), size)
            if size == 0:
                raise ValueError("cannot map an empty file")
            if size < end:
                raise ValueError(f"the array ends at byte {end}, and the file has only {size} bytes")
            # An array of nothing has a byte of the file, since a mapping of nothing cannot be.
            start = offset if length else min(offset, size - 1)
            mapping = map_file(file, max(length, 1), start, mode, group, sharing, 2)
            self = np.ndarray.__new__(
                subtype, shape, dtype, mapping.hold(), offset=offset - start, order=order
            )
            self._mmap = mapping
            self.offset = offset
            self.mode = mode
            self.filename = _name_of(filename, file)
        return self

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        # The interpreter raises pending exceptions after calls of Python functions, and not after NumPy's own
        # operators. This method makes the operator a call, so the operator raises and its result is not
        # stored.
        plain = [_plain(each) for each in inputs]
        if out is not None:
            options["out"] = tuple(_plain(each) for each in out)
        result = getattr(ufunc, method)(*plain, **options)
        if out is not None and result is not None and result is not NotImplemented:
            results = result if isinstance(result, tuple) else (result,)
            results = tuple(new if old is None else old for new, old in zip(results, out, strict=True))
            return results if isinstance(result, tuple) else results[0]
        # `outer` makes an array of each operand.
        array = object if method == "outer" else np.ndarray
        others = (each for each in inputs if not isinstance(each, memmap))
        if type(self) is memmap or any(isinstance(each, array) for each in others):
            return result
        # A subclass gives arrays of its own, as one of numpy.memmap does, unless another array takes part.
        if isinstance(result, tuple):
            return tuple(self.__array_wrap__(np.asarray(each), None, np.ndim(each) == 0) for each in result)
        return self.__array_wrap__(np.asarray(result), None, np.ndim(result) == 0)

    def __array_wrap__(self, array, context=None, return_scalar=False):
        # What functions give is in no file, unless they were told to store it into an array of one.
        array = np.ndarray.__array_wrap__(self, array, context)
        if array is self or type(self) is not memmap:
            return array
        return array[()] if return_scalar else array.view(np.ndarray)

    def __getitem__(self, index):
        if type(index) is np.ndarray and type(self) is memmap and index.size >= _FEW_ROWS:
            rows = _gather(self, index)
            if rows is not None:
                return rows
        # Parts that numpy has copied are in no file, either.
        part = np.ndarray.__getitem__(self, index)
        return part.view(np.ndarray) if type(part) is memmap and part._mmap is None else part

    def __setitem__(self, index, value):
        # A Python method, for the same reason: a failing store raises in its own statement.
        np.ndarray.__setitem__(self, index, value)

    def take(self, indices, axis=None, out=None, mode="raise"):
        """As numpy.ndarray.take."""
        if axis == 0 and out is None and mode == "raise" and type(self) is memmap:
            rows = _gather(self, np.asarray(indices))
            if rows is not None:
                return rows
        return np.ndarray.take(self, indices, axis, out, mode)

    def flush(self):
        """Writes what was stored to the array to the file, and waits until that is durable."""
        part = self._part()
        if part is not None:
            self._mmap.flush(*part)

    @property
    def managed(self):
        """Whether the array is within its budget now; else the kernel maps it, beside the budget."""
        return self._mmap is not None and self._mmap.managed

    def __enter__(self):
        return self

    def __exit__(self, *error):
        # The memory stays as long as something refers to it: an access must not end the process.
        self.flush()

    def _part(self):
        """The bytes of the mapping that the array may use: the first one and how many; None: none."""
        mapping = self._mmap
        # An array of nothing has no address.
        if mapping is None or mapping.closed or self.size == 0:
            return None
        first, end = byte_bounds(self)
        first, length = first - mapping.address, end - first
        return (first, length) if 0 <= first and first + length <= len(mapping) else None

    def __reduce_ex__(self, protocol):
        # Stores to a copy ("c") are nowhere else, and neither are those to an array without a name.
        part = self._part() if self.filename is not None and self.mode != "c" else None
        if part is None or self.dtype.hasobject:
            return np.array(self, copy=True, subok=False).__reduce_ex__(protocol)
        self.flush()
        first, length = part
        inside = self.__array_interface__["data"][0] - self._mmap.address - first
        where = (self._mmap.offset + first, length, inside)
        mode = "r" if self.mode == "r" or not self.flags.writeable else "r+"
        name = os.fspath(self.filename)
        return _map_again, (type(self), name, mode, self.dtype, self.shape, self.strides, where)


# Fewer rows than this are not worth the search for what they need.
_FEW_ROWS = 16
# Rows that are copied at a time, while the next ones are read from the disk.
_ROWS_AT_A_TIME = 256
# How many bytes are read ahead of the rows that are copied, at most, and which part of the budget; a page at
# least counts for each row.
_AHEAD_BYTES = 8 << 20
_AHEAD_PART = 4
# Larger rows have the disk busy by themselves.
_LARGEST_ROW = 256 << 10


def _gather(array, index):
    """array[index], for an index of whole numbers into an array that is larger than its budget.

    NumPy touches one row after the other, and each would wait for the disk alone. So what the next rows need
    is read meanwhile. None: it is not such an array or index, and NumPy has to do it.
    """
    mapping = array._mmap
    if index.dtype.kind not in "iu" or array.ndim == 0 or mapping is None:
        return None
    in_memory = mapping.most_in_memory
    if in_memory is None:
        return None
    shape, step = array.shape[1:], array.strides[0]
    part = array._part()
    row = array.itemsize
    for length, stride in zip(reversed(shape), reversed(array.strides[1:])):
        if stride != row and length > 1:
            return None
        row *= length
    rows = np.asarray(index.reshape(-1), np.int64)
    # What is out of bounds is NumPy's to refuse.
    if part is None or not 0 < row <= _LARGEST_ROW or rows.size < _FEW_ROWS:
        return None
    if index.dtype.kind == "u" and index.max() >= len(array):
        return None
    if rows.min() < -len(array) or rows.max() >= len(array):
        return None
    rows = np.where(rows < 0, rows + len(array), rows)
    first = array.__array_interface__["data"][0] - mapping.address
    ahead = min(_AHEAD_BYTES, in_memory // _AHEAD_PART)
    ahead = max(ahead // max(row, 4096) // _ROWS_AT_A_TIME, 1)
    pieces = [rows[at : at + _ROWS_AT_A_TIME] for at in range(0, rows.size, _ROWS_AT_A_TIME)]

    def read(piece):
        mapping.will_need(np.unique(piece) * step + first, row)

    for piece in pieces[:ahead]:
        read(piece)
    plain, copied = array.view(np.ndarray), np.empty((rows.size, *shape), array.dtype)
    for nth, piece in enumerate(pieces):
        copied[nth * _ROWS_AT_A_TIME :][: piece.size] = plain[piece]
        if nth + ahead < len(pieces):
            read(pieces[nth + ahead])
    return copied.reshape(index.shape + shape)


def _map_again(subtype, filename, mode, dtype, shape, strides, where):
    """Unpickles a memmap. `where`: the first byte in the file, how many, and where in them element 0 is."""
    start, length, inside = where
    with open_file(filename, mode) as file:
        size, end = os.fstat(file.fileno()).st_size, start + length
        if size < end:
            raise ValueError(f"{filename!r} has become shorter: {size} bytes, and the array ends at {end}")
        group = _budget.group_for(None, None)
        mapping = map_file(file, length, start, mode, group, check_sharing(None, mode), 2)
    self = np.ndarray.__new__(subtype, shape, dtype, mapping.hold(), offset=inside, strides=strides)
    self._mmap, self.offset, self.mode, self.filename = mapping, start + inside, mode, filename
    return self


def zeros(shape, dtype=float, order="C", *, memory=None, swap=None):
    """An array of zeros that may be larger than memory: as numpy.zeros, with a budget.

    `memory`: what it may have in memory; without it, it shares the budget of the `with er.budget` that it is
    made in, or the default one. `swap`: what of it may be in the swap file beside that; four times the
    memory, or what the disk has room for, by default. MemoryError: the array does not fit into both.
    """
    dtype, shape = np.dtype(dtype), _shape_of(shape)
    if dtype.hasobject:
        raise TypeError("an array of objects has only their addresses: use numpy.zeros")
    length = _count(shape) * dtype.itemsize
    if length == 0:
        return np.zeros(shape, dtype, order)
    if length > 1 << 46:
        raise MemoryError(f"{length} bytes are more than a process can have")
    mapping = _elbowroom.Mapping.of_memory(length, _budget.group_for(memory, swap))
    kind = _Array if _elbowroom.serves_user_mode_only() else np.ndarray
    return kind(shape, dtype, mapping.hold(), order=order)


def empty(shape, dtype=float, order="C", *, memory=None, swap=None):
    """As zeros: memory that was never stored to costs nothing."""
    return zeros(shape, dtype, order, memory=memory, swap=swap)
