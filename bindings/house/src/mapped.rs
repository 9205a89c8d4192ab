//! The files that have mappings, and which of them the kernel maps.
//!
//! Synchronization: the table is under a mutex, which is held for moments only.

use elbowroom::FileId;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is known of a file that has mappings.
#[derive(Default)]
struct MappedFile {
    /// Mappings of the file, by whomever.
    mappings: usize,
    /// Mappings that the kernel has served since they were made, or since their rights were changed to ones
    /// that the manager does not give.
    kernels: usize,
    /// The file went to the kernel, and the kernel has mappings that were managed before.
    given: bool,
}

/// The files that have mappings.
static MAPPED: Mutex<Option<HashMap<FileId, MappedFile>>> = Mutex::new(None);

/// The table of the files that have mappings, locked.
pub struct MappedFiles(MutexGuard<'static, Option<HashMap<FileId, MappedFile>>>);

impl MappedFiles {
    /// Locks the table. A thread that forks holds the lock meanwhile, so that the child's copy is not that of
    /// another thread, which would never unlock it there.
    pub fn lock() -> Self {
        Self(MAPPED.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn mapped_files<R>(look: impl FnOnce(&mut HashMap<FileId, MappedFile>) -> R) -> R {
    look(MappedFiles::lock().0.get_or_insert_default())
}

/// Counts a mapping of a file as long as it lives.
#[derive(Debug)]
pub struct Mapped {
    id: FileId,
    /// The kernel is to serve it.
    kernels: bool,
}

impl Mapped {
    /// `kernels`: the kernel is to serve it.
    pub fn new(id: FileId, kernels: bool) -> Self {
        mapped_files(|files| {
            let file = files.entry(id).or_default();
            file.mappings += 1;
            file.kernels += usize::from(kernels);
        });
        Self { id, kernels }
    }

    /// Counts another mapping of the same file, of the same kind.
    pub fn again(&self) -> Self {
        Self::new(self.id, self.kernels)
    }

    /// The file.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Whether the file has other mappings.
    pub fn has_others(&self) -> bool {
        mapped_files(|files| files.get(&self.id).is_some_and(|file| file.mappings > 1))
    }

    /// The kernel is to serve the mapping from now on.
    pub fn note_kernels(&mut self) {
        if !self.kernels {
            self.kernels = true;
            mapped_files(|files| files.entry(self.id).or_default().kernels += 1);
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        mapped_files(|files| {
            let Some(file) = files.get_mut(&self.id) else { return };
            file.mappings -= 1;
            file.kernels -= usize::from(self.kernels);
            if file.mappings == 0 {
                files.remove(&self.id);
            }
        });
    }
}

/// Called by the manager before the kernel maps a file that was managed.
pub fn note_given(id: FileId) {
    mapped_files(|files| {
        if let Some(file) = files.get_mut(&id) {
            file.given = true;
        }
    });
}

/// Whether the kernel maps the file in this process. A managed mapping beside that would have other bytes:
/// what is stored through one of the two is seen late, or never, through the other one.
pub fn is_kernels(id: FileId) -> bool {
    mapped_files(|files| files.get(&id).is_some_and(|file| file.given || file.kernels > 0))
}
