//! The table at the top: what each run was and how it went, compared with the first run.

use candelabrum_plot::{bytes, mean, number};
use candelabrum_runlog::{Run, Series, duration_in_words, names};
use jiff::Timestamp;
use maud::{Markup, html};

use super::colour::chip;
use super::load::Loaded;

/// Smoothing of the loss at the end: over this share of its points.
const SMOOTHING: f64 = 0.02;

/// Words in the names of metrics of which more is better.
const MORE_IS_BETTER: [&str; 13] = [
    "accuracy",
    "acc",
    "f1",
    "precision",
    "recall",
    "auc",
    "bleu",
    "map",
    "iou",
    "score",
    "top1",
    "top5",
    "r2",
];

/// How two values are compared.
#[derive(Clone, Copy)]
enum Compared {
    Not,
    Ratio,
    Difference,
}

/// A row: its name, and for each run a text and, for comparison, a number.
struct SummaryRow {
    name: String,
    cells: Vec<(String, Option<f64>)>,
    compared: Compared,
}

/// The section.
pub(super) fn section(runs: &[Loaded]) -> Markup {
    html! {
        section {
            h2 { "Summary" }
            @if runs.len() > 1 {
                p { "In brackets: compared with " (runs[0].name) ", as a ratio (×) or a difference." }
            }
            div.wide { table {
                thead { tr {
                    th {}
                    @for (i, run) in runs.iter().enumerate() { th.run { (chip(i)) (run.name) } }
                } }
                tbody { @for row in rows(runs) { tr {
                    th { (row.name) }
                    @for (i, (text, _)) in row.cells.iter().enumerate() {
                        td {
                            (text)
                            @if let Some(comparison) = comparison(&row, i) {
                                " " span.aside { "(" (comparison) ")" }
                            }
                        }
                    }
                } } }
            } }
        }
    }
}

/// How a run's value compares with that of the first.
fn comparison(row: &SummaryRow, run: usize) -> Option<String> {
    let [first, value] = [row.cells.first()?.1?, row.cells.get(run)?.1?];
    match row.compared {
        _ if run == 0 => None,
        Compared::Not => None,
        Compared::Ratio if first == 0.0 => None,
        Compared::Ratio => Some(format!("×{}", number(rounded(value / first, 3)))),
        Compared::Difference if value == first => Some("equal".to_owned()),
        Compared::Difference => {
            let sign = if value > first { "+" } else { "" };
            Some(format!("{sign}{}", number(rounded(value - first, 2))))
        }
    }
    .filter(|text| !text.contains("NaN") && !text.contains("infinite"))
}

/// A number with so many digits.
fn rounded(value: f64, digits: usize) -> f64 {
    format!("{value:.*e}", digits - 1).parse().unwrap_or(value)
}

fn rows(runs: &[Loaded]) -> Vec<SummaryRow> {
    let row = |name: &str, compared, cell: &dyn Fn(&Loaded) -> (String, Option<f64>)| SummaryRow {
        name: name.to_owned(),
        cells: runs.iter().map(cell).collect(),
        compared,
    };
    let text = |name: &str, cell: &dyn Fn(&Run) -> String| {
        row(name, Compared::Not, &|run| (cell(&run.run), None))
    };
    let ratio = |name: &str, form: fn(f64) -> String, cell: &dyn Fn(&Run) -> Option<f64>| {
        row(name, Compared::Ratio, &|run| {
            let value = cell(&run.run);
            (value.map(form).unwrap_or_default(), value)
        })
    };
    let mut rows = vec![
        row("state", Compared::Not, &|run| (run.state.describe(), None)),
        text("began", &|run| run.began().map(date).unwrap_or_default()),
        ratio("time, without pauses", duration_in_words, &|run| Some(run.seconds())),
        text("ranks", &ranks),
        text("strategy", &strategies),
        text("epochs", &|run| of(run.epochs.len() as u64, run.pace.epochs())),
        text("steps", &|run| of(run.pace.step(), run.pace.steps())),
    ];
    rows.push(row("training loss at the end", Compared::Difference, &|run| {
        let loss = run.run.series.get(&format!("train/{}", names::LOSS)).and_then(final_loss);
        (loss.map(number).unwrap_or_default(), loss)
    }));
    rows.extend(evaluations(runs));
    let mean_of = |name: &'static str, kinds: &'static [&str]| {
        move |run: &Run| {
            let series = kinds.iter().find_map(|kind| run.series.get(&format!("{kind}/{name}")))?;
            mean(series.points().iter().map(|point| point.value))
        }
    };
    let rate = mean_of(names::SAMPLES_PER_SECOND, &["epoch", "train"]);
    rows.push(ratio("samples per second", number, &rate));
    rows.push(ratio(
        "sent per step",
        bytes,
        &mean_of(names::BYTES_SENT_PER_STEP, &["epoch", "train"]),
    ));
    rows.push(text("resumes", &resumes));
    rows.push(text("checkpoints", &checkpoints));
    // A row that says nothing about any run is left out.
    rows.retain(|row| row.cells.iter().any(|(text, _)| !text.is_empty()));
    rows
}

