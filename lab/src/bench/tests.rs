//! Short runs of what is measured in this process.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    bench: LibraryBench,
}

fn parse(line: &str) -> Result<LibraryBench> {
    let bench = Cli::try_parse_from(std::iter::once("lab").chain(line.split(' ')))?.bench;
    bench.check().map(|()| bench)
}

/// Measures as `line` says, with that many seconds for SECONDS; for longer, if that was not `enough` because
/// others have the processors.
fn measured(
    line: &str,
    seconds: f64,
    enough: impl Fn(&serde_json::Value) -> bool,
) -> (String, serde_json::Value) {
    for factor in [1.0, 6.0, 36.0] {
        let mut stage = Stage { interrupt: Interrupt::install().unwrap(), progress: Progress::new() };
        let line = line.replace("SECONDS", &(factor * seconds).to_string());
        match measure(&parse(&line).unwrap(), &mut stage) {
            Ok((table, json)) if enough(&json) => return (table, json),
            Ok(_) => {}
            Err(error) => {
                assert!(format!("{error:#}").contains("the writer did not come to write"), "{error:#}")
            }
        }
    }
    panic!("{line}: a thread never had its turn");
}

#[test]
fn core_has_exactly_its_keys_and_positive_figures() {
    let (table, json) = measured("core --seconds SECONDS --runs 1", 0.15, |_| true);
    let noted = [
        "command",
        "commit",
        "date",
        "description",
        "format",
        "load",
        "ranges",
        "rows",
        "targets",
        "version",
        "workload",
    ];
    let keys = [
        "lookup_100k_ns",
        "lookup_1k_ns",
        "lookup_ratio_btreemap",
        "lookup_ratio_scc",
        "machine",
        "map_unmap_host_ns",
        "map_unmap_kernel_ns",
        "map_unmap_soft_ns",
        "pin_unpin_ns",
        "soft_hit_ns",
        "soft_minor_file_ns",
        "soft_walk_ns",
        "soft_zero_fault_ns",
        "soft_zero_huge_ns",
    ];
    let all = json.as_object().unwrap().keys().map(String::as_str);
    let mut found: Vec<_> = all.filter(|key| !noted.contains(key)).collect();
    found.sort_unstable();
    assert_eq!(found, keys);
    for key in keys {
        let value = &json[key];
        match key {
            "machine" => assert!(value["kernel"].as_str().unwrap().starts_with("Linux ")),
            // There may be no userfaultfd here.
            "map_unmap_host_ns" if value.is_null() => eprintln!("SKIPPED: no host space"),
            _ => assert!(
                value.as_f64().is_some_and(|value| value > 0.0 && value.is_finite()),
                "{key}: {value}"
            ),
        }
    }
    assert!(table.contains("soft space's map + unmap / the kernel's"), "{table}");
}

#[test]
fn a_storm_shows_what_vma_locks_are_for() {
    let line =
        "thread-storm --threads 8 --seconds SECONDS --runs 1 --engines kernel,soft-vma_locks,soft,host";
    let (table, json) = measured(line, 0.05, |json| {
        let of =
            |engine: &serde_json::Value, key: &str| json["medians"][engine.as_str().unwrap()][key].as_f64();
        let all =
            |key: &str| json["engines"].as_array().unwrap().iter().all(|engine| of(engine, key) > Some(0.0));
        all("churn_per_second") && all("churn_beside_per_second")
    });
    let medians = &json["medians"];
    let of = |engine: &str, key: &str| medians[engine][key].as_f64();
    for engine in json["engines"].as_array().unwrap().iter().filter_map(|engine| engine.as_str()) {
        for key in ["all_ready_ns", "start_max_ns", "fault_p99_ratio"] {
            assert!(of(engine, key).unwrap() > 0.0, "{engine} {key}");
        }
        for phase in ["alone", "among", "beside"] {
            let at = |share: &str| of(engine, &format!("fault_{phase}_{share}_ns")).unwrap();
            assert!(0.0 < at("p50") && at("p50") <= at("p99") && at("p99") <= at("p999"), "{engine} {phase}");
        }
    }
    let managed = |engine: &&str| !medians[*engine].is_null();
    for engine in ["soft", "host"].into_iter().filter(managed) {
        // Nobody changes the VMA of the faults that are measured.
        assert_eq!(of(engine, "layout_lock_faults_alone"), Some(0.0), "{engine}");
        assert_eq!(of(engine, "layout_lock_faults"), Some(0.0), "{engine}");
    }
    for (taken, faults) in
        [("layout_lock_faults_alone", "faults_alone"), ("layout_lock_faults", "faults_among")]
    {
        assert!(of("soft-vma_locks", taken) >= of("soft-vma_locks", faults), "{taken}");
    }
    assert_eq!(of("kernel", "layout_lock_faults"), None);
    assert!(table.contains("soft/soft-vma_locks"), "{table}");
}

