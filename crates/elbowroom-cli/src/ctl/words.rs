//! The words after `ctl set` and its like: ids of processes, names of groups, limits with their values. Pure.

use elbowroom::{Config, LimitKey};
use elbowroom_options::{LEAST_LIMIT, LEAST_PROTECTION, MOST_SWAPPINESS, size};

use crate::failure::{Failure, USAGE};

/// A group as a command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupName {
    /// The process; `None`: all processes of the run that have such a group.
    pub pid: Option<u32>,
    /// The whole name: the names of the groups above it, and its own, with dots between.
    pub name: String,
}

/// An argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// The id of a process.
    Id(u32),
    /// A group.
    Group(GroupName),
    /// A limit with its value, mostly in bytes; `u64::MAX`: none.
    Limit(LimitKey, u64),
}

/// What a word can be, for messages.
const WORDS: &str = "it is neither the id of a process, nor the name of a group, nor a limit as in max=1G";

impl Word {
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some((limit, value)) = text.split_once('=') else { return Self::target(text) };
        let Some(limit) = LimitKey::ALL.into_iter().find(|key| key.name() == limit) else {
            let all = LimitKey::ALL.map(LimitKey::name).join(", ");
            return Err(format!("there is no limit '{limit}': there are {all}"));
        };
        let value = match (limit, value) {
            (LimitKey::Low | LimitKey::Min, value) => size_of(value)?,
            (LimitKey::Swappiness, value) => {
                let number = value.parse().ok().filter(|number| *number <= MOST_SWAPPINESS);
                number.ok_or_else(|| format!("swappiness is a number from 0 to {MOST_SWAPPINESS}"))?
            }
            (_, "none") => u64::MAX,
            (_, value) => size_of(value)?,
        };
        Ok(Self::Limit(limit, value))
    }

    /// A process or a group.
    pub fn target(text: &str) -> Result<Self, String> {
        let id = |text: &str| text.parse::<u32>().ok().filter(|id| *id > 0);
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return id(text).map(Self::Id).ok_or_else(|| WORDS.to_owned());
        }
        let (pid, name) = match text.split_once('/') {
            Some((pid, name)) => (Some(id(pid).ok_or("what is before / is the id of a process")?), name),
            None => (None, text),
        };
        let is_part = |part: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
            !part.is_empty() && part.bytes().all(fits)
        };
        if !name.split('.').all(is_part) {
            return Err(WORDS.to_owned());
        }
        if name == "root" {
            return Err("the root is the process as a whole: name it by its id alone".to_owned());
        }
        Ok(Self::Group(GroupName { pid, name: name.to_owned() }))
    }
}

pub fn size_of(text: &str) -> Result<u64, String> {
    size::parse(text).map_err(|error| error.to_string())
}

/// A change of a limit. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// `max` of a run; `None`: of the only one.
    Max { run: Option<u32>, bytes: u64 },
    /// `low` of a process.
    Low { pid: u32, bytes: u64 },
    /// A limit of a group, in all processes of the run that have it, or in one. `value`: mostly in bytes.
    Group { run: Option<u32>, group: GroupName, limit: LimitKey, value: u64 },
}

