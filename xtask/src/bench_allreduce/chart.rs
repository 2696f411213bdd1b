//! allreduce.svg: time by size, both logarithmic, a panel per number of ranks.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::contender::Contender;
use super::report::{Point, Report};
use crate::canvas::{Canvas, GREY, LIGHT, text_width};
use crate::figures::Spread;
use crate::line_style::LineStyle;

const MARGIN: i32 = 24;
const PANEL: i32 = 500;
const BETWEEN: i32 = 30;
const TOP: i32 = 76;
const KEY: i32 = 22;
/// The width of the sample before a name, and of the gap after the name.
const SAMPLE: i32 = 46;
const GAP: i32 = 22;
const NAME: i32 = 34;
const HEIGHT: i32 = 340;
/// The space for a panel's axes.
const LEFT: i32 = 64;
const BOTTOM: i32 = 52;
const TEXT: i32 = 13;

/// Writes the chart.
pub(super) fn draw(report: &Report<'_>, path: &Path) -> Result<()> {
    let paint = || {
        let panels = report.plan.ranks.len() as i32;
        let width = (2 * MARGIN + panels * PANEL + (panels - 1) * BETWEEN).max(760);
        let keys = keys(report, width - MARGIN);
        let keys_height = keys.iter().map(|key| key.2).max().unwrap_or(0) + KEY;
        let top = TOP + keys_height;
        let height = top + NAME + HEIGHT + BOTTOM + 2 * KEY;
        let canvas = Canvas::new(path, (width as u32, height as u32))?;
        let title = "All-reduce, sum of f32 in place: time by size (lower is better)";
        canvas.text(title, (MARGIN, 26), 19, BLACK, HPos::Left)?;
        let (cpu, cores) = (&report.machine.cpu, report.machine.cores);
        let under = format!("{cpu}, {cores} cores; medians of {} rounds", report.plan.rounds);
        canvas.text(&under, (MARGIN, 52), TEXT, GREY, HPos::Left)?;
        for (who, x, y) in keys {
            key(&canvas, who, (x, TOP + y + KEY / 2))?;
        }
        for (i, &ranks) in report.plan.ranks.iter().enumerate() {
            let left = MARGIN + i as i32 * (PANEL + BETWEEN);
            panel(&canvas, report, ranks, (left, top))?;
        }
        let note = "What memory allows: as many threads change their numbers in place, each on its \
                    own; where all ranks' numbers exceed the last cache.";
        canvas.text(note, (MARGIN, height - KEY), TEXT, GREY, HPos::Left)?;
        canvas.finish()
    };
    paint().with_context(|| format!("cannot draw {}", path.display()))
}

/// The measured contenders, and the positions of their keys.
fn keys(report: &Report<'_>, right: i32) -> Vec<(Contender, i32, i32)> {
    let (mut x, mut y) = (MARGIN, 0);
    let mut keys = Vec::new();
    for &who in &report.plan.contenders {
        if !report.points.iter().any(|point| point.seconds.contains_key(who.name())) {
            continue;
        }
        let width = SAMPLE + text_width(who.label(), TEXT);
        if x > MARGIN && x + width > right {
            (x, y) = (MARGIN, y + KEY);
        }
        keys.push((who, x, y));
        x += width + GAP;
    }
    keys
}

fn key(canvas: &Canvas<'_>, who: Contender, at: (i32, i32)) -> Result<()> {
    let ends = [at, (at.0 + SAMPLE - 8, at.1)];
    stroke(canvas, who, &ends)?;
    if who != Contender::Memory {
        style(who).mark(canvas, (at.0 + SAMPLE / 2 - 4, at.1), false)?;
    }
    canvas.text(who.label(), (at.0 + SAMPLE, at.1), TEXT, BLACK, HPos::Left)
}

fn style(who: Contender) -> LineStyle {
    LineStyle::of(who as usize)
}

fn stroke(canvas: &Canvas<'_>, who: Contender, points: &[(i32, i32)]) -> Result<()> {
    match who {
        Contender::Memory => canvas.dashed(points, &[3, 3], GREY.stroke_width(3)),
        _ => canvas.dashed(points, style(who).dashes, style(who).colour.stroke_width(2)),
    }
}

/// The ends of an axis, as whole powers of ten.
fn decades(values: impl Iterator<Item = f64> + Clone) -> (i32, i32) {
    let low = values.clone().fold(f64::INFINITY, f64::min).log10().floor();
    let high = values.fold(0.0, f64::max).log10().ceil();
    if low.is_finite() && high > low { (low as i32, high as i32) } else { (0, 1) }
}

