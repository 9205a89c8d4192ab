//! Databases that one process uses: what it says, and what it has left for a plain one.

use elbowroom_tests::public::Under;

use crate::program;

program! {
    sqlite {
        needs: &[("sqlite3", "sqlite3")],
        prepare: "cat > work.sql <<'END'
PRAGMA mmap_size=67108864; PRAGMA page_size=1024;
CREATE TABLE t(id INTEGER PRIMARY KEY, a INTEGER, b TEXT); CREATE VIRTUAL TABLE f USING fts5(text);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
  INSERT INTO t SELECT i, i * 7919 % 20011, hex(i * 123457) || printf('%0120d', i) FROM n;
CREATE INDEX x ON t(a); INSERT INTO f SELECT b FROM t WHERE id % 9 = 0; PRAGMA auto_vacuum=FULL; VACUUM;
DELETE FROM t WHERE id % 3 = 0; BEGIN; UPDATE t SET b = zeroblob(3000) WHERE id < 900; ROLLBACK;
UPDATE t SET b = upper(b) || 'x' WHERE a < 9000;
SELECT count(*), sum(a), sum(length(b)) FROM t; SELECT count(*) FROM f WHERE f MATCH '3*';
PRAGMA integrity_check; PRAGMA incremental_vacuum; ANALYZE; SELECT sum(length(b)), max(b) FROM t;
SELECT count(*) FROM t x JOIN t y ON x.a = y.id;
.backup copy.db
END",
        script: "run sqlite3 -batch data.db < work.sql
run sqlite3 -cmd 'PRAGMA mmap_size=67108864' data.db .dump | sha256sum
run sqlite3 data.db 'PRAGMA journal_mode=WAL; DELETE FROM t WHERE a % 5 = 0;
  PRAGMA wal_checkpoint(TRUNCATE);'",
        check: "for db in data.db copy.db; do
  sqlite3 $db 'PRAGMA integrity_check; SELECT count(*), sum(a), sum(length(b)) FROM t'
  sqlite3 $db .dump | sha256sum
done",
    }
}

program! {
    lmdb_tools {
        needs: &[("mdb_load", "lmdb-utils")],
        prepare: "words 1500000 3 w; nl -nrz -w8 w | paste -s -d '\\t\\n' > p
{ printf 'VERSION=3\\nformat=print\\ntype=btree\\nmapsize=67108864\\nHEADER=END\\n'
  awk -F '\\t' '{ print \" \" $1; print \" \" $2 $4 $2 }' p; echo DATA=END; } > records
mkdir a b c",
        script: "run mdb_load -f records a; run mdb_stat -ef a; run mdb_copy -c a b; run mdb_copy a c
run mdb_dump a | sha256sum; run mdb_dump b | sha256sum",
        check: "for d in a b c; do mdb_dump $d | sha256sum; mdb_stat -f $d; done",
    }
}

