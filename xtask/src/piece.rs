//! Styles by which the parts of a step can be distinguished, with and without colour.

use anyhow::Result;
use plotters::prelude::*;

use crate::canvas::{Canvas, Point, okabe_ito};
use crate::split::Part;

/// The lines across a surface.
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
pub(crate) fn draw(canvas: &Canvas<'_>, part: Part, corners: [Point; 2]) -> Result<()> {
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
        // All points of a line have the same x + y. All bars share one grid, so hatchings are
        // aligned.
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
    fn parts_beside_each_other_look_different() {
        for pair in Part::ALL.windows(2) {
            assert_ne!(surface(pair[0]), surface(pair[1]));
        }
    }
}