impl Change {
    pub fn of(words: &[Word]) -> Result<Self, Failure> {
        use LimitKey::{Dirty, High, Low, Max, MemorySwapMax, Min, SwapMax, Swappiness};
        use Word::{Group, Id, Limit as To};
        let wrong = |why: String| Err(Failure::new(USAGE, why));
        let run_max = |run, bytes| match bytes {
            u64::MAX => wrong("max of a run is a size: a run has a budget".to_owned()),
            bytes if bytes < Config::MIN_MEMORY => {
                wrong(format!("max of a run: it must be at least {}", size::Exact(Config::MIN_MEMORY)))
            }
            bytes => Ok(Self::Max { run, bytes }),
        };
        let protects = |limit, bytes| match bytes {
            1..LEAST_PROTECTION => {
                let least = size::Exact(LEAST_PROTECTION);
                Err(Failure::new(USAGE, format!("{limit}: it is 0, or at least {least}")))
            }
            _ => Ok(()),
        };
        let of_group = |run, group: &GroupName, limit: LimitKey, value| {
            match limit {
                Max | High | MemorySwapMax | Dirty if value < LEAST_LIMIT => {
                    let (limit, least) = (limit.name(), size::Exact(LEAST_LIMIT));
                    return wrong(format!("{limit} of a group: it must be at least {least}"));
                }
                Low | Min => protects(limit.name(), value)?,
                _ => {}
            }
            Ok(Self::Group { run, group: group.clone(), limit, value })
        };
        match words {
            [To(Max, bytes)] => run_max(None, *bytes),
            [Id(run), To(Max, bytes)] => run_max(Some(*run), *bytes),
            [Id(pid), To(Low, bytes)] => {
                protects("low", *bytes)?;
                Ok(Self::Low { pid: *pid, bytes: *bytes })
            }
            [Group(group), To(limit, bytes)] => of_group(group.pid, group, *limit, *bytes),
            [Id(run), Group(group), To(limit, bytes)] => of_group(Some(*run), group, *limit, *bytes),
            [To(Low, bytes)] => {
                let low = size::Exact(*bytes);
                wrong(format!("low is a process's: name it, as in `elbowroom ctl set PID low={low}`"))
            }
            [To(limit @ (High | Min | SwapMax | MemorySwapMax | Dirty | Swappiness), _)]
            | [Id(_), To(limit @ (High | Min | SwapMax | MemorySwapMax | Dirty | Swappiness), _)] => {
                let (limit, value) = (limit.name(), if *limit == Swappiness { "NUMBER" } else { "SIZE" });
                wrong(format!(
                    "{limit} is of a group: name it, as in `elbowroom ctl set cache {limit}={value}`"
                ))
            }
            _ => wrong(
                "say `elbowroom ctl set [RUN] max=SIZE`, `elbowroom ctl set PID low=SIZE`, or `elbowroom ctl \
                 set [RUN] GROUP LIMIT=SIZE`"
                    .to_owned(),
            ),
        }
    }
}

/// Of which process or group `ctl reclaim` reclaims how much.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reclaim {
    Process { pid: u32, bytes: u64 },
    Group { run: Option<u32>, group: GroupName, bytes: u64 },
}

impl Reclaim {
    pub fn of(words: &[String]) -> Result<Self, Failure> {
        let wrong = |why: String| Failure::new(USAGE, why);
        let how = "say `elbowroom ctl reclaim PID SIZE` or `elbowroom ctl reclaim [RUN] GROUP SIZE`";
        let (size, targets) =
            words.split_last().filter(|(_, targets)| !targets.is_empty()).ok_or(wrong(how.into()))?;
        let bytes = size_of(size).map_err(|why| wrong(format!("'{size}': {why}")))?;
        match &targets_of(targets)?[..] {
            [Word::Id(pid)] => Ok(Self::Process { pid: *pid, bytes }),
            [Word::Group(group)] => Ok(Self::Group { run: group.pid, group: group.clone(), bytes }),
            [Word::Id(run), Word::Group(group)] => {
                Ok(Self::Group { run: Some(*run), group: group.clone(), bytes })
            }
            _ => Err(wrong(how.to_owned())),
        }
    }
}

/// The run and the group that words name, neither of which is needed.
pub fn run_and_group(words: &[String]) -> Result<(Option<u32>, Option<GroupName>), Failure> {
    match &targets_of(words)?[..] {
        [] => Ok((None, None)),
        [Word::Id(run)] => Ok((Some(*run), None)),
        [Word::Group(group)] => Ok((group.pid, Some(group.clone()))),
        [Word::Id(run), Word::Group(group)] => Ok((Some(*run), Some(group.clone()))),
        _ => Err(Failure::new(USAGE, "name a run by the id of a process, then a group: [RUN] [GROUP]")),
    }
}

