//! Interpreters and compilers whose programs map files. The programs are ours, what runs them is not.

use elbowroom_tests::public::Under;

use crate::program;

const PYTHON: (&str, &str) = ("/usr/bin/python3", "python3");

program! {
    /// Python's own test of its module, and of others that use files.
    python_test_mmap {
        needs: &[PYTHON, ("/usr/lib/python3.11/test/test_mmap.py", "libpython3.11-testsuite")],
        script: "run /usr/bin/python3 -m unittest -v test.test_mmap > out 2>&1 || { cat out; exit 1; }
grep -E '^test|^OK' out | sort",
    }
}

program! {
    python_test_files {
        needs: &[PYTHON, ("/usr/lib/python3.11/test/test_file.py", "libpython3.11-testsuite")],
        script: "run /usr/bin/python3 -m unittest -v test.test_file test.test_fileio test.test_bufio \
    test.test_dbm_gnu > out 2>&1 || { cat out; exit 1; }
grep -E '^test|^OK' out | sed 's/@test_[0-9]*/@test/' | sort",
        under: Under::Small,
        maps: false,
    }
}

program! {
    numpy {
        needs: &[PYTHON, ("/usr/lib/python3/dist-packages/numpy", "python3-numpy")],
        prepare: "cat > n.py <<'END'
import numpy as np, os
a = np.memmap('a', dtype='f8', mode='w+', shape=(1500, 1500)); r = np.random.default_rng(7)
a[:] = r.random((1500, 1500)); a.flush(); b = np.memmap('a', dtype='f8', mode='r', shape=(1500, 1500))
c = np.memmap('c', dtype='f8', mode='w+', shape=(1500, 1500)); c[:] = b.T; c[::7] += 1; c.flush()
print(a.sum(), c.sum(), np.argmax(b), (b @ c[:, :10]).sum().round(6)); c.sort(axis=1); del c
np.save('s.npy', a); s = np.load('s.npy', mmap_mode='c'); s[5] = 0
print(s[:20].sum(), np.load('s.npy', mmap_mode='r')[:20].sum())
w = np.load('s.npy', mmap_mode='r+'); w[9] = 9; w.flush(); print(np.load('s.npy')[8:10].sum())
a.resize((10,)) if False else None
x = np.lib.format.open_memmap('x.npy', mode='w+', dtype='i4', shape=(2000, 1000)); x[:] = np.arange(1000)
x[::2] *= -1; print(x.sum(), x[3, ::100]); del x
print(np.fromfile('c', dtype='f8').sum(), os.stat('c').st_size)
END",
        script: "run /usr/bin/python3 n.py",
        under: Under::Files,
        check: "sha256sum a c s.npy x.npy",
    }
}

program! {
    /// A pool of forked children that open and map the same file.
    python_multiprocessing {
        needs: &[PYTHON],
        prepare: "bytes 8000000 5 data; cat > m.py <<'END'
import mmap, multiprocessing as mp, hashlib, os, fcntl
def part(i):
    with open('data', 'r+b') as f, mmap.mmap(f.fileno(), 0) as m:
        h = hashlib.sha256(m[i * 1000000:(i + 1) * 1000000]).hexdigest()
        with open('lock', 'w') as l:
            fcntl.lockf(l, fcntl.LOCK_EX)
            m[:8] = (int.from_bytes(m[:8], 'little') + 1).to_bytes(8, 'little'); m.flush()
            fcntl.lockf(l, fcntl.LOCK_UN)
        m[i * 1000000 + 100:i * 1000000 + 132] = bytes.fromhex(h); return i, h
if __name__ == '__main__':
    for method in ['fork', 'spawn']:
        with open('data', 'r+b') as f: f.write(bytes(8))
        with mp.get_context(method).Pool(3) as pool:
            for i, h in sorted(pool.map(part, range(1, 8))): print(method, i, h)
        print(int.from_bytes(open('data', 'rb').read(8), 'little'))
END",
        script: "run /usr/bin/python3 m.py",
        check: "sha256sum data",
        maps: false,
    }
}

