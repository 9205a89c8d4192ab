//! The page as a reader of it: well-formed, with every figure, and with nothing in it that a file made up.

use std::fs;

use roxmltree::{Document, Node, ParsingOptions};
use serde_json::{Value, json};

use super::*;
use crate::origin::FORMAT;

/// Figures of lock-wait, with all that a file can have.
fn lock_wait() -> Value {
    let waits = |most: u64| json!([most, 7, 6, 5, 4, 3, 2, 1]);
    let run = |engine: &str, run: u64, reads: f64| {
        let load = json!({ "steal_percent": 9.0 * (run - 1) as f64, "others_percent": 1.0,
                           "runnable_before": 0, "average_before": null, "pressure_before_percent": null });
        json!({ "engine": engine, "run": run, "reads_per_second": reads, "load": load, "timeline": [
            { "at_ms": 250, "pages": 100, "maps": 1 },
            { "at_ms": 500, "pages": 300, "maps": 2 },
            { "at_ms": 750, "pages": 500, "maps": 3 },
        ] })
    };
    let medians = |wait: f64, reads: f64| {
        json!({ "layout_read_wait_ns": wait, "reads_per_second": reads, "change_p50_ns": 2_500.0,
                "change_p99_ns": 3e6, "never_measured": null })
    };
    let mut value = json!({
        "workload": "lock-wait",
        "description": "lock-wait: 40 threads",
        "machine": { "kernel": "Linux 6.99.1", "processor": "Abacus", "cpus": 7, "memory_bytes": 1u64 << 33 },
        "device": { "name": "disk9", "readahead_bytes": 8 << 20 },
        "kernel_readahead_bytes": 128 << 10,
        "engines": ["kernel", "elbowroom-vma_locks", "elbowroom"],
        "skipped": [{ "engine": "soft", "reason": "no room" }],
        "rows": [
            { "key": "layout_read_wait_ns", "label": "read wait" },
            { "key": "reads_per_second", "label": "reads/s" },
            { "key": "change_p50_ns", "label": "change p50" },
        ],
        "medians": {
            "kernel": { "reads_per_second": 4_321.0 },
            "elbowroom-vma_locks": medians(957e6, 1_234.0),
            "elbowroom": medians(1e6, 5_678.0),
        },
        "runs": [run("kernel", 1, 4_000.0), run("kernel", 2, 4_642.0)],
        "waits": {
            "elbowroom-vma_locks": { "layout_read_waits": waits(9_876) },
            "elbowroom": { "layout_read_waits": waits(8_765) },
        },
        "published": [{ "metric": "read wait", "key": "layout_read_wait_ns", "before": 10_695_877e3,
                        "after": 408_436e3, "change_percent": -96.18 }],
        "published_waits": [{ "metric": "waits for reading", "key": "layout_read_waits",
                              "before": waits(9_927), "after": waits(4_286) }],
        "goals": [{ "metric": "read wait", "key": "layout_read_wait_ns", "change_percent": -99.0 }],
    });
    crate::origin::note(&mut value);
    value["commit"] = json!("abc123def456");
    value
}

/// Fails if the page is no well-formed document, or refers to anything outside of it.
fn parsed(page: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(page, options).unwrap_or_else(|error| panic!("{error}"));
    let mut ids: Vec<&str> = document.descendants().filter_map(|node| node.attribute("id")).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "an id is there twice");
    for node in document.descendants() {
        for name in ["src", "href"] {
            let target = node.attribute(name).unwrap_or("#");
            let id = target.strip_prefix('#').unwrap_or_else(|| panic!("{target} is outside of the page"));
            assert!(id.is_empty() || ids.contains(&id), "{target}");
        }
    }
    document
}

