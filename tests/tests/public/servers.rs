//! Servers, most of which fork. Started, asked, stopped, and looked at afterwards.

use elbowroom_tests::public::Under;

use crate::program;

program! {
    /// Its workers share memory through mapped files (`dynamic_shared_memory_type=mmap`). It refuses root.
    postgres {
        needs: &[
            ("/usr/lib/postgresql/15/bin/postgres", "postgresql-15"),
            ("psql", "postgresql-client-15"),
            ("setpriv", "util-linux"),
        ],
        prepare: "mkdir home; chmod 777 home; cat > work.sql <<'END'
CREATE TABLE t(id int PRIMARY KEY, a int, b text);
INSERT INTO t SELECT i, i * 7919 % 20011, md5(i::text) FROM generate_series(1, 30000) i; CREATE INDEX ON t(a);
ANALYZE;
SET force_parallel_mode = on; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0; SET max_parallel_workers_per_gather = 2;
SELECT count(*), sum(a), max(b) FROM t; SELECT count(*) FROM t x JOIN t y ON x.a = y.id WHERE y.b > '8';
RESET force_parallel_mode;
BEGIN; UPDATE t SET b = b || 'x' WHERE id % 3 = 0; ROLLBACK; UPDATE t SET b = b || 'y' WHERE id % 5 = 0;
DELETE FROM t WHERE id % 7 = 0; VACUUM t; CHECKPOINT; SELECT count(*), sum(length(b)) FROM t;
END
chmod -R a+rwX .",
        script: r#"
b=/usr/lib/postgresql/15/bin; set +m; cd home
run "${user[@]}" $b/initdb -D data -U test -A trust -N --no-locale -E UTF8 > out 2>&1 ||
    { tail -5 out; exit 1; }
start() {
  serve "${user[@]}" $b/postgres -D data -c listen_addresses= -c unix_socket_directories=$PWD \
      -c shared_buffers=4MB -c dynamic_shared_memory_type=mmap -c max_connections=20 -c fsync=on > log 2>&1 &
  server=$!
  for i in $(seq 300); do
    psql -h $PWD -U test -c 'SELECT 1' postgres > /dev/null 2>&1 && return
    kill -0 $server || { cat log; exit 1; }; sleep 0.1
  done
  cat log; exit 1
}
stop() { kill -INT $(head -1 data/postmaster.pid); wait $server || echo "server: $?"; }
trap 'kill -QUIT $(head -1 data/postmaster.pid 2>/dev/null) 2>/dev/null || true' EXIT
start; psql -h $PWD -U test -qAt -f ../work.sql postgres
for i in 1 2; do
  (for j in $(seq 30); do echo "UPDATE t SET a = a + 1 WHERE id = 1;"; done) |
    psql -h $PWD -U test -q postgres & p[$i]=$!
done
wait ${p[1]}; wait ${p[2]}
stop; start
psql -h $PWD -U test -qAt -c 'SELECT a FROM t WHERE id = 1' \
    -c 'SELECT count(*), sum(length(b)) FROM t' postgres
stop; trap - EXIT
# A session whose client has ended may not have ended itself when the stop comes.
grep -E 'PANIC|FATAL|terminated' log | grep -v -e 'starting up' -e 'due to administrator command' || true"#,
        check: "/usr/lib/postgresql/15/bin/pg_controldata home/data | grep 'cluster state'",
        under: Under::Small,
        maps: false,
    }
}

