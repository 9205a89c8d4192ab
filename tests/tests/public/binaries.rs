//! Compilers, linkers, debuggers and what else reads and writes binaries.

use elbowroom_tests::public::Under;

use crate::program;

/// Many functions in several objects, with debugging information, so that the program has a megabyte or more.
const OBJECTS: &str = r#"
for f in 1 2 3 4; do
    { echo '#include <stdio.h>'
      for i in $(seq 400); do
          echo "int f${f}_$i(int x) { static int n[20]; n[x % 20] += $i; return n[$i % 20] * $f; }"
      done
      echo "int run$f(void) { int s = 0;"; for i in $(seq 400); do echo "s += f${f}_$i($i);"; done
      echo 'return s; }'; } > $f.c
done
echo '#include <stdio.h>
int run1(void), run2(void), run3(void), run4(void);
int main(void) { printf("%d\n", run1() + run2() + run3() + run4()); }' > main.c
cc -g -c 1.c 2.c 3.c 4.c main.c
"#;

macro_rules! linker {
    ($name:ident $linker:literal $command:literal $package:literal $said:expr) => {
        program! {
            /// The output is executed at once.
            $name {
                needs: &[($command, $package), ("cc", "build-essential")],
                prepare: OBJECTS,
                script: concat!(
                    "run cc -fuse-ld=", $linker, " -Wl,--build-id=none -o out main.o 1.o 2.o 3.o 4.o\n",
                    "./out\n",
                    "run cc -fuse-ld=", $linker, " -Wl,--build-id=none -shared -o lib.so 1.o 2.o 3.o 4.o\n",
                    "run cc -fuse-ld=", $linker, " -Wl,--build-id=none -o with main.o $PWD/lib.so ",
                    "-Wl,-rpath,$PWD; ./with"
                ),
                check: "objdump -d out | sha256sum; ./out; ./with",
                maps: false,
                said: $said,
            }
        }
    };
}

linker!(ld_bfd "bfd" "ld.bfd" "binutils" None);
linker!(ld_gold "gold" "ld.gold" "binutils" None);
linker!(lld "lld" "ld.lld" "lld" None);
linker!(mold "mold" "mold" "mold" Some("the executable has an allocator of its own"));

program! {
    /// The compiler maps its precompiled headers.
    gcc {
        needs: &[("g++", "g++")],
        prepare: "printf '#include <map>\\n#include <string>\\n#include <cstdio>\\n' > all.h
printf '#include \"all.h\"\\nint main() { std::map<std::string, int> m; m[\"a\"] = 7; \
    std::puts(m[\"a\"] == 7 ? \"seven\" : \"no\"); }\\n' > a.cc",
        script: "run g++ -O1 -x c++-header all.h -o all.h.gch; run g++ -O1 -Winvalid-pch -o a a.cc; ./a
run g++ -O1 -S -o - a.cc | sha256sum",
        check: "./a",
        under: Under::Files,
        maps: false,
    }
}

program! {
    objdump {
        needs: &[("objdump", "binutils"), ("cc", "build-essential")],
        prepare: concat!("words 10 1 w\n", "cp $(realpath /usr/bin/git) program"),
        script: "run objdump -d --no-show-raw-insn program | sha256sum; run objdump -x program | sha256sum
run nm -D program | wc -l
run readelf -a --wide program 2>&1 | sha256sum; run strings -n 12 program | sha256sum
run strip -o stripped program; run objcopy --only-keep-debug program debug
run size program | tail -1 | cut -f 1-3",
        check: "sha256sum stripped debug",
        maps: false,
    }
}

program! {
    /// These use libelf, which maps.
    elfutils {
        needs: &[("eu-readelf", "elfutils"), ("cc", "build-essential"), ("dwz", "dwz")],
        prepare: concat!("cp $(realpath /usr/bin/git) program\n", r#"
for i in 1 2; do
    for f in $(seq 500); do
        echo "struct s$f { int a[$f]; struct s$f *next; }; int g${i}_$f(struct s$f *s) { return s->a[0]; }"
    done > $i.c
done
cc -g -c 1.c 2.c; cc -g -shared -o lib.so 1.o 2.o"#),
        script: "run eu-readelf -a program 2>&1 | sha256sum; run eu-nm -D program | wc -l
run eu-strip -o stripped -f debug lib.so; run eu-elfcmp program program
run eu-unstrip -o whole stripped debug
run eu-ar rc t.a 1.o 2.o; run eu-ranlib t.a; run eu-elflint --gnu-ld lib.so | tail -3
run dwz -o small.so lib.so; eu-readelf -w lib.so | sha256sum
run eu-size program | tail -1 | awk '{ print $1 }'",
        check: "sha256sum stripped debug whole small.so; eu-ar t t.a",
    }
}

program! {
    gdb {
        needs: &[("gdb", "gdb"), ("cc", "build-essential")],
        prepare: OBJECTS,
        script: "cc -g -o out main.o 1.o 2.o 3.o 4.o
run gdb -nx -q -batch -ex 'info line f2_300' -ex 'print sizeof(f1_1)' -ex 'list f3_100' \
    -ex 'disassemble f4_9' out 2>&1 | sha256sum
run gdb -nx -q -batch -ex 'set startup-with-shell off' -ex 'set env LD_PRELOAD' -ex 'break f2_77' -ex run \
    -ex bt -ex 'print x' -ex kill out 2>&1 | grep -E '^#|^\\$1' | sed 's/0x[0-9a-f]*/ADDRESS/'",
        maps: false,
        under: Under::Usual,
    }
}

program! {
    strace {
        needs: &[("strace", "strace")],
        prepare: "words 2000000 1 a",
        script: "run strace -f -o trace -e trace=openat,write sha256sum a; grep -c '\"a\"' trace
run strace -c -o count cat a | sha256sum; grep -c total count",
        maps: false,
    }
}

program! {
    /// Locale archives are mapped, grown and locked by localedef.
    localedef {
        under: Under::Files,
        needs: &[("localedef", "libc-bin"), ("/usr/share/i18n/locales/de_DE", "locales")],
        prepare: "mkdir -p root/usr/lib/locale",
        script: "run localedef --prefix=$PWD/root -i en_GB -f UTF-8 en_GB.UTF-8
run localedef --prefix=$PWD/root -i de_DE -f ISO-8859-1 de_DE; run localedef --prefix=$PWD/root --list-archive
run localedef --prefix=$PWD/root --delete-from-archive de_DE
run localedef --prefix=$PWD/root --list-archive",
        check: "localedef --prefix=$PWD/root --list-archive",
    }
}
