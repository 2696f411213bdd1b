//! The table of a block in the terminal: a line for each row.

use anyhow::{Context, Result, ensure};
use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table as Sheet};
use indicatif::DecimalBytes;

use super::figures::{Spread, short};
use super::sample::{ResultRow, text};

/// A column: its head, and what a row shows there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableColumn<'a> {
    /// `{unit}` in it is what a batch has.
    head: &'a str,
    content: &'a str,
    /// The setting, figure or comparison.
    pub(crate) name: &'a str,
    scale: f64,
    digits: usize,
}

impl<'a> TableColumn<'a> {
    /// A column of its text, such as `ms/step | median step_seconds 1e3 2`.
    pub(crate) fn read(text: &'a str) -> Result<Self> {
        let (head, rest) = text.split_once(" | ").context("it has no `|`")?;
        let mut words = rest.split(' ');
        let (content, name) = words.next().zip(words.next()).context("it has no name")?;
        let scale = words.next().map_or(Ok(1.0), str::parse).context("its scale")?;
        let digits = words.next().map_or(Ok(0), str::parse).context("its digits")?;
        let contents =
            ["setting", "bytes", "spread", "median", "last", "greatest", "ratio", "percent"];
        ensure!(contents.contains(&content), "there is no `{content}`");
        Ok(Self { head, content, name, scale, digits })
    }

    fn text(&self, row: &ResultRow) -> Option<String> {
        let &Self { content, name, scale, digits, .. } = self;
        let figure = |value: f64| format!("{:.digits$}", scale * value);
        let spread = || row.figures.get(name).copied();
        Some(match content {
            "setting" => text(row.point.get(name)?),
            "bytes" => DecimalBytes(row.point.get(name)?.as_u64()?).to_string(),
            "spread" => {
                let Spread { median, min, max } = spread()?.map(|value| scale * value);
                format!("{} [{}-{}]", short(median), short(min), short(max))
            }
            "median" => figure(spread()?.median),
            "last" => figure(*row.values(name).last()?),
            "greatest" => figure(spread()?.max),
            "ratio" => format!("{:.2}", row.ratio(name)?),
            _ => format!("{:.0}%", 100.0 * row.ratio(name)?),
        })
    }
}

/// The contenders of these rows with their columns. A column without any value is left out.
pub(crate) fn of_rows(columns: &[TableColumn<'_>], rows: &[ResultRow], unit: &str) -> String {
    let mut heads = vec![String::new()];
    let mut lines: Vec<Vec<String>> = rows.iter().map(|row| vec![row.contender.clone()]).collect();
    for column in columns {
        let cells: Vec<Option<String>> = rows.iter().map(|row| column.text(row)).collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        heads.push(column.head.replace("{unit}", unit));
        for (line, cell) in lines.iter_mut().zip(cells) {
            line.push(cell.unwrap_or_else(|| "-".into()));
        }
    }
    let mut sheet = Sheet::new();
    sheet.load_style(NOTHING).set_header(heads).add_rows(lines);
    // All but the names are numbers.
    let numbers = sheet.column_iter_mut().skip(1);
    numbers.for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    sheet.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample::values;
    use super::*;

    #[test]
    fn a_row_has_a_line_and_a_figure_without_a_value_a_dash() {
        let mut rows = [
            ResultRow::measured("ours", 0, "speed", &[4000.0, 4200.0, 5000.0]),
            ResultRow::measured("other", 0, "seconds", &[0.25]),
        ];
        rows[1].point = values([("size", 4000)]);
        let columns = [
            "{unit}/s | spread speed",
            "ms | median seconds 1e3 1",
            "last | last speed",
            "most | greatest speed",
            "size | bytes size",
            "× candle | ratio to_candle",
        ];
        let columns = columns.map(|text| TableColumn::read(text).unwrap());
        let text = of_rows(&columns, &rows, "images");
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["images/s", "ms", "last", "most", "size"]);
        assert_eq!(lines[1][..5], ["ours", "4,200", "[4,000-5,000]", "-", "5000"], "{text}");
        assert_eq!(lines[2], ["other", "-", "250.0", "-", "-", "4.00", "kB"]);
    }
}
