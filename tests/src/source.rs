//! The project's source files, and their code without comments, strings and test modules, for the tidy test.

use std::path::{Path, PathBuf};

use crate::place::workspace;

/// Directories that hold nothing of the project's own.
const SKIPPED: [&str; 2] = ["target", ".git"];

/// A text file of the project.
pub struct Source {
    /// Relative to the workspace, with `/`.
    pub path: String,
    /// All of it.
    pub text: String,
}

impl Source {
    /// Reads one file, named relative to the workspace.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn read(path: &str) -> Self {
        let text =
            std::fs::read_to_string(workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self { path: path.to_owned(), text }
    }

    /// The files under `directory` (relative to the workspace; empty for all) whose name ends in one of
    /// `endings`.
    ///
    /// # Panics
    /// If a directory or file cannot be read, or there is none: a check of nothing is none.
    pub fn all(directory: &str, endings: &[&str]) -> Vec<Self> {
        let mut paths = Vec::new();
        walk(&workspace().join(directory), &mut paths);
        let mut names: Vec<String> = paths
            .iter()
            .map(|path| {
                path.strip_prefix(workspace()).expect("it was found there").to_string_lossy().into_owned()
            })
            .filter(|name| endings.iter().any(|ending| name.ends_with(ending)))
            .collect();
        names.sort();
        assert!(!names.is_empty(), "{directory} has no file {endings:?}");
        names.iter().map(|name| Self::read(name)).collect()
    }

    /// Its Rust code, with comments and the insides of strings blanked. Lines keep their numbers.
    pub fn code(&self) -> String {
        blank_text(&self.text)
    }

    /// The same without test modules.
    pub fn code_without_tests(&self) -> String {
        if self.path.ends_with("/tests.rs") || self.path.contains("/tests/") {
            return String::new();
        }
        blank_test_modules(&self.code())
    }
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    let entries =
        std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for entry in entries {
        let path = entry.unwrap_or_else(|error| panic!("{}: {error}", directory.display())).path();
        let skipped = path.file_name().is_some_and(|name| SKIPPED.iter().any(|&skipped| name == skipped));
        if path.is_dir() && !skipped {
            walk(&path, found);
        } else if path.is_file() {
            found.push(path);
        }
    }
}

/// Whether `word` occurs as a word of its own.
pub fn has_word(code: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        !code[..at].chars().next_back().is_some_and(part)
            && !code[at + word.len()..].chars().next().is_some_and(part)
    })
}

/// Rust text with comments and the insides of string and character literals replaced by blanks.
pub fn blank_text(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_or_comment_end(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    out
}

/// Where the comment or literal that begins at `at` ends; `at` if none begins there.
fn literal_or_comment_end(chars: &[char], at: usize) -> usize {
    let starts =
        |text: &str, from: usize| text.chars().enumerate().all(|(i, c)| chars.get(from + i) == Some(&c));
    let find = |text: &str, from: usize| (from..chars.len()).find(|&i| starts(text, i));
    let len = chars.len();
    if starts("//", at) {
        return find("\n", at).unwrap_or(len);
    }
    if starts("/*", at) {
        return find("*/", at + 2).map_or(len, |end| end + 2);
    }
    if chars[at] == 'r' && (at == 0 || !(chars[at - 1].is_alphanumeric() || chars[at - 1] == '_')) {
        let hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
        if chars.get(at + 1 + hashes) == Some(&'"') {
            let close = format!("\"{}", "#".repeat(hashes));
            return find(&close, at + 2 + hashes).map_or(len, |end| end + close.len());
        }
    }
    match chars[at] {
        '"' => quoted_end(chars, at, '"'),
        // A character, not a lifetime: it is escaped, or closed after one character.
        '\'' if chars.get(at + 1) == Some(&'\\') || chars.get(at + 2) == Some(&'\'') => {
            quoted_end(chars, at, '\'')
        }
        _ => at,
    }
}

fn quoted_end(chars: &[char], at: usize, quote: char) -> usize {
    let mut end = at + 1;
    while end < chars.len() && chars[end] != quote {
        end += if chars[end] == '\\' { 2 } else { 1 };
    }
    (end + 1).min(chars.len())
}

/// Code without the modules that exist in tests only: `#[cfg(test)] mod ... { ... }`, also with `all(test,
/// ...)`.
fn blank_test_modules(code: &str) -> String {
    let mut out = code.to_owned();
    let mut from = 0;
    while let Some(at) = find_test_module(&out, from) {
        let end = match out[at..].find('{') {
            Some(open) => at + open + block_len(&out[at + open..]),
            None => out.len(),
        };
        let blank: String = out[at..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        out.replace_range(at..end, &blank);
        from = at;
    }
    out
}

fn find_test_module(code: &str, from: usize) -> Option<usize> {
    let mut search = from;
    while let Some(found) = code[search..].find("#[cfg(") {
        let at = search + found;
        let end = at + code[at..].find(")]")? + 2;
        let item = code[end..].trim_start();
        let is_module = item.starts_with("mod ") && item.find('{') < item.find(';').or(Some(usize::MAX));
        let condition = &code[at..end];
        if has_word(condition, "test") && !condition.contains("not(test") && is_module {
            return Some(at);
        }
        search = end;
    }
    None
}

/// The length of the braced block that the code begins with.
fn block_len(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_blanked_and_code_is_not() {
        let code = blank_text(
            "let a = \"x // y\"; // unsafe\nlet b = 'c'; /* no\nno */ fn f<'a>() {} r#\"un\"safe\"# '\\''",
        );
        assert!(!code.contains("unsafe") && !code.contains('x') && !code.contains("no"), "{code}");
        assert!(code.contains("let a =") && code.contains("fn f<'a>() {}"), "{code}");
        assert_eq!(code.lines().count(), 3);
    }

    #[test]
    fn test_modules_are_blanked_and_others_are_not() {
        let code = "mod a { x }\n#[cfg(test)]\nmod tests { use y; { } }\n\
                    #[cfg(all(test, not(loom)))]\nmod more { z }\nmod b;";
        let code = blank_test_modules(code);
        assert!(code.contains('x') && code.contains("mod b;"), "{code}");
        assert!(!code.contains('y') && !code.contains('z'), "{code}");
        let code = "#[cfg(test)]\nfn helper() { a }\n#[cfg(loom)] mod other { b }";
        assert_eq!(blank_test_modules(code), code);
    }

    #[test]
    fn words_stand_alone() {
        assert!(has_word("an unsafe { }", "unsafe"));
        assert!(!has_word("forbid(unsafe_code)", "unsafe"));
    }
}
