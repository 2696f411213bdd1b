//! A picture: bands of charts, all in one style. plotters draws the charts.

use std::f64::consts::TAU;

use anyhow::Result;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{BoldPoints, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::figures::{Spread, short};

/// The whole picture. Its title and texts are lines.
pub(crate) struct Picture {
    pub(crate) title: String,
    pub(crate) subtitle: String,
    pub(crate) bands: Vec<Band>,
    pub(crate) notes: Vec<String>,
}

/// Charts side by side, with their common key.
pub(crate) struct Band {
    pub(crate) title: String,
    pub(crate) key: Vec<(Look, String)>,
    pub(crate) charts: Vec<Chart>,
}

/// Bars, or lines, with their axes.
pub(crate) struct Chart {
    title: String,
    /// Width and height between the axes, in pixels.
    size: (i32, i32),
    x: Axis,
    y: Axis,
    bars: Vec<Bar>,
    lines: Vec<Line>,
}

/// A horizontal bar of pieces one after the other.
pub(crate) struct Bar {
    pub(crate) name: String,
    /// The text of a piece is shown where it has room.
    pub(crate) pieces: Vec<(Look, f64, String)>,
    /// The whisker.
    pub(crate) spread: Option<Spread>,
    /// The text behind the bar.
    pub(crate) figure: String,
}

/// A numeric axis with chosen ticks.
pub(crate) struct Axis {
    pub(crate) name: String,
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) ticks: Vec<(f64, String)>,
}

/// A line through points, from left to right.
pub(crate) struct Line {
    pub(crate) look: Look,
    pub(crate) points: Vec<(f64, Spread)>,
}

/// How something is drawn, distinguishable with and without colour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Look {
    /// A bar, by its place among [`LOOKS`].
    Bar(usize),
    /// A line, by its place among [`LOOKS`].
    Line(usize),
    /// A limit to which others are compared: a grey line without marks.
    Limit,
    /// The space between two pieces of a bar.
    Gap,
}

/// A line's colour, the lengths of its dashes and gaps, and its mark: the number of corners, the
/// corners from one to the next one drawn, and the turn of the first one.
type Style = (RGBColor, (i32, i32), (i32, i32, f64));

/// Okabe and Ito's colours, which colour-blind readers can distinguish, and a light grey. Neighbours
/// differ in lightness too.
const LOOKS: [Style; 8] = [
    (RGBColor(0, 114, 178), (i32::MAX, 0), (8, 1, 0.0625)),
    (RGBColor(230, 159, 0), (8, 4), (4, 1, 0.125)),
    (RGBColor(0, 158, 115), (2, 3), (4, 1, 0.0)),
    (RGBColor(204, 121, 167), (10, 6), (3, 1, 0.0)),
    (RGBColor(86, 180, 233), (14, 4), (3, 1, 0.5)),
    (RGBColor(213, 94, 0), (5, 2), (5, 2, 0.0)),
    (RGBColor(240, 228, 66), (20, 6), (6, 1, 0.0)),
    (RGBColor(200, 200, 200), (4, 8), (8, 3, 0.0)),
];

const GREY: RGBColor = RGBColor(90, 90, 90);
const LIGHT: RGBColor = RGBColor(222, 222, 222);

/// The sizes of the title, of usual text, and of text in a piece of a bar.
const TITLE: i32 = 19;
const TEXT: i32 = 13;
const LABEL: i32 = 11;

const MARGIN: i32 = 24;
const HEADING: i32 = 30;
const LINE: i32 = 21;
/// The height of an axis with its labels and its name.
const AXIS: i32 = 44;
/// The width of a key.
const KEY: i32 = 800;
/// The width of the sample before a name in a key.
const SAMPLE: i32 = 46;

/// The distances to the right and down from the upper left corner.
type Place = (i32, i32);

type Sheet<'a> = DrawingArea<SVGBackend<'a>, Shift>;

