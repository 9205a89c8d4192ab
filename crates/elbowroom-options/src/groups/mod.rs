//! The memory groups of a run, and the rules by which memory goes to them.
//!
//! A spec is a list of [`Entry`]s: a group with its limits, or a rule with its conditions. Each has keys
//! with values, as texts. The command reads entries from the file of `--group`, and
//! [`encode`](GroupSpec::encode) writes them in the compact form for the environment; the preloaded library
//! reads them there by [`GroupSpec::parse`]. The command and the library check entries by
//! [`GroupSpec::of`], so they find the same mistakes. A [`Mistake`] names the entry and the key; the
//! command adds the line.
//!
//! The compact form: entries with `,` between, the words of an entry with `:` between, as in
//! `group:cache:max:256M,rule:group:cache:file:*.bin`. A group has its name first. `%` and two hexadecimal
//! digits stand for a byte.

mod check;
mod compact;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fmt;

use crate::choices::{Heap, MemoryKind};
use crate::table::Kind;
use crate::value::Value;

/// The most groups that a spec can have: a manager has 1,024, of which one is the root.
pub const MOST_GROUPS: usize = 1023;

/// The most rules that a spec can have.
pub const MOST_RULES: usize = 1024;

/// The name of the root in rules: the group above all others.
pub const ROOT: &str = "root";

/// The keys of a group's limits. Each limit must be at most the next one.
pub const LIMITS: [&str; 4] = ["min", "low", "high", "max"];

/// The keys of the limits of swap. They are in no order with the others: a group may have more in swap than
/// in memory, or less.
pub const SWAP_LIMITS: [&str; 2] = ["swap-max", "memory-swap-max"];

/// The keys that a group may have.
pub const GROUP_KEYS: [&str; 8] =
    [LIMITS[0], LIMITS[1], LIMITS[2], LIMITS[3], SWAP_LIMITS[0], SWAP_LIMITS[1], "dirty", "swappiness"];

/// The keys that a rule may have.
pub const RULE_KEYS: [&str; 6] = ["group", "program", "file", "kind", "min-size", "max-size"];

/// The least that `max`, `high`, `memory-swap-max` and `dirty` can be, in bytes: what a few faults at a time
/// need.
pub const LEAST_LIMIT: u64 = 1 << 20;

/// The most of `swappiness`.
pub const MOST_SWAPPINESS: u64 = 200;

/// The least that can be protected, in bytes: a page.
pub const LEAST_PROTECTION: u64 = 4 << 10;

/// The most characters of one part of a group's name. Parts have dots between.
pub const LONGEST_NAME: usize = 64;

/// What an entry describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A group, with its whole name: the names of the groups above it, and its own, with dots between.
    Group(String),
    /// A rule.
    Rule,
}

/// A group or a rule as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Whether the entry is a group or a rule.
    pub what: What,
    /// The keys with their values.
    pub pairs: Vec<(String, String)>,
}

/// A mistake in an entry. Its text says which key is wrong, why, and what may be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The number of the entry, from 0 on.
    pub entry: usize,
    /// The key whose value is wrong; empty: the entry as a whole.
    pub key: String,
    /// The key with the name of its group, as in `group.cache.max` or `rule.file`.
    pub place: String,
    /// What is wrong.
    pub why: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.why)
    }
}

/// The limits of a group, in bytes; `None`: not limited, not protected, or as usual.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupLimits {
    /// Memory that is never taken from the group.
    pub min: Option<u64>,
    /// Memory that is taken from the group only if no unprotected memory is left.
    pub low: Option<u64>,
    /// Above this, threads whose accesses need memory of the group reclaim from it, and are slowed down.
    pub high: Option<u64>,
    /// The most that the group may use.
    pub max: Option<u64>,
    /// The most that the group may have in swap; 0: nothing.
    pub swap_max: Option<u64>,
    /// The most that the group may have in memory and swap together.
    pub memory_swap_max: Option<u64>,
    /// The most dirty pages of files that the group itself may have.
    pub dirty: Option<u64>,
    /// How readily anonymous memory is taken, beside files: a number, not bytes.
    pub swappiness: Option<u64>,
}

impl GroupLimits {
    /// The limits of memory, in the order of [`LIMITS`].
    fn all(&self) -> [Option<u64>; LIMITS.len()] {
        [self.min, self.low, self.high, self.max]
    }

