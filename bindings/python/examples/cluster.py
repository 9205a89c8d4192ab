"""Dask on one machine: 4 workers on one budget, over an array that is larger than it."""

import dask
import dask.array
import numpy as np
from dask.distributed import Client, LocalCluster
from sizes import arguments, in_bytes, scratch

import elbowroom as er


def block(path, shape, rows):
    """A part of the array. It is made by a worker, in that worker's share of the budget."""
    return er.memmap(path, dtype="f8", mode="r", shape=shape)[rows]


def main():
    args = arguments(__doc__, memory="1GiB", times=4)
    # The workers that the cluster starts have this memory together with this process, and Dask's own limits
    # are off: what is managed is no leak.
    er.configure(memory=args.memory, swap=0, swap_dir=args.dir, shared=True)
    with scratch(args.dir) as directory:
        path, width = directory / "array.bin", 1024
        height = args.times * in_bytes(args.memory) // (8 * width)
        with open(path, "wb") as file:
            for at in range(0, height, 1024):
                rows = np.arange(at, min(at + 1024, height), dtype="f8")
                file.write(np.repeat(rows, width).tobytes())
        step = max(height // 32, 1)
        parts = [
            dask.array.from_delayed(
                dask.delayed(block)(path, (height, width), slice(at, min(at + step, height))),
                (min(step, height - at), width),
                "f8",
            )
            for at in range(0, height, step)
        ]
        array = dask.array.concatenate(parts)
        dask.config.set({"distributed.admin.tick.limit": "1m"})
        with (
            LocalCluster(
                n_workers=4, threads_per_worker=1, memory_limit=None, dashboard_address=None
            ) as cluster,
            Client(cluster) as client,
        ):
            mean, most = dask.compute(array.mean(), array.max(axis=1).sum())
            stats = client.run(lambda: er.stats())
        print(f"{height:,} x {width}, mean {mean:,.1f}, by {len(stats)} workers in {args.memory} together")
        assert mean == (height - 1) / 2 and most == height * (height - 1) / 2
        assert len(stats) == 4 and all(
            one["budget_bytes"] == in_bytes(args.memory) for one in stats.values()
        )
        assert sum(one["resident_bytes"] for one in stats.values()) < in_bytes(args.memory) + (16 << 20)


if __name__ == "__main__":
    main()
