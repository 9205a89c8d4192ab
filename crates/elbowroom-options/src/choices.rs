//! Options that have a few named values. Each type is made from one list: the variants, their names on the
//! command line, and their help texts.

use crate::value::{Setting, Value};

/// A named value of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The name on the command line and in the variable.
    pub name: &'static str,
    /// What the choice means, for the help.
    pub help: &'static str,
}

macro_rules! choices {
    ($($(#[$doc:meta])* $type:ident { $($variant:ident = $name:literal: $help:literal,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type {
            $(#[doc = $help] $variant,)+
        }

        impl $type {
            const ALL: &[Self] = &[$(Self::$variant),+];
            /// All values by name, in the order of the variants.
            pub const CHOICES: &[Choice] = &[$(Choice { name: $name, help: $help }),+];

            /// The value of this name, if there is one.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == name)
            }

            /// The name on the command line.
            pub fn name(self) -> &'static str {
                Self::CHOICES[self as usize].name
            }
        }

        impl Setting for $type {
            fn get(&self) -> Option<Value> {
                Some(Value::Choice(*self as usize))
            }

            fn set(&mut self, value: Value) -> bool {
                let chosen = match value {
                    Value::Choice(index) => Self::ALL.get(index),
                    _ => None,
                };
                chosen.map(|chosen| *self = *chosen).is_some()
            }
        }
    )+};
}

choices! {
    /// What memory is made for, as rules of groups tell it apart.
    MemoryKind {
        File = "file": "Mappings of files",
        Anonymous = "anonymous": "Memory that the program maps without a file",
        Heap = "heap": "Blocks of malloc's that are managed",
    }

    /// How bytes move between files and memory.
    Io {
        Auto = "auto": "io_uring where it works, else threads",
        Uring = "uring": "Linux's io_uring",
        Threads = "threads": "Blocking reads and writes in a pool of threads",
    }

    /// How pages get into the program's mappings.
    Mmu {
        Auto = "auto": "Moving where the kernel can (Linux 6.8), else copying",
        Move = "move": "Moving pages, without copying their bytes",
        Copy = "copy": "Copying pages",
    }

    /// Which page faults are served.
    Faults {
        Auto = "auto": "All, if that is permitted, else those of the program's own instructions",
        All = "all": "Those of system calls, too: it takes a right (`elbowroom doctor`)",
        UserMode = "user-mode": "Those of the program's own instructions, which takes no right: calls of \
                                 libc's that are given managed memory are made with copies of it",
    }

    /// Which blocks of the program's heap are managed.
    Heap {
        All = "all": "All blocks, once there are more than a few: mimalloc stands in for libc's allocator",
        Large = "large": "Blocks from --heap-min on; the others stay with libc",
        Off = "off": "None: all that malloc gives stays with the kernel, but for what an allocator of the \
                      program's own maps",
    }

    /// What to do where memory cannot be managed.
    Fallback {
        None = "none": "Say why, and do not start the program",
        Kernel = "kernel": "Warn, and run the program without Elbowroom",
    }

    /// What a core dump has of managed memory.
    Core {
        Managed = "managed": "What is out, too, as far as memory is free, and files: they go to the \
                             kernel first",
        Resident = "resident": "What is in memory",
        None = "none": "Nothing",
    }

    /// Whether other processes may use the files that are managed.
    Sharing {
        Auto = "auto": "They may: a file goes to the kernel before another process has it, and is left there \
                        where that cannot be known",
        Trust = "trust": "You know that none does: all are managed; what another changes is noticed late",
    }

    /// What a forked child gets of managed private memory.
    Fork {
        Kernel = "kernel": "All of it goes to the kernel before, in the parent, too",
        Copy = "copy": "The parent keeps it managed, and the child gets a manager of its own, with a budget \
                        of its own; where that cannot be, that fork is made as with `kernel`",
        Fail = "fail": "As `copy`, but where that cannot be, fork fails, and a line on standard error says \
                        why",
    }

    /// Which pages of files go when memory is short.
    Policy {
        Auto = "auto": "As suits how each memory group uses its chunks: one of the next three, which changes \
                        when that does",
        Even = "even": "Most of memory is for what was used again, a sixteenth for second chances",
        Kept = "kept": "What has come in first stays, as much as fits: for passes over more than memory",
        Long = "long": "Half of memory is for second chances, so that what is used again soon stays: for \
                        experts of models, and other chunks of which some are used more often",
    }

    /// How deeply idle processors may sleep while faults come often.
    Idle {
        Shallow = "shallow": "They stay awake, if that is permitted (root) and the machine has at most 16 of \
                              them: each fault wakes two, which in a virtual machine takes longer than all \
                              the rest of a fault",
        Deep = "deep": "As deeply as they like, which saves power",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_variants() {
        for (index, heap) in Heap::ALL.iter().enumerate() {
            assert_eq!((heap.get(), heap.name()), (Some(Value::Choice(index)), Heap::CHOICES[index].name));
            let mut read = Heap::Large;
            assert!(read.set(Value::Choice(index)) && read == *heap);
        }
        let mut heap = Heap::All;
        assert!(!heap.set(Value::Choice(3)) && !heap.set(Value::Flag(true)) && heap == Heap::All);
    }
}
