"""Statistics of the columns of a file that is 10 times as large as the memory."""

import numpy as np
from sizes import arguments, in_bytes, peak, scratch

import elbowroom as er

WIDTH = 64


def main():
    args = arguments(__doc__)
    with scratch(args.dir) as directory:
        path = directory / "table.bin"
        height = args.times * in_bytes(args.memory) // (WIDTH * 8)
        # Column c has the numbers c, c + 1, ... c + 99 in turn.
        block = (np.arange(100)[:, None] + np.arange(WIDTH)).astype("f8")
        height -= height % 100
        many = np.tile(block, (100, 1))
        with open(path, "wb") as file:
            for at in range(0, height, len(many)):
                file.write(many[: height - at].tobytes())
        before = peak()
        table = er.memmap(path, dtype="f8", mode="r", shape=(height, WIDTH), memory=args.memory)
        mean, least, most = table.mean(axis=0), table.min(axis=0), table.max(axis=0)
        # By blocks: table - mean would be an array as large as the file.
        blocks = range(0, height, 100_000)
        variance = sum(((table[at : at + 100_000] - mean) ** 2).sum(axis=0) for at in blocks) / height
        print(f"{height:,} x {WIDTH}, {table.nbytes >> 20} MiB: mean {mean[0]:.2f} .. {mean[-1]:.2f}")
        columns = np.arange(WIDTH)
        assert np.allclose(mean, columns + 49.5) and np.allclose(variance, 833.25)
        assert (least == columns).all() and (most == columns + 99).all()
        # The budget, two blocks of the difference, and what describes pages.
        assert peak() - before < (in_bytes(args.memory) >> 20) + 3 * 50 + 32, (before, peak())


if __name__ == "__main__":
    main()
