//! Rows as bars: a band, a chart and a heading for each value of three settings.

use super::figures::short;
use super::picture::{Band, Bar, Chart, Look};
use super::plan::once;
use super::sample::{Row, split_commit};

/// How rows are grouped and named.
pub(crate) struct Grouped<'a> {
    /// The settings of bands, charts and headings. A setting that no row has makes one of all rows.
    pub(crate) settings: [&'a str; 3],
    pub(crate) figure: &'a str,
    /// The comparison behind the figure, and the words after its number.
    pub(crate) ratio: (&'a str, &'a str),
    /// Another figure, in a chart of its own: the largest of all of a band's charts.
    pub(crate) beside: Option<(&'a str, &'a str)>,
    /// The title of a row's band, chart or heading, by its setting.
    pub(crate) title: &'a dyn Fn(&str, &Row) -> String,
    /// The name of a contender, and the place of its colour.
    pub(crate) name: &'a dyn Fn(&str) -> (String, usize),
}

impl Grouped<'_> {
    pub(crate) fn bands(&self, rows: &[Row]) -> Vec<Band> {
        let rows: Vec<&Row> = rows.iter().collect();
        let bands = split(&rows, |row| row.point.get(self.settings[0]));
        bands.iter().map(|rows| self.band(rows)).collect()
    }

    fn band(&self, rows: &[&Row]) -> Band {
        let [band, chart, _] = self.settings;
        let width = if self.beside.is_some() { 190 } else { 400 };
        let mut charts = Vec::new();
        for own in split(rows, |row| row.point.get(chart)) {
            let is_own = |row: &&&Row| row.point.get(chart) == own[0].point.get(chart);
            let bar = |same: &[&Row], look| match same.iter().find(is_own) {
                Some(row) => self.bar(row, look),
                None => Bar::plain("", look, 0.0, String::new()),
            };
            let title = (self.title)(chart, own[0]);
            charts.push(Chart::bars(&title, width, "", self.bars(rows, &bar)));
        }
        if let Some((figure, title)) = self.beside {
            let bar = |same: &[&Row], look| {
                let ends = same.iter().filter_map(|row| Some(row.figures.get(figure)?.max));
                let most = ends.reduce(f64::max);
                Bar::plain("", look, most.unwrap_or(0.0), most.map_or("unknown".into(), short))
            };
            charts.push(Chart::bars(title, width, "", self.bars(rows, &bar)));
        }
        charts.iter_mut().skip(1).for_each(Chart::hide_names);
        Band { title: (self.title)(band, rows[0]), key: Vec::new(), charts }
    }

    /// The median of a row's figure with its whisker and its comparison, or the reason why it has none.
    fn bar(&self, row: &Row, look: Look) -> Bar {
        let Some(&spread) = row.figures.get(self.figure) else {
            let reason = if row.failure.is_some() { "failed" } else { "not reached" };
            return Bar::plain("", look, 0.0, reason.into());
        };
        let ratio = row.ratio(self.ratio.0).filter(|&times| times != 1.0);
        let ratio = ratio.map(|times| format!(" ({times:.2}×{})", self.ratio.1));
        let figure = short(spread.median) + &ratio.unwrap_or_default();
        Bar { spread: Some(spread), ..Bar::plain("", look, spread.median, figure) }
    }

    /// A heading for each value of the third setting, and a bar for each contender below it.
    fn bars(&self, rows: &[&Row], bar: &dyn Fn(&[&Row], Look) -> Bar) -> Vec<Bar> {
        let mut bars = Vec::new();
        for group in split(rows, |row| row.point.get(self.settings[2])) {
            bars.push(Bar::heading((self.title)(self.settings[2], group[0])));
            for same in split(&group, |row| &row.contender) {
                let (own, commit) = split_commit(&same[0].contender);
                let (name, place) = (self.name)(own);
                bars.push(Bar { name: name + commit, ..bar(&same, Look::Bar(place)) });
            }
        }
        bars
    }
}

/// The rows by a property, in the order of its values' first occurrence.
fn split<'a, T: Clone + PartialEq>(
    rows: &[&'a Row],
    property: impl Fn(&'a Row) -> T,
) -> Vec<Vec<&'a Row>> {
    let values: Vec<T> = rows.iter().map(|row| property(row)).collect();
    let of = |value: T| rows.iter().copied().filter(|row| property(row) == value).collect();
    once(&values).into_iter().map(of).collect()
}
