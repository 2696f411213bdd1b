//! The picture of a benchmark: bands of charts, all in one style. plotters draws the charts.

use std::ops::Range;

use anyhow::Result;
use plotters::coord::ranged1d::{
    BoldPoints, KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter,
};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::figures::{Spread, short};
use super::sample::Row;
use crate::sheet::okabe_ito::{BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION, YELLOW};
use crate::sheet::{Area, GREY, LIGHT, Place, Sheet, TEXT, style, svg, text_width};

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

/// A chart with its title.
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) content: Content,
}

pub(crate) enum Content {
    /// Horizontal bars, one below the other.
    Bars {
        bars: Vec<Bar>,
        /// Whether the bars' names stand at the left.
        with_names: bool,
        /// The name of the axis below, if there is one.
        axis: Option<String>,
    },
    /// Lines through points.
    Lines { x: Axis, y: Axis, lines: Vec<Line> },
}

/// A bar of pieces one after the other, or a name alone that is the heading of those below.
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) pieces: Vec<(Look, f64)>,
    /// The ends of the whisker.
    pub(crate) ends: Option<(f64, f64)>,
    /// The text behind the bar.
    pub(crate) figure: String,
}

/// A numeric axis with chosen ticks.
#[derive(Clone)]
pub(crate) struct Axis {
    pub(crate) name: String,
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) ticks: Vec<(f64, String)>,
}

pub(crate) struct Line {
    pub(crate) look: Look,
    /// From left to right.
    pub(crate) points: Vec<(f64, Spread)>,
}

/// How something is drawn, distinguishable with and without colour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Look {
    /// The colour of a bar, by its place among [`COLOURS`].
    Bar(usize),
    /// A line with its colour, dashes and marks, by its place among [`LINES`].
    Line(usize),
    /// A limit to which others are compared: grey, without marks.
    Limit,
}

/// Neighbours differ in lightness too.
const COLOURS: [RGBColor; 8] =
    [BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, YELLOW, RGBColor(225, 225, 225)];

/// Colour, the lengths of dashes and gaps, and the corners of the mark.
const LINES: [(RGBColor, (i32, i32), &[Place]); 6] = [
    (BLUE, (1, 0), &[(-4, -2), (-2, -4), (2, -4), (4, -2), (4, 2), (2, 4), (-2, 4), (-4, 2)]),
    (VERMILLION, (8, 4), &[(-4, -4), (4, -4), (4, 4), (-4, 4)]),
    (GREEN, (2, 3), &[(0, -6), (6, 0), (0, 6), (-6, 0)]),
    (PURPLE, (10, 6), &[(0, -5), (5, 4), (-5, 4)]),
    (ORANGE, (14, 4), &[(0, 5), (5, -4), (-5, -4)]),
    (
        SKY,
        (5, 2),
        &[
            (-5, -1),
            (-1, -1),
            (-1, -5),
            (1, -5),
            (1, -1),
            (5, -1),
            (5, 1),
            (1, 1),
            (1, 5),
            (-1, 5),
            (-1, 1),
            (-5, 1),
        ],
    ),
];

const MARGIN: i32 = 24;
const TOP: i32 = 76;
const BETWEEN: i32 = 30;
const HEADING: i32 = 30;
const KEY: i32 = 22;
/// The width of the sample before a name in a key, and of the gap after the name.
const SAMPLE: i32 = 46;
const GAP: i32 = 18;
const NOTE: i32 = 20;
const BAR: i32 = 21;
const AXIS: i32 = 44;
const LINES_SIZE: (i32, i32) = (560, 340);
/// The width of bars without their names, by the number of charts side by side.
const BARS_WIDTHS: [i32; 3] = [560, 400, 330];

impl Picture {
    pub(crate) fn svg(&self) -> Result<String> {
        let wide = self.bands.iter().map(Band::width).max().unwrap_or(0);
        let notes = self.notes.iter().chain([&self.subtitle]).map(|note| text_width(note, TEXT));
        let width =
            wide.max(notes.max().unwrap_or(0)).max(text_width(&self.title, 19)) + 2 * MARGIN;
        let heights: Vec<i32> = self.bands.iter().map(|band| band.height(width)).collect();
        let height = TOP + heights.iter().sum::<i32>() + NOTE * self.notes.len() as i32 + MARGIN;
        svg((width, height), |sheet| {
            sheet.text(&self.title, (MARGIN, 26), 19, BLACK, HPos::Left)?;
            sheet.text(&self.subtitle, (MARGIN, 52), TEXT, GREY, HPos::Left)?;
            let mut top = TOP;
            for (band, height) in self.bands.iter().zip(heights) {
                band.draw(sheet, top, width)?;
                top += height;
            }
            for (i, note) in self.notes.iter().enumerate() {
                let at = (MARGIN, top + NOTE * i as i32 + NOTE / 2);
                sheet.text(note, at, TEXT, GREY, HPos::Left)?;
            }
            Ok(())
        })
    }
}

