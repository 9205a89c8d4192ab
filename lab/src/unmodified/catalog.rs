//! The programs: what they need, how their data is made, and how they are run.

/// The scripts and sources, which are written beside the data.
pub const SOURCES: [(&str, &str); 17] = [
    ("common.py", include_str!("../../programs/common.py")),
    ("arrays.py", include_str!("../../programs/arrays.py")),
    ("sqlite.py", include_str!("../../programs/sqlite.py")),
    ("text.py", include_str!("../../programs/text.py")),
    ("neighbours.py", include_str!("../../programs/neighbours.py")),
    ("store.py", include_str!("../../programs/store.py")),
    ("vectors.py", include_str!("../../programs/vectors.py")),
    ("repository.py", include_str!("../../programs/repository.py")),
    ("mixture.py", include_str!("../../programs/mixture.py")),
    ("search.py", include_str!("../../programs/search.py")),
    ("tables.py", include_str!("../../programs/tables.py")),
    ("graph.py", include_str!("../../programs/graph.py")),
    ("hash.c", include_str!("../../programs/hash.c")),
    ("needs.c", include_str!("../../programs/needs.c")),
    ("memory.py", include_str!("../../programs/memory.py")),
    ("maps.cc", include_str!("../../programs/maps.cc")),
    ("Heap.java", include_str!("../../programs/Heap.java")),
];

/// Something that must be on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A module of Python, and the package that has it.
    Module(&'static str, &'static str),
    /// A module that pip builds from source.
    Built(&'static Built),
    /// A command, and the package that has it.
    Command(&'static str, &'static str),
    /// What a compiler makes of a source.
    Compiled(&'static Source),
}

/// A module of Python that has no package that is built already.
#[derive(Debug, PartialEq, Eq)]
pub struct Built {
    /// As Python imports it.
    pub module: &'static str,
    /// As pip knows it.
    pub package: &'static str,
    /// The compiler that must be there to build it: the command, which Debian's package is named like.
    pub compiler: &'static str,
    /// How long building it takes, for people.
    pub takes: &'static str,
}

const HNSWLIB: Built = Built { module: "hnswlib", package: "hnswlib", compiler: "g++", takes: "a minute" };

const LLAMA: Built = Built {
    module: "llama_cpp",
    package: "llama-cpp-python",
    compiler: "g++",
    takes: "some 10 minutes on 2 processors",
};

/// A program that is compiled beside the scripts.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// The compiler and its options; `{made}` and `{source}` stand for the files.
    pub compile: &'static [&'static str],
    /// Its file.
    pub source: &'static str,
    /// What is made of it.
    pub made: &'static str,
    /// Debian's packages with the compiler and the libraries.
    pub packages: &'static [&'static str],
}

const HASH: Source = Source {
    compile: &["gcc", "-O2", "-o", "{made}", "{source}", "-ltokyocabinet"],
    source: "hash.c",
    made: "hash",
    packages: &["gcc", "libtokyocabinet-dev"],
};
const MAPS: Source = Source {
    compile: &["g++", "-O2", "-o", "{made}", "{source}"],
    source: "maps.cc",
    made: "maps",
    packages: &["g++"],
};
const NEEDS: Source = Source {
    compile: &["gcc", "-O2", "-o", "{made}", "{source}"],
    source: "needs.c",
    made: "needs",
    packages: &["gcc"],
};
const HEAP: Source = Source {
    compile: &["javac", "{source}"],
    source: "Heap.java",
    made: "Heap.class",
    packages: &["default-jdk-headless"],
};

/// What a run leaves of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// All as it was.
    Kept,
    /// This file differs: each run gets a copy.
    Copied(&'static str),
    /// All of it is made by the run itself.
    Made,
}

/// A program. Its lines of words are commands in which `{python}`, `{scripts}`, `{data}` and `{percent}`
/// stand for what their names say.
#[derive(Debug)]
pub struct Program {
    /// As `--only` has it.
    pub name: &'static str,
    /// What must be there.
    pub needs: &'static [Need],
    /// The name of its data, which programs share, with a number that counts how often it was changed.
    pub data: &'static str,
    /// Makes the data, and prints how much of it is there, in percent.
    pub make: &'static [&'static str],
    /// Loads what the run loads, so that the disk is read for data only.
    pub warm: &'static [&'static str],
    /// What is measured. Its standard output is its result.
    pub run: &'static [&'static str],
    /// Reads what was stored, and prints a checksum.
    pub check: &'static [&'static str],
    /// What the run does to the data.
    pub leaves: Data,
    /// What each line is that the run prints after its first one; how many it prints in a second is a figure
    /// then. Empty if lines are not counted.
    pub lines_are: &'static str,
    /// Which part of the memory it has.
    pub memory_divisor: u64,
}

