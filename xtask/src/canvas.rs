//! A drawing in SVG, in pixels: the few shapes that the charts are made of.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(crate) const GREY: RGBColor = RGBColor(90, 90, 90);
pub(crate) const LIGHT: RGBColor = RGBColor(222, 222, 222);

/// Okabe and Ito's colours, which the colour-blind tell apart.
pub(crate) mod okabe_ito {
    use plotters::style::RGBColor;

    pub(crate) const BLUE: RGBColor = RGBColor(0, 114, 178);
    pub(crate) const ORANGE: RGBColor = RGBColor(230, 159, 0);
    pub(crate) const GREEN: RGBColor = RGBColor(0, 158, 115);
    pub(crate) const PURPLE: RGBColor = RGBColor(204, 121, 167);
}

/// Across and down, from the upper left corner.
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

    /// A line of text whose left end, centre or right end is at half its height at a point.
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

    pub(crate) fn line(&self, points: Vec<Point>, style: ShapeStyle) -> Result<()> {
        Ok(self.0.draw(&PathElement::new(points, style))?)
    }

    pub(crate) fn rectangle(&self, corners: [Point; 2], style: ShapeStyle) -> Result<()> {
        Ok(self.0.draw(&Rectangle::new(corners, style))?)
    }
}
