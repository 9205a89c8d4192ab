"""A SQLite database that is mapped: one scan of a table, then rows by their number."""
import os
import random
import sqlite3
from common import Dice, main, progress, scaled

ROWS = 2_000_000
LOOKUPS = 8000
PAYLOAD_BYTES = 900
# What SQLite maps at most, if it was not built otherwise.
MAP_BYTES = 0x7FFF0000


def connect(dir):
    db = sqlite3.connect(os.path.join(dir, "table.db"))
    db.execute(f"PRAGMA mmap_size = {MAP_BYTES}")
    return db


def make(dir, percent):
    rows, numbers = scaled(ROWS, percent), random.Random(1)
    db = connect(dir)
    db.execute("PRAGMA journal_mode = OFF")
    db.execute("PRAGMA synchronous = OFF")
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, payload BLOB, tag INTEGER)")
    for first in range(0, rows, 10000):
        some = range(first, min(first + 10000, rows))
        db.executemany(
            "INSERT INTO t VALUES (?, ?, ?)",
            ((row, numbers.randbytes(PAYLOAD_BYTES), numbers.getrandbits(32)) for row in some),
        )
        db.commit()
        progress(some.stop, rows)
    db.close()


def run(dir, percent):
    db = connect(dir)
    rows, total = db.execute("SELECT count(*), sum(tag) FROM t").fetchone()
    dice, found = Dice(2), 0
    for _ in range(scaled(LOOKUPS, percent)):
        payload, tag = db.execute("SELECT payload, tag FROM t WHERE id = ?", (dice.below(rows),)).fetchone()
        found = (found * 31 + tag + payload[0] + payload[-1]) % (1 << 61)
    print(rows, total, found)


main(make=make, run=run)