/// What most of them have in common: nothing.
pub const NONE: Program = Program {
    name: "",
    needs: &[],
    data: "",
    make: &[],
    warm: &[],
    run: &[],
    check: &[],
    leaves: Data::Kept,
    lines_are: "",
    memory_divisor: 1,
};

const NUMPY: Need = Need::Module("numpy", "numpy");
const LMDB: Need = Need::Module("lmdb", "lmdb");

/// A line that calls a script.
macro_rules! script {
    ($name:literal, $what:literal) => {
        &["{python}", concat!("{scripts}/", $name, ".py"), $what, "{data}", "{percent}"]
    };
}

/// Programs that map files.
pub const FILES: [Program; 10] = [
    Program {
        name: "numpy",
        needs: &[NUMPY],
        data: "arrays-1",
        make: script!("arrays", "make"),
        warm: script!("arrays", "warm"),
        run: script!("arrays", "reads"),
        ..NONE
    },
    Program {
        name: "sums",
        needs: &[NUMPY],
        data: "arrays-1",
        make: script!("arrays", "make"),
        warm: script!("arrays", "warm"),
        run: script!("arrays", "sums"),
        ..NONE
    },
    Program {
        name: "sqlite",
        needs: &[Need::Module("sqlite3", "python3 of the distribution, by apt")],
        data: "sqlite-1",
        make: script!("sqlite", "make"),
        warm: script!("sqlite", "warm"),
        run: script!("sqlite", "run"),
        ..NONE
    },
    Program {
        name: "ripgrep",
        needs: &[NUMPY, Need::Command("rg", "ripgrep")],
        data: "text-2",
        make: script!("text", "make"),
        warm: &["rg", "--version"],
        run: &["rg", "--no-config", "--mmap", "--threads=1", "-c", "needle|thread +hay", "{data}/lines.txt"],
        ..NONE
    },
    Program {
        name: "annoy",
        needs: &[NUMPY, Need::Module("annoy", "annoy")],
        data: "neighbours-1",
        make: script!("neighbours", "make"),
        warm: script!("neighbours", "warm"),
        run: script!("neighbours", "run"),
        ..NONE
    },
    Program {
        name: "lmdb",
        needs: &[LMDB],
        data: "store-1",
        make: script!("store", "make"),
        warm: script!("store", "warm"),
        run: script!("store", "run"),
        check: script!("store", "check"),
        leaves: Data::Copied("store.mdb"),
        ..NONE
    },
    Program {
        name: "lmdb-map",
        needs: &[LMDB],
        data: "store-1",
        make: script!("store", "make"),
        warm: script!("store", "warm"),
        run: script!("store", "map"),
        check: script!("store", "check"),
        leaves: Data::Copied("store.mdb"),
        ..NONE
    },
    FAISS,
    Program {
        name: "tokyo",
        needs: &[Need::Compiled(&HASH)],
        data: "hash-1",
        warm: &["{scripts}/hash"],
        run: &["{scripts}/hash", "run", "{data}", "{percent}"],
        check: &["{scripts}/hash", "check", "{data}", "{percent}"],
        leaves: Data::Made,
        memory_divisor: 4,
        ..NONE
    },
    Program {
        name: "git",
        needs: &[Need::Command("git", "git")],
        data: "repository-1",
        make: script!("repository", "make"),
        warm: &["git", "--version"],
        run: &[
            "git",
            "-C",
            "{data}/repository.git",
            "-c",
            "core.packedGitWindowSize=1m",
            "-c",
            "core.packedGitLimit=64m",
            "cat-file",
            "--batch-all-objects",
            "--batch",
        ],
        ..NONE
    },
];

const FAISS: Program = Program {
    name: "faiss",
    needs: &[NUMPY, Need::Module("faiss", "faiss-cpu")],
    data: "vectors-1",
    make: script!("vectors", "make"),
    warm: script!("vectors", "warm"),
    run: script!("vectors", "run"),
    ..NONE
};

/// Programs that read chunks of large mapped files: models of machine learning and indexes.
pub const MODELS: [Program; 3] = [
    Program {
        name: "llama",
        needs: &[NUMPY, Need::Module("gguf", "gguf"), Need::Built(&LLAMA)],
        data: "mixture-1",
        make: script!("mixture", "make"),
        warm: script!("mixture", "warm"),
        run: script!("mixture", "run"),
        lines_are: "tokens",
        ..NONE
    },
    Program { memory_divisor: 3, ..FAISS },
    Program {
        name: "tantivy",
        needs: &[NUMPY, Need::Module("tantivy", "tantivy")],
        data: "search-1",
        make: script!("search", "make"),
        warm: script!("search", "warm"),
        run: script!("search", "run"),
        memory_divisor: 2,
        ..NONE
    },
];

