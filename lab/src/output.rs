//! Files of results: what is wrong with one should be known before anything long begins, and it appears whole
//! or not at all.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::NamedTempFile;

/// A file that is to be written. What is there already stays as it is until then.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    temporary: NamedTempFile,
}

impl OutputFile {
    /// Finds out whether it can be written.
    ///
    /// # Errors
    /// If it cannot; the message names the file.
    pub fn prepare(path: &Path) -> Result<Self> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if path.is_dir() {
            bail!("cannot write {}: it is a directory; name a file", path.display());
        }
        let temporary = tempfile::Builder::new().prefix(".elbowroom-lab-").tempfile_in(parent);
        let temporary = temporary.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path: path.to_owned(), temporary })
    }

    /// Writes it.
    ///
    /// # Errors
    /// If it cannot be written; then nothing was changed.
    pub fn write(mut self, text: &str) -> Result<()> {
        let context = || format!("cannot write {}", self.path.display());
        writeln!(self.temporary, "{}", text.trim_end()).with_context(context)?;
        // Temporary files are private; a result is as readable as any file that is not secret.
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        fs::set_permissions(self.temporary.path(), permissions).with_context(context)?;
        let path = self.path.clone();
        self.temporary.persist(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(())
    }

    /// Writes a JSON value.
    ///
    /// # Errors
    /// As [`OutputFile::write`].
    pub fn write_json(self, value: &serde_json::Value) -> Result<()> {
        let text = serde_json::to_string_pretty(value)
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        self.write(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_whole_and_what_was_there_stays_until_then() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.json");
        fs::write(&path, "old").unwrap();
        let names = || fs::read_dir(dir.path()).unwrap().count();
        drop(OutputFile::prepare(&path).unwrap());
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names()), ("old", 1));
        OutputFile::prepare(&path).unwrap().write_json(&serde_json::json!([1])).unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names()), ("[\n  1\n]\n", 1));
        for wrong in [dir.path(), &dir.path().join("missing/out.json")] {
            let error = format!("{:#}", OutputFile::prepare(wrong).unwrap_err());
            assert!(error.contains(wrong.to_str().unwrap()), "{error}");
        }
    }
}
