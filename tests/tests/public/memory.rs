//! Suites of what uses anonymous memory: mmap, shared memory, children that have their parent's, arrays.

use elbowroom_tests::public::Under;

use crate::program;

const PYTHON: (&str, &str) = ("/usr/bin/python3", "python3");
const SUITE: (&str, &str) = ("/usr/lib/python3.11/test/test_mmap.py", "libpython3.11-testsuite");

program! {
    /// Anonymous mappings, and what they are resized, moved and advised to.
    python_test_mmap {
        needs: &[PYTHON, SUITE],
        script: "run /usr/bin/python3 -m unittest -v test.test_mmap > out 2>&1 || { cat out; exit 1; }
grep -E '^test|^OK' out | sort",
        under: Under::Memory,
    }
}

program! {
    /// Shared memory, values, arrays and the heap that these are in; pools and queues of forked children.
    python_test_multiprocessing {
        needs: &[PYTHON, SUITE],
        script: "
m=test.test_multiprocessing_fork.WithProcessesTest
run /usr/bin/python3 -m unittest -v ${m}{SharedMemory,Array,Value,SharedCTypes,Heap,Pool,Queue,Connection} \
    > out 2>&1 || { cat out; exit 1; }
# What children print, which are killed, may stand where a test's result should.
grep -E '^test|^OK' out | sed 's/ [.][.][.] .*//' | sort",
        under: Under::Memory,
    }
}

program! {
    /// NumPy's own tests of maps of files, and of arrays that share memory. The random ones take long.
    numpy_tests {
        needs: &[
            PYTHON,
            ("/usr/lib/python3/dist-packages/numpy/core/tests/test_memmap.py", "python3-numpy"),
            ("/usr/lib/python3/dist-packages/pytest", "python3-pytest"),
            ("/usr/lib/python3/dist-packages/hypothesis", "python3-hypothesis"),
        ],
        script: "
t=numpy.core.tests.test_
run /usr/bin/python3 -m pytest -p no:cacheprovider -o console_output_style=classic -v --pyargs \
    -k 'not fuzz' ${t}memmap ${t}mem_overlap ${t}item_selection ${t}indexing \
    > out 2>&1 || { cat out; exit 1; }
grep -E '::.* (PASSED|SKIPPED|XFAIL|XPASS)|^FAILED|^ERROR' out | sed 's/ *\\[.*%\\]$//' | sort",
        under: Under::Memory,
    }
}

/// A file of what `tests/suites/make` builds.
macro_rules! suites {
    ($file:literal) => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../target/suites/", $file)
    };
}

program! {
    /// jemalloc's own tests of its functions, each a program; some need options of the allocator.
    jemalloc_tests {
        needs: &[(suites!("built"), "tests/suites/make")],
        script: concat!("cd '", suites!("jemalloc"), "'
for source in test/integration/*.c; do
    test=${source%.c}
    if [ ! -x $test ]; then continue; fi
    MALLOC_CONF= enable_fill=1
    if [ -e $test.sh ]; then . ./$test.sh; fi
    export MALLOC_CONF
    echo $test
    run ./$test
done"),
        under: Under::Memory,
    }
}

program! {
    /// snmalloc's own tests, each a program, in their short form. What they print has addresses and times.
    snmalloc_tests {
        needs: &[(suites!("built"), "tests/suites/make")],
        script: concat!("
for test in '", suites!("snmalloc"), "'/*; do
    if [ ! -x $test ]; then continue; fi
    run $test --smoke > out 2>&1 || { tail -n 20 out; exit 1; }
    basename $test
done"),
        under: Under::Memory,
    }
}
