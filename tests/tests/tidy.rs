//! What the project promises about its own source: layers, the home of unsafe code, locks, and plain
//! tidiness.

use std::collections::BTreeSet;

use elbowroom_tests::modules::{self, Circles, House};
use elbowroom_tests::source::{Source, has_word};
use elbowroom_tests::types::{Size, Types};

/// The crates, each of which may use only those before it, by directory and the name that manifests have.
const CRATES: [(&str, &str); 17] = [
    ("crates/elbowroom-options", "elbowroom-options"),
    ("crates/elbowroom-sync", "elbowroom-sync"),
    ("crates/elbowroom-index", "elbowroom-index"),
    ("crates/elbowroom-machine", "elbowroom-machine"),
    ("crates/elbowroom-store", "elbowroom-store"),
    ("crates/elbowroom", "elbowroom"),
    ("crates/elbowroom-preload", "elbowroom-preload"),
    ("crates/elbowroom-heap", "elbowroom-heap"),
    ("bindings/house", "elbowroom-house"),
    ("bindings/c", "elbowroom-c"),
    ("bindings/python", "elbowroom-python"),
    ("bindings/rust", "elbowroom-api"),
    ("bindings/rust/memmap2", "elbowroom-memmap2-tests"),
    ("lab", "elbowroom-lab"),
    ("crates/elbowroom-cli", "elbowroom-cli"),
    ("tests", "elbowroom-tests"),
    ("tests/shuttle", "elbowroom-shuttle"),
];

/// The modules of crates, by floors. What is in the table here has no other arrows than down.
const HOUSES: [House; 3] = [
    House {
        src: "crates/elbowroom-preload/src",
        floors: &[&["base"], &["rules"], &["agent"], &["process"], &["abi"], &[modules::ROOT]],
        circles: Circles::None,
    },
    House {
        src: "crates/elbowroom-store/src",
        floors: &[
            // System calls, and what a process allows.
            &["calls", "inject", "limits", "lifeline", "mapped", "scatter"],
            // Files, and who else has them.
            &["file", "origin", "room", "guard", "whole"],
            // One read.
            &["bell", "reactor", "request"],
            // Those who make reads.
            &["held", "slots", "looks", "threads", "uring", "inline"],
            &["engines"],
            &[modules::ROOT],
        ],
        circles: Circles::None,
    },
    House {
        src: MANAGER,
        floors: &[
            &["pause"],
            &["process_tree", "division"],
            &["ablation", "config", "default_swap", "error", "stats", "trace"],
            &["group", "quiet", "outside"],
            // A folio and the object that owns it know each other.
            &["page", "object", "swap"],
            &["vma", "readahead", "learned", "runs", "lru"],
            &["platform"],
            &["core"],
            &["reclaim"],
            &["writeback"],
            &["fault"],
            &["space"],
            // What a fork does is a part of the manager.
            &["manager", "forking"],
            &[modules::ROOT],
        ],
        circles: Circles::InsideFloors,
    },
];

const MANAGER: &str = "crates/elbowroom/src";

const MAX_LINES: usize = 900;

/// As in rustfmt.toml, which does not break strings, comments and macros.
const MAX_COLUMNS: usize = 110;

/// All problems at once, so that one run shows what is to do.
fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

fn rust() -> Vec<Source> {
    Source::all("", &[".rs"])
}

/// The names of dependencies in all sections of a manifest.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut names = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            inside = section.ends_with("dependencies");
            // [dependencies.name]
            if let Some((before, name)) = section.rsplit_once('.')
                && before.ends_with("dependencies")
            {
                names.push(name.to_owned());
            }
        } else if inside && let Some((key, _)) = line.split_once('=') {
            names.push(key.trim().split('.').next().unwrap_or("").trim_matches('"').to_owned());
        }
    }
    names
}

