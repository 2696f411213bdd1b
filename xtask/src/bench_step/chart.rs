//! bench_step.svg: a horizontal bar per contender, its median, its slowest and fastest sample.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::contender::Contender;
use super::report::{Report, Row};

const WIDTH: u32 = 860;
const LEFT: i32 = 200;
const RIGHT: i32 = 40;
const TOP: i32 = 78;
const BAR_STEP: i32 = 52;
const BOTTOM: i32 = 62;
const BAR: i32 = 30;
const GREY: RGBColor = RGBColor(90, 90, 90);
const LIGHT: RGBColor = RGBColor(222, 222, 222);

/// Okabe and Ito's colours, which the colour-blind tell apart.
fn colour(contender: Contender) -> RGBColor {
    match contender {
        Contender::Ours => RGBColor(0, 114, 178),
        Contender::Candle => RGBColor(230, 159, 0),
        Contender::PyTorch => RGBColor(0, 158, 115),
        Contender::PyTorchChannelsLast => RGBColor(204, 121, 167),
    }
}

/// Writes the chart.
pub(super) fn draw(report: &Report, path: &Path) -> Result<()> {
    let height = TOP + BAR_STEP * report.rows.len() as i32 + BOTTOM;
    let area = SVGBackend::new(path, (WIDTH, height as u32)).into_drawing_area();
    paint(report, &area, height)
        .and_then(|()| area.present().map_err(|error| anyhow!("{error}")))
        .with_context(|| format!("cannot draw {}", path.display()))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn paint(report: &Report, area: &Area<'_>, height: i32) -> Result<()> {
    let fastest = report.rows.iter().map(|row| row.images_per_second.max).fold(1.0, f64::max);
    let tick = tick_step(fastest);
    // Room for the figure behind the longest bar.
    let scale = f64::from(WIDTH as i32 - LEFT - RIGHT - 150) / fastest;
    let x = |value: f64| LEFT + (value * scale).round() as i32;
    let text = |text: &str, at: (i32, i32), size: i32, colour: RGBColor, anchor: HPos| {
        let style = ("sans-serif", size).into_font().color(&colour);
        area.draw(&Text::new(text, at, style.pos(Pos::new(anchor, VPos::Center))))
    };
    let line =
        |points: Vec<(i32, i32)>, style: ShapeStyle| area.draw(&PathElement::new(points, style));

    area.fill(&WHITE)?;
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
        area.draw(&Rectangle::new(corners, colour(row.contender).filled()))?;
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

/// A round distance between grid lines that gives three to seven of them.
fn tick_step(fastest: f64) -> f64 {
    let power = 10_f64.powf((fastest / 3.0).log10().floor());
    let fits = |step: &f64| fastest / step >= 3.0;
    [5.0, 2.0, 1.0].map(|factor| factor * power).into_iter().find(fits).unwrap_or(power)
}

/// A whole number with a comma between groups of three digits.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let grouped: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| str::from_utf8(group).unwrap_or(""))
        .collect();
    grouped.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_are_grouped() {
        let numbers = [0.0, 999.4, 1000.0, 1_234_567.0].map(thousands);
        assert_eq!(numbers, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn grid_lines_are_round_and_few() {
        for fastest in [1.0, 37.0, 540.0, 2999.0, 3000.0, 5718.0, 12_000.0, 99_999.0] {
            let lines = fastest / tick_step(fastest);
            assert!((3.0..=7.5).contains(&lines), "{fastest}: {lines}");
        }
    }
}
