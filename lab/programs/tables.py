"""DuckDB over Parquet files: groups, a join and an order, whose tables are in memory."""
import os
import duckdb
from common import main, progress, scaled

ROWS = 24_000_000
FILES = 8


def parts(dir):
    return os.path.join(dir, "part*.parquet")


def make(dir, percent):
    rows = scaled(ROWS // FILES, percent, 1000)
    for file in range(FILES):
        first = file * rows
        duckdb.sql(
            f"""COPY (SELECT range AS id, hash(range) % {rows * 2} AS key, hash(range + 1) % 100000 AS value,
                md5(range::VARCHAR) AS text FROM range({first}, {first + rows}))
                TO '{dir}/part{file}.parquet' (FORMAT parquet)"""
        )
        progress(file + 1, FILES)


def run(dir, percent):
    connection = duckdb.connect()
    # Its own limit would be a part of the machine's memory, and it would write files beyond that.
    connection.execute("SET memory_limit = '64GB'; SET threads = 2; SET preserve_insertion_order = false")
    connection.execute(f"CREATE VIEW rows AS SELECT * FROM read_parquet('{parts(dir)}')")
    lines = [
        """SELECT count(*), sum(n), max(n), sum(v % 1000)
           FROM (SELECT count(*) n, sum(value) v FROM rows GROUP BY key)""",
        "SELECT count(*), sum(a.value + b.value) FROM rows a JOIN rows b ON a.id = b.key",
        """SELECT sum(hash(text) % 1000 * (place % 7))
           FROM (SELECT text, row_number() OVER (ORDER BY text) place FROM rows)""",
    ]
    for line in lines:
        print(*connection.execute(line).fetchone(), flush=True)


main(make=make, run=run)
