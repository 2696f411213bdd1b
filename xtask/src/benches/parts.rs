//! The parts of a step's time: as columns of a table, and as pieces of a bar.

use crate::bench::picture::{Bar, Look};
use crate::bench::sample::Row;
use crate::bench::table::Column;

/// The parts of a step: their figure, their name in a table, and in a picture.
const PARTS: [(&str, &str, &str); 7] = [
    ("forward_seconds", "forward", "forward"),
    ("backward_seconds", "backward", "backward"),
    ("compress_seconds", "compress", "compress"),
    ("exposed_seconds", "exposed", "exposed communication"),
    ("decompress_seconds", "decompress", "decompress"),
    ("update_seconds", "update", "update"),
    ("other_seconds", "other", "other"),
];

/// The looks of the parts in a bar.
const PART_LOOKS: [usize; 7] = [4, 0, 1, 5, 6, 2, 7];

/// The whole step, then its parts.
pub(super) fn columns() -> Vec<Column> {
    let parts = PARTS.map(|(figure, head, _)| Column::figure(head, figure, 1e3, 2));
    [Column::figure("step ms", "step_seconds", 1e3, 2)].into_iter().chain(parts).collect()
}

/// A step's parts one after the other. Medians of the parts need not add up to the median of the
/// whole, which the figure tells.
pub(super) fn bar(row: &Row, name: String) -> Bar {
    let ms = |figure: &str| 1e3 * row.median(figure).unwrap_or(0.0);
    let pieces =
        PARTS.iter().zip(PART_LOOKS).map(|((figure, ..), look)| (Look::Bar(look), ms(figure)));
    let figure = match row.median("step_seconds") {
        Some(median) => format!("{:.2} ms", 1e3 * median),
        None => "not reached".into(),
    };
    Bar { name, pieces: pieces.collect(), ends: None, figure }
}

/// The key of the parts.
pub(super) fn key() -> Vec<(Look, String)> {
    let named = PARTS.iter().zip(PART_LOOKS);
    named.map(|((.., name), look)| (Look::Bar(look), (*name).to_owned())).collect()
}