/// A quarter of the model that lab/programs/mixture.py makes, in MiB.
pub const fn quarter_of_model(percent: u64) -> u64 {
    /// Of one of twelve layers with all of its experts.
    const LAYER_MEBIBYTES: u64 = 68;
    let layers = 12 * percent / 100;
    if layers > 0 { layers * LAYER_MEBIBYTES } else { 12 * LAYER_MEBIBYTES * percent / 100 }
}

/// Programs that allocate more than they may have: at 100 % about four times 512M.
pub const MEMORY: [Program; 10] = [
    Program {
        name: "arrays",
        needs: &[NUMPY],
        warm: script!("memory", "warm"),
        run: script!("memory", "arrays"),
        ..IN_MEMORY
    },
    Program {
        name: "frames",
        needs: &[Need::Module("polars", "polars")],
        warm: script!("memory", "warm"),
        run: script!("memory", "frames"),
        ..IN_MEMORY
    },
    Program {
        name: "sort",
        needs: &[Need::Command("sort", "coreutils")],
        warm: &["sort", "--version"],
        run: &["env", "LC_ALL=C", "sort", "-S", "4G", "--parallel=1", "{data}/lines.txt"],
        memory_divisor: 2,
        ..IN_MEMORY
    },
    Program {
        name: "zstd",
        needs: &[Need::Command("zstd", "zstd")],
        warm: &["zstd", "--version"],
        run: &["zstd", "-q", "-T1", "-3", "--long=31", "-c", "{data}/lines.txt"],
        memory_divisor: 4,
        ..IN_MEMORY
    },
    Program {
        name: "sqlite",
        needs: &[Need::Module("sqlite3", "python3 of the distribution, by apt")],
        warm: script!("memory", "warm"),
        run: script!("memory", "sqlite"),
        memory_divisor: 2,
        ..IN_MEMORY
    },
    Program {
        name: "redis",
        needs: &[Need::Command("redis-server", "redis-server")],
        warm: script!("memory", "warm"),
        run: script!("memory", "redis"),
        ..IN_MEMORY
    },
    Program {
        name: "java",
        needs: &[Need::Compiled(&HEAP)],
        warm: &["java", "-version"],
        run: &["java", "-Xmx3g", "-cp", "{scripts}", "Heap", "{percent}"],
        ..IN_MEMORY
    },
    Program {
        name: "maps",
        needs: &[Need::Compiled(&MAPS)],
        warm: &["true"],
        run: &["{scripts}/maps", "{percent}"],
        ..IN_MEMORY
    },
    Program {
        name: "hnswlib",
        needs: &[NUMPY, Need::Built(&HNSWLIB)],
        data: "graph-1",
        make: script!("graph", "make"),
        warm: script!("graph", "warm"),
        run: script!("graph", "run"),
        memory_divisor: 2,
        ..NONE
    },
    Program {
        name: "duckdb",
        needs: &[Need::Module("duckdb", "duckdb")],
        data: "tables-1",
        make: script!("tables", "make"),
        warm: script!("tables", "warm"),
        run: script!("tables", "run"),
        ..NONE
    },
];

/// The same programs, and one that allocates more than it needs.
pub const AUTO: [Program; 11] = {
    let [arrays, frames, sort, zstd, sqlite, redis, java, maps, hnswlib, duckdb] = MEMORY;
    [NEEDS_AN_EIGHTH, arrays, frames, sort, zstd, sqlite, redis, java, maps, hnswlib, duckdb]
};

const NEEDS_AN_EIGHTH: Program = Program {
    name: "needs",
    needs: &[Need::Compiled(&NEEDS)],
    warm: &["true"],
    run: &["{scripts}/needs", "{percent}"],
    ..IN_MEMORY
};

/// What these have in common: two of them share a file of lines, and the others need a directory.
const IN_MEMORY: Program = Program { data: "memory-1", make: script!("memory", "make"), ..NONE };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_different_and_lines_name_scripts_that_there_are() {
        for (all, program) in [&FILES[..], &MODELS, &AUTO]
            .into_iter()
            .flat_map(|all| all.iter().map(move |program| (all, program)))
        {
            assert_eq!(all.iter().filter(|other| other.name == program.name).count(), 1, "{}", program.name);
            for line in [program.make, program.warm, program.run, program.check] {
                for script in line.iter().filter_map(|word| word.strip_prefix("{scripts}/")) {
                    let made = [&HASH, &MAPS, &NEEDS, &HEAP].iter().any(|source| source.made == script);
                    assert!(made || SOURCES.iter().any(|(name, _)| *name == script), "{script}");
                }
            }
            // What is stored must be looked at.
            assert_eq!(program.leaves == Data::Kept, program.check.is_empty(), "{}", program.name);
            assert!(!program.run.is_empty() && (1..=4).contains(&program.memory_divisor));
        }
    }
}