#[test]
fn crates_use_only_the_crates_below_them() {
    let mut problems = Vec::new();
    for (rank, (directory, _)) in CRATES.iter().enumerate() {
        for name in dependencies(&Source::read(&format!("{directory}/Cargo.toml")).text) {
            // The manager has a short name, too, which bindings/rust has outside of the workspace.
            let name = if name == "elbowroom-manager" { "elbowroom".to_owned() } else { name };
            let used = CRATES.iter().position(|(_, known)| *known == name);
            match used {
                Some(used) if used >= rank => {
                    problems.push(format!("{directory} uses {name}, which is not below it"))
                }
                None if name.starts_with("elbowroom") => {
                    problems
                        .push(format!("{directory} uses {name}, which the table of crates does not have"));
                }
                _ => {}
            }
        }
    }
    report(problems);
}

#[test]
fn every_crate_is_in_the_table() {
    let found: BTreeSet<String> = Source::all("", &["/Cargo.toml"])
        .iter()
        .map(|manifest| manifest.path.trim_end_matches("/Cargo.toml").to_owned())
        // Not of the workspace, and without code.
        .filter(|directory| directory != "tests/suites")
        .collect();
    let known: BTreeSet<String> = CRATES.iter().map(|(directory, _)| (*directory).to_owned()).collect();
    assert_eq!(found, known);
}

#[test]
fn the_manager_has_no_unsafe_code() {
    let mut problems = Vec::new();
    for source in Source::all(MANAGER, &[".rs"]) {
        if has_word(&source.code(), "unsafe") {
            problems.push(format!("{} has unsafe code", source.path));
        }
    }
    let root = Source::read("crates/elbowroom/src/lib.rs");
    if !root.code().contains("#![forbid(unsafe_code)]") {
        problems.push(format!("{} does not forbid it", root.path));
    }
    report(problems);
}

/// Whoever wants a folio's body has its guard, and the guard alone unlocks it. Whoever waits for what
/// somebody announces waits for that, and does not sleep. Frames come and go with their charge.
#[test]
fn the_manager_unlocks_folios_sleeps_and_frees_frames_in_one_place_each() {
    let mut problems = Vec::new();
    for source in Source::all(MANAGER, &[".rs"]) {
        let code = source.code_without_tests();
        for (text, place) in [
            (".unlock(", "page/locked.rs"),
            ("thread::sleep(", "pause.rs"),
            ("mmu.alloc(", "group/mod.rs"),
            ("mmu.free(", "group/mod.rs"),
            ("mmu.discard_clean(", "group/mod.rs"),
        ] {
            let is_there = code.contains(text);
            if is_there != source.path.ends_with(place) {
                let what = if is_there { "has" } else { "is the place for, and has no," };
                problems.push(format!("{} {what} `{text}`", source.path));
            }
        }
    }
    report(problems);
}

#[test]
fn only_the_facade_names_the_standard_librarys_threads() {
    let mut problems = Vec::new();
    for directory in ["crates/elbowroom", "crates/elbowroom-machine", "crates/elbowroom-store"] {
        for source in Source::all(&format!("{directory}/src"), &[".rs"]) {
            let code: String = source.code_without_tests().split_whitespace().collect();
            for module in ["sync", "thread", "time"] {
                let names = code.contains(&format!("std::{module}::"))
                    || code.contains(&format!("std::{module};"))
                    || code.contains(&format!("core::{module}::"))
                    || code.contains(&format!("alloc::{module}::"))
                    || grouped_use(&code, module);
                if names {
                    problems.push(format!("{} names std::{module}: elbowroom-sync has it", source.path));
                }
            }
        }
    }
    report(problems);
}

/// `std::{..., module...}`, in code without blanks.
fn grouped_use(code: &str, module: &str) -> bool {
    code.match_indices("std::{").any(|(at, opening)| {
        let group = &code[at + opening.len()..];
        let group = &group[..group.find(';').unwrap_or(group.len())];
        group.split([',', '{', '}']).any(|part| part == module || part.starts_with(&format!("{module}::")))
    })
}

