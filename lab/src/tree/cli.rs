//! The command line of `lab run tree`.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use serde::{Serialize, Serializer};

use crate::cli::option_name;

/// Examples for the help.
pub const EXAMPLES: &str = "Examples:
  elbowroom lab run tree
  elbowroom lab run tree --only workers,make --runs 5 --dir /data/lab --json tree.json
  elbowroom lab run tree --short --runs 1                           with little of everything, to try it

The rows, and what they need:
  workers   Python processes whose arrays need three times the budget     python3
  make      make -j4 of a C project, with enough memory                   make, gcc
  commands  a shell that runs /bin/true again and again
  start     from the start to the end of /bin/true, and of python3        python3
  idle      memory of a Python process that waits                         python3
  quiet     a process within its protection, beside one that thrashes
  lowered   max lowered to a quarter while processes change their memory
  killed    a process killed while others need its memory
The kernel (in workers) has a control group with the budget as its limit, and a swap file in DIR, which need
root. In the other rows plain is the same without Elbowroom, with all memory that there is.
Each row with a goal says whether it is met: a promise (of memory, of seconds until memory is free) by the
worst of all runs, a ratio by the medians.";

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Row {
    /// Python processes whose arrays need three times the budget
    Workers,
    /// make -j4 of a C project, with enough memory
    Make,
    /// A shell that runs /bin/true again and again
    Commands,
    /// From the start to the end of /bin/true, and of python3
    Start,
    /// Memory of a Python process that waits
    Idle,
    /// A process within its protection, beside one that thrashes
    Quiet,
    /// max lowered to a quarter while processes change their memory
    Lowered,
    /// A process killed while others need its memory
    Killed,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&option_name(*self))
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Options of tree.
#[derive(Debug, Clone, Args, Serialize)]
pub struct TreeArgs {
    /// Only these rows, with commas between; by default all
    #[arg(long, value_enum, value_name = "ROW", value_delimiter = ',')]
    pub only: Vec<Row>,
    /// How often everything is measured; what is compared takes turns, and medians are reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub runs: usize,
    /// Little of everything, in less than a minute for each run: to see that it works. Its figures say little
    #[arg(long)]
    pub short: bool,
    /// Where swap files and the C project are made, on a disk; by default $TMPDIR, the current directory or
    /// /var/tmp, the first that is on one
    #[arg(long, value_name = "DIR")]
    #[serde(skip)]
    pub dir: Option<PathBuf>,
    /// How long one program may take before it is killed, in seconds
    #[arg(long, value_name = "S", default_value_t = 900.0)]
    pub bound_seconds: f64,
    /// Write all runs, medians and goals to this file
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub json: Option<PathBuf>,
}

impl TreeArgs {
    /// Checks the options before anything is made.
    ///
    /// # Errors
    /// If an option is out of range; the message says what is possible.
    pub fn check(&self) -> Result<()> {
        ensure!((1..=1000).contains(&self.runs), "--runs must be from 1 to 1000");
        ensure!((1.0..=86_400.0).contains(&self.bound_seconds), "--bound-seconds must be from 1 to 86400");
        Ok(())
    }

    /// The rows that are asked for, in the order of the table.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        let all = Row::value_variants().iter().copied();
        all.filter(|row| self.only.is_empty() || self.only.contains(row))
    }

    /// The sizes and counts of all rows.
    pub(super) fn scale(&self) -> &'static Scale {
        if self.short { &SHORT } else { &WHOLE }
    }
}

/// The sizes, in MiB, and counts of all rows.
pub(super) struct Scale {
    /// The budget of the workers, how many there are, and how much each has.
    pub workers: Shares,
    /// C files of the project.
    pub files: usize,
    /// Commands of the shell.
    pub commands: u32,
    /// How often a program is started for the median of one run.
    pub starts: usize,
    /// The budget of the quiet process and the other one, how much each has, and what is protected.
    pub quiet: Quiet,
    /// The processes of the rows lowered and killed.
    pub holders: Shares,
    /// How long a tree runs before the lab acts on it, and how long after that.
    pub settle_seconds: f64,
}

/// Processes of the same size under one budget.
pub(super) struct Shares {
    /// The budget of all together.
    pub memory: u64,
    /// The number of processes.
    pub count: usize,
    /// The memory that each needs.
    pub each: u64,
}

/// Sizes of the row quiet.
pub(super) struct Quiet {
    /// The budget of both processes together.
    pub memory: u64,
    /// The working set of the quiet process.
    pub set: u64,
    /// The protection (`low`) of the quiet process.
    pub low: u64,
    /// The memory of the other process if it is to thrash.
    pub thrashing: u64,
    /// The memory of the other process if it is not to thrash.
    pub busy: u64,
    /// For how long the quiet process measures.
    pub seconds: f64,
}

const WHOLE: Scale = Scale {
    workers: Shares { memory: 1024, count: 8, each: 400 },
    files: 120,
    commands: 500,
    starts: 21,
    quiet: Quiet { memory: 256, set: 64, low: 128, thrashing: 768, busy: 8, seconds: 10.0 },
    holders: Shares { memory: 512, count: 4, each: 192 },
    settle_seconds: 3.0,
};

// The workers have 96 MiB: with 64 MiB the kernel kills a worker although swap is free, since all pages of
// the control group are active.
const SHORT: Scale = Scale {
    workers: Shares { memory: 96, count: 4, each: 64 },
    files: 12,
    commands: 50,
    starts: 5,
    quiet: Quiet { memory: 64, set: 12, low: 32, thrashing: 128, busy: 8, seconds: 2.0 },
    holders: Shares { memory: 128, count: 4, each: 40 },
    settle_seconds: 0.5,
};

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: TreeArgs,
    }

    fn parse(words: &str) -> Result<TreeArgs> {
        let line = Line::try_parse_from(["tree"].into_iter().chain(words.split_ascii_whitespace()))?;
        line.args.check().map(|()| line.args)
    }

    #[test]
    fn rows_come_in_the_order_of_the_table_and_what_makes_no_sense_is_refused() {
        let args = parse("--only killed,workers --short").unwrap();
        assert_eq!(args.rows().collect::<Vec<_>>(), [Row::Workers, Row::Killed]);
        assert_eq!(parse("").unwrap().rows().count(), 8);
        assert!(
            EXAMPLES.contains("\n  quiet ")
                && Row::value_variants().iter().all(|row| { EXAMPLES.contains(&format!("\n  {row} ")) })
        );
        for wrong in ["--only others", "--runs 0", "--bound-seconds 0"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn trees_need_more_than_they_have_and_the_quiet_process_less_than_is_protected() {
        for Scale { workers, quiet, holders, .. } in [&WHOLE, &SHORT] {
            for Shares { memory, count, each } in [workers, holders] {
                assert!(*count as u64 * each > *memory);
                // What is not in memory is in swap, of which there is four times the budget.
                assert!(*count as u64 * each < memory / 4 + 4 * memory);
            }
            // The lowered max has room for what each process keeps: 4 MiB, and some memory that describes
            // pages.
            assert!(holders.memory / 4 > 6 * holders.count as u64);
            // 16 MiB for the new memory that the quiet process touches, and for blocks of 2 MiB that are
            // partly used.
            assert!(quiet.set + 16 <= quiet.low && quiet.low <= quiet.memory / 2);
            assert!(quiet.thrashing >= 2 * quiet.memory && quiet.busy + quiet.low < quiet.memory);
        }
    }
}
