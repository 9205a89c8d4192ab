//! What the page says of the workloads, and of where the published figures are from.

/// What is said of one workload.
pub struct About {
    name: &'static str,
    /// What happens in it.
    pub what: &'static str,
    /// What "before" is, where an improvement is switched off.
    pub before: &'static str,
}

/// In the order of a report.
const ALL: &[About] = &[
    About {
        name: "io-retry",
        what: "Many threads, each with a file of its own: map it, read one byte of every page, unmap it, \
               again and again, in a budget that is much smaller than the files. A fault that has waited \
               for a read is tried again; the page should still be there then.",
        before: "Without retry_under_vma_lock a fault that has waited for I/O takes the layout lock for \
                 its retry, and nothing keeps the page for it meanwhile.",
    },
    About {
        name: "lock-wait",
        what: "What the start of a large program does to the locks of its address space: threads fault \
               with reads outstanding, while others map, protect and unmap. What is counted are \
               acquisitions of the layout lock (in Linux mmap_lock), and what they waited.",
        before: "Without vma_locks each fault takes the layout lock for reading; without \
                 retry_under_vma_lock only the retry after I/O does.",
    },
    About {
        name: "thread-storm",
        what: "Many threads start at the same moment; each maps a few areas and faults its working set \
               in. Then one thread faults alone, among others that map and unmap, and beside areas that \
               merge with its own.",
        before: "Without vma_locks each fault takes the layout lock for reading.",
    },
    About {
        name: "zero-copy-receive",
        what: "Threads insert received pages into their mappings in batches, while one changes the rights \
               of other mappings.",
        before: "Without vma_locks each batch takes the layout lock for reading.",
    },
    About {
        name: "shared-dirty",
        what: "First stores to each page of a shared mapping of a file.",
        before: "Without completed a page is mapped for loads first, and the store faults a second time.",
    },
    About {
        name: "file-map-churn",
        what: "Many threads map parts of one file, touch and unmap them, as fast as they can. The lock of \
               the file's mappings (in Linux i_mmap_rwsem) is hot. How long it is held was measured in \
               runs of their own.",
        before: "Without narrow_file_lock one lock for the whole file is kept while the index of mappings \
                 is changed.",
    },
    About {
        name: "uptodate-wait",
        what: "Threads read the same cold pages at the same time, so that many faults meet a page that \
               another one is just mapping.",
        before: "Without uptodate_wait such a fault lets everything go and begins again.",
    },
    About {
        name: "random-read",
        what: "Reads of 4 KiB at random, of a file larger than the budget.",
        before: "The engines with a name behind them are without that improvement.",
    },
    About {
        name: "random-write",
        what: "Stores at random to the pages of a file larger than the budget.",
        before: "The engines with a name behind them are without that improvement.",
    },
    About {
        name: "chunks",
        what: "Threads read whole chunks of a file larger than the budget, at random places: what models \
               with experts, indexes and tables do. The engine cache is a cache of whole chunks in the \
               program itself; device is the disk alone, at the best of four depths.",
        before: "Without read_growth reads of a sequential stream do not grow.",
    },
    About {
        name: "moe",
        what: "A mixture-of-experts model that is larger than memory: threads read the dense weights of a \
               layer together, then the experts that the token uses, layer after layer.",
        before: "Without read_growth reads of a sequential stream do not grow.",
    },
    About {
        name: "segments",
        what: "Queries of a search engine: of each term a skip list and postings, which are read in order, \
               then the stored fields of the documents, at random.",
        before: "Without read_growth reads of a sequential stream do not grow.",
    },
    About {
        name: "vector",
        what: "Searches for near vectors, by a graph of neighbours: each step reads vectors of 512 bytes to \
               4 KiB at places that are in no order.",
        before: "Without read_growth reads of a sequential stream do not grow.",
    },
    About {
        name: "scan",
        what: "One sequential pass over a file 8 times the budget, then more of them.",
        before: "The engines with a name behind them are without that improvement.",
    },
    About {
        name: "cyclic",
        what: "The same file from start to end, again and again: what a model that is larger than memory \
               does.",
        before: "The engines with a name behind them are without that improvement.",
    },
    About {
        name: "in-memory",
        what: "Reads of memory that fits, beside a plain pointer: what it costs that somebody manages it.",
        before: "",
    },
    About {
        name: "anonymous-touch",
        what: "The first store to each page of anonymous memory that fits, and one more.",
        before: "Without huge_folios memory comes page by page, or by short runs of pages.",
    },
    About {
        name: "heap",
        what: "A process with more blocks of its heap than the budget allocates, reads, writes, reallocates \
               and frees them at random.",
        before: "",
    },
    About {
        name: "hot-cold",
        what: "A process with more anonymous memory than the budget loads and stores, as redis does: a few \
               of the pages get most of the accesses.",
        before: "",
    },
    About {
        name: "swap-in",
        what: "Threads page all of an anonymous mapping out, while as many others read it.",
        before: "Without retry_under_vma_lock a fault takes the layout lock again after I/O, and the page \
                 may be gone by then.",
    },
    About {
        name: "usemem",
        what: "Workers with more anonymous memory than the budget touch it at random.",
        before: "Without scan_cost what it costs to reclaim is noted under the lock of the LRU lists.",
    },
    About {
        name: "map-unmap",
        what: "Mappings of 64 KiB made and unmapped, untouched and touched.",
        before: "Without vma_locks each fault takes the layout lock for reading.",
    },
    About {
        name: "core",
        what: "What single operations of the library cost, beside what was aimed at.",
        before: "",
    },
];

/// What is said of a workload; nothing of one that is not known.
pub fn of(workload: &str) -> Option<&'static About> {
    ALL.iter().find(|about| about.name == workload)
}

/// Where a workload is in a report: as in the list, others behind.
pub fn rank(workload: &str) -> usize {
    ALL.iter().position(|about| about.name == workload).unwrap_or(ALL.len())
}

/// The paragraphs above everything.
pub const INTRO: [&str; 2] = [
    "Elbowroom manages virtual memory in user space. Its fault path has the improvements that Linux's got \
     in the past years, one by one, and each can be switched off. This report compares the same workload \
     in the Linux kernel (in a memory control group of the same size), in Elbowroom without the \
     improvement that the workload is about (\"before\"), and with it (\"after\"). All engines ran in \
     turn on one machine; figures are medians, and below them stand the least and the most of all runs. \
     Every page that was read was verified.",
    "The published figures beside them are facts from the Linux mailing lists: what the authors of those \
     improvements measured before and after them, on other and mostly far larger machines (from a phone \
     of 8 GB to 256 processors). So the absolute figures are not comparable. What is compared is the \
     direction and the size of the change.",
];
