//! A curve in the terminal: a chart with dots of braille, and a line of small bars.

use candelabrum_runlog::{Series, SeriesPoint};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis as Edge, Block, Chart, Dataset, GraphType, Paragraph};

use super::axis::ChartAxis;
use crate::number::{mean, number};

/// How a curve is drawn.
#[derive(Clone, Copy)]
pub(super) struct CurveStyle {
    pub(super) colour: Color,
    pub(super) is_logarithmic: bool,
    /// Over which share of the points it is smoothed.
    pub(super) smoothing: f64,
}

/// Draws a curve in an area, below its title.
pub(super) fn draw(
    frame: &mut Frame<'_>,
    area: Rect,
    block: Block<'_>,
    series: &Series,
    look: CurveStyle,
) {
    let inner = block.inner(area);
    // The picture has two dots for each column. Peaks between them must stay.
    let most = usize::from(inner.width) * 4;
    let raw = Series::decimated(series.points(), most);
    let span = series.points().len() as f64 * look.smoothing;
    let is_smoothed = span > 1.0;
    let smooth =
        if is_smoothed { Series::decimated(&series.smoothed(span), most) } else { raw.clone() };

    let ys = raw.iter().map(|point| point.value);
    let most = (usize::from(inner.height) / 3).clamp(1, 6);
    let axis = ChartAxis::around(ys, look.is_logarithmic, most);
    let steps = steps(series.points());
    let [raw, smooth] = [raw, smooth].map(|points| pieces(&points, &axis));

    let data = |piece, style: Style| {
        let line = Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line);
        line.data(piece).style(style)
    };
    let behind = raw
        .iter()
        .filter(|_| is_smoothed)
        .map(|piece| data(piece, Style::new().fg(Color::DarkGray)));
    let front = smooth.iter().map(|piece| data(piece, Style::new().fg(look.colour)));
    let below = if inner.width < 40 { vec![steps[0], steps[1]] } else { middle(steps) };
    let below: Vec<String> = below.into_iter().map(|step| format!("{step:.0}")).collect();
    let chart = Chart::new(behind.chain(front).collect())
        .block(block)
        .legend_position(None)
        .x_axis(Edge::default().bounds(steps).labels(below).style(Style::new().dim()))
        .y_axis(Edge::default().bounds([0.0, 1.0]).labels(labels(&axis)).style(Style::new().dim()));
    frame.render_widget(chart, area);
    if raw.is_empty() {
        frame.render_widget(Paragraph::new(Line::from("no values yet").dim().centered()), inner);
    }
}

/// The range of steps, at least one wide.
fn steps(points: &[SeriesPoint]) -> [f64; 2] {
    let [first, last] = [points.first(), points.last()].map(|p| p.map_or(0.0, |p| p.step as f64));
    // Small beginnings are the beginning of the run.
    let first = if first < 0.2 * last { 0.0 } else { first };
    [first, last.max(first + 1.0)]
}

fn middle([first, last]: [f64; 2]) -> Vec<f64> {
    vec![first, f64::midpoint(first, last), last]
}

/// Labels at equal distances, since a terminal's chart has no others: the ticks of a linear axis, and of a
/// logarithmic one as many values at equal ratios.
fn labels(axis: &ChartAxis) -> Vec<String> {
    if !axis.is_logarithmic {
        return axis.ticks.iter().map(|tick| number(*tick)).collect();
    }
    let (ratio, count) = (axis.high / axis.low, axis.ticks.len().clamp(2, 6));
    let value = |i: usize| axis.low * ratio.powf(i as f64 / (count - 1) as f64);
    let short = |value: f64| format!("{value:.1e}").parse().map_or(value.to_string(), number);
    (0..count).map(|i| short(value(i))).collect()
}

/// The parts of a curve between values that have no place, as steps and shares of the height.
fn pieces(points: &[SeriesPoint], axis: &ChartAxis) -> Vec<Vec<(f64, f64)>> {
    let place = |point: &SeriesPoint| Some((point.step as f64, axis.place(point.value)?));
    let has_place = |point: &SeriesPoint| place(point).is_some();
    let pieces = points.chunk_by(|a, b| has_place(a) == has_place(b));
    pieces
        .map(|piece| piece.iter().filter_map(place).collect())
        .filter(|p: &Vec<_>| !p.is_empty())
        .collect()
}

/// Small bars of the last values, averaged in groups of equal size to fit the width. A bar of full height
/// is the largest value.
pub(super) fn bars(series: &Series, width: usize) -> String {
    let bar = |share: f64| match share {
        share if share.is_finite() && share > 0.0 => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
            [((share * 8.0).ceil() as usize).clamp(1, 8) - 1],
        0.0 => '▁',
        _ => ' ',
    };
    shares(series, width).into_iter().map(bar).collect()
}

/// The means of a series in groups that fit a width, as shares of the largest one. NaN where a group has no
/// number.
pub(super) fn shares(series: &Series, width: usize) -> Vec<f64> {
    let points = series.points();
    let group = points.len().div_ceil(width.max(1)).max(1);
    let mean = |group: &[SeriesPoint]| mean(group.iter().map(|point| point.value));
    let means: Vec<Option<f64>> = points.chunks(group).map(mean).collect();
    let highest = means.iter().flatten().copied().fold(0.0, f64::max);
    means.into_iter().map(|mean| mean.map_or(f64::NAN, |mean| mean / highest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        let mut series = Series::default();
        for (i, &value) in values.iter().enumerate() {
            series.push(SeriesPoint { step: i as u64, time: 0.0, value });
        }
        series
    }

    #[test]
    fn bars_have_the_height_of_their_share() {
        assert_eq!(bars(&series(&[8.0, 4.0, 1.0, 0.0, f64::NAN]), 10), "█▄▁▁ ");
        assert_eq!(bars(&series(&[8.0, 8.0, 4.0, 4.0, 2.0]), 3), "█▄▂");
        assert_eq!(
            (bars(&series(&[]), 10), bars(&series(&[0.0, -1.0]), 10)),
            ("".into(), "  ".into())
        );
    }

    #[test]
    fn a_curve_is_interrupted_where_a_value_has_no_place() {
        let points = series(&[1.0, 2.0, f64::NAN, 0.0, 4.0]);
        let axis = |is_logarithmic| ChartAxis::around([0.0, 1.0, 4.0], is_logarithmic, 3);
        let linear = pieces(points.points(), &axis(false));
        assert_eq!(linear, [vec![(0.0, 0.25), (1.0, 0.5)], vec![(3.0, 0.0), (4.0, 1.0)]]);
        let logarithmic = pieces(points.points(), &axis(true));
        assert_eq!(logarithmic.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    }
}
