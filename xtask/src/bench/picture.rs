//! A picture: bands of charts, all in one style, as an SVG file.

use candelabrum_plot::{Axis, Frame, Grid, Scale, path};
use maud::{Markup, html};

use super::figures::Spread;

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

/// Bars, or lines, with their named axes.
pub(crate) struct Chart {
    title: String,
    /// Width and height between the axes, in pixels.
    size: [f64; 2],
    x: (String, Axis),
    y: (String, Axis),
    bars: Vec<Bar>,
    standing: Vec<StandingBar>,
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

/// A bar that stands on the horizontal axis, as high as a median.
pub(crate) struct StandingBar {
    pub(crate) look: Look,
    /// Its left and its right end on the horizontal axis.
    pub(crate) ends: [f64; 2],
    pub(crate) spread: Spread,
    /// The text above the bar.
    pub(crate) figure: String,
    /// The text on the bar, or above the figure where the bar has no room.
    pub(crate) label: String,
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

/// Colours, dashes of lines and marks of points. The colours are Okabe and Ito's, which colour-blind
/// readers can distinguish, and a light grey. Neighbours differ in lightness too.
const LOOKS: [[&str; 3]; 8] = [
    ["#0072b2", "none", "M-2 5L-5 2V-2L-2-5H2L5-2V2L2 5z"],
    ["#e69f00", "8 4", "M-4-4H4V4H-4z"],
    ["#009e73", "2 3", "M0-6L6 0L0 6L-6 0z"],
    ["#cc79a7", "10 6", "M0-6L5 3H-5z"],
    ["#56b4e9", "14 4", "M0 6L5-3H-5z"],
    ["#d55e00", "5 2", "M0-6L3 5L-5-2H5L-3 5z"],
    ["#f0e442", "20 6", "M0-6L5-3V3L0 6L-5 3V-3z"],
    ["#c8c8c8", "4 8", "M-1-6H1V-1H6V1H1V6H-1V1H-6V-1H-1z"],
];

const STYLE: &str = "text { font: 12px sans-serif } .title { font-size: 18px } .band { font-size: 15px } \
    .chart { font-size: 13px } .label { font-size: 10px } .soft { fill: #5a5a5a } \
    .x, .name { text-anchor: middle } .y { text-anchor: end } .grid path, .rule { stroke: #dedede } \
    .plate { fill: #fff } .frame, .whisker { stroke: #000; fill: none } .line { stroke-width: 2; fill: none }";

const MARGIN: f64 = 24.0;
const HEADING: f64 = 30.0;
const LINE: f64 = 21.0;
/// The height of an axis with its labels and its name.
const AXIS: f64 = 44.0;
/// The width of a key.
const KEY: f64 = 800.0;
/// The width of the sample before a name in a key.
const SAMPLE: f64 = 46.0;

/// The distances to the right and down from the upper left corner.
type Place = (f64, f64);

impl Picture {
    pub(crate) fn svg(&self) -> String {
        let (wide, heights): (Vec<_>, Vec<_>) = self.bands.iter().map(Band::size).unzip();
        let texts = widest(self.notes.iter().chain([&self.subtitle]));
        let texts = texts.max(1.5 * text_width(&self.title));
        let width = wide.into_iter().fold(texts, f64::max) + 2.0 * MARGIN;
        let tops = starts(MARGIN + HEADING + LINE, heights);
        let below = tops[self.bands.len()];
        let height = below + LINE * self.notes.len() as f64 + MARGIN;
        let svg = html! {
            svg xmlns="http://www.w3.org/2000/svg" width=(width) height=(height)
                viewBox=(format!("0 0 {width} {height}")) {
                style { (STYLE) }
                rect width="100%" height="100%" fill="#fff" {}
                (text("title", (MARGIN, MARGIN), &self.title))
                (text("soft", (MARGIN, MARGIN + HEADING), &self.subtitle))
                @for (band, top) in self.bands.iter().zip(tops) {
                    path.rule d=(format!("M{MARGIN} {top}H{}", width - MARGIN)) {}
                    (band.draw(top))
                }
                @for (i, note) in self.notes.iter().enumerate() {
                    (text("soft", (MARGIN, below + LINE * (i as f64 + 0.5)), note))
                }
            }
        };
        svg.into_string() + "\n"
    }
}

impl Band {
    /// The number of columns of the key, and its height.
    fn key_size(&self) -> (usize, f64) {
        let widest = SAMPLE + widest(self.key.iter().map(|(_, name)| name));
        let columns = (KEY / widest).max(1.0) as usize;
        (columns, LINE * self.key.len().div_ceil(columns) as f64)
    }

