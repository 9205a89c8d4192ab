"""Budgets: what arrays together may have in memory."""

import atexit
import contextlib
import contextvars
import html
import json
import os
import subprocess
import threading

from . import _elbowroom
from ._commands import find


class UnmanagedWarning(UserWarning):
    """An array is mapped by the kernel, beside its budget. The text says why."""


# The budgets that are entered in this context, the innermost one last. They are no tokens of the variable in
# a list of the budget, since threads may enter one budget at a time.
_entered = contextvars.ContextVar("elbowroom.budgets", default=())
_default = None
_default_lock = threading.Lock()


def _shown(size):
    """A size for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size /= 1024
    else:
        unit = "TiB"
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def _doctor():
    """What `elbowroom doctor` says is missing on this machine, one line each."""
    try:
        run = subprocess.run([find("elbowroom"), "doctor", "--json"], capture_output=True, timeout=60)
        return [advice["text"] for advice in json.loads(run.stdout)["advice"] if advice["required"]]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return []


def _explained(call, *args):
    """Calls; if the manager cannot start, the error says what `elbowroom doctor` advises."""
    try:
        return call(*args)
    except _elbowroom.StartError as error:
        lines = [str(error), *(line for line in _doctor() if line != str(error))]
        raise _elbowroom.StartError("elbowroom cannot work here: " + "\n  ".join(lines)) from None


def _innermost():
    """The budget of arrays that are made here and now; None: the default one."""
    entered = _entered.get()
    return entered[-1] if entered else None


class budget:
    """A budget: arrays that are made inside `with` share it.

        with er.budget("4GiB", swap="16GiB") as g:
            a = er.memmap("a.bin", mode="r")
            b = er.zeros(10**9)
            g.limit = "1GiB"
            print(g.stats())

    `limit`: what they may have in memory together. `swap`: what memory without a file may have in the swap
    file beside that; four times the limit, or what the disk has room for, by default. A budget that is made
    inside another one is a part of it. Arrays keep their budget after the end of `with`.
    """

    def __init__(self, limit, *, swap=None):
        outer = _innermost()
        self._outer = outer
        self._group = _explained(_elbowroom.Group, limit, swap, outer and outer._group)

    @property
    def limit(self):
        """What the arrays may have in memory together, in bytes. Can be set: less is reclaimed at once."""
        return self._group.limit

    @limit.setter
    def limit(self, limit):
        self._group.limit = limit

    @property
    def swap(self):
        """What they may have in the swap file together, in bytes."""
        return self._group.swap

    def stats(self):
        """What the arrays use and have done so far, those of inner budgets too; bytes and counts."""
        return json.loads(self._group.stats())

    def __enter__(self):
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, *error):
        entered = list(_entered.get())
        # The last one, if it was entered more than once.
        for nth in reversed(range(len(entered))):
            if entered[nth] is self:
                del entered[nth]
                break
        _entered.set(tuple(entered))

    def __repr__(self):
        return f"<elbowroom.budget of {_shown(self.limit)}, swap {_shown(self.swap)}>"

    def _repr_html_(self):
        stats = self.stats()
        rows = [
            ("memory", stats["usage_bytes"], stats["limit_bytes"]),
            ("swap", stats["swap_bytes"], stats["swap_limit_bytes"]),
        ]
        lines = []
        for name, used, limit in rows:
            part = min(1, used / limit) if limit else 0
            lines.append(
                f"<tr><th>{name}</th><td><meter value='{part:.4f}'></meter></td>"
                f"<td>{html.escape(_shown(used))} of {html.escape(_shown(limit))}</td></tr>"
            )
        counts = ("pgfault", "faults"), ("pgmajfault", "faults that waited for a disk")
        for key, name in counts:
            lines.append(f"<tr><th>{name}</th><td></td><td>{stats[key]:,}</td></tr>")
        return "<table>" + "".join(lines) + "</table>"


def default_budget():
    """The budget of arrays that are made outside of any other: at first half of the available memory."""
    global _default
    if _default is None:
        _, _, _ = _explained(_elbowroom.capacity)
        with _default_lock:
            if _default is None:
                token = _entered.set(())
                try:
                    _default = budget(_half_of_available())
                finally:
                    _entered.reset(token)
    return _default


def _half_of_available():
    memory, _, _ = _elbowroom.capacity()
    if _shares:
        # What the other processes have is not this one's, whatever its own limit is.
        return memory
    try:
        with open("/proc/meminfo") as lines:
            found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        available = int(found[0]) * 1024
    except (OSError, IndexError, ValueError):
        available = memory
    return max(1 << 20, min(memory, available) // 2 & -4096)


def group_for(memory, swap):
    """The group for an array: one of its own if `memory` or `swap` is given, else that of the budget."""
    around = _innermost()
    if memory is None and swap is None:
        return (around or default_budget())._group
    if memory is None:
        memory = (around or default_budget()).limit
    return budget(memory, swap=swap)._group


# How a process tells those that it starts which budget they share: a JSON object.
_SHARED = "ELBOWROOM_SHARED"
_shares = False


def configure(*, memory=None, swap=None, swap_dir=None, policy="auto", shared=False, _inject=None):
    """Chooses what all budgets together may have. Only before the first array or budget is made.

    `memory`: three quarters of the machine's, or of what the memory cgroup permits, by default. `swap`: what
    the directory has room for. `swap_dir`: a directory on a disk, /var/tmp by default; the file in it has no
    name.

    `policy`: which pages of files go when memory is short. "auto": as suits how each budget uses its files;
    "kept": what has come in first stays, for passes over more than memory; "long": half of memory is for
    second chances, for chunks of which some are used more often; "even": a sixteenth is.

    `shared`: this process, and all that it starts from now on and that use this package, have `memory`
    together: workers of multiprocessing, joblib, Dask or a DataLoader. Memory moves to the process that needs
    it most. In a process that was started so, a call with `shared` changes nothing: it shares that budget
    already. `elbowroom top` shows the processes, and `elbowroom ctl set max=1G` changes the budget.
    """
    global _shares
    swap_dir = None if swap_dir is None else os.fspath(swap_dir)
    table = None
    if shared:
        # A process that multiprocessing has spawned runs the main module again, and so this call.
        if _join_shared():
            return
        if _elbowroom.stats() is not None:
            text = "the manager runs already: call elbowroom.configure before the first array is made"
            raise RuntimeError(text)
        swap = None if swap is None else _elbowroom.parse_size(swap)
        table = os.fspath(_elbowroom.make_table(memory, swap, swap_dir))
        atexit.register(_remove_table, table, os.getpid())
    _elbowroom.configure(memory, swap, swap_dir, policy, _inject, table)
    if shared:
        # Only now, since a call that is refused must not be told to other processes.
        words = {"maker": os.getpid(), "table": table, "swap": swap, "swap_dir": swap_dir, "policy": policy}
        os.environ[_SHARED] = json.dumps(words)
    _shares = shared


def _remove_table(path, maker):
    # The processes that have it mapped go on with it.
    if os.getpid() == maker:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _join_shared():
    """Whether another process has given this one a share of its budget; if so, it is used."""
    try:
        words = json.loads(os.environ[_SHARED])
        maker, table, swap, swap_dir = (words[key] for key in ("maker", "table", "swap", "swap_dir"))
        policy = words.get("policy", "auto")
    except (KeyError, ValueError, TypeError):
        return False
    if maker == os.getpid():
        return False
    if _elbowroom.stats() is None:
        global _shares
        _elbowroom.configure(None, swap, swap_dir, policy, None, table)
        _shares = True
    return _shares


def stats():
    """The statistics of the whole process, with keys of `elbowroom run --stats`; {} before the first use."""
    found = _elbowroom.stats()
    return {} if found is None else json.loads(found)


# What was stored less than a second ago is in the files when the interpreter ends.
atexit.register(_elbowroom.flush_all)

_join_shared()
