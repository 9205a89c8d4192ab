"""A git repository with one pack of many objects that do not compress."""
import os
import random
import subprocess
from common import main, progress, scaled

OBJECTS = 60_000
OBJECT_BYTES = 16 << 10


def make(dir, percent):
    repository = os.path.join(dir, "repository.git")
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", repository], check=True)
    objects, numbers = scaled(OBJECTS, percent), random.Random(1)
    line = ["git", "-C", repository, "-c", "core.compression=0", "fast-import", "--quiet", "--depth=0"]
    importer = subprocess.Popen(line, stdin=subprocess.PIPE)
    put = importer.stdin.write
    for number in range(objects):
        put(b"blob\nmark :%d\ndata %d\n" % (number + 1, OBJECT_BYTES))
        put(numbers.randbytes(OBJECT_BYTES) + b"\n")
        if number % 1000 == 0:
            progress(number, objects)
    put(b"commit refs/heads/main\ncommitter lab <lab> 0 +0000\ndata 3\nall\n")
    for number in range(objects):
        put(b"M 100644 :%d %02x/%d\n" % (number + 1, number % 256, number))
    importer.stdin.close()
    if importer.wait() != 0:
        raise SystemExit("git fast-import has failed")


main(make=make)
