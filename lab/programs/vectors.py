"""A faiss index with inverted lists in a mapped file: the neighbours of vectors."""
import os
import faiss
import numpy
from common import main, progress, scaled

DIMENSIONS = 128
VECTORS = 2_000_000
LISTS = 2048
QUERIES = 400
PROBES = 16
PART = 50_000


def path(dir):
    return os.path.join(dir, "vectors.ivf")


def vectors(seed, many):
    return numpy.random.Generator(numpy.random.PCG64(seed)).standard_normal((many, DIMENSIONS), dtype="f4")


def make(dir, percent):
    many, lists = scaled(VECTORS, percent), scaled(LISTS, percent)
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(DIMENSIONS), DIMENSIONS, lists)
    index.cp.niter = 4
    index.train(vectors(1 << 32, 20 * lists))
    for first in range(0, many, PART):
        index.add(vectors(first, min(PART, many - first)))
        progress(min(first + PART, many), many)
    faiss.write_index(index, path(dir))


def run(dir, percent):
    index = faiss.read_index(path(dir), faiss.IO_FLAG_MMAP)
    index.nprobe = PROBES
    queries = vectors(1 << 33, scaled(QUERIES, percent))
    total = 0
    for first in range(0, len(queries), 20):
        _, found = index.search(queries[first : first + 20], 10)
        for item in found.ravel():
            total = (total * 31 + int(item)) % (1 << 61)
    print(index.ntotal, total)


main(make=make, run=run)
