//! How strategies and parts are told apart, in colour and without it.

use anyhow::Result;
use plotters::prelude::*;

use crate::bench_scaling::split::Part;
use crate::canvas::{Canvas, Point, okabe_ito};

/// A strategy's line: colour, dashes and marker each tell it from the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LineStyle {
    pub(super) colour: RGBColor,
    pub(super) dashes: &'static [i32],
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
    /// Of the strategy at this place in the program's list, whichever are drawn.
    pub(super) fn of(place: usize) -> Self {
        LINES[place % LINES.len()]
    }

    /// A point of the line; hollow where there are more ranks than cores.
    pub(super) fn mark(&self, canvas: &Canvas<'_>, at: Point, hollow: bool) -> Result<()> {
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

/// Lines across a surface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hatch {
    Plain,
    Rising,
    Falling,
    Crossed,
    Upright,
}

/// Neighbours in a bar differ in lightness or in their hatching.
fn surface(part: Part) -> (RGBColor, Hatch) {
    match part {
        Part::Forward => (okabe_ito::SKY, Hatch::Plain),
        Part::Backward => (okabe_ito::BLUE, Hatch::Plain),
        Part::Compress => (okabe_ito::ORANGE, Hatch::Rising),
        Part::Exposed => (okabe_ito::VERMILLION, Hatch::Crossed),
        Part::Decompress => (okabe_ito::YELLOW, Hatch::Falling),
        Part::Update => (okabe_ito::GREEN, Hatch::Upright),
        Part::Other | Part::Total => (RGBColor(235, 235, 235), Hatch::Plain),
    }
}

/// A piece of a bar, hatched and outlined.
pub(super) fn piece(canvas: &Canvas<'_>, part: Part, corners: [Point; 2]) -> Result<()> {
    let (colour, hatch) = surface(part);
    canvas.rectangle(corners, colour.filled())?;
    for line in hatching(hatch, corners) {
        canvas.line(line.to_vec(), BLACK.stroke_width(1))?;
    }
    canvas.rectangle(corners, BLACK.stroke_width(1))
}

/// The lines of a hatching, cut at the edges.
fn hatching(hatch: Hatch, [(left, top), (right, bottom)]: [Point; 2]) -> Vec<[Point; 2]> {
    const STEP: i32 = 6;
    let step = STEP as usize;
    let rising = || {
        // On each line x + y is the same; all bars share one grid, so pieces do not jump.
        (left + top..right + bottom).filter(|sum| sum % STEP == 0).map(|sum| {
            let (from, to) = (left.max(sum - bottom), right.min(sum - top));
            [(from, sum - from), (to, sum - to)]
        })
    };
    let falling = || {
        (left - bottom..right - top).filter(|difference| difference % STEP == 0).map(|difference| {
            let (from, to) = (left.max(difference + top), right.min(difference + bottom));
            [(from, from - difference), (to, to - difference)]
        })
    };
    match hatch {
        Hatch::Plain => Vec::new(),
        Hatch::Rising => rising().collect(),
        Hatch::Falling => falling().collect(),
        Hatch::Crossed => rising().chain(falling()).collect(),
        Hatch::Upright => {
            (left + 3..right).step_by(step).map(|x| [(x, top), (x, bottom)]).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hatching_stays_inside() {
        let corners = [(10, 20), (33, 41)];
        for hatch in [Hatch::Rising, Hatch::Falling, Hatch::Crossed, Hatch::Upright] {
            let lines = hatching(hatch, corners);
            assert!(lines.len() > 2, "{hatch:?}");
            for (x, y) in lines.into_iter().flatten() {
                assert!((10..=33).contains(&x) && (20..=41).contains(&y), "{hatch:?}: {x}, {y}");
            }
        }
        assert!(hatching(Hatch::Plain, corners).is_empty());
    }

    #[test]
    fn six_strategies_share_no_style() {
        for i in 0..LINES.len() {
            for j in 0..i {
                let (a, b) = (LineStyle::of(i), LineStyle::of(j));
                assert!(a.colour != b.colour && a.dashes != b.dashes && a.marker != b.marker);
            }
        }
    }

    #[test]
    fn parts_beside_each_other_look_different() {
        for pair in Part::ALL.windows(2) {
            assert_ne!(surface(pair[0]), surface(pair[1]));
        }
    }
}
