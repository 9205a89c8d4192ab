"""Accesses whose bytes cannot be had are exceptions: the file was cut, or its disk fails."""

import asyncio
import concurrent.futures
import ctypes
import errno
import multiprocessing.pool
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import elbowroom as er
from conftest import MIB, SWAP_DIR

COUNT = MIB
SUM = sum(range(COUNT))


def whole(path):
    """Makes the file whole again, without making it shorter meanwhile."""
    with open(path, "r+b" if os.path.exists(path) else "wb") as file:
        file.write(np.arange(COUNT, dtype="u4").tobytes())


def until(condition, seconds=10):
    """Waits for what the manager sees of files within a second."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not become true"
        time.sleep(0.02)


def is_right(array):
    try:
        return array.sum(dtype="u8") == SUM
    except er.AccessError:
        return False


@pytest.fixture
def holder(path):
    """Another process that has the file open, so that the kernel maps it."""
    whole(path)
    other = subprocess.Popen(
        [sys.executable, "-c", "import sys; f = open(sys.argv[1], 'r+b'); print(1, flush=1); input()", path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    other.stdout.readline()
    yield
    other.communicate(b"\n")


KINDS = [("r", "trust"), ("r+", "trust"), ("c", "trust"), ("r+", "auto")]


@pytest.fixture(params=KINDS, ids=lambda kind: "-".join(kind))
def array(request, path, holder):
    """An array of a file, managed or (the last kind) mapped by the kernel."""
    mode, sharing = request.param
    if sharing == "auto":
        with pytest.warns(er.UnmanagedWarning):
            array = er.memmap(path, dtype="u4", mode=mode, memory="4MiB")
    else:
        array = er.memmap(path, dtype="u4", mode=mode, memory="4MiB", sharing=sharing)
    assert array.managed == (sharing == "trust")
    # Nothing is read: what the manager has in memory, it gives for up to a second after the file was cut.
    yield array


def check(error, path, first, cut):
    """What the exception says."""
    assert error.errno == errno.ENXIO and error.filename == path
    assert cut <= error.offset and first <= error.offset < COUNT * 4
    assert f"cut to {cut} bytes" in str(error)


def test_a_file_that_is_cut_in_an_expression(array, path):
    cut = 2 * MIB + 4096
    os.truncate(path, cut)
    b = np.ones(COUNT - 1, "u4")
    product = None
    with pytest.raises(er.AccessError) as raised:
        # The operator itself raises: nothing has its result.
        product = array[1:] * b
    assert product is None
    check(raised.value, path, 0, cut)
    with pytest.raises(er.AccessError):
        b += array[1:]
    with pytest.raises(er.AccessError):
        array.max()
    # What is there can be used, what is not raises again and again.
    assert array[: MIB // 2].sum(dtype="u8") == sum(range(MIB // 2))
    for _ in range(3):
        with pytest.raises(er.AccessError):
            array[-1]
    whole(path)
    until(lambda: is_right(array))


HOLDS_THE_LOCK = {
    "bytes": bytes,
    "tolist": lambda m: m.tolist(),
    "sorted": sorted,
    "join": lambda m: b"".join([m]),
    "search": lambda m: re.search(b"no such bytes", m),
    "array": lambda m: np.array(m, copy=True),
    "item": lambda m: m.__getitem__(MIB),
    "copy": lambda m: m[::3].tobytes(),
    "max": max,
    "slot": lambda m: bytearray(4 * MIB).__setitem__(slice(None), m),
}


@pytest.mark.parametrize("name", HOLDS_THE_LOCK)
def test_c_code_that_holds_the_interpreters_lock(path, name):
    """Such code is called: the exception comes with the end of the call."""
    whole(path)
    mapping = er.open(path, memory="16MiB")
    os.truncate(path, 0)
    use = HOLDS_THE_LOCK[name]

    for _ in range(3):
        result = None
        with memoryview(mapping) as view, pytest.raises(er.AccessError) as raised:
            result = use(view[-4096 * 3 :] if name in ("sorted", "max") else view)
        assert result is None and raised.value.filename == path
    mapping.close()


def test_zeros_are_seen_for_moments_only(array, path):
    os.truncate(path, MIB)
    for _ in range(20):
        with pytest.raises(er.AccessError):
            array[-5]
        time.sleep(0.004)
        # Without an exception of the access before.
        with pytest.raises(er.AccessError):
            array[-5]
    assert len(open("/proc/self/maps").readlines()) < 3000


def test_exceptions_inside_of_exceptions(path):
    whole(path)
    a = er.memmap(path, dtype="u4", mode="r", memory="16MiB")
    os.truncate(path, 0)
    seen = []
    try:
        try:
            a.sum()
        except er.AccessError as first:
            seen.append(first)
            a.max()
        finally:
            seen.append(None)
    except OSError as second:
        assert second.__context__ is seen[0] and seen[1] is None
        assert isinstance(second, er.AccessError)
        again = pickle.loads(pickle.dumps(second))
        assert type(again) is er.AccessError and again.offset == second.offset
        assert (again.errno, again.filename) == (second.errno, path)
    else:
        pytest.fail("nothing was raised")
    # Made by others it has what it was given, and no note.
    assert er.AccessError(5, "text").errno == 5 and er.AccessError().offset is None


def test_a_store_is_an_exception_too_and_is_lost(array, path):
    if not array.flags.writeable:
        pytest.skip("it cannot be stored to")
    os.truncate(path, 0)
    with pytest.raises(er.AccessError):
        array[5000] = 7
    with pytest.raises(er.AccessError):
        array += 1
    whole(path)
    until(lambda: is_right(array))


def test_a_system_call_has_its_own_error(array, path):
    os.truncate(path, 0)
    with open(path + ".copy", "wb", buffering=0) as copy:
        with pytest.raises(OSError) as raised:
            copy.write(memoryview(array)[-1024:])
        assert raised.value.errno == errno.EFAULT and not isinstance(raised.value, er.AccessError)


def test_a_thread_that_the_interpreter_does_not_know(path):
    """The thread that waits for it gets the exception, and one that waits for a lock does not."""
    whole(path)
    mapping = er.open(path, memory="16MiB")
    libc = ctypes.CDLL(None, use_errno=True)
    stop, told = threading.Event(), []

    def waiter():
        try:
            stop.wait()
        except OSError as error:
            told.append(error)

    waits = threading.Thread(target=waiter)
    waits.start()

    def run():
        thread = ctypes.c_ulong()
        start = ctypes.cast(libc.strlen, ctypes.c_void_p)
        address = ctypes.c_void_p(mapping.address + 2 * MIB)
        assert libc.pthread_create(ctypes.byref(thread), None, start, address) == 0
        libc.pthread_join(thread, None)

    os.truncate(path, 0)
    with pytest.raises(er.AccessError) as raised:
        run()
    assert raised.value.filename == path and raised.value.offset == 2 * MIB
    whole(path)
    run()
    stop.set()
    waits.join()
    assert told == []


def in_pool(call, *args):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *args).exception()


def in_pool_of_multiprocessing(call, *args):
    errors = []
    with multiprocessing.pool.ThreadPool(2) as pool:
        pool.apply_async(call, args, error_callback=errors.append).wait()
    return errors[0]


def in_starmap_of_multiprocessing(call, *args):
    errors = []
    with multiprocessing.pool.ThreadPool(2) as pool:
        pool.starmap_async(call, [args], error_callback=errors.append).wait()
    return errors[0]


def in_to_thread(call, *args):
    async def body():
        return await asyncio.gather(asyncio.to_thread(call, *args), return_exceptions=True)

    return asyncio.run(body())[0]


def in_thread(call, *args):
    errors = []
    hook, threading.excepthook = threading.excepthook, lambda args: errors.append(args.exc_value)
    try:
        thread = threading.Thread(target=call, args=args)
        thread.start()
        thread.join()
    finally:
        threading.excepthook = hook
    return errors[0]


POOLS = [in_pool, in_pool_of_multiprocessing, in_starmap_of_multiprocessing, in_to_thread, in_thread]


@pytest.mark.parametrize("run", POOLS, ids=lambda run: run.__name__)
def test_a_pools_thread_that_runs_a_function_of_c(path, native, run):
    """Its innermost Python function is of the standard library, and yet it computes, as idle ones do not."""
    whole(path)
    mapping = er.open(path, memory="16MiB")
    sum_in_a_thread = ctypes.CDLL(native).sum_in_a_thread
    sum_in_a_thread.argtypes = ctypes.c_void_p, ctypes.c_size_t
    os.truncate(path, 0)
    error = run(sum_in_a_thread, mapping.address, 1)
    assert type(error) is er.AccessError and error.filename == path


def test_a_caller_that_holds_the_interpreters_lock_waits_long_once(path, native):
    """While a thread that the interpreter does not know accesses one page after the other for that caller."""
    whole(path)
    mapping = er.open(path, memory="16MiB")
    sum_in_a_thread = ctypes.PyDLL(native).sum_in_a_thread
    sum_in_a_thread.argtypes = ctypes.c_void_p, ctypes.c_size_t
    os.truncate(path, 0)
    begun = time.monotonic()
    for _ in range(3):
        with pytest.raises(er.AccessError) as raised:
            sum_in_a_thread(mapping.address, 8)
            # The interpreter's lock is free for the thread that tells this one.
            until(lambda: False)
        assert raised.value.filename == path
    assert time.monotonic() - begun < 18


class TestProcess:
    """In processes of their own."""

    START = f"""
        import elbowroom as er, numpy as np, os, sys, time, signal, threading, warnings
        warnings.simplefilter("ignore")
        er.configure(memory="256MiB", swap="1GiB", swap_dir={SWAP_DIR!r}, _inject=%r)
        COUNT = 1 << 20
        SUM = sum(range(COUNT))
        def whole(path):
            with open(path, "r+b" if os.path.exists(path) else "wb") as file:
                file.write(np.arange(COUNT, dtype="u4").tobytes())
        def until(condition):
            end = time.monotonic() + 20
            while not condition():
                assert time.monotonic() < end
                time.sleep(0.01)
        def is_right(array):
            try:
                return array.sum(dtype="u8") == SUM
            except er.AccessError:
                return False
    """

    def run(self, run_python, text, *args, inject=None, **settings):
        return run_python(textwrap.dedent(self.START % inject) + textwrap.dedent(text), *args, **settings)

    def test_a_hundred_in_four_threads(self, run_python, path):
        """Cut files in three threads, a disk that fails in the fourth; each read afterwards is right."""
        text = """
        counts = [0] * 4
        failed = []

        def cut(nth):
            b, arrays = np.ones(COUNT, "u4"), []
            for turn in range(25):
                # A new file: of one that it has in memory, the manager sees within a second that it was cut.
                path = f"{sys.argv[1]}.{nth}.{turn}"
                whole(path)
                a = er.memmap(path, dtype="u4", mode=["r", "c", "r+"][nth], memory="4MiB", sharing="trust")
                assert a[0] == 0
                os.truncate(path, 1 << 20)
                product = None
                try:
                    while True:
                        product = None
                        product = (a[1:] * b[1:]).sum()
                except er.AccessError as error:
                    assert error.filename == path and error.errno == 6 and error.offset >= 1 << 20
                    assert product is None
                    counts[nth] += 1
                whole(path)
                arrays.append((path, a))
            for path, a in arrays:
                until(lambda a=a: is_right(a))
                os.remove(path)

        def fails(nth):
            path = sys.argv[1] + "broken"
            whole(path)
            a = er.memmap(path, dtype="u4", mode="r", memory="2MiB")
            while counts[nth] < 25:
                try:
                    assert a.sum(dtype="u8") == SUM
                except er.AccessError as error:
                    assert error.filename == path and error.errno == 5, error
                    assert 2 << 20 <= error.offset < (2 << 20) + 4096, error.offset
                    counts[nth] += 1

        def guarded(body, nth):
            try:
                body(nth)
            except BaseException as error:
                failed.append(repr(error))
                raise

        bodies = [cut, cut, cut, fails]
        threads = [threading.Thread(target=guarded, args=(body, nth)) for nth, body in enumerate(bodies)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(counts, failed)
        """
        inject = f"read:eio:file=broken:from={2 * MIB}:to={2 * MIB + 4096}:every=2"
        done = self.run(run_python, text, path, inject=inject)
        assert done.stdout == "[25, 25, 25, 25] []\n", done.stderr

    def test_an_exception_inside_of_an_import_that_another_one_would_make(self, run_python, path):
        """No code of Python runs between the exception's class and its note, as an import would have it."""
        text = """
        whole(sys.argv[1])
        a = er.memmap(sys.argv[1], dtype="u4", mode="r", memory="4MiB")
        os.truncate(sys.argv[1], 0)

        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "pathlib":
                    a.max()

        sys.modules.pop("pathlib", None)
        sys.meta_path.insert(0, Finder())
        try:
            a.sum()
        except er.AccessError as error:
            print(error.filename == sys.argv[1], "pathlib" in sys.modules)
        """
        done = self.run(run_python, text, path, timeout=60)
        assert done.stdout == "True False\n"

    def test_a_program_with_a_sub_interpreter(self, run_python, path):
        """A thread that computes without the interpreter's lock is not taken for one that has it."""
        text = """
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        whole(sys.argv[1])
        a = er.memmap(sys.argv[1], dtype="u4", mode="r", memory="4MiB")
        os.truncate(sys.argv[1], 0)
        interpreters.create()
        for _ in range(20):
            try:
                np.ndarray.sum(a)
            except er.AccessError as error:
                assert error.filename == sys.argv[1]
            else:
                sys.exit("no exception")
        print("good")
        """
        assert self.run(run_python, text, path).stdout == "good\n"

    def test_memory_whose_swap_file_fails(self, run_python):
        text = """
        z = er.zeros(8 << 20, "u1", memory="4MiB", swap="64MiB")
        z[:] = np.arange(8 << 20, dtype="u4").view("u1")[: 8 << 20]
        seen = 0
        while seen < 5:
            try:
                z.sum(dtype="u8")
            except er.AccessError as error:
                assert error.errno == 5 and error.filename is None and "swap" in str(error)
                seen += 1
        print("good")
        """
        done = self.run(run_python, text, inject="read:eio:every=2")
        assert done.stdout == "good\n"

    FOREIGN = """
        import mmap
        whole(sys.argv[1])
        a = er.memmap(sys.argv[1], dtype="u4", mode="r", memory="4MiB")
        with open(sys.argv[1] + ".plain", "w+b") as file:
            file.truncate(1 << 20)
            plain = mmap.mmap(file.fileno(), 1 << 20)
            os.truncate(sys.argv[1], 0)
            until(lambda: not is_right(a))
            print("alive", flush=True)
            file.truncate(0)
            plain[4096]
        print("not reached")
        """

    @pytest.mark.parametrize("first", ["none", "faulthandler", "later", "python"])
    def test_the_signal_of_a_foreign_mapping_ends_the_process(self, run_python, path, first):
        text = textwrap.dedent(self.FOREIGN)
        if first == "faulthandler":
            text = "import faulthandler; faulthandler.enable()\n" + text
        elif first == "later":
            text = text.replace("print(", "import faulthandler; faulthandler.enable()\n    print(", 1)
        elif first == "python":
            text = "signal.signal(signal.SIGBUS, signal.SIG_IGN)\n" + text
        done = self.run(run_python, text, path, status=-signal.SIGBUS)
        assert done.stdout == "alive\n"
        assert ("Fatal Python error: Bus error" in done.stderr) == (first in ("faulthandler", "later"))

    @pytest.mark.parametrize("once", [False, True])
    def test_a_handler_that_jumps_gets_each_signal_of_a_foreign_mapping(self, run_python, path, native, once):
        """With the mask that it was registered with; once if it was registered so."""
        text = """
        import ctypes, mmap
        native = ctypes.CDLL(sys.argv[2])
        native.load.argtypes = [ctypes.c_void_p]
        SA_RESETHAND = ctypes.c_int(0x80000000).value
        assert native.register_jump(signal.SIGBUS, SA_RESETHAND if sys.argv[3] == "True" else 0) == 0
        whole(sys.argv[1])
        a = er.memmap(sys.argv[1], dtype="u4", mode="r", memory="4MiB")
        with open(sys.argv[1] + ".plain", "w+b") as file:
            file.truncate(1 << 20)
            plain = mmap.mmap(file.fileno(), 1 << 20)
            address = ctypes.addressof(ctypes.c_char.from_buffer(plain))
            file.truncate(0)
            os.truncate(sys.argv[1], 0)
            for _ in range(3):
                print(native.load(address), flush=True)
                until(lambda: not is_right(a))
        """
        status = -signal.SIGBUS if once else 0
        done = self.run(run_python, text, path, native, str(once), status=status)
        assert done.stdout == ("-1\n" if once else "-1\n-1\n-1\n")

    @pytest.mark.parametrize("faulthandler", [False, True])
    def test_a_signal_that_is_sent_ends_the_process(self, run_python, path, faulthandler):
        enable = "import faulthandler; faulthandler.enable()" if faulthandler else ""
        text = f"""
        {enable}
        whole(sys.argv[1])
        a = er.memmap(sys.argv[1], dtype="u4", mode="r", memory="4MiB")
        signal.raise_signal(signal.SIGBUS)
        """
        done = self.run(run_python, text, path, status=-signal.SIGBUS)
        assert ("Fatal Python error: Bus error" in done.stderr) == faulthandler

    def test_after_a_fork_in_both(self, run_python, path):
        text = """
        path = sys.argv[1]
        whole(path)
        a = er.memmap(path, dtype="u4", mode="r", memory="4MiB")
        os.truncate(path, 1 << 20)
        until(lambda: not is_right(a))
        stop = []

        def faults():
            while not stop:
                try:
                    a.sum()
                except er.AccessError:
                    pass

        thread = threading.Thread(target=faults, daemon=True)
        thread.start()
        for nth in range(5):
            child = os.fork()
            for turn in range(3):
                try:
                    a[1:].sum()
                    sys.exit("no exception")
                except er.AccessError as error:
                    assert error.filename == path
            if child == 0:
                assert a[:100].sum() == sum(range(100))
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.append(1)
        thread.join()
        whole(path)
        until(lambda: is_right(a))
        print("good")
        """
        assert self.run(run_python, text, path).stdout == "good\n"

    def test_a_child_that_has_no_manager_gets_the_signal_at_once(self, run_python, path, holder):
        text = """
        import resource
        path = sys.argv[1]
        # The kernel maps it, so that the child can access it.
        a = er.memmap(path, dtype="u4", mode="r+", memory="4MiB")
        assert not a.managed
        managed = er.zeros(1000)
        os.truncate(path, 0)
        # The thread that forks cannot open the swap file again.
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        child = os.fork()
        if child == 0:
            a[1000]
            os._exit(0)
        begun = time.monotonic()
        status = os.waitpid(child, 0)[1]
        print(os.WTERMSIG(status) == signal.SIGBUS, time.monotonic() - begun < 15)
        """
        done = self.run(run_python, text, path)
        assert done.stdout == "True True\n" and "cannot use the managed memory" in done.stderr

    def test_the_interpreter_ends_while_a_thread_gets_exceptions(self, run_python, path):
        text = """
        path = sys.argv[1]
        whole(path)
        a = er.memmap(path, dtype="u4", mode="r", memory="4MiB")
        os.truncate(path, 0)

        def faults():
            while True:
                try:
                    np.add.reduce(a)
                except er.AccessError:
                    pass

        for _ in range(3):
            threading.Thread(target=faults, daemon=True).start()
        time.sleep(0.3)
        print("good")
        """
        assert self.run(run_python, text, path).stdout == "good\n"