program! {
    gdbm {
        needs: &[
            ("gdbmtool", "gdbmtool"),
            ("/usr/lib/python3.11/lib-dynload/_gdbm.cpython-311-x86_64-linux-gnu.so", "python3-gdbm"),
        ],
        prepare: "words 3000000 3 w; cat > g.py <<'END'
import dbm.gnu
with dbm.gnu.open('py.db', 'n') as db:
    for i, line in enumerate(open('w')):
        db[str(i)] = line
        if i % 3 == 0: db[str(i // 2)] = line * 3
        if i % 7 == 0: del db[str(i)]
    db.reorganize(); db.sync()
    print(len(db), sum(len(db[k]) for k in db.keys()))
END
nl -nln -w1 w | awk 'NR <= 8000 { print \"store \" $1 \" \" $2 }' > cmds
printf 'count\\nreorganize\\nfetch 77\\ndelete 78\\ncount\\n' >> cmds",
        script: "run /usr/bin/python3 g.py; run gdbmtool -q -n -f cmds tool.db 2>&1 | tail -4
run gdbm_dump tool.db dump; run gdbm_load dump again.db; run gdbmtool -q -r py.db count",
        check: "for db in py.db tool.db again.db; do gdbmtool -q -r $db count; done
grep -v '^#' dump | sha256sum; gdbmtool -q -r py.db list | sort | sha256sum",
    }
}

program! {
    tokyocabinet {
        needs: &[("tchmgr", "tokyocabinet-bin")],
        prepare: "words 3000000 3 w; nl -nrz -w8 w > p",
        script: "
run tchmgr create h.tch 100; run tchmgr importtsv h.tch p
run tchmgr inform h.tch | grep -E 'record|file size'; run tchmgr optimize h.tch
run tchmgr list h.tch | sort | sha256sum
run tcbmgr create b.tcb; run tcbmgr importtsv b.tcb p; run tcbmgr put b.tcb 00000007 seven
run tcbmgr out b.tcb 00000009; run tcbmgr optimize b.tcb; run tcbmgr list -pv b.tcb | sha256sum
run tcfmgr create f.tcf 64; for i in $(seq 5); do run tcfmgr put f.tcf $((i * 3000)) value$i; done
run tcfmgr list -pv f.tcf
run tchtest write w.tch 20000 > out; run tchtest read w.tch > out; run tchtest remove w.tch > out
run tchmttest write -nb x.tch 2 10000 > out || tail -3 out; run tcbtest wicked x.tcb 20000 | tail -1
tail -1 out | cut -c 1-5",
        check: "tchmgr list h.tch | sort | sha256sum; tcbmgr list -pv b.tcb | sha256sum
tcfmgr list -pv f.tcf | sha256sum; tchmgr inform x.tch | grep 'record number'",
    }
}

program! {
    kyotocabinet {
        under: Under::Small,
        needs: &[("kchashmgr", "kyotocabinet-utils")],
        prepare: "words 2000000 3 w; nl -nrz -w8 w > p",
        script: "
run kchashmgr create -bnum 100000 h.kch; run kchashmgr import h.kch p > out
run kchashmgr list h.kch | sort | sha256sum; run kchashmgr check -onr h.kch | tail -1 | cut -c 1-5
run kctreemgr create t.kct; run kctreemgr import t.kct p > out; run kctreemgr remove t.kct 00000009
run kctreemgr list -pv t.kct | sha256sum
run kchashtest order -msiz 33554432 -bnum 100000 o.kch 30000 | grep -c ^ok
run kchashtest queue -th 2 q.kch 10000 | grep -c ^ok
run kchashtest wicked -th 2 -it 2 w.kch 5000 | grep -c ^ok",
        check: "kchashmgr list h.kch | sort | sha256sum; kctreemgr list -pv t.kct | sha256sum
kchashmgr check q.kch | tail -1 | cut -c 1-5",
    }
}

program! {
    berkeley_db {
        under: Under::Small,
        needs: &[("db_load", "db-util"), ("/usr/lib/python3/dist-packages/bsddb3", "python3-bsddb3")],
        prepare: "words 2000000 3 w; nl -nrz -w8 w | tr '\\t' '\\n' > p; mkdir env; cat > b.py <<'END'
from bsddb3 import db
env = db.DBEnv(); env.set_cachesize(0, 4 << 20); env.set_mp_mmapsize(64 << 20)
env.open('env', db.DB_CREATE | db.DB_INIT_MPOOL | db.DB_INIT_TXN | db.DB_INIT_LOCK | db.DB_INIT_LOG)
d = db.DB(env); d.open('x.db', None, db.DB_BTREE, db.DB_CREATE | db.DB_AUTO_COMMIT)
for part in range(20):
    t = env.txn_begin()
    for i in range(200): d.put(b'%d' % (i * 31 + part), b'v%d' % part * 50, txn=t)
    t.abort() if part % 5 == 4 else t.commit()
print(d.stat()['nkeys']); d.close(); env.txn_checkpoint(); env.close()
END",
        script: "run db_load -T -t btree -f p t.db; run db_load -T -t hash -f p h.db
run db_dump -p t.db | sha256sum; run db_verify t.db h.db; run /usr/bin/python3 b.py
run db_stat -d t.db | grep -E 'Number of (unique )?keys'; run db_checkpoint -1 -h env; run db_recover -h env",
        check: "db_dump -p t.db | sha256sum; db_dump -p h.db | sort | sha256sum
db_verify env/x.db && db_dump -p env/x.db | sha256sum",
    }
}

program! {
    rocksdb {
        under: Under::Small,
        needs: &[("ldb", "rocksdb-tools")],
        prepare: "words 2000000 3 w; nl -nrz -w8 w | awk -F '\\t' '{ print $1 \" ==> \" $2 }' > p",
        script: "run ldb --db=d --create_if_missing load < p; run ldb --db=d scan | sha256sum
run ldb --db=d compact; run ldb --db=d get 00000077
run sst_dump --file=d --command=check 2>&1 | grep -c 'sst'
run db_bench --db=m --benchmarks=fillrandom,readrandom,readseq,compact,readrandom --num=40000 \
    --write_buffer_size=2000000 --compression_type=none --mmap_read=1 --mmap_write=1 --seed=5 \
    --threads=1 2>/dev/null | grep -oE '[0-9]+ of [0-9]+ found'",
        check: "ldb --db=d scan | sha256sum; ldb --db=m scan | sha256sum",
    }
}

program! {
    leveldb {
        under: Under::Small,
        needs: &[("/usr/lib/python3/dist-packages/plyvel", "python3-plyvel")],
        prepare: "cat > l.py <<'END'
import plyvel, hashlib, random
r = random.Random(5)
for round in range(3):
    db = plyvel.DB('db', create_if_missing=True, write_buffer_size=1 << 20)
    for i in range(15000):
        db.put(b'%08d' % r.randrange(40000), r.randbytes(40) * 5)
    for i in range(0, 40000, 17): db.delete(b'%08d' % i)
    db.compact_range()
    h = hashlib.sha256(); n = 0
    for k, v in db: h.update(k + v); n += 1
    print(round, n, h.hexdigest(), db.get(b'00000077') is None); db.close()
END",
        script: "run /usr/bin/python3 l.py",
        check: "/usr/bin/python3 -c \"import plyvel, hashlib
print(hashlib.sha256(b''.join(k + v for k, v in plyvel.DB('db'))).hexdigest())\"",
    }
}

program! {
    rrdtool {
        needs: &[("rrdtool", "rrdtool")],
        script: "
run rrdtool create a.rrd --start 1000000000 --step 1 DS:v:GAUGE:10:U:U DS:w:COUNTER:10:0:U \
    RRA:AVERAGE:0.5:1:200000 RRA:MAX:0.5:10:20000
for i in $(seq 12); do
  values=$(for j in $(seq 40); do
    echo $((1000000000 + i * 80 + j * 2)):$((i * j)):$((i * 1000 + j * 3))
  done)
  run rrdtool update a.rrd $values
done
run rrdtool fetch a.rrd MAX -s 1000000100 -e 1000000900 | sha256sum; run rrdtool dump a.rrd d.xml
run rrdtool restore d.xml b.rrd; run rrdtool resize a.rrd 0 GROW 1000; run rrdtool tune a.rrd -h v:99
run rrdtool lastupdate resize.rrd",
        check: "rrdtool dump a.rrd | sha256sum; rrdtool dump b.rrd | sha256sum
rrdtool dump resize.rrd | sha256sum",
    }
}

program! {
    cdb {
        needs: &[("cdb", "tinycdb")],
        prepare: "words 8000000 3 w; nl -nrz -w8 w | sed 's/\\t/ /' > p",
        script: "run cdb -c -m d.cdb p; run cdb -q -m d.cdb 00000077; run cdb -s d.cdb | head -1
run cdb -d -m d.cdb | sha256sum",
        check: "sha256sum d.cdb",
    }
}

program! {
    /// A search engine whose tables and indexes are shared mappings.
    groonga {
        under: Under::Small,
        needs: &[("groonga", "groonga-bin")],
        prepare: "mkdir db; words 300000 3 w
{ echo 'table_create Docs TABLE_NO_KEY'; echo 'column_create Docs text COLUMN_SCALAR Text'
echo 'table_create Terms TABLE_PAT_KEY ShortText --default_tokenizer TokenBigram'
    echo 'column_create Terms docs COLUMN_INDEX|WITH_POSITION Docs text'
echo 'load --table Docs'; echo '['; sed 's/.*/{\"text\":\"&\"},/; $s/,$//' w; echo; echo ']'; } > load.grn",
        script: "run groonga -n db/x < load.grn | cut -d ']' -f 2- | tail -2
run groonga db/x select Docs --query text:@00 --limit 3 --sort_keys _id | cut -d ']' -f 2-
run groonga db/x object_inspect Terms.docs | grep -o '\"n_tokens\":[0-9]*' || true",
        check: "groonga db/x select Docs --query text:@1 --limit 5 --sort_keys _id | cut -d ']' -f 2-
groonga db/x select Docs --limit 0 | cut -d ']' -f 2-",
    }
}

program! {
    /// systemd's journal files are written through mappings, read by journalctl.
    journal {
        needs: &[
            ("/lib/systemd/systemd-journal-remote", "systemd-journal-remote"),
            ("journalctl", "systemd"),
        ],
        prepare: "words 300000 3 w; i=0
while read -r line; do
  i=$((i + 1)); at=$((i * 1000))
  printf '__REALTIME_TIMESTAMP=%d\\n__MONOTONIC_TIMESTAMP=%d\\n' $((1600000000000000 + at)) $at
  printf '_BOOT_ID=0123456789abcdef0123456789abcdef\\nMESSAGE=%s\\nPRIORITY=%d\\n\\n' \"$line\" $((i % 8))
done < w > export",
        script: "run /lib/systemd/systemd-journal-remote -o one.journal export > out 2>&1
run journalctl --file one.journal -o cat --no-pager | sha256sum
run journalctl --file one.journal -p 3 -o short-unix --no-pager | sha256sum
run journalctl --file one.journal --verify 2>&1 | grep -c PASS",
        check: "journalctl --file one.journal -o cat --no-pager | sha256sum
journalctl --file one.journal --verify 2>&1 | grep -c PASS",
    }
}
