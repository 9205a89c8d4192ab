"""Lines of text for ripgrep, and in every block some that it finds; chance alone may give a file none."""
import os
import numpy
from common import main, progress, scaled

BLOCK_BYTES = 16 << 20
BLOCKS = 96
LINE_BYTES = 128
FOUND = numpy.frombuffer(b" thread  hay needle ", dtype="u1")
EVERY = 4096


def make(dir, percent):
    letters = numpy.frombuffer(b"abcdefghijklmnopqrstuvwxyz      ", dtype="u1")
    blocks = scaled(BLOCKS, percent)
    with open(os.path.join(dir, "lines.txt"), "wb") as file:
        for block in range(blocks):
            numbers = numpy.random.Generator(numpy.random.PCG64(block))
            text = letters[numbers.integers(0, 32, size=(BLOCK_BYTES // LINE_BYTES, LINE_BYTES), dtype="u1")]
            text[block % EVERY :: EVERY, : len(FOUND)] = FOUND
            text[:, -1] = 10
            text.tofile(file)
            progress(block + 1, blocks)


main(make=make)