    fn size(&self) -> (f64, f64) {
        let frames: Vec<Frame> = self.charts.iter().map(Chart::frame).collect();
        let key = if self.key.is_empty() { 0.0 } else { KEY };
        let height = HEADING + self.key_size().1 + MARGIN / 2.0;
        let highest = frames.iter().map(|frame| frame.height).fold(0.0, f64::max);
        (frames.iter().map(|frame| frame.width).sum::<f64>().max(key), height + highest)
    }

    fn draw(&self, top: f64) -> Markup {
        let (columns, height) = self.key_size();
        let place = |i: usize| {
            let (column, line) = ((i % columns) as f64, (i / columns) as f64);
            (MARGIN + KEY * column / columns as f64, top + HEADING + LINE * (line + 0.5))
        };
        let lefts = starts(MARGIN, self.charts.iter().map(|chart| chart.frame().width));
        html! {
            (text("band", (MARGIN, top + HEADING / 2.0), &self.title))
            @for (i, (look, name)) in self.key.iter().enumerate() {
                @let (x, y) = place(i);
                @let ends = [(x + 6.0, y), (x + SAMPLE - 14.0, y)];
                @if let Look::Bar(_) = look { (look.piece(ends, "")) } @else { (look.line(&ends)) }
                (text("", (x + SAMPLE, y), name))
            }
            @for (chart, left) in self.charts.iter().zip(lefts) {
                g transform=(format!("translate({left} {})", top + HEADING + height)) { (chart.draw()) }
            }
        }
    }
}

impl Chart {
    /// Lines over both axes, each with its name.
    pub(crate) fn lines(
        title: String,
        (x_name, x): (&str, Axis),
        (y_name, y): (&str, Axis),
        lines: Vec<Line>,
    ) -> Self {
        let (x, y) = ((x_name.to_owned(), x), (y_name.to_owned(), y));
        Self { title, size: [470.0, 300.0], x, y, bars: Vec::new(), standing: Vec::new(), lines }
    }

    /// Bars side by side over both axes, each with its name.
    pub(crate) fn standing(
        title: String,
        width: f64,
        (x_name, x): (&str, Axis),
        (y_name, y): (&str, Axis),
        standing: Vec<StandingBar>,
    ) -> Self {
        let (x, y) = ((x_name.to_owned(), x), (y_name.to_owned(), y));
        Self { title, size: [width, 300.0], x, y, bars: Vec::new(), standing, lines: Vec::new() }
    }

    /// Bars one below the other, with their names at the left. Without a unit there is no axis below.
    pub(crate) fn bars(title: &str, width: u16, unit: &str, bars: Vec<Bar>) -> Self {
        let names = bars.iter().enumerate().filter(|(_, bar)| !bar.name.is_empty());
        let y = Axis::of_things(bars.len(), names.map(|(i, bar)| (i, bar.name.clone())));
        let y = Axis { low: y.high, high: y.low, ..y };
        let mut x = from_zero(bars.iter().map(Bar::reach).fold(0.0, f64::max));
        x.ticks.retain(|_| !unit.is_empty());
        let size = [f64::from(width), LINE * bars.len() as f64];
        let (x, y) = ((unit.to_owned(), x), (String::new(), y));
        let (standing, lines) = (Vec::new(), Vec::new());
        Self { title: title.into(), size, x, y, bars, standing, lines }
    }

