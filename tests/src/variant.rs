//! The ways in which a program is run: under the plain kernel, and under `elbowroom run` with various
//! options.

/// How a program is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    /// Its name in messages.
    pub name: &'static str,
    /// The options of `elbowroom run`; `None` for the plain kernel.
    pub options: Option<&'static [&'static str]>,
    /// The budget in MiB; 0 for the plain kernel.
    pub memory_mib: u64,
}

/// The table of variants: a constructor each.
macro_rules! variants {
    ($($(#[$doc:meta])* $name:ident: $memory_mib:literal $options:expr;)+) => {
        impl Variant {
            $(
                $(#[$doc])*
                pub fn $name() -> Self {
                    Self { name: stringify!($name), options: $options, memory_mib: $memory_mib }
                }
            )+
        }
    };
}

variants! {
    /// No Elbowroom: this validates the test.
    plain: 0 None;
    /// Under `run`, with the options that the test gives.
    bare: 0 Some(&[]);
    /// A budget of 64 MiB.
    m64: 64 Some(&["--memory", "64M"]);
    /// The smallest budget.
    m16: 16 Some(&["--memory", "16M"]);
    /// The smallest budget, and small mappings are managed, too. Some of the programs need more than four
    /// times as much private memory.
    small: 16 Some(&["--memory", "16M", "--min-size", "4K", "--swap", "400M"]);
    /// The same without swap: private memory is the kernel's.
    files: 16 Some(&["--memory", "16M", "--min-size", "4K", "--swap", "0"]);
    /// Pages are copied instead of moved.
    copy: 16 Some(&["--memory", "16M", "--mmu", "copy"]);
    /// Blocking threads instead of io_uring.
    threads: 16 Some(&["--memory", "16M", "--io", "threads"]);
    /// Anonymous memory is managed, too, and all blocks of the heap.
    heap_all: 64 Some(&["--memory", "64M", "--swap", "256M", "--heap", "all"]);
    /// The same, but of the heap only large blocks.
    heap_large: 64 Some(&["--memory", "64M", "--swap", "256M", "--heap", "large"]);
    /// Blocking threads, and what is in the swap file is encrypted.
    encrypted: 16 Some(&["--memory", "16M", "--io", "threads", "--swap-encrypt"]);
    /// Private memory is the kernel's in a forked child, and in its parent from then on.
    fork_kernel: 16 Some(&["--memory", "16M", "--fork", "kernel"]);
    /// Only faults of instructions are served.
    user_mode: 16 Some(&["--memory", "16M", "--faults", "user-mode"]);
    /// One handler thread.
    handlers1: 16 Some(&["--memory", "16M", "--handlers", "1"]);
    /// Four handler threads.
    handlers4: 16 Some(&["--memory", "16M", "--handlers", "4"]);
}

impl Variant {
    /// Whether the program runs under the plain kernel.
    pub fn is_plain(self) -> bool {
        self.options.is_none()
    }
}
