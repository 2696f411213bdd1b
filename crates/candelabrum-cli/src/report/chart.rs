//! A chart of lines: its axes, its lines with what is known about each, and its SVG.

use std::fmt::Write;

use candelabrum_plot::{Axis, Frame, Grid, Scale, number, path};
use maud::{Markup, html};

use super::colour::{chip, classes};

const FRAME: Frame =
    Frame { width: 640.0, height: 290.0, left: 62.0, right: 626.0, top: 10.0, bottom: 250.0 };

/// Lines are marked with dots where they have so few points.
const DOTS: usize = 60;

/// The share of values at each end that may lie outside the picture, if they lie far outside.
const RARE: f64 = 0.01;

/// A chart of lines.
pub(super) struct Chart {
    pub(super) title: String,
    /// The name of the horizontal axis.
    pub(super) x: String,
    /// Whether the vertical axis may be logarithmic, if the values differ much.
    pub(super) may_be_logarithmic: bool,
    pub(super) lines: Vec<Line>,
    /// Whether to name the lines: not on a page about one run.
    pub(super) has_legend: bool,
    /// What the reader should know, besides what the chart finds out itself.
    pub(super) notes: Vec<String>,
}

/// One run's line.
pub(super) struct Line {
    /// The number of the run, which decides the colour.
    pub(super) run: usize,
    pub(super) name: String,
    /// The line, as `(x, y)`. A `y` that is no finite number is a gap.
    pub(super) points: Vec<(f64, f64)>,
    /// The values behind a smoothed line, if it is one.
    pub(super) raw: Vec<(f64, f64)>,
    /// Where values are NaN or infinite.
    pub(super) gaps: Vec<f64>,
    /// Vertical marks, such as where the run went on after a crash, each with its text.
    pub(super) marks: Vec<(f64, String)>,
}

impl Chart {
    /// The chart, with a number that no other chart of the page has.
    pub(super) fn draw(&self, id: usize) -> Markup {
        let (x, y, outside) = self.axes();
        let place = |point: &(f64, f64)| {
            // Values far outside must not make numbers that no browser draws.
            let up = y.place(point.1)?.clamp(-10.0, 10.0);
            Some(FRAME.place(x.place(point.0)?, up))
        };
        let across = |value| x.place(value).map(|across| FRAME.place(across, 0.0).0);
        let bottom = FRAME.bottom;
        let is_logarithmic = y.scale == Scale::Logarithmic;
        let clip = format!("clip{id}");
        html! {
            figure.chart {
                figcaption {
                    (self.title)
                    @if is_logarithmic { span.aside { " (logarithmic axis)" } }
                }
                @if self.has_legend {
                    ul.legend { @for line in &self.lines { li { (chip(line.run)) (line.name) } } }
                }
                svg viewBox=(FRAME.view_box()) role="img" aria-label=(self.title)
                    data-x-name=(self.x) data-left=(FRAME.left) data-right=(FRAME.right) data-low=(x.low)
                    data-high=(x.high) {
                    defs { clipPath id=(clip) {
                        rect x=(FRAME.left - 4.0) y=(FRAME.top - 4.0) width=(FRAME.right - FRAME.left + 8.0)
                            height=(bottom - FRAME.top + 8.0) {}
                    } }
                    (FRAME.axes(&x, &y, &self.x, Grid::Across))
                    g clip-path=(format!("url(#{clip})")) {
                        @for line in &self.lines { @for (at, text) in &line.marks {
                            @if let Some(at) = across(*at) {
                                path.mark.(classes(line.run)) d=(format!("M{at:.1} {}V{bottom}", FRAME.top)) {
                                    title { (line.name) ": " (text) }
                                }
                            }
                        } }
                        @for line in self.lines.iter().filter(|line| !line.raw.is_empty()) {
                            path.raw.(classes(line.run)) d=(path(line.raw.iter().map(place))) {}
                        }
                        @for line in &self.lines { (self.line(line, place)) }
                    }
                    @for line in &self.lines {
                        path.gap.(classes(line.run)) d=(crosses(&line.gaps, across, bottom)) {}
                    }
                    path.cursor {}
                }
                @for note in self.notes.iter().cloned().chain(self.remarks(outside)) {
                    p.note { (note) }
                }
            }
        }
    }

