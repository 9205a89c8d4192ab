//! The file of `--group`: TOML in, the compact form of `elbowroom_options::GroupSpec` out.
//!
//! This module knows the lines of keys, and what only TOML has: types of values, and tables in tables.
//! `GroupSpec`, which the preloaded library uses, too, knows what a spec means and finds the mistakes in
//! it.

use std::path::Path;

use elbowroom_options::{Entry, GroupSpec, Mistake, RunFacts, What};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::failure::{Failure, USAGE};
use crate::toml_file::{self, Key, TomlFile, Wrong, in_order};

/// The longest compact form, escaped as in the environment variable, in bytes. One variable has all
/// options, and Linux limits a string of the environment to 128 KiB (MAX_ARG_STRLEN).
const MOST_BYTES: usize = 96 << 10;

/// Reads and checks the file of `--group`. Gives the compact form.
///
/// # Errors
/// A failure of usage that names the file, the line and the key.
pub fn compact(path: &Path, run: &RunFacts) -> Result<String, Failure> {
    let source = TomlFile::read("--group", path)?;
    let wrong = |wrong| source.failure(wrong);
    let file = read(source.text()).map_err(wrong)?;
    let checked = GroupSpec::of(&file.entries).and_then(|spec| spec.check(&file.entries, run));
    checked.map_err(|mistake| wrong(file.wrong(&mistake)))?;
    let compact = GroupSpec::encode(&file.entries);
    // Escaping for the variable may make three bytes of one.
    if compact.len() * 3 > MOST_BYTES && elbowroom_options::escaped_len(&compact) > MOST_BYTES {
        let why = format!(
            "--group: {}: it says too much for one variable of the environment: use fewer or shorter rules",
            path.display()
        );
        return Err(Failure::new(USAGE, why));
    }
    Ok(compact)
}

/// The entries of a file, and their places.
#[derive(Debug, Default)]
struct File {
    entries: Vec<Entry>,
    /// The place of each entry and of each of its keys, in bytes from the start of the file.
    places: Vec<(usize, Vec<usize>)>,
}

impl File {
    fn add(&mut self, what: What, at: usize, pairs: Vec<(String, String, usize)>) {
        let (pairs, places) = pairs.into_iter().map(|(key, value, at)| ((key, value), at)).unzip();
        self.entries.push(Entry { what, pairs });
        self.places.push((at, places));
    }

    fn wrong(&self, mistake: &Mistake) -> Wrong {
        let (entry, (whole, keys)) = (&self.entries[mistake.entry], &self.places[mistake.entry]);
        let key = entry.pairs.iter().position(|(key, _)| *key == mistake.key);
        Wrong { at: key.map_or(*whole, |key| keys[key]), why: mistake.to_string() }
    }

    /// Adds a group, and then the groups below it. Tables in a group's table are groups.
    fn add_group(&mut self, name: &str, at: usize, table: &DeTable<'_>) -> Result<(), Wrong> {
        let (mut pairs, mut below) = (Vec::new(), Vec::new());
        for (key, value) in in_order(table) {
            let inner = format!("{name}.{}", key.get_ref());
            match value.get_ref() {
                DeValue::Table(table) => below.push((checked_name(key, &inner)?, key.span().start, table)),
                _ => pairs.push(pair(&format!("group.{name}"), key, value)?),
            }
        }
        self.add(What::Group(name.to_owned()), at, pairs);
        below.into_iter().try_for_each(|(name, at, table)| self.add_group(&name, at, table))
    }
}

