"""A Tantivy index, whose segments it maps: queries, and the texts of what they find."""
import os
import numpy
import tantivy
import zlib
from common import Dice, main, progress, scaled

DOCUMENTS = 600_000
WORDS = 200_000
LENGTH = 250
QUERIES = 3000
PART = 2000


def index_of(dir):
    builder = tantivy.SchemaBuilder()
    builder.add_unsigned_field("number", stored=True)
    builder.add_text_field("text", stored=True)
    return tantivy.Index(builder.build(), path=os.path.join(dir, "index"))


def word(number):
    return f"w{number}"


def make(dir, percent):
    os.mkdir(os.path.join(dir, "index"))
    documents = scaled(DOCUMENTS, percent, 1000)
    writer = index_of(dir).writer(heap_size=256 << 20, num_threads=1)
    words = numpy.array([word(number) for number in range(WORDS)], dtype=object)
    for first in range(0, documents, PART):
        random = numpy.random.Generator(numpy.random.PCG64(first))
        # Squares: some words are in many texts, most are in few.
        drawn = (random.random((PART, LENGTH)) ** 2 * WORDS).astype("i4")
        for number, text in enumerate(drawn, first):
            document = tantivy.Document()
            document.add_unsigned("number", number)
            document.add_text("text", " ".join(words[text]))
            writer.add_document(document)
        progress(min(first + PART, documents), documents)
    writer.commit()
    writer.wait_merging_threads()


def run(dir, percent):
    index = index_of(dir)
    searcher = index.searcher()
    dice = Dice(3)
    found = 0
    total = 0
    for _ in range(scaled(QUERIES, percent, 10)):
        wanted = [word(dice.below(WORDS)) for _ in range(3)]
        result = searcher.search(index.parse_query(" ".join(wanted), ["text"]), 10)
        found += result.count
        for _, address in result.hits:
            document = searcher.doc(address)
            text = zlib.crc32(document["text"][0].encode())
            total = (total * 31 + document["number"][0] + text) % (1 << 61)
    print(searcher.num_docs, found, total)


main(make=make, run=run)
