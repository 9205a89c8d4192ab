"""Budgets, and memory that is larger than they are."""

import gc
import pickle
import threading

import numpy as np
import pytest

import elbowroom as er
from conftest import MIB


def test_an_array_of_a_file_never_has_more_than_its_memory(path):
    np.arange(24 * MIB, dtype="u4").tofile(path)
    with er.budget("16MiB") as g:
        a = er.memmap(path, dtype="u4", mode="r")
        total = 0
        for start in range(0, len(a), 1 << 18):
            total += int(a[start : start + (1 << 18)].sum(dtype="u8"))
            assert g.stats()["usage_bytes"] <= 16 * MIB
    assert total == sum(range(24 * MIB))
    stats = g.stats()
    assert stats["peak_bytes"] <= 17 * MIB and stats["limit_bytes"] == 16 * MIB
    assert stats["usage_bytes"] > 8 * MIB and stats["file"]["stolen"] > 0 and stats["pgmajfault"] > 0


def test_zeros_larger_than_memory_keep_their_bytes():
    with er.budget("16MiB", swap="256MiB") as g:
        a = er.zeros((160, MIB), "u1")
        assert type(a) is np.ndarray and a.flags.writeable
        rng = np.random.default_rng(1)
        rows = [rng.integers(0, 256, 4096, "u1") for _ in range(len(a))]
        for row, bytes_ in zip(a, rows, strict=True):
            row.reshape(-1, 4096)[:] = bytes_
        stats = g.stats()
        assert stats["usage_bytes"] <= 16 * MIB and stats["swap_bytes"] > 100 * MIB
        assert stats["anonymous_bytes"] == a.nbytes
        for row, bytes_ in zip(a, rows, strict=True):
            assert (row.reshape(-1, 4096) == bytes_).all()
    del a, row
    gc.collect()
    stats = g.stats()
    assert (stats["anonymous_bytes"], stats["swap_bytes"]) == (0, 0)


def test_memory_that_does_not_fit_is_an_error_at_once():
    with er.budget("16MiB", swap="16MiB") as g:
        a = er.zeros(24 * MIB, "u1")
        with pytest.raises(MemoryError, match="swap="):
            er.zeros(16 * MIB, "u1")
        with er.budget("1GiB", swap="1GiB"), pytest.raises(MemoryError):
            er.zeros(16 * MIB, "u1")
        with pytest.raises(ValueError, match="less than"):
            g.limit = "2MiB"
        assert g.limit == 16 * MIB
        del a
        gc.collect()
        er.zeros(30 * MIB, "u1")
    with pytest.raises(MemoryError):
        er.zeros(1 << 50, "u1")
    with pytest.raises(MemoryError, match="room"):
        er.zeros(1, memory="16MiB", swap="1000TiB")


def test_arguments_of_zeros():
    a = er.zeros((3, 5), "f4", "F", memory="16MiB")
    assert a.flags.f_contiguous and a.dtype == "f4" and not a.any()
    assert er.empty(7).dtype == float and er.zeros(()).shape == () and er.zeros((0, 3)).shape == (0, 3)
    with pytest.raises(TypeError):
        er.zeros(3, object)
    with pytest.raises(ValueError):
        er.zeros((-1, 2))
    with pytest.raises(TypeError):
        er.zeros(1.5)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(a)), a)


def test_a_smaller_limit_reclaims_at_once(path):
    np.zeros(48 * MIB, "u1").tofile(path)
    with er.budget("64MiB") as g:
        a = er.memmap(path, mode="r")
        a.sum()
        assert g.stats()["usage_bytes"] > 40 * MIB
        g.limit = "8MiB"
        assert g.limit == 8 * MIB and g.stats()["usage_bytes"] <= 8 * MIB
        a.sum()
        assert g.stats()["usage_bytes"] <= 8 * MIB
        g.limit = 64 * MIB
        a.sum()
        assert g.stats()["usage_bytes"] > 40 * MIB
        with pytest.raises(ValueError):
            g.limit = 5
        with pytest.raises(ValueError):
            g.limit = "many"


def test_budgets_are_inside_each_other(path):
    np.zeros(48 * MIB, "u1").tofile(path)
    with er.budget("16MiB") as outer:
        with er.budget("64MiB") as inner:
            a = er.memmap(path, mode="r")
        a.sum()
        b = er.zeros(MIB, "u1")
    assert inner.stats()["usage_bytes"] <= outer.stats()["usage_bytes"] <= 16 * MIB
    assert outer.stats()["anonymous_bytes"] == MIB and inner.stats()["anonymous_bytes"] == 0
    del b
    c = er.zeros(MIB, "u1")
    gc.collect()
    assert outer.stats()["anonymous_bytes"] == 0
    assert er.default_budget().stats()["anonymous_bytes"] >= MIB
    del c


