//! A table in the terminal, of which lines appear as soon as they are known.

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ColumnConstraint, Table as Sheet, Width};

use super::sample::Row;

/// A column: its head and the cell of a row. The first column of a table is names.
pub(crate) struct Column {
    head: String,
    /// The least width, so that lines printed one after the other stand below each other.
    width: usize,
    /// The contender whose row it shows, where a line is a leg.
    contender: Option<String>,
    cell: Cell,
}

type Cell = Box<dyn Fn(&Row) -> Option<String>>;

impl Column {
    pub(crate) fn new<F>(head: &str, width: usize, cell: F) -> Self
    where
        F: Fn(&Row) -> Option<String> + 'static,
    {
        let width = width.max(head.chars().count());
        Self { head: head.to_owned(), width, contender: None, cell: Box::new(cell) }
    }

    pub(crate) fn name(width: usize, cell: impl Fn(&Row) -> String + 'static) -> Self {
        Self::new("", width, move |row| Some(cell(row)))
    }

    /// A figure's median and ends, times `scale`, with so many digits after the point.
    pub(crate) fn spread(head: &str, figure: &'static str, scale: f64, digits: usize) -> Self {
        let scaled = move |row: &Row| Some(row.figures.get(figure)?.map(|value| scale * value));
        Self::new(head, 24, move |row| Some(scaled(row)?.text(digits)))
    }

    /// A figure's median times `scale`.
    pub(crate) fn figure(head: &str, figure: &'static str, scale: f64, digits: usize) -> Self {
        Self::new(head, 8, move |row| Some(format!("{:.digits$}", scale * row.median(figure)?)))
    }

    /// The peak memory of the player's first process.
    pub(crate) fn peak_memory() -> Self {
        Self::new("peak MB", 8, |row| Some(format!("{:.0}", row.figures.get("peak_rss_mb")?.max)))
    }

    /// The median of a comparison.
    pub(crate) fn ratio(head: &str, name: &'static str) -> Self {
        Self::new(head, 8, |row| Some(format!("{:.2}", row.ratio(name)?)))
    }

    /// The median of a comparison in percent.
    pub(crate) fn percent(head: &str, name: &'static str) -> Self {
        Self::new(head, 8, |row| Some(format!("{:.0}%", 100.0 * row.ratio(name)?)))
    }

    /// Shows this contender's row. The table then has a line per leg.
    pub(crate) fn of(self, contender: &str) -> Self {
        Self { contender: Some(contender.to_owned()), ..self }
    }

    fn text(&self, line: &[Row]) -> String {
        let is_shown =
            |row: &&Row| self.contender.as_ref().is_none_or(|name| row.contender == *name);
        let text = line.iter().find(is_shown).and_then(&self.cell);
        text.unwrap_or_else(|| "-".into())
    }
}

/// The lines of a leg, below the heads if it is the first one of its table.
pub(crate) fn lines(columns: &[Column], rows: &[Row], with_heads: bool) -> String {
    let leg_is_line = columns.iter().any(|column| column.contender.is_some());
    let lines = rows.chunks(if leg_is_line { rows.len().max(1) } else { 1 });
    let cells = |line| columns.iter().map(|column| column.text(line)).collect();
    let (heads, widths): (Vec<&str>, Vec<usize>) =
        columns.iter().map(|column| (&*column.head, column.width)).unzip();
    let lines: Vec<Vec<String>> = lines.map(cells).collect();
    sheet(if with_heads { &heads } else { &[] }, &widths, 1, &lines)
}

/// A whole table. Its first `names` columns are names.
pub(crate) fn text(heads: &[&str], names: usize, lines: &[Vec<String>]) -> String {
    sheet(heads, &vec![0; heads.len()], names, lines)
}

/// Columns of at least these widths. Names stand at the left, numbers at the right.
fn sheet(heads: &[&str], widths: &[usize], names: usize, lines: &[Vec<String>]) -> String {
    let mut sheet = Sheet::new();
    sheet.load_style(NOTHING).add_rows(lines);
    if !heads.is_empty() {
        sheet.set_header(heads);
    }
    for (place, (column, width)) in sheet.column_iter_mut().zip(widths).enumerate() {
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(*width as u16 + 2)));
        let is_name = place < names;
        column.set_cell_alignment(if is_name { CellAlignment::Left } else { CellAlignment::Right });
    }
    sheet.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::super::figures::Spread;
    use super::super::sample::values;
    use super::*;

    #[test]
    fn lines_that_come_later_stand_below_the_first_ones() {
        let row = |name: &str, speed: f64| {
            let mut row = Row::new(values([("size", 4)]), name);
            let spread = Spread { median: speed, min: speed, max: 2.0 * speed };
            row.figures.insert("speed".into(), spread);
            row
        };
        let columns = [
            Column::name(12, |row| row.contender.clone()),
            Column::spread("images/s [min-max]", "speed", 1.0, 0),
            Column::figure("ms", "speed", 1e3, 1),
            Column::ratio("× candle", "to_candle"),
        ];
        let text = lines(&columns, &[row("ours", 4.0)], true)
            + &lines(&columns, &[row("b", 12345.0)], false);
        let shown: Vec<&str> = text.lines().collect();
        assert_eq!(shown.len(), 3, "{text}");
        assert!(shown[0].ends_with("× candle"), "{text}");
        assert!(shown[2].ends_with("12345000.0         -"), "{text}");
        let end = |line: &str, word: &str| line.find(word).unwrap() + word.len();
        assert_eq!(end(shown[1], "4 [4-8]"), end(shown[2], "12345 [12345-24690]"), "{text}");
        let columns = columns.map(|column| column.of("b"));
        let text = lines(&columns, &[row("a", 1.0), row("b", 2.0)], false);
        assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["b", "2", "[2-4]", "2000.0", "-"]);
    }
}
