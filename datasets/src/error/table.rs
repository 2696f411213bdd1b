//! What can be wrong with a table of text.

use std::{io, path::PathBuf};

/// An error of a table. Lines count from 1, the header included.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The table cannot be read.
    #[error("{}: cannot read the table: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reader's error.
        source: io::Error,
    },
    /// A record is not UTF-8.
    #[error("{}, line {line}: not UTF-8: convert the file", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The line on which the record begins.
        line: u64,
    },
    /// A record has another number of cells than the header.
    #[error("{}, line {line}: {got} cells, the header has {expected}", path.display())]
    Cells {
        /// The file.
        path: PathBuf,
        /// The line on which the record begins.
        line: u64,
        /// The number of cells in the record.
        got: u64,
        /// The number of cells in the header.
        expected: u64,
    },
    /// There is no column with a chosen name.
    #[error(
        "{}: no column {column:?}; the header has {}",
        path.display(),
        columns.join(", ")
    )]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The chosen name.
        column: String,
        /// The names in the header.
        columns: Vec<String>,
    },
    /// Several columns have the name of an input or of a target.
    #[error("{}: several columns {column:?}: rename all but one", path.display())]
    SameColumns {
        /// The file.
        path: PathBuf,
        /// The chosen name.
        column: String,
    },
    /// A cell is not a number.
    #[error(
        "{}, line {line}, column {column:?}: {cell:?} is no finite number",
        path.display()
    )]
    Cell {
        /// The file.
        path: PathBuf,
        /// The line on which the record begins.
        line: u64,
        /// The name of the column.
        column: String,
        /// The text of the cell.
        cell: String,
    },
    /// A number has more digits than an f32, and its column was not standardized.
    #[error(
        "{}, line {line}, column {column:?}: {number} would become {rounded}, which an f32 can be: standardize \
         the table (TableSplit::standardized, standardized_targets), subtract a base, or leave the column out",
        path.display()
    )]
    Rounded {
        /// The file.
        path: PathBuf,
        /// The line on which the record begins.
        line: u64,
        /// The name of the column.
        column: String,
        /// The number.
        number: f64,
        /// The nearest f32.
        rounded: f32,
    },
    /// A whole number has more digits than an f64.
    #[error(
        "{}, line {line}, column {column:?}: {cell} would become {number}: subtract a base, shorten the \
         number, or leave the column out",
        path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The line on which the record begins.
        line: u64,
        /// The name of the column.
        column: String,
        /// The text of the cell.
        cell: String,
        /// The nearest f64.
        number: f64,
    },
    /// A column that would be an input has no name.
    #[error(
        "{}: column {place} of {columns} has no name (the index of pandas, or a separator at the end of the \
         lines): name it, delete it, or choose CsvConfig::inputs",
        path.display()
    )]
    NoName {
        /// The file.
        path: PathBuf,
        /// The place of the column, counted from 1.
        place: usize,
        /// The number of columns.
        columns: usize,
    },
    /// A quote opens a cell and is never closed, so the cell would contain all following rows.
    #[error("{}, line {line}: the quote of a cell is not closed: close it, or double a quote in a cell", path.display())]
    OpenQuote {
        /// The file.
        path: PathBuf,
        /// The line of the quote.
        line: u64,
    },
    /// Text follows the quote that closes a cell.
    #[error(
        "{}, line {line}: text follows the quote that closes a cell: double a quote in a cell, or close the \
         quote of a cell before",
        path.display()
    )]
    TextAfterQuote {
        /// The file.
        path: PathBuf,
        /// The line of the text.
        line: u64,
    },
    /// A byte of the table is zero.
    #[error(
        "{}, line {line}: a zero byte: the rest of the file has not arrived, or it is no UTF-8; fetch it \
         again or convert it",
        path.display()
    )]
    ZeroByte {
        /// The file.
        path: PathBuf,
        /// The line of the byte.
        line: u64,
    },
    /// The name of a class is missing.
    #[error("{}, line {line}, column {column:?}: no class: fill the cell or delete the row", path.display())]
    NoClass {
        /// The file.
        path: PathBuf,
        /// The line on which the record begins.
        line: u64,
        /// The name of the column.
        column: String,
    },
    /// A class is not among the given ones.
    #[error("{}, line {line}: {class:?} is not one of the {classes} known classes", path.display())]
    UnknownClass {
        /// The file.
        path: PathBuf,
        /// The line on which the record begins.
        line: u64,
        /// The name of the class.
        class: String,
        /// The number of known classes.
        classes: usize,
    },
    /// The table has no records, or none of its columns is an input or a target.
    #[error("{}: {rows} rows, {inputs} columns of inputs and {targets} of targets: none may be 0", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// The number of records.
        rows: usize,
        /// The number of columns of inputs.
        inputs: usize,
        /// The number of columns of targets.
        targets: usize,
    },
    /// A part of a split has no rows.
    #[error("a test share of {share} of {rows} rows leaves one of both parts empty")]
    Split {
        /// The share of rows for tests.
        share: f64,
        /// The number of rows.
        rows: usize,
    },
    /// Inputs have another number of columns than those that means were computed of.
    #[error("inputs of shape {shape:?}, means and deviations of {columns} columns")]
    Columns {
        /// The shape of the inputs.
        shape: Vec<usize>,
        /// The number of columns of the means.
        columns: usize,
    },
}