impl Band {
    /// The width and height of each chart, with its title.
    fn sizes(&self) -> impl Iterator<Item = (i32, i32)> {
        let bars = BARS_WIDTHS[self.charts.len().clamp(1, BARS_WIDTHS.len()) - 1];
        self.charts.iter().map(move |chart| chart.size(bars))
    }

    fn width(&self) -> i32 {
        let charts: i32 = self.sizes().map(|size| size.0 + BETWEEN).sum();
        charts - BETWEEN
    }

    fn height(&self, width: i32) -> i32 {
        let charts = self.sizes().map(|size| size.1).max().unwrap_or(0);
        HEADING + self.key_places(width).1 + charts + BETWEEN / 2
    }

    /// The place of each name in the key, below the band's title, and the key's height.
    fn key_places(&self, width: i32) -> (Vec<Place>, i32) {
        let (mut x, mut y, mut places) = (MARGIN, 0, Vec::new());
        for (_, name) in &self.key {
            let wide = SAMPLE + text_width(name, TEXT);
            if x > MARGIN && x + wide > width - MARGIN {
                (x, y) = (MARGIN, y + KEY);
            }
            places.push((x, y + KEY / 2));
            x += wide + GAP;
        }
        (places, if self.key.is_empty() { 0 } else { y + KEY + 4 })
    }

    fn draw(&self, sheet: &Sheet<'_>, top: i32, width: i32) -> Result<()> {
        sheet.line(&[(MARGIN, top), (width - MARGIN, top)], LIGHT)?;
        sheet.text(&self.title, (MARGIN, top + HEADING / 2), 16, BLACK, HPos::Left)?;
        let (places, key_height) = self.key_places(width);
        for ((look, name), (x, y)) in self.key.iter().zip(places) {
            let y = top + HEADING + y;
            look.sample(sheet, (x, y))?;
            sheet.text(name, (x + SAMPLE, y), TEXT, BLACK, HPos::Left)?;
        }
        let mut left = MARGIN;
        for (chart, size) in self.charts.iter().zip(self.sizes()) {
            chart.draw(sheet, (left, top + HEADING + key_height), size)?;
            left += size.0 + BETWEEN;
        }
        Ok(())
    }
}

impl Look {
    fn colour(self) -> RGBColor {
        match self {
            Self::Bar(place) => COLOURS[place % COLOURS.len()],
            Self::Line(place) => LINES[place % LINES.len()].0,
            Self::Limit => GREY,
        }
    }

    /// Its sample in a key.
    fn sample(self, sheet: &Sheet<'_>, (x, y): Place) -> Result<()> {
        let (ends, middle) = ([x, x + SAMPLE - 8], x + SAMPLE / 2 - 4);
        match self {
            Self::Bar(_) => {
                let corners = [(x + 8, y - 7), (x + SAMPLE - 8, y + 7)];
                sheet.rectangle(corners, self.colour().filled())?;
                sheet.rectangle(corners, BLACK)
            }
            Self::Limit => sheet.line(&ends.map(|x| (x, y)), GREY.stroke_width(3)),
            Self::Line(place) => {
                let (colour, (dash, gap), mark) = LINES[place % LINES.len()];
                for start in (ends[0]..ends[1]).step_by((dash + gap) as usize) {
                    let end = (start + dash).min(ends[1]);
                    sheet.line(&[(start, y), (end, y)], colour.stroke_width(2))?;
                }
                let mark = mark.iter().map(|(dx, dy)| (middle + dx, y + dy)).collect();
                sheet.polygon(mark, colour.filled())
            }
        }
    }
}

impl Bar {
    /// A bar of one piece.
    pub(crate) fn plain(name: impl Into<String>, look: Look, length: f64, figure: String) -> Self {
        Self { name: name.into(), pieces: vec![(look, length)], ends: None, figure }
    }

