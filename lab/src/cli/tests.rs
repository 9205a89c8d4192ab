//! Which command lines of the workloads are understood, and which are refused.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    lab: LabArgs,
}

fn parse(line: &str) -> Result<Workload> {
    match Cli::try_parse_from(line.split(' '))?.lab.command {
        LabCommand::Run { workload: Runnable::Paging(workload) } => workload.check().map(|()| workload),
        _ => unreachable!("these tests run workloads of the worker"),
    }
}

#[test]
fn the_documented_command_is_understood() {
    let line = "lab run io-retry --threads 7 --seconds 5 --memory 240M --engines kernel,elbowroom --json F";
    let workload = parse(&format!("{line} --kernel-readahead 128K")).unwrap();
    assert_eq!((workload.threads(), workload.files(), workload.file_size().pages()), (7, 7, 4096));
    assert_eq!(workload.engines(), [Kind::Kernel, Kind::Elbowroom].map(Engine::whole));
    assert_eq!(workload.common().kernel_readahead.map(Size::bytes), Some(128 << 10));
}

#[test]
fn a_scan_is_eight_budgets_long() {
    assert_eq!(parse("lab run scan --memory 32M").unwrap().file_size().bytes(), 256 << 20);
}

#[test]
fn improvements_that_are_off_are_engines_of_every_workload() {
    for name in ["io-retry", "random-read", "random-write", "scan", "cyclic", "shared-dirty"]
        .into_iter()
        .chain(["file-map-churn", "uptodate-wait", "lock-wait", "chunks", "moe", "segments", "vector"])
    {
        let line = format!("lab run {name} --engines kernel,elbowroom-vma_locks,elbowroom,soft-vma_locks");
        let workload = parse(&line).unwrap();
        assert_eq!((workload.name(), workload.engines().len()), (name, 4));
        assert_eq!(workload.engines()[1].off(), "vma_locks");
        assert!(LIST.contains(&format!("\n{name} ")), "{name}");
        // What is before and after by default is of this workload.
        let by_default = parse(&format!("lab run {name}")).unwrap();
        assert!(by_default.engines().len() >= 2 && by_default.engines()[0].is_kernel(), "{name}");
    }
}

#[test]
fn a_model_is_four_budgets_large_and_its_parts_follow_each_other() {
    let workload = parse("lab run moe").unwrap();
    let (file, memory) = (workload.file_size().bytes(), workload.memory().bytes());
    assert!((3 * memory..=4 * memory + (2 << 20)).contains(&file), "{file}");
    // 16 layers of dense weights and 8 experts, of 1 MiB each.
    assert_eq!(workload.pages_per_round(), 16 * 9 * 256);
    let layout = workload.layout().unwrap();
    assert!(layout.count() == 16 * 65 && layout.end() <= file);
    let small = parse("lab run moe --layers 2 --experts 4 --used 1 --align 32").unwrap();
    assert_eq!((small.files(), small.layout().unwrap().count()), (1, 10));
}

#[test]
fn what_has_to_fit_has_a_budget_in_which_it_does() {
    let workload = parse("lab run shared-dirty").unwrap();
    assert!(workload.memory().bytes() > 3 * workload.file_size().bytes());
    assert_eq!(parse("lab run shared-dirty --memory 96M").unwrap().memory().bytes(), 96 << 20);
    assert_eq!(parse("lab run io-retry").unwrap().memory().bytes(), 240 << 20);
    let files = |threads| parse(&format!("lab run shared-dirty --threads {threads}")).unwrap().files();
    assert_eq!([files(1), files(2)], [1, 2]);
}

#[test]
fn what_cannot_work_is_refused_before_it_starts() {
    for wrong in [
        "io-retry --threads 0",
        "io-retry --seconds 0",
        "io-retry --seconds nan",
        "io-retry --memory 0",
        "io-retry --memory much",
        "io-retry --file-size 5000",
        "io-retry --runs 0",
        "io-retry --engines kernel,kernel",
        "io-retry --engines kernel-random",
        "io-retry --kernel-readahead 5K",
        "io-retry --engines host",
        "scan --engines kernel-random",
        "scan --threads 2 --file-size 4K",
        "cyclic --threads 2 --file-size 4K",
        "shared-dirty --threads 2 --file-size 64K",
        "shared-dirty --dirty-limit 1",
        "shared-dirty --engines kernel-vma_locks",
        "file-map-churn --mappings 0",
        "file-map-churn --mapping-size 1000",
        "file-map-churn --mapping-size 65M",
        "uptodate-wait --threads 0",
        "lock-wait --threads 3",
        "lock-wait --pause-ms 1001",
        "lock-wait --file-size 4K",
        "chunks --chunk 15M-300K",
        "chunks --chunk 1K",
        "chunks --align 48",
        "chunks --skew -1",
        "chunks --chunk 4M --file-size 1M",
        "chunks --chunk 200M",
        "chunks --engines cache-vma_locks",
        "io-retry --engines cache",
        "segments --terms 0",
        "segments --file-size 1M",
        "vector --vector-size 3K",
        "vector --links 1",
        "vector --beam 0",
        "vector --skew nan",
        "moe --used 65",
        "moe --layers 0",
        "moe --expert-size 1000",
        "moe --dense 0",
        "moe --locality 1",
        "moe --file-size 1G",
        "moe --routing F --skew 1",
        "moe --memory 16M --expert-size 8M",
        "swap",
    ] {
        assert!(parse(&format!("lab run {wrong}")).is_err(), "{wrong}");
    }
}
