"""The figures, each as a function that yields rows: figure, case, value, unit, goal, good, and more."""

import json
import os
import pickle
import statistics
import subprocess
import sys
import time

import numpy as np
from ground import MIB, fio_rate, forget, make_file, memory_cgroup, python, readahead, sum_of_file

import elbowroom as er
from patterns import patterns


def row(figure, case, value, unit, goal=None, good=None, **more):
    return {
        "figure": figure,
        "case": case,
        "value": value,
        "unit": unit,
        "goal": goal,
        "good": good,
        **more,
    }


SUM = """
import json, sys, time
import numpy as np, elbowroom as er
kind, path, budget = sys.argv[1:]
a = np.memmap(path, "f8", "r") if kind == "numpy" else er.memmap(path, "f8", "r", memory=int(budget))
began = time.perf_counter()
total = a.sum()
print(json.dumps({"seconds": time.perf_counter() - began, "sum": float(total)}))
"""


def sums(scale):
    """numpy sums a file 8 times its budget, at the disk's speed: beside fio and numpy.memmap, in turn."""
    size, budget = scale.large, scale.large // 8
    path = scale.path("large")
    make_file(path, size)
    rates = {"fio": [], "numpy": [], "elbowroom": []}
    for _ in range(scale.rounds):
        forget(path)
        rates["fio"].append(fio_rate(path, size))
        for kind in ("numpy", "elbowroom"):
            forget(path)
            found = python(SUM, kind, path, budget)
            assert found["sum"] == sum_of_file(size), found
            rates[kind].append(size / found["seconds"])
    has_fio = None not in rates["fio"]
    medians = {kind: statistics.median(of) for kind, of in rates.items() if has_fio or kind != "fio"}
    for kind, rate in medians.items():
        yield row("sum", f"{kind}, {size // MIB} MiB in {budget // MIB} MiB", rate / 1e6, "MB/s")
    if has_fio:
        ratio = medians["elbowroom"] / medians["fio"]
        yield row("sum", "elbowroom / fio", ratio, "", "at least 0.9", ratio >= 0.9)


