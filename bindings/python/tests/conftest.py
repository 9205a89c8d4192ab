"""One small manager for all tests of this process; its swap file is where scratch files are."""

import ctypes
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

import elbowroom as er

MIB = 1 << 20

SWAP_DIR = os.environ.get("ELBOWROOM_TEST_DIR", "/var/tmp")
er.configure(memory="512MiB", swap="4GiB", swap_dir=SWAP_DIR)


@pytest.fixture
def path(tmp_path):
    """A name for a file, as text."""
    return str(tmp_path / "file.bin")


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    """The path of a library that is made of native.c."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    library = str(tmp_path_factory.mktemp("native") / "native.so")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
    return library


@pytest.fixture
def run_python():
    """Runs a program in a process of its own; returns what it has printed."""

    def run(program, *args, status=0, **settings):
        settings = {"capture_output": True, "text": True, "timeout": 120} | settings
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), *args], **settings)
        assert done.returncode == status, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