impl Picture {
    pub(crate) fn svg(&self) -> Result<String> {
        let (wide, heights): (Vec<_>, Vec<_>) = self.bands.iter().map(Band::size).unzip();
        let texts = widest(self.notes.iter().chain([&self.subtitle]));
        let texts = texts.max(text_width(&self.title, TITLE));
        let width = wide.into_iter().fold(texts, i32::max) + 2 * MARGIN;
        let lines = HEADING + LINE * (1 + self.notes.len() as i32);
        let height = lines + heights.iter().sum::<i32>() + 2 * MARGIN;
        let mut svg = String::new();
        let size = (width as u32, height as u32);
        let sheet = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        sheet.fill(&WHITE)?;
        text(&sheet, &self.title, (MARGIN, MARGIN), TITLE, BLACK)?;
        text(&sheet, &self.subtitle, (MARGIN, MARGIN + HEADING), TEXT, GREY)?;
        let mut top = MARGIN + HEADING + LINE;
        for (band, height) in self.bands.iter().zip(heights) {
            let ends = vec![(MARGIN, top), (width - MARGIN, top)];
            sheet.draw(&PathElement::new(ends, LIGHT))?;
            band.draw(&sheet, top)?;
            top += height;
        }
        for (note, place) in self.notes.iter().zip(0..) {
            text(&sheet, note, (MARGIN, top + LINE * place + LINE / 2), TEXT, GREY)?;
        }
        sheet.present()?;
        drop(sheet);
        Ok(svg)
    }
}

impl Band {
    /// The number of columns of the key, and its height.
    fn key_size(&self) -> (usize, i32) {
        let widest = SAMPLE + widest(self.key.iter().map(|(_, name)| name));
        let columns = (KEY / widest).max(1) as usize;
        (columns, LINE * self.key.len().div_ceil(columns) as i32)
    }

    fn size(&self) -> (i32, i32) {
        let (wide, heights): (Vec<i32>, Vec<i32>) = self.charts.iter().map(Chart::size).unzip();
        let key = if self.key.is_empty() { 0 } else { KEY };
        let height = HEADING + self.key_size().1 + MARGIN / 2;
        (wide.iter().sum::<i32>().max(key), height + heights.into_iter().max().unwrap_or(0))
    }

    fn draw(&self, sheet: &Sheet<'_>, top: i32) -> Result<()> {
        text(sheet, &self.title, (MARGIN, top + HEADING / 2), 16, BLACK)?;
        let (columns, height) = self.key_size();
        for (place, (look, name)) in self.key.iter().enumerate() {
            let x = MARGIN + KEY * (place % columns) as i32 / columns as i32;
            let y = top + HEADING + LINE * (place / columns) as i32 + LINE / 2;
            let ends = [(x + 6, y), (x + SAMPLE - 14, y)];
            if let Look::Bar(_) = look {
                look.draw_piece(sheet, ends, "")?;
            } else {
                look.draw_line(sheet, &ends)?;
            }
            text(sheet, name, (x + SAMPLE, y), TEXT, BLACK)?;
        }
        let mut left = MARGIN;
        for chart in &self.charts {
            chart.draw(sheet, (left, top + HEADING + height))?;
            left += chart.size().0;
        }
        Ok(())
    }
}

impl Chart {
    pub(crate) fn lines(title: String, x: Axis, y: Axis, lines: Vec<Line>) -> Self {
        Self { title, size: (470, 300), x, y, bars: Vec::new(), lines }
    }

    /// Bars one below the other, with their names at the left. Without a unit there is no axis below.
    pub(crate) fn bars(title: &str, width: i32, unit: &str, bars: Vec<Bar>) -> Self {
        let count = bars.len() as f64;
        let names = bars.iter().enumerate().filter(|(_, bar)| !bar.name.is_empty());
        let ticks = names.map(|(place, bar)| (place as f64 + 0.5, bar.name.clone())).collect();
        let mut x = Axis::linear(unit, bars.iter().map(Bar::reach).fold(0.0, f64::max));
        x.ticks.retain(|_| !x.name.is_empty());
        let y = Axis { name: String::new(), from: count, to: 0.0, ticks };
        let size = (width, LINE * bars.len() as i32);
        Self { title: title.into(), size, x, y, bars, lines: Vec::new() }
    }

    /// Leaves the names of bars to the chart at the left.
    pub(crate) fn hide_names(&mut self) {
        self.y.ticks.clear();
    }

    /// What stands around the area between the axes: the pixels at its left, its right and below.
    fn around(&self) -> (i32, i32, i32) {
        let name = if self.y.name.is_empty() { 12 } else { 36 };
        let names = widest(self.y.ticks.iter().map(|(_, label)| label));
        let figures = widest(self.bars.iter().map(|bar| &bar.figure));
        (name + names, figures + 30, if self.x.ticks.is_empty() { 0 } else { AXIS })
    }

