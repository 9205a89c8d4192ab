"""The exception of an access whose bytes cannot be had."""

import os
import sys
import threading

from . import _elbowroom

# A thread whose innermost Python function is of the standard library waits for other threads, and computes
# nothing, unless the function is one of these.
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = "site-packages", "dist-packages"
# Functions that call a function of the user, which has no Python code if it is written in C, and that do not
# wait themselves: the module, and the function's name, or None for all of the module.
_CALLERS = {
    ("asyncio/events.py", "_run"),
    ("concurrent/futures/process.py", "<listcomp>"),
    ("concurrent/futures/process.py", "_process_chunk"),
    ("concurrent/futures/process.py", "_process_worker"),
    ("concurrent/futures/thread.py", "run"),
    ("contextlib.py", None),
    ("copy.py", None),
    ("functools.py", None),
    ("multiprocessing/pool.py", "mapstar"),
    ("multiprocessing/pool.py", "starmapstar"),
    ("multiprocessing/process.py", "run"),
    ("threading.py", "run"),
}


class AccessError(OSError):
    """Bytes of an array cannot be had: its file was cut, or a disk fails.

    `errno`: ENXIO if the file is too short by now, else EIO. `filename`: the file; None for memory. `offset`:
    where in the file the first such access was, in bytes; None for memory.
    """

    offset = None

    def __init__(self, *args):
        # The interpreter makes it without arguments, in the thread that has made the access.
        note = None if args else _elbowroom.take_note()
        if note is not None:
            errno, text, filename, self.offset = note
            args = (errno, text) if filename is None else (errno, text, filename)
        super().__init__(*args)


def _threads_to_tell():
    """Identities of the Python threads for which an unknown thread (of BLAS) may be computing: those that run
    neither a lock, a queue nor another wait of the standard library."""
    frames = sys._current_frames()
    # The one that runs this.
    frames.pop(threading.get_ident(), None)

    def waits(frame):
        name, function = frame.f_code.co_filename, frame.f_code.co_name
        if not name.startswith(_STANDARD) or any(part in name for part in _INSTALLED):
            return False
        module = name[len(_STANDARD) :]
        if (module, function) == ("multiprocessing/pool.py", "worker"):
            # The same function takes tasks from a queue and calls them.
            values = frame.f_locals
            is_idle = values.get("func") is None or values.get("result") is not None
            if type(values) is dict:
                # Before Python 3.13 it is a copy, which would keep the arguments of the task alive.
                values.clear()
            return is_idle
        return (module, function) not in _CALLERS and (module, None) not in _CALLERS

    chosen = [ident for ident, frame in frames.items() if not waits(frame)]
    return chosen or [threading.main_thread().ident]


_elbowroom.set_access_error(AccessError, _threads_to_tell)
