"""The exception of an access whose bytes cannot be had."""

import os
import sys
import threading

from . import _elbowroom

# A thread that runs Python code of these waits for other threads, and computes nothing.
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = "site-packages", "dist-packages"


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
    """The threads that may have asked one that the interpreter does not know to compute for them."""
    frames = sys._current_frames()
    # The one that runs this.
    frames.pop(threading.get_ident(), None)

    def waits(frame):
        name = frame.f_code.co_filename
        return name.startswith(_STANDARD) and not any(part in name for part in _INSTALLED)

    chosen = [ident for ident, frame in frames.items() if not waits(frame)]
    return chosen or [threading.main_thread().ident]


_elbowroom.set_access_error(AccessError, _threads_to_tell)
