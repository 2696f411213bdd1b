//! overlap.svg: a bar for a step without overlap and one for a step with it, their parts one after
//! the other, and one for an exchange alone.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::report::Report;
use crate::canvas::{Canvas, GREY, LIGHT, text_width};
use crate::figures::tick_step;
use crate::piece;
use crate::split::{Part, Split};

const WIDTH: i32 = 860;
const MARGIN: i32 = 24;
const KEYS: i32 = 84;
const TOP: i32 = 132;
const LEFT: i32 = 150;
/// The width of the figure behind the longest bar.
const FIGURE: i32 = 90;
const BAR_STEP: i32 = 38;
const BAR: i32 = 24;
const FLOOR: i32 = TOP + 3 * BAR_STEP;
const HEIGHT: i32 = FLOOR + 96;
const TEXT: i32 = 13;

/// Writes the chart.
pub(super) fn draw(report: &Report<'_>, path: &Path) -> Result<()> {
    let paint = || {
        let canvas = Canvas::new(path, (WIDTH as u32, HEIGHT as u32))?;
        let title = "Overlap of communication with backward (shorter is better)";
        canvas.text(title, (MARGIN, 26), 19, BLACK, HPos::Left)?;
        canvas.text(&report.heading(), (MARGIN, 52), TEXT, GREY, HPos::Left)?;
        keys(&canvas)?;
        bars(&canvas, report)?;
        let share = report.hidden_share.map(|share| 100.0 * share.median);
        if let Some(share) = share {
            let note = format!(
                "Of the communication that fits behind backward, overlap hides {share:.0}%. Both \
                 hosts are one machine and share its cores."
            );
            canvas.text(&note, (MARGIN, HEIGHT - 20), TEXT, GREY, HPos::Left)?;
        }
        canvas.finish()
    };
    paint().with_context(|| format!("cannot draw {}", path.display()))
}

fn keys(canvas: &Canvas<'_>) -> Result<()> {
    let mut x = MARGIN;
    for part in Part::ALL {
        piece::draw(canvas, part, [(x, KEYS - 7), (x + 30, KEYS + 7)])?;
        canvas.text(part.label(), (x + 38, KEYS), TEXT, BLACK, HPos::Left)?;
        x += 38 + text_width(part.label(), TEXT) + 8;
    }
    Ok(())
}

/// Milliseconds, by part and of the whole. Medians of parts need not add up to the median of the
/// whole.
struct Bar {
    name: &'static str,
    parts: Vec<(Part, f64)>,
    total: f64,
}

fn bars(canvas: &Canvas<'_>, report: &Report<'_>) -> Result<()> {
    let ms = |seconds: f64| 1000.0 * seconds;
    let steps = [("overlap off", &report.off), ("overlap on", &report.on)];
    let mut bars: Vec<Bar> = Vec::new();
    for (name, step) in steps {
        let Some(step) = step else { continue };
        let value = |parts: &Split<f64>, part: Part| ms(*parts.get(part));
        let parts = Part::ALL.map(|part| (part, value(&step.parts, part))).to_vec();
        bars.push(Bar { name, parts, total: ms(step.total.median) });
    }
    if let Some(alone) = report.exchange_seconds {
        let alone = ms(alone.median);
        let (name, parts) = ("an exchange alone", vec![(Part::Exposed, alone)]);
        bars.push(Bar { name, parts, total: alone });
    }
    let length = |bar: &Bar| bar.parts.iter().map(|(_, value)| value).sum::<f64>().max(bar.total);
    let longest = bars.iter().map(length).fold(1e-3, f64::max);
    let scale = f64::from(WIDTH - MARGIN - FIGURE - LEFT) / longest;
    let x = |value: f64| LEFT + (value * scale).round() as i32;
    let tick = tick_step(longest);
    for number in 0..=(longest / tick).floor() as i32 {
        let value = tick * f64::from(number);
        canvas.line(vec![(x(value), TOP), (x(value), FLOOR)], LIGHT.stroke_width(1))?;
        canvas.text(&format!("{value}"), (x(value), FLOOR + 16), TEXT, GREY, HPos::Center)?;
    }
    let middle = (LEFT + WIDTH - MARGIN - FIGURE) / 2;
    canvas.text("milliseconds per step", (middle, FLOOR + 38), TEXT, GREY, HPos::Center)?;
    for (i, Bar { name, parts, total }) in bars.iter().enumerate() {
        let middle = TOP + BAR_STEP * i as i32 + BAR_STEP / 2;
        canvas.text(name, (LEFT - 10, middle), TEXT, BLACK, HPos::Right)?;
        let mut so_far = 0.0;
        for &(part, value) in parts {
            let from = so_far;
            so_far += value;
            if x(so_far) > x(from) {
                let corners = [(x(from), middle - BAR / 2), (x(so_far), middle + BAR / 2)];
                piece::draw(canvas, part, corners)?;
            }
        }
        let at = (x(so_far.max(*total)) + 8, middle);
        canvas.text(&format!("{total:.1} ms"), at, TEXT, BLACK, HPos::Left)?;
    }
    canvas.line(vec![(LEFT, TOP), (LEFT, FLOOR)], BLACK.stroke_width(1))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::bench_overlap::fixture::{plan, results};
    use crate::host::Host;

    #[test]
    fn both_ways_and_the_exchange_have_their_bars() {
        let (machine, plan) = (Host::look(), plan());
        let results = results(&[(1.0, 0.73)], 0.3, 0.4);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chart.svg");
        draw(&Report::new(&machine, &plan, &results), &path).unwrap();
        let svg = fs::read_to_string(path).unwrap();
        for text in ["1000.0 ms", "730.0 ms", "an exchange alone", "overlap hides 90%", "backward"]
        {
            assert!(svg.contains(text), "{text}: {svg}");
        }
    }
}
