//! Reports of earlier runs, also of those whose files had no version.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::report::{Report, VERSION};
use super::sample::{Row, Sample, Values, figure};

/// Reads the JSON file of an earlier run of this benchmark.
pub(crate) fn read(path: &Path, bench: &str) -> Result<Report> {
    let read = || {
        let file: Value = serde_json::from_slice(&fs::read(path)?)?;
        let report: Report = match file.get("version") {
            Some(_) => serde_json::from_value(file)?,
            None => first_version(&file, bench)?,
        };
        ensure!(report.version == VERSION, "its version is {}, not {VERSION}", report.version);
        ensure!(report.bench == bench, "it is of {}, not of {bench}", report.bench);
        Ok(report)
    };
    read().with_context(|| format!("cannot compare with {}", path.display()))
}

/// The names of settings and figures in the first version and now.
const RENAMED: [(&str, &str); 13] = [
    ("model", "network"),
    ("strategy", "contender"),
    ("way", "contender"),
    ("images_per_second", "examples_per_second"),
    ("times", "steps"),
    ("total", "step_seconds"),
    ("other", "other_seconds"),
    ("forward", "forward_seconds"),
    ("backward", "backward_seconds"),
    ("compress", "compress_seconds"),
    ("exposed_communication", "exposed_seconds"),
    ("decompress", "decompress_seconds"),
    ("update", "update_seconds"),
];

/// The settings that rows have.
const SETTINGS: [&str; 7] =
    ["network", "batch_size", "threads", "workers", "backend", "ranks", "size"];

/// A file without a version: samples with their settings, in rows or in a list of their own.
fn first_version(file: &Value, bench: &str) -> Result<Report> {
    let machine = serde_json::from_value(file["machine"].clone()).context("it has no machine")?;
    let mut common = Values::new();
    for part in ["plan", "settings"] {
        common.extend(file[part].as_object().cloned().unwrap_or_default());
    }
    let rate = file.get("wire_megabits_per_second").cloned();
    common.extend(rate.map(|rate| ("wire_megabits_per_second".to_owned(), rate)));
    let mut report = Report::new(bench, machine, common.clone());
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let mut samples: Vec<(Values, Values)> = Vec::new();
    for row in list(file, "rows") {
        let about = |name: &str| Some((name.to_owned(), row.get(name)?.clone()));
        let facts: Values =
            ["warm_up_losses", "peak_rss_mb"].into_iter().filter_map(about).collect();
        for mut sample in list(&row, "samples").into_iter().filter_map(|s| s.as_object().cloned()) {
            let settings = SETTINGS.iter().chain(["contender"].iter());
            sample.extend(settings.filter_map(|name| about(name)));
            samples.push((sample, facts.clone()));
        }
    }
    let apart = list(file, "samples").into_iter().filter_map(|s| s.as_object().cloned());
    let facts = file["ranks"].as_object().cloned().unwrap_or_default();
    samples.extend(apart.map(|sample| (sample, facts.clone())));
    for (sample, facts) in samples {
        let mut named: Values = Values::new();
        // Where all rows had the same, it stood in the plan.
        for name in ["network", "batch_size"] {
            named.extend(common.get(name).map(|value| (name.to_owned(), value.clone())));
        }
        let mut rename = |name: &str, value: Value| {
            let known = RENAMED.iter().find(|(old, _)| *old == name).map(|(_, new)| *new);
            named.insert(known.unwrap_or(name).to_owned(), value);
        };
        for (name, value) in sample {
            match value {
                Value::Object(parts) if name == "step_seconds" => {
                    parts.into_iter().for_each(|(part, value)| rename(&part, value));
                }
                value => rename(&name, value),
            }
        }
        add(&mut report.rows, named, facts);
    }
    report.rows.iter_mut().for_each(Row::summarise);
    Ok(report)
}

/// Adds a sample to its row.
fn add(rows: &mut Vec<Row>, mut named: Values, facts: Values) {
    let contender = match named.remove("contender") {
        Some(Value::String(name)) => name,
        Some(Value::Object(of_torch)) => ddp(&Value::Object(of_torch)).to_owned(),
        _ => return,
    };
    let round = named.remove("round").and_then(|round| round.as_u64()).unwrap_or(0) as usize;
    let others_cpu_share = named.remove("others_cpu_share").and_then(|share| share.as_f64());
    let setting = |name: &str| Some((name.to_owned(), named.get(name)?.clone()));
    let point: Values = SETTINGS.iter().filter_map(|name| setting(name)).collect();
    let figures = named.iter().filter(|(name, _)| !point.contains_key(*name));
    let mut figures: BTreeMap<String, f64> =
        figures.filter_map(|(name, value)| Some((name.clone(), figure(value)?))).collect();
    let of_sample = |name: &str| figures.get(name).copied();
    if let (Some(steps), Some(seconds)) = (of_sample("steps"), of_sample("seconds")) {
        let count = |name: &str| point.get(name).and_then(Value::as_f64).unwrap_or(1.0);
        // bench-overlap gave the seconds of one step, the others those of all.
        let is_one = ["off", "on", "exchange"].contains(&&*contender);
        let step = if is_one { seconds } else { seconds / steps };
        figures.insert("step_seconds".into(), step);
        figures.insert("examples_per_second".into(), count("batch_size") * count("workers") / step);
    }
    let known = rows.iter().position(|row| row.contender == contender && row.point == point);
    let index = known.unwrap_or_else(|| {
        rows.push(Row { facts, ..Row::new(point, &contender) });
        rows.len() - 1
    });
    rows[index].samples.push(Sample { round, others_cpu_share, figures });
}

/// The name now of one of PyTorch's contenders, which had a layout and perhaps a kind of buckets.
fn ddp(contender: &Value) -> &'static str {
    let has = |word: &str| contender.to_string().contains(word);
    match (contender.get("ddp").is_some(), has("channels-last"), has("views")) {
        (false, false, _) => "pytorch",
        (false, true, _) => "pytorch-channels-last",
        (true, false, false) => "ddp",
        (true, false, true) => "ddp-bucket-view",
        (true, true, false) => "ddp-channels-last",
        (true, true, true) => "ddp-channels-last-bucket-view",
    }
}
