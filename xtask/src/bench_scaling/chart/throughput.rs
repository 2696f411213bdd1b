//! A panel of throughput by workers: a line per strategy, and the ideal line.
//!
//! Strategies are often equally fast, so the points of one number of workers are drawn side by
//! side. The ideal line is level above them, so each point can be compared with it as if the point
//! were in the middle.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::{Frame, Panel};
use crate::bench_scaling::report::{BASELINE, Row};
use crate::canvas::{Canvas, GREY, LIGHT, Point};
use crate::figures::{thousands, tick_step};
use crate::line_style::LineStyle;

pub(super) const HEIGHT: i32 = 330;
const LEFT: i32 = 84;
const BOTTOM: i32 = 52;
/// The distance between the points of neighbouring strategies at one number of workers, if there is
/// space.
const ASIDE: i32 = 14;
/// Two numbers below the axis that are closer than this would overlap.
const NUMBER: i32 = 26;

pub(super) fn draw(canvas: &Canvas<'_>, panel: &Panel<'_>, frame: Frame) -> Result<()> {
    let (left, right) = (frame.left + LEFT, frame.right);
    let (top, floor) = (frame.top, frame.top + HEIGHT - BOTTOM);
    let counts = panel.worker_counts();
    let Some(&most) = counts.last() else { return Ok(()) };

    let base = panel
        .rows
        .iter()
        .find(|row| row.point.strategy == BASELINE && row.point.workers == 1)
        .map(|row| row.images_per_second.median);
    let ideal = |workers: usize| base.map(|speed| speed * workers as f64);
    let fastest = panel.rows.iter().map(|row| row.images_per_second.max);
    let highest = fastest.chain(ideal(most)).fold(1.0, f64::max);
    let y = |value: f64| floor - (f64::from(floor - top - 8) * value / highest).round() as i32;

    let between = (right - left) / counts.len() as i32;
    let x = |workers: usize| {
        let place = counts.iter().position(|&count| count == workers).unwrap_or(0) as i32;
        left + between * place + between / 2
    };
    let strategies = panel.strategies();
    let aside = (between * 3 / 4 / strategies.len().max(1) as i32).min(ASIDE);
    let half_a_group = strategies.len() as i32 * aside / 2 + 2;

    let tick = tick_step(highest);
    for number in 0..=(highest / tick).floor() as i32 {
        let value = tick * f64::from(number);
        canvas.line(vec![(left, y(value)), (right, y(value))], LIGHT.stroke_width(1))?;
        canvas.text(&thousands(value), (left - 8, y(value)), 13, GREY, HPos::Right)?;
    }
    canvas.text_upwards("images per second", (frame.left + 12, (top + floor) / 2), 13, GREY)?;
    numbers_below(canvas, panel, &counts, x, floor)?;
    canvas.text("workers (ranks)", ((left + right) / 2, floor + 38), 13, GREY, HPos::Center)?;

    let level = |&workers: &usize| {
        let y = y(ideal(workers)?);
        Some([(x(workers) - half_a_group, y), (x(workers) + half_a_group, y)])
    };
    let levels: Vec<[Point; 2]> = counts.iter().filter_map(level).collect();
    canvas.dashed(&levels.concat(), &[2, 4], GREY.stroke_width(1))?;
    for level in levels {
        canvas.line(level.to_vec(), GREY.stroke_width(3))?;
    }
    let centre = strategies.len() as i32 - 1;
    for (i, &(place, name)) in strategies.iter().enumerate() {
        let beside = (2 * i as i32 - centre) * aside / 2;
        let own: Vec<&Row> =
            panel.rows.iter().copied().filter(|row| row.point.strategy == name).collect();
        let at = |row: &Row, speed: f64| (x(row.point.workers) + beside, y(speed));
        line(canvas, LineStyle::of(place), &own, at)?;
    }
    canvas.line(vec![(left, top), (left, floor), (right, floor)], BLACK.stroke_width(1))
}

/// A strategy's line, its points and their whiskers.
fn line(
    canvas: &Canvas<'_>,
    style: LineStyle,
    rows: &[&Row],
    at: impl Fn(&Row, f64) -> Point,
) -> Result<()> {
    let points: Vec<Point> = rows.iter().map(|row| at(row, row.images_per_second.median)).collect();
    canvas.dashed(&points, style.dashes, style.colour.stroke_width(2))?;
    for row in rows {
        let (low, high) = (at(row, row.images_per_second.min), at(row, row.images_per_second.max));
        canvas.line(vec![low, high], style.colour.stroke_width(1))?;
        for end in [low, high] {
            let ends = vec![(end.0 - 2, end.1), (end.0 + 2, end.1)];
            canvas.line(ends, style.colour.stroke_width(1))?;
        }
    }
    rows.iter().zip(points).try_for_each(|(row, at)| style.mark(canvas, at, row.oversubscribed))
}

/// The numbers of workers, as many as fit. A star marks more ranks than cores.
fn numbers_below(
    canvas: &Canvas<'_>,
    panel: &Panel<'_>,
    counts: &[usize],
    x: impl Fn(usize) -> i32,
    floor: i32,
) -> Result<()> {
    let mut taken = i32::MIN / 2;
    for &workers in counts {
        let star = if workers > panel.cores { "*" } else { "" };
        canvas.line(vec![(x(workers), floor), (x(workers), floor + 5)], BLACK.stroke_width(1))?;
        if x(workers) - taken >= NUMBER {
            let at = (x(workers), floor + 16);
            canvas.text(&format!("{workers}{star}"), at, 13, BLACK, HPos::Center)?;
            taken = x(workers);
        }
    }
    Ok(())
}
