//! What is generated, and the random numbers that it is generated from.

/// SplitMix64 (Steele, Lea and Flood, 2014): every seed is good, and seeds in a row are as good as any.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`, which is not zero.
    pub fn below(&mut self, end: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(end)) >> 32) as u32
    }

    /// True so many times in a hundred.
    pub fn percent(&mut self, chance: u32) -> bool {
        self.below(100) < chance
    }

    /// One of them, by weight.
    pub fn pick<T: Copy>(&mut self, choices: &[(u32, T)]) -> T {
        let total = choices.iter().map(|(weight, _)| weight).sum();
        let mut at = self.below(total);
        for &(weight, choice) in choices {
            if at < weight {
                return choice;
            }
            at -= weight;
        }
        unreachable!("the weights were summed")
    }
}

/// What is generated: how often each kind of operation comes (weights), and which wilder cases are allowed.
#[derive(Debug, Clone)]
pub struct Mix {
    /// mmap.
    pub map: u32,
    /// munmap.
    pub unmap: u32,
    /// mprotect.
    pub protect: u32,
    /// mremap.
    pub remap: u32,
    /// madvise.
    pub advise: u32,
    /// msync.
    pub sync: u32,
    /// mincore.
    pub resident: u32,
    /// mlock2 and munlock; with none of them, no `MAP_LOCKED` either.
    pub lock: u32,
    /// ftruncate.
    pub truncate: u32,
    /// Loads.
    pub load: u32,
    /// Stores.
    pub store: u32,
    /// Of a hundred ranges, how many have a wrong or odd address or length.
    pub wild_percent: u32,
    /// mremap with `MREMAP_FIXED` or `MREMAP_DONTUNMAP`, as Linux has it since 6.17: before, it moved one VMA
    /// at most, and found some errors only after it had unmapped the destination.
    pub named_remap: bool,
    /// Shared anonymous memory.
    pub shared_anonymous: bool,
    /// Mappings with `PROT_WRITE` alone.
    pub write_only: bool,
    /// `MADV_REMOVE`.
    pub remove: bool,
    /// `MS_SYNC`, `MADV_PAGEOUT`: they wait for a disk. Of a hundred calls that could be one, how many are.
    pub slow_percent: u32,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            map: 190,
            unmap: 30,
            protect: 120,
            remap: 80,
            advise: 110,
            sync: 25,
            resident: 20,
            lock: 40,
            truncate: 0,
            load: 150,
            store: 235,
            wild_percent: 4,
            named_remap: true,
            shared_anonymous: true,
            write_only: true,
            remove: true,
            slow_percent: 2,
        }
    }
}

impl Mix {
    /// The second phase: the file's size changes too.
    pub fn with_truncation(self) -> Self {
        Self { truncate: 12, ..self }
    }
}
