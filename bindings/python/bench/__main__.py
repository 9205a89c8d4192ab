"""Measures the package beside numpy.memmap and the disk: `python bindings/python/bench`.

Needs 12 GiB of a disk, and for the control group and the readahead root; without root these rows are left
out or say so. With --short all of it takes half a minute and 1 GiB, and the figures are no goals.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile

from figures import FIGURES
from ground import MIB

import elbowroom as er


class Scale:
    """How large and how long everything is. Sizes are in bytes."""

    def __init__(self, short, directory):
        self.large = (256 if short else 8192) * MIB
        self.medium = (256 if short else 2048) * MIB
        self.fitting = (16 if short else 64) * MIB
        # Rows of a gather, those of a batch, and the seconds after which no batch begins.
        self.rows, self.batch, self.most = (2_000, 100, 2) if short else (100_000, 1_000, 60)
        self.rounds = 1 if short else 3
        self.seconds = 0.02 if short else 1.0
        self._directory = directory

    def path(self, name):
        """The path of a file of this size's run."""
        return os.path.join(self._directory, name)


def shown(row):
    if row["value"] is None:
        return f"{row['figure']:<11} {row['case']}"
    verdict = {None: "", True: "  good", False: "  MISSED"}[row["good"]]
    goal = f"  ({row['goal']})" if row["goal"] else ""
    return f"{row['figure']:<11} {row['case']:<64} {row['value']:>12,.3f} {row['unit']}{goal}{verdict}"


def main():
    parser = argparse.ArgumentParser(prog="bindings/python/bench", description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="small files and few rounds: does it work?")
    parser.add_argument(
        "--only", metavar="FIGURE", action="append", choices=FIGURES, help=", ".join(FIGURES)
    )
    parser.add_argument("--dir", default="/var/tmp", help="a directory on a disk for files [%(default)s]")
    parser.add_argument("--json", metavar="FILE", help="write the rows there; -: to standard output, alone")
    args = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="elbowroom-bench-", dir=args.dir)
    rows = []
    try:
        scale = Scale(args.short, directory)
        for name in args.only or FIGURES:
            for row in FIGURES[name](scale):
                rows.append(row)
                print(shown(row), flush=True, file=sys.stderr if args.json == "-" else sys.stdout)
    finally:
        shutil.rmtree(directory)
    about = {
        "version": er.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "processors": os.cpu_count(),
        "short": args.short,
        "load": os.getloadavg()[0],
        "rows": rows,
    }
    if args.json == "-":
        print(json.dumps(about, indent=1))
    elif args.json:
        with open(args.json, "w") as file:
            json.dump(about, file, indent=1)
    # A short run is a test of the programs: its sizes are too small for the goals.
    missed = [row for row in rows if row["good"] is False]
    return 1 if missed and not args.short else 0


if __name__ == "__main__":
    sys.exit(main())