    /// Leaves the names of bars to the chart at the left.
    pub(crate) fn hide_names(&mut self) {
        self.y.1.ticks.clear();
    }

    /// The chart's size, and the area between its axes.
    fn frame(&self) -> Frame {
        let ([width, height], (y_name, y)) = (self.size, &self.y);
        let left = if y_name.is_empty() { 12.0 } else { 36.0 };
        let left = left + widest(y.ticks.iter().map(|(_, label)| label));
        let behind = widest(self.bars.iter().map(|bar| &bar.figure)) + 30.0;
        let right = left + width;
        let below = if self.x.1.ticks.is_empty() { 1.0 } else { AXIS };
        let all = right + behind.max(1.1 * text_width(&self.title) - width);
        let (top, bottom) = (HEADING, HEADING + height);
        Frame { width: all, height: bottom + below, left, right, top, bottom }
    }

    fn draw(&self) -> Markup {
        let (frame, (x_name, x), (y_name, y)) = (self.frame(), &self.x, &self.y);
        let at = |across: f64, up: f64| {
            frame.place(x.place(across).unwrap_or(0.0), y.place(up).unwrap_or(0.0))
        };
        let grid = match (self.lines.is_empty(), self.standing.is_empty()) {
            (true, true) => Grid::Up,
            (true, false) => Grid::Across,
            (false, _) => Grid::Both,
        };
        let middle = frame.place(0.0, 0.5).1;
        html! {
            (text("chart", (frame.left, HEADING / 2.0), &self.title))
            (frame.axes(x, y, x_name, grid))
            path.frame d=(format!("M{} {}V{}", frame.left, frame.top, frame.bottom)) {}
            text.name transform=(format!("translate(12 {middle}) rotate(-90)")) { (y_name) }
            @for (place, bar) in self.bars.iter().enumerate() {
                (bar.draw(|length| at(length, place as f64 + 0.5)))
            }
            @for bar in &self.standing { (bar.draw(at)) }
            @for Line { look, points } in &self.lines {
                @for (x, y) in points {
                    path.line stroke=(look.style()[0]) d=(joined([at(*x, y.min), at(*x, y.max)])) {}
                }
                (look.line(&points.iter().map(|(x, y)| at(*x, y.median)).collect::<Vec<_>>()))
            }
        }
    }
}

impl Look {
    fn style(self) -> [&'static str; 3] {
        match self {
            Self::Bar(place) | Self::Line(place) => LOOKS[place % LOOKS.len()],
            Self::Limit | Self::Gap => ["#5a5a5a", "6 4", ""],
        }
    }

    /// A line through points with a mark at each.
    fn line(self, points: &[Place]) -> Markup {
        let [colour, dashes, mark] = self.style();
        html! {
            path.line stroke=(colour) stroke-dasharray=(dashes) d=(joined(points.iter().copied())) {}
            @if !mark.is_empty() { @for (x, y) in points {
                path fill=(colour) transform=(format!("translate({x:.1} {y:.1})")) d=(mark) {}
            } }
        }
    }

