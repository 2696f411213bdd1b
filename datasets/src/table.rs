//! A table of text (CSV): columns of numbers as inputs, and targets by the names of their columns.
//!
//! Every cell is checked when the file is read. A cell that is no number is an error with its line and
//! column, because a number that stands in for it would be trained on silently. For the same reason numbers
//! stay as they were written (`number_rows.rs`) until they are standardized.

use std::{
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use candle_core::{DType, Device, Tensor};
use csv::{ReaderBuilder, StringRecord, Trim};

use crate::{
    batch::Batch,
    classes::Classes,
    error::{DataFault, DataPlace, Error, Result},
    number_rows::{Columns, NumberRows},
    quotes::Quotes,
    split::split,
    standardization::Standardization,
    tensors::{Column, TensorDataset},
};

/// Which columns of a table are what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsvConfig {
    /// The columns of inputs. `None`: all columns that are no targets.
    pub inputs: Option<Vec<String>>,
    /// The columns of targets.
    pub targets: CsvTargets,
    /// The byte between two cells.
    pub delimiter: u8,
}

/// The columns of targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CsvTargets {
    /// A column with the name of each row's class, in any text. The classes are those in the table.
    Class(String),
    /// The same with classes that are known, for instance those of the table for training
    /// ([`CsvTable::classes`]): a second table gets the labels of the first.
    KnownClass {
        /// The name of the column.
        column: String,
        /// The names of the classes. The label of a class is its place here.
        classes: Vec<String>,
    },
    /// Columns of numbers.
    Numbers(Vec<String>),
}

impl CsvTargets {
    /// The classes that are known before the table is read.
    fn known(&self) -> Option<&[String]> {
        match self {
            Self::KnownClass { classes, .. } => Some(classes),
            Self::Class(_) | Self::Numbers(_) => None,
        }
    }
}

impl CsvConfig {
    /// The classes in this column, all other columns as inputs, and commas between cells.
    pub fn class(column: impl Into<String>) -> Self {
        Self { inputs: None, targets: CsvTargets::Class(column.into()), delimiter: b',' }
    }

    /// Numbers in these columns, all other columns as inputs, and commas between cells.
    pub fn numbers<S: Into<String>>(columns: impl IntoIterator<Item = S>) -> Self {
        let targets = CsvTargets::Numbers(columns.into_iter().map(S::into).collect());
        Self { inputs: None, targets, delimiter: b',' }
    }
}

/// A table in memory.
///
/// ```
/// use candelabrum_datasets::{CsvConfig, CsvTable};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let text = "width,height,kind\n1.5,2,oak\n1,1,fir\n3,2.5,oak\n2,2,elm\n";
/// let table = CsvTable::read(text.as_bytes(), "trees.csv", &CsvConfig::class("kind"))?;
/// assert_eq!(table.classes(), ["elm", "fir", "oak"]);
/// let (split, standardization) = table.split(0.25, 0)?.standardized()?;
/// assert_eq!(split.train.tensors()[0].dims(), [3, 2]);
/// assert_eq!(standardization.mean.len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct CsvTable {
    rows: usize,
    inputs: Vec<String>,
    classes: Vec<String>,
    /// (N, F)
    xs: Columns,
    ys: TargetColumn,
}

#[derive(Debug, Clone)]
enum TargetColumn {
    Classes(Vec<u32>),
    /// (N, K)
    Numbers(Columns),
}

/// The rows of a table for training and for tests.
#[derive(Debug, Clone)]
pub struct TableSplit {
    /// The rows for training.
    pub train: TensorDataset<Batch>,
    /// The rows for tests.
    pub test: TensorDataset<Batch>,
}

impl CsvTable {
    /// Reads a file whose first line has the names of the columns.
    ///
    /// Blank lines are no rows.
    ///
    /// # Errors
    /// A file that cannot be read or is not UTF-8, a row with another number of cells than the header,
    /// a quote in a wrong place, a column that does not exist, exists twice or has no name, a cell that is
    /// no finite number, a whole number with more digits than an f64, an empty cell or an unknown name in
    /// place of a class, no rows.
    pub fn open(path: impl AsRef<Path>, config: &CsvConfig) -> Result<Self> {
        let path = path.as_ref();
        let file = File::open(path).map_err(Error::io("open", path))?;
        Self::read(BufReader::new(file), path, config)
    }

