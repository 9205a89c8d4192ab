//! What looks something up in files.

use elbowroom_tests::public::Under;

use crate::program;

/// Four files of text.
const TEXTS: &str = "for i in 1 2 3 4; do words 4000000 $i $i.txt; done";

program! {
    grep {
        needs: &[("grep", "grep")],
        prepare: TEXTS,
        script: "run grep -c dead *.txt; run grep -n -E 'a.{3}e beef?' 1.txt | sha256sum
run grep -ob 0000 2.txt | tail -2; run grep -q nothing-of-it 3.txt || echo $?; run wc *.txt
run head -c 3000000 1.txt | tail -c 20",
        maps: false,
    }
}

program! {
    ripgrep_mmap {
        needs: &[("rg", "ripgrep")],
        prepare: TEXTS,
        script: "run rg --mmap --sort path -c dead *.txt; run rg --mmap -ob 'b[0-9]{3}e ' 1.txt | sha256sum
run rg --mmap -j 4 -c '^[0-9]' . | sort; run rg --mmap -U -c '[0-9]\\n[a-f]' 1.txt
run rg --no-mmap -c beef 3.txt; run rg --mmap xyzzy 4.txt || echo $?",
    }
}

program! {
    silver_searcher {
        needs: &[("ag", "silversearcher-ag")],
        prepare: TEXTS,
        script: "run ag --nocolor -c dead . | sort
run ag --nocolor --nofilename -o 'b[0-9]{3}e ' 1.txt | sha256sum; run ag -l xyzzy . || echo $?",
    }
}

program! {
    less {
        needs: &[("less", "less")],
        prepare: "words 1000000 1 a; zstd -q a || true",
        script: "run less a | sha256sum; run less -N +F a < /dev/null | head -1 || true
run more a | sha256sum",
        maps: false,
        under: Under::Small,
    }
}

program! {
    plocate {
        needs: &[("/usr/sbin/updatedb.plocate", "plocate"), ("/usr/bin/plocate", "plocate")],
        prepare: "mkdir t; cd t
for d in $(seq 40); do mkdir d$d; (cd d$d; touch $(seq -f 'a-file-%g' 200)); done",
        script: "run /usr/sbin/updatedb.plocate -l no -U $PWD/t -o db --prunefs ''; cp /usr/bin/plocate p
run ./p -d db file-77 | wc -l; run ./p -d db -c d7; run ./p -d db -r 'd1[0-3]/a-file-9$' | sed 's/.*work//'",
        under: Under::Small,
        maps: false,
    }
}

program! {
    locate {
        needs: &[("updatedb.findutils", "locate")],
        prepare: "mkdir t; cd t
for d in $(seq 20); do mkdir d$d; (cd d$d; touch $(seq -f 'a-file-%g' 200)); done",
        script: "run updatedb.findutils --localpaths=$PWD/t --output=db --prunepaths= 2>/dev/null
run locate.findutils -d db file-77 | wc -l",
        under: Under::Small,
        maps: false,
    }
}

program! {
    aspell {
        needs: &[("aspell", "aspell"), ("/var/lib/aspell/en-common.rws", "aspell-en")],
        prepare: "for i in $(seq 300); do
  echo 'The quik brown fox jumps over teh lazy dog, wich sleeps'
done > a",
        script: "run aspell -l en list < a | sort | uniq -c
run aspell -l en -a < a 2>&1 | sed 1d | sha256sum; run aspell -l en dump master > m; head -50000 m > w
run aspell --lang=en create master ./own.rws < w; run aspell --master=./own.rws -l en list < a | sort -u",
        check: "sha256sum own.rws",
        maps: false,
    }
}

program! {
    man {
        needs: &[("man", "man-db"), ("gdbm_dump", "gdbmtool")],
        prepare: "mkdir -p m/man1
for i in $(seq 300); do
  printf '.TH X%d 1\\n.SH NAME\\nx%d \\\\- thing number %d\\n.SH DESCRIPTION\\ntext\\n' \
      $i $i $i > m/man1/x$i.1
done",
        script: "run mandb -q -c -s m 2>/dev/null || true; ls m | sort
MANPATH=$PWD/m run man -w x77 | sed 's/.*work//'; MANPATH=$PWD/m run apropos 'number 123$' || true
MANPATH=$PWD/m run whatis x9; MANPATH=$PWD/m MANWIDTH=70 run man -P cat x5 2>/dev/null | grep -c text",
        maps: false,
        under: Under::Small,
    }
}

