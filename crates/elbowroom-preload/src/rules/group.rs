//! Which memory group a mapping belongs to: the first rule that fits decides. Plain data in, a number out.

use super::glob;
use elbowroom_options::{GroupSpec, MemoryKind, Rule};

/// The names of the program that a process runs.
#[derive(Debug, Default)]
pub struct Program {
    /// The absolute path of the executable, and the path that execve(2) was given.
    pub paths: Vec<String>,
    /// The name as which the program was called (argv\[0\]), without directories.
    pub name: String,
}

impl Program {
    /// Whether a rule means it: by an absolute path, or by the last part of a path or of the name.
    fn is(&self, wanted: &str) -> bool {
        let last = |path: &str| path.rsplit('/').next() == Some(wanted);
        if wanted.starts_with('/') {
            return self.paths.iter().any(|path| path == wanted);
        }
        self.name == wanted || self.paths.iter().any(|path| last(path))
    }
}

/// The rules for one program.
#[derive(Debug)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Those of a spec that can fit memory of the program.
    pub fn of(spec: &GroupSpec, program: &Program) -> Self {
        let is_meant = |rule: &&Rule| rule.program.as_deref().is_none_or(|wanted| program.is(wanted));
        Self(spec.rules.iter().filter(is_meant).cloned().collect())
    }

    /// Whether memory of the program can go to the group of this number, or to a group below it.
    pub fn use_group(&self, spec: &GroupSpec, number: usize) -> bool {
        let above = |number: &usize| spec.groups[*number].parent;
        let mut named = self.0.iter().filter_map(|rule| rule.group);
        named.any(|named| std::iter::successors(Some(named), above).any(|group| group == number))
    }

    /// The number of the group for a new mapping of so many bytes; `None`: the root. `path` gives the file's
    /// path, and is called at most once, if a rule needs it.
    pub fn group(
        &self,
        kind: MemoryKind,
        bytes: u64,
        path: impl FnOnce() -> Option<String>,
    ) -> Option<usize> {
        let (mut path, mut found) = (Some(path), None);
        let fits = |rule: &&Rule| {
            let sizes = rule.min_size.unwrap_or(0)..=rule.max_size.unwrap_or(u64::MAX);
            if rule.kind.is_some_and(|wanted| wanted != kind) || !sizes.contains(&bytes) {
                return false;
            }
            let Some(pattern) = &rule.file else { return true };
            if let Some(path) = path.take().filter(|_| kind == MemoryKind::File) {
                found = path();
            }
            found.as_deref().is_some_and(|path| is_file(pattern, path))
        };
        self.0.iter().find(fits).and_then(|rule| rule.group)
    }
}

/// Whether a pattern fits a path, or, if it has no slash, the path's last part.
fn is_file(pattern: &str, path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    glob::fits(pattern, if pattern.contains('/') { path } else { name })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn python() -> Program {
        Program {
            paths: vec!["/usr/bin/python3.11".to_owned(), "./train.py".to_owned()],
            name: "python3".to_owned(),
        }
    }

    fn rules(text: &str) -> (GroupSpec, Rules) {
        let spec = GroupSpec::parse(text).unwrap();
        let rules = Rules::of(&spec, &python());
        (spec, rules)
    }

    fn none() -> Option<String> {
        panic!("the path is not needed")
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let (_, rules) = rules(
            "group:a,group:a.b,group:c,rule:group:root:file:/data/keep.bin,rule:group:a:file:*.bin,\
             rule:group:c:kind:anonymous:min-size:64K:max-size:1M,rule:group:a.b:kind:heap,\
             rule:group:c:file:**/x",
        );
        let file = |path: &str| rules.group(MemoryKind::File, 4096, || Some(path.to_owned()));
        assert_eq!(file("/data/keep.bin"), None);
        assert_eq!(file("/data/other.bin"), Some(0));
        assert_eq!(file("/a/x"), Some(2));
        assert_eq!(file("/a/y"), None);
        let anonymous = |bytes| rules.group(MemoryKind::Anonymous, bytes, none);
        assert_eq!(anonymous((64 << 10) - 1), None);
        assert_eq!(anonymous(64 << 10), Some(2));
        assert_eq!(anonymous(1 << 20), Some(2));
        assert_eq!(anonymous((1 << 20) + 1), None);
        assert_eq!(rules.group(MemoryKind::Heap, 1, none), Some(1));
    }

    #[test]
    fn the_path_is_asked_for_once_and_only_if_a_rule_needs_it() {
        let (_, by_kind) = rules("group:a,rule:group:a:kind:file,rule:group:root:kind:heap");
        assert_eq!(by_kind.group(MemoryKind::File, 1, none), Some(0));
        let (_, rules) =
            rules("group:a,rule:group:a:file:x:min-size:1M,rule:group:a:file:y,rule:group:a:file:z");
        let asked = Cell::new(0);
        let path = |path: Option<&str>| {
            asked.set(asked.get() + 1);
            path.map(str::to_owned)
        };
        assert_eq!(rules.group(MemoryKind::File, 1, || path(Some("/d/z"))), Some(0));
        assert_eq!(asked.get(), 1);
        assert_eq!(
            rules.group(MemoryKind::File, 1, || path(None)),
            None,
            "a path that is not known fits no rule"
        );
        assert_eq!(asked.get(), 2);
    }

    #[test]
    fn programs_have_several_names() {
        let (spec, rules) = rules(
            "group:a,group:b,group:b.c,group:d,group:e,rule:group:a:program:python3.11,\
             rule:group:b.c:program:train.py:kind:heap,rule:group:d:program:python:kind:heap,\
             rule:group:d:program:/bin/python3:kind:heap,rule:group:e:program:/usr/bin/python3.11:kind:file",
        );
        let used: Vec<_> = (0..spec.groups.len()).filter(|group| rules.use_group(&spec, *group)).collect();
        assert_eq!(used, [0, 1, 2, 4], "groups of other programs are not made");
        let program = python();
        assert!(program.is("python3") && !program.is("python") && !program.is("bin/python3.11"));
    }
}