    /// Reads a table from anywhere. Errors name it by `path`.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn read(from: impl Read, path: impl AsRef<Path>, config: &CsvConfig) -> Result<Self> {
        let path = path.as_ref();
        let from = Quotes::new(from, config.delimiter);
        let mut reader =
            ReaderBuilder::new().delimiter(config.delimiter).trim(Trim::All).from_reader(from);
        let table = Self::read_rows(&mut reader, path, config);
        // It may be the cause of another error.
        match reader.get_ref().wrong() {
            None => table,
            Some(wrong) => {
                let (line, what) = wrong.in_words();
                Err(DataFault::Corrupt.at(DataPlace::line(path, line), what))
            }
        }
    }

    fn read_rows(
        reader: &mut csv::Reader<impl Read>,
        path: &Path,
        config: &CsvConfig,
    ) -> Result<Self> {
        let header = reader.headers().map_err(|error| unreadable(path, error))?.clone();
        let chosen = Chosen::new(path, &header, config)?;
        let mut xs = Columns::new(path.into(), chosen.names(&chosen.inputs));
        let mut ys = if chosen.is_class {
            TargetColumn::Classes(Vec::new())
        } else {
            TargetColumn::Numbers(Columns::new(path.into(), chosen.names(&chosen.targets)))
        };
        let mut names = Classes::new(config.targets.known());
        let mut rows = 0;
        let mut record = StringRecord::new();
        while reader.read_record(&mut record).map_err(|error| unreadable(path, error))? {
            chosen.numbers(&chosen.inputs, &record, &mut xs)?;
            match &mut ys {
                TargetColumn::Classes(labels) => labels.push(chosen.class(&mut names, &record)?),
                TargetColumn::Numbers(numbers) => {
                    chosen.numbers(&chosen.targets, &record, numbers)?;
                }
            }
            rows += 1;
        }
        let (inputs, targets) = (chosen.inputs.len(), chosen.targets.len());
        if rows == 0 || inputs == 0 || targets == 0 {
            let what = format!(
                "{rows} rows, {inputs} columns of inputs and {targets} of targets: none may be 0"
            );
            return Err(DataFault::Mismatch.at(path, what));
        }
        let classes = match &mut ys {
            TargetColumn::Classes(labels) => names.sorted(labels),
            TargetColumn::Numbers(_) => Vec::new(),
        };
        Ok(Self { rows, inputs: chosen.names(&chosen.inputs), classes, xs, ys })
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The names of the columns of inputs.
    pub fn inputs(&self) -> &[String] {
        &self.inputs
    }

    /// The names of the classes, in alphabetical order unless they were
    /// [given](CsvTargets::KnownClass). The label of a class is its place here. Empty if the targets are
    /// numbers.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// All rows.
    ///
    /// If f32 cannot stand for some of the numbers, such as times in seconds or long identifiers, their
    /// tensor is f64, and to read its rows is an error until it is standardized.
    ///
    /// # Shapes
    /// Inputs (N, F), f32. Classes (N,), u32. Targets that are numbers (N, K), f32.
    ///
    /// # Errors
    /// Those of candle.
    pub fn dataset(&self) -> Result<TensorDataset<Batch>> {
        self.part(&(0..self.rows).collect::<Vec<_>>())
    }

    /// The rows in two parts, of which the test part has this share, rounded. Which rows it has depends
    /// on the seed and the number of rows alone. In both parts the rows keep their order. The tensors are
    /// those of [`dataset`](Self::dataset).
    ///
    /// # Errors
    /// A share that leaves a part empty.
    pub fn split(&self, test_share: f64, seed: u64) -> Result<TableSplit> {
        let [train, test] = split(self.rows, "rows", test_share, seed)?;
        Ok(TableSplit { train: self.part(&train)?, test: self.part(&test)? })
    }

    fn part(&self, rows: &[usize]) -> Result<TensorDataset<Batch>> {
        let ys = match &self.ys {
            TargetColumn::Classes(labels) => {
                let labels: Vec<u32> = rows.iter().map(|&row| labels[row]).collect();
                Column::Plain(Tensor::from_vec(labels, rows.len(), &Device::Cpu)?)
            }
            TargetColumn::Numbers(numbers) => Column::Written(numbers.rows(rows)?),
        };
        TensorDataset::of_table([Column::Written(self.xs.rows(rows)?), ys])
    }
}

impl TableSplit {
    /// Inputs with mean 0 and deviation 1 in each column of the training part. The test part is changed
    /// by the same numbers.
    ///
    /// # Errors
    /// Those of candle.
    pub fn standardized(self) -> Result<(Self, Standardization)> {
        self.with_standardized(0)
    }

    /// The same for targets that are numbers. [`Standardization::undo`] brings outputs of the model back to
    /// their units. A model learns little of targets that are far from 0 or have a large deviation.
    ///
    /// # Errors
    /// Targets that are classes.
    pub fn standardized_targets(self) -> Result<(Self, Standardization)> {
        self.with_standardized(1)
    }

    /// Standardizes the inputs (0) or the targets (1).
    fn with_standardized(self, place: usize) -> Result<(Self, Standardization)> {
        let numbers = |column: &Column| match column {
            Column::Plain(tensor) => tensor.clone(),
            Column::Written(NumberRows { numbers, .. }) => numbers.clone(),
        };
        let fitted = Standardization::fit(&numbers(&self.train.columns()[place]))?;
        let apply = |data: &TensorDataset<Batch>| {
            let mut columns = data.columns();
            let changed = fitted.apply(&numbers(&columns[place]))?;
            columns[place] = Column::Plain(changed.to_dtype(DType::F32)?);
            TensorDataset::of_table(columns)
        };
        let split = Self { train: apply(&self.train)?, test: apply(&self.test)? };
        Ok((split, fitted))
    }
}