#[test]
fn the_locking_document_lists_the_lock_classes_in_order() {
    let code = Source::read("crates/elbowroom-sync/src/lock.rs").text;
    let all = code.split("ALL: [LockClass;").nth(1).expect("the array of all classes is there");
    let all = &all[..all.find("];").expect("the array ends")];
    let order = all.split("LockClass::").skip(1).map(|rest| rest.split(',').next().unwrap_or("").trim());
    let names: Vec<String> = order
        .map(|class| {
            let arm = format!("LockClass::{class} => \"");
            let rest = code.split(&arm).nth(1).unwrap_or_else(|| panic!("{class} has no name"));
            rest.split('"').next().unwrap_or("").to_owned()
        })
        .collect();
    assert!(names.len() > 3, "{names:?}");
    let document = Source::read("docs/locking.md").text;
    let rows: Vec<String> = document
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|rest| rest.split_once("` |").map(|(name, _)| name.to_owned()))
        .collect();
    assert_eq!(rows, names, "docs/locking.md and lock.rs differ");
}

/// The crates whose fields docs/locking.md has.
const LOCKED_CRATES: [&str; 2] = [MANAGER, "crates/elbowroom-machine/src"];

/// What several threads use, by the names of the types that make that possible.
const SHARED: [&str; 12] = [
    "Mutex",
    "RwLock",
    "RcuCell",
    "ArcCell",
    "AtomicBool",
    "AtomicU8",
    "AtomicU16",
    "AtomicU32",
    "AtomicU64",
    "AtomicUsize",
    "AtomicI64",
    "LayoutLock",
];

/// The fields that a text names, as in `Core::stop` or `Group::{dirty, waiting}`.
fn named_fields(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("::") {
        let start = text[..at].rfind(|c: char| !c.is_alphanumeric()).map_or(0, |before| before + 1);
        let of = &text[start..at];
        let rest = &text[at + 2..];
        let list = match rest.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap_or(""),
            None => rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or(""),
        };
        found.extend(list.split(',').map(|name| (of.to_owned(), name.trim().to_owned())));
    }
    found
}