program! {
    redis {
        needs: &[("/usr/bin/redis-server", "redis-server"), ("redis-cli", "redis-tools")],
        prepare: "for i in $(seq 3000); do echo \"SET key$i $(printf '%0200d' $i)\"; done > cmds
for i in $(seq 1000); do echo \"INCR n\"; echo \"RPUSH l $i\"; done >> cmds",
        script: r#"
start() {
  serve redis-server --port 0 --unixsocket $PWD/s --appendonly yes --dir $PWD --save '' --logfile log &
  server=$!
  for i in $(seq 100); do
    [ "$(redis-cli -s s ping 2>/dev/null)" = PONG ] && return
    sleep 0.1
  done
  cat log; exit 1
}
trap 'kill $server 2>/dev/null || true' EXIT
start; redis-cli -s s < cmds | sort | uniq -c | sort -n | tail -1; redis-cli -s s bgrewriteaof > out
for i in $(seq 100); do
  redis-cli -s s info persistence | grep -q 'aof_rewrite_in_progress:0' && break
  sleep 0.1
done
redis-cli -s s save; redis-cli -s s shutdown; wait $server
start; redis-cli -s s dbsize; redis-cli -s s get n; redis-cli -s s llen l; redis-cli -s s shutdown
wait $server; trap - EXIT"#,
        check: "redis-check-rdb dump.rdb | grep -c 'looks OK'
redis-check-aof appendonlydir/*.manifest 2>&1 | grep -c 'valid'",
        under: Under::Small,
        maps: false,
    }
}

program! {
    mariadb {
        needs: &[("/usr/sbin/mariadbd", "mariadb-server"), ("mariadb", "mariadb-client")],
        prepare: "cat > work.sql <<'END'
CREATE DATABASE x; USE x; CREATE TABLE t(id INT PRIMARY KEY, a INT, b VARCHAR(100), KEY(a)) ENGINE=InnoDB;
INSERT INTO t SELECT seq, seq * 7919 % 20011, md5(seq) FROM seq_1_to_10000;
CREATE TABLE m ENGINE=Aria SELECT * FROM t; CREATE TABLE i (k INT KEY, b TEXT) ENGINE=MyISAM;
INSERT INTO i SELECT id, b FROM t;
BEGIN; DELETE FROM t; ROLLBACK; UPDATE t SET b = concat(b, 'x') WHERE id % 3 = 0;
SELECT count(*), sum(a), sum(length(b)) FROM t; CHECK TABLE t, m, i; SELECT sum(length(b)) FROM i;
END",
        script: r#"
o="--no-defaults --datadir=$PWD/data --socket=$PWD/s --skip-networking --innodb-buffer-pool-size=8M"
o="$o --innodb-log-file-size=8M --pid-file=$PWD/pid --tmpdir=$PWD --myisam-use-mmap=1 --key-buffer-size=1M"
o="$o --loose-user=$(id -un)"
run mariadb-install-db --no-defaults --datadir=$PWD/data --auth-root-authentication-method=normal \
    --skip-test-db --innodb-log-file-size=8M --user=$(id -un) > out 2>&1 || { tail -5 out; exit 1; }
start() {
  serve /usr/sbin/mariadbd $o > log 2>&1 & server=$!
  for i in $(seq 300); do
    mariadb-admin -S s ping > /dev/null 2>&1 && return
    kill -0 $server || { tail log; exit 1; }; sleep 0.1
  done
  tail log; exit 1
}
trap 'kill $server 2>/dev/null || true' EXIT
start; mariadb -S s -N < work.sql; mariadb-admin -S s shutdown; wait $server; start
mariadb -S s -N -e 'SELECT count(*), sum(a), sum(length(b)) FROM x.t; CHECK TABLE x.t, x.m, x.i;
  SELECT sum(length(b)) FROM x.i'
mariadb-admin -S s shutdown; wait $server; trap - EXIT"#,
        under: Under::Small,
        maps: false,
    }
}

program! {
    nginx {
        needs: &[("/usr/sbin/nginx", "nginx-light"), ("curl", "curl")],
        prepare: "mkdir www logs; words 5000000 1 www/a; bytes 300000 2 www/b; cat > n.conf <<END
daemon off; worker_processes 2; pid pid; error_log stderr; events { worker_connections 64; }
http { access_log off; sendfile on; aio threads=default; client_body_temp_path t1; proxy_temp_path t2;
    fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
  server { listen unix:s; root www;
      location /u { dav_methods PUT; create_full_put_path on; } location /d { alias www/; directio 4k; } } }
END
sed -i 's/aio threads=default;//; s/dav_methods PUT; create_full_put_path on;//' n.conf; chmod -R a+rwX .",
        script: r#"
sed "s#listen unix:s#listen unix:$PWD/s#" n.conf > c; printf 'user root;\n' > d; cat c >> d
serve /usr/sbin/nginx -p $PWD -c d 2> log & server=$!; trap 'kill $server 2>/dev/null || true' EXIT
for i in $(seq 100); do curl -m 5 -s --unix-socket s http://x/b -o one && break; sleep 0.1; done
for f in a b d/a; do curl -m 5 -s --unix-socket s http://x/$f | sha256sum; done
curl -m 5 -s --unix-socket s -r 100000-100100 http://x/a
for i in 1 2 3; do curl -m 5 -s --unix-socket s http://x/a | sha256sum & p[$i]=$!; done
wait ${p[@]}; kill -QUIT $server; wait $server; trap - EXIT"#,
        under: Under::Small,
        maps: false,
    }
}
