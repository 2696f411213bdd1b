//! The report as one JSON. It has what the logs say, with the figures that need all points of a series, and leaves
//! tables and charts to the scripts of the page.
//!
//! A value that is NaN or infinite is `null`, except in `epochs`, which are those of the log.

use std::collections::BTreeMap;

use candelabrum_runlog::{
    Memory, RunHistory, SAVED, Series, SeriesPoint, Settings, duration_in_words, names,
};
use serde_json::{Value, json};

use super::load::ReportRun;
use crate::entries::entries;
use crate::number::mean;

/// The largest number of series with points.
const MOST_CHARTS: usize = 40;

/// About the number of points in a report, so that it stays below 2 MB.
const MOST_POINTS: usize = 24_000;

/// The most entries of a run, from its beginning and its end.
const MOST_ENTRIES: usize = 60;

/// Series with more points than this are smoothed.
const SMOOTHED_FROM: usize = 40;

/// A smoothed series averages over about this share of its points.
const SMOOTHING: f64 = 0.02;

/// The values of epochs that are phases of a step, which the page shows together, and sums that it shows nowhere.
const IN_EPOCHS: [&str; 9] = [
    names::STEPS,
    names::TRAIN_SECONDS,
    names::BACKWARD_SECONDS,
    names::COMPRESS_SECONDS,
    names::COMMUNICATION_SECONDS,
    names::EXPOSED_SECONDS,
    names::DECOMPRESS_SECONDS,
    names::UPDATE_SECONDS,
    names::BYTES_RECEIVED_PER_STEP,
];

/// The report about these runs, made at a Unix time.
pub(super) fn report(runs: &[ReportRun], now: f64) -> Value {
    let mut names: Vec<&str> = runs.iter().flat_map(|run| shown(&run.run)).map(|s| s.0).collect();
    names.sort_unstable();
    names.dedup();
    names.truncate(MOST_CHARTS);
    let most = (MOST_POINTS / (runs.len() * (names.len() + 1)).max(1)).clamp(12, 400);
    let series = |run: &RunHistory| -> BTreeMap<String, Value> {
        let of = |(name, series): (&str, &Series)| {
            let most = names.contains(&name).then_some(most);
            (name.to_owned(), of_series(run, name, series, most))
        };
        shown(run).map(of).collect()
    };
    let runs = runs.iter().map(|run| {
        let mut of_run = of_run(run);
        of_run["series"] = json!(series(&run.run));
        of_run
    });
    json!({"version": env!("CARGO_PKG_VERSION"), "made": now, "runs": runs.collect::<Vec<_>>()})
}

fn shown(run: &RunHistory) -> impl Iterator<Item = (&str, &Series)> {
    let all = run.series.iter().map(|(name, series)| (&**name, series));
    all.filter(|(name, _)| {
        name.strip_prefix("epoch/").is_none_or(|name| !IN_EPOCHS.contains(&name))
    })
}

fn of_run(ReportRun { name, dir, run, broken, state }: &ReportRun) -> Value {
    let seconds = |time: f64| (run.elapsed(time) * 1e3).round() / 1e3;
    let resumed = run.resumes.iter().map(|resume| &resume.what.settings);
    let settings = run.start.iter().map(|start| &start.what).chain(resumed);
    let resumes = run.resumes.iter().map(|resume| {
        json!({"step": resume.what.step, "seconds": seconds(resume.time), "from": resume.what.from})
    });
    let pauses = run.checkpoints.iter().map(|made| made.what.seconds).sum();
    json!({
        "name": name,
        "directory": dir.display().to_string(),
        "state": state.describe(),
        "broken": broken,
        "began": run.began(),
        "seconds": run.seconds(),
        "time": duration_in_words(run.seconds()),
        "ranks": settings.map(|settings| settings.world_size).collect::<Vec<_>>(),
        "steps": run.pace.step(),
        "planned_steps": run.pace.steps(),
        "planned_epochs": run.pace.epochs(),
        "epochs": run.epochs.iter().map(|end| &end.what).collect::<Vec<_>>(),
        "resumes": resumes.collect::<Vec<_>>(),
        "repeated_steps": run.repeated.iter().map(|r| r.reached.saturating_sub(r.kept)).sum::<u64>(),
        "checkpoints": {"count": run.checkpoints.len(), "time": duration_in_words(pauses)},
        "settings": run.settings().map(settings_of).unwrap_or_default(),
        "memory": run.memory.as_ref().map(memory),
        "entries": entries_of(run),
    })
}

/// A series: its figures, and at most so many of its points, if any.
fn of_series(run: &RunHistory, name: &str, series: &Series, most: Option<usize>) -> Value {
    let points = series.points();
    let span = points.len() as f64 * SMOOTHING;
    let last =
        |points: &[SeriesPoint]| points.iter().rev().find(|p| p.value.is_finite()).map(|p| p.value);
    let best = |largest| series.best(largest).map(|p| json!({"step": p.step, "value": p.value}));
    // A schedule is no noise.
    let is_noisy = points.len() > SMOOTHED_FROM && !name.ends_with(names::LEARNING_RATE);
    let smoothed = |most| columns(run, &last_of_stretches(&series.smoothed(span.max(2.0)), most));
    json!({
        "count": points.len(),
        "not_finite": series.not_finite(),
        "first_not_finite": points.iter().find(|p| !p.value.is_finite()).map(|p| p.step),
        "lowest": best(false),
        "highest": best(true),
        "mean": mean(points.iter().map(|p| p.value)),
        "last": last(points),
        "last_smoothed": last(&series.smoothed(span)),
        "points": most.map(|most| columns(run, &Series::decimated(points, most))),
        "smoothed": most.filter(|_| is_noisy).map(smoothed),
    })
}