#[test]
fn received_pages_are_inserted_and_come_back() {
    let line = "zero-copy-receive --threads 3 --seconds SECONDS --runs 1 --batch 5";
    let (_, json) = measured(line, 0.05, |json| {
        let of = |engine: &str, key: &str| json["medians"][engine][key].as_f64().unwrap();
        let changed = ["soft", "soft-vma_locks"].iter().all(|engine| of(engine, "protects_per_second") > 0.0);
        // A share of a time that was measured at another time.
        changed && of("soft-vma_locks", "layout_share_percent") < 100.0
    });
    for engine in ["soft", "soft-vma_locks"] {
        let figures = &json["medians"][engine];
        for key in ["insert_ns", "find_ns", "find_share_percent", "inserts_per_second"] {
            assert!(figures[key].as_f64().unwrap() > 0.0, "{engine} {key}");
        }
    }
    let takes = |engine: &str| json["medians"][engine]["layout_takes_percent"].as_f64().unwrap();
    assert!(takes("soft-vma_locks") >= 100.0 && takes("soft") < 1.0);
    let share = |engine: &str| json["medians"][engine]["layout_share_percent"].as_f64().unwrap();
    assert!(share("soft") <= share("soft-vma_locks"));
}

#[test]
fn in_memory_nothing_faults_and_a_plain_pointer_is_beside_it() {
    let line = "in-memory --threads 2 --size 1M --memory 16M --seconds SECONDS --runs 1";
    let (table, json) = measured(line, 0.02, |_| true);
    assert!(table.contains("soft") && table.contains("by a plain pointer"), "{table}");
    for engine in json["engines"].as_array().unwrap().iter().filter_map(|engine| engine.as_str()) {
        let figures = &json["medians"][engine];
        for key in ["random_ns", "plain_random_ns", "sequential_ns", "plain_sequential_ns"] {
            assert!(figures[key].as_f64().unwrap() > 0.0, "{engine} {key}");
        }
        match (engine, figures["faults"].as_f64()) {
            ("kernel", faults) => assert_eq!(faults, None),
            ("soft", faults) => assert_eq!(faults, Some(0.0)),
            // Where others have the processors, a handler may come late to count a fault of the stores.
            (_, faults) => assert!(faults <= Some(2.0), "{engine}: {faults:?}"),
        }
    }
}

#[test]
fn every_table_has_ours_over_the_kernel_and_the_range_of_the_runs() {
    let line =
        "map-unmap --threads 2 --memory 16M --seconds SECONDS --runs 3 --engines kernel,soft-vma_locks,soft";
    let (table, json) = measured(line, 0.05, |_| true);
    let row = table.lines().find(|line| line.starts_with("map + unmap per second")).unwrap();
    let words = ["better", "worse", "same", "unclear"];
    assert!(words.iter().any(|word| row.contains(word)) && row.contains(" - "), "{table}");
    for expected in
        ["soft/kernel", "soft/soft-vma_locks", "range of runs", "unclear: ", "kernel: Linux", "soft: "]
    {
        assert!(table.contains(expected), "{expected}: {table}");
    }
    let key = "map_unmap_per_second";
    let of = |value: &serde_json::Value| value.as_f64().unwrap();
    let range = json["ranges"]["soft"][key].as_array().unwrap();
    let median = of(&json["medians"]["soft"][key]);
    assert!(of(&range[0]) <= median && median <= of(&range[1]), "{json}");
    let said = &json["comparisons"]["soft/kernel"][key];
    assert_eq!(of(&said["ratio"]), median / of(&json["medians"]["kernel"][key]));
    assert!(row.contains(said["verdict"].as_str().unwrap()), "{row} {said}");
    for run in json["runs"].as_array().unwrap() {
        let percent = of(&run["load"]["others_percent"]);
        assert!((0.0..=100.0).contains(&percent), "{run}");
    }
    let page = crate::page::of_value(json).unwrap();
    assert!(page.contains("Ours / kernel") && page.contains("soft / kernel"), "{page}");
}

