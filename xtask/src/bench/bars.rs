//! Rows as bars: a band, a chart and a heading for each value of three settings.

use serde_json::Value;

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
        let bands = split(&rows, self.settings[0]);
        bands.into_iter().map(|rows| self.band(&rows)).collect()
    }

    fn band(&self, rows: &[&Row]) -> Band {
        let [band, chart, _] = self.settings;
        let mut charts = Vec::new();
        for own in split(rows, chart) {
            let has_setting = |row: &&Row| row.point.get(chart) == own[0].point.get(chart);
            let bar =
                |same: &[&Row], name: String, look| match same.iter().copied().find(has_setting) {
                    Some(row) => {
                        let mut bar = Bar::of(row, name, look, self.figure);
                        let ratio = row.ratio(self.ratio.0).filter(|&ratio| ratio != 1.0);
                        let words = self.ratio.1;
                        bar.figure += &ratio
                            .map_or_else(String::new, |times| format!(" ({times:.2}×{words})"));
                        bar
                    }
                    None => Bar::plain(name, look, 0.0, String::new()),
                };
            let title = (self.title)(chart, own[0]);
            charts.push(Chart::bars(title, self.bars(rows, &bar), charts.is_empty()));
        }
        if let Some((figure, title)) = self.beside {
            let bar = |same: &[&Row], name: String, look| {
                let ends = same.iter().filter_map(|row| Some(row.figures.get(figure)?.max));
                let most = ends.reduce(f64::max);
                let text = most.map_or_else(|| "unknown".into(), super::figures::short);
                Bar::plain(name, look, most.unwrap_or(0.0), text)
            };
            charts.push(Chart::bars(title, self.bars(rows, &bar), false));
        }
        Band { title: (self.title)(band, rows[0]), key: Vec::new(), charts }
    }

    /// A heading for each value of the third setting, and a bar for each contender below it.
    fn bars(&self, rows: &[&Row], bar: &dyn Fn(&[&Row], String, Look) -> Bar) -> Vec<Bar> {
        let mut bars = Vec::new();
        for group in split(rows, self.settings[2]) {
            bars.push(Bar::heading((self.title)(self.settings[2], group[0])));
            let contenders: Vec<&str> = group.iter().map(|row| row.contender.as_str()).collect();
            for contender in once(&contenders) {
                let same = group.iter().copied().filter(|row| row.contender == contender);
                let (own, commit) = split_commit(contender);
                let (name, place) = (self.name)(own);
                bars.push(bar(&same.collect::<Vec<_>>(), name + commit, Look::Bar(place)));
            }
        }
        bars
    }
}

/// The rows by the values of a setting, in the order of the values' first occurrence.
fn split<'a>(rows: &[&'a Row], setting: &str) -> Vec<Vec<&'a Row>> {
    let values: Vec<Option<&Value>> = rows.iter().map(|row| row.point.get(setting)).collect();
    let of = |value| rows.iter().copied().filter(|row| row.point.get(setting) == value).collect();
    once(&values).into_iter().map(of).collect()
}
