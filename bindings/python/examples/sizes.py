"""What all examples share: their arguments, and a look at what the process has in memory."""

import argparse
import contextlib
import pathlib
import tempfile


def arguments(what, memory="1GiB", times=10):
    """The arguments of an example: `memory`, the budget, and how many times as large the data is."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--memory", default=memory, help="what the arrays may have in memory [%(default)s]")
    parser.add_argument(
        "--times", type=int, default=times, help="the data is so many times larger [%(default)s]"
    )
    parser.add_argument("--dir", default="/var/tmp", help="a directory on a disk [%(default)s]")
    return parser.parse_args()


@contextlib.contextmanager
def scratch(directory):
    """A directory that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="elbowroom-example-", dir=directory) as name:
        yield pathlib.Path(name)


def peak():
    """The most that this process had in memory so far, in MiB."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM:"))


def in_bytes(size):
    """A size such as "1GiB" in bytes."""
    import elbowroom

    return elbowroom._elbowroom.parse_size(size)
