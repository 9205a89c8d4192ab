"""What NumPy can do with an array: each pattern of indexing, as a function of a 2-D array of float64."""

import numpy as np


def patterns(shape):
    """(name, function) for arrays of this shape. A function touches at least a few thousand elements."""
    rng = np.random.default_rng(5)
    height, width = shape
    few = rng.integers(0, height, 2000)
    columns = rng.integers(0, width, 2000)
    mask = rng.random(height) < 0.02
    points = list(zip(few.tolist(), columns.tolist()))

    def scalars(a):
        return sum(a[y, x] for y, x in points)

    def items(a):
        return sum(a.item(y, x) for y, x in points)

    def rows_in_turn(a):
        return sum(a[y][0] for y in range(0, height, 16))

    def iterated(a):
        return sum(row[-1] for row in a[:2000])

    return [
        ("sum of all", lambda a: a.sum()),
        ("sum by columns", lambda a: a.sum(axis=0)),
        ("sum by rows", lambda a: a.sum(axis=1)),
        ("copy of all", lambda a: a.copy()),
        ("a[y, x], 2000 elements in turn", scalars),
        ("a.item(y, x), 2000 elements in turn", items),
        ("a[y], rows in turn", rows_in_turn),
        ("for row in a", iterated),
        ("a[i:j]", lambda a: a[height // 4 : height // 2].sum()),
        ("a[::k]", lambda a: a[::7].sum()),
        ("a[::-1]", lambda a: a[::-1].sum()),
        ("a[:, i:j]", lambda a: a[:, 3:9].sum()),
        ("a[:, ::k]", lambda a: a[:, ::5].sum()),
        ("a[..., i]", lambda a: a[..., 7].sum()),
        ("a[None]", lambda a: a[None, ::3].sum()),
        ("a[rows]", lambda a: a[few]),
        ("a[rows, columns]", lambda a: a[few, columns]),
        ("a[rows, i:j]", lambda a: a[few, 2:30]),
        ("a[:, columns]", lambda a: a[: height // 16, columns[:64]]),
        ("a[np.ix_()]", lambda a: a[np.ix_(few[:500], columns[:20])]),
        ("a[mask]", lambda a: a[mask]),
        ("a[a > limit]", lambda a: a[: height // 8][a[: height // 8] > 990]),
        ("a.take()", lambda a: a.take(few, axis=0)),
        ("a.compress()", lambda a: a.compress(mask, axis=0)),
        ("a.T", lambda a: a.T[5].sum()),
        ("a.ravel()", lambda a: a.ravel()[::11].sum()),
        ("a.reshape()", lambda a: a.reshape(-1, 2 * width)[:, 0].sum()),
        ("a.diagonal()", lambda a: a.diagonal().sum()),
        ("a.flat", lambda a: a.flat[:50_000].sum()),
        ("argmax", lambda a: a.argmax()),
        ("a + b", lambda a: a[: height // 4] + a[height // 4 : height // 2]),
        ("a @ v", lambda a: a @ np.ones(width)),
        ("np.where", lambda a: np.where(a[: height // 8] > 500)[0].size),
        ("np.searchsorted", lambda a: np.searchsorted(a.ravel()[:1000], columns)),
    ]
