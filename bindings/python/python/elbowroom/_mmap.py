"""The class mmap: what mmap.mmap of the standard library is, with a budget."""

import mmap as _standard
import os
import re
import stat
import sys
import warnings

from . import _budget, _elbowroom
from ._files import check_sharing

_NAMES = {
    _standard.ACCESS_DEFAULT: "ACCESS_DEFAULT",
    _standard.ACCESS_READ: "ACCESS_READ",
    _standard.ACCESS_WRITE: "ACCESS_WRITE",
    _standard.ACCESS_COPY: "ACCESS_COPY",
}
_MODES = {_standard.ACCESS_READ: "r", _standard.ACCESS_WRITE: "r+", _standard.ACCESS_COPY: "c"}
_BOTH = _standard.PROT_READ | _standard.PROT_WRITE
# find and rfind look at so many bytes at a time, and at no fewer than they look for.
_CHUNK = 1 << 20
# What is larger than this is not found by re, which is slow for it and keeps copies.
_LARGEST_PATTERN = 1 << 10


def _mode(flags, prot, access):
    if access not in _NAMES:
        raise ValueError("mmap invalid access parameter.")
    if access != _standard.ACCESS_DEFAULT:
        if flags != _standard.MAP_SHARED or prot != _BOTH:
            raise ValueError("mmap can't specify both access, flags and prot.")
        return _MODES[access]
    if prot & ~_BOTH or not prot & _standard.PROT_READ:
        raise ValueError("memory of a budget can be read, or read and stored to: prot has other rights")
    if not prot & _standard.PROT_WRITE:
        return "r"
    return "c" if flags & _standard.MAP_PRIVATE else "r+"


