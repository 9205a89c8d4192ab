"""Programs whose arrays, tables and rows are larger than the memory that they have."""
import os
import socket
import subprocess
import sys
import time
from common import Dice, main, progress, scaled

LINES = 16_000_000
ROWS = 9_000_000
VALUES = 7_000_000
FRAME_ROWS = 24_000_000
NUMBERS = 64 << 20
SIDE = 4096


def make(dir, percent):
    """Lines to be sorted and compressed: words of a few kinds, and numbers."""
    count, dice = scaled(LINES, percent), Dice(1)
    with open(os.path.join(dir, "lines.txt"), "w") as file:
        for part in range(0, count, 100_000):
            lines = min(100_000, count - part)
            file.writelines(f"{dice.below(1 << 40):013x} line {part + i} of all\n" for i in range(lines))
            progress(part + lines, count)


def arrays(dir, percent):
    """Sorts, groups and multiplies. All numbers are whole and small, so that sums are exact in any order."""
    import numpy
    count = scaled(NUMBERS, percent)
    numbers = numpy.random.Generator(numpy.random.PCG64(5)).integers(0, 1 << 20, size=count, dtype="i8")
    ordered = numpy.sort(numbers)
    print(int(ordered[count // 3]), int(ordered[count // 2]))
    counts = numpy.bincount(numbers, weights=ordered.astype("f8"), minlength=1 << 20)
    print(int(counts.sum()), int(counts.max()))
    del ordered, counts, numbers
    side = int(SIDE * (percent / 100) ** 0.5)
    left = (numpy.arange(side * side, dtype="f8") % 17).reshape(side, side)
    right = (numpy.arange(side * side, dtype="f8") % 13).reshape(side, side)
    print(int((left @ right).sum()))


def frames(dir, percent):
    """Groups and joins tables."""
    import polars
    count = scaled(FRAME_ROWS, percent)
    index = polars.int_range(0, count, eager=True)
    keys = index * 7919 % (count // 8 + 1)
    table = polars.DataFrame({"key": keys, "value": index * 31 % 1009, "at": index})
    sums = table.group_by("key").agg(polars.col("value").sum(), polars.col("at").max())
    joined = table.join(sums, on="key", suffix="_of_key")
    print(len(sums), len(joined), int(joined["value_of_key"].sum()), int(joined["at_of_key"].sum()))


def sqlite(dir, percent):
    """A table with an index in memory; all of it, and rows at random."""
    import sqlite3
    base, count = sqlite3.connect(":memory:"), scaled(ROWS, percent)
    base.execute("create table rows(id integer primary key, name text, number integer, note text)")
    base.execute("with recursive n(i) as (select 1 union all select i + 1 from n where i < ?)"
                 " insert into rows select i, printf('name %d', i * 7919 % 1000003), i * 31 % 65537,"
                 " printf('%064d', i * 104729) || hex(i) from n", (count,))
    base.execute("create index by_name on rows(name)")
    print(*base.execute("select count(*), sum(number), sum(length(note)) from rows").fetchone())
    dice, total = Dice(3), 0
    for _ in range(scaled(20_000, percent)):
        total += base.execute("select number from rows where id = ?", (dice.below(count) + 1,)).fetchone()[0]
    print(total)


class Redis:
    """A client that knows as much of the protocol as is needed."""

    def __init__(self, path):
        until = time.monotonic() + 60
        while True:
            self.socket = socket.socket(socket.AF_UNIX)
            try:
                self.socket.connect(path)
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)
        self.file = self.socket.makefile("rb")

    def send(self, commands):
        parts = []
        for command in commands:
            parts.append(b"*%d\r\n" % len(command))
            parts.extend(b"$%d\r\n%b\r\n" % (len(word), word) for word in command)
        self.socket.sendall(b"".join(parts))
        return [self.answer() for _ in commands]

    def answer(self):
        line = self.file.readline()
        if line[:1] == b"-":
            sys.exit(line.decode())
        if line[:1] == b"$" and line != b"$-1\r\n":
            return self.file.read(int(line[1:]) + 2)[:-2]
        return line[1:-2]


def redis(dir, percent):
    """A server with small values, and clients' load: all are stored, some are read, some are changed."""
    path = os.path.join(dir, f"redis-{os.getpid()}")
    line = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", dir]
    server = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    try:
        client, count = Redis(path), scaled(VALUES, percent)
        value = "value of this key {} " * 6
        for part in range(0, count, 1000):
            keys = range(part, min(part + 1000, count))
            client.send([(b"SET", b"key:%d" % key, value.replace("{}", str(key)).encode()) for key in keys])
        dice, total = Dice(4), 0
        for turn in range(scaled(2000, percent)):
            keys = [dice.below(count) for _ in range(20)]
            total += sum(map(len, client.send([(b"GET", b"key:%d" % key) for key in keys])))
            client.send([(b"APPEND", b"key:%d" % keys[0], b"more")])
        print(total, client.send([(b"DBSIZE",)])[0].decode())
        client.socket.sendall(b"*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n")
        server.wait(60)
    finally:
        server.kill()


main(make=make, arrays=arrays, frames=frames, sqlite=sqlite, redis=redis)
