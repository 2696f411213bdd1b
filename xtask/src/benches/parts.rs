//! The parts of a step's time: as columns of a table, and as pieces of a bar.

use crate::bench::{Bar, Column, Look, Row};

/// The parts of a step: their figure, their name in a table and in a picture, and their look in a bar.
const PARTS: [(&str, &str, &str, Look); 7] = [
    ("forward_seconds", "forward", "forward", Look::Bar(4)),
    ("backward_seconds", "backward", "backward", Look::Bar(0)),
    ("compress_seconds", "compress", "compress", Look::Bar(1)),
    ("exposed_seconds", "exposed", "exposed communication", Look::Bar(5)),
    ("decompress_seconds", "decompress", "decompress", Look::Bar(6)),
    ("update_seconds", "update", "update", Look::Bar(2)),
    ("other_seconds", "other", "other", Look::Bar(7)),
];

/// The whole step, then its parts.
pub(super) fn columns() -> Vec<Column> {
    let parts = PARTS.map(|(figure, head, ..)| Column::figure(head, figure, 1e3, 2));
    [Column::figure("step ms", "step_seconds", 1e3, 2)].into_iter().chain(parts).collect()
}

/// A step's parts one after the other. Medians of the parts need not add up to the median of the
/// whole, which the figure tells.
pub(super) fn bar(row: &Row, name: String) -> Bar {
    let ms = |figure: &str| 1e3 * row.median(figure).unwrap_or(0.0);
    let pieces = PARTS.map(|(figure, .., look)| (look, ms(figure), String::new())).to_vec();
    let figure = match row.median("step_seconds") {
        Some(median) => format!("{:.2} ms", 1e3 * median),
        None => "not reached".into(),
    };
    Bar { name, pieces, spread: None, figure }
}

/// The key of the parts.
pub(super) fn key() -> Vec<(Look, String)> {
    PARTS.map(|(_, _, name, look)| (look, name.to_owned())).to_vec()
}
