//! What packs, copies and compares files.

use elbowroom_tests::public::Under;

use crate::program;

/// A tree of some megabytes, with a sparse file.
const TREE: &str = "
mkdir -p tree/a/b tree/c
for i in 1 2 3; do words 1500000 $i tree/a/$i.txt; bytes 1200000 $i tree/a/b/$i.bin; done
words 200 9 tree/c/small.txt; ln -s ../a/1.txt tree/c/link; ln tree/a/2.txt tree/c/hard
truncate -s 8M tree/c/sparse; printf data | dd of=tree/c/sparse bs=1 seek=5000000 conv=notrunc status=none
touch -d @1600000000 $(find tree -type f)";
/// The names, sizes and sums of what is in a directory.
const SUMS: &str = "find . -type f | LC_ALL=C sort | xargs sha256sum";

program! {
    tar {
        needs: &[("tar", "tar")],
        prepare: TREE,
        script: "run tar --sort=name -S -cf t.tar tree; mkdir out; run tar -xf t.tar -C out
run tar -df t.tar; run tar -tvf t.tar | wc -l",
        check: SUMS,
        maps: false,
    }
}

program! {
    cp_sparse {
        needs: &[("cp", "coreutils")],
        prepare: TREE,
        script: "run cp -a --sparse=always tree one; run cp -r --reflink=auto tree two
run cp --sparse=auto tree/c/sparse three
diff -r tree one; diff -r tree two; cmp tree/c/sparse three",
        check: "du -k one/c/sparse three | cut -f 1; find . -type f | sort | xargs sha256sum",
        maps: false,
    }
}

program! {
    rsync {
        needs: &[("rsync", "rsync")],
        prepare: TREE,
        script: "run rsync -a tree/ one/; words 100000 77 add; cat add >> tree/a/1.txt
printf x | dd of=tree/a/b/1.bin bs=1 seek=777777 conv=notrunc status=none
run rsync -a --no-whole-file --inplace --checksum tree/ one/; run rsync -aS --no-whole-file -z tree/ two/
run rsync -anc --itemize-changes tree/ two/; diff -r tree one; diff -r tree two",
        check: SUMS,
        maps: false,
    }
}

program! {
    cmp_and_diff {
        needs: &[("cmp", "diffutils")],
        prepare: "words 6000000 1 a; cp a b; printf '#' | dd of=b bs=1 seek=4000000 conv=notrunc status=none",
        script: "run cmp a a; run cmp a b || echo $?; run cmp -l a b || echo $?; run diff a b || echo $?
run cmp -n 3000000 a b",
        maps: false,
    }
}

program! {
    xz {
        needs: &[("xz", "xz-utils")],
        prepare: "words 2500000 1 a; bytes 500000 2 b",
        script: "run xz -k -2 -T2 --block-size=1MiB a; run xz -k -1 b; run xz -t a.xz b.xz
run xz -dc a.xz | cmp - a; run xz -l --robot a.xz | head -2; sha256sum *",
        maps: false,
    }
}

program! {
    zstd {
        needs: &[("zstd", "zstd")],
        prepare: "words 6000000 1 a; bytes 3000000 2 b; cp b c; bytes 20000 8 d; cat d >> c",
        script: "run zstd -q -k -3 -T2 a; run zstd -q -k --long b; run zstd -q -k --patch-from=b c -o p.zst
run zstd -q -t a.zst b.zst; run zstd -q -d --patch-from=b p.zst -o c2; cmp c c2
run zstd -q -dc a.zst | cmp - a; sha256sum *",
        maps: false,
    }
}

program! {
    zip {
        needs: &[("zip", "zip"), ("unzip", "unzip")],
        prepare: TREE,
        script: "run zip -q -X -r t.zip tree; run unzip -q t.zip -d out; run unzip -t -q t.zip
diff -r tree out/tree; run zip -q -X -d t.zip 'tree/c/*'; run unzip -Z1 t.zip",
        check: "sha256sum t.zip",
        maps: false,
    }
}

program! {
    p7zip {
        needs: &[("7z", "p7zip-full")],
        prepare: TREE,
        script: "rm tree/c/link; run 7z a -bd -mx1 -mtm=off t.7z tree > out; run 7z x -bd -oout.d t.7z > out
diff -r tree out.d/tree; run 7z t t.7z | grep -c Ok",
        maps: false,
        under: Under::Small,
    }
}

program! {
    busybox {
        needs: &[("/bin/busybox", "busybox")],
        prepare: TREE,
        script: "run busybox tar -cf t.tar tree; run busybox sha256sum t.tar tree/a/*.txt | wc -l
run busybox gzip -k t.tar; run busybox gunzip -c t.tar.gz | cmp - t.tar
run busybox sort tree/a/1.txt | sha256sum; run busybox grep -c ad tree/a/1.txt
run busybox sed -n '5p' tree/a/2.txt; run busybox awk '{ n += NF } END { print n }' tree/a/3.txt",
        maps: false,
        under: Under::Small,
    }
}

