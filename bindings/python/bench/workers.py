"""Workers that share an array: how much memory all have together. Run by figures.py.

Arguments: the file, the budget in bytes, the start method, "arrays" or "kernel" or "none" (no array at all).
"""

import json
import multiprocessing
import os
import sys
import threading
import time

import numpy as np

import elbowroom as er
from ground import of_smaps, sum_of_file

WORKERS = 4


def part(array, path, size, nth):
    """One worker's part of the sum. A forked worker maps the file itself."""
    if path is not None and array is None:
        array = er.memmap(path, dtype="f8", mode="r")
    if array is None:
        time.sleep(1)
        return 0, True
    length = len(array) // WORKERS
    return float(array[nth * length : (nth + 1) * length].sum()), array.managed


def watch(processes, stop, peaks):
    while not stop.is_set():
        pids = [os.getpid(), *(process.pid for process in processes())]
        peaks.append(sum(of_smaps("Pss", pid) for pid in pids))
        stop.wait(0.02)


class Rows:
    """What a DataLoader reads: sums of a MiB each; without an array, nothing that takes memory."""

    def __init__(self, array):
        self.array = array

    def __len__(self):
        return 64 if self.array is None else len(self.array) // 131072

    def __getitem__(self, nth):
        if self.array is None:
            time.sleep(0.02)
            return 0.0
        return float(self.array[nth * 131072 : (nth + 1) * 131072].sum())


def loaded(array):
    """The sum by a DataLoader of torch, whose workers get the array by reference."""
    import torch

    rows = Rows(array)
    loader = torch.utils.data.DataLoader(
        rows, num_workers=WORKERS, batch_size=8, multiprocessing_context="spawn"
    )
    # As float64: a batch of float32 would round.
    return sum(float(value) for batch in loader for value in batch.double())


def main():
    path, budget, method, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    size, stop, peaks = os.path.getsize(path), threading.Event(), []
    er.configure(memory=budget, shared=True)
    watcher = threading.Thread(target=watch, args=(multiprocessing.active_children, stop, peaks))
    watcher.start()
    managed = True
    try:
        if method == "dataloader":
            total = loaded(er.memmap(path, dtype="f8", mode="r") if kind == "arrays" else None)
        else:
            # A spawned worker gets the array by reference. A forked one maps the file itself: files of its
            # parent's arrays would be the kernel's from then on.
            array = er.memmap(path, dtype="f8", mode="r") if (method, kind) == ("spawn", "arrays") else None
            name = path if kind == "arrays" else None
            with multiprocessing.get_context(method).Pool(WORKERS) as pool:
                parts = pool.starmap(
                    part, [(array, name, size, nth) for nth in range(WORKERS)], chunksize=1
                )
            total, managed = sum(value for value, _ in parts), all(ok for _, ok in parts)
    finally:
        stop.set()
        watcher.join()
    if kind == "arrays":
        assert total == sum_of_file(size), (total, sum_of_file(size))
    print(json.dumps({"pss_bytes": max(peaks), "managed": managed}))


if __name__ == "__main__":
    main()