/// Points by column, in the digits that a chart needs.
fn columns(run: &RunHistory, points: &[SeriesPoint]) -> Value {
    let short = |value: f64| format!("{value:.8e}").parse().unwrap_or(value);
    let seconds = |p: &SeriesPoint| (run.elapsed(p.time) * 1e3).round() / 1e3;
    json!({
        "step": points.iter().map(|p| p.step).collect::<Vec<_>>(),
        "seconds": points.iter().map(seconds).collect::<Vec<_>>(),
        "value": points.iter().map(|p| short(p.value)).collect::<Vec<f64>>(),
    })
}

/// The last number of each stretch of a smooth line, or a gap where a stretch has none.
fn last_of_stretches(points: &[SeriesPoint], most: usize) -> Vec<SeriesPoint> {
    let stretch = points.len().div_ceil(most.max(1)).max(1);
    let last = |stretch: &[SeriesPoint]| {
        let number = stretch.iter().rev().find(|point| point.value.is_finite());
        number.or(stretch.last()).copied()
    };
    points.chunks(stretch).filter_map(last).collect()
}

/// All settings as texts: their form in the log, which a script would change where a number is large.
fn settings_of(settings: &Settings) -> Vec<(String, String)> {
    let mut all = vec![
        ("world_size".to_owned(), settings.world_size.to_string()),
        ("version".to_owned(), settings.version.clone()),
    ];
    for (name, count) in [("planned epochs", settings.epochs), ("planned steps", settings.steps)] {
        all.extend(count.map(|count| (name.to_owned(), count.to_string())));
    }
    settings.settings.iter().for_each(|(name, value)| flatten(name, value, &mut all));
    all
}

/// An object inside the settings becomes settings with names such as `optimizer.lr`.
fn flatten(name: &str, value: &Value, all: &mut Vec<(String, String)>) {
    match value {
        Value::Object(inner) if !inner.is_empty() => {
            inner.iter().for_each(|(key, value)| flatten(&format!("{name}.{key}"), value, all));
        }
        Value::String(text) => all.push((name.to_owned(), text.clone())),
        other => all.push((name.to_owned(), other.to_string())),
    }
}

fn memory(memory: &Memory) -> Value {
    let parts = memory.parts.iter().map(|part| {
        let layers = if part.name == SAVED { memory.similar_layers() } else { Vec::new() };
        json!({"name": part.name, "bytes": part.bytes, "layers": layers})
    });
    json!({
        "step": memory.step,
        "place": memory.place,
        "parts": parts.collect::<Vec<_>>(),
        "totals": memory.totals().collect::<Vec<_>>(),
        "ranks": memory.ranks,
    })
}

/// The first and the last entries, each with its time in words.
fn entries_of(run: &RunHistory) -> Vec<(String, String)> {
    let entry = |entry: candelabrum_runlog::Stamped<String>| {
        (duration_in_words(run.elapsed(entry.time)), entry.what)
    };
    let mut all: Vec<_> = entries(run).into_iter().map(entry).collect();
    if let Some(more @ 1..) = all.len().checked_sub(MOST_ENTRIES) {
        let omitted = (String::new(), format!("{more} more entries are not shown."));
        all.splice(MOST_ENTRIES / 2..MOST_ENTRIES / 2 + more, [omitted]);
    }
    all
}

#[cfg(test)]
mod tests {
    use candelabrum_runlog::{Event, EventKind};

    use super::*;

    #[test]
    fn a_smooth_line_with_fewer_points_keeps_its_end_and_its_gaps() {
        let value = |i| if (300..500).contains(&i) { f64::NAN } else { i as f64 };
        let points: Vec<SeriesPoint> =
            (0..1000).map(|i| SeriesPoint { step: i, time: 0.0, value: value(i) }).collect();
        let thin = last_of_stretches(&points, 100);
        assert_eq!((thin.len(), thin[99].step), (100, 999));
        assert_eq!(thin.iter().filter(|point| point.value.is_nan()).count(), 20);
        assert!(last_of_stretches(&[], 100).is_empty());
    }

    #[test]
    fn of_many_entries_the_first_and_the_last_are_shown() {
        let mut run = RunHistory::default();
        for i in 0..200 {
            run.event(Event { time: f64::from(i), kind: EventKind::Note { text: i.to_string() } });
        }
        let texts: Vec<String> = entries_of(&run).into_iter().map(|entry| entry.1).collect();
        assert_eq!(texts.len(), MOST_ENTRIES + 1);
        assert_eq!(texts[29..32], ["29", "140 more entries are not shown.", "170"]);
        assert_eq!(texts[60], "199");
    }

    #[test]
    fn nested_settings_get_dotted_names_and_numbers_stay_as_they_are() {
        let mut settings = Settings { steps: Some(9), ..Settings::new(2, "1.0") };
        let object = json!({"lr": 0.1, "betas": [0.9, 0.99], "seed": u64::MAX, "none": {}});
        settings.settings.insert("optimizer".to_owned(), object);
        let mut all = settings_of(&settings);
        all.sort_unstable();
        let pairs: Vec<_> = all.iter().map(|(name, value)| (&**name, &**value)).collect();
        let expected = [
            ("optimizer.betas", "[0.9,0.99]"),
            ("optimizer.lr", "0.1"),
            ("optimizer.none", "{}"),
            ("optimizer.seed", "18446744073709551615"),
            ("planned steps", "9"),
            ("version", "1.0"),
            ("world_size", "2"),
        ];
        assert_eq!(pairs, expected);
    }
}
