//! A drawing in SVG, in pixels, with the few shapes of the charts.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(crate) const GREY: RGBColor = RGBColor(90, 90, 90);
pub(crate) const LIGHT: RGBColor = RGBColor(222, 222, 222);

/// Okabe and Ito's colours, which colour-blind readers can distinguish.
pub(crate) mod okabe_ito {
    use plotters::style::RGBColor;

    pub(crate) const BLUE: RGBColor = RGBColor(0, 114, 178);
    pub(crate) const ORANGE: RGBColor = RGBColor(230, 159, 0);
    pub(crate) const GREEN: RGBColor = RGBColor(0, 158, 115);
    pub(crate) const PURPLE: RGBColor = RGBColor(204, 121, 167);
    pub(crate) const VERMILLION: RGBColor = RGBColor(213, 94, 0);
    pub(crate) const SKY: RGBColor = RGBColor(86, 180, 233);
    pub(crate) const YELLOW: RGBColor = RGBColor(240, 228, 66);
}

/// The distances to the right and down from the upper left corner.
pub(crate) type Point = (i32, i32);

/// A white sheet.
pub(crate) struct Canvas<'a>(DrawingArea<SVGBackend<'a>, Shift>);

impl<'a> Canvas<'a> {
    pub(crate) fn new(path: &'a Path, size: (u32, u32)) -> Result<Self> {
        let area = SVGBackend::new(path, size).into_drawing_area();
        area.fill(&WHITE)?;
        Ok(Self(area))
    }

    /// Writes the file.
    pub(crate) fn finish(&self) -> Result<()> {
        self.0.present().map_err(|error| anyhow!("{error}"))
    }

    /// A line of text. Its left end, centre or right end is at a point, at half the text's height.
    pub(crate) fn text(
        &self,
        text: &str,
        at: Point,
        size: i32,
        colour: RGBColor,
        anchor: HPos,
    ) -> Result<()> {
        let style = ("sans-serif", size).into_font().color(&colour);
        Ok(self.0.draw(&Text::new(text, at, style.pos(Pos::new(anchor, VPos::Center))))?)
    }

    /// A line of text from the bottom to the top, with its centre at the point.
    pub(crate) fn text_upwards(
        &self,
        text: &str,
        at: Point,
        size: i32,
        colour: RGBColor,
    ) -> Result<()> {
        let font = ("sans-serif", size).into_font().transform(FontTransform::Rotate270);
        let style = font.color(&colour).pos(Pos::new(HPos::Center, VPos::Center));
        Ok(self.0.draw(&Text::new(text, at, style))?)
    }

    pub(crate) fn line(&self, points: Vec<Point>, style: ShapeStyle) -> Result<()> {
        Ok(self.0.draw(&PathElement::new(points, style))?)
    }

    /// A dashed line. The pattern contains the lengths of dashes and gaps in turn. An empty pattern
    /// draws a solid line.
    pub(crate) fn dashed(
        &self,
        points: &[Point],
        pattern: &[i32],
        style: ShapeStyle,
    ) -> Result<()> {
        dashes(points, pattern).into_iter().try_for_each(|dash| self.line(dash, style))
    }

    pub(crate) fn rectangle(&self, corners: [Point; 2], style: ShapeStyle) -> Result<()> {
        Ok(self.0.draw(&Rectangle::new(corners, style))?)
    }

    /// A closed shape with an outline.
    pub(crate) fn polygon(
        &self,
        mut points: Vec<Point>,
        fill: RGBColor,
        line: RGBColor,
    ) -> Result<()> {
        self.0.draw(&Polygon::new(points.clone(), fill.filled()))?;
        points.extend(points.first().copied());
        self.line(points, line.stroke_width(2))
    }

    /// A disc with an outline.
    pub(crate) fn disc(
        &self,
        at: Point,
        radius: i32,
        fill: RGBColor,
        line: RGBColor,
    ) -> Result<()> {
        self.0.draw(&Circle::new(at, radius, fill.filled()))?;
        Ok(self.0.draw(&Circle::new(at, radius, line.stroke_width(2)))?)
    }
}

/// The approximate width of a text. Sans-serif fonts differ, and this estimate is rather too wide.
pub(crate) fn text_width(text: &str, size: i32) -> i32 {
    (text.chars().count() as f64 * f64::from(size) * 0.56).ceil() as i32
}

/// Cuts a line into dashes. The pattern continues around corners.
fn dashes(points: &[Point], pattern: &[i32]) -> Vec<Vec<Point>> {
    let pattern: Vec<f64> = pattern.iter().map(|&length| f64::from(length.max(1))).collect();
    if pattern.is_empty() {
        return vec![points.to_vec()];
    }
    let mut dashes = Vec::new();
    let mut turns = (0_usize..).zip(pattern.iter().cycle());
    let (mut turn, mut left) = (0, 0.0);
    for ends in points.windows(2) {
        let (from, to) = (ends[0], ends[1]);
        let (dx, dy) = (f64::from(to.0 - from.0), f64::from(to.1 - from.1));
        let length = dx.hypot(dy);
        let at = |way: f64| {
            let share = way / length;
            (from.0 + (dx * share).round() as i32, from.1 + (dy * share).round() as i32)
        };
        let mut way = 0.0;
        // Every round of a piece, except the last one, moves on by a whole length of the pattern,
        // so rounding cannot cause an endless loop.
        while way < length {
            if left <= 0.0 {
                let Some((next, &stretch)) = turns.next() else { return dashes };
                (turn, left) = (next, stretch);
            }
            let end = way + left;
            if turn % 2 == 0 {
                dashes.push(vec![at(way), at(end.min(length))]);
            }
            left = if end > length { end - length } else { 0.0 };
            way = end;
        }
    }
    dashes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_into_dashes_around_its_corners() {
        let line = [(0, 0), (10, 0), (10, 10)];
        assert_eq!(dashes(&line, &[]), [line.to_vec()]);
        let expected = [
            vec![(0, 0), (6, 0)],
            vec![(8, 0), (10, 0)],
            vec![(10, 0), (10, 4)],
            vec![(10, 6), (10, 10)],
        ];
        assert_eq!(dashes(&line, &[6, 2]), expected);
        assert_eq!(dashes(&[(5, 5), (5, 5)], &[6, 2]), Vec::<Vec<Point>>::new());
    }
}