#[test]
fn swap_in_is_scaled_to_the_published_seconds() {
    let dir = tempfile::tempdir_in(".").unwrap();
    let line = format!(
        "swap-in --threads 1 --size 4M --memory 16M --seconds SECONDS --runs 1 --dir {} \
         --engines soft-retry_under_vma_lock,soft",
        dir.path().display()
    );
    let (table, json) =
        measured(&line, 0.1, |json| json["medians"]["soft"]["reader_passes_per_second"].as_f64() > Some(0.0));
    let lines: Vec<&str> = table.lines().collect();
    let at =
        lines.iter().position(|line| line.starts_with("reader passes  ") && line.contains("1017")).unwrap();
    assert!(lines[at].contains("published, 30 s") && lines[at].contains("874"), "{table}");
    let passes = json["medians"]["soft"]["reader_passes_per_second"].as_f64().unwrap();
    assert!(lines[at + 1].contains(&format!(" {:.0} ", 30.0 * passes)), "{table}");
    assert!(table.contains("1324847") && table.contains("Ours is scaled"), "{table}");
}

#[test]
fn map_unmap_counts_both_kinds_of_rounds() {
    let line = "map-unmap --threads 2 --memory 16M --seconds SECONDS --runs 1 \
                --engines kernel,soft-vma_locks,soft,host";
    let (_, json) = measured(line, 0.05, |_| true);
    for engine in json["engines"].as_array().unwrap().iter().filter_map(|engine| engine.as_str()) {
        let of = |key: &str| json["medians"][engine][key].as_f64();
        assert!(of("map_unmap_per_second") > Some(0.0) && of("map_touch_unmap_per_second") > Some(0.0));
        match engine {
            "kernel" => assert_eq!(of("layout_lock_faults"), None),
            "soft-vma_locks" => assert!(of("layout_lock_faults") >= Some(16.0)),
            _ => {}
        }
    }
}

#[test]
fn first_touches_fault_and_further_ones_do_not() {
    let line = "anonymous-touch --threads 2 --size 4M --memory 16M --seconds SECONDS --runs 1 \
                --engines kernel,kernel-huge,soft-huge_folios,soft,host";
    let (_, json) = measured(line, 0.05, |_| true);
    for engine in json["engines"].as_array().unwrap().iter().filter_map(|engine| engine.as_str()) {
        let of = |key: &str| json["medians"][engine][key].as_f64().unwrap();
        for order in ["", "random_"] {
            let (first, again) =
                (of(&format!("{order}first_touch_ns")), of(&format!("{order}touch_again_ns")));
            assert!(first > 0.0 && again > 0.0, "{engine}: {first} {again}");
            let rate = of(&format!("{order}first_touch_gigabytes_per_second"));
            assert!((rate * first / f64::from(4 << 20) - 1.0).abs() < 0.01, "{engine}: {rate}");
        }
        // A handler may come late to count a fault.
        let (pages, random) = (of("pages_per_fault"), of("random_pages_per_fault"));
        match engine {
            "kernel" => assert!(pages > 0.9 && pages < 1.1 && random < 1.1, "{pages} {random}"),
            // In order they come by 64 KiB.
            "soft-huge_folios" => assert!(pages <= 16.0 && random < 1.5, "{pages} {random}"),
            "soft" => assert!(pages > 1.0, "{pages}"),
            _ => assert!(pages > 0.9 && random > 0.9, "{engine}: {pages} {random}"),
        }
    }
}

