//! Numbers of a table as they were written, and whether f32 can stand for them.
//!
//! Tensors have f32 numbers with 24 bits. The times 1600000001 and 1600000063 are one number of this type.
//! So a table keeps f64 numbers until their columns are standardized. Then the difference is a large one.
//! Without that, such a column is an error when its rows are read.

use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};

use crate::{
    error::{DataFault, DataPlace, Error, Result},
    standardization::mean_and_deviation,
};

/// The largest rounding of a number in a column whose numbers have the deviation 1.
const MOST: f64 = 1e-3;

/// Columns of numbers of a table.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    path: PathBuf,
    names: Vec<String>,
    /// Row by row.
    numbers: Vec<f64>,
    /// The first number with more digits than f32 has.
    long: Option<TableCell>,
    /// In each column the number that f32 rounds most.
    rounded: Vec<TableCell>,
}

/// A number of a table.
#[derive(Debug, Clone, Copy, Default)]
struct TableCell {
    line: u64,
    column: usize,
    number: f64,
}

/// A number that is another one in f32.
#[derive(Debug, Clone)]
pub(crate) struct RoundedNumber {
    path: PathBuf,
    line: u64,
    column: String,
    number: f64,
}

/// Some rows of columns of numbers (N, F).
#[derive(Debug, Clone)]
pub(crate) struct NumberRows {
    /// f64.
    pub(crate) numbers: Tensor,
    /// Why the rows cannot be read as f32.
    pub(crate) lost: Option<RoundedNumber>,
}

impl Columns {
    /// No rows yet of columns with these names.
    pub(crate) fn new(path: PathBuf, names: Vec<String>) -> Self {
        let rounded = vec![TableCell::default(); names.len()];
        Self { path, names, numbers: Vec::new(), long: None, rounded }
    }

    /// Appends the next number of a row.
    pub(crate) fn push(&mut self, number: f64, line: u64) {
        let column = self.numbers.len() % self.names.len();
        let cell = TableCell { line, column, number };
        if rounding(number) > rounding(self.rounded[column].number) {
            self.rounded[column] = cell;
        }
        if self.long.is_none() && is_long(number) {
            self.long = Some(cell);
        }
        self.numbers.push(number);
    }

    /// The number of columns.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// The numbers of some rows.
    pub(crate) fn rows(&self, rows: &[usize]) -> Result<NumberRows> {
        let columns = self.len();
        let row = |row: &usize| &self.numbers[row * columns..(row + 1) * columns];
        let numbers: Vec<f64> = rows.iter().flat_map(row).copied().collect();
        let numbers = Tensor::from_vec(numbers, (rows.len(), columns), &Device::Cpu)?;
        Ok(NumberRows { numbers, lost: self.lost() })
    }

    /// A number that matters and is another one in f32.
    fn lost(&self) -> Option<RoundedNumber> {
        let matters = |cell: &&TableCell| {
            let column = self.numbers.iter().skip(cell.column).step_by(self.len()).copied();
            let (_, deviation) = mean_and_deviation(column);
            deviation > 0.0 && rounding(cell.number) > MOST * deviation
        };
        let rounded = self.rounded.iter().filter(|cell| rounding(cell.number) > 0.0);
        let cell = self.long.or_else(|| rounded.copied().find(|cell| matters(&cell)))?;
        let TableCell { line, column, number } = cell;
        Some(RoundedNumber {
            path: self.path.clone(),
            line,
            column: self.names[column].clone(),
            number,
        })
    }
}

impl NumberRows {
    /// The numbers as f32, or, if they cannot be read as such, as f64.
    pub(crate) fn tensor(&self) -> Result<Tensor> {
        let dtype = if self.lost.is_some() { DType::F64 } else { DType::F32 };
        Ok(self.numbers.to_dtype(dtype)?)
    }
}

impl RoundedNumber {
    pub(crate) fn error(&self) -> Error {
        let Self { path, line, column, number } = self;
        let what = format!(
            "{number} would become {}, which an f32 can be: standardize the table \
             (TableSplit::standardized, standardized_targets), subtract a base, or leave the \
             column out",
            *number as f32
        );
        DataFault::Unsupported.at(DataPlace::cell(path, *line, column), what)
    }
}

/// The distance from a number to its neighbor in f32.
fn rounding(number: f64) -> f64 {
    (number - f64::from(number as f32)).abs()
}

/// Whether a number is beyond the integers of f32, or below its smallest numbers, and has digits that f32
/// does not have. `1.5e10` has two digits.
fn is_long(number: f64) -> bool {
    const INTEGERS: f64 = (1 << f32::MANTISSA_DIGITS) as f64;
    let (size, rounded) = (number.abs(), number as f32);
    let is_usual = size <= INTEGERS && size >= f64::from(f32::MIN_POSITIVE) || size == 0.0;
    // The shortest text that f32 reads as this number.
    !is_usual && rounded.to_string().parse() != Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_long_if_f32_has_not_its_digits() {
        for number in [
            0.0,
            0.1,
            16_777_216.0,
            16_777_218.0,
            1.5e10,
            -6.02e23,
            1_600_000_000.0,
            1e-40,
            123_456.789,
        ] {
            assert!(!is_long(number), "{number}");
        }
        for number in
            [16_777_217.0, -16_777_217.0, 1_600_000_001.0, 20_000_001.5, 1_234_567_890_123.0, 1e-50]
        {
            assert!(is_long(number), "{number}");
        }
    }

    #[test]
    fn a_column_is_lost_if_its_numbers_differ_less_than_f32_can_show() {
        let lost = |numbers: &[f64]| {
            let mut columns = Columns::new("x.csv".into(), vec!["a".into(), "b".into()]);
            for (&number, line) in numbers.iter().zip(2..) {
                columns.push(line as f64, line);
                columns.push(number, line);
            }
            let lost = columns.lost()?;
            assert_eq!(lost.column, "b");
            Some(lost.line)
        };
        assert!(lost(&[0.123_456_789, 0.987_654_321]).is_none());
        assert!(lost(&[0.1; 9]).is_none() && lost(&[]).is_none());
        assert!(lost(&[2_459_000.123; 2]).is_none(), "all are the same");
        assert_eq!(lost(&[2_459_000.0, 2_459_000.1, 2_459_000.12]), Some(4));
        assert_eq!(lost(&[1.0, 1.000_000_01]), Some(3));
    }
}