#[test]
fn the_locking_document_has_the_fields_that_threads_share() {
    let document = Source::read("docs/locking.md").text;
    let section = document.split("\n## Field by field\n").nth(1).expect("the section is there");
    let section = section.split("\n## ").next().unwrap_or("");
    let rows: Vec<String> = section
        .split("\n* ")
        .skip(1)
        .map(|row| row.split("\n  - ").next().unwrap_or("").split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let named: BTreeSet<(String, String)> = rows.iter().flat_map(|row| named_fields(row)).collect();
    let mut problems = Vec::new();
    let types: Vec<Types> = LOCKED_CRATES.iter().map(|src| Types::read(src)).collect();
    let fields: Vec<_> = types.iter().flat_map(Types::fields).collect();
    for (of, name) in &named {
        if !fields.iter().any(|field| field.of == *of && field.name == *name) {
            problems.push(format!("docs/locking.md has a row for {of}::{name}, which does not exist"));
        }
    }
    for field in &fields {
        let shared = field.types.iter().any(|name| SHARED.contains(&name.as_str()));
        let whole = |row: &String| row.split([',', ';', ' ']).any(|word| word == field.of);
        let key = (field.of.clone(), field.name.clone());
        if shared && !named.contains(&key) && !rows.iter().any(whole) {
            problems.push(format!("docs/locking.md has no row for {}::{}", field.of, field.name));
        }
    }
    report(problems);
}

#[test]
fn the_unsafe_document_names_every_file_with_unsafe_code() {
    let document = Source::read("docs/unsafe.md").text;
    let mut problems = Vec::new();
    for source in rust() {
        let has = has_word(&source.code(), "unsafe");
        match (has, document.contains(&source.path)) {
            (true, false) => {
                problems.push(format!("{} has unsafe code that docs/unsafe.md does not name", source.path))
            }
            (false, true) => {
                problems.push(format!("{} is in docs/unsafe.md, but has no unsafe code", source.path))
            }
            _ => {}
        }
    }
    report(problems);
}

#[test]
fn files_are_short_documented_and_finished() {
    let unfinished = ["todo!(", "unimplemented!(", "#[ignore"];
    let mut problems = Vec::new();
    for source in rust() {
        if !source.text.starts_with("//!") {
            problems.push(format!("{} does not begin with what it is for (//!)", source.path));
        }
        let code = source.code();
        for mark in unfinished {
            if code.contains(mark) {
                problems.push(format!("{} has {mark}", source.path));
            }
        }
    }
    for source in Source::all("", &[".rs", ".c", ".h", ".py"]) {
        let lines = source.text.lines().count();
        if lines > MAX_LINES {
            problems.push(format!("{} has {lines} lines, more than {MAX_LINES}", source.path));
        }
    }
    report(problems);
}

/// The lines that are too long, as file, line and length. Columns are characters, not bytes.
fn long_lines(source: &Source) -> Vec<String> {
    let columns = source.text.lines().map(|line| line.chars().count()).enumerate();
    columns
        .filter(|&(_, columns)| columns > MAX_COLUMNS)
        .map(|(number, columns)| {
            format!("{}:{} has {columns} columns, more than {MAX_COLUMNS}", source.path, number + 1)
        })
        .collect()
}

#[test]
fn no_line_is_too_long() {
    let mut sources = Source::all("", &[".rs", ".c", ".h", ".py"]);
    // The scripts there have no endings.
    sources.extend(Source::all(".ci", &[""]));
    report(sources.iter().flat_map(long_lines).collect());
}

#[test]
fn no_file_names_a_place_on_somebodys_machine() {
    let places =
        [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/tmp/", "target-")];
    let mut problems = Vec::new();
    for source in Source::all("", &[".rs", ".c", ".h", ".py", ".toml", ".md", "ci/run", ".sh"]) {
        for place in places {
            for (number, line) in source.text.lines().enumerate().filter(|(_, line)| line.contains(place)) {
                problems.push(format!("{}:{} names {place}: {line}", source.path, number + 1));
            }
        }
    }
    report(problems);
}

/// The first part of a path inside the manager's `src`: a module's name.
fn module_of(path: &str) -> &str {
    let inside = path.strip_prefix(MANAGER).expect("it was found there").trim_start_matches('/');
    inside.split('/').next().unwrap_or("").trim_end_matches(".rs")
}

#[test]
fn modules_use_only_the_floors_below_them_and_not_each_other() {
    report(HOUSES.iter().flat_map(House::problems).collect());
}

/// The most lines of a shim, a function of the floor `abi`, between its first and its last.
const MAX_SHIM_LINES: usize = 10;

/// Whether a line begins a function. One that the compiler calls (`const`) is none.
fn begins_function(line: &str) -> bool {
    let before = line.split_once("fn ").map(|(before, _)| before);
    let is_part = |word: &str| matches!(word, "pub" | "unsafe" | "extern") || word.starts_with('"');
    before.is_some_and(|before| before.split_whitespace().all(is_part))
}

/// The shims of a file, each by the numbers of its first and its last line: what `export!` makes a function
/// of, and all other functions but naked ones, which are assembly.
fn shims(code: &str) -> Vec<(usize, usize)> {
    let (mut found, mut started, mut depth) = (Vec::new(), None, 0);
    let (mut exported, mut naked) = (false, false);
    for (number, line) in (1..).zip(code.lines()) {
        let text = line.trim();
        if started.is_none() {
            let begins = begins_function(text) && !naked;
            exported = (exported || line == "export! {") && line != "}";
            let is_item = exported && line != "export! {" && !text.is_empty() && !text.starts_with('#');
            if begins || is_item {
                started = Some(number);
            }
            naked = text == "#[unsafe(naked)]" || naked && text.starts_with('#');
        }
        if let Some(first) = started {
            let count = |brackets: [char; 3]| line.matches(brackets).count() as isize;
            depth += count(['(', '[', '{']) - count([')', ']', '}']);
            if depth == 0 && text.ends_with([';', '}']) {
                found.push((first, number));
                started = None;
            }
        }
    }
    found
}

/// What is exported under libc's names does nothing itself.
#[test]
fn shims_are_short() {
    let (mut problems, mut seen) = (Vec::new(), 0);
    for source in Source::all("crates/elbowroom-preload/src/abi", &[".rs"]) {
        let shims = shims(&source.code());
        seen += shims.len();
        for (first, last) in shims.into_iter().filter(|(first, last)| last - first > MAX_SHIM_LINES + 1) {
            problems.push(format!("{}:{first} has more than {MAX_SHIM_LINES} lines to {last}", source.path));
        }
    }
    assert!(seen > 140, "only {seen} shims were found");
    report(problems);
}

/// The types of the manager's layers, each with the module that alone gives it methods. Each owns the one
/// before it, and dereferences to it.
const LAYERS: [(&str, &str); 5] = [
    ("Core", "core"),
    ("Reclaim", "reclaim"),
    ("Writeback", "writeback"),
    ("Faults", "fault"),
    ("Spaces", "space"),
];

/// The types that code gives methods or traits to.
fn implemented(code: &str) -> BTreeSet<String> {
    let headers = code.lines().filter(|line| line.starts_with("impl"));
    let of = |header: &str| {
        let named = header.split(" for ").last()?.trim_start_matches("impl");
        let named = match named.strip_prefix('<') {
            Some(generic) if !header.contains(" for ") => generic.split_once("> ")?.1,
            _ => named.trim_start(),
        };
        Some(named.split(['<', ' ']).next()?.to_owned())
    };
    headers.filter_map(of).collect()
}

/// The block of a struct's fields.
fn fields<'c>(code: &'c str, name: &str) -> Option<&'c str> {
    let at = code.find(&format!("struct {name}<P: Platform> {{"))?;
    code[at..].split("\n}").next()
}

