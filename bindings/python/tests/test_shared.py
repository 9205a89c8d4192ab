"""One budget for several processes: whatever starts them, all together have no more than it."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from conftest import MIB, SWAP_DIR

PROGRAM = f"""
import elbowroom as er, json, multiprocessing, numpy as np, os, sys, time

def part(array, name, nth):
    if array is None:
        array = er.memmap(name, "u4", "r")
    length = len(array) // 4
    total = sum(int(array[nth * length : (nth + 1) * length].sum(dtype="u8")) for _ in range(2))
    # Longer than others need to be seen beside this one.
    time.sleep(0.3)
    return total // 2, array.managed, er.stats()["budget_bytes"], os.getpid()

def run(name, method, budget="32MiB"):
    er.configure(memory=budget, swap="256MiB", swap_dir={SWAP_DIR!r}, shared=True)
    array = er.memmap(name, "u4", "r") if method == "spawn" else None
    with multiprocessing.get_context(method).Pool(4) as pool:
        return pool.starmap(part, [(array, name, nth) for nth in range(4)], chunksize=1)

if __name__ == "__main__":
    found = run(sys.argv[1], sys.argv[2])
    print(json.dumps([found, json.loads(os.environ["ELBOWROOM_SHARED"])]))
"""


@pytest.fixture
def started(tmp_path):
    """Starts the program; returns what it has printed, and the most that a reader of the table has seen."""
    (tmp_path / "shared.py").write_text(PROGRAM)

    def start(*args):
        command = [sys.executable, str(tmp_path / "shared.py"), *args]
        # A directory of its own: what other tests leave is not looked at.
        (tmp_path / "run").mkdir()
        environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path / "run")}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
            most = 0
            while running.poll() is None:
                processes = [running.pid, *(int(child) for child in children(running.pid))]
                most = max(most, sum(managed_bytes(pid) for pid in processes))
                time.sleep(0.01)
            said = running.stdout.read()
        assert running.returncode == 0
        assert os.listdir(tmp_path / "run") == []
        return json.loads(said.splitlines()[-1]), most

    return start


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return file.read().split()
    except OSError:
        return []


def managed_bytes(pid):
    """What a process has in the arena and in windows: private anonymous memory of large mappings."""
    total = 0
    try:
        with open(f"/proc/{pid}/smaps") as lines:
            size = 0
            for line in lines:
                if line.startswith("Size:"):
                    size = int(line.split()[1])
                elif line.startswith("Pss_Anon:") and size >= 16 << 10:
                    total += int(line.split()[1]) << 10
    except OSError:
        return 0
    return total


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_workers_have_no_more_together_than_the_budget(started, path, method):
    np.arange(32 * MIB, dtype="u4").tofile(path)
    (parts, words), most = started(path, method)
    quarter = 8 * MIB
    assert [part[0] for part in parts] == [
        sum(range(nth * quarter, (nth + 1) * quarter)) for nth in range(4)
    ]
    assert all(managed and budget == 32 * MIB for _, managed, budget, _ in parts), parts
    assert len({pid for *_, pid in parts}) == 4
    assert words["maker"] not in {pid for *_, pid in parts}
    # Each process has 4 MiB at its start in any case, and its interpreter's large blocks.
    assert most < 32 * MIB + 5 * 10 * MIB, most


def test_memory_goes_to_the_process_that_needs_it(run_python, path):
    np.arange(8 * MIB, dtype="u4").tofile(path)
    text = f"""
    import elbowroom as er, os, subprocess, sys
    er.configure(memory="24MiB", swap="64MiB", swap_dir={SWAP_DIR!r}, shared=True)
    own = er.memmap(sys.argv[1], "u4", "r")
    assert own.sum(dtype="u8") == sum(range(8 << 20))
    had = er.stats()["resident_bytes"]
    child = "\\n".join([
        "import elbowroom as er, sys, time",
        "other = er.memmap(sys.argv[1], 'u4', 'r')",
        "end = time.monotonic() + 30",
        "has = lambda: er.stats()['resident_bytes']",
        "while True:",
        "    assert all(other.sum(dtype='u8') == sum(range(8 << 20)) for _ in range(4))",
        "    if has() > 10 << 20 or time.monotonic() > end: break",
        "print(has())",
    ])
    done = subprocess.run([sys.executable, "-c", child, sys.argv[1]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert had > 18 << 20, had
    # What this process does not use any more has gone to the child.
    assert int(done.stdout) > 10 << 20, done.stdout
    assert own.sum(dtype="u8") == sum(range(8 << 20))
    print("good")
    """
    assert run_python(text, path).stdout == "good\n"


def test_arrays_of_all_processes_fit_into_swap(run_python):
    # Each process could be without any memory when it stores to its array.
    text = f"""
    import elbowroom as er, os
    er.configure(memory="32MiB", swap="64MiB", swap_dir={SWAP_DIR!r}, shared=True)
    a = er.zeros(48 << 20, "u1", swap="48MiB")
    try:
        er.zeros(32 << 20, "u1")
    except MemoryError as error:
        print("refused")
    a[:] = 7
    assert (a == 7).all()
    """
    assert run_python(text).stdout == "refused\n"


def test_a_process_can_have_a_budget_of_its_own(run_python, path):
    text = f"""
    import elbowroom as er, os, subprocess, sys
    er.configure(memory="32MiB", swap=0, shared=True)
    own = "import elbowroom as er; er.configure(memory='20MiB', swap=0); er.zeros(9)"
    own += "; print(er.stats()['budget_bytes'])"
    print(subprocess.run([sys.executable, "-c", own], capture_output=True, text=True).stdout)
    """
    assert run_python(text).stdout.strip() == str(20 * MIB)


def test_without_the_process_that_made_it_a_budget_cannot_be_shared(run_python):
    text = """
    import elbowroom as er, json, os
    words = {"maker": 1, "table": "/no/such", "swap": 0, "swap_dir": None}
    os.environ["ELBOWROOM_SHARED"] = json.dumps(words)
    er.configure(shared=True)
    try:
        er.zeros(5)
    except er.StartError as error:
        assert "/no/such" in str(error) and "elbowroom.configure(memory=...)" in str(error), error
        print("refused")
    er.configure(memory="32MiB", swap=0)
    er.zeros(5)
    try:
        er.configure(memory="64MiB", shared=True)
    except RuntimeError:
        print("too late")
    """
    assert run_python(text).stdout == "refused\ntoo late\n"


def test_nonsense_is_refused(run_python):
    text = """
    import elbowroom as er, os
    for wrong in ({"memory": "1MiB"}, {"memory": "32MiB", "swap": "1000PiB"}, {"memory": 5.0}):
        try:
            er.configure(**wrong, shared=True)
        except (ValueError, TypeError, er.StartError) as error:
            print(type(error).__name__)
    assert "ELBOWROOM_SHARED" not in os.environ
    os.environ["ELBOWROOM_SHARED"] = "[nonsense"
    er.configure(memory="32MiB", swap=0, shared=True)
    try:
        er.zeros(5)
    except MemoryError as error:
        assert "must fit into swap" in str(error)
        print("MemoryError")
    """
    assert run_python(text).stdout.split() == ["ValueError", "StartError", "TypeError", "MemoryError"]


def test_a_budget_that_is_refused_is_not_told_to_other_processes(run_python):
    text = """
    import elbowroom as er, os, subprocess, sys
    try:
        er.configure(memory="64MiB", policy="lru", shared=True)
    except ValueError as error:
        print("refused", "kept" in str(error))
    print("ELBOWROOM_SHARED" in os.environ)
    subprocess.run([sys.executable, "-c", "import elbowroom"], check=True)
    er.configure(memory="64MiB", policy="kept", shared=True)
    print("ELBOWROOM_SHARED" in os.environ)
    """
    assert run_python(text).stdout == "refused True\nFalse\nTrue\n"
