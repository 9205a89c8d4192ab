//! The compact form of a spec, in which the environment carries it.

use super::{Entry, What};

/// The first words of a group and of a rule.
const GROUP: &str = "group";
const RULE: &str = "rule";

/// Writes entries in the compact form.
pub(super) fn encode(entries: &[Entry]) -> String {
    let one = |entry: &Entry| {
        let mut words = match &entry.what {
            What::Group(name) => vec![GROUP.to_owned(), escape(name)],
            What::Rule => vec![RULE.to_owned()],
        };
        words.extend(entry.pairs.iter().flat_map(|(key, value)| [escape(key), escape(value)]));
        words.join(":")
    };
    entries.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Reads entries from the compact form.
///
/// # Errors
/// What is wrong with the text: one line.
pub(super) fn entries(text: &str) -> Result<Vec<Entry>, String> {
    text.split(',').filter(|entry| !entry.is_empty()).map(entry).collect()
}

fn entry(text: &str) -> Result<Entry, String> {
    let mut words = text.split(':').map(unescape);
    let what = match words.next() {
        Some(Some(word)) if word == GROUP => match words.next() {
            Some(Some(name)) => What::Group(name),
            _ => return Err(format!("\"{text}\" has no name of a group")),
        },
        Some(Some(word)) if word == RULE => What::Rule,
        _ => return Err(format!("\"{text}\" begins with neither group: nor rule:")),
    };
    let mut pairs = Vec::new();
    while let Some(key) = words.next() {
        match (key, words.next()) {
            (Some(key), Some(Some(value))) => pairs.push((key, value)),
            (Some(key), None) => return Err(format!("\"{text}\": {key} has no value")),
            _ => return Err(format!("\"{text}\" has a % without two hexadecimal digits of a character")),
        }
    }
    Ok(Entry { what, pairs })
}

/// Writes `%` and two hexadecimal digits for each byte that separates words, is a `%`, or is not printable
/// ASCII.
fn escape(text: &str) -> String {
    let one = |byte: u8| match byte {
        b'%' | b':' | b',' | 0..0x20 | 0x7f.. => format!("%{byte:02x}"),
        _ => char::from(byte).to_string(),
    };
    text.bytes().map(one).collect()
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend(parts.next()?.bytes());
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(part[2..].bytes());
    }
    String::from_utf8(bytes).ok()
}