    /// How many bytes are protected.
    fn protected(&self) -> u64 {
        self.min.unwrap_or(0).max(self.low.unwrap_or(0))
    }
}

/// A group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its whole name: the names of the groups above it, and its own, with dots between.
    pub name: String,
    /// The number of the group above it, which is smaller than its own; `None`: the root.
    pub parent: Option<usize>,
    /// Its limits.
    pub limits: GroupLimits,
    /// The number of its entry.
    entry: usize,
}

/// A rule: memory that fits all conditions goes to the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The number of the group; `None`: the root.
    pub group: Option<usize>,
    /// The name or the absolute path of the program.
    pub program: Option<String>,
    /// A pattern of the file's path, or, without a slash, of the file's name.
    pub file: Option<String>,
    /// The kind of the memory.
    pub kind: Option<MemoryKind>,
    /// The least length of the mapping, in bytes.
    pub min_size: Option<u64>,
    /// The greatest length of the mapping, in bytes.
    pub max_size: Option<u64>,
    /// The number of its entry.
    entry: usize,
}

/// All groups, each before the groups below it, and all rules in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupSpec {
    /// The groups.
    pub groups: Vec<Group>,
    /// The rules.
    pub rules: Vec<Rule>,
}

/// What [`GroupSpec::check`] needs to know of the run.
#[derive(Debug, Clone, Copy)]
pub struct RunFacts {
    /// The most managed memory that one process can have.
    pub budget_bytes: u64,
    /// Whether private memory is known to stay with the kernel (`--swap 0`).
    pub is_without_swap: bool,
    /// Which blocks of the heap are managed.
    pub heap: Heap,
    /// The smallest block that is managed, in bytes.
    pub heap_min_bytes: u64,
}

impl GroupSpec {
    /// Reads the compact form.
    ///
    /// # Errors
    /// What is wrong with it: one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::of(&compact::entries(text)?).map_err(|mistake| mistake.to_string())
    }

    /// The compact form of entries.
    pub fn encode(entries: &[Entry]) -> String {
        compact::encode(entries)
    }

    /// Reads entries. A group comes before the groups below it.
    ///
    /// # Errors
    /// The first mistake.
    pub fn of(entries: &[Entry]) -> Result<Self, Mistake> {
        let mut spec = Self::default();
        for (number, entry) in entries.iter().enumerate() {
            if let What::Group(name) = &entry.what {
                let group = Reader { number, entry }.group(name, &spec.groups)?;
                spec.groups.push(group);
            }
        }
        // Rules may stand before the groups that they name.
        for (number, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.what == What::Rule) {
            let rule = Reader { number, entry }.rule(&spec.groups, spec.rules.len())?;
            spec.rules.push(rule);
        }
        check::all(&spec, entries)?;
        Ok(spec)
    }

    /// Checks what depends on the other options of the run.
    ///
    /// # Errors
    /// The first mistake.
    pub fn check(&self, entries: &[Entry], run: &RunFacts) -> Result<(), Mistake> {
        check::run(self, entries, run)
    }
}

/// Reads the keys of one entry.
struct Reader<'e> {
    number: usize,
    entry: &'e Entry,
}

