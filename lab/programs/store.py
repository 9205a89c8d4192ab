"""An LMDB store: values at random, then many commits of one value each, made durable."""
import os
import random
import zlib
import lmdb
from common import Dice, main, progress, scaled

KEYS = 1_500_000
VALUE_BYTES = 1000
READS = 40_000
COMMITS = 2500
MAP_BYTES = 3 << 30


def connect(dir, **options):
    path = os.path.join(dir, "store.mdb")
    return lmdb.open(path, subdir=False, map_size=MAP_BYTES, lock=False, readahead=True, **options)


def key(number):
    return number.to_bytes(8, "big")


def make(dir, percent):
    keys, numbers = scaled(KEYS, percent), random.Random(1)
    db = connect(dir, sync=False)
    for first in range(0, keys, 10000):
        some = range(first, min(first + 10000, keys))
        with db.begin(write=True) as txn:
            for number in some:
                txn.put(key(number), numbers.randbytes(VALUE_BYTES), append=True)
        progress(some.stop, keys)
    db.sync(True)
    db.close()


def work(dir, percent, **options):
    db = connect(dir, **options)
    dice, total, numbers = Dice(3), 0, random.Random(4)
    keys = db.stat()["entries"]
    with db.begin(buffers=True) as txn:
        for _ in range(scaled(READS, percent)):
            value = txn.get(key(dice.below(keys)))
            total = (total * 31 + value[0] + value[VALUE_BYTES - 1]) % (1 << 61)
    for _ in range(scaled(COMMITS, percent)):
        with db.begin(write=True) as txn:
            txn.put(key(dice.below(keys)), numbers.randbytes(VALUE_BYTES))
    with db.begin(buffers=True) as txn:
        for _ in range(scaled(READS, percent) // 4):
            value = txn.get(key(dice.below(keys)))
            total = (total * 31 + value[0] + value[VALUE_BYTES - 1]) % (1 << 61)
    db.close()
    print(keys, total)


def run(dir, percent):
    work(dir, percent)


def map(dir, percent):
    # Values are stored through the mapping, and made durable by msync.
    work(dir, percent, writemap=True)


def check(dir, percent):
    total = 0
    with connect(dir, readonly=True).begin(buffers=True) as txn:
        for found, value in txn.cursor():
            total = zlib.crc32(value, zlib.crc32(found, total))
    print(total)


main(make=make, run=run, map=map, check=check)
