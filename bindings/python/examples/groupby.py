"""A group-by of pandas over columns that are larger than memory, without a copy of them."""

import numpy as np
import pandas as pd
from sizes import arguments, in_bytes, peak, scratch

import elbowroom as er

SHOPS = 1000


def main():
    args = arguments(__doc__, memory="1GiB", times=4)
    with scratch(args.dir) as directory:
        count = args.times * in_bytes(args.memory) // 12
        # Row n is a sale of n % 7 + 1 in the shop n % SHOPS.
        for name, kind, of in [("shop", "i4", lambda n: n % SHOPS), ("price", "f8", lambda n: n % 7 + 1)]:
            with open(directory / name, "wb") as file:
                for at in range(0, count, 1 << 20):
                    file.write(of(np.arange(at, min(at + (1 << 20), count))).astype(kind).tobytes())
        before = peak()
        with er.budget(args.memory):
            shop = er.memmap(directory / "shop", dtype="i4", mode="r")
            price = er.memmap(directory / "price", dtype="f8", mode="r")
        sales = pd.DataFrame({"shop": shop, "price": price}, copy=False)
        # Blocks of rows are views; what pandas makes for a block is small.
        parts = [
            sales.iloc[at : at + (1 << 20)].groupby("shop")["price"].agg(["sum", "count"])
            for at in range(0, count, 1 << 20)
        ]
        found = pd.concat(parts).groupby(level=0).sum()
        found["mean"] = found["sum"] / found["count"]
        print(
            f"{count:,} rows, {(shop.nbytes + price.nbytes) >> 20} MiB, in {args.memory}\n{found.head(3)}"
        )
        assert found["count"].sum() == count and len(found) == SHOPS
        whole, rest = divmod(count, 7)
        assert found["sum"].sum() == whole * 28 + rest * (rest + 1) // 2
        assert np.shares_memory(sales["price"].to_numpy(), price)
        # The budget, and the results of the blocks.
        assert peak() - before < (in_bytes(args.memory) >> 20) + 200, (before, peak())


if __name__ == "__main__":
    main()