#[test]
fn usemem_pages_what_does_not_fit_and_finds_it_as_it_was() {
    for content in ["compressible", "zero", "noise"] {
        let line = format!(
            "usemem --threads 3 --size 16M --memory 16M --content {content} --seconds SECONDS --runs 1 \
             --engines plain,soft,host"
        );
        let (table, json) = measured(&line, 0.2, |_| true);
        for engine in json["engines"].as_array().unwrap().iter().filter_map(|engine| engine.as_str()) {
            let of = |key: &str| json["medians"][engine][key].as_f64();
            assert!(of("touches_per_second") > Some(1.0), "{engine}");
            if engine == "plain" {
                assert!(of("lru_acquisitions_per_second").is_none() && of("scanned_per_second").is_some());
                continue;
            }
            // Two pages of three are out. Those of zeros become nothing.
            let in_per_touch = of("swapped_in_per_second").unwrap() / of("touches_per_second").unwrap();
            assert_eq!(in_per_touch > 0.3, content != "zero", "{engine} {content}: {in_per_touch}");
            assert_eq!(of("swapped_out_per_second") > Some(0.0), content != "zero", "{engine} {content}");
            assert!(of("lru_acquisitions_per_second") > Some(0.0));
            assert!(of("lru_wait_percent").unwrap() < 100.0);
            assert_eq!(of("retry_io_miss"), Some(0.0), "{engine}");
        }
        assert!(table.contains("waits for the LRU lock"), "{table}");
    }
}

/// The figures of the rows add up to those of the lock, so no acquisition is without a row; and only without
/// the improvement costs are noted under the lock.
#[test]
fn waits_in_a_group_in_a_group_are_told_by_call_site() {
    let line = "usemem --groups --short --seconds SECONDS --size 16M --memory 32M \
                --engines soft-scan_cost,soft";
    let (table, json) = measured(line, 0.3, |json| {
        json["medians"]["soft-scan_cost"]["lru_acquisitions_refault_cost_per_second"].as_f64() > Some(0.0)
    });
    let rows = ["shrink_cost", "refault_cost", "scan_start", "active_list", "drain", "other"];
    for engine in ["soft-scan_cost", "soft"] {
        let of = |key: &str| json["medians"][engine][key].as_f64().unwrap();
        let taken: f64 = rows.iter().map(|row| of(&format!("lru_acquisitions_{row}_per_second"))).sum();
        // Threads that reclaim go on between two looks.
        assert!((taken / of("lru_acquisitions_per_second") - 1.0).abs() < 0.01, "{engine}: {json}");
        let held: f64 = rows.iter().map(|row| of(&format!("lru_hold_{row}_ns"))).sum();
        assert!((held / of("lru_hold_ns") - 1.0).abs() < 1e-6 && held > 0.0, "{engine}: {json}");
        for row in &rows[..3] {
            let taken = of(&format!("lru_acquisitions_{row}_per_second"));
            assert_eq!(taken > 0.0, engine == "soft-scan_cost", "{engine} {row}: {taken}");
        }
        assert!(of("scanned_per_second") > 0.0 && of("refaults_per_second") > 0.0, "{engine}: {json}");
    }
    assert!(table.contains("cost recorded at a refault") && table.contains("per touch"), "{table}");
    let LibraryBench::Usemem(whole) = parse("usemem --groups").unwrap() else { panic!("it is usemem") };
    assert_eq!((whole.turns.threads, whole.size.bytes() >> 20, whole.turns.engines.len()), (16, 256, 3));
    assert_eq!((whole.turns.memory.bytes() >> 20, whole.turns.repeat.seconds), (512, 30.0));
    let LibraryBench::Usemem(other) = parse("usemem --threads 2").unwrap() else { panic!("it is usemem") };
    assert_eq!((other.size.bytes() >> 20, other.turns.memory.bytes() >> 20), (64, 128));
}

#[test]
fn hot_and_cold_pages_are_timed_apart() {
    let line = "hot-cold --threads 2 --size 16M --seconds SECONDS --runs 1 --engines plain";
    let figure = |json: &serde_json::Value, key: &str| json["medians"]["plain"][key].as_f64();
    let (table, json) = measured(line, 0.1, |json| figure(json, "operations_per_second") > Some(0.0));
    for key in ["hot_p50_ns", "cold_p50_ns", "max_ns"] {
        assert!(figure(&json, key) > Some(0.0), "{key}: {table}");
    }
    assert!(figure(&json, "peak_rss_bytes") > Some((16 << 20) as f64), "{table}");
}

