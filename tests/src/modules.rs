//! The modules of a crate, and which of them uses which, for the tidy test: floors, whose arrows go down
//! only, and circles.
//!
//! A module is a file that is compiled in (or two, of which `cfg` chooses one), named by its path in the
//! crate: `guard::others`; the root is [`ROOT`]. What exists in tests only is left out. A use is a path in
//! the code that begins with `crate`, `$crate`, `self`, `super`, or the name of a module that is declared in
//! the same file; each belongs to the longest module whose name the path begins with, so a parent's item and
//! a child's are told apart. What is only declared (`mod child;`) is not used.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Source, has_word};

/// The name of a crate's root module.
pub const ROOT: &str = "lib";

/// What the tidy test checks of a crate's modules: a row of its table.
pub struct House {
    /// The directory of the sources, with `lib.rs`, relative to the workspace.
    pub src: &'static str,
    /// The modules, lowest floor first. A name stands for the modules inside it, too, unless these have a
    /// longer one of their own here. A module uses those of its own floor and of the floors below.
    pub floors: &'static [&'static [&'static str]],
    /// Circles of modules.
    pub circles: Circles,
}

/// Whether modules of one floor may use each other in a circle.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Circles {
    /// There is none in the whole crate, also none of a module and those inside it.
    None,
    /// Inside a floor: the floor is what can be understood alone.
    InsideFloors,
}

impl House {
    /// All that is wrong with the modules of the crate, a line each.
    ///
    /// # Panics
    /// If a source cannot be read.
    pub fn problems(&self) -> Vec<String> {
        let modules = Modules::read(self.src);
        let mut problems = modules.against(self.floors);
        if self.circles == Circles::None {
            problems.extend(modules.circles());
        }
        problems.into_iter().map(|problem| format!("{}: {problem}", self.src)).collect()
    }
}

/// The modules of a crate, each with the modules that it uses.
pub struct Modules {
    uses: BTreeMap<String, BTreeSet<String>>,
}

impl Modules {
    /// Those of the crate whose sources, with `lib.rs`, are in the directory `src`.
    ///
    /// # Panics
    /// If a source cannot be read.
    pub fn read(src: &str) -> Self {
        Self::of(src, &Source::all(src, &[".rs"]))
    }

    fn of(src: &str, sources: &[Source]) -> Self {
        let source = |path: &str| sources.iter().find(|source| source.path == path);
        let mut files = Vec::new();
        let mut pending = vec![(String::new(), format!("{src}/lib.rs"))];
        while let Some((module, path)) = pending.pop() {
            // What is not among the sources is made by the build, or exists in tests only.
            let Some(source) = source(&path) else { continue };
            let (directory, file) = path.rsplit_once('/').expect("it is inside of `src`");
            let inside = match file {
                "lib.rs" | "mod.rs" => directory.to_owned(),
                _ => path.trim_end_matches(".rs").to_owned(),
            };
            let children = declared(source);
            for child in &children {
                let name = join(&module, &child.name);
                match &child.path {
                    Some(path) => pending.push((name, format!("{directory}/{path}"))),
                    None => {
                        pending.push((name.clone(), format!("{inside}/{}.rs", child.name)));
                        pending.push((name, format!("{inside}/{}/mod.rs", child.name)));
                    }
                }
            }
            let children = children.into_iter().map(|child| child.name).collect();
            files.push((module, children, source));
        }
        let names: BTreeSet<String> = files.iter().map(|(module, ..)| module.clone()).collect();
        let mut uses = BTreeMap::<String, BTreeSet<String>>::new();
        for (module, children, source) in &files {
            let paths = paths(&source.code_without_tests());
            let used = paths.iter().filter_map(|path| resolve(path, module, children));
            let used = used.map(|path| longest(&path, &names)).filter(|used| used != module);
            uses.entry(shown(module)).or_default().extend(used.map(|used| shown(&used)));
        }
        Self { uses }
    }

    /// What does not fit to these floors, lowest first.
    fn against(&self, floors: &[&[&str]]) -> Vec<String> {
        let floor = |module: &str| {
            let named =
                floors.iter().enumerate().flat_map(|(floor, names)| names.iter().map(move |n| (n, floor)));
            let own = named.filter(|(name, _)| is_inside(module, name));
            own.max_by_key(|(name, _)| name.len()).map(|(_, floor)| floor)
        };
        let mut problems = Vec::new();
        for (module, used) in &self.uses {
            let Some(own) = floor(module) else {
                problems.push(format!("{module} is on no floor: add it to the table"));
                continue;
            };
            for used in used.iter().filter(|used| floor(used).is_some_and(|other| other > own)) {
                problems.push(format!("{module} uses {used}, which is above it"));
            }
        }
        for name in floors.iter().flat_map(|names| names.iter()) {
            if !self.uses.keys().any(|module| is_inside(module, name)) {
                problems.push(format!("the table has {name}, which is no module"));
            }
        }
        problems
    }

