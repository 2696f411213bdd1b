//! Styles by which the lines of a chart can be distinguished, with and without colour.

use anyhow::Result;
use plotters::prelude::*;

use crate::canvas::{Canvas, Point, okabe_ito};

/// A style of a line. Colour, dashes and marker each distinguish it from the other styles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LineStyle {
    pub(crate) colour: RGBColor,
    pub(crate) dashes: &'static [i32],
    marker: Marker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    Disc,
    Square,
    Up,
    Down,
    Diamond,
    Cross,
}

const LINES: [LineStyle; 6] = [
    LineStyle { colour: okabe_ito::BLUE, dashes: &[], marker: Marker::Disc },
    LineStyle { colour: okabe_ito::VERMILLION, dashes: &[8, 4], marker: Marker::Square },
    LineStyle { colour: okabe_ito::GREEN, dashes: &[2, 3], marker: Marker::Diamond },
    LineStyle { colour: okabe_ito::PURPLE, dashes: &[10, 3, 2, 3], marker: Marker::Up },
    LineStyle { colour: okabe_ito::ORANGE, dashes: &[14, 4], marker: Marker::Down },
    LineStyle { colour: okabe_ito::SKY, dashes: &[5, 2, 1, 2, 1, 2], marker: Marker::Cross },
];

impl LineStyle {
    /// The style for this index in the list of everything that could be drawn.
    pub(crate) fn of(place: usize) -> Self {
        LINES[place % LINES.len()]
    }

    /// A point of the line. Points of another kind are hollow.
    pub(crate) fn mark(&self, canvas: &Canvas<'_>, at: Point, hollow: bool) -> Result<()> {
        let (line, fill) = (self.colour, if hollow { WHITE } else { self.colour });
        let around = |offsets: &[Point]| offsets.iter().map(|o| (at.0 + o.0, at.1 + o.1)).collect();
        match self.marker {
            Marker::Disc => canvas.disc(at, 4, fill, line),
            Marker::Square => {
                canvas.polygon(around(&[(-4, -4), (4, -4), (4, 4), (-4, 4)]), fill, line)
            }
            Marker::Up => canvas.polygon(around(&[(0, -5), (5, 4), (-5, 4)]), fill, line),
            Marker::Down => canvas.polygon(around(&[(0, 5), (5, -4), (-5, -4)]), fill, line),
            Marker::Diamond => {
                canvas.polygon(around(&[(0, -6), (6, 0), (0, 6), (-6, 0)]), fill, line)
            }
            Marker::Cross if hollow => {
                canvas.line(around(&[(-4, -4), (4, 4)]), line.stroke_width(2))?;
                canvas.line(around(&[(-4, 4), (4, -4)]), line.stroke_width(2))
            }
            Marker::Cross => {
                canvas.line(around(&[(-4, -4), (4, 4)]), line.stroke_width(4))?;
                canvas.line(around(&[(-4, 4), (4, -4)]), line.stroke_width(4))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_lines_share_no_style() {
        for i in 0..LINES.len() {
            for j in 0..i {
                let (a, b) = (LineStyle::of(i), LineStyle::of(j));
                assert!(a.colour != b.colour && a.dashes != b.dashes && a.marker != b.marker);
            }
        }
    }
}
