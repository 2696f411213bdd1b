//! A panel of step times: a bar per strategy, its parts one after the other.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::{Frame, Panel};
use crate::canvas::{Canvas, GREY, LIGHT};
use crate::figures::tick_step;
use crate::piece;
use crate::split::Part;

const LEFT: i32 = 124;
const BAR_STEP: i32 = 32;
const BAR: i32 = 20;
const BOTTOM: i32 = 46;
/// The width of the figure behind the longest bar.
const FIGURE: i32 = 76;

/// The height of a panel with this many strategies.
pub(super) fn height(strategies: usize) -> i32 {
    BAR_STEP * strategies as i32 + BOTTOM
}

pub(super) fn draw(canvas: &Canvas<'_>, panel: &Panel<'_>, frame: Frame) -> Result<()> {
    let Some(&most) = panel.worker_counts().last() else { return Ok(()) };
    let rows: Vec<_> = panel.rows.iter().filter(|row| row.point.workers == most).collect();
    let ms = |seconds: f64| 1000.0 * seconds;
    // Medians of the parts may add up to a little more than the median of the whole.
    let longest = rows.iter().flat_map(|row| {
        let parts: f64 = Part::ALL.iter().map(|&part| row.step_seconds.get(part).median).sum();
        [ms(parts), ms(row.step_seconds.total.median)]
    });
    let longest = longest.fold(1e-3, f64::max);

    let left = frame.left + LEFT;
    let floor = frame.top + BAR_STEP * rows.len() as i32;
    let scale = f64::from(frame.right - left - FIGURE) / longest;
    let x = |value: f64| left + (value * scale).round() as i32;
    let tick = tick_step(longest);
    let digits = if tick < 1.0 { (-tick.log10()).ceil() as usize } else { 0 };
    for number in 0..=(longest / tick).floor() as i32 {
        let value = tick * f64::from(number);
        canvas.line(vec![(x(value), frame.top), (x(value), floor)], LIGHT.stroke_width(1))?;
        let at = (x(value), floor + 14);
        canvas.text(&format!("{value:.digits$}"), at, 13, GREY, HPos::Center)?;
    }
    let middle = (left + frame.right - FIGURE) / 2;
    canvas.text("milliseconds per step", (middle, floor + 34), 13, GREY, HPos::Center)?;

    for (i, row) in rows.iter().enumerate() {
        let middle = frame.top + BAR_STEP * i as i32 + BAR_STEP / 2;
        canvas.text(&row.point.strategy, (left - 10, middle), 13, BLACK, HPos::Right)?;
        let mut so_far = 0.0;
        for part in Part::ALL {
            let from = so_far;
            so_far += ms(row.step_seconds.get(part).median);
            if x(so_far) > x(from) {
                let corners = [(x(from), middle - BAR / 2), (x(so_far), middle + BAR / 2)];
                piece::draw(canvas, part, corners)?;
            }
        }
        let total = ms(row.step_seconds.total.median);
        let at = (x(so_far.max(total)) + 8, middle);
        canvas.text(&format!("{total:.2} ms"), at, 13, BLACK, HPos::Left)?;
    }
    canvas.line(vec![(left, frame.top), (left, floor)], BLACK.stroke_width(1))
}