impl Reader<'_> {
    fn mistake(&self, key: &str, why: String) -> Mistake {
        let name = match &self.entry.what {
            What::Group(name) => format!("group.{name}"),
            What::Rule => "rule".to_owned(),
        };
        let place = if key.is_empty() { name } else { format!("{name}.{key}") };
        Mistake { entry: self.number, key: key.to_owned(), place, why }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// The entry has the key twice.
    fn text(&self, key: &str) -> Result<Option<&str>, Mistake> {
        let mut found = self.entry.pairs.iter().filter(|(name, _)| name == key);
        match (found.next(), found.next()) {
            (_, Some(_)) => Err(self.mistake(key, "it is there twice".to_owned())),
            (first, None) => Ok(first.map(|(_, value)| value.as_str())),
        }
    }

    fn size(&self, key: &str, least: u64) -> Result<Option<u64>, Mistake> {
        self.number(key, Kind::Size { least, most: u64::MAX })
    }

    fn number(&self, key: &str, kind: Kind) -> Result<Option<u64>, Mistake> {
        match self.text(key)?.map(|text| kind.read(OsStr::new(text))) {
            None => Ok(None),
            Some(Ok(Value::Number(number))) => Ok(Some(number)),
            Some(Ok(_)) => unreachable!("the kind is one of numbers"),
            Some(Err(problem)) => Err(self.mistake(key, problem.to_string())),
        }
    }

    fn knows_all_keys(&self, known: &[&str]) -> Result<(), Mistake> {
        let unknown = self.entry.pairs.iter().find(|(key, _)| !known.contains(&key.as_str()));
        let Some((key, _)) = unknown else { return Ok(()) };
        let what = if self.entry.what == What::Rule { "a rule" } else { "a group" };
        Err(self.mistake(key, format!("there is no such key; {what} may have {}", known.join(", "))))
    }

    fn group(&self, name: &str, before: &[Group]) -> Result<Group, Mistake> {
        let whole = |why: &str| Err(self.mistake("", why.to_owned()));
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let is_name = |part: &str| (1..=LONGEST_NAME).contains(&part.len()) && part.chars().all(is_plain);
        if !name.split('.').all(is_name) {
            return whole("a group's name has 1 to 64 letters, digits, _ and -");
        }
        if name.split('.').next() == Some(ROOT) {
            return whole("root is the group above all others: its limit is --memory, or --each");
        }
        if name.split('.').any(|part| GROUP_KEYS.contains(&part)) {
            return Err(self.mistake(
                "",
                format!("{} are the names of limits: give the group another name", GROUP_KEYS.join(", ")),
            ));
        }
        if before.iter().any(|group| group.name == name) {
            return whole("the group is there twice");
        }
        if before.len() == MOST_GROUPS {
            return Err(self.mistake("", format!("there can be {MOST_GROUPS} groups, and no more")));
        }
        let parent = match name.rsplit_once('.') {
            None => None,
            Some((above, _)) => match before.iter().position(|group| group.name == above) {
                None => return Err(self.mistake("", format!("there is no group {above} before it"))),
                above => above,
            },
        };
        self.knows_all_keys(&GROUP_KEYS)?;
        let limits = GroupLimits {
            min: self.size("min", LEAST_PROTECTION)?,
            low: self.size("low", LEAST_PROTECTION)?,
            high: self.size("high", LEAST_LIMIT)?,
            max: self.size("max", LEAST_LIMIT)?,
            swap_max: self.size("swap-max", 0)?,
            memory_swap_max: self.size("memory-swap-max", LEAST_LIMIT)?,
            dirty: self.size("dirty", LEAST_LIMIT)?,
            swappiness: self.number("swappiness", Kind::Count { most: MOST_SWAPPINESS })?,
        };
        Ok(Group { name: name.to_owned(), parent, limits, entry: self.number })
    }

    fn rule(&self, groups: &[Group], before: usize) -> Result<Rule, Mistake> {
        if before == MOST_RULES {
            return Err(self.mistake("", format!("there can be {MOST_RULES} rules, and no more")));
        }
        self.knows_all_keys(&RULE_KEYS)?;
        let kind = match self.text("kind")?.map(|text| (text, MemoryKind::named(text))) {
            None => None,
            Some((_, Some(kind))) => Some(kind),
            Some((text, None)) => {
                let why = format!("'{text}' is none of file, anonymous, heap");
                return Err(self.mistake("kind", why));
            }
        };
        Ok(Rule {
            group: self.group_of_rule(groups)?,
            program: self.text("program")?.map(str::to_owned),
            file: self.text("file")?.map(str::to_owned),
            kind,
            min_size: self.size("min-size", 1)?,
            max_size: self.size("max-size", 1)?,
            entry: self.number,
        })
    }

    fn group_of_rule(&self, groups: &[Group]) -> Result<Option<usize>, Mistake> {
        let name = match self.text("group")? {
            None => {
                let why = "the rule has no group: write the name of one, or root".to_owned();
                return Err(self.mistake("group", why));
            }
            Some(ROOT) => return Ok(None),
            Some(name) => name,
        };
        let found = groups.iter().position(|group| group.name == name);
        found.map(Some).ok_or_else(|| {
            let known: Vec<_> =
                groups.iter().map(|group| group.name.as_str()).chain([ROOT]).take(20).collect();
            self.mistake("group", format!("there is no group '{name}'; there are {}", known.join(", ")))
        })
    }
}
