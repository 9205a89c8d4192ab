"""Files as buffers."""

import builtins
import os
import warnings

from . import _budget, _elbowroom

MODES = {"readonly": "r", "copyonwrite": "c", "readwrite": "r+", "write": "w+"}


def check_sharing(sharing, mode):
    """How a file is shared that is mapped in a mode."""
    if sharing is None:
        # A file that is only read can be managed beside others that use it: at worst its bytes are old for
        # a second. Stores of two processes to one page would be lost.
        sharing = "trust" if mode in ("r", "c") else "auto"
    if sharing not in ("auto", "trust"):
        raise ValueError(f"sharing must be 'auto' or 'trust', not {sharing!r}")
    return sharing


def map_file(file, length, offset, mode, group, sharing, stacklevel):
    """Maps `length` bytes from `offset` on of the open `file`, in a group of `_budget.group_for`."""
    mapping = _elbowroom.Mapping.of_file(file.fileno(), length, offset, mode, group, sharing == "trust")
    if mapping.reason is not None:
        name = getattr(file, "name", "a file")
        text = f"{name!r} is mapped by the kernel, beside the budget: {mapping.reason}"
        warnings.warn(text, _budget.UnmanagedWarning, stacklevel=stacklevel + 1)
    return mapping


def _create(path, flags):
    return os.open(path, flags | os.O_CREAT, 0o666)


def open_file(path, mode):
    """Opens a file for a mode of a mapping. 'w+' makes a file that is there empty."""
    if mode == "w+":
        file = builtins.open(path, "r+b", buffering=0, opener=_create)
        try:
            # Not by O_TRUNC: the manager has to forget what was stored to pages that go.
            _elbowroom.resize(file.fileno(), 0)
        except BaseException:
            file.close()
            raise
        return file
    return builtins.open(path, "r+b" if mode == "r+" else "rb", buffering=0)


def open(path, mode="r", *, memory=None, sharing=None):
    """Maps a whole file; returns a buffer of its bytes: `memoryview(er.open("index.bin"))`.

    `mode`: "r", "r+" or "c", as for memmap. The buffer can be closed (also by `with`) when no view of it is
    left.
    """
    mode = MODES.get(mode, mode)
    if mode not in ("r", "r+", "c"):
        raise ValueError(f"mode must be 'r', 'r+' or 'c', not {mode!r}")
    sharing = check_sharing(sharing, mode)
    group = _budget.group_for(memory, None)
    with open_file(os.fspath(path), mode) as file:
        length = os.fstat(file.fileno()).st_size
        if length == 0:
            raise ValueError("cannot map an empty file")
        return map_file(file, length, 0, mode, group, sharing, 2)
