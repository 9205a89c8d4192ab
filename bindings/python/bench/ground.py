"""What the figures stand on: files with known contents, processes with a limit, and what a process has."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

MIB = 1 << 20
# The values of a file of float64 go round in this many steps, so that sums are exact.
STEPS = 1000


def make_file(path, size):
    """A file of `size` bytes of float64: element n is n % STEPS. Made once, and written to the disk."""
    import numpy as np

    if os.path.exists(path) and os.path.getsize(path) == size:
        return
    block = STEPS * 8192
    values = np.tile(np.arange(STEPS, dtype="f8"), block // STEPS)
    with open(path, "wb") as file:
        left = size // 8
        while left:
            file.write(values[: min(left, block)].tobytes())
            left -= min(left, block)
        file.flush()
        os.fsync(file.fileno())


def sum_of_file(size):
    """The sum of all elements of such a file."""
    whole, rest = divmod(size // 8, STEPS)
    return whole * (STEPS * (STEPS - 1) // 2) + rest * (rest - 1) // 2


def forget(path):
    """Has the kernel drop its cache of a file, without rights and without effect on other files."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def python(text, *args, cgroup=None):
    """Runs a program in a process of its own; it prints one JSON object, which is returned."""
    command = [sys.executable, "-c", text, *map(str, args)]
    if cgroup is not None:
        command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(cgroup / "cgroup.procs"), *command]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=900, cwd=pathlib.Path(__file__).parent
    )
    if done.returncode != 0:
        raise RuntimeError(f"a measured program has failed ({done.returncode}): {done.stdout}{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


@contextlib.contextmanager
def memory_cgroup(limit):
    """A control group with so many bytes of memory, version 1 or 2; None: there can be none here."""
    for root, name in [
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ]:
        group = pathlib.Path(root) / f"elbowroom-bench-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / name).exists():
                (group / name).write_text(str(limit))
                yield group
                return
        finally:
            group.rmdir()
    yield None


@contextlib.contextmanager
def readahead(path, kib):
    """Sets the readahead of the disk that has a file, in KiB; False: that is not possible here."""
    number = os.stat(path).st_dev
    device = pathlib.Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    setting = next(
        (d / "queue/read_ahead_kb" for d in (device, device.parent) if (d / "queue").exists()), None
    )
    if setting is None or not os.access(setting, os.W_OK):
        yield False
        return
    before = setting.read_text()
    try:
        setting.write_text(str(kib))
        yield True
    finally:
        setting.write_text(before)


def fio_rate(path, size):
    """The disk's sequential rate by fio, in bytes per second; None: there is no fio."""
    if shutil.which("fio") is None:
        return None
    command = [
        "fio",
        "--name=read",
        f"--filename={path}",
        f"--size={size}",
        "--rw=read",
        "--bs=1M",
        "--direct=1",
    ]
    command += ["--ioengine=libaio", "--iodepth=16", "--readonly", "--output-format=json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd="/tmp")
    if done.returncode != 0:
        raise RuntimeError(f"fio has failed: {done.stderr}")
    return json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"]


def of_smaps(key, pid="self"):
    """A line of smaps_rollup of a process, in bytes; 0: the process has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as lines:
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key + ":"))
    except (OSError, StopIteration):
        return 0


def peak_resident():
    """The most that this process had in memory so far, in bytes."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