    /// A piece of a bar between two ends, with its outline and a text if there is room for them.
    fn piece(self, [(left, y), (right, _)]: [Place; 2], label: &str) -> Markup {
        let wide = right - left;
        html! {
            rect x=(format!("{left:.1}")) y=(format!("{:.1}", y - 7.0)) height="15"
                width=(format!("{:.1}", wide.max(1.0))) fill=(self.style()[0])
                stroke=[(wide > 3.0).then_some("#000")] {}
            @if 0.85 * text_width(label) + 4.0 < wide { (text("label", (left + 3.0, y), label)) }
        }
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
    fn draw(&self, at: impl Fn(f64) -> Place) -> Markup {
        let froms = starts(0.0, self.pieces.iter().map(|(_, length, _)| *length));
        let (x, y) = at(self.reach());
        html! {
            @for ((look, length, label), from) in self.pieces.iter().zip(froms) {
                @if *look != Look::Gap && *length > 0.0 {
                    (look.piece([at(from), at(from + length)], label))
                }
            }
            @if let Some(Spread { min, max, .. }) = self.spread {
                @let (low, high, cap) = (at(min).0, at(max).0, y - 4.0);
                path.whisker d=(format!("M{low:.1} {cap}v8M{high:.1} {cap}v8M{low:.1} {y}H{high:.1}")) {}
            }
            (text(if self.reach() > 0.0 { "" } else { "soft" }, (x + 8.0, y), &self.figure))
        }
    }
}

impl StandingBar {
    /// `at` is the place of two values on the axes.
    fn draw(&self, at: impl Fn(f64, f64) -> Place) -> Markup {
        let Self { look, ends: [left, right], spread: Spread { median, min, max }, .. } = *self;
        let ((left, top), (right, bottom)) = (at(left, median), at(right, 0.0));
        let (x, low, high) = (left.midpoint(right), at(0.0, min).1, at(0.0, max.max(median)).1);
        let (left, wide, tall) = (left + 1.0, right - left - 2.0, bottom - top);
        // Below the whisker's lower end, where the bar is high enough.
        let label = if bottom - low > LINE { low + LINE / 2.0 } else { high - 1.5 * LINE };
        let centred = |y: f64, words: &str| {
            html! { text.x x=(format!("{x:.1}")) y=(format!("{:.1}", y + 4.0)) { (words) } }
        };
        html! {
            rect x=(format!("{left:.1}")) y=(format!("{top:.1}")) width=(format!("{wide:.1}"))
                height=(format!("{tall:.1}")) fill=(look.style()[0]) stroke="#000" {}
            path.whisker d=(format!("M{:.1} {high:.1}h8M{:.1} {low:.1}h8M{x:.1} {high:.1}V{low:.1}", x - 4.0, x - 4.0)) {}
            (centred(high - LINE / 2.0, &self.figure))
            @if bottom - low > LINE {
                rect.plate x=(format!("{:.1}", x - 17.0)) y=(format!("{:.1}", label - 8.0)) width="34" height="16" rx="3" {}
            }
            (centred(label, &self.label))
        }
    }
}

/// An axis from 0 to a little more than `most`.
pub(crate) fn from_zero(most: f64) -> Axis {
    Axis::exactly(0.0, 1.04 * most.max(1e-9), 10)
}

/// An axis of powers of ten, with these labels.
pub(crate) fn by_powers(values: Vec<f64>, label: fn(f64) -> String) -> Axis {
    Axis::around(values, Scale::Logarithmic, 12).labelled(label)
}

/// A line of text that begins at a place, at half its height.
fn text(class: &str, (x, y): Place, text: &str) -> Markup {
    html! { text.(class) x=(format!("{x:.1}")) y=(format!("{:.1}", y + 4.0)) { (text) } }
}

/// Where things of these sizes begin that stand one after the other, and where the last one ends.
fn starts(first: f64, sizes: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut next = first;
    let ends = sizes.into_iter().map(|size| {
        next += size;
        next
    });
    [first].into_iter().chain(ends).collect()
}

fn joined(points: impl IntoIterator<Item = Place>) -> String {
    path(points.into_iter().map(Some))
}

/// The approximate width of a usual text. Sans-serif fonts differ, and this estimate is rather too wide.
fn text_width(text: &str) -> f64 {
    7.0 * text.chars().count() as f64
}

/// The width of the longest one of usual texts.
fn widest<'a>(texts: impl Iterator<Item = &'a String>) -> f64 {
    texts.map(|text| text_width(text)).fold(0.0, f64::max)
}
