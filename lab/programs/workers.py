"""Processes with arrays of their own, for `elbowroom lab run tree`.

`workers.py COUNT MEBIBYTES ROUNDS` starts COUNT processes of this program. Each makes arrays of MEBIBYTES
together, with numbers below 1,000 at random, and changes an element of every page and adds each array up,
ROUNDS times, the arrays in another order each time. A sum that is wrong fails the process, and so the whole.
`workers.py COUNT idle` starts as many that have no arrays, and wait for two seconds.
"""
import random
import subprocess
import sys
import time
from array import array

ARRAY_WORDS = (4 << 20) // 8
PAGE_WORDS = 4096 // 8


def work(seed, mebibytes, rounds):
    dice = random.Random(seed)
    block = array("q", dice.choices(range(1000), k=ARRAY_WORDS))
    total = sum(block)
    arrays = []
    for _ in range(mebibytes // 4):
        turned = dice.randrange(ARRAY_WORDS)
        arrays.append(block[turned:] + block[:turned])
    order = list(range(len(arrays)))
    for _ in range(rounds):
        total += ARRAY_WORDS // PAGE_WORDS
        dice.shuffle(order)
        for at in order:
            one = arrays[at]
            for word in range(0, ARRAY_WORDS, PAGE_WORDS):
                one[word] += 1
            if sum(one) != total:
                sys.exit(f"worker {seed}: array {at} has a wrong sum: {sum(one)}, not {total}")


def main():
    count, *rest = sys.argv[1:]
    if count == "one":
        if rest[1] == "idle":
            time.sleep(2)
        else:
            work(*map(int, rest))
        return
    line = [sys.executable, __file__, "one"]
    workers = [subprocess.Popen([*line, str(seed), *rest]) for seed in range(int(count))]
    failed = sum(worker.wait() != 0 for worker in workers)
    if failed:
        sys.exit(f"{failed} of {count} workers have failed")
    print("all sums are right")


main()
