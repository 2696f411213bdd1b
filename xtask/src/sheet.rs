//! A white sheet in SVG with the few shapes that pictures draw in pixels, and their colours.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(crate) const GREY: RGBColor = RGBColor(90, 90, 90);
pub(crate) const LIGHT: RGBColor = RGBColor(222, 222, 222);

/// The size of all text except titles.
pub(crate) const TEXT: i32 = 13;

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
pub(crate) type Place = (i32, i32);

/// An area of plotters, in pixels.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub(crate) struct Sheet<'a>(Area<'a>);

/// Draws on a white sheet of this size and returns the SVG text.
pub(crate) fn svg(
    size: (i32, i32),
    paint: impl FnOnce(&Sheet<'_>) -> Result<()>,
) -> Result<String> {
    let mut text = String::new();
    {
        let backend = SVGBackend::with_string(&mut text, (size.0 as u32, size.1 as u32));
        let sheet = Sheet(backend.into_drawing_area());
        sheet.0.fill(&WHITE)?;
        paint(&sheet)?;
        sheet.0.present().map_err(|error| anyhow!("{error}"))?;
    }
    Ok(text)
}

impl<'a> Sheet<'a> {
    /// A part of the sheet, for a chart.
    pub(crate) fn part(&self, at: Place, size: (i32, i32)) -> Area<'a> {
        self.0.clone().shrink(at, (size.0 as u32, size.1 as u32))
    }

    /// A line of text. Its left end, centre or right end is at a point, at half the text's height.
    pub(crate) fn text(
        &self,
        text: &str,
        at: Place,
        size: i32,
        colour: RGBColor,
        anchor: HPos,
    ) -> Result<()> {
        let style = style(size, colour).pos(Pos::new(anchor, VPos::Center));
        Ok(self.0.draw(&Text::new(text, at, style))?)
    }

    pub(crate) fn line(&self, points: &[Place], style: impl Into<ShapeStyle>) -> Result<()> {
        Ok(self.0.draw(&PathElement::new(points, style))?)
    }

    pub(crate) fn rectangle(
        &self,
        corners: [Place; 2],
        style: impl Into<ShapeStyle>,
    ) -> Result<()> {
        Ok(self.0.draw(&Rectangle::new(corners, style))?)
    }

    pub(crate) fn polygon(&self, points: Vec<Place>, style: impl Into<ShapeStyle>) -> Result<()> {
        Ok(self.0.draw(&Polygon::new(points, style))?)
    }
}

/// The style of a text of this size.
pub(crate) fn style(size: i32, colour: RGBColor) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&colour)
}

/// The approximate width of a text. Sans-serif fonts differ, and this estimate is rather too wide.
pub(crate) fn text_width(text: &str, size: i32) -> i32 {
    (text.chars().count() as f64 * f64::from(size) * 0.56).ceil() as i32
}