class mmap(_elbowroom.Mapping):
    """A file, or memory if `fileno` is -1, as bytes that can be changed: arguments and methods are those of
    mmap.mmap of the standard library, with the constants of that module.

    `memory`, `sharing`: as for memmap. Memory is private: a forked child has a copy of it. It cannot be
    resized, and has no rights to execute.
    """

    def __new__(
        cls,
        fileno,
        length,
        flags=_standard.MAP_SHARED,
        prot=_BOTH,
        access=_standard.ACCESS_DEFAULT,
        offset=0,
        *,
        memory=None,
        sharing=None,
    ):
        if length < 0:
            raise OverflowError("memory mapped length must be positive")
        if offset < 0:
            raise OverflowError("memory mapped offset must be positive")
        mode, own = _mode(flags, prot, access), None
        if fileno == -1:
            if mode == "r":
                raise ValueError("memory that cannot be stored to has only zeros")
            group = _budget.group_for(memory, None)
            self = super().__new__(cls, None, length, 0, mode, group, False)
        else:
            found = os.fstat(fileno)
            if stat.S_ISREG(found.st_mode):
                if length == 0:
                    if found.st_size == 0:
                        raise ValueError("cannot mmap an empty file")
                    if offset >= found.st_size:
                        raise ValueError("mmap offset is greater than file size")
                    length = found.st_size - offset
                elif offset > found.st_size or found.st_size - offset < length:
                    raise ValueError("mmap length is greater than file size")
            if offset % _standard.ALLOCATIONGRANULARITY:
                raise OSError(22, "the offset is no multiple of mmap.ALLOCATIONGRANULARITY")
            trust = check_sharing(sharing, mode) == "trust"
            group = _budget.group_for(memory, None)
            self = super().__new__(cls, fileno, length, offset, mode, group, trust)
            if self.reason is not None:
                text = f"the file is mapped by the kernel, beside the budget: {self.reason}"
                warnings.warn(text, _budget.UnmanagedWarning, stacklevel=2)
            own = os.dup(fileno)
        self._access, self._fd, self._pos = access, own, 0
        return self

    def _open(self):
        if self.closed:
            raise ValueError("mmap closed or invalid")
        return memoryview(self)

    def _stored(self):
        if self.readonly:
            raise TypeError("mmap can't modify a readonly memory map.")
        return self._open()

    def close(self):
        """Unmaps it, if no view of it is left. What was stored is in the file then."""
        super().close()
        own, self._fd = self._fd, None
        if own is not None:
            os.close(own)

    def __del__(self):
        own, self._fd = getattr(self, "_fd", None), None
        if own is not None:
            os.close(own)

    def __enter__(self):
        self._open().release()
        return self

    def __exit__(self, *error):
        self.close()

    def __len__(self):
        self._open().release()
        return super().__len__()

    def __getitem__(self, index):
        with self._open() as view:
            part = view[index]
            return bytes(part) if isinstance(part, memoryview) else part

    def __setitem__(self, index, value):
        with self._stored() as view:
            if not isinstance(index, slice):
                view[index] = value
                return
            start, stop, step = index.indices(len(view))
            with memoryview(value) as new:
                if len(range(start, stop, step)) != new.nbytes:
                    raise IndexError("mmap slice assignment is wrong size")
                # Empty slices of memoryviews may have other bounds.
                if new.nbytes:
                    view[index] = new.cast("B") if new.format != "B" or new.ndim != 1 else new

    def __iter__(self):
        for nth in range(len(self)):
            yield self[nth : nth + 1]

    def __contains__(self, item):
        return self.find(bytes([item]) if isinstance(item, int) else item, 0) >= 0

    def _bounds(self, start, end):
        length = len(self)
        bounds = slice(self._pos if start is None else start, length if end is None else end).indices(length)
        return bounds[0], bounds[1]

    def find(self, sub, start=None, end=None):
        """The first place of the bytes `sub` from `start` (the position) to `end`; -1: they are not there."""
        sub, (start, end) = bytes(sub), self._bounds(start, end)
        if end < start:
            return -1
        if len(sub) <= _LARGEST_PATTERN:
            found = re.compile(re.escape(sub), re.DOTALL).search(self, start, end)
            return -1 if found is None else found.start()
        chunk = max(_CHUNK, len(sub))
        for first in range(start, end - len(sub) + 1, chunk):
            found = self[first : min(first + chunk + len(sub) - 1, end)].find(sub)
            if found >= 0:
                return first + found
        return -1

    def rfind(self, sub, start=None, end=None):
        """The last place of the bytes `sub` from `start` (the position) to `end`; -1: they are not there."""
        sub, (start, end) = bytes(sub), self._bounds(start, end)
        first, chunk = end, max(_CHUNK, len(sub))
        while first > start or first == end >= start:
            last, first = min(end, first + len(sub)), max(start, first - chunk)
            found = self[first:last].rfind(sub)
            if found >= 0:
                return first + found
            if first == start:
                break
        return -1

    def tell(self):
        """The position."""
        self._open().release()
        return self._pos

    def seek(self, pos, whence=0):
        """Sets the position, in bytes from the beginning, the position (1) or the end (2)."""
        bases = {0: 0, 1: self._pos, 2: len(self)}
        if whence not in bases:
            raise ValueError("unknown seek type")
        where = bases[whence] + pos
        if not 0 <= where <= len(self):
            raise ValueError("seek out of range")
        self._pos = where

    def read(self, n=None):
        """So many bytes from the position on, or all of them."""
        left = max(0, len(self) - self._pos)
        if n is not None and not hasattr(n, "__index__"):
            raise TypeError(f"a number of bytes is needed, not {type(n).__name__}")
        count = left if n is None or n < 0 else min(left, n.__index__())
        part = self[self._pos : self._pos + count]
        self._pos += count
        return part

    def read_byte(self):
        """The byte at the position."""
        if self._pos >= len(self):
            raise ValueError("read byte out of range")
        self._pos += 1
        return self[self._pos - 1]

    def readline(self):
        """The bytes from the position up to the end of a line."""
        end = self.find(b"\n")
        return self.read(None if end < 0 else end + 1 - self._pos)

    def write(self, data):
        """Stores bytes at the position, and returns how many."""
        self._stored().release()
        with memoryview(data) as new:
            count = new.nbytes
        if self._pos + count > len(self):
            raise ValueError("data out of range")
        self[self._pos : self._pos + count] = data
        self._pos += count
        return count

    def write_byte(self, byte):
        """Stores a byte at the position."""
        self._stored().release()
        if self._pos >= len(self):
            raise ValueError("write byte out of range")
        self[self._pos] = byte
        self._pos += 1

    def move(self, dest, src, count):
        """Copies `count` bytes from `src` to `dest`."""
        length = len(self)
        if min(dest, src, count) < 0 or count > length - max(dest, src):
            raise ValueError("source, destination, or count out of range")
        with self._stored() as view:
            # The two may overlap: memoryview copies them right.
            view[dest : dest + count] = view[src : src + count]

    def flush(self, offset=0, size=None):
        """Writes what was stored to the file, and waits until it is durable."""
        size = len(self) - offset if size is None else size
        if offset < 0 or size < 0 or offset + size > len(self):
            raise ValueError("flush values out of range")
        if offset % _standard.PAGESIZE:
            raise OSError(22, "the offset is no multiple of mmap.PAGESIZE")
        super().flush(offset, size)

    def size(self):
        """The size of the file in bytes."""
        self._open().release()
        if self._fd is None:
            raise ValueError("memory has no file")
        return os.fstat(self._fd).st_size

    def resize(self, newsize):
        """Not possible: SystemError, as where mmap.mmap cannot."""
        if self.mode in ("r", "c"):
            raise TypeError("mmap can't resize a readonly or copy-on-write memory map.")
        raise SystemError("elbowroom.mmap cannot be resized: close it, and map the file again")

    def madvise(self, option, start=0, length=None):
        """madvise(2): MADV_NORMAL, RANDOM, SEQUENTIAL, WILLNEED, DONTNEED, FREE, COLD and PAGEOUT."""
        size = len(self)
        if not 0 <= start < size:
            raise ValueError("madvise start out of bounds")
        if length is None:
            length = size - start
        if length < 0:
            raise ValueError("madvise length invalid")
        if sys.maxsize - start < length:
            raise OverflowError("madvise length too large")
        if start % _standard.PAGESIZE:
            raise OSError(22, "the start is no multiple of mmap.PAGESIZE")
        self.advise(option, start, min(length, size - start))

    def __repr__(self):
        if self.closed:
            return "<elbowroom.mmap closed=True>"
        return (
            f"<elbowroom.mmap closed=False, access={_NAMES[self._access]}, length={len(self)}, "
            f"pos={self._pos}, offset={self.offset}>"
        )