fn read(text: &str) -> Result<File, Wrong> {
    let table = toml_file::parse(text)?;
    let mut file = File::default();
    let wrong = |at: &Spanned<_>, why: String| Err(Wrong { at: Spanned::<_>::span(at).start, why });
    for (key, value) in in_order(table.get_ref()) {
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("group", DeValue::Table(groups)) => {
                for (name, value) in in_order(groups) {
                    let DeValue::Table(group) = value.get_ref() else {
                        let why = format!("group.{}: a group is a table: write [group.NAME]", name.get_ref());
                        return wrong(name, why);
                    };
                    file.add_group(&checked_name(name, name.get_ref())?, name.span().start, group)?;
                }
            }
            ("rule", DeValue::Array(rules)) => {
                for value in rules.iter() {
                    let at = value.span().start;
                    let DeValue::Table(rule) = value.get_ref() else {
                        return Err(Wrong { at, why: "rule: a rule is a table: write [[rule]]".to_owned() });
                    };
                    let pairs = in_order(rule).into_iter().map(|(key, value)| pair("rule", key, value));
                    let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
                    file.add(What::Rule, at, pairs);
                }
            }
            ("group", _) => return wrong(key, "group: it holds tables: write [group.NAME]".to_owned()),
            ("rule", _) => return wrong(key, "rule: it is a list of tables: write [[rule]]".to_owned()),
            (other, _) => {
                let why = format!("{other}: there is no such key; there are [group.NAME] and [[rule]]");
                return wrong(key, why);
            }
        }
    }
    Ok(file)
}

/// `name`, the whole name of a group, unless `key`, its last part, has a dot: a quoted key with a dot would
/// look like the name of a group below another one.
fn checked_name(key: &Key<'_>, name: &str) -> Result<String, Wrong> {
    match key.get_ref().contains('.') {
        false => Ok(name.to_owned()),
        true => {
            let why =
                format!("group.{name}: a group's name has no dots: write [group.A.B] for a group below A");
            Err(Wrong { at: key.span().start, why })
        }
    }
}

