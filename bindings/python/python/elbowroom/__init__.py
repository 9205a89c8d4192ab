"""Arrays of files, and of memory, that are larger than the memory they may use.

    import elbowroom as er
    a = er.memmap("tokens.bin", dtype="u2", mode="r", memory="2GiB")   # never more than 2 GiB in memory
    b = er.zeros((200_000, 4096), "f4", memory="2GiB", swap="40GiB")   # larger than memory
    with er.budget("4GiB") as g:                                       # one budget for all that is made here
        ...

Sizes are whole numbers of bytes or texts such as "2GiB", "2G" or "512M"; all units are powers of 1024.
"""

from ._arrays import empty, memmap, zeros
from ._budget import UnmanagedWarning, budget, configure, default_budget, stats
from ._elbowroom import Mapping, StartError, __version__
from ._errors import AccessError
from ._files import open
from ._mmap import mmap

__all__ = [
    "__version__",
    "AccessError",
    "Mapping",
    "StartError",
    "UnmanagedWarning",
    "budget",
    "configure",
    "default_budget",
    "empty",
    "memmap",
    "mmap",
    "open",
    "stats",
    "zeros",
]