/// The places of the chosen columns.
struct Chosen<'a> {
    path: &'a Path,
    header: &'a StringRecord,
    inputs: Vec<usize>,
    targets: Vec<usize>,
    is_class: bool,
}

impl<'a> Chosen<'a> {
    fn new(path: &'a Path, header: &'a StringRecord, config: &CsvConfig) -> Result<Self> {
        let place = |name: &String| -> Result<usize> {
            let mut places = header.iter().enumerate().filter(|(_, column)| column == name);
            let what = match (places.next(), places.next()) {
                (Some((place, _)), None) => return Ok(place),
                (Some(_), Some(_)) => format!("several columns {name:?}: rename all but one"),
                (None, _) => {
                    let columns: Vec<&str> = header.iter().collect();
                    format!("no column {name:?}; the header has {}", columns.join(", "))
                }
            };
            Err(DataFault::Mismatch.at(path, what))
        };
        let (targets, is_class) = match &config.targets {
            CsvTargets::Class(column) | CsvTargets::KnownClass { column, .. } => {
                (vec![place(column)?], true)
            }
            CsvTargets::Numbers(columns) => {
                (columns.iter().map(place).collect::<Result<_>>()?, false)
            }
        };
        let inputs = match &config.inputs {
            Some(columns) => columns.iter().map(place).collect::<Result<_>>()?,
            None => {
                let others: Vec<usize> =
                    (0..header.len()).filter(|place| !targets.contains(place)).collect();
                if let Some(unnamed) = others.iter().find(|&&place| header[place].is_empty()) {
                    let what = format!(
                        "column {} of {} has no name (the index of pandas, or a separator at the \
                         end of the lines): name it, delete it, or choose CsvConfig::inputs",
                        unnamed + 1,
                        header.len()
                    );
                    return Err(DataFault::Corrupt.at(path, what));
                }
                for &other in &others {
                    place(&header[other].to_owned())?;
                }
                others
            }
        };
        Ok(Self { path, header, inputs, targets, is_class })
    }

    /// The names of columns.
    fn names(&self, places: &[usize]) -> Vec<String> {
        places.iter().map(|&place| self.header[place].to_owned()).collect()
    }

    /// The label of a record.
    fn class(&self, names: &mut Classes, record: &StringRecord) -> Result<u32> {
        let name = &record[self.targets[0]];
        let line = record.position().map_or(0, csv::Position::line);
        if name.is_empty() && !names.are_known() {
            let cell = DataPlace::cell(self.path, line, &self.header[self.targets[0]]);
            return Err(DataFault::Corrupt.at(cell, "no class: fill the cell or delete the row"));
        }
        names.number(name).ok_or_else(|| {
            let what = format!("{name:?} is not one of the {} known classes", names.len());
            DataFault::Mismatch.at(DataPlace::line(self.path, line), what)
        })
    }

    /// Appends the numbers in these columns of a record.
    fn numbers(&self, places: &[usize], record: &StringRecord, to: &mut Columns) -> Result<()> {
        let line = record.position().map_or(0, csv::Position::line);
        for &place in places {
            let cell = &record[place];
            let at = || DataPlace::cell(self.path, line, &self.header[place]);
            match cell.parse::<f64>().ok().filter(|&number| (number as f32).is_finite()) {
                Some(number) if is_too_long(cell, number) => {
                    let what = format!(
                        "{cell} would become {number}: subtract a base, shorten the number, or \
                         leave the column out"
                    );
                    return Err(DataFault::Unsupported.at(at(), what));
                }
                Some(number) => to.push(number, line),
                None => {
                    return Err(
                        DataFault::Corrupt.at(at(), format!("{cell:?} is no finite number"))
                    );
                }
            }
        }
        Ok(())
    }
}

/// Whether a cell is a whole number that f64 does not have.
fn is_too_long(cell: &str, number: f64) -> bool {
    // Up to 15 digits are always exact.
    let is_whole = cell.len() > 15 && cell.bytes().skip(1).all(|byte| byte.is_ascii_digit());
    is_whole && cell.parse::<i128>().is_ok_and(|exact| exact != number as i128)
}

/// An error of the reader as one of ours.
fn unreadable(path: &Path, error: csv::Error) -> Error {
    let line = DataPlace::line(path, error.position().map_or(0, csv::Position::line));
    match *error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len: expected, len: got, .. } => {
            DataFault::Corrupt.at(line, format!("{got} cells, the header has {expected}"))
        }
        csv::ErrorKind::Utf8 { .. } => {
            DataFault::Unsupported.at(line, "not UTF-8: convert the file")
        }
        _ => Error::io("read the table", path)(error.into()),
    }
}
