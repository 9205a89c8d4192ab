//! Files in TOML that a user writes by hand: reading them, and mistakes with file and line.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::failure::{Failure, USAGE};

/// The largest file that is read, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// A mistake in a file, and its place.
#[derive(Debug)]
pub struct Wrong {
    /// The place, in bytes from the start of the file.
    pub at: usize,
    /// What is wrong, in one line.
    pub why: String,
}

/// The text of a file.
#[derive(Debug)]
pub struct TomlFile {
    shown: String,
    text: String,
}

impl TomlFile {
    /// Reads the file that `option` names.
    ///
    /// # Errors
    /// A failure of usage that names the option and the file.
    pub fn read(option: &str, path: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::new(USAGE, format!("{option}: {}: {error}", path.display()));
        Self::read_open(option, path, File::open(path).map_err(failed)?)
    }

    /// [`TomlFile::read`] of a file that is open.
    ///
    /// # Errors
    /// As for [`TomlFile::read`].
    pub fn read_open(option: &str, path: &Path, file: File) -> Result<Self, Failure> {
        let shown = path.display().to_string();
        let unreadable = |why: &dyn fmt::Display| Failure::new(USAGE, format!("{option}: {shown}: {why}"));
        let mut text = Vec::new();
        // Files without a size, as pipes are, may have no end.
        file.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(|error| unreadable(&error))?;
        if text.len() as u64 > MOST_BYTES {
            return Err(unreadable(&"it is larger than 1M"));
        }
        let text = String::from_utf8(text).map_err(|_| unreadable(&"it is not text in UTF-8"))?;
        Ok(Self { shown, text })
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A failure of usage that names the file and the line of the mistake.
    pub fn failure(&self, Wrong { at, why }: Wrong) -> Failure {
        let line = self.text[..at.min(self.text.len())].matches('\n').count() + 1;
        Failure::new(USAGE, format!("{}:{line}: {why}", self.shown))
    }
}

/// The outermost table of a text.
///
/// # Errors
/// Where and why it is no TOML.
pub fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, Wrong> {
    DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span: Range<usize>| span.start);
        Wrong { at, why: format!("this is no TOML: {}", error.message().replace('\n', " ")) }
    })
}

/// A key, with its place.
pub type Key<'i> = Spanned<Cow<'i, str>>;

/// A key and its value.
pub type Keyed<'t, 'i> = (&'t Key<'i>, &'t Spanned<DeValue<'i>>);

/// The keys and values of a table, in the order of the file.
pub fn in_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<Keyed<'t, 'i>> {
    let mut all: Vec<_> = table.iter().collect();
    all.sort_by_key(|(key, _)| key.span().start);
    all
}