#[test]
fn blocks_of_the_heap_keep_what_they_have() {
    let line = "heap --threads 2 --size 16M --seconds SECONDS --runs 1 --engines plain";
    let (table, json) = measured(line, 0.1, |json| {
        json["medians"]["plain"]["large_operations_per_second"].as_f64() > Some(0.0)
    });
    let of = |key: &str| json["medians"]["plain"][key].as_f64().unwrap();
    let (all, large) = (of("operations_per_second"), of("large_operations_per_second"));
    assert!(large < all / 16.0 && of("reallocated_per_second") < all / 4.0, "{json}");
    assert!(of("replaced_per_second") > 0.0, "{json}");
    // Half of it are few blocks, whose sizes are random.
    assert!((f64::from(8 << 20)..f64::from(24 << 20)).contains(&of("live_bytes")), "{json}");
    assert!(of("peak_rss_bytes") > of("live_bytes") / 4.0 && table.contains(" MiB"), "{table}");
}

#[test]
fn a_pass_is_checked_and_a_fork_is_timed() {
    let line = "sequential-pass --threads 2 --size 4M --seconds SECONDS --runs 1 --engines plain";
    let (_, json) = measured(line, 0.01, |_| true);
    let of = |key: &str| json["medians"]["plain"][key].as_f64().unwrap();
    let (write, read) = (of("write_gigabytes_per_second"), of("read_gigabytes_per_second"));
    let both = 2.0 / (1.0 / write + 1.0 / read);
    assert!((both / of("both_gigabytes_per_second") - 1.0).abs() < 0.01, "{json}");
    let line = "fork-exec --size 4M --forks 3 --seconds SECONDS --runs 1 --engines plain";
    let (_, json) = measured(line, 0.01, |_| true);
    let of = |key: &str| json["medians"]["plain"][key].as_f64().unwrap();
    assert!(0.0 < of("fork_exec_ns") && of("fork_exec_ns") <= of("until_end_ns"), "{json}");
    assert!(of("fork_exec_ns") <= of("most_fork_exec_ns"), "{json}");
    assert!(of("resident_bytes") > f64::from(4 << 20) && json["asked"] == serde_json::json!([]), "{json}");
}

#[test]
fn what_cannot_work_is_refused_before_it_starts() {
    for wrong in [
        "core --seconds 0",
        "core --seconds nan",
        "core --runs 0",
        "core --threads 2",
        "thread-storm --threads 1",
        "thread-storm --threads 1001",
        "thread-storm --memory 16M",
        "thread-storm --engines soft,soft",
        "thread-storm --engines elbowroom",
        "thread-storm --engines soft-locks",
        "thread-storm --engines soft-huge_folios",
        "thread-storm --engines kernel-vma_locks",
        "in-memory --threads 0",
        "in-memory --size 0",
        "in-memory --size 64M --memory 64M",
        "in-memory --engines elbowroom",
        "map-unmap --threads 0",
        "map-unmap --threads 100 --memory 16M",
        "map-unmap --engines kernel-random",
        "anonymous-touch --size 5000",
        "anonymous-touch --size 1G --memory 1G",
        "anonymous-touch --size 4K --threads 2",
        "anonymous-touch --engines kernel-random",
        "anonymous-touch --engines kernel-huge-huge_folios",
        "anonymous-touch --engines elbowroom",
        "heap --size 15M --threads 4",
        "heap --size 2T",
        "hot-cold --hot 0",
        "hot-cold --stores 101",
        "hot-cold --engines soft",
        "heap --threads 0",
        "heap --memory 1M",
        "heap --engines soft",
        "heap --engines plain,plain",
        "fork-exec --forks 0",
        "fork-exec --size 512M --memory 512M",
        "fork-exec --engines kernel",
        "sequential-pass --size 5000",
        "sequential-pass --size 4K --threads 2",
        "sequential-pass --size 2T",
        "sequential-pass --engines soft",
        "usemem --size 0",
        "usemem --threads 0",
        "usemem --size 1T --threads 2",
        "usemem --memory 1M",
        "usemem --content much",
        "usemem --short",
        "usemem --engines kernel-huge",
        "usemem --engines soft-huge_folios",
        "swap-in --engines plain",
        "zero-copy-receive --threads 1",
        "zero-copy-receive --batch 0",
        "zero-copy-receive --batch 257",
        "zero-copy-receive --engines kernel",
        "zero-copy-receive --memory 1M",
    ] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}