/// With these two rules the compiler holds the third: no layer calls a method of one above, nor sees its
/// fields. A method of a lower layer that stood in a higher one's module could call up.
#[test]
fn layers_of_the_manager_are_types_with_methods_and_fields_of_their_own() {
    let (mut problems, mut found) = (Vec::new(), 0);
    for source in Source::all(MANAGER, &[".rs"]) {
        let code = source.code_without_tests();
        let module = module_of(&source.path);
        let types = implemented(&code);
        for (layer, home) in LAYERS.iter().filter(|(layer, _)| types.contains(*layer)) {
            found += 1;
            if module != *home {
                problems.push(format!("{} gives methods to {layer}, which is {home}'s", source.path));
            }
        }
        for (layer, _) in LAYERS.iter().skip(1) {
            if fields(&code, layer).is_some_and(|fields| fields.contains("    pub")) {
                problems.push(format!("{}: {layer} has fields that others see", source.path));
            }
        }
    }
    assert!(found > 15, "only {found} blocks of methods were found");
    report(problems);
}

/// The most fields of a type, and the most methods over all its blocks.
const MAX_SIZE: Size = Size { fields: 15, methods: 40 };

/// The types that had more when the limits came, by directory and path. These numbers only become smaller.
const LARGE_TYPES: [(&str, &str, Size); 17] = [
    ("crates/elbowroom", "config::Config", Size { fields: 20, methods: 4 }),
    ("crates/elbowroom", "fault::Faults", Size { fields: 8, methods: 65 }),
    ("crates/elbowroom", "fault::Pass", Size { fields: 6, methods: 42 }),
    ("crates/elbowroom", "manager::Manager", Size { fields: 2, methods: 41 }),
    ("crates/elbowroom", "object::FileObject", Size { fields: 28, methods: 66 }),
    ("crates/elbowroom", "reclaim::Reclaim", Size { fields: 7, methods: 62 }),
    ("crates/elbowroom", "space::Space", Size { fields: 3, methods: 110 }),
    ("crates/elbowroom", "stats::Stats", Size { fields: 67, methods: 0 }),
    ("crates/elbowroom", "swap::area::Swap", Size { fields: 18, methods: 72 }),
    ("crates/elbowroom", "writeback::Writeback", Size { fields: 8, methods: 73 }),
    ("crates/elbowroom-machine", "host::HostMmu", Size { fields: 11, methods: 75 }),
    ("crates/elbowroom-options", "options::Options", Size { fields: 22, methods: 7 }),
    ("crates/elbowroom-preload", "base::state::Process", Size { fields: 18, methods: 14 }),
    ("lab", "page::input::Figures", Size { fields: 21, methods: 10 }),
    ("lab", "record::Record", Size { fields: 30, methods: 7 }),
    ("tests", "differential::mix::Mix", Size { fields: 17, methods: 2 }),
    ("tests", "differential::model::Model", Size { fields: 4, methods: 66 }),
];

