//! Files of figures, as `lab run --json` and `lab seeds --json` write them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::engine::Kind;
use crate::load::Load;
use crate::locks::DECADES;
use crate::origin::FORMAT;
use crate::verdict::Spread;

/// What was measured of one workload. What a file does not have is empty: one that was written by another
/// build may have less.
#[derive(Debug, Clone, Deserialize)]
pub struct Figures {
    pub workload: String,
    #[serde(default)]
    pub description: String,
    #[serde(default)]
    pub machine: Option<Machine>,
    #[serde(default)]
    pub device: Option<Device>,
    #[serde(default)]
    pub kernel_readahead_bytes: Option<f64>,
    #[serde(default)]
    pub date: Option<String>,
    #[serde(default)]
    pub command: Option<String>,
    #[serde(default)]
    pub commit: Option<String>,
    #[serde(default)]
    pub version: Option<String>,
    #[serde(default)]
    pub engines: Vec<String>,
    #[serde(default)]
    pub skipped: Vec<Skipped>,
    #[serde(default)]
    pub rows: Vec<Row>,
    #[serde(default)]
    pub medians: BTreeMap<String, BTreeMap<String, Option<f64>>>,
    #[serde(default)]
    pub runs: Vec<Value>,
    #[serde(default)]
    pub waits: BTreeMap<String, BTreeMap<String, Option<[f64; DECADES]>>>,
    #[serde(default)]
    pub published: Vec<Published>,
    #[serde(default)]
    pub published_waits: Vec<PublishedWaits>,
    #[serde(default)]
    pub goals: Vec<Goal>,
    /// Of `core`: what is wanted of each figure.
    #[serde(default)]
    pub targets: BTreeMap<String, String>,
    /// Why it ended before its time, if it did.
    #[serde(default)]
    pub problem: Option<String>,
    /// Of `core`: the figures themselves.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Machine {
    pub kernel: String,
    #[serde(default)]
    pub processor: Option<String>,
    pub cpus: u64,
    pub memory_bytes: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Device {
    pub name: String,
    #[serde(default)]
    pub readahead_bytes: Option<f64>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Skipped {
    pub engine: String,
    pub reason: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Row {
    pub key: String,
    pub label: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Published {
    pub metric: String,
    pub key: String,
    pub before: Option<f64>,
    pub after: Option<f64>,
    pub change_percent: Option<f64>,
    /// The seconds of which the published figures are.
    #[serde(default)]
    pub window_seconds: Option<f64>,
    /// What ours are to be multiplied with, to be of as many seconds.
    #[serde(default)]
    pub ours_times: Option<f64>,
    /// Why there are none of ours yet.
    #[serde(default)]
    pub missing: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct PublishedWaits {
    pub metric: String,
    pub key: String,
    pub before: [f64; DECADES],
    pub after: [f64; DECADES],
}

#[derive(Debug, Clone, Deserialize)]
pub struct Goal {
    pub metric: String,
    pub key: String,
    pub change_percent: f64,
}

/// A workload that gave nothing.
#[derive(Debug, Clone, Deserialize)]
pub struct Failed {
    pub workload: String,
    pub error: String,
}

/// All that is to be in one report.
#[derive(Debug, Default)]
pub struct Input {
    pub figures: Vec<Figures>,
    pub failed: Vec<Failed>,
}

impl Input {
    /// Reads files, all of them before anything is said of those that cannot be used.
    ///
    /// # Errors
    /// Which files cannot be used, and why.
    pub fn read(files: &[std::path::PathBuf]) -> Result<Self> {
        let (mut all, mut problems) = (Self::default(), Vec::new());
        for path in files {
            let added = fs::read(path).context("cannot be read").and_then(|bytes| all.add_bytes(&bytes));
            if let Err(error) = added {
                problems.push(format!("{}: {error:#}", path.display()));
            }
        }
        ensure!(problems.is_empty(), "no report was written\n{}", problems.join("\n"));
        ensure!(
            !all.figures.is_empty() || !all.failed.is_empty(),
            "no report was written: nothing was measured in {}",
            files.iter().map(|path| Path::display(path).to_string()).collect::<Vec<_>>().join(", ")
        );
        Ok(all)
    }

    fn add_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        ensure!(!bytes.trim_ascii().is_empty(), "it is empty");
        self.add(serde_json::from_slice(bytes).context("it is not JSON")?)
    }

    /// Adds what one file has.
    ///
    /// # Errors
    /// If it is of something else, or of another version.
    pub fn add(&mut self, value: Value) -> Result<()> {
        match value.get("format").and_then(Value::as_str) {
            Some(FORMAT) => {}
            Some(other) => bail!("it has the format \"{other}\"; this build reads \"{FORMAT}\""),
            None => bail!(
                "it has no \"format\": it is not of `lab run --json` or `lab seeds --json`, or of a version \
                 before \"{FORMAT}\""
            ),
        }
        if let Some(workloads) = value.get("workloads").and_then(Value::as_array) {
            for one in workloads {
                self.figures.push(figures(one.clone())?);
            }
            let failed = value.get("failed").cloned().unwrap_or_else(|| Value::Array(Vec::new()));
            let failed: Vec<Failed> = serde_json::from_value(failed).context("\"failed\" is wrong")?;
            self.failed.extend(failed);
            return Ok(());
        }
        self.figures.push(figures(value)?);
        Ok(())
    }
}

fn figures(value: Value) -> Result<Figures> {
    let figures: Figures = serde_json::from_value(value).context("it is not as the lab writes it")?;
    ensure!(
        !figures.medians.is_empty() || !figures.targets.is_empty(),
        "it has no figures of {}",
        figures.workload
    );
    Ok(figures)
}

/// Whether it is one of Elbowroom's with all that it has.
pub fn is_whole(engine: &str) -> bool {
    Kind::split(engine).is_some_and(|(kind, off)| off.is_empty() && !kind.is_kernel())
}

/// Whether an engine is the other one without an improvement.
fn is_without(engine: &str, whole: &str) -> bool {
    let kind = |name| Kind::split(name).map(|(kind, _)| kind);
    engine != whole && kind(engine).is_some() && kind(engine) == kind(whole)
}

impl Figures {
    /// The median of a figure of an engine.
    pub fn median(&self, engine: &str, key: &str) -> Option<f64> {
        *self.medians.get(engine)?.get(key)?
    }

    /// The median of a figure of an engine, and the range of its runs.
    pub fn spread(&self, engine: &str, key: &str) -> Option<Spread> {
        let median = self.median(engine, key)?;
        let of_run = |run: &Value| {
            let figures = run.get("figures").unwrap_or(run);
            figures.get(key)?.as_f64().filter(|_| run["engine"] == engine)
        };
        // Runs in which hold times were measured have other figures as well, which are in no median.
        let of_runs = |in_detail: bool| -> Vec<f64> {
            let is_meant = |run: &&Value| run["in_detail"].as_bool().unwrap_or(false) == in_detail;
            self.runs.iter().filter(is_meant).filter_map(of_run).collect()
        };
        let all = Some(of_runs(false)).filter(|all| !all.is_empty()).unwrap_or_else(|| of_runs(true));
        let runs = Spread::of(all).or_else(|| Spread::of(vec![median]))?;
        Some(Spread { median, ..runs })
    }

    /// What else the machine did in each run.
    pub fn loads(&self) -> Vec<Load> {
        let of_core = self.other.get("load").and_then(Value::as_array).into_iter().flatten();
        let all = self.runs.iter().filter_map(|run| run.get("load")).chain(of_core);
        all.filter_map(|load| serde_json::from_value(load.clone()).ok()).collect()
    }

    /// The keys of all figures in the order of the table, each with its label.
    pub fn keys(&self) -> Vec<(String, String)> {
        let mut keys: Vec<_> = self.rows.iter().map(|row| (row.key.clone(), row.label.clone())).collect();
        let medians = self.medians.values().flat_map(BTreeMap::keys);
        for key in medians.chain(self.targets.keys()) {
            if !keys.iter().any(|(known, _)| known == key) {
                keys.push((key.clone(), key.replace('_', " ")));
            }
        }
        keys
    }

    /// The figure that the workload is about: the first that there is.
    pub fn headline(&self) -> Option<(String, String)> {
        let is_there = |key: &str| self.engines.iter().any(|engine| self.median(engine, key).is_some());
        self.keys().into_iter().find(|(key, _)| is_there(key))
    }

    /// The pairs of ours with all that it has, and of an engine that `is_base`, which is first.
    fn pairs_with(&self, is_base: impl Fn(&str, &str) -> bool) -> Vec<(&str, &str)> {
        let ours = self.engines.iter().filter(|engine| is_whole(engine));
        let all = ours.flat_map(|ours| self.engines.iter().map(move |base| (base.as_str(), ours.as_str())));
        all.filter(|(base, ours)| is_base(base, ours)).collect()
    }

    /// The pairs of which one is before and one after: each of ours with all that it has, after the kernel
    /// and after itself without an improvement.
    pub fn pairs(&self) -> Vec<(&str, &str)> {
        self.pairs_with(|before, after| before == "kernel" || is_without(before, after))
    }

    /// The pairs that are compared: ours beside each of the kernel's engines, and beside itself without an
    /// improvement.
    pub fn compared(&self) -> Vec<(&str, &str)> {
        let is_kernel = |engine: &str| Kind::split(engine).is_some_and(|(kind, _)| kind.is_kernel());
        self.pairs_with(|base, ours| is_kernel(base) || is_without(base, ours))
    }

    /// The engine that ours are compared with at a glance.
    pub fn base(&self) -> Option<&str> {
        let of = |name: &str| self.engines.iter().find(|engine| *engine == name);
        of("kernel").or_else(|| of("plain")).map(String::as_str)
    }

    /// The pairs of one engine without an improvement and with it.
    pub fn own_pairs(&self) -> Vec<(&str, &str)> {
        self.pairs().into_iter().filter(|(before, _)| *before != "kernel").collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn add(text: &str) -> Result<Input> {
        let mut input = Input::default();
        input.add_bytes(text.as_bytes())?;
        Ok(input)
    }

    #[test]
    fn what_cannot_be_used_is_said_with_its_name() {
        for (text, said) in [
            ("", "is empty"),
            (" \n", "is empty"),
            ("{", "not JSON"),
            ("[]", "no \"format\""),
            ("{}", "no \"format\""),
            (r#"{"format":"elbowroom-lab/99"}"#, "elbowroom-lab/99"),
            (r#"{"format":"elbowroom-lab/1"}"#, "workload"),
            (r#"{"format":"elbowroom-lab/1","workload":"scan"}"#, "no figures of scan"),
            (r#"{"format":"elbowroom-lab/1","workload":"scan","medians":[]}"#, "as the lab writes it"),
        ] {
            let error = format!("{:#}", add(text).unwrap_err());
            assert!(error.contains(said), "{text}: {error}");
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("figures.json");
            fs::write(&path, text).unwrap();
            let error = format!("{:#}", Input::read(&[path, "/missing".into()]).unwrap_err());
            assert!(error.contains("figures.json: ") && error.contains("/missing: "), "{error}");
        }
    }

    #[test]
    fn pairs_are_after_the_kernel_and_after_itself() {
        let medians = json!({ "kernel": { "x_ns": 1.0 } });
        let engines =
            ["kernel", "kernel-random", "soft-a-b", "soft", "elbowroom", "elbowroom-large", "plain"];
        let value = json!({ "format": FORMAT, "workload": "w", "engines": engines, "medians": medians });
        let input = add(&value.to_string()).unwrap();
        let figures = &input.figures[0];
        let after = [("kernel", "soft"), ("soft-a-b", "soft"), ("kernel", "elbowroom")];
        assert_eq!(figures.pairs(), [&after[..], &[("kernel", "elbowroom-large")]].concat());
        assert!(figures.compared().contains(&("plain", "elbowroom")), "{:?}", figures.compared());
        assert!(figures.compared().iter().all(|(_, ours)| *ours != "plain"), "{:?}", figures.compared());
        assert_eq!(figures.base(), Some("kernel"));
        assert_eq!(figures.own_pairs(), [("soft-a-b", "soft")]);
        assert_eq!(figures.headline(), Some(("x_ns".into(), "x ns".into())));
    }

    #[test]
    fn runs_for_hold_times_are_in_no_other_range() {
        let run = |in_detail: bool, maps: u64, held: Option<u64>| {
            let mut run = json!({ "engine": "soft", "in_detail": in_detail });
            (run["maps"], run["held"]) = (json!(maps), json!(held));
            run
        };
        let runs = [run(false, 10, None), run(true, 1, Some(5)), run(false, 12, None), run(true, 2, Some(7))];
        let medians = json!({ "soft": { "maps": 11, "held": 6 } });
        let value = json!({ "format": FORMAT, "workload": "w", "medians": medians, "runs": runs });
        let input = add(&value.to_string()).unwrap();
        let spread = |key: &str| input.figures[0].spread("soft", key)?.range();
        assert_eq!((spread("maps"), spread("held")), (Some((10.0, 12.0)), Some((5.0, 7.0))));
        assert_eq!(spread("other"), None);
    }

    #[test]
    fn a_file_of_seeds_has_several_and_what_failed() {
        let one = json!({ "workload": "a", "medians": { "kernel": { "x": null } } });
        let failed = json!([{ "workload": "b", "error": "no disk" }]);
        let value = json!({ "format": FORMAT, "workloads": [one], "failed": failed });
        let input = add(&value.to_string()).unwrap();
        assert_eq!((input.figures.len(), input.failed[0].error.as_str()), (1, "no disk"));
    }
}
