//! The settings of the runs: those that differ first.

use std::collections::BTreeMap;

use candelabrum_runlog::Settings;
use maud::{Markup, html};
use serde_json::Value;

use super::load::Loaded;

/// The section.
pub(super) fn section(runs: &[Loaded]) -> Markup {
    let (differing, same): (Vec<_>, Vec<_>) =
        rows(runs).into_iter().partition(|(_, values)| values.iter().any(|v| *v != values[0]));
    html! {
        section {
            h2 { "Settings" }
            @if differing.is_empty() && same.is_empty() { p { "The log names no settings." } }
            div.beside {
                @if !differing.is_empty() { div {
                    h3 { "Settings that differ" }
                    (table(runs, &differing))
                } }
                @if !same.is_empty() { div {
                    @if runs.len() > 1 { h3 { "Settings that are the same" } }
                    (same_in_all(&same))
                } }
            }
        }
    }
}

/// A setting's name, and its value in each run.
type Setting = (String, Vec<String>);

fn table(runs: &[Loaded], rows: &[Setting]) -> Markup {
    html! {
        div.wide { table.settings {
            thead { tr {
                th { "setting" }
                @for (i, run) in runs.iter().enumerate() { th.run { (super::colour::chip(i)) (run.name) } }
            } }
            tbody { @for (name, values) in rows { tr {
                th { (name) }
                @for value in values { td.text { (value) } }
            } } }
        } }
    }
}

fn same_in_all(rows: &[Setting]) -> Markup {
    html! {
        // Two tables beside each other are shorter than a long one.
        div.beside { @for half in rows.chunks(rows.len().div_ceil(2).max(4)) {
            table.settings { tbody {
                @for (name, values) in half { tr { th { (name) } td.text { (values[0]) } } }
            } }
        } }
    }
}

/// A row for each setting of any run. A run without it has an empty text.
fn rows(runs: &[Loaded]) -> Vec<Setting> {
    let of_runs: Vec<BTreeMap<String, String>> =
        runs.iter().map(|run| run.run.settings().map(all).unwrap_or_default()).collect();
    let mut names: Vec<&String> = of_runs.iter().flat_map(BTreeMap::keys).collect();
    names.sort();
    names.dedup();
    let value = |name: &String, of_run: &BTreeMap<String, String>| {
        of_run.get(name).cloned().unwrap_or_default()
    };
    let row = |name: &String| (name.clone(), of_runs.iter().map(|run| value(name, run)).collect());
    names.into_iter().map(row).collect()
}

fn all(settings: &Settings) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    all.insert("world_size".to_owned(), settings.world_size.to_string());
    all.insert("version".to_owned(), settings.version.clone());
    let planned = [("planned epochs", settings.epochs), ("planned steps", settings.steps)];
    let planned = planned.into_iter().filter_map(|(name, count)| Some((name, count?)));
    all.extend(planned.map(|(name, count)| (name.to_owned(), count.to_string())));
    for (name, value) in &settings.settings {
        flatten(name, value, &mut all);
    }
    all
}

/// An object inside the settings becomes settings with names such as `optimizer.lr`.
fn flatten(name: &str, value: &Value, all: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(inner) if !inner.is_empty() => {
            inner.iter().for_each(|(key, value)| flatten(&format!("{name}.{key}"), value, all));
        }
        Value::String(text) => drop(all.insert(name.to_owned(), text.clone())),
        other => drop(all.insert(name.to_owned(), other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nested_settings_get_dotted_names() {
        let mut settings = Settings { steps: Some(9), ..Settings::new(2, "1.0") };
        let object = json!({"lr": 0.1, "betas": [0.9, 0.99], "name": "sgd", "none": {}});
        settings.settings.insert("optimizer".to_owned(), object);
        let all = all(&settings);
        let pairs: Vec<_> = all.iter().map(|(name, value)| (&**name, &**value)).collect();
        let expected = [
            ("optimizer.betas", "[0.9,0.99]"),
            ("optimizer.lr", "0.1"),
            ("optimizer.name", "sgd"),
            ("optimizer.none", "{}"),
            ("planned steps", "9"),
            ("version", "1.0"),
            ("world_size", "2"),
        ];
        assert_eq!(pairs, expected);
    }
}
