"""Uses of python3's mmap module. Everything it prints is compared with a plain run.

mapped.py FILE OTHER: FILE is only read; OTHER is written, resized, and left for the caller to look at.
"""

import hashlib
import mmap
import os
import re
import sys
import threading


def read_only(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        print("size", len(view), view.size())
        print("whole", hashlib.sha256(view).hexdigest())
        print("slices", view[10:20].hex(), view[-17:].hex(), view[::100003][:40].hex())
        needle = view[len(view) // 2 : len(view) // 2 + 9]
        print("find", view.find(needle), view.rfind(needle), view.find(b"there is no such thing"))
        print("regex", sum(1 for _ in re.finditer(rb"\x00[\x01-\x10]\xff", view)))
        view.seek(12345)
        print("read", view.read(11).hex(), view.read_byte(), view.tell(), len(view.readline()))
        with memoryview(view) as memory:
            print("memoryview", memory[1000000:1000016].tobytes().hex(), sum(memory[::4099]))
        try:
            view[0] = 1
        except TypeError as error:
            print("read-only:", error)
        if hasattr(view, "madvise"):
            view.madvise(mmap.MADV_RANDOM)
            view.madvise(mmap.MADV_DONTNEED)
        print("again", hashlib.sha256(view).hexdigest())


def threads(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        sums = [None] * 6

        def scan(index):
            step = len(view) // len(sums)
            sums[index] = hashlib.md5(view[index * step : (index + 1) * step]).hexdigest()

        workers = [threading.Thread(target=scan, args=(index,)) for index in range(len(sums))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print("threads", " ".join(sums))


def written(path):
    size = 5 * 1024 * 1024 + 77
    with open(path, "wb+") as file:
        file.truncate(size)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE) as view:
            print("zeros", view[:100].count(0), view[size - 1])
            for index in range(0, size - 64, 4097):
                view[index : index + 8] = index.to_bytes(8, "little")
            view.write(b"at the start")
            view.flush()
            view.move(1_000_000, 0, 500_000)
            view[2_000_000] = 77
            print("read back", file.read(12), os.pread(file.fileno(), 12, 1_000_000))
            os.pwrite(file.fileno(), b"through the descriptor", 3_000_000)
            print("written", view[2_999_998:3_000_024])
            view.flush(mmap.PAGESIZE * 10, mmap.PAGESIZE * 20)
            view.resize(7 * 1024 * 1024)
            print("grown", len(view), os.fstat(file.fileno()).st_size, view[size - 5 :].count(0))
            view[-6:] = b"ending"
            view.resize(6 * 1024 * 1024 + 1)
            print("shrunk", len(view), os.fstat(file.fileno()).st_size)
            view[-1:] = b"!"
            print("in the end", hashlib.sha256(view).hexdigest())
        print("on the file", hashlib.sha256(open(path, "rb").read()).hexdigest())


def copy_on_write(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as view:
        view[5_000_000:5_000_005] = b"local"
        print("private", view[4_999_998:5_000_007].hex())
        print("the file", os.pread(file.fileno(), 9, 4_999_998).hex())


def main():
    read_only(sys.argv[1])
    threads(sys.argv[1])
    written(sys.argv[2])
    copy_on_write(sys.argv[1])


main()