    /// The median of a row's figure with its whisker, or the reason why the row has none.
    pub(crate) fn of(row: &Row, name: impl Into<String>, look: Look, figure: &str) -> Self {
        match row.figures.get(figure) {
            Some(&Spread { median, min, max }) => {
                Self { ends: Some((min, max)), ..Self::plain(name, look, median, short(median)) }
            }
            None if row.failure.is_some() => Self::plain(name, look, 0.0, "failed".into()),
            None => Self::plain(name, look, 0.0, "not reached".into()),
        }
    }

    /// The heading of the bars below it.
    pub(crate) fn heading(name: impl Into<String>) -> Self {
        Self { name: name.into(), pieces: Vec::new(), ends: None, figure: String::new() }
    }

    fn reach(&self) -> f64 {
        let length: f64 = self.pieces.iter().map(|(_, value)| value).sum();
        self.ends.map_or(length, |(_, end)| end.max(length))
    }
}

impl Axis {
    /// From 0 to a little more than `most`, with round ticks.
    pub(crate) fn linear(name: impl Into<String>, most: f64) -> Self {
        let to = 1.04 * most.max(1e-9);
        let round = RangedCoordf64::from(0.0..to).key_points(BoldPoints(7));
        let ticks = round.into_iter().map(|at| (at, short_tick(at))).collect();
        Self { name: name.into(), from: 0.0, to, ticks }
    }

    /// Over whole powers of ten, whose exponents are the places on the axis. `units` has the names of
    /// some powers, lowest first.
    pub(crate) fn decades(
        name: impl Into<String>,
        values: impl Iterator<Item = f64>,
        units: &[(i32, &str)],
    ) -> Self {
        let logs: Vec<f64> = values.map(f64::log10).filter(|log| log.is_finite()).collect();
        let from = logs.iter().copied().fold(f64::INFINITY, f64::min).floor().min(1e3);
        let to = logs.iter().copied().fold(from + 1.0, f64::max).ceil();
        let label = |power: i32| {
            let unit = units.iter().rev().find(|(lowest, _)| *lowest <= power).or(units.first());
            unit.map_or_else(String::new, |(lowest, name)| {
                format!("{} {name}", 10_f64.powi(power - lowest))
            })
        };
        let ticks =
            (from as i32..=to as i32).map(|power| (f64::from(power), label(power))).collect();
        Self { name: name.into(), from, to, ticks }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        let share = (value - self.from) / (self.to - self.from);
        first + (share * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let light = hint.weight().allow_light_points();
        if light { Vec::new() } else { self.ticks.iter().map(|(at, _)| *at).collect() }
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let near = |tick: &&(f64, String)| (tick.0 - value).abs() <= 1e-9 * self.to.abs().max(1.0);
        self.ticks.iter().find(near).map_or_else(String::new, |(_, label)| label.clone())
    }
}

fn short_tick(value: f64) -> String {
    if value >= 1000.0 { short(value) } else { format!("{}", (value * 1e6).round() / 1e6) }
}

impl Chart {
    pub(crate) fn bars(title: impl Into<String>, bars: Vec<Bar>, with_names: bool) -> Self {
        Self { title: title.into(), content: Content::Bars { bars, with_names, axis: None } }
    }

    /// Width and height, with the title, if bars without their names have this width.
    fn size(&self, bars_width: i32) -> (i32, i32) {
        match &self.content {
            Content::Lines { .. } => (LINES_SIZE.0, LINES_SIZE.1 + HEADING),
            Content::Bars { bars, with_names, axis } => {
                let names = if *with_names { names_width(bars) } else { 0 };
                let below = if axis.is_some() { AXIS } else { 0 };
                (names + bars_width, HEADING + BAR * bars.len() as i32 + below)
            }
        }
    }

