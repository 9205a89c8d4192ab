//! Words of memory that processes share. They are changed by atomic operations only, and threads can sleep
//! until one changes (futexes).
//!
//! The memory is that of a file. Any process that can write to the file can store anything there at any
//! time: so a word may only be used as a number that is checked against the caller's own limits.

use elbowroom_sync::atomic::AtomicU64;
use elbowroom_sync::time::Duration;
use rustix::io::Errno;
use std::os::fd::AsFd;

/// The words of a file that is mapped shared. The mapping stays until the process ends, and a forked child
/// inherits it.
pub struct SharedWords {
    #[cfg(not(any(loom, shuttle)))]
    words: &'static [AtomicU64],
    #[cfg(any(loom, shuttle))]
    words: Vec<AtomicU64>,
}

impl SharedWords {
    /// Maps the first `words` words of a file. The file must not become smaller than that while any process
    /// has it mapped.
    ///
    /// # Errors
    /// The kernel's. EINVAL: the file is smaller.
    #[cfg(not(any(loom, shuttle)))]
    pub fn map(file: impl AsFd, words: usize) -> Result<Self, Errno> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};

        let len = words * size_of::<AtomicU64>();
        if (rustix::fs::fstat(&file)?.st_size as u64) < len as u64 {
            return Err(Errno::INVAL);
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, wherever the kernel puts it, which is never unmapped. All zeros are valid
        // words, and all of it is atomics, so that stores of other processes are no data races.
        let words = unsafe {
            let start = mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0)?;
            std::slice::from_raw_parts(start.cast::<AtomicU64>(), words)
        };
        Ok(Self { words })
    }

    /// In a model the words are memory of the process, which its threads share.
    #[cfg(any(loom, shuttle))]
    pub fn map(_: impl AsFd, words: usize) -> Result<Self, Errno> {
        Ok(Self { words: (0..words).map(|_| AtomicU64::new(0)).collect() })
    }

    /// How many words there are.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether there are no words.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The word with this number.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn word(&self, number: usize) -> &AtomicU64 {
        &self.words[number]
    }

    /// Sleeps if the lower half of a word is `seen`, until [`SharedWords::wake`] or for `bound`. May also
    /// return early without a reason, as futexes do.
    pub fn wait(&self, number: usize, seen: u32, bound: Duration) {
        #[cfg(not(any(loom, shuttle)))]
        {
            use rustix::thread::futex;

            let Ok(bound) = futex::Timespec::try_from(bound) else { return };
            let _ = futex::wait(self.half(number), futex::Flags::empty(), seen, Some(&bound));
        }
        #[cfg(any(loom, shuttle))]
        {
            let _ = (seen, bound, self.word(number));
            elbowroom_sync::thread::yield_now();
        }
    }

    /// Wakes all threads that sleep at a word.
    pub fn wake(&self, number: usize) {
        #[cfg(not(any(loom, shuttle)))]
        {
            use rustix::thread::futex;

            let _ = futex::wake(self.half(number), futex::Flags::empty(), i32::MAX as u32);
        }
        #[cfg(any(loom, shuttle))]
        let _ = self.word(number);
    }

    /// The lower half of a word, as the 32 bits that a futex needs.
    #[cfg(not(any(loom, shuttle)))]
    fn half(&self, number: usize) -> &elbowroom_sync::atomic::AtomicU32 {
        const LOWER: usize = if cfg!(target_endian = "little") { 0 } else { 1 };
        let word: *const AtomicU64 = &raw const self.words[number];
        // SAFETY: inside the word, and aligned; only the kernel reads it as 32 bits.
        unsafe { &*word.cast::<elbowroom_sync::atomic::AtomicU32>().add(LOWER) }
    }
}
