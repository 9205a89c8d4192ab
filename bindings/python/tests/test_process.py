"""What concerns the whole process: start, signals, forks, ends, and where the kernel permits nothing."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from conftest import MIB, SWAP_DIR

START = f"""
    import elbowroom as er, numpy as np, os, sys, time, signal, gc
    er.configure(memory="256MiB", swap="1GiB", swap_dir={SWAP_DIR!r})
    """


def program(text, start=START):
    return textwrap.dedent(start) + textwrap.dedent(text)


def test_nothing_starts_before_the_first_mapping(run_python):
    text = """
    names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
    assert not any(name.startswith("elbowroom") for name in names) and er.stats() == {}
    print("good")
    """
    assert run_python(program(text)).stdout == "good\n"


def test_the_process_has_no_more_in_memory_than_its_budget(run_python, path):
    np.arange(64 * MIB, dtype="u4").tofile(path)
    text = """
    def most():
        lines = [line for line in open("/proc/self/status") if line.startswith("VmHWM:")]
        return int(lines[0].split()[1]) << 10

    before = most()
    a = er.memmap(sys.argv[1], dtype="u4", mode="r", memory="32MiB")
    assert int(a.sum(dtype="u8")) == sum(range(64 << 20))
    z = er.zeros(200 << 20, "u1", memory="32MiB", swap="512MiB")
    z[:] = 7
    assert z.sum(dtype="u8") == 7 * z.nbytes
    print((most() - before) >> 20)
    """
    # Two budgets of 32 MiB, threads, and what describes pages; the data is 456 MiB.
    assert int(run_python(program(text), path).stdout) < 64 + 40


def test_descriptors_of_the_manager_are_not_the_programs(run_python, path):
    np.arange(MIB, dtype="u4").tofile(path)
    text = """
    before = os.listdir("/proc/self/fd")
    a = er.memmap(sys.argv[1], dtype="u4", mode="r", memory="1MiB")
    b = er.zeros(8 << 20, "u1", memory="1MiB", swap="16MiB")
    b[:] = 7
    assert os.listdir("/proc/self/fd") == before
    os.closerange(3, 1000)
    assert a.sum(dtype="u8") == sum(range(1 << 20)) and (b == 7).all()
    print("good")
    """
    assert run_python(program(text), path).stdout == "good\n"


def test_stores_are_in_the_file_after_the_end(run_python, path):
    text = """
    a = er.memmap(sys.argv[1], dtype="u1", mode="w+", shape=10000)
    a[:] = 3
    keep = [a]
    keep.append(keep)
    """
    run_python(program(text), path)
    assert (np.fromfile(path, "u1") == 3).all()


def test_without_userfaultfd_the_error_says_what_to_do(run_python, path):
    np.zeros(MIB, "u1").tofile(path)
    # A filter denies the system call, and the device is not there.
    text = """
    import ctypes, errno, struct
    libc = ctypes.CDLL(None, use_errno=True)
    # If the number is that of userfaultfd, EPERM; openat of the device is denied by rights.
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, 323), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
    filters = b"".join(struct.pack("HBBI", *line) for line in code)
    kept = ctypes.create_string_buffer(filters)
    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
    assert libc.unshare(0x00020000) == 0
    assert libc.mount(b"/dev/null", b"/dev/userfaultfd", None, 4096, None) == 0 or not os.path.exists(
        "/dev/userfaultfd")
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    wanted = Program(len(code), ctypes.cast(kept, ctypes.c_void_p))
    assert libc.prctl(22, 2, ctypes.byref(wanted)) == 0, ctypes.get_errno()
    for make in (lambda: er.memmap(sys.argv[1], mode="r"), lambda: er.zeros(5), lambda: er.budget("1GiB")):
        try:
            make()
        except OSError as error:
            assert isinstance(error, er.StartError)
            print(error)
    """
    if os.geteuid() != 0:
        pytest.skip("needs root, to hide the device")
    said = run_python(program(text), path).stdout
    assert said.count("elbowroom cannot work here: userfaultfd is not permitted") == 3, said
    assert "vm.unprivileged_userfaultfd=1" in said


@pytest.mark.parametrize("operation", ["access", "flush"])
def test_ctrl_c_works_while_it_waits(path, operation):
    np.zeros(4 * MIB, "u1").tofile(path)
    start = f"""
    import elbowroom as er, numpy as np, os, sys, time, signal, gc
    er.configure(memory="256MiB", swap="1GiB", swap_dir={SWAP_DIR!r}, _inject="%s")
    """
    text = """
    a = er.memmap(sys.argv[1], mode=sys.argv[2])
    if a.mode == "r+":
        a[:100] = 1
    began = time.monotonic()
    print("ready", flush=True)
    try:
        if a.mode == "r+":
            a.flush()
        else:
            for nth in range(0, len(a), 4096):
                a[nth]
        print("done")
    except KeyboardInterrupt:
        print("interrupted", time.monotonic() - began, flush=True)
    os._exit(0)
    """
    inject = "write:slow=5s" if operation == "flush" else "read:slow=1s"
    arguments = [path, "r+" if operation == "flush" else "r"]
    command = [sys.executable, "-c", program(text, start % inject), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == "ready\n"
        time.sleep(0.3)
        running.send_signal(signal.SIGINT)
        said = running.stdout.read().split()
    assert said[0] == "interrupted" and float(said[1]) < 3, said


class TestFork:
    """The child has what its parent had, whatever it was."""

    TEXT = """
    import multiprocessing, warnings
    warnings.simplefilter("ignore")
    files = [sys.argv[1] + str(nth) for nth in range(3)]
    for name in files:
        np.arange(1 << 20, dtype="u4").tofile(name)
    r = er.memmap(files[0], dtype="u4", mode="r", memory="2MiB")
    w = er.memmap(files[1], dtype="u4", mode="r+", memory="2MiB")
    c = er.memmap(files[2], dtype="u4", mode="c", memory="2MiB")
    z = er.zeros(1 << 20, "u4", memory="1MiB", swap="64MiB")
    z[:] = np.arange(1 << 20)
    c[::2] = 5
    w[7] = 70

    def check():
        assert r.sum(dtype="u8") == sum(range(1 << 20))
        assert w[7] == 70 and w[8:].sum(dtype="u8") == sum(range(8, 1 << 20))
        assert (c[::2] == 5).all() and c[1::2].sum(dtype="u8") == sum(range(1, 1 << 20, 2))
        assert (z == np.arange(1 << 20)).all()

    def wait(child):
        pid, status = os.waitpid(child, 0)
        assert status == 0, status
    """

    def run(self, run_python, path, text, **arguments):
        return run_python(program(self.TEXT) + textwrap.dedent(text) + "\nprint('good')", path, **arguments)

    def test_parent_and_child_have_their_bytes(self, run_python, path):
        text = """
        check()
        child = os.fork()
        check()
        # Stores to memory and to copies are each process's own.
        z[5] = c[5] = 1000 + bool(child)
        assert z[5] == c[5] == 1000 + bool(child)
        z[5] = c[5] = 5
        check()
        if child == 0:
            os._exit(0)
        wait(child)
        check()
        """
        done = self.run(run_python, path, text)
        assert done.stdout == "good\n" and done.stderr == ""

    def test_stores_to_a_file_are_seen_by_both(self, run_python, path):
        text = """
        child = os.fork()
        if child == 0:
            w[100] = 1234
            while w[101] != 4321:
                time.sleep(0.001)
            os._exit(0)
        while w[100] != 1234:
            time.sleep(0.001)
        w[101] = 4321
        wait(child)
        """
        assert self.run(run_python, path, text).stdout == "good\n"

    def test_a_child_makes_arrays_of_its_own(self, run_python, path):
        text = """
        child = os.fork()
        if child == 0:
            with er.budget("2MiB", swap="64MiB") as g:
                mine = er.zeros(16 << 20, "u1")
                mine[:] = 1
                assert mine.sum() == 16 << 20 and g.stats()["usage_bytes"] <= 2 << 20
                again = er.memmap(files[0], dtype="u4", mode="r")
                assert again.sum(dtype="u8") == sum(range(1 << 20))
            check()
            grandchild = os.fork()
            check()
            assert (mine == 1).all()
            if grandchild == 0:
                os._exit(0)
            wait(grandchild)
            os._exit(0)
        wait(child)
        check()
        """
        assert self.run(run_python, path, text).stdout == "good\n"

    def test_forks_again_and_again_beside_threads(self, run_python, path):
        text = """
        import threading
        stop = []

        def work():
            while not stop:
                check()

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for nth in range(12):
            child = os.fork()
            if child == 0:
                check()
                os._exit(0)
            wait(child)
        stop.append(1)
        for thread in threads:
            thread.join()
        """
        assert self.run(run_python, path, text).stdout == "good\n"

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_multiprocessing(self, run_python, path, method):
        # A module of its own, since "spawn" imports it.
        text = f"""
        import multiprocessing, sys, warnings
        import numpy as np
        import elbowroom as er

        def total(array):
            return int(array.sum(dtype="u8"))

        if __name__ == "__main__":
            warnings.simplefilter("ignore")
            name = sys.argv[1]
            np.arange(1 << 20, dtype="u4").tofile(name)
            a = er.memmap(name, dtype="u4", mode="r", memory="2MiB")
            with multiprocessing.get_context({method!r}).Pool(2) as pool:
                parts = [a[start:: 4] for start in range(4)]
                assert sum(pool.map(total, parts)) == sum(range(1 << 20))
            print("good")
        """
        script = path + ".py"
        with open(script, "w") as file:
            file.write(textwrap.dedent(text))
        command = [sys.executable, script, path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.stdout == "good\n", done.stderr


def test_a_child_that_executes_another_program(run_python, path):
    np.zeros(MIB, "u1").tofile(path)
    text = """
    a = er.memmap(sys.argv[1], mode="r")
    import subprocess
    assert subprocess.check_output(["echo", "a"]) == b"a\\n"
    assert os.system("true") == 0
    assert subprocess.run(["true"], preexec_fn=lambda: None).returncode == 0
    print(a.sum())
    """
    assert run_python(program(text), path).stdout == "0\n"


def test_without_faults_of_system_calls(path, run_python):
    """Where no more is permitted than to serve faults of instructions."""
    program = """
        import sys
        import numpy as np
        import elbowroom as er

        er.configure(memory="64MiB", swap="512MiB", swap_dir=sys.argv[2])
        a = er.zeros((1 << 22, 6), "f4", memory="16MiB", swap="256MiB")
        assert er.stats()["served"] == "user-mode"
        a[:] = np.arange(6)
        a[::1000, 1] = 7
        np.save(sys.argv[1], a)
        b = np.load(sys.argv[1], mmap_mode="r")
        assert all((a[at : at + 99999] == b[at : at + 99999]).all() for at in range(0, len(a), 99999))
        a.T[:3].tofile(sys.argv[1])
        c = er.memmap(sys.argv[1], "f4", mode="r", shape=(3, 1 << 22), memory="16MiB")
        steps = [slice(at, at + 99999) for at in range(0, len(a), 99999)]
        assert all((a[step, :3] == c[:, step].T).all() for step in steps)
        c.tofile(sys.argv[1] + ".2")
        d = np.memmap(sys.argv[1] + ".2", "f4", mode="r", shape=c.shape)
        assert (c[1] == d[1]).all()
        assert type(a + 1) is np.ndarray and type(a.sum()) is np.float32
        print("right")
    """
    environment = os.environ | {"ELBOWROOM_FAULTS": "user-mode"}
    done = run_python(program, path + ".npy", os.path.dirname(path), env=environment)
    assert done.stdout == "right\n"