    fn draw(
        &self,
        sheet: &Sheet<'_>,
        (left, top): Place,
        (width, height): (i32, i32),
    ) -> Result<()> {
        let indent = match &self.content {
            Content::Bars { bars, with_names: true, .. } => names_width(bars),
            _ => 0,
        };
        sheet.text(&self.title, (left + indent, top + HEADING / 2), 14, BLACK, HPos::Left)?;
        let area = sheet.part((left, top + HEADING), (width, height - HEADING));
        match &self.content {
            Content::Bars { bars, axis, .. } => draw_bars(&area, bars, indent, axis.as_deref()),
            Content::Lines { x, y, lines } => draw_lines(&area, x, y, lines),
        }
    }
}

fn names_width(bars: &[Bar]) -> i32 {
    bars.iter().map(|bar| text_width(&bar.name, TEXT)).max().unwrap_or(0) + 12
}

fn draw_bars(area: &Area<'_>, bars: &[Bar], names: i32, axis: Option<&str>) -> Result<()> {
    // The longest bar leaves space for the figure behind it.
    let width = area.dim_in_pixel().0 as i32 - names;
    let room = |bar: &Bar| f64::from((width - 20 - text_width(&bar.figure, TEXT)).max(40));
    let most = bars.iter().map(|bar| bar.reach() * f64::from(width) / room(bar));
    let most = most.fold(1e-9, f64::max);
    let mut scale = Axis { to: most, ..Axis::linear(axis.unwrap_or(""), most) };
    scale.ticks.retain(|_| axis.is_some());
    let count = bars.len() as f64;
    let rows = || (0..).map(|place| count - f64::from(place) - 0.5).zip(bars);
    let named = rows().filter(|(_, bar)| names > 0 && !bar.pieces.is_empty());
    let ticks = named.map(|(y, bar)| (y, bar.name.clone())).collect();
    let places = Axis { name: String::new(), from: 0.0, to: count, ticks };
    let mut chart = ChartBuilder::on(area)
        .set_label_area_size(LabelAreaPosition::Left, names)
        .set_label_area_size(LabelAreaPosition::Bottom, if axis.is_some() { AXIS } else { 0 })
        .build_cartesian_2d(scale.clone(), places)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_y_mesh().bold_line_style(LIGHT).axis_style(BLACK).set_all_tick_mark_size(4);
    mesh.x_label_style(style(TEXT, GREY)).y_label_style(style(TEXT, BLACK)).x_desc(&scale.name);
    mesh.draw()?;
    for (y, bar) in rows() {
        let mut from = 0.0;
        for &(look, value) in &bar.pieces {
            let corners = [(from, y - 0.36), (from + value, y + 0.36)];
            chart.draw_series([Rectangle::new(corners, look.colour().filled())])?;
            if bar.pieces.len() > 1 && value > 0.0 {
                chart.draw_series([Rectangle::new(corners, BLACK)])?;
            }
            from += value;
        }
        if let Some((low, high)) = bar.ends {
            let caps = [low, high].map(|x| vec![(x, y - 0.18), (x, y + 0.18)]);
            let lines = [vec![(low, y), (high, y)]].into_iter().chain(caps);
            chart.draw_series(lines.map(|line| PathElement::new(line, BLACK)))?;
        }
        let (text, colour) = match (bar.pieces.is_empty(), bar.reach() > 0.0) {
            (true, _) => (&bar.name, GREY),
            (_, is_known) => (&bar.figure, if is_known { BLACK } else { GREY }),
        };
        let style = style(TEXT, colour).pos(Pos::new(HPos::Left, VPos::Center));
        let text = Text::new(text.clone(), (8, 0), style);
        chart.draw_series([EmptyElement::at((bar.reach(), y)) + text])?;
    }
    Ok(())
}

fn draw_lines(area: &Area<'_>, x: &Axis, y: &Axis, lines: &[Line]) -> Result<()> {
    let mut chart = ChartBuilder::on(area)
        .set_label_area_size(LabelAreaPosition::Left, 78)
        .set_label_area_size(LabelAreaPosition::Bottom, AXIS)
        .margin_top(6)
        .build_cartesian_2d(x.clone(), y.clone())?;
    chart
        .configure_mesh()
        .bold_line_style(LIGHT)
        .axis_style(BLACK)
        .label_style(style(TEXT, GREY))
        .x_desc(&x.name)
        .y_desc(&y.name)
        .draw()?;
    for line in lines {
        let points: Vec<(f64, f64)> = line.points.iter().map(|(x, s)| (*x, s.median)).collect();
        let Look::Line(place) = line.look else {
            chart.draw_series(DashedLineSeries::new(points, 6, 4, GREY.stroke_width(3)))?;
            continue;
        };
        let (colour, (dash, gap), mark) = LINES[place % LINES.len()];
        let stroke = colour.stroke_width(2);
        // A line without gaps is one dash.
        let dash = if gap == 0 { i32::from(i16::MAX) } else { dash };
        chart.draw_series(DashedLineSeries::new(points.clone(), dash, gap, stroke))?;
        let whisker =
            |(x, s): &(f64, Spread)| PathElement::new(vec![(*x, s.min), (*x, s.max)], colour);
        chart.draw_series(line.points.iter().map(whisker))?;
        let mark = |at| EmptyElement::at(at) + Polygon::new(mark, colour.filled());
        chart.draw_series(points.into_iter().map(mark))?;
    }
    Ok(())
}