    /// The circles of modules that use each other: each set of modules of which every one reaches every
    /// other, with the uses inside it.
    fn circles(&self) -> Vec<String> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.uses.keys().map(|module| (module.as_str(), self.reached_from(module))).collect();
        let mut seen = BTreeSet::new();
        let mut circles = Vec::new();
        for &module in reached.keys() {
            let circle: BTreeSet<&str> =
                reached[module].iter().copied().filter(|other| reached[other].contains(module)).collect();
            if circle.is_empty() || !seen.insert(circle.clone()) {
                continue;
            }
            let arrows = circle.iter().flat_map(|&from| {
                let inside = self.uses[from].iter().filter(|to| circle.contains(to.as_str()));
                inside.map(move |to| format!("{from} -> {to}"))
            });
            let arrows: Vec<String> = arrows.collect();
            circles.push(format!("a circle of {} modules: {}", circle.len(), arrows.join(", ")));
        }
        circles
    }

    /// The modules that a module uses, and those that these use, and so on.
    fn reached_from(&self, module: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut pending = vec![module];
        while let Some(next) = pending.pop() {
            for used in &self.uses[next] {
                if reached.insert(used.as_str()) {
                    pending.push(used);
                }
            }
        }
        reached
    }
}

/// A module that a file declares: `mod name;`.
struct Declared {
    name: String,
    /// What `#[path = "..."]` says.
    path: Option<String>,
}