    fn size(&self) -> (i32, i32) {
        let ((left, right, below), (width, height)) = (self.around(), self.size);
        let width = width.max(text_width(&self.title, 14) - right);
        (left + width + right, HEADING + height + below)
    }

    fn draw(&self, sheet: &Sheet<'_>, (x, y): Place) -> Result<()> {
        let ((width, height), (wide, high)) = (self.size(), self.size);
        let (left, right, below) = self.around();
        text(sheet, &self.title, (x + left, y + HEADING / 2), 14, BLACK)?;
        let place = (x, y + HEADING);
        let area = sheet.clone().shrink(place, (width as u32, (height - HEADING) as u32));
        let scale = |axis: &Axis, pixels| {
            let ticks = axis.ticks.iter().map(|(at, _)| axis.pixel(*at, pixels)).collect();
            (0..pixels).with_key_points(ticks)
        };
        let mut chart = ChartBuilder::on(&area)
            .margin_right(right)
            .set_label_area_size(LabelAreaPosition::Left, left)
            .set_label_area_size(LabelAreaPosition::Bottom, below)
            .build_cartesian_2d(scale(&self.x, wide), scale(&self.y, high))?;
        let mut mesh = chart.configure_mesh();
        if self.lines.is_empty() {
            mesh.disable_y_mesh();
        }
        mesh.bold_line_style(LIGHT)
            .label_style(("sans-serif", TEXT))
            .set_all_tick_mark_size(4)
            .x_desc(&self.x.name)
            .y_desc(&self.y.name)
            .x_label_formatter(&|at| self.x.label(*at, wide))
            .y_label_formatter(&|at| self.y.label(*at, high))
            .draw()?;
        let at = |x: f64, y: f64| {
            chart.plotting_area().map_coordinate(&(self.x.pixel(x, wide), self.y.pixel(y, high)))
        };
        for (place, bar) in self.bars.iter().enumerate() {
            bar.draw(sheet, &|x| at(x, place as f64 + 0.5))?;
        }
        for Line { look, points } in &self.lines {
            for (x, y) in points {
                let ends = vec![at(*x, y.min), at(*x, y.max)];
                sheet.draw(&PathElement::new(ends, look.style().0))?;
            }
            let medians: Vec<Place> = points.iter().map(|(x, y)| at(*x, y.median)).collect();
            look.draw_line(sheet, &medians)?;
        }
        Ok(())
    }
}

impl Look {
    fn style(self) -> Style {
        match self {
            Self::Bar(place) | Self::Line(place) => LOOKS[place % LOOKS.len()],
            Self::Limit | Self::Gap => (GREY, (6, 4), (0, 0, 0.0)),
        }
    }

    /// A line through points with a mark at each.
    fn draw_line(self, sheet: &Sheet<'_>, points: &[Place]) -> Result<()> {
        let (colour, (dash, gap), (corners, step, turn)) = self.style();
        let line = points.to_vec();
        sheet.draw(&DashedPathElement::new(line, dash, gap, colour.stroke_width(2)))?;
        for (x, y) in points {
            let corner = |place: i32| {
                let part = f64::from(place * step) / f64::from(corners);
                let (sin, cos) = (TAU * (turn + part)).sin_cos();
                (x + (5.5 * sin).round() as i32, y - (5.5 * cos).round() as i32)
            };
            let mark: Vec<Place> = (0..corners).map(corner).collect();
            sheet.draw(&Polygon::new(mark, colour.filled()))?;
        }
        Ok(())
    }

    /// A piece of a bar between two ends, with its outline and a text if there is room for them.
    fn draw_piece(self, sheet: &Sheet<'_>, [left, right]: [Place; 2], label: &str) -> Result<()> {
        let wide = right.0 - left.0;
        let corners = [(left.0, left.1 - 7), (left.0 + wide.max(1), left.1 + 8)];
        sheet.draw(&Rectangle::new(corners, self.style().0.filled()))?;
        if wide > 3 {
            sheet.draw(&Rectangle::new(corners, BLACK))?;
        }
        if text_width(label, LABEL) + 4 < wide {
            text(sheet, label, (left.0 + 3, left.1), LABEL, BLACK)?;
        }
        Ok(())
    }
}

