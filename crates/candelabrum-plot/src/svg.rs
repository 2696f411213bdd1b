//! The parts of an SVG picture: its size and the area between its axes, the axes, and paths. A style sheet
//! gives their classes colours.

use std::fmt::Write;

use maud::{Markup, html};

use crate::Axis;

/// A picture's size, and the edges of the area between its axes, in units of the SVG.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// From the left to the right edge of the picture.
    pub width: f64,
    /// From the upper to the lower edge of the picture.
    pub height: f64,
    /// The left edge of the area.
    pub left: f64,
    /// The right edge of the area.
    pub right: f64,
    /// The upper edge of the area.
    pub top: f64,
    /// The lower edge of the area.
    pub bottom: f64,
}

/// The directions in which lines at ticks cross the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grid {
    /// At the ticks of the vertical axis.
    Across,
    /// At the ticks of the horizontal axis.
    Up,
    /// At all ticks.
    Both,
}

impl Frame {
    /// The place of a share of the width, and of a share of the height from below.
    pub fn place(&self, across: f64, up: f64) -> (f64, f64) {
        let Self { left, right, top, bottom, .. } = self;
        (left + across * (right - left), bottom - up * (bottom - top))
    }

    /// The attribute of this name.
    pub fn view_box(&self) -> String {
        format!("0 0 {} {}", self.width, self.height)
    }

    /// Both axes: lines or marks at their ticks (class `grid`) with the texts (`x` and `y`), the name of the
    /// horizontal axis (`axis`), and a line along this axis (`frame`).
    pub fn axes(&self, x: &Axis, y: &Axis, name: &str, grid: Grid) -> Markup {
        let Self { height, left, right, top, bottom, .. } = self;
        let across = |value| x.place(value).map(|across| self.place(across, 0.0).0);
        let down = |value| y.place(value).map(|up| self.place(0.0, up).1);
        html! {
            g.grid {
                @for (tick, label) in &y.ticks { @if let Some(at) = down(*tick) {
                    @if grid != Grid::Up { path d=(format!("M{left} {at:.1}H{right}")) {} }
                    text.y x=(left - 8.0) y=(format!("{:.1}", at + 4.0)) { (label) }
                } }
                @for (tick, label) in &x.ticks { @if let Some(at) = across(*tick) {
                    @if grid == Grid::Across { path d=(format!("M{at:.1} {bottom}v5")) {} }
                    @else { path d=(format!("M{at:.1} {top}V{}", bottom + 5.0)) {} }
                    text.x x=(format!("{at:.1}")) y=(bottom + 18.0) { (label) }
                } }
                text.x.axis x=(self.place(0.5, 0.0).0) y=(height - 5.0) { (name) }
            }
            path.frame d=(format!("M{left} {bottom}H{right}")) {}
        }
    }
}

/// A path through points, which is interrupted where one has no place.
pub fn path(points: impl IntoIterator<Item = Option<(f64, f64)>>) -> String {
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
