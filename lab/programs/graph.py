"""An hnswlib index, which is loaded into memory: the neighbours of vectors, by a walk of a graph."""
import os
import hnswlib
import numpy
from common import main, progress, scaled

DIMENSIONS = 512
VECTORS = 360_000
LINKS = 8
QUERIES = 4000
PART = 5000


def path(dir):
    return os.path.join(dir, "vectors.hnsw")


def vectors(seed, many):
    return numpy.random.Generator(numpy.random.PCG64(seed)).standard_normal((many, DIMENSIONS), dtype="f4")


def make(dir, percent):
    many = scaled(VECTORS, percent, PART)
    index = hnswlib.Index(space="l2", dim=DIMENSIONS)
    index.init_index(max_elements=many, M=LINKS, ef_construction=24, random_seed=1)
    for first in range(0, many, PART):
        part = min(PART, many - first)
        index.add_items(vectors(first, part), numpy.arange(first, first + part))
        progress(first + part, many)
    index.save_index(path(dir))


def run(dir, percent):
    index = hnswlib.Index(space="l2", dim=DIMENSIONS)
    index.load_index(path(dir))
    index.set_ef(50)
    index.set_num_threads(2)
    queries = vectors(1 << 33, scaled(QUERIES, percent, 10))
    total = 0
    for first in range(0, len(queries), 20):
        labels, _ = index.knn_query(queries[first : first + 20], k=10)
        for item in labels.ravel():
            total = (total * 31 + int(item)) % (1 << 61)
    print(index.get_current_count(), total)


main(make=make, run=run)
