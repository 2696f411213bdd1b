//! Bars beside each other, with whiskers and figures.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::canvas::{Canvas, GREY, text_width};

/// The thickness of a bar.
const BAR: i32 = 13;
const TEXT: i32 = 13;

/// A bar to draw.
pub(crate) struct Bar {
    pub(crate) middle: i32,
    pub(crate) colour: RGBColor,
    pub(crate) length: f64,
    /// The ends of the whisker.
    pub(crate) whisker: Option<(f64, f64)>,
    pub(crate) figure: String,
}

/// Draws bars to the right of `left`, with a scale that leaves space for their figures.
pub(crate) fn draw(canvas: &Canvas<'_>, left: i32, width: i32, bars: &[Bar]) -> Result<()> {
    let reach = |bar: &Bar| bar.whisker.map_or(bar.length, |(_, to)| to.max(bar.length));
    let scale = bars
        .iter()
        .filter(|bar| reach(bar) > 0.0)
        .map(|bar| f64::from(width - 10 - text_width(&bar.figure, TEXT)) / reach(bar))
        .fold(f64::INFINITY, f64::min);
    let x = |value: f64| {
        if value > 0.0 { left + (value * scale).round() as i32 } else { left }
    };
    for bar in bars {
        let (upper, lower) = (bar.middle - BAR / 2, bar.middle + BAR / 2);
        canvas.rectangle([(left, upper), (x(bar.length), lower)], bar.colour.filled())?;
        if let Some((from, to)) = bar.whisker {
            let (from, to, middle) = (x(from), x(to), bar.middle);
            canvas.line(vec![(from, middle), (to, middle)], BLACK.stroke_width(1))?;
            for end in [from, to] {
                let ends = vec![(end, middle - 4), (end, middle + 4)];
                canvas.line(ends, BLACK.stroke_width(1))?;
            }
        }
        let colour = if bar.length > 0.0 { BLACK } else { GREY };
        let at = (x(reach(bar)) + 8, bar.middle);
        canvas.text(&bar.figure, at, TEXT, colour, HPos::Left)?;
    }
    Ok(())
}