program! {
    squashfs {
        needs: &[("mksquashfs", "squashfs-tools")],
        prepare: TREE,
        script: "
run mksquashfs tree t.sqsh -quiet -no-progress -processors 2 -all-root -mkfs-time 0 -comp gzip > out
run unsquashfs -q -n -d out.d t.sqsh > out; diff -r tree out.d
run unsquashfs -lls t.sqsh | wc -l",
        check: "sha256sum t.sqsh",
        maps: false,
        under: Under::Small,
    }
}

program! {
    e2fsprogs {
        needs: &[("/sbin/mke2fs", "e2fsprogs")],
        prepare: TREE,
        script: "truncate -s 48M image
run /sbin/mke2fs -q -t ext4 -E hash_seed=01234567-89ab-cdef-0123-456789abcdef \
    -U 01234567-89ab-cdef-0123-456789abcdef -d tree image
run /sbin/e2fsck -fn image 2>/dev/null | grep -c Pass
run /sbin/debugfs -R 'dump /a/1.txt one' image 2>/dev/null; cmp one tree/a/1.txt
run /sbin/debugfs -R 'ls -l /a' image 2>/dev/null | awk '{ print $6, $9 }'
run /sbin/resize2fs image 40M >/dev/null 2>&1; /sbin/e2fsck -fn image 2>/dev/null | grep -c Pass",
        maps: false,
        under: Under::Small,
    }
}

program! {
    sort {
        needs: &[("sort", "coreutils")],
        prepare: "words 8000000 1 a; words 4000000 2 b",
        script: "run sort -S 4M -T . --parallel=2 a b -o c; run sort -c c
run sort -u -S 4M -T . -k 2,2 a | sha256sum; run sort -m <(sort a) <(sort b) | cmp - c; run tail -n 3 c
run shuf --random-source=b a | sort -S 4M -T . | cmp - <(sort a)",
        check: "sha256sum c",
        maps: false,
        under: Under::Small,
    }
}

program! {
    /// The mmap engine of fio, with its own verification.
    fio {
        needs: &[("fio", "fio")],
        script: "
run fio --name=m --ioengine=mmap --rw=randwrite --bs=4k --size=24M --verify=crc32c --filename=one \
    --randseed=7 --allrandrepeat=1 --output=1.out --minimal
run fio --name=m --ioengine=mmap --rw=rw --bs=64k --size=24M --verify=md5 --filename=two --randseed=8 \
    --allrandrepeat=1 --fsync=64 --output=2.out --minimal
fio --name=m --ioengine=psync --rw=randwrite --bs=4k --size=24M --verify=crc32c --verify_only --filename=one \
    --randseed=7 --allrandrepeat=1 --output=3.out --minimal
run fio --name=t --ioengine=mmap --rw=randwrite --thread --numjobs=4 --bs=16k --size=6M --verify=crc32c \
    --directory=. --randseed=9 --allrandrepeat=1 --output=4.out --minimal
cut -d ';' -f 3,5 1.out 2.out 3.out 4.out",
        check: "wc -c one two",
    }
}

program! {
    /// A version control system in Python that maps its bloom filters and indexes, and writes to the former.
    bup {
        needs: &[("bup", "bup")],
        prepare: TREE,
        script: "export BUP_DIR=$PWD/b GIT_AUTHOR_NAME=a
run bup init > out 2>&1; run bup index tree > out 2>&1; run bup save -q -n one --date 1600000000 tree
run bup bloom > out 2>&1; run bup midx -a > out 2>&1
words 500000 44 tree/c/new; run bup index tree > out 2>&1; run bup save -q -n one --date 1600000001 tree
run bup bloom --check $(ls b/objects/pack/*.idx | head -1) > out 2>&1
run bup restore -q -C back one/latest/$PWD/tree/.; diff -r tree back",
        check: "BUP_DIR=$PWD/b bup fsck > out 2>&1 && echo sound",
        under: Under::Small,
    }
}

program! {
    stress_ng {
        needs: &[("stress-ng", "stress-ng")],
        script: "run stress-ng --mmap 1 --mmap-file --mmap-bytes 2M --mmap-ops 2 --verify --no-rand-seed -q
run stress-ng --msync 1 --msync-bytes 4M --msync-ops 200 --verify -q --no-rand-seed
run stress-ng --mremap 1 --mremap-bytes 4M --mremap-ops 20 --verify -q --no-rand-seed; echo done",
        maps: false,
        under: Under::Small,
    }
}
