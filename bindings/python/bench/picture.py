"""The picture of the README: what a program has in memory over time, with a budget and without.

python bindings/python/bench/picture.py docs/memory.svg [--size 512MiB] [--memory 128MiB]
"""

import argparse
import subprocess
import sys
import time

from elbowroom import _elbowroom
from elbowroom._commands import find

GIB = 1 << 30
LOOK = 0.02
# Makes an array of so many bytes, stores to all of it, and sums it.
PROGRAM = """
import sys, numpy as np
size, block = int(sys.argv[1]), 16 << 20
a = np.zeros(size // 8, "u8")
block //= 8
for at in range(0, len(a), block):
    a[at : at + block] = np.arange(at, at + block)
total = sum(int(a[at : at + block].sum()) for at in range(0, len(a), block))
assert total == len(a) * (len(a) - 1) // 2
"""

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 300, 64, 20, 40, 40


def resident(pid):
    """What a process has in memory, in bytes; None: it has ended."""
    try:
        with open(f"/proc/{pid}/status") as lines:
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))
    except (OSError, StopIteration):
        return None


def watched(command):
    """Runs a command; returns (seconds, bytes) while it ran."""
    began, points = time.monotonic(), []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        while running.poll() is None:
            has = resident(running.pid)
            if has is not None:
                points.append((time.monotonic() - began, has))
            if time.monotonic() - began > 600:
                running.kill()
            time.sleep(LOOK)
        said = running.stdout.read()
    if running.returncode != 0:
        raise RuntimeError(f"{command[0]} has failed ({running.returncode}): {said}")
    return points


def thinned(points, most=150):
    """At most so many points: of each stretch of time the one with the most memory."""
    step = points[-1][0] / most or 1
    kept = {}
    for seconds, has in points:
        slot = int(seconds / step)
        if slot not in kept or has > kept[slot][1]:
            kept[slot] = (seconds, has)
    return list(kept.values())


def drawn(runs, budget, title):
    """The picture as SVG. `runs`: (name, class, points)."""
    seconds = max(points[-1][0] for _, _, points in runs) * 1.02
    most = max(has for _, _, points in runs for _, has in points) * 1.1
    x = lambda value: LEFT + value / seconds * (WIDTH - LEFT - RIGHT)
    y = lambda value: HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{title}">',
        "<style>text{font:13px sans-serif;fill:#444}.grid{stroke:#8884;fill:none}.budget{stroke:#888;"
        "stroke-dasharray:5 4}.with,.without{fill:none;stroke-width:2.5}.with{stroke:#087f5b}.without{stroke:"
        "#d9480f}text.with{fill:#087f5b;stroke:none}text.without{fill:#d9480f;stroke:none}"
        "@media(prefers-color-scheme:dark){text{fill:#bbb}.with{stroke:#38d9a9}.without{stroke:#ff922b}"
        "text.with{fill:#38d9a9}text.without{fill:#ff922b}}</style>",
        f'<text x="{LEFT}" y="20">{title}</text>',
    ]
    step = next(GIB >> shift for shift in (3, 2, 1, 0) if most / (GIB >> shift) < 6)
    for value in range(0, int(most) + 1, step):
        lines.append(f'<path class="grid" d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}"/>')
        lines.append(
            f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value / GIB:g} GiB</text>'
        )
    every = max(1, round(seconds / 8))
    for value in range(0, int(seconds) + 1, every):
        lines.append(f'<text x="{x(value):.1f}" y="{HEIGHT - 18}" text-anchor="middle">{value} s</text>')
    lines.append(f'<path class="budget" d="M{LEFT} {y(budget):.1f}H{WIDTH - RIGHT}"/>')
    for name, kind, points in runs:
        path = "L".join(f"{x(at):.1f} {y(has):.1f}" for at, has in points)
        lines.append(f'<path class="{kind}" d="M{path}"/>')
        at, has = max(points, key=lambda point: point[1])
        anchor = "start" if x(at) < WIDTH / 2 else "end"
        lines.append(
            f'<text class="{kind}" x="{x(at):.1f}" y="{y(has) - 8:.1f}" text-anchor="{anchor}">{name}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="where the picture is written")
    parser.add_argument("--size", default="512MiB", help="of the array [%(default)s]")
    parser.add_argument("--memory", default="128MiB", help="the budget [%(default)s]")
    args = parser.parse_args()
    size, budget = _elbowroom.parse_size(args.size), _elbowroom.parse_size(args.memory)
    program = [sys.executable, "-c", PROGRAM, str(size)]
    managed = [find("elbowroom"), "run", "--quiet", "--memory", str(budget), "--", *program]
    runs = []
    for name, kind, command in [
        ("without", "without", program),
        (f"--memory {args.memory}", "with", managed),
    ]:
        points = watched(command)
        most, took = max(has for _, has in points), points[-1][0]
        print(f"{name}: at most {most / GIB:.2f} GiB, {took:.1f} s")
        runs.append((f"{name}: {took:.1f} s", kind, thinned(points)))
    title = f"Memory of a NumPy program that fills and sums an array of {args.size}"
    with open(args.file, "w") as file:
        file.write(drawn(runs, budget, title))


if __name__ == "__main__":
    main()