def test_a_thread_has_no_budget_of_another():
    seen = []
    with er.budget("16MiB") as g:
        thread = threading.Thread(target=lambda: seen.append(er.zeros(MIB, "u1")))
        thread.start()
        thread.join()
        assert g.stats()["anonymous_bytes"] == 0


def test_threads_enter_one_budget_at_a_time():
    g, inside, failed = er.budget("16MiB"), threading.Barrier(2, timeout=20), []

    def use(first):
        try:
            with er.budget("8MiB") as other:
                with g:
                    inside.wait()
                    if not first:
                        inside.wait()
                    with g:
                        a = er.zeros(MIB, "u1")
                    b = er.zeros(MIB, "u1")
                if first:
                    inside.wait()
                c = er.zeros(MIB, "u1")
                assert other.stats()["anonymous_bytes"] == MIB
            d = er.zeros(MIB, "u1")
            assert other.stats()["anonymous_bytes"] == MIB
            inside.wait()
            assert g.stats()["anonymous_bytes"] == 4 * MIB
            inside.wait()
            del a, b, c, d
        except BaseException as error:
            inside.abort()
            failed.append(error)

    threads = [threading.Thread(target=use, args=(first,)) for first in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_html():
    with er.budget("16MiB", swap=0) as g:
        a = er.zeros(MIB, "u1")
        a[:] = 1
    text = g._repr_html_()
    assert text.startswith("<table>") and "16.0 MiB" in text and "<meter" in text
    assert "budget of 16.0 MiB" in repr(g)


def test_all_budgets_can_be_made_again_and_again():
    for _ in range(3):
        budgets = [er.budget("1MiB") for _ in range(900)]
        del budgets
        gc.collect()


def test_too_many_budgets_are_an_error():
    with pytest.raises(RuntimeError, match="1,023"):
        budgets = [er.budget("1MiB") for _ in range(1100)]
        del budgets


def test_the_whole_process():
    stats = er.stats()
    assert stats["budget_bytes"] == 512 * MIB and stats["mmu"] in ("move", "copy")
    with pytest.raises(RuntimeError, match="before"):
        er.configure(memory="1GiB")


def test_sizes():
    from elbowroom._elbowroom import parse_size

    for text, size in [("2GiB", 2 << 30), ("2G", 2 << 30), ("1.5 MB", 3 << 19), (7, 7), (np.int64(9), 9)]:
        assert parse_size(text) == size
    for wrong in (1.0, True, None, b"1M"):
        with pytest.raises(TypeError):
            parse_size(wrong)
    for wrong in ("", "x", "-1", 1 << 64, -1):
        with pytest.raises(ValueError):
            parse_size(wrong)


def test_budgets_promise_together_no_more_than_there_is(run_python):
    run_python(
        """
        import elbowroom as er
        er.configure(memory="64MiB", swap="256MiB", swap_dir="/var/tmp")
        one, other = er.budget("32MiB", swap="256MiB"), er.budget("32MiB", swap="256MiB")
        with one:
            first = er.zeros(200 << 20, "u1")
        with other:
            try:
                er.zeros(200 << 20, "u1")
            except MemoryError as error:
                assert "together" in str(error), error
            else:
                raise AssertionError("more is promised than there is")
            er.zeros(100 << 20, "u1")
        del first
        with other:
            er.zeros(200 << 20, "u1")
        """
    )


def test_a_policy_that_is_given_stays(run_python, tmp_path):
    path = str(tmp_path / "passes.bin")
    np.arange(64 * MIB, dtype="u4").tofile(path)
    text = """
    import elbowroom as er, os, sys
    try:
        er.configure(policy="lru")
    except ValueError as error:
        assert "'lru'" in str(error).replace('"', "'") and "auto, even, kept, long" in str(error), error
    else:
        raise AssertionError("there is a policy lru")
    er.configure(memory="80MiB", swap=0, policy=sys.argv[2])
    a = er.memmap(sys.argv[1], "u4", "r", memory="64MiB")
    read = []
    for _ in range(8):
        assert int(a[::1024].sum()) == sum(range(0, a.size, 1024))
        read.append(er.stats()["read_bytes"])
    print(er.stats()["policy_changes"], read[-1] - read[2])
    """
    found = {name: run_python(text, path, name).stdout.split() for name in ("auto", "even", "kept")}
    changes, read = ({name: int(line[at]) for name, line in found.items()} for at in (0, 1))
    assert changes["even"] == changes["kept"] == 0 and changes["auto"] >= 1, found
    # Passes over four times the memory: what has come in first is there in each of them.
    assert read["kept"] < 0.95 * read["even"], found
