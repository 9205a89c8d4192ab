"""What the programs of `elbowroom lab run programs` have in common.

Each is called as `python3 NAME.py WHAT DIR PERCENT`: `make` makes its data in the directory, PERCENT of the
usual size, and prints how far it is in percent; `run` is what is measured, and prints what it has found;
`check` reads what was stored, and prints a checksum; `warm` loads what `run` loads, and ends.
"""
import sys


def progress(done, total):
    print(100 * done // total, flush=True)


def scaled(number, percent, least=1):
    return max(number * percent // 100, least)


def main(**actions):
    what = sys.argv[1]
    if what == "warm":
        return
    actions[what](sys.argv[2], int(sys.argv[3]))


class Dice:
    """Numbers that are the same with any version of anything (splitmix64)."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return ((z ^ (z >> 31)) * bound) >> 64