/// The best and the last value of every evaluated metric.
fn evaluations(runs: &[Loaded]) -> Vec<SummaryRow> {
    let all = runs.iter().flat_map(|run| run.run.series.keys());
    let mut names: Vec<&str> = all.filter_map(|name| name.strip_prefix("evaluation/")).collect();
    names.sort_unstable();
    names.dedup();
    let mut rows = Vec::new();
    for name in names {
        let largest = more_is_better(name);
        let which = if largest { "highest" } else { "lowest" };
        let points = |run: &Loaded| {
            let series = run.run.series.get(&format!("evaluation/{name}"))?;
            Some((series.best(largest)?, series.last_finite()?))
        };
        let best = |run: &Loaded| match points(run) {
            Some((best, _)) => {
                (format!("{} at step {}", number(best.value), best.step), Some(best.value))
            }
            None => (String::new(), None),
        };
        let last = |run: &Loaded| match points(run) {
            Some((_, last)) => (number(last.value), Some(last.value)),
            None => (String::new(), None),
        };
        let row = |name: String, cells| SummaryRow { name, cells, compared: Compared::Difference };
        rows.push(row(format!("{which} {name} of evaluations"), runs.iter().map(best).collect()));
        rows.push(row(format!("last {name} of evaluations"), runs.iter().map(last).collect()));
    }
    rows
}

/// Whether a metric of this name is better where it is larger, as far as names tell.
fn more_is_better(name: &str) -> bool {
    let lower = name.to_lowercase();
    lower.split(|c: char| !c.is_alphanumeric()).any(|word| MORE_IS_BETTER.contains(&word))
}

/// The smoothed loss at the last step that has one.
fn final_loss(series: &Series) -> Option<f64> {
    let smoothed = series.smoothed(series.points().len() as f64 * SMOOTHING);
    smoothed.iter().rev().find(|point| point.value.is_finite()).map(|point| point.value)
}

/// `3 of 10`.
fn of(done: u64, planned: Option<u64>) -> String {
    planned.map_or_else(|| done.to_string(), |planned| format!("{done} of {planned}"))
}

/// The numbers of ranks, where a resume changed it.
fn ranks(run: &Run) -> String {
    let resumed = run.resumes.iter().map(|resume| &resume.what.settings);
    let settings = run.start.iter().map(|start| &start.what).chain(resumed);
    let mut counts: Vec<String> =
        settings.map(|settings| settings.world_size.to_string()).collect();
    counts.dedup();
    counts.join(", then ")
}

fn strategies(run: &Run) -> String {
    let named = run.epochs.iter().filter_map(|end| end.what.dist_option.clone());
    let mut names: Vec<String> = named.collect();
    names.dedup();
    names.truncate(6);
    names.join(", then ")
}

fn resumes(run: &Run) -> String {
    let again: u64 = run.repeated.iter().map(|r| r.reached.saturating_sub(r.kept)).sum();
    match run.resumes.len() {
        0 => "0".to_owned(),
        count if again == 0 => count.to_string(),
        count => format!("{count}, {again} steps trained again"),
    }
}

fn checkpoints(run: &Run) -> String {
    let seconds: f64 = run.checkpoints.iter().map(|made| made.what.seconds).sum();
    match run.checkpoints.len() {
        0 => "0".to_owned(),
        count => format!("{count}, {} in all", duration_in_words(seconds)),
    }
}

/// A Unix time as a date and a time of day.
pub(super) fn date(time: f64) -> String {
    match Timestamp::from_second(time as i64) {
        Ok(at) => at.strftime("%Y-%m-%d %H:%M UTC").to_string(),
        Err(_) => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_compared_with_the_first_run() {
        let row = |compared, values: &[Option<f64>]| {
            let cells = values.iter().map(|value| (String::new(), *value)).collect();
            let row = SummaryRow { name: String::new(), cells, compared };
            (1..values.len()).map(|run| comparison(&row, run)).collect::<Vec<_>>()
        };
        let text = |text: &str| Some(text.to_owned());
        let ratios = row(Compared::Ratio, &[Some(2.0), Some(3.0), None, Some(0.01)]);
        assert_eq!(ratios, [text("×1.5"), None, text("×0.005")]);
        let differences = row(Compared::Difference, &[Some(0.9), Some(0.95), Some(0.9)]);
        assert_eq!(differences, [text("+0.05"), text("equal")]);
        assert_eq!(row(Compared::Ratio, &[Some(0.0), Some(1.0)]), [None]);
        assert_eq!(row(Compared::Difference, &[Some(1.0), Some(f64::NAN)]), [None]);
        assert_eq!(row(Compared::Not, &[Some(1.0), Some(2.0)]), [None]);
    }

    #[test]
    fn names_tell_whether_more_is_better() {
        for (name, more) in [
            ("accuracy", true),
            ("top5_accuracy", true),
            ("F1", true),
            ("loss", false),
            ("perplexity", false),
            ("mapping_error", false),
        ] {
            assert_eq!(more_is_better(name), more, "{name}");
        }
    }

    #[test]
    fn dates_are_readable_and_no_time_breaks_them() {
        assert_eq!(date(1_795_536_000.9), "2026-11-24 16:00 UTC");
        for odd in [f64::MAX, -1e300, f64::NAN] {
            assert!(!date(odd).is_empty());
        }
    }
}
