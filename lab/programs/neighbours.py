"""An Annoy index: the neighbours of points."""
import os
import annoy
import numpy
from common import main, progress, scaled

DIMENSIONS = 256
ITEMS = 800_000
TREES = 4
QUERIES = 40
NODES = 10_000


def path(dir):
    return os.path.join(dir, "points.ann")


def points(seed, many):
    return numpy.random.Generator(numpy.random.PCG64(seed)).standard_normal((many, DIMENSIONS), dtype="f4")


def make(dir, percent):
    items = scaled(ITEMS, percent, 1000)
    index = annoy.AnnoyIndex(DIMENSIONS, "euclidean")
    index.set_seed(1)
    index.on_disk_build(path(dir))
    for first in range(0, items, 1000):
        for item, point in enumerate(points(first, min(1000, items - first)), first):
            index.add_item(item, point)
        progress(first // 2, items)
    index.build(TREES)


def run(dir, percent):
    index = annoy.AnnoyIndex(DIMENSIONS, "euclidean")
    index.load(path(dir))
    total = 0
    for point in points(1 << 32, scaled(QUERIES, percent)):
        for item in index.get_nns_by_vector(point, 10, search_k=NODES):
            total = (total * 31 + item) % (1 << 61)
    print(index.get_n_items(), total)


main(make=make, run=run)
