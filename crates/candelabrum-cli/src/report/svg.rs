//! The small parts of the page's pictures: places, paths, colours.

use std::fmt::Write;

use maud::{Markup, html};

/// The number of colours. Further runs have the same colours with dashed lines.
const COLOURS: usize = 8;

/// A picture's size, and the edges of the area between its axes, in units of the SVG.
pub(super) struct Frame {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

impl Frame {
    /// A picture of this height. All have the same width and margins.
    pub(super) const fn new(height: f64) -> Self {
        Self { width: 640.0, height, left: 62.0, right: 626.0, top: 10.0, bottom: height - 40.0 }
    }

    /// The place of a share of the width, and of a share of the height from below.
    pub(super) fn place(&self, across: f64, up: f64) -> (f64, f64) {
        let Self { left, right, top, bottom, .. } = self;
        (left + across * (right - left), bottom - up * (bottom - top))
    }

    pub(super) fn view_box(&self) -> String {
        format!("0 0 {} {}", self.width, self.height)
    }
}

/// The classes by which the style sheet gives a run its colour and its dashes.
pub(super) fn classes(run: usize) -> String {
    format!("c{} d{}", run % COLOURS, (run / COLOURS).min(3))
}

/// A small line in a run's colour.
pub(super) fn chip(run: usize) -> Markup {
    html! {
        svg.chip viewBox="0 0 18 8" aria-hidden="true" {
            path.(classes(run)) d="M1 4H17" {}
        }
    }
}

/// A path through points, which is interrupted where one has no place.
pub(super) fn path(points: impl IntoIterator<Item = Option<(f64, f64)>>) -> String {
    let mut text = String::new();
    let mut length = 0_usize;
    for point in points.into_iter().chain([None]) {
        match point {
            Some((x, y)) => {
                // After the first point of a path, further ones are lines.
                let before = if length == 0 { "M" } else { " " };
                // Writing to a string cannot fail.
                let _written = write!(text, "{before}{x:.1} {y:.1}");
                length += 1;
            }
            None => {
                // A point alone is a dot.
                text += if length == 1 { "h0" } else { "" };
                length = 0;
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_interrupted_at_gaps_and_keeps_points_alone() {
        let point = |x: i32| Some((f64::from(x), 0.25));
        assert_eq!(path([point(1), point(2), None, point(3)]), "M1.0 0.2 2.0 0.2M3.0 0.2h0");
        assert_eq!(path([None, None]), "");
    }
}
