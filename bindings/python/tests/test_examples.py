"""The examples of docs/python.md, and the measuring programs, in a short form. Each checks its results."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

import elbowroom as er
from conftest import SWAP_DIR

HERE = pathlib.Path(__file__).resolve().parent.parent
DEBIANS = "/usr/bin/python3"

EXAMPLES = {
    "columns": ["--memory", "16MiB"],
    "sort": ["--memory", "16MiB", "--times", "4"],
    "groupby": ["--memory", "16MiB"],
    "cluster": ["--memory", "32MiB", "--times", "3"],
    "train": ["--memory", "32MiB", "--times", "2"],
}
NEEDS = {"groupby": "pandas", "cluster": "distributed", "train": "torch"}


def run(python, *words, timeout=120):
    """Runs a program with the package that is tested, also in an interpreter that has not installed it."""
    environment = dict(os.environ)
    if python != sys.executable:
        environment["PYTHONPATH"] = environment["ELBOWROOM_PACKAGES"]
    command = [python, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)


def interpreter_with(module):
    """This interpreter or Debian's, if one has a module."""
    if module is None or importlib.util.find_spec(module):
        return sys.executable
    look = [DEBIANS, "-c", f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"]
    if os.path.exists(DEBIANS) and subprocess.run(look).returncode == 0:
        return DEBIANS
    return None


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A directory with the package alone, for interpreters that have a numpy of their own."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "elbowroom").symlink_to(pathlib.Path(er.__file__).parent)
    monkeypatch.setenv("ELBOWROOM_PACKAGES", str(tmp_path / "packages"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name, packages):
    python = interpreter_with(NEEDS.get(name))
    if python is None:
        pytest.skip(f"no {NEEDS[name]} is installed (Debian: python3-{NEEDS[name]})")
    done = run(python, HERE / "examples" / f"{name}.py", *EXAMPLES[name], "--dir", SWAP_DIR)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()


def test_the_figures_are_measured():
    only = [word for name in ("gather", "resident", "unpickling") for word in ("--only", name)]
    done = run(sys.executable, HERE / "bench", "--short", "--json", "-", "--dir", SWAP_DIR, *only)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert {row["figure"] for row in rows} == {"gather", "resident", "unpickling"}
    # These two do not depend on what else the machine does.
    promised = [row for row in rows if row["figure"] == "resident"]
    assert promised and all(row["good"] for row in promised), promised
    assert done.stderr.count("\n") == len(rows)