program! {
    java {
        needs: &[("/usr/lib/jvm/java-17-openjdk-amd64/bin/javac", "openjdk-17-jdk-headless")],
        prepare: "cat > M.java <<'END'
import java.io.*; import java.nio.*; import java.nio.channels.*; import java.nio.file.*;
import java.util.zip.CRC32;
public class M { public static void main(String[] x) throws Exception {
  try (RandomAccessFile f = new RandomAccessFile(\"data\", \"rw\"); FileChannel c = f.getChannel()) {
    MappedByteBuffer b = c.map(FileChannel.MapMode.READ_WRITE, 0, 12 << 20);
    for (int i = 0; i < b.capacity(); i += 8) b.putLong(i, i * 0x9e3779b97f4a7c15L);
    b.force(); b.force(4096, 8192); b.putInt(77, 42);
    ByteBuffer r = ByteBuffer.allocate(4096); c.read(r, 0); System.out.println(r.getInt(77));
    c.write(ByteBuffer.wrap(\"written\".getBytes()), 5 << 20);
    System.out.println((char) b.get((5 << 20) + 2));
    Thread[] t = new Thread[3]; long[] s = new long[3];
    for (int k = 0; k < 3; k++) { final int n = k; t[k] = new Thread(() -> {
      for (int i = n * (4 << 20); i < (n + 1) * (4 << 20); i += 64) s[n] += b.getLong(i); }); t[k].start(); }
    for (int k = 0; k < 3; k++) { t[k].join(); System.out.println(s[k]); }
    MappedByteBuffer p = c.map(FileChannel.MapMode.PRIVATE, 4096, 2 << 20); p.putLong(0, 1);
    System.out.println(b.getLong(4096));
    FileChannel o = FileChannel.open(Path.of(\"copy\"), StandardOpenOption.CREATE, StandardOpenOption.WRITE);
    c.transferTo(0, c.size(), o); o.close();
    MappedByteBuffer big = c.map(FileChannel.MapMode.READ_WRITE, 12 << 20, 3 << 20);
    big.put(big.capacity() - 1, (byte) 7); System.out.println(c.size());
    c.truncate(13 << 20); System.out.println(c.size()); }
  try (FileChannel c = FileChannel.open(Path.of(\"data\"))) {
    MappedByteBuffer b = c.map(FileChannel.MapMode.READ_ONLY, 0, c.size()); b.load();
    CRC32 k = new CRC32(); k.update(b); System.out.println(k.getValue()); } } }
END
/usr/lib/jvm/java-17-openjdk-amd64/bin/javac M.java",
        script: "run /usr/lib/jvm/java-17-openjdk-amd64/bin/java -Xmx64m -cp . M",
        check: "sha256sum data copy",
    }
}

program! {
    /// Programs of Go make their system calls themselves. With C in them they are dynamic, and the library is
    /// there.
    go {
        needs: &[("/usr/lib/go-1.19/bin/go", "golang-1.19-go"), ("cc", "build-essential")],
        prepare: "mkdir src; cat > src/m.go <<'END'
package main
// #include <stdlib.h>
import \"C\"
import (\"crypto/sha256\"; \"fmt\"; \"os\"; \"syscall\"; \"sync\")
func check(err error) { if err != nil { panic(err) } }
func main() {
  C.abs(-1); f, err := os.OpenFile(\"data\", os.O_RDWR|os.O_CREATE, 0644); check(err);
  check(f.Truncate(8 << 20))
  m, err := syscall.Mmap(int(f.Fd()), 0, 8<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED);
  check(err)
  var w sync.WaitGroup
  for g := 0; g < 8; g++ { w.Add(1); go func(g int) {
    for i := g << 20; i < (g+1)<<20; i++ { m[i] = byte(i * 7 >> uint(g)) }; w.Done() }(g) }
  w.Wait(); b := make([]byte, 100); _, err = f.ReadAt(b, 5000000); check(err); fmt.Println(b[:10]);
  _, err = f.WriteAt([]byte(\"written\"), 3000000); check(err)
  fmt.Println(string(m[3000000:3000007])); fmt.Printf(\"%x\\n\", sha256.Sum256(m)); check(syscall.Munmap(m));
  check(f.Close())
}
END
export GOCACHE=$PWD/cache GOFLAGS=-mod=mod GO111MODULE=off; /usr/lib/go-1.19/bin/go build -p 2 -o m src/m.go
chmod -R u+w cache; rm -rf cache",
        script: "run ./m",
        check: "sha256sum data",
        maps: false,
        said: Some("a Go program"),
    }
}

program! {
    /// The runtime has libc make its threads while all signals are blocked, and unblocks them by itself. On
    /// which thread the fault comes, is chance.
    go_that_recovers {
        needs: &[("/usr/lib/go-1.19/bin/go", "golang-1.19-go"), ("cc", "build-essential")],
        prepare: "mkdir src; cat > src/m.go <<'END'
package main
import (\"fmt\"; _ \"net\"; \"os/exec\"; \"runtime\")
type node struct { k int }
func fault() { defer func() { recover() }(); var p *node; fmt.Println(p.k) }
func main() {
  var keep [][]byte
  for i := 0; i < 40; i++ { b := make([]byte, 1<<20); for k := range b { b[k] = byte(k * i) }
    keep = append(keep, b) }
  done := make(chan bool)
  for i := 0; i < 50; i++ { go func() { runtime.LockOSThread(); fault(); done <- true }() }
  for i := 0; i < 50; i++ { <-done }
  out, err := exec.Command(\"echo\", \"child\").Output(); fmt.Print(string(out), err, keep[7][100], \"\\n\")
}
END
export GOCACHE=$PWD/cache GOFLAGS=-mod=mod GO111MODULE=off; /usr/lib/go-1.19/bin/go build -p 2 -o m src/m.go
chmod -R u+w cache; rm -rf cache",
        script: "for i in 1 2 3 4; do run ./m; done",
        maps: false,
        said: Some("a Go program"),
    }
}

program! {
    rust {
        needs: &[("rustc", "rustc")],
        prepare: "cat > m.rs <<'END'
use std::{fs, io::*, os::fd::AsRawFd, os::unix::fs::FileExt, ptr, slice, thread};
extern \"C\" { fn mmap(a: *mut u8, n: usize, p: i32, f: i32, d: i32, o: i64) -> *mut u8;
    fn munmap(a: *mut u8, n: usize) -> i32; fn msync(a: *mut u8, n: usize, f: i32) -> i32; }
fn main() {
    let n = 10 << 20;
    let mut f = fs::OpenOptions::new().read(true).write(true).create(true).open(\"data\").unwrap();
    f.set_len(n as u64).unwrap();
    let m: &'static mut [u8] =
        unsafe { slice::from_raw_parts_mut(mmap(ptr::null_mut(), n, 3, 1, f.as_raw_fd(), 0), n) };
    let at = m.as_mut_ptr() as usize;
    let t: Vec<_> = m.chunks_mut(n / 4).enumerate().map(|(k, c)| thread::spawn(move || {
        for (i, b) in c.iter_mut().enumerate() { *b = (i * (k + 3) >> 5) as u8 }
        c.iter().map(|&b| b as u64).sum::<u64>() })).collect();
    for t in t { println!(\"{}\", t.join().unwrap()) }
    f.write_at(b\"written\", 3_000_000).unwrap();
    let m = unsafe { slice::from_raw_parts_mut(at as *mut u8, n) };
    println!(\"{:?}\", &m[3_000_000..3_000_007]);
    m[9_000_000] = 77; let mut b = [0; 3]; f.read_exact_at(&mut b, 8_999_999).unwrap(); println!(\"{b:?}\");
    assert_eq!(unsafe { msync(at as *mut u8, n, 4) }, 0);
    println!(\"{}\", fs::read(\"data\").unwrap().iter().map(|&b| b as u64).sum::<u64>());
    f.seek(SeekFrom::Start(5)).unwrap(); let mut s = vec![]; f.read_to_end(&mut s).unwrap();
    println!(\"{}\", s == m[5..]);
    fs::copy(\"data\", \"copy\").unwrap(); m[1] = 99; assert_eq!(unsafe { munmap(at as *mut u8, n) }, 0);
    println!(\"{}\", fs::read(\"data\").unwrap()[1]);
}
END
${RUSTC:-rustc} --edition 2021 -O -o m m.rs 2> errors || { cat errors; exit 1; }",
        script: "run ./m",
        check: "sha256sum data copy",
    }
}

program! {
    perl_file_map {
        needs: &[("perl", "perl"), ("/usr/lib/x86_64-linux-gnu/perl5/5.36/File/Map.pm", "libfile-map-perl")],
        prepare: "words 8000000 4 data; cat > f.pl <<'END'
use strict; use File::Map qw(:map :constants :extra advise); use Digest::SHA qw(sha256_hex);
map_file my $m, 'data', '+<'; advise $m, 'sequential'; my $n = () = $m =~ /dead/g;
print length($m), \" $n\\n\";
substr($m, 1000, 5) = 'PERL!'; substr($m, 7000000, 3) = 'end'; sync $m; pin $m if 0;
print sha256_hex($m), \"\\n\";
open my $f, '<', 'data'; seek $f, 6999998, 0; read $f, my $b, 8; print \"$b\\n\";
map_handle my $p, $f, '<', 4096, 2000000; print sha256_hex($p), \"\\n\"; unmap $p; unmap $m;
map_anonymous my $a, 100000, 'shared'; substr($a, 5, 3) = 'abc';
print substr($a, 4, 5) eq \"\\0abc\\0\" ? \"yes\\n\" : \"no\\n\";
END",
        script: "run perl f.pl",
        check: "sha256sum data",
    }
}

program! {
    perl_sys_mmap {
        needs: &[("perl", "perl"), ("/usr/lib/x86_64-linux-gnu/perl5/5.36/Sys/Mmap.pm", "libsys-mmap-perl")],
        prepare: "words 8000000 4 data; cat > f.pl <<'END'
use strict; use Sys::Mmap; my $m; open my $f, '+<', 'data' or die;
mmap($m, 0, PROT_READ|PROT_WRITE, MAP_SHARED, $f) or die;
print length $m, \"\\n\"; my $n = ($m =~ tr/a/a/); print \"$n\\n\"; substr($m, 12345, 4) = 'perl';
print substr($m, 12344, 6), \"\\n\"; munmap($m);
new Sys::Mmap my $t, 8192, 'tied'; $t = 'hello'; print \"$t\\n\"; open my $g, '<', 'data'; seek $g, 12344, 0;
read $g, my $b, 6; print \"$b\\n\";
END",
        script: "run perl f.pl",
        check: "sha256sum data; head -c 5 tied",
        // It opens its files with stdio, too.
        maps: false,
    }
}

program! {
    ruby {
        needs: &[("ruby", "ruby")],
        prepare: "words 4000000 4 data; cat > r.rb <<'END'
require 'digest'; require 'pstore'
puts Digest::SHA256.file('data').hexdigest, File.foreach('data').count { |l| l.include?('dead') }
b = IO::Buffer.map(File.open('data', 'r+')) rescue b = nil
if b then puts b.size; b.set_string('RUBY!', 1_000_000); puts b.get_string(999_998, 9); b.free end
s = PStore.new('store'); 50.times { |i| s.transaction { s[i] = 'x' * i * 100 } };
s.transaction(true) { puts s.roots.size }
puts fork { exit 3 }.then { |p| Process.wait2(p)[1].exitstatus }; puts `echo child`
END",
        script: "run ruby -W0 r.rb",
        check: "sha256sum data store",
        maps: false,
    }
}

program! {
    node {
        needs: &[("node", "nodejs")],
        prepare: "words 4000000 4 data; cat > n.js <<'END'
const fs = require('fs'), c = require('crypto'), { Worker, isMainThread } = require('worker_threads');
console.log(c.createHash('sha256').update(fs.readFileSync('data')).digest('hex'));
fs.copyFileSync('data', 'copy'); const f = fs.openSync('copy', 'r+'); fs.writeSync(f, 'node', 5000);
fs.fdatasyncSync(f);
const code = `require('worker_threads').parentPort.postMessage(require('fs').readFileSync('copy').length)`;
const w = new Worker(code, { eval: true }); w.on('message', m => console.log(m));
w.on('exit', () => console.log(require('child_process').execSync('sha256sum copy').toString().slice(0, 20)));
END",
        script: "run node n.js",
        check: "sha256sum copy",
        maps: false,
        under: Under::Small,
    }
}

program! {
    r_language {
        needs: &[("R", "r-base-core")],
        prepare: "words 500000 4 data; cat > r.R <<'END'
x <- matrix(sin(1:250000), 500); saveRDS(x, 'x.rds', compress = FALSE); y <- readRDS('x.rds');
print(identical(x, y)); print(sum(x %*% y)); l <- readLines('data'); print(sum(nchar(l)));
print(head(sort(table(substr(l, 1, 1))), 3)); writeLines(rev(l), 'rev')
END",
        script: "run Rscript --vanilla r.R",
        check: "sha256sum rev",
        maps: false,
        under: Under::Usual,
    }
}

program! {
    /// Its big arrays are shared mappings that grow their file.
    ocaml {
        needs: &[("ocamlopt", "ocaml-nox"), ("cc", "build-essential")],
        prepare: "cat > m.ml <<'END'
open Bigarray
let () =
  let fd = Unix.openfile \"data\" [Unix.O_RDWR; Unix.O_CREAT] 0o644 in
  let a = array1_of_genarray (Unix.map_file fd float64 c_layout true [| 1000000 |]) in
  for i = 0 to 999999 do a.{i} <- float (i * 7919 mod 10007) done;
  let s = ref 0.0 in for i = 0 to 999999 do s := !s +. a.{999999 - i} done; Printf.printf \"%.0f\\n\" !s;
  ignore (Unix.lseek fd 8000 Unix.SEEK_SET); let b = Bytes.create 16 in ignore (Unix.read fd b 0 16);
  print_endline (Digest.to_hex (Digest.bytes b));
  let g = array1_of_genarray (Unix.map_file fd ~pos:8000000L int8_unsigned c_layout true [| 3000000 |]) in
  g.{2999999} <- 7; Gc.full_major ();
  Printf.printf \"%d %d\\n\" (Unix.fstat fd).Unix.st_size g.{2999999}
END
ocamlfind ocamlopt -package unix -linkpkg m.ml -o m 2>/dev/null || ocamlopt unix.cmxa m.ml -o m",
        script: "run ./m",
        check: "sha256sum data",
    }
}

program! {
    /// The program's own memory is mapped from its core file, and it handles SIGSEGV itself.
    sbcl {
        needs: &[("sbcl", "sbcl")],
        prepare: "cat > a.lisp <<'END'
(defun fib (n) (if (< n 2) n (+ (fib (- n 1)) (fib (- n 2))))) (format t \"~a~%\" (fib 27))
(let ((h (make-hash-table))) (dotimes (i 300000) (setf (gethash i h) (make-string 20)))
  (sb-ext:gc :full t) (format t \"~a~%\" (hash-table-count h)))
(handler-case (sb-sys:sap-ref-8 (sb-sys:int-sap 16) 0) (error () (format t \"fault~%\")))
(sb-ext:save-lisp-and-die \"new.core\")
END",
        script: "
run sbcl --noinform --no-userinit --no-sysinit --disable-debugger --load a.lisp 2>/dev/null |
  grep -v -E '^\\[|^$'
run sbcl --noinform --core new.core --no-userinit --no-sysinit --disable-debugger \
    --eval '(progn (print (fib 20)) (terpri) (sb-ext:exit))'",
        maps: false,
    }
}