#[test]
fn types_are_small() {
    let (mut problems, mut seen) = (Vec::new(), 0);
    for (directory, _) in CRATES {
        let mut large = LARGE_TYPES.iter().filter(|large| large.0 == directory).collect::<Vec<_>>();
        for (name, size) in Types::read(&format!("{directory}/src")).sizes() {
            seen += 1;
            let listed = large.iter().position(|large| large.1 == name).map(|at| large.swap_remove(at).2);
            let is_small = size.fields <= MAX_SIZE.fields && size.methods <= MAX_SIZE.methods;
            let what = match listed {
                None if is_small => continue,
                None => format!("more than {MAX_SIZE:?}"),
                Some(_) if is_small => "it needs no exception any more".to_owned(),
                Some(listed) if size.fields > listed.fields || size.methods > listed.methods => {
                    format!("more than its exception, {listed:?}")
                }
                Some(listed) if size != listed => format!("less than its exception, {listed:?}: lower that"),
                Some(_) => continue,
            };
            problems.push(format!("{directory}: {name} has {size:?}, {what}"));
        }
        problems.extend(large.iter().map(|large| format!("{directory} has no type {}", large.1)));
    }
    assert!(seen > 500, "only {seen} types were found");
    report(problems);
}

#[test]
fn the_checks_see_what_they_look_for() {
    let code = "export! {\n    a(b: c) -> d = e;\n    f(\n        g: h,\n    ) -> i = |g| {\n    };\n}\n\
                unsafe extern \"\" fn k() {\n    {\n    }\n}\n\
                #[unsafe(naked)]\npub fn l() {\n}\nconst fn m() {\n}";
    assert_eq!(shims(code), [(2, 2), (3, 6), (8, 11)]);
    let code = "impl<P: Platform> Core<P> {\n}\nimpl<P: Platform> Deref for Reclaim<P> {\n}\nimpl X {\n}\n";
    assert_eq!(implemented(code), ["Core", "Reclaim", "X"].map(str::to_owned).into());
    let code = "struct A<P: Platform> {\n    pub b: u8,\n}\nstruct C {\n}";
    assert_eq!(fields(code, "A"), Some("struct A<P: Platform> {\n    pub b: u8,"));
    let mut types = Types::default();
    let (above, inside) = (vec!["a".to_owned()], vec!["a".to_owned(), "b".to_owned()]);
    types.add("", "pub struct T { x: u8, y: u8 }\nstruct U(u8);\nimpl Other for &U { fn k() {} }", above);
    let block = "impl<P> super::T<P> { const C: u8 = 0; fn f() {} }\nimpl X for T { fn g() {} }\n\
                 #[cfg(all(test, not(loom)))]\nmod tests { impl T { fn h() {} } }\nimpl Vec { fn v() {} }";
    types.add("", block, inside);
    let expected = [("a::T", Size { fields: 2, methods: 2 }), ("a::U", Size { fields: 1, methods: 1 })];
    assert_eq!(types.sizes(), expected.map(|(name, size)| (name.to_owned(), size)).into());
    let manifest = "[package]\nname = \"a\"\n[dependencies]\nb.workspace = true\n\"c\" = \"1\"\n\
                    [dev-dependencies.d]\npath = \"x\"\n[lints]\ne = 1";
    assert_eq!(dependencies(manifest), ["b", "c", "d"]);
    let lines = ["x".repeat(MAX_COLUMNS), "é".repeat(MAX_COLUMNS), "y".repeat(MAX_COLUMNS + 1)];
    let source = Source { path: "a.rs".to_owned(), text: lines.join("\n") };
    assert_eq!(long_lines(&source), ["a.rs:3 has 111 columns, more than 110"]);
    assert!(grouped_use("usestd::{fmt,sync::Arc};", "sync") && !grouped_use("usestd::{fmt,io};sync", "sync"));
}
