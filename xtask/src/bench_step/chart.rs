//! bench_step.svg: a horizontal bar per contender, its median, its slowest and fastest sample.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::contender::Contender;
use super::report::{Report, Row};
use crate::canvas::{Canvas, GREY, LIGHT, okabe_ito};
use crate::figures::{thousands, tick_step};

const WIDTH: u32 = 860;
const LEFT: i32 = 200;
const RIGHT: i32 = 40;
const TOP: i32 = 78;
const BAR_STEP: i32 = 52;
const BOTTOM: i32 = 62;
const BAR: i32 = 30;

fn colour(contender: Contender) -> RGBColor {
    match contender {
        Contender::Ours => okabe_ito::BLUE,
        Contender::Candle => okabe_ito::ORANGE,
        Contender::PyTorch => okabe_ito::GREEN,
        Contender::PyTorchChannelsLast => okabe_ito::PURPLE,
    }
}

/// Writes the chart.
pub(super) fn draw(report: &Report, path: &Path) -> Result<()> {
    let height = TOP + BAR_STEP * report.rows.len() as i32 + BOTTOM;
    let canvas = Canvas::new(path, (WIDTH, height as u32))?;
    paint(report, &canvas, height)
        .and_then(|()| canvas.finish())
        .with_context(|| format!("cannot draw {}", path.display()))
}

fn paint(report: &Report, canvas: &Canvas<'_>, height: i32) -> Result<()> {
    let fastest = report.rows.iter().map(|row| row.images_per_second.max).fold(1.0, f64::max);
    let tick = tick_step(fastest);
    // Room for the figure behind the longest bar.
    let scale = f64::from(WIDTH as i32 - LEFT - RIGHT - 150) / fastest;
    let x = |value: f64| LEFT + (value * scale).round() as i32;
    let text = |text: &str, at: (i32, i32), size: i32, colour: RGBColor, anchor: HPos| {
        canvas.text(text, at, size, colour, anchor)
    };
    let line = |points: Vec<(i32, i32)>, style: ShapeStyle| canvas.line(points, style);

    let title = "Training throughput, MNIST CNN (higher is better)";
    text(title, (LEFT, 24), 19, BLACK, HPos::Left)?;
    let Report { batch_size, threads, rounds, machine, .. } = report;
    let plural = if *threads == 1 { "" } else { "s" };
    let under =
        format!("batch {batch_size}, {threads} thread{plural}, {rounds} rounds; {}", machine.cpu);
    text(&under, (LEFT, 50), 13, GREY, HPos::Left)?;

    let floor = height - BOTTOM;
    let mut value = 0.0;
    while value <= fastest {
        line(vec![(x(value), TOP), (x(value), floor)], LIGHT.stroke_width(1))?;
        text(&thousands(value), (x(value), floor + 14), 13, GREY, HPos::Center)?;
        value += tick;
    }
    text(
        "images per second; whiskers: slowest and fastest sample",
        (LEFT, floor + 40),
        13,
        GREY,
        HPos::Left,
    )?;

    for (i, row) in report.rows.iter().enumerate() {
        let middle = TOP + BAR_STEP * i as i32 + BAR_STEP / 2;
        let speed = row.images_per_second;
        let corners = [(LEFT, middle - BAR / 2), (x(speed.median), middle + BAR / 2)];
        canvas.rectangle(corners, colour(row.contender).filled())?;
        let (from, to) = (x(speed.min), x(speed.max));
        line(vec![(from, middle), (to, middle)], BLACK.stroke_width(2))?;
        for end in [from, to] {
            line(vec![(end, middle - 6), (end, middle + 6)], BLACK.stroke_width(2))?;
        }
        text(row.contender.label(), (LEFT - 12, middle), 15, BLACK, HPos::Right)?;
        let figure_at = (to.max(x(speed.median)) + 10, middle);
        text(&figure(row), figure_at, 15, BLACK, HPos::Left)?;
    }
    line(vec![(LEFT, TOP), (LEFT, floor)], BLACK.stroke_width(1))?;
    Ok(())
}

/// The median, and how many times candle that is.
fn figure(row: &Row) -> String {
    let median = thousands(row.images_per_second.median);
    match row.ratio_to_candle {
        Some(ratio) if row.contender != Contender::Candle => {
            format!("{median}  ({ratio:.1}× candle)")
        }
        _ => median,
    }
}