/// A key, its value as a text, and the key's place in bytes.
fn pair(of: &str, key: &Key<'_>, value: &Spanned<DeValue<'_>>) -> Result<(String, String, usize), Wrong> {
    let (name, at) = (key.get_ref(), key.span().start);
    let text = match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().replace('_', ""),
        _ => {
            let why =
                format!("{of}.{name}: write a text in quotes, as in {name} = \"...\", or a whole number");
            return Err(Wrong { at, why });
        }
    };
    Ok((name.to_string(), text, at))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use elbowroom_options::Heap;

    use super::*;

    const RUN: RunFacts = RunFacts {
        budget_bytes: 1 << 30,
        is_without_swap: false,
        heap: Heap::Large,
        heap_min_bytes: 256 << 10,
    };

    fn compact_of(text: &str) -> Result<String, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spec.toml");
        fs::write(&path, text).unwrap();
        let shown = format!("{}:", path.display());
        compact(&path, &RUN).map_err(|failure| {
            assert_eq!(failure.code, USAGE);
            failure.message.strip_prefix(&shown).unwrap_or(&failure.message).to_owned()
        })
    }

    #[test]
    fn a_file_becomes_its_compact_form() {
        let text = r#"
            # Rules may stand anywhere, and a group behind one below it.
            [[rule]]
            group = "cache"
            file = "*.bin"

            [group.cache.index]
            low = "64M"

            [group.cache]
            max = 268_435_456
            high = '200M'
            small = { max = "2M" }

            [[rule]]
            group = "cache.index"
            program = "python3"
            kind = "anonymous"
            min-size = "64M"

            [[rule]]
            group = "cache.small"
        "#;
        let expected = "rule:group:cache:file:*.bin,group:cache:max:268435456:high:200M,\
                        group:cache.index:low:64M,group:cache.small:max:2M,\
                        rule:group:cache.index:program:python3:kind:anonymous:min-size:64M,\
                        rule:group:cache.small";
        let compact = compact_of(text).unwrap();
        let sorted = |text: &str| {
            let mut entries: Vec<_> = text.split(',').map(str::to_owned).collect();
            entries.sort_by_key(|entry| (entry.starts_with("rule"), entry.clone()));
            entries
        };
        assert_eq!(sorted(&compact), sorted(expected));
        let rules: Vec<_> = compact.split(',').filter(|entry| entry.starts_with("rule")).collect();
        assert!(rules[0].contains("bin") && rules[1].contains("python3"), "{compact}");
        assert_eq!(GroupSpec::parse(&compact).unwrap().groups.len(), 3);
        assert_eq!(compact_of("").unwrap(), "");
    }

    #[test]
    fn mistakes_name_line_and_key() {
        for (text, said) in [
            ("[group.a\n", "1: this is no TOML: "),
            ("\n[group.a]\nmax = 1M\n", "3: this is no TOML: "),
            ("[group.a]\nmax = \"1M\"\nmax = \"2M\"", "3: this is no TOML: "),
            ("groups = 1", "1: groups: there is no such key; there are [group.NAME] and [[rule]]"),
            ("\n[rules]", "2: rules: there is no such key; there are [group.NAME] and [[rule]]"),
            ("group = 1", "1: group: it holds tables: write [group.NAME]"),
            ("[rule]\ngroup = \"root\"", "1: rule: it is a list of tables: write [[rule]]"),
            ("rule = [1]", "1: rule: a rule is a table: write [[rule]]"),
            ("[group]\nmax = \"1M\"", "2: group.max: a group is a table: write [group.NAME]"),
            (
                "[group.\"a.b\"]",
                "1: group.a.b: a group's name has no dots: write [group.A.B] for a group below A",
            ),
            ("[group.\"a b\"]", "1: group.a b: a group's name has 1 to 64 letters, digits, _ and -"),
            ("[group.root]", "1: group.root: root is the group above all others"),
            (
                "[group.a]\n\nmax = true",
                "3: group.a.max: write a text in quotes, as in max = \"...\", or a whole",
            ),
            ("[group.a]\nmax = 1.5", "2: group.a.max: write a text in quotes"),
            (
                "[group.a]\nmax = { x = \"1M\" }",
                "2: group.a.max: min, low, high, max, swap-max, memory-swap-max, dirty, swappiness are the \
                 names of",
            ),
            ("[group.a]\nmin = \"1M\"\nmax = \"100K\"", "3: group.a.max: it must be at least 1M"),
            ("[group.a]\nmax = -1", "2: group.a.max: a size cannot be below 0"),
            ("[group.a]\nhigh = \"1,5M\"", "2: group.a.high: 1,5M: write 1.5M"),
            (
                "[group.a]\nsize = \"1M\"",
                "2: group.a.size: there is no such key; a group may have min, low, high",
            ),
            ("[group.a]\nlow = \"4M\"\nmin = \"8M\"", "3: group.a.min: 8M is more than low, 4M"),
            (
                "[group.a]\nlow = \"4G\"\n[[rule]]\ngroup = \"a\"",
                "2: group.a.low: up to here 4G are protected, more than the budget of a process, 1G",
            ),
            ("[group.a]\n[group.a.b]\nhigh = \"4M\"", "1: group.a: no rule puts memory into it"),
            (
                "[[rule]]\nkind = \"file\"\n\n[[rule]]\n\nkind = \"file\"\ngroup = \"root\"",
                "1: rule.group: the rule has no group",
            ),
            (
                "[[rule]]\ngroup = \"root\"\n\n[[rule]]\ngroup = \"b\"",
                "5: rule.group: there is no group 'b'; there are root",
            ),
            (
                "[[rule]]\ngroup = \"root\"\nkind = \"stack\"",
                "3: rule.kind: 'stack' is none of file, anonymous, heap",
            ),
            (
                "[[rule]]\ngroup = \"root\"\n\n[[rule]]\nkind = \"file\"\ngroup = \"root\"",
                "4: rule: rule 2 never decides: rule 1 fits all that it fits, and is first",
            ),
            ("[[rule]]\ngroup = \"root\"\nfile = [\"a\"]", "3: rule.file: write a text in quotes"),
            (
                "[[rule]]\ngroup = \"root\"\nkind = \"heap\"\nmax-size = \"4K\"",
                "4: rule.max-size: the rule never fits: blocks below --heap-min, 256K, are the kernel's",
            ),
        ] {
            let mistake = compact_of(text).expect_err(text);
            assert!(mistake.starts_with(said) && !mistake.contains('\n'), "{text}\n{mistake}");
        }
        assert!(
            compact(Path::new("/no/such"), &RUN).unwrap_err().message.contains("--group: /no/such: No such")
        );
        let many: String = (0..1000)
            .map(|n| format!("[[rule]]\ngroup = \"root\"\nfile = \"/{}{n}/**\"\n", "a/".repeat(50)))
            .collect();
        assert!(compact_of(&many).unwrap_err().contains("too much for one variable"));
    }
}