fn text_of(node: Node<'_, '_>) -> String {
    node.descendants().filter(Node::is_text).filter_map(|node| node.text()).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_figure_of_a_file_is_in_the_page() {
    let page = of_value(lock_wait()).unwrap();
    let document = parsed(&page);
    let text = text_of(document.root_element());
    for expected in [
        // Where it is from.
        "Linux 6.99.1",
        "Abacus",
        "8.00 GiB",
        "disk9, readahead 8.00 MiB",
        "readahead 128 KiB",
        "abc123def456",
        // Medians of all engines, and the range of runs.
        "957 ms",
        "1.00 ms",
        "4,321",
        "1,234",
        "5,678",
        "2.50 \u{b5}s",
        "3.00 ms",
        "4,000 \u{2013} 4,642",
        // Ours / kernel, what is better, and what the engines are.
        "Ours / kernel",
        "1.31",
        "better",
        "elbowroom: an unmodified program",
        // Other load.
        "1 of 2 runs were beside other load",
        // Published, and the changes.
        "10.7 s",
        "408 ms",
        "\u{2212}96.2 %",
        "\u{2212}99.895 %",
        // Histograms.
        "9,927",
        "4,286",
        "9,876",
        "8,765",
        "< 100 ms",
        // What was to be shown, and what is missing.
        "\u{2212}99.0 %",
        "yes",
        "soft was left out: no room",
    ] {
        assert!(text.contains(expected), "{expected} is not in the page: {text}");
    }
    assert!(!text.contains("never_measured") && !text.contains("NaN") && !text.contains("inf "), "{text}");
}

#[test]
fn what_is_no_figure_is_marked_and_published_seconds_are_met() {
    let figures = |passes: f64| json!({ "reader_passes_per_second": passes });
    let run = |engine: &str, run: u64, passes: f64| -> Value {
        let (figures, steal) = (figures(passes), if passes == 209.0 { 90.0 } else { 0.0 });
        let load = json!({ "steal_percent": steal, "others_percent": 0.0, "average_before": 0.1 });
        json!({ "engine": engine, "run": run, "figures": figures, "load": load })
    };
    let ours = [4.0, 3.0, 209.0].into_iter().zip(1..).map(|(passes, number)| run("soft", number, passes));
    let kernels =
        [20.0, 20.5, 21.0].into_iter().zip(1..).map(|(passes, number)| run("kernel", number, passes));
    let mut value = json!({
        "workload": "swap-in",
        "engines": ["kernel", "soft"],
        "medians": { "kernel": figures(20.5), "soft": figures(4.0) },
        "runs": ours.chain(kernels).collect::<Vec<_>>(),
        "published": crate::published::json("swap-in", 1.0),
    });
    crate::origin::note(&mut value);
    let text = text_of(parsed(&of_value(value.clone()).unwrap()).root_element());
    for expected in ["unclear", "3 \u{2013} 209", "in 30 s", "\u{d7} 30.0", "615", "1,017", "0.20"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let text = summary(value).unwrap();
    assert!(text.contains("4 (3 \u{2013} 209)") && text.contains("0.20 (unclear)"), "{text}");
    assert!(text.contains("is no figure") && text.contains("soft: memory of the library"), "{text}");
    assert!(text.contains("WARNING: swap-in: 1 of 6 runs were beside other load"), "{text}");
}

#[test]
fn plots_are_in_the_pages_colors_and_say_in_words_what_they_show() {
    let page = of_value(lock_wait()).unwrap();
    let document = parsed(&page);
    let plots: Vec<_> = document.descendants().filter(|node| node.has_tag_name("svg")).collect();
    // Headline, changes, two histograms, the course of the runs, latencies. Namespaces are the page's.
    assert_eq!(plots.len(), 6);
    let mut words = String::new();
    for plot in plots {
        assert_eq!(plot.attribute("role"), Some("img"));
        let labels = plot.attribute("aria-labelledby").unwrap();
        for id in labels.split(' ') {
            let label = document.descendants().find(|node| node.attribute("id") == Some(id)).unwrap();
            assert!(!text_of(label).trim().is_empty(), "{id}");
            words.push_str(&text_of(label));
        }
        for node in plot.descendants() {
            for name in ["fill", "stroke"] {
                let color = node.attribute(name).unwrap_or("none");
                assert_eq!(color, "none", "it has a color that is not the page's");
            }
            for color in node.attribute("style").iter().flat_map(|style| style.split("var(--").skip(1)) {
                let color = format!("--{}:", color.split(')').next().unwrap());
                // For light and for dark.
                assert!(STYLE.matches(&color).count() >= 2, "{color} has no values");
            }
        }
    }
    for expected in ["< 10 ms: 4", "kernel: from 400 to 800", "p99 3.00 ms", "\u{2212}99.895 %"] {
        assert!(words.contains(expected), "{expected}: {words}");
    }
}

/// Replaces each string of a value.
fn poisoned(value: &Value, poison: &str) -> Value {
    match value {
        Value::String(text) => json!(format!("{poison}{text}")),
        Value::Array(all) => all.iter().map(|one| poisoned(one, poison)).collect(),
        Value::Object(all) => {
            all.iter().map(|(key, value)| (format!("{poison}{key}"), poisoned(value, poison))).collect()
        }
        other => other.clone(),
    }
}

#[test]
fn nothing_in_a_file_becomes_markup() {
    let poison = "</title></style><script>alert(1)</script>&lt; \" ' \u{1}";
    let mut value = lock_wait();
    for key in [
        "workload",
        "description",
        "date",
        "command",
        "commit",
        "version",
        "skipped",
        "medians",
        "waits",
        "problem",
        "engines",
    ] {
        value[key] = match &value[key] {
            Value::Null => json!(poison),
            Value::Array(all) if key == "skipped" => {
                all.iter().map(|one| json!({ "engine": poison, "reason": one["reason"] })).collect()
            }
            other => poisoned(other, poison),
        };
    }
    for (list, key) in [("rows", "label"), ("published", "metric"), ("published_waits", "metric")] {
        value[list][0][key] = json!(poison);
    }
    value["goals"][0]["metric"] = json!(poison);
    value["machine"]["kernel"] = json!(poison);
    value["device"]["name"] = json!(poison);
    let mut whole = json!({ "workloads": [value] });
    whole["format"] = json!(FORMAT);
    whole["failed"] = json!([{ "workload": poison, "error": poison }]);
    let page = of_value(whole).unwrap();
    let document = parsed(&page);
    assert!(!document.descendants().any(|node| node.has_tag_name("script")));
    assert!(text_of(document.root_element()).contains("<script>alert(1)</script>&lt;"), "it is shown");
}

#[test]
fn several_files_are_one_page_in_the_order_of_the_list() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let mut core = json!({ "workload": "core", "targets": { "soft_hit_ns": "<= 5 ns" }, "soft_hit_ns": 2.25,
                           "rows": [{ "key": "soft_hit_ns", "label": "cached read" }] });
    crate::origin::note(&mut core);
    fs::write(path("core.json"), core.to_string()).unwrap();
    fs::write(path("lock-wait.json"), lock_wait().to_string()).unwrap();
    write(&[path("core.json"), path("lock-wait.json"), path("lock-wait.json")], &path("report.html"))
        .unwrap();
    let page = fs::read_to_string(path("report.html")).unwrap();
    let document = parsed(&page);
    let sections = document.descendants().filter(|node| node.has_tag_name("section"));
    let names: Vec<String> = sections
        .map(|node| text_of(node.descendants().find(|node| node.has_tag_name("h2")).unwrap()))
        .collect();
    assert_eq!(names, ["lock-wait", "lock-wait", "core"]);
    let text = text_of(document.root_element());
    assert!(text.contains("cached read") && text.contains("2.25 ns") && text.contains("<= 5 ns"), "{text}");
}

#[test]
fn a_file_that_cannot_be_used_leaves_the_page_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("good.json"), lock_wait().to_string()).unwrap();
    fs::write(path("report.html"), "the old one").unwrap();
    for wrong in ["", "nonsense", r#"{"format":"elbowroom-lab/0"}"#, r#"{"workload":"scan"}"#] {
        fs::write(path("bad.json"), wrong).unwrap();
        let error = write(&[path("good.json"), path("bad.json")], &path("report.html")).unwrap_err();
        assert!(format!("{error:#}").contains("bad.json: it "), "{error:#}");
        assert_eq!(fs::read_to_string(path("report.html")).unwrap(), "the old one");
    }
    let missing = write(&[path("missing.json")], &path("report.html")).unwrap_err();
    assert!(format!("{missing:#}").contains("missing.json: cannot be read"), "{missing:#}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "nothing else is left behind");
}

#[test]
fn workloads_that_the_page_does_not_know_are_shown_by_their_keys() {
    let mut value = json!({ "workload": "programs", "engines": ["kernel"],
                            "medians": { "kernel": { "git_status_ns": 1.5e9 } } });
    crate::origin::note(&mut value);
    let page = of_value(value).unwrap();
    let text = text_of(parsed(&page).root_element());
    assert!(text.contains("git status ns") && text.contains("1.50 s"), "{text}");
}