fn targets_of(words: &[String]) -> Result<Vec<Word>, Failure> {
    let target =
        |word: &String| Word::target(word).map_err(|why| Failure::new(USAGE, format!("'{word}': {why}")));
    words.iter().map(target).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(pid: Option<u32>, name: &str) -> GroupName {
        GroupName { pid, name: name.to_owned() }
    }

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn words_of_set() {
        let parse = |words: &[&str]| words.iter().map(|word| Word::parse(word).unwrap()).collect::<Vec<_>>();
        let of =
            |run, pid, name: &str, limit, value| Change::Group { run, group: group(pid, name), limit, value };
        for (words, change) in [
            (&["max=1G"][..], Change::Max { run: None, bytes: 1 << 30 }),
            (&["7", "max=16M"], Change::Max { run: Some(7), bytes: 16 << 20 }),
            (&["7", "low=0"], Change::Low { pid: 7, bytes: 0 }),
            (&["cache", "max=1M"], of(None, None, "cache", LimitKey::Max, 1 << 20)),
            (&["7/cache.index", "high=none"], of(Some(7), Some(7), "cache.index", LimitKey::High, u64::MAX)),
            (&["7", "cache", "min=4K"], of(Some(7), None, "cache", LimitKey::Min, 4096)),
            (&["7/12", "low=0"], of(Some(7), Some(7), "12", LimitKey::Low, 0)),
            (&["a", "swap-max=0"], of(None, None, "a", LimitKey::SwapMax, 0)),
            (&["a", "dirty=none"], of(None, None, "a", LimitKey::Dirty, u64::MAX)),
            (&["a", "swappiness=200"], of(None, None, "a", LimitKey::Swappiness, 200)),
        ] {
            assert_eq!(Change::of(&parse(words)).unwrap(), change);
        }
        for (words, said) in [
            (&["low=64M"][..], "elbowroom ctl set PID low=64M"),
            (&["7"], "elbowroom ctl set [RUN] max=SIZE"),
            (&["7", "8"], "elbowroom ctl set [RUN] max=SIZE"),
            (&["max=1G", "low=1M"], "elbowroom ctl set [RUN] max=SIZE"),
            (&["cache"], "elbowroom ctl set [RUN] GROUP LIMIT=SIZE"),
            (&["high=1G"], "elbowroom ctl set cache high=SIZE"),
            (&["7", "min=1G"], "min is of a group"),
            (&["max=15M"], "at least 16M"),
            (&["max=none"], "is a size"),
            (&["cache", "max=1K"], "at least 1M"),
            (&["cache", "memory-swap-max=1K"], "at least 1M"),
            (&["cache", "low=1"], "0, or at least 4K"),
            (&["7", "low=4095"], "0, or at least 4K"),
            (&["7", "swappiness=7"], "swappiness is of a group"),
        ] {
            let failure = Change::of(&parse(words)).unwrap_err();
            assert!(failure.code == USAGE && failure.message.contains(said), "{words:?}: {failure}");
        }
        for (word, said) in [
            ("max=", "no number"),
            ("swapiness=1", "there are max, high, low, min, swap-max"),
            ("swappiness=201", "from 0 to 200"),
            ("swappiness=none", "from 0 to 200"),
            ("low=none", "no number"),
            ("ma ke", "neither the id of a process, nor"),
            ("0", "neither"),
            ("a..b", "neither"),
            ("x/cache", "before / is the id"),
            ("7/root", "by its id alone"),
            ("low=1 furlong", "not a unit"),
        ] {
            let why = Word::parse(word).unwrap_err();
            assert!(why.contains(said), "{word}: {why}");
        }
    }

    #[test]
    fn words_of_reclaim_and_stat() {
        let of = |words: &[&str]| Reclaim::of(&strings(words));
        assert_eq!(of(&["7", "1M"]).unwrap(), Reclaim::Process { pid: 7, bytes: 1 << 20 });
        let group_of = |run, pid| Reclaim::Group { run, group: group(pid, "a"), bytes: 1 << 20 };
        assert_eq!(of(&["a", "1M"]).unwrap(), group_of(None, None));
        assert_eq!(of(&["7/a", "1M"]).unwrap(), group_of(Some(7), Some(7)));
        assert_eq!(of(&["7", "a", "1M"]).unwrap(), group_of(Some(7), None));
        for (words, said) in [
            (&["7"][..], "PID SIZE"),
            (&[], "PID SIZE"),
            (&["a", "b", "1M"], "PID SIZE"),
            (&["7", "1 furlong"], "not a unit"),
        ] {
            let failure = of(words).unwrap_err();
            assert!(failure.code == USAGE && failure.message.contains(said), "{words:?}: {failure}");
        }
        let named = |words: &[&str]| run_and_group(&strings(words)).unwrap();
        assert_eq!(named(&[]), (None, None));
        assert_eq!(named(&["7"]), (Some(7), None));
        assert_eq!(named(&["7/a"]), (Some(7), Some(group(Some(7), "a"))));
        assert_eq!(named(&["7", "a"]), (Some(7), Some(group(None, "a"))));
        assert!(run_and_group(&strings(&["a", "7"])).is_err());
    }
}
