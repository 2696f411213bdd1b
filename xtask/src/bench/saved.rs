//! Reports of earlier runs, also of those whose files had no version.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::report::{Report, VERSION};
use super::sample::{Row, Sample, Values, figures, values};

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
    let object = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut plan = object(&file["plan"]);
    plan.extend(object(&file["settings"]));
    plan.extend(pick(&object(file), &["wire_megabits_per_second"]));
    // Where all rows had the same, it stood in the plan.
    let common = pick(&plan, &["network", "batch_size"]);
    let mut report = Report::new(bench, machine, plan);
    let apart = values([("samples", &file["samples"])]);
    for row in list(&file["rows"]).iter().map(object).chain([apart]) {
        let mut facts = pick(&row, &["warm_up_losses", "peak_rss_mb"]);
        facts.extend(object(&file["ranks"]));
        for sample in row.get("samples").map(list).unwrap_or_default() {
            let mut named = common.clone();
            named.extend(pick(&row, &SETTINGS).into_iter().chain(pick(&row, &["contender"])));
            named.extend(object(&sample));
            let parts = named.remove("step_seconds");
            named.extend(parts.iter().flat_map(object));
            add(&mut report.rows, named.into_iter().map(renamed).collect(), &facts);
        }
    }
    report.rows.iter_mut().for_each(Row::summarise);
    Ok(report)
}

/// The values of these names.
fn pick(values: &Values, names: &[&str]) -> Values {
    let picked = names.iter().filter_map(|name| values.get_key_value(*name));
    picked.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// A value by its name of today.
fn renamed((name, value): (String, Value)) -> (String, Value) {
    let known = RENAMED.iter().find(|(old, _)| *old == name);
    (known.map_or(name, |(_, new)| (*new).to_owned()), value)
}

/// Adds a sample to its row.
fn add(rows: &mut Vec<Row>, mut named: Values, facts: &Values) {
    let contender = match named.remove("contender") {
        Some(Value::String(name)) => name,
        Some(of_torch) => torch(&of_torch),
        None => return,
    };
    let point = pick(&named, &SETTINGS);
    named.retain(|name, _| !point.contains_key(name));
    let mut figures = figures(&named);
    let round = figures.remove("round").unwrap_or(0.0) as usize;
    let others_cpu_share = figures.remove("others_cpu_share");
    if let (Some(steps), Some(seconds)) = (figures.get("steps"), figures.get("seconds")) {
        let count = |name: &str| point.get(name).and_then(Value::as_f64).unwrap_or(1.0);
        // bench-overlap gave the seconds of one step, the others those of all.
        let is_one = ["off", "on", "exchange"].contains(&&*contender);
        let step = if is_one { *seconds } else { seconds / steps };
        figures.insert("step_seconds".into(), step);
        figures.insert("examples_per_second".into(), count("batch_size") * count("workers") / step);
    }
    let known = rows.iter().position(|row| row.contender == contender && row.point == point);
    let index = known.unwrap_or_else(|| {
        rows.push(Row { facts: facts.clone(), ..Row::new(point, &contender) });
        rows.len() - 1
    });
    rows[index].samples.push(Sample { round, others_cpu_share, figures });
}

/// The name now of one of PyTorch's contenders, which had a layout and perhaps a kind of buckets.
fn torch(contender: &Value) -> String {
    let said = contender.to_string();
    let part = |word: &str, name| if said.contains(word) { name } else { "" };
    let kind = if contender.get("ddp").is_some() { "ddp" } else { "pytorch" };
    format!("{kind}{}{}", part("channels-last", "-channels-last"), part("views", "-bucket-view"))
}