/// A power of ten in a unit that has a name.
fn named(power: i32, units: &[(i32, &str)]) -> String {
    let unit = units.iter().rev().find(|(from, _)| *from <= power).or(units.first());
    unit.map_or_else(String::new, |(from, name)| format!("{} {name}", 10_f64.powi(power - from)))
}

fn panel(canvas: &Canvas<'_>, report: &Report<'_>, ranks: usize, at: (i32, i32)) -> Result<()> {
    let (left, right) = (at.0 + LEFT, at.0 + PANEL);
    let (top, floor) = (at.1 + NAME, at.1 + NAME + HEIGHT);
    let star = if ranks > report.machine.cores { " (more than cores)" } else { "" };
    let name = format!("{ranks} ranks{star}");
    canvas.text(&name, (left, at.1 + NAME / 2), 15, BLACK, HPos::Left)?;

    // All panels have the same axes.
    let sizes = decades(report.points.iter().map(|point| point.size.0 as f64));
    let all = report.points.iter().flat_map(|point| point.seconds.values());
    let times = decades(all.flat_map(|spread| [spread.min, spread.max]));
    let place = |value: f64, (from, to): (i32, i32), length: i32| {
        let share = (value.log10() - f64::from(from)) / f64::from(to - from);
        (share * f64::from(length)).round() as i32
    };
    let x = |size: f64| left + place(size, sizes, right - left);
    let y = |time: f64| floor - place(time, times, floor - top);
    for power in times.0..=times.1 {
        let y = y(10_f64.powi(power));
        canvas.line(vec![(left, y), (right, y)], LIGHT.stroke_width(1))?;
        let text = named(power, &[(-9, "ns"), (-6, "µs"), (-3, "ms"), (0, "s")]);
        canvas.text(&text, (left - 8, y), TEXT, GREY, HPos::Right)?;
    }
    for power in sizes.0..=sizes.1 {
        let x = x(10_f64.powi(power));
        canvas.line(vec![(x, top), (x, floor)], LIGHT.stroke_width(1))?;
        let text = named(power, &[(0, "B"), (3, "KB"), (6, "MB")]);
        canvas.text(&text, (x, floor + 16), TEXT, GREY, HPos::Center)?;
    }
    let middle = (left + right) / 2;
    canvas.text("numbers of one rank", (middle, floor + 36), TEXT, GREY, HPos::Center)?;
    canvas.line(vec![(left, top), (left, floor), (right, floor)], BLACK.stroke_width(1))?;

    let own = |point: &&Point| point.ranks == ranks;
    // Ours is drawn last, so that it is on top.
    for &who in report.plan.contenders.iter().rev() {
        let points = report.points.iter().filter(own);
        let points: Vec<(f64, &Spread)> = points
            .filter_map(|point| Some((point.size.0 as f64, point.seconds.get(who.name())?)))
            .collect();
        let line: Vec<_> = points.iter().map(|(size, time)| (x(*size), y(time.median))).collect();
        stroke(canvas, who, &line)?;
        if who == Contender::Memory {
            continue;
        }
        for (size, time) in &points {
            let whisker = vec![(x(*size), y(time.min)), (x(*size), y(time.max))];
            canvas.line(whisker, style(who).colour.stroke_width(1))?;
            style(who).mark(canvas, (x(*size), y(time.median)), false)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::bench_allreduce::fixture::Fixture;

    #[test]
    fn every_contender_that_was_measured_has_its_line() {
        let mut fixture = Fixture::new(&["4KB", "100MB"]);
        for who in [Contender::Local, Contender::MpiC] {
            fixture.add_at(0, 0, who, 2e-6);
            fixture.add_at(1, 0, who, 40e-3);
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chart.svg");
        draw(&fixture.report(), &path).unwrap();
        let svg = fs::read_to_string(path).unwrap();
        for text in
            ["2 ranks", "Candelabrum, local", "in place", "1 µs", "100 ms", "1 KB", "100 MB"]
        {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(!svg.contains("Gloo"));
    }

    #[test]
    fn axes_go_over_whole_powers_of_ten() {
        assert_eq!(decades([4e3, 1e8].into_iter()), (3, 8));
        assert_eq!(decades([2e-6, 0.04].into_iter()), (-6, -1));
        assert_eq!(decades([].into_iter()), (0, 1));
        let units = [(-6, "µs"), (-3, "ms")];
        assert_eq!([-6, -4, -1].map(|p| named(p, &units)), ["1 µs", "100 µs", "100 ms"]);
    }
}