impl Bar {
    /// A bar of one piece.
    pub(crate) fn plain(name: impl Into<String>, look: Look, length: f64, figure: String) -> Self {
        let pieces = vec![(look, length, String::new())];
        Self { name: name.into(), pieces, spread: None, figure }
    }

    /// The heading of the bars below it.
    pub(crate) fn heading(title: String) -> Self {
        Self::plain("", Look::Gap, 0.0, title)
    }

    /// The end of its last piece or of its whisker.
    fn reach(&self) -> f64 {
        let length: f64 = self.pieces.iter().map(|(_, length, _)| length).sum();
        self.spread.map_or(length, |spread| spread.max.max(length))
    }

    /// `at` is the place of a length on the axis, at half the bar's height.
    fn draw(&self, sheet: &Sheet<'_>, at: &dyn Fn(f64) -> Place) -> Result<()> {
        let mut from = 0.0;
        for (look, length, label) in &self.pieces {
            if *look != Look::Gap && *length > 0.0 {
                look.draw_piece(sheet, [at(from), at(from + length)], label)?;
            }
            from += length;
        }
        if let Some(spread) = self.spread {
            let ((low, y), (high, _)) = (at(spread.min), at(spread.max));
            let cap = |x| [(x, y), (x, y - 4), (x, y + 4), (x, y)];
            sheet.draw(&PathElement::new([cap(low), cap(high)].concat(), BLACK))?;
        }
        let (x, y) = at(self.reach());
        let colour = if self.reach() > 0.0 { BLACK } else { GREY };
        text(sheet, &self.figure, (x + 8, y), TEXT, colour)
    }
}

impl Axis {
    /// From 0 to a little more than `most`, with round ticks.
    pub(crate) fn linear(name: &str, most: f64) -> Self {
        let to = 1.04 * most.max(1e-9);
        let round = RangedCoordf64::from(0.0..to).key_points(BoldPoints(10));
        let label =
            |at: f64| if at < 1000.0 { ((at * 1e6).round() / 1e6).to_string() } else { short(at) };
        let ticks = round.into_iter().map(|at| (at, label(at))).collect();
        Self { name: name.into(), from: 0.0, to, ticks }
    }

    /// Over whole powers of ten, whose exponents are the places on the axis. `units` has the exponent
    /// of the first unit's power, and units that are a thousand times as large each.
    pub(crate) fn decades(name: &str, values: Vec<f64>, units: (i32, [&str; 4])) -> Self {
        let logs: Vec<f64> = values.into_iter().map(f64::log10).filter(|v| v.is_finite()).collect();
        let from = logs.iter().copied().fold(f64::INFINITY, f64::min).floor().min(1e3);
        let to = logs.iter().copied().fold(from + 1.0, f64::max).ceil();
        let tick = |power: i32| {
            let unit = (power - units.0).div_euclid(3).clamp(0, 3);
            let count = 10_f64.powi(power - units.0 - 3 * unit);
            (f64::from(power), format!("{count} {}", units.1[unit as usize]))
        };
        let ticks = (from as i32..=to as i32).map(tick).collect();
        Self { name: name.into(), from, to, ticks }
    }

    /// The place of a value on an axis of so many pixels.
    fn pixel(&self, value: f64, pixels: i32) -> i32 {
        ((value - self.from) / (self.to - self.from) * f64::from(pixels)).round() as i32
    }

    /// The label of the tick at a pixel.
    fn label(&self, pixel: i32, pixels: i32) -> String {
        let tick = self.ticks.iter().find(|(at, _)| self.pixel(*at, pixels) == pixel);
        tick.map_or_else(String::new, |(_, label)| label.clone())
    }
}

/// A line of text that begins at a place, at half its height.
fn text(sheet: &Sheet<'_>, text: &str, at: Place, size: i32, colour: RGBColor) -> Result<()> {
    let style = ("sans-serif", size).into_font().color(&colour);
    let style = style.pos(Pos::new(HPos::Left, VPos::Center));
    Ok(sheet.draw(&Text::new(text, at, style))?)
}

/// The approximate width of a text. Sans-serif fonts differ, and this estimate is rather too wide.
fn text_width(text: &str, size: i32) -> i32 {
    (text.chars().count() as f64 * f64::from(size) * 0.56).ceil() as i32
}

/// The width of the longest one of usual texts.
fn widest<'a>(texts: impl Iterator<Item = &'a String>) -> i32 {
    texts.map(|text| text_width(text, TEXT)).max().unwrap_or(0)
}
