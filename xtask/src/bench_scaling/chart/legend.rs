//! The key to a group of panels: samples with their names, in as many lines as they need.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use crate::canvas::{Canvas, GREY, Point, text_width};
use crate::line_style::LineStyle;
use crate::piece;
use crate::split::Part;

const SIZE: i32 = 13;
const LINE: i32 = 22;
/// The width of the sample before a name, and of the gap after the name.
const SAMPLE: i32 = 46;
const GAP: i32 = 22;

/// The meaning of a name.
#[derive(Clone, Debug)]
pub(super) enum Key {
    Strategy(LineStyle, String),
    Ideal,
    Part(Part),
}

impl Key {
    fn name(&self) -> &str {
        match self {
            Self::Strategy(_, name) => name,
            Self::Ideal => "ideal: fp32 with 1 worker, times workers",
            Self::Part(part) => part.label(),
        }
    }

    fn draw(&self, canvas: &Canvas<'_>, at: Point) -> Result<()> {
        let middle = (at.0 + SAMPLE / 2 - 4, at.1);
        let ends = [at, (at.0 + SAMPLE - 8, at.1)];
        match self {
            Self::Strategy(style, _) => {
                canvas.dashed(&ends, style.dashes, style.colour.stroke_width(2))?;
                style.mark(canvas, middle, false)?;
            }
            Self::Ideal => canvas.line(ends.to_vec(), GREY.stroke_width(3))?,
            Self::Part(part) => {
                let corners = [(at.0 + 8, at.1 - 7), (at.0 + SAMPLE - 8, at.1 + 7)];
                piece::draw(canvas, *part, corners)?;
            }
        }
        canvas.text(self.name(), (at.0 + SAMPLE, at.1), SIZE, BLACK, HPos::Left)
    }
}

/// The position of each key between `left` and `right`, and the height of all keys.
pub(super) fn places(keys: &[Key], left: i32, right: i32) -> (Vec<Point>, i32) {
    let (mut x, mut y) = (left, LINE / 2);
    let mut places = Vec::new();
    for key in keys {
        let width = SAMPLE + text_width(key.name(), SIZE);
        if x > left && x + width > right {
            (x, y) = (left, y + LINE);
        }
        places.push((x, y));
        x += width + GAP;
    }
    (places, y + LINE / 2)
}

pub(super) fn draw(canvas: &Canvas<'_>, keys: &[Key], at: Point, right: i32) -> Result<()> {
    let (places, _) = places(keys, at.0, right);
    keys.iter().zip(places).try_for_each(|(key, (x, y))| key.draw(canvas, (x, at.1 + y)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_legend_that_is_too_wide_takes_another_line() {
        let keys = [Part::Forward, Part::Backward, Part::Compress].map(Key::Part);
        let (wide, one) = places(&keys, 10, 1000);
        assert!(wide.iter().all(|place| place.1 == wide[0].1), "{wide:?}");
        let (narrow, three) = places(&keys, 10, 20);
        assert!(narrow.iter().all(|place| place.0 == 10), "{narrow:?}");
        assert_eq!(three, 3 * one);
    }
}