/// The modules that a file declares, without those that exist in tests only. Attributes stand on lines of
/// their own, as rustfmt puts them.
fn declared(source: &Source) -> Vec<Declared> {
    let code = source.code();
    let text: Vec<&str> = source.text.lines().collect();
    let code: Vec<&str> = code.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (at, line) in code.iter().enumerate() {
        let Some(name) = line.strip_suffix(';').and_then(|line| line.rsplit_once("mod ")) else { continue };
        let (before, name) = (name.0.trim(), name.1.trim());
        if !(before.is_empty() || before.starts_with("pub")) || !name.chars().all(is_part) {
            continue;
        }
        let first = code[..at].iter().rposition(|line| !line.starts_with("#[")).map_or(0, |at| at + 1);
        let in_tests_only = code[first..at]
            .iter()
            .any(|line| line.starts_with("#[cfg(") && has_word(line, "test") && !line.contains("not(test"));
        if !in_tests_only {
            let path = text[first..at].iter().find_map(|line| line.trim().strip_prefix("#[path = \""));
            let path = path.and_then(|path| path.split('"').next()).map(str::to_owned);
            found.push(Declared { name: name.to_owned(), path });
        }
    }
    found
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// All paths of code that may begin with a module, the trees of `use` flattened, each as its segments.
fn paths(code: &str) -> Vec<Vec<String>> {
    let tokens = tokens(code);
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let continues = at > 0 && matches!(tokens[at - 1].as_str(), "::" | ".");
        let is_name = tokens[at].chars().all(is_part);
        if is_name && !continues && tokens.get(at + 1).is_some_and(|next| next == "::") {
            at = tree(&tokens, at, &[], &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Reads one path, or one part of a group in braces, that begins at `at`; gives where it ends.
fn tree(tokens: &[String], mut at: usize, before: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = before.to_vec();
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("{") => {
                at += 1;
                while let Some(token) = tokens.get(at).map(String::as_str) {
                    at = match token {
                        "}" => return at + 1,
                        "," => at + 1,
                        _ => tree(tokens, at, &path, found),
                    };
                }
                return at;
            }
            // `a::{self}` is `a`.
            Some("self") if !path.is_empty() => at += 1,
            Some(name) if name.chars().all(is_part) => {
                path.push(name.to_owned());
                at += 1;
            }
            // A glob, or generic arguments: the path before it is used.
            Some(_) if at > 0 && tokens[at - 1] == "::" => at += 1,
            _ => {}
        }
        if tokens.get(at).is_none_or(|next| next != "::") {
            // `as other`, in a group.
            if !before.is_empty() && tokens.get(at).is_some_and(|next| next == "as") {
                at += 2;
            }
            found.push(path);
            return at;
        }
        at += 1;
    }
}

/// Words, `::`, and single other characters.
fn tokens(code: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let len = match rest.find(|c: char| !is_part(c)) {
            Some(0) if rest.starts_with("::") => 2,
            Some(0) => first.len_utf8(),
            Some(len) => len,
            None => rest.len(),
        };
        tokens.push(rest[..len].to_owned());
        rest = rest[len..].trim_start();
    }
    tokens
}

/// The path from the crate's root on, if it is one inside the crate.
fn resolve(path: &[String], module: &str, children: &BTreeSet<String>) -> Option<String> {
    let (first, mut rest) = path.split_first()?;
    let mut base = module.to_owned();
    match first.as_str() {
        "crate" => base.clear(),
        "self" => {}
        "super" => {
            base = parent(&base);
            while let Some(("super", more)) = rest.split_first().map(|(first, more)| (first.as_str(), more)) {
                base = parent(&base);
                rest = more;
            }
        }
        child if children.contains(child) => rest = path,
        _ => return None,
    }
    Some(rest.iter().fold(base, |path, name| join(&path, name)))
}

fn parent(module: &str) -> String {
    module.rsplit_once("::").map_or("", |(parent, _)| parent).to_owned()
}

fn join(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

/// The longest of `names` that a path begins with.
fn longest(path: &str, names: &BTreeSet<String>) -> String {
    let mut path = path.to_owned();
    while !names.contains(&path) {
        path = parent(&path);
    }
    path
}

fn shown(module: &str) -> String {
    if module.is_empty() { ROOT.to_owned() } else { module.to_owned() }
}

/// Whether the module is this one, or inside of it.
fn is_inside(module: &str, name: &str) -> bool {
    module.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(files: &[(&str, &str)]) -> Modules {
        let source =
            |(path, text): &(&str, &str)| Source { path: format!("s/{path}"), text: (*text).to_owned() };
        Modules::of("s", &files.iter().map(source).collect::<Vec<_>>())
    }

    fn used<'m>(modules: &'m Modules, module: &str) -> Vec<&'m str> {
        modules.uses[module].iter().map(String::as_str).collect()
    }

    /// Three floors without a circle, and then one arrow more.
    fn house(more: &str) -> Modules {
        modules(&[
            ("lib.rs", "pub mod top;\nmod middle;\npub(crate) mod low;\npub use top::go;"),
            ("top.rs", "use crate::middle::{self, inner::run as walk};"),
            ("middle/mod.rs", "mod inner;\nfn f() { inner::g(crate::low::x) }"),
            ("middle/inner.rs", more),
            (
                "low.rs",
                "// crate::top is only named here, and \"crate::top\" there.\nlet a = \"crate::top\";",
            ),
        ])
    }

    const FLOORS: [&[&str]; 4] = [&["low"], &["middle"], &["top"], &[ROOT]];

    #[test]
    fn a_house_without_circles_has_no_problems() {
        let house = house("use crate::low;");
        assert_eq!(used(&house, ROOT), ["top"]);
        assert_eq!(used(&house, "top"), ["middle", "middle::inner"]);
        assert_eq!(used(&house, "middle"), ["low", "middle::inner"]);
        assert_eq!(used(&house, "low"), [""; 0]);
        assert_eq!(house.circles(), [""; 0]);
        assert_eq!(house.against(&FLOORS), [""; 0]);
    }

    #[test]
    fn a_circle_is_seen_also_of_a_module_and_one_inside_it() {
        for more in ["super::X", "use super::X;", "use super::*;", "use crate::middle::{Y, Z};"] {
            let circles = house(more).circles();
            let expected = "a circle of 2 modules: middle -> middle::inner, middle::inner -> middle";
            assert_eq!(circles, [expected], "{more}");
        }
        let long = house("fn f() -> super::super::top::Way<crate::low::Type> { }");
        assert_eq!(used(&long, "middle::inner"), ["low", "top"]);
        let circle = "a circle of 3 modules: middle -> middle::inner, middle::inner -> top, top -> middle, \
                      top -> middle::inner";
        assert_eq!(long.circles(), [circle]);
        let root = modules(&[("lib.rs", "mod a;\npub use a::b;"), ("a.rs", "use crate::Errno;")]);
        assert_eq!(root.circles(), ["a circle of 2 modules: a -> lib, lib -> a"]);
    }

    #[test]
    fn an_arrow_that_goes_up_is_seen_and_a_module_without_a_floor() {
        let up = house("use crate::{low::A, top::go};");
        assert_eq!(up.against(&FLOORS), ["middle::inner uses top, which is above it"]);
        let floors: [&[&str]; 3] = [&["low", "middle::inner"], &["attic"], &["middle", ROOT]];
        // What is on no floor is above nothing.
        let expected = ["top is on no floor: add it to the table", "the table has attic, which is no module"];
        assert_eq!(up.against(&floors), expected);
        // A module inside of another can have a floor of its own.
        let floors: [&[&str]; 3] = [&["low", "middle"], &["top", ROOT], &["middle::inner"]];
        let expected =
            ["middle uses middle::inner, which is above it", "top uses middle::inner, which is above it"];
        assert_eq!(up.against(&floors), expected);
    }

    #[test]
    fn what_exists_in_tests_only_is_left_out_and_a_path_is_followed() {
        let code = "#[cfg(not(shuttle))]\nmod a;\n#[cfg(shuttle)]\n#[path = \"a_model.rs\"]\nmod a;\nmod b;\n\
                    #[cfg(all(test, not(shuttle)))]\nmod helper;\n#[cfg(test)]\nmod tests;\n";
        let modules = modules(&[
            ("lib.rs", code),
            ("a.rs", "#[cfg(test)]\nmod tests { use crate::b; }"),
            ("a_model.rs", "macro_rules! m { () => { $crate::b::f() } }"),
            ("b.rs", "a::f(); x.a::<u8>(); std::crate_::b;"),
            ("helper.rs", "use crate::a;"),
            ("tests.rs", "use crate::b;"),
        ]);
        assert_eq!(modules.uses.keys().collect::<Vec<_>>(), ["a", "b", ROOT]);
        assert_eq!((used(&modules, "a"), used(&modules, "b")), (vec!["b"], vec![]));
    }
}