def fits(scale):
    """An array that fits and is in memory, beside numpy.memmap: each pattern of indexing."""
    size = scale.fitting
    path, shape = scale.path("fitting"), (size // 8 // 256, 256)
    make_file(path, size)
    both = [
        np.memmap(path, "f8", "r", shape=shape),
        er.memmap(path, "f8", "r", shape=shape, memory=4 * size),
    ]
    for array in both * 2:
        assert array.sum() == sum_of_file(size)
    assert both[1].managed
    for name, function in patterns(shape):
        results = [np.asarray(function(array)) for array in both]
        assert np.array_equal(*results), name
        # The time of this thread alone, in turn, and the least: other processes only make it longer.
        best, begun, turns = [float("inf")] * 2, time.perf_counter(), 0
        while turns < 5 or time.perf_counter() - begun < scale.seconds:
            for nth, array in enumerate(both):
                before = time.thread_time()
                function(array)
                best[nth] = min(best[nth], time.thread_time() - before)
            turns += 1
        ratio = best[1] / best[0]
        more = {"numpy_us": best[0] * 1e6, "elbowroom_us": best[1] * 1e6}
        yield row("fits", name, ratio, "of numpy.memmap", "at most 1.02", ratio <= 1.02, **more)


GATHER = """
import json, sys, time
import numpy as np, elbowroom as er
kind, path, budget, rows, batch, most = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
a = np.memmap(path, "f8", "r") if kind == "numpy" else er.memmap(path, "f8", "r", memory=budget)
a = a.reshape(-1, 512)
index = np.random.default_rng(7).integers(0, len(a), rows)
total, done, began = 0.0, 0, time.perf_counter()
for at in range(0, rows, batch):
    total += a[index[at : at + batch]].sum()
    done += batch
    if time.perf_counter() - began > most:
        break
seconds = time.perf_counter() - began
index = index[:done].astype("u8") * 512
expected = sum(float(((index + nth) % 1000).sum()) for nth in range(512))
assert total == expected, (total, expected)
print(json.dumps({"rate": len(index) / seconds}))
"""


def gathers(scale):
    """Rows of 4 KiB at random, in batches, of a file 8 times the budget, beside a control group."""
    size, budget = scale.medium, scale.medium // 8
    path = scale.path("medium")
    make_file(path, size)
    for kib in (None, 128):
        rates = {"numpy": [], "elbowroom": []}
        with readahead(path, kib or 8192) as is_set, memory_cgroup(budget) as group:
            if kib is None and not is_set:
                continue
            for _ in range(scale.rounds):
                for kind, of in rates.items():
                    forget(path)
                    where = group if kind == "numpy" else None
                    of.append(
                        python(
                            GATHER, kind, path, budget, scale.rows, scale.batch, scale.most, cgroup=where
                        )["rate"]
                    )
        name = f"readahead {kib or 8192} KiB" + ("" if group else ", numpy without a limit")
        for kind, of in rates.items():
            yield row("gather", f"{kind}, {name}", statistics.median(of), "rows/s", rows=scale.rows)
        ratio = statistics.median(rates["elbowroom"]) / statistics.median(rates["numpy"])
        yield row("gather", f"elbowroom / numpy.memmap, {name}", ratio, "times", "at least 5", ratio >= 5)


RESIDENT = """
import json, sys
import numpy as np
from ground import peak_resident, sum_of_file
path, budget = sys.argv[1], int(sys.argv[2])
np.arange(1000.0).sum()
before = peak_resident()
import elbowroom as er
if "file" in sys.argv:
    a = er.memmap(path, "f8", "r", memory=budget)
    assert a.sum() == sum_of_file(a.nbytes)
    # Its budget goes with it.
    del a
if "array" in sys.argv:
    z = er.zeros(2 * budget // 8, "f8", memory=budget)
    z[:] = 1
    assert z.sum() == len(z)
print(json.dumps({"peak": peak_resident(), "before": before}))
"""


def resident(scale):
    """The most that a process with one budget has in memory, beside what the interpreter has without."""
    size, budget = scale.large, scale.large // 8
    path = scale.path("large")
    make_file(path, size)
    # What describes pages is kept for the next ones: a file and then an array have some for both.
    cases = [("file", ["file"], 32), ("array of twice the budget", ["array"], 32)]
    for name, more, most in [*cases, ("the file, then the array", ["file", "array"], 64)]:
        found = python(RESIDENT, path, budget, *more)
        beyond = found["peak"] - found["before"] - budget
        more = {"peak_bytes": found["peak"], "interpreter_bytes": found["before"]}
        case = f"{name}, beyond the interpreter's and {budget // MIB} MiB"
        yield row("resident", case, beyond / MIB, "MiB", f"at most {most} MiB", beyond <= most * MIB, **more)


def workers(scale):
    """The memory of four workers and their parent together, as the sum of their proportional shares."""
    size, budget = scale.medium, scale.medium // 8
    path = scale.path("medium")
    make_file(path, size)

    def run(method, kind):
        command = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "workers.py")]
        done = subprocess.run(
            [*command, path, str(budget), method, kind], capture_output=True, text=True, timeout=600
        )
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
        return json.loads(done.stdout.splitlines()[-1])

    methods = ["spawn", "fork"]
    try:
        import torch  # noqa: F401

        methods.append("dataloader")
    except ImportError:
        yield row("workers", "dataloader: there is no torch", None, "")
    # What five interpreters have without any array.
    bare = {method: run(method, "none")["pss_bytes"] for method in methods}
    for method in methods:
        forget(path)
        found = run(method, "arrays")
        before = bare[method]
        beyond = found["pss_bytes"] - before - budget
        # 32 MiB for each of the five processes, as for one.
        good = beyond <= 5 * 32 * MIB and found["managed"]
        more = {"pss_bytes": found["pss_bytes"], "interpreter_bytes": before, "managed": found["managed"]}
        case = f"{method}, beyond the interpreters' and {budget // MIB} MiB"
        yield row("workers", case, beyond / MIB, "MiB", "at most 160 MiB", good, **more)


def unpickling(scale):
    """The time in which an array of 100 GB is unpickled: by reference, so that no byte of it is read."""
    path = scale.path("sparse")
    with open(path, "wb") as file:
        file.truncate(100 * 10**9)
    array = er.memmap(path, "u1", "r")
    text, times = pickle.dumps(array), []
    for _ in range(50):
        began = time.perf_counter()
        again = pickle.loads(text)
        times.append(time.perf_counter() - began)
        assert again.nbytes == 100 * 10**9 and again[50 * 10**9] == 0
        del again
    median = statistics.median(times) * 1000
    yield row(
        "unpickling",
        "100 GB, median of 50",
        median,
        "ms",
        "at most 1 ms",
        median <= 1,
        least_ms=min(times) * 1000,
    )


FIGURES = {
    "sum": sums,
    "fits": fits,
    "gather": gathers,
    "resident": resident,
    "workers": workers,
    "unpickling": unpickling,
}