program! {
    git {
        needs: &[("git", "git")],
        prepare: "export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
export GIT_AUTHOR_DATE=@1600000000 GIT_COMMITTER_DATE=@1600000000
mkdir r; cd r; git init -q -b main .
for c in 1 2 3 4; do
  for f in $(seq 12); do words 200000 $((f < 6 ? f : c * 100 + f)) $f.txt; done
  git add .; git commit -q -m $c; [ $c != 2 ] || git repack -q -d
done",
        script: "export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
export GIT_AUTHOR_DATE=@1600000001 GIT_COMMITTER_DATE=@1600000001
cd r; run git fsck --full --no-progress --strict; run git repack -adfq --threads=2
run git fsck --full --no-progress; run git -c core.commitGraph=true gc -q --prune=now
run git commit-graph verify; run git multi-pack-index write; run git multi-pack-index verify
run git log --stat -p | sha256sum; run git cat-file --batch-all-objects --batch-check | sha256sum
run git grep -c dead HEAD~1 | sha256sum; cd ..; run git clone -q --no-hardlinks r clone; cd clone
words 300000 999 new.txt; run git add .; run git commit -q -m new; run git bundle create -q ../b HEAD
run git bundle verify -q ../b; run git archive HEAD | sha256sum; run git blame -s 7.txt | sha256sum
run git checkout -q HEAD~2; run git status --porcelain; run git gc -q --aggressive",
        check: "for d in r clone; do
  git -C $d fsck --full --strict --no-progress; git -C $d log --format=%H%n%T --all
  git -C $d cat-file --batch-all-objects --batch-check | sha256sum
done",
    }
}

program! {
    dictzip {
        needs: &[("dictzip", "dictzip")],
        prepare: "words 4000000 1 a.dict",
        script: "run dictzip -k a.dict; run dictzip -t a.dict.dz; run dictzip -cd -s 2000000 -e 100 a.dict.dz
echo; run dictzip -cd a.dict.dz | sha256sum",
        maps: false,
    }
}

program! {
    apt_cache {
        needs: &[("apt-cache", "apt"), ("dpkg-query", "dpkg")],
        script: "o='-o Dir::Cache=cache -o Dir::Cache::archives=a'; mkdir cache cache/a
run apt-cache $o gencaches > out 2>&1; run apt-cache $o stats | grep -E 'package (names|structures)'
run apt-cache $o depends bash | sort | sha256sum; run apt-cache $o policy coreutils
run dpkg-query -W | sha256sum; run dpkg-query -L bash | wc -l",
        under: Under::Usual,
        maps: false,
    }
}

program! {
    /// Aligns reads against an index that is mapped (`--mm`).
    bowtie2 {
        needs: &[("bowtie2-align-s", "bowtie2")],
        prepare: "/usr/bin/python3 -c 'import random
r = random.Random(1); g = \"\".join(r.choice(\"ACGT\") for i in range(600000))
open(\"g.fa\", \"w\").write(\">g\\n\" + g + \"\\n\")
with open(\"r.fa\", \"w\") as f:
    for i in range(2000): p = r.randrange(599900); f.write(f\">{i}\\n{g[p:p + 80]}\\n\")'
bowtie2-build-s -q --threads 2 g.fa i",
        script: "run bowtie2-align-s --mm -x i -f r.fa --seed 1 -p 2 --reorder 2>/dev/null |
  grep -v ^@PG | sha256sum",
        maps: false,
    }
}

program! {
    /// Images larger than the limits are in mapped files.
    graphicsmagick {
        needs: &[("gm", "graphicsmagick")],
        script: "export MAGICK_TMPDIR=$PWD
run gm convert -limit memory 1MB -limit map 200MB -size 400x400 gradient:red-blue -rotate 17 \
    -resize 600x600! -depth 8 a.ppm
run gm convert -limit memory 1MB -limit map 200MB a.ppm -flip -flop -gaussian 2x1 b.ppm
run gm compare -metric MAE a.ppm b.ppm; run gm identify -format '%w %h' b.ppm",
        check: "sha256sum a.ppm b.ppm",
        under: Under::Small,
    }
}