    fn line(&self, line: &Line, place: impl Fn(&(f64, f64)) -> Option<(f64, f64)>) -> Markup {
        let mut seen = [String::new(), String::new()];
        for (x, y) in line.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()) {
            // Writing to a string cannot fail.
            let _written = match x.fract() == 0.0 {
                true => write!(seen[0], "{x} "),
                false => write!(seen[0], "{} ", number(*x)),
            };
            let _written = write!(seen[1], "{} ", number(*y));
        }
        let [xs, ys] = seen.each_ref().map(|text| text.trim_end());
        let dots = if line.points.len() <= DOTS { &line.points[..] } else { &[] };
        html! {
            path.line.(classes(line.run)) d=(path(line.points.iter().map(&place)))
                data-name=(line.name) data-x=(xs) data-y=(ys) {}
            @for (x, y) in dots.iter().filter_map(place) {
                circle.(classes(line.run)) cx=(format!("{x:.1}")) cy=(format!("{y:.1}")) r="2.5" {}
            }
        }
    }

    /// The axes, and the number of values outside.
    fn axes(&self) -> (Axis, Axis, usize) {
        let all = || self.lines.iter().flat_map(|line| line.points.iter().chain(&line.raw));
        let xs = all().map(|point| point.0).chain(self.lines.iter().flat_map(|l| l.gaps.clone()));
        let (first, last) = xs
            .filter(|x| x.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        // All charts of a run begin at 0, except those of a run that was logged late.
        let first = if (0.0..0.2 * last).contains(&first) { 0.0 } else { first };
        let x =
            if first > last { Axis::exactly(0.0, 1.0, 6) } else { Axis::exactly(first, last, 6) };

        let mut ys: Vec<f64> = all().map(|point| point.1).filter(|y| y.is_finite()).collect();
        ys.sort_unstable_by(f64::total_cmp);
        let positive = ys.first().is_some_and(|low| *low > 0.0);
        let far_apart = positive && ys[ys.len() - 1] > 50.0 * ys[0];
        let is_logarithmic = self.may_be_logarithmic && far_apart;
        let scale = if is_logarithmic { Scale::Logarithmic } else { Scale::Linear };
        let usual = if is_logarithmic { &ys[..] } else { without_far_ones(&ys) };
        (x, Axis::around(usual.iter().copied(), scale, 5), ys.len() - usual.len())
    }

    /// What the picture alone does not say.
    fn remarks(&self, outside: usize) -> Vec<String> {
        let mut remarks = Vec::new();
        if outside > 0 {
            remarks.push(format!("{outside} of the values lie far outside and are not shown."));
        }
        if self.lines.iter().any(|line| !line.marks.is_empty()) {
            remarks.push("Dashed vertical lines: the run went on from a checkpoint.".to_owned());
        }
        remarks
    }
}

/// The values without the rare ones that would make all others look the same. They are sorted.
fn without_far_ones(values: &[f64]) -> &[f64] {
    let rare = (values.len() as f64 * RARE) as usize;
    if rare == 0 {
        return values;
    }
    let (low, high) = (values[rare], values[values.len() - 1 - rare]);
    let reach = 3.0 * (high - low);
    if reach <= 0.0 {
        return values;
    }
    let first = values.partition_point(|value| *value < low - reach);
    let last = values.partition_point(|value| *value <= high + reach);
    &values[first..last]
}

/// A cross at the lower edge for each place of a gap.
fn crosses(gaps: &[f64], across: impl Fn(f64) -> Option<f64>, bottom: f64) -> String {
    let (mut text, mut last) = (String::new(), f64::NEG_INFINITY);
    // Crosses at the same place look like one.
    for at in gaps.iter().filter_map(|gap| across(*gap)) {
        if at - last >= 4.0 {
            let y = bottom - 4.0;
            text += &format!("M{:.1} {:.1}l6 6m0 -6l-6 6", at - 3.0, y - 3.0);
            last = at;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>, gaps: Vec<f64>) -> String {
        let name = "<b>&".to_owned();
        let line = Line { run: 9, name, points, raw: Vec::new(), gaps, marks: Vec::new() };
        let (title, x) = ("a \"title\"".to_owned(), "step".to_owned());
        let lines = vec![line];
        let (may_be_logarithmic, has_legend, notes) = (true, false, Vec::new());
        Chart { title, x, may_be_logarithmic, lines, has_legend, notes }.draw(3).into_string()
    }

    #[test]
    fn a_line_keeps_its_values_for_the_cursor_and_its_gaps() {
        let svg = chart(vec![(1.0, 2.0), (2.0, f64::NAN), (3.0, 4.0)], vec![2.0]);
        assert!(svg.contains("data-x=\"1 3\" data-y=\"2 4\""), "{svg}");
        assert!(svg.contains("data-name=\"&lt;b&gt;&amp;\""), "{svg}");
        assert!(svg.contains("aria-label=\"a &quot;title&quot;\""), "{svg}");
        // The first and the last point are dots, and the gap is a cross half-way.
        let middle = f64::midpoint(FRAME.left, FRAME.right) - 3.0;
        assert!(svg.contains(&format!("d=\"M{middle:.1} ")), "{svg}");
        assert_eq!(svg.matches("h0").count(), 2, "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("class=\"line c1 d1\""), "{svg}");
    }

    #[test]
    fn charts_without_values_or_with_extreme_ones_are_drawn() {
        for points in [
            vec![],
            vec![(5.0, f64::NAN)],
            vec![(0.0, 1.0)],
            vec![(u64::MAX as f64, f64::MAX), (0.0, f64::MIN)],
            vec![(f64::INFINITY, 1.0), (1.0, 1e-320)],
        ] {
            let svg = chart(points.clone(), vec![f64::NAN, 1e300]);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{points:?}: {svg}");
        }
    }

    #[test]
    fn a_rare_peak_does_not_flatten_the_rest_and_is_counted() {
        let mut points: Vec<(f64, f64)> =
            (0..400).map(|i| (f64::from(i), 1.0 + f64::from(i % 10))).collect();
        for peak in [40.0, -1e9] {
            points[200].1 = peak;
            let svg = chart(points.clone(), Vec::new());
            assert!(svg.contains("1 of the values lie far outside"), "{svg}");
            assert!(!svg.contains("logarithmic"), "{svg}");
        }
        points[200].1 = 1e9;
        let svg = chart(points, Vec::new());
        assert!(svg.contains("(logarithmic axis)") && !svg.contains("outside"), "{svg}");
    }
}
