"""numpy arrays in a file: rows at random, and the sums of all columns."""
import os
import numpy
from common import Dice, main, progress, scaled

COLUMNS = 512
BLOCK_ROWS = 16384
BLOCKS = 48
READS = 12000


def path(dir):
    return os.path.join(dir, "array.bin")


def make(dir, percent):
    blocks = scaled(BLOCKS, percent)
    with open(path(dir), "wb") as file:
        for block in range(blocks):
            numbers = numpy.random.Generator(numpy.random.PCG64(block))
            numbers.integers(0, 1 << 63, size=(BLOCK_ROWS, COLUMNS), dtype="u8").tofile(file)
            progress(block + 1, blocks)


def array(dir):
    return numpy.memmap(path(dir), dtype="u8", mode="r").reshape(-1, COLUMNS)


def reads(dir, percent):
    rows = array(dir)
    dice, total = Dice(1), 0
    for _ in range(scaled(READS, percent)):
        total += int(rows[dice.below(len(rows))].sum())
    print(total)


def sums(dir, percent):
    print(*array(dir).sum(axis=0))


main(make=make, reads=reads, sums=sums)
