//! Which charts the page has, and the lines of each: loss, evaluations, learning rate, throughput, and
//! whatever else was logged.

use std::collections::BTreeSet;

use candelabrum_runlog::{Point, Run, Series, names};

use super::chart::{Chart, Line};
use super::load::Loaded;

/// The largest number of charts on a page.
const MOST_CHARTS: usize = 40;

/// About the number of points on a page, so that it stays below 2 MB.
const MOST_POINTS: usize = 24_000;

/// Lines with more points than this are smoothed.
const SMOOTHED_FROM: usize = 40;

/// A smoothed line averages over about this share of its points.
const SMOOTHING: f64 = 0.02;

/// The most marks of resumes on one line.
const MOST_MARKS: usize = 50;

/// The charts of the page, by section.
pub(super) struct Curves {
    pub(super) training: Vec<Chart>,
    pub(super) evaluation: Vec<Chart>,
    pub(super) speed: Vec<Chart>,
    pub(super) strategy: Vec<Chart>,
    pub(super) others: Vec<Chart>,
    /// The names of values without a chart.
    pub(super) left_out: Vec<String>,
}

/// The horizontal axis.
#[derive(Clone, Copy)]
enum Across {
    Step,
    /// Time without pauses, in a unit of so many seconds.
    Time(f64, &'static str),
}

/// All charts of these runs.
pub(super) fn curves(runs: &[Loaded]) -> Curves {
    let all: BTreeSet<&str> =
        runs.iter().flat_map(|run| run.run.series.keys()).map(String::as_str).collect();
    let mut left: Vec<&str> = all.iter().copied().filter(|name| !has_a_table(name)).collect();
    let left_out = left.split_off(left.len().min(MOST_CHARTS));
    let lines = runs.len() * (left.len() + 1);
    let points = (MOST_POINTS / lines.max(1)).clamp(12, 400);

    let mut take = |wanted: &dyn Fn(&str) -> bool| {
        let (taken, rest): (Vec<&str>, Vec<&str>) = left.iter().partition(|name| wanted(name));
        left = rest;
        taken
    };
    let chart = |name: &&str| chart(runs, name, Across::Step, points);
    let loss = format!("train/{}", names::LOSS);
    let mut training: Vec<Chart> = take(&|name| name == loss).iter().map(chart).collect();
    if !training.is_empty() {
        training.push(self::chart(runs, &loss, unit(runs), points));
    }
    let rate = format!("train/{}", names::LEARNING_RATE);
    training.extend(take(&|name| name == rate).iter().map(chart));
    let evaluation = take(&|name| name.starts_with("evaluation/")).iter().map(chart).collect();
    let speed = take(&|name| name.ends_with(names::SAMPLES_PER_SECOND)).iter().map(chart).collect();
    let of_strategy = [names::BYTES_SENT_PER_STEP, names::RESIDUAL_NORM];
    let strategy =
        take(&|name| name.strip_prefix("epoch/").is_some_and(|name| of_strategy.contains(&name)));
    let strategy = strategy.iter().map(chart).collect();
    let others = left.iter().map(chart).collect();
    let left_out = left_out.into_iter().map(str::to_owned).collect();
    Curves { training, evaluation, speed, strategy, others, left_out }
}

/// Whether the values are in a table or a picture of another kind.
fn has_a_table(series: &str) -> bool {
    let in_tables = [
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
    series.strip_prefix("epoch/").is_some_and(|name| in_tables.contains(&name))
}

/// The unit of time in which the longest run has a handy number.
fn unit(runs: &[Loaded]) -> Across {
    let longest = runs.iter().map(|run| run.run.seconds()).fold(0.0, f64::max);
    match longest {
        0.0..180.0 => Across::Time(1.0, "seconds"),
        180.0..10_800.0 => Across::Time(60.0, "minutes"),
        10_800.0..259_200.0 => Across::Time(3600.0, "hours"),
        _ => Across::Time(86_400.0, "days"),
    }
}

fn title(series: &str) -> String {
    let (kind, name) = series.split_once('/').unwrap_or(("", series));
    match (kind, name) {
        ("train", names::LOSS) => "Training loss".to_owned(),
        ("train", names::LEARNING_RATE) => "Learning rate".to_owned(),
        ("train", names::SAMPLES_PER_SECOND) => "Samples per second".to_owned(),
        ("epoch", names::SAMPLES_PER_SECOND) => "Samples per second, of whole epochs".to_owned(),
        ("epoch" | "train", names::BYTES_SENT_PER_STEP) => "Megabytes sent per step".to_owned(),
        ("epoch", names::RESIDUAL_NORM) => "Norm of the values not sent yet".to_owned(),
        ("train", _) => format!("Training: {name}"),
        ("evaluation", _) => format!("Evaluation: {name}"),
        _ => format!("Epoch: {name}"),
    }
}

fn chart(runs: &[Loaded], name: &str, across: Across, points: usize) -> Chart {
    let (title, x) = match across {
        Across::Step => (title(name), "step".to_owned()),
        Across::Time(_, unit) => (format!("{} over time", title(name)), unit.to_owned()),
    };
    let is_loss = name == format!("train/{}", names::LOSS);
    let value = name.rsplit('/').next().unwrap_or(name);
    // A schedule is no noise, and has its form on a linear axis.
    let is_schedule = value == names::LEARNING_RATE;
    let smoothed_from = if is_schedule { usize::MAX } else { SMOOTHED_FROM };
    let is_linear = is_schedule || [names::ACCURACY, names::SAMPLES_PER_SECOND].contains(&value);
    let (mut lines, mut notes, mut is_smoothed) = (Vec::new(), Vec::new(), false);
    for (number, of_run) in runs.iter().enumerate() {
        let Some(series) = of_run.run.series.get(name) else { continue };
        let mut line = line(&of_run.run, series, across, [points, smoothed_from]);
        (line.run, line.name) = (number, of_run.name.clone());
        if !is_loss {
            line.marks.clear();
        }
        is_smoothed |= !line.raw.is_empty();
        notes.extend(about_gaps(of_run, series));
        lines.push(line);
    }
    if is_smoothed {
        notes.insert(0, "Bold: smoothed. Thin: as logged.".to_owned());
    }
    if value == names::BYTES_SENT_PER_STEP {
        lines.iter_mut().flat_map(|line| &mut line.points).for_each(|point| point.1 /= 1e6);
        lines.iter_mut().flat_map(|line| &mut line.raw).for_each(|point| point.1 /= 1e6);
    }
    let has_legend = runs.len() > 1;
    Chart { title, x, may_be_logarithmic: !is_linear, lines, has_legend, notes }
}

/// What to say about values that have no place in a picture.
fn about_gaps(run: &Loaded, series: &Series) -> Option<String> {
    let count = series.not_finite();
    let first = series.points().iter().find(|point| !point.value.is_finite())?;
    let (name, all, step) = (&run.name, series.points().len(), first.step);
    Some(format!(
        "{name}: {count} of {all} values are NaN or infinite, from step {step} on (crosses at the edge)."
    ))
}

/// A line with at most so many points, and smoothed from so many on.
fn line(run: &Run, series: &Series, across: Across, [most, smoothed_from]: [usize; 2]) -> Line {
    let x = |step: u64, time: f64| match across {
        Across::Step => step as f64,
        Across::Time(unit, _) => run.elapsed(time) / unit,
    };
    let places = |points: &[Point]| -> Vec<(f64, f64)> {
        points.iter().map(|point| (x(point.step, point.time), point.value)).collect()
    };
    let all = series.points();
    let (points, raw) = if all.len() > smoothed_from {
        let smoothed = series.smoothed((all.len() as f64 * SMOOTHING).max(2.0));
        (places(&thinned(&smoothed, most)), places(&Series::decimated(all, most)))
    } else {
        (places(&Series::decimated(all, most)), Vec::new())
    };
    let lost: Vec<Point> = all.iter().filter(|point| !point.value.is_finite()).copied().collect();
    let gaps = places(&lost).into_iter().map(|(x, _)| x).collect();
    let marks = run.resumes.iter().take(MOST_MARKS).map(|resume| {
        let text = format!("resumed at step {} from {}", resume.what.step, resume.what.from);
        (x(resume.what.step, resume.time), text)
    });
    Line { run: 0, name: String::new(), points, raw, gaps, marks: marks.collect() }
}

/// The last number of each stretch of a smooth line, or a gap where a stretch has none.
fn thinned(points: &[Point], most: usize) -> Vec<Point> {
    let stretch = points.len().div_ceil(most.max(1)).max(1);
    let last = |stretch: &[Point]| {
        let number = stretch.iter().rev().find(|point| point.value.is_finite());
        number.or(stretch.last()).copied()
    };
    points.chunks(stretch).filter_map(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smooth_line_with_fewer_points_keeps_its_end_and_its_gaps() {
        let value = |i| if (300..500).contains(&i) { f64::NAN } else { i as f64 };
        let points: Vec<Point> =
            (0..1000).map(|i| Point { step: i, time: 0.0, value: value(i) }).collect();
        let thin = thinned(&points, 100);
        assert_eq!((thin.len(), thin[99].step), (100, 999));
        assert_eq!(thin.iter().filter(|point| point.value.is_nan()).count(), 20);
        assert!(thinned(&[], 100).is_empty());
    }

    #[test]
    fn titles_name_the_kind() {
        assert_eq!(title("train/loss"), "Training loss");
        assert_eq!(title("evaluation/top5"), "Evaluation: top5");
        assert_eq!(title("odd"), "Epoch: odd");
    }
}
