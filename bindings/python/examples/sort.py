"""Sorting in an array that is larger than memory: by parts that fit, each of which is sorted in place."""

import numpy as np
from sizes import arguments, in_bytes, peak, scratch

import elbowroom as er


def sort(values, part):
    """Sorts an array, holding only about a `part` of its elements outside of it."""
    # Parts of values, by borders that a sample says, so that each part fits into memory.
    sample = np.sort(values[:: max(len(values) // 100_000, 1)])
    parts = -(-len(values) // part)
    borders = sample[np.linspace(0, len(sample) - 1, parts + 1).astype(int)[1:-1]]
    sizes = np.zeros(parts, int)
    for at in range(0, len(values), part):
        sizes += np.bincount(np.searchsorted(borders, values[at : at + part], "right"), minlength=parts)
    target = er.empty(len(values), values.dtype)
    ends = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    for at in range(0, len(values), part):
        piece = np.sort(values[at : at + part])
        cuts = np.concatenate([[0], np.searchsorted(piece, borders, "left"), [len(piece)]])
        for nth in range(parts):
            own = piece[cuts[nth] : cuts[nth + 1]]
            target[ends[nth] : ends[nth] + len(own)] = own
            ends[nth] += len(own)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    for begin, end in zip(starts[:-1], starts[1:]):
        target[begin:end].sort()
    return target


def main():
    args = arguments(__doc__, memory="1GiB", times=4)
    with scratch(args.dir) as directory:
        er.configure(swap_dir=directory)
        memory = in_bytes(args.memory)
        count = args.times * memory // 8
        before = peak()
        # Two arrays, in one budget: 8 times the memory.
        with er.budget(args.memory, swap=2 * args.times * memory):
            values = er.empty(count, "i8")
            # A permutation: multiples of an odd number, modulo a power of two that is large enough.
            for at in range(0, count, 1 << 20):
                numbers = np.arange(at, min(at + (1 << 20), count), dtype="i8")
                values[at : at + len(numbers)] = numbers * 0x9E3779B1 % (1 << 40)
            total = values.sum()
            ordered = sort(values, memory // 32)
        assert ordered.sum() == total
        assert all(
            (np.diff(ordered[at : at + (1 << 20) + 1]) >= 0).all() for at in range(0, count, 1 << 20)
        )
        print(f"{count:,} numbers, {ordered.nbytes >> 20} MiB, sorted in {args.memory}")
        # The budget, and a few parts.
        assert peak() - before < (memory >> 20) * 2 + 64, (before, peak())


if __name__ == "__main__":
    main()
