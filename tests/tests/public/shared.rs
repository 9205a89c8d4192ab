//! Databases that two processes use at once, one of them plain or both managed. What they do keeps to the
//! rules of the database, so nothing may be lost, and no reader may see a state that never was.

use elbowroom_tests::public::Second;

use crate::program;

const SQLITE: &[(&str, &str)] = &[("sqlite3", "sqlite3"), ("/usr/bin/python3", "python3")];
const LMDB: &[(&str, &str)] = &[
    ("/usr/lib/python3/dist-packages/lmdb", "python3-lmdb"),
    ("/usr/bin/python3", "python3"),
    ("mdb_stat", "lmdb-utils"),
];

/// A database of 4 MiB with a counter, and the statements of 200 increments by each of two processes.
macro_rules! sqlite {
    ($journal:literal) => {
        concat!(
            "sqlite3 data.db \"PRAGMA page_size=4096; PRAGMA journal_mode=",
            $journal,
            ";
CREATE TABLE count(id INTEGER PRIMARY KEY, n INTEGER);
INSERT INTO count VALUES (1, 0), (2, 1000), (3, 1000);
CREATE TABLE pad(id INTEGER PRIMARY KEY, text TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000)
  INSERT INTO pad SELECT i, printf('%01000d', i) FROM n;
CREATE TABLE log(who INTEGER, i INTEGER);\"
for who in 1 2; do
  { echo '.timeout 60000'; echo 'PRAGMA mmap_size=67108864;'; echo 'PRAGMA synchronous=NORMAL;'
    for i in $(seq 200); do
      echo \"SELECT count(*) > 0 FROM pad WHERE id % 100 = $((i % 100));\"
      echo \"SELECT sum(n) FROM count WHERE id > 1;\"
      echo \"BEGIN IMMEDIATE; UPDATE count SET n = n + 1 WHERE id = 1; INSERT INTO log VALUES ($who, $i);\"
      echo \"UPDATE count SET n = n - $who WHERE id = 2; UPDATE count SET n = n + $who WHERE id = 3;\"
      echo \"UPDATE pad SET text = printf('%0999d', $i * $who) WHERE id = $who * 1000 + $i * 7 % 900;\"
      echo 'COMMIT;'
    done; } > $who.sql
done
{ echo '.timeout 60000'; echo 'PRAGMA mmap_size=67108864;'
  for i in $(seq 300); do
    echo 'SELECT sum(n) FROM count WHERE id > 1;'
    echo 'SELECT count(*) - (SELECT n FROM count WHERE id = 1) FROM log;'
  done
} > reader.sql"
        )
    };
}

const SQLITE_WRITERS: &str = "
run sqlite3 -batch data.db < 1.sql > 1.out & one=$!
other sqlite3 -batch data.db < 2.sql > 2.out & two=$!
wait $one; wait $two; sort -u 1.out 2.out";
const SQLITE_READER: &str = "
other sqlite3 -batch data.db < 1.sql > 1.out & one=$!
run sqlite3 -batch data.db < reader.sql > 2.out & two=$!
wait $one; wait $two; sort -u 1.out 2.out";
const SQLITE_CHECK: &str = "
sqlite3 data.db 'SELECT * FROM count; PRAGMA integrity_check;
  SELECT who, count(*), sum(i), count(DISTINCT i) FROM log GROUP BY who; SELECT sum(length(text)) FROM pad;'";

macro_rules! sqlite_rows {
    ($($name:ident $journal:literal $second:ident $script:ident;)+) => {
        $(program! {
            $name {
                needs: SQLITE,
                prepare: sqlite!($journal),
                script: $script,
                check: SQLITE_CHECK,
                second: Second::$second,
                // A file that two share is the kernel's.
                maps: false,
            }
        })+
    };
}

sqlite_rows! {
    sqlite_rollback_both_managed "DELETE" Managed SQLITE_WRITERS;
    sqlite_rollback_one_plain "DELETE" Plain SQLITE_WRITERS;
    sqlite_wal_both_managed "WAL" Managed SQLITE_WRITERS;
    sqlite_wal_one_plain "WAL" Plain SQLITE_WRITERS;
    sqlite_rollback_managed_reader "DELETE" Plain SQLITE_READER;
    sqlite_wal_managed_reader "WAL" Plain SQLITE_READER;
    sqlite_truncate_both_managed "TRUNCATE" Managed SQLITE_WRITERS;
}

const LMDB_PREPARE: &str = r#"
cat > count.py <<'END'
import lmdb, sys
who, commits, writemap = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "writemap"
env = lmdb.open("db", map_size=64 << 20, writemap=writemap, metasync=False, sync=False)
last = -1
for i in range(commits):
    if who != "reader":
        with env.begin(write=True) as txn:
            n = int(txn.get(b"count", b"0"))
            txn.put(b"count", b"%d" % (n + 1))
            txn.put(b"%s %06d" % (who.encode(), i), b"%d" % n * 100)
    with env.begin() as txn:
        n = int(txn.get(b"count", b"0"))
        entries = txn.stat()["entries"]
        if n < last or entries != n + (n > 0) + 1:
            print(f"{who}: at {i} the count is {n} after {last}, with {entries} entries")
            sys.exit(1)
        last = n
env.sync(True)
env.close()
END
/usr/bin/python3 -c 'import lmdb
with lmdb.open("db", map_size=64 << 20) as env:
    with env.begin(write=True) as txn: txn.put(b"pad", b"x" * (4 << 20))'
"#;
const LMDB_CHECK: &str = r#"
/usr/bin/python3 -c 'import lmdb
with lmdb.open("db", map_size=64 << 20) as env, env.begin() as txn:
    print(txn.get(b"count"), txn.stat()["entries"], sum(1 for _ in txn.cursor()))'
mdb_stat -e db | grep -E 'Entries|Map size'"#;

macro_rules! lmdb_rows {
    ($($name:ident $second:ident $mode:literal $one:literal $two:literal;)+) => {
        $(program! {
            $name {
                needs: LMDB,
                prepare: LMDB_PREPARE,
                script: concat!(
                    "run /usr/bin/python3 count.py ", $one, " 300 ", $mode, " & one=$!\n",
                    "other /usr/bin/python3 count.py ", $two, " 300 ", $mode, " & two=$!\n",
                    "wait $one; wait $two"
                ),
                check: LMDB_CHECK,
                second: Second::$second,
                // A file that two share is the kernel's.
                maps: false,
            }
        })+
    };
}

lmdb_rows! {
    lmdb_both_managed Managed "default" "a" "b";
    lmdb_one_plain Plain "default" "a" "b";
    lmdb_writemap_both_managed Managed "writemap" "a" "b";
    lmdb_writemap_one_plain Plain "writemap" "a" "b";
    lmdb_managed_reader Plain "default" "reader" "b";
}
