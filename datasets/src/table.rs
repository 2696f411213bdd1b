//! A table of text (CSV): columns of numbers as inputs, and targets by the names of their columns.
//!
//! Every cell is checked when the file is read. A cell that is no number is an error with its line and
//! column, because a number that stands in for it would be trained on silently.

use std::{
    fs::File,
    io::{BufReader, Read},
    path::{Path, PathBuf},
};

use candle_core::{Device, Tensor};
use csv::{ReaderBuilder, StringRecord, Trim};

use crate::{
    batch::Batch,
    classes::Classes,
    error::{Error, Result, TableError},
    rng::{Purpose, rng, shuffle},
    standardization::Standardization,
    tensors::TensorDataset,
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
    /// (N, F), row by row.
    xs: Vec<f32>,
    ys: Targets,
}

#[derive(Debug, Clone)]
enum Targets {
    Classes(Vec<u32>),
    /// (N, K), row by row.
    Numbers(Vec<f32>),
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
    /// # Errors
    /// A file that cannot be read or is not UTF-8, a row with another number of cells than the header,
    /// a chosen column that does not exist or exists twice, a cell that is no finite number, an empty
    /// cell or an unknown name in place of a class, no rows.
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
        let mut reader =
            ReaderBuilder::new().delimiter(config.delimiter).trim(Trim::All).from_reader(from);
        let header = reader.headers().map_err(|error| unreadable(path, error))?.clone();
        let columns = Columns::choose(path, &header, config)?;
        let mut xs = Vec::new();
        let mut ys = columns.no_targets();
        let mut names = Classes::new(config.targets.known());
        let mut rows = 0;
        let mut record = StringRecord::new();
        while reader.read_record(&mut record).map_err(|error| unreadable(path, error))? {
            columns.numbers(&columns.inputs, &record, &mut xs)?;
            match &mut ys {
                Targets::Classes(labels) => labels.push(columns.class(&mut names, &record)?),
                Targets::Numbers(numbers) => columns.numbers(&columns.targets, &record, numbers)?,
            }
            rows += 1;
        }
        let (inputs, targets) = (columns.inputs.len(), columns.targets.len());
        if rows == 0 || inputs == 0 || targets == 0 {
            return Err(TableError::Empty { path: path.into(), rows, inputs, targets }.into());
        }
        let classes = match &mut ys {
            Targets::Classes(labels) => names.sorted(labels),
            Targets::Numbers(_) => Vec::new(),
        };
        let inputs = columns.inputs.iter().map(|&column| header[column].to_owned()).collect();
        Ok(Self { rows, inputs, classes, xs, ys })
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
    /// # Shapes
    /// Inputs (N, F), f32. Classes (N,), u32. Targets that are numbers (N, K), f32.
    ///
    /// # Errors
    /// Those of candle.
    pub fn dataset(&self) -> Result<TensorDataset<Batch>> {
        self.part(&(0..self.rows).collect::<Vec<_>>())
    }

    /// The rows in two parts, of which the test part has this share, rounded. Which rows it has depends
    /// on the seed and the number of rows alone. In both parts the rows keep their order.
    ///
    /// # Errors
    /// A share that leaves a part empty.
    pub fn split(&self, test_share: f64, seed: u64) -> Result<TableSplit> {
        let test_rows = (self.rows as f64 * test_share).round();
        if !(test_rows >= 1.0 && test_rows <= self.rows as f64 - 1.0) {
            return Err(TableError::Split { share: test_share, rows: self.rows }.into());
        }
        let mut rows: Vec<usize> = (0..self.rows).collect();
        shuffle(&mut rng(seed, Purpose::Split, 0, 0), &mut rows);
        let (test, train) = rows.split_at_mut(test_rows as usize);
        test.sort_unstable();
        train.sort_unstable();
        Ok(TableSplit { train: self.part(train)?, test: self.part(test)? })
    }

    fn part(&self, rows: &[usize]) -> Result<TensorDataset<Batch>> {
        let xs = tensor(&self.xs, self.inputs.len(), rows)?;
        let ys = match &self.ys {
            Targets::Classes(labels) => {
                let labels: Vec<u32> = rows.iter().map(|&row| labels[row]).collect();
                Tensor::from_vec(labels, rows.len(), &Device::Cpu)?
            }
            Targets::Numbers(numbers) => tensor(numbers, numbers.len() / self.rows, rows)?,
        };
        TensorDataset::labelled(xs, ys)
    }
}

impl TableSplit {
    /// Inputs with mean 0 and deviation 1 in each column of the training part. The test part is changed
    /// by the same numbers.
    ///
    /// # Errors
    /// Those of candle.
    pub fn standardized(self) -> Result<(Self, Standardization)> {
        let fitted = Standardization::fit(&self.train.tensors()[0])?;
        let apply = |data: &TensorDataset<Batch>| {
            let [xs, ys] = [&data.tensors()[0], &data.tensors()[1]];
            TensorDataset::labelled(fitted.apply(xs)?, ys.clone())
        };
        let split = Self { train: apply(&self.train)?, test: apply(&self.test)? };
        Ok((split, fitted))
    }

    /// The same for targets that are numbers. [`Standardization::undo`] brings outputs of the model back to
    /// their units.
    ///
    /// # Errors
    /// Targets that are classes.
    pub fn standardized_targets(self) -> Result<(Self, Standardization)> {
        let fitted = Standardization::fit(&self.train.tensors()[1])?;
        let apply = |data: &TensorDataset<Batch>| {
            let [xs, ys] = [&data.tensors()[0], &data.tensors()[1]];
            TensorDataset::labelled(xs.clone(), fitted.apply(ys)?)
        };
        let split = Self { train: apply(&self.train)?, test: apply(&self.test)? };
        Ok((split, fitted))
    }
}

/// Some rows of a table with so many columns -> (rows, columns)
fn tensor(numbers: &[f32], columns: usize, rows: &[usize]) -> Result<Tensor> {
    let chosen = rows.iter().flat_map(|row| &numbers[row * columns..(row + 1) * columns]);
    let chosen: Vec<f32> = chosen.copied().collect();
    Ok(Tensor::from_vec(chosen, (rows.len(), columns), &Device::Cpu)?)
}

/// The places of the chosen columns.
struct Columns<'a> {
    path: &'a Path,
    header: &'a StringRecord,
    inputs: Vec<usize>,
    targets: Vec<usize>,
    is_class: bool,
}

impl<'a> Columns<'a> {
    fn choose(path: &'a Path, header: &'a StringRecord, config: &CsvConfig) -> Result<Self> {
        let place = |name: &String| -> Result<usize> {
            let mut places = header.iter().enumerate().filter(|(_, column)| column == name);
            let (path, column) = (PathBuf::from(path), name.clone());
            match (places.next(), places.next()) {
                (None, _) => {
                    let columns = header.iter().map(String::from).collect();
                    Err(TableError::NoColumn { path, column, columns }.into())
                }
                (Some((place, _)), None) => Ok(place),
                (Some(_), Some(_)) => Err(TableError::SameColumns { path, column }.into()),
            }
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
            None => (0..header.len()).filter(|place| !targets.contains(place)).collect(),
        };
        Ok(Self { path, header, inputs, targets, is_class })
    }

    fn no_targets(&self) -> Targets {
        if self.is_class { Targets::Classes(Vec::new()) } else { Targets::Numbers(Vec::new()) }
    }

    /// The label of a record.
    fn class(&self, names: &mut Classes, record: &StringRecord) -> Result<u32> {
        let name = &record[self.targets[0]];
        if name.is_empty() && !names.are_known() {
            let line = record.position().map_or(0, csv::Position::line);
            let column = self.header[self.targets[0]].to_owned();
            return Err(TableError::NoClass { path: self.path.into(), line, column }.into());
        }
        Ok(names.number(name).ok_or_else(|| TableError::UnknownClass {
            path: self.path.into(),
            line: record.position().map_or(0, csv::Position::line),
            class: name.to_owned(),
            classes: names.len(),
        })?)
    }

    /// Appends the numbers in these columns of a record.
    fn numbers(&self, places: &[usize], record: &StringRecord, to: &mut Vec<f32>) -> Result<()> {
        for &place in places {
            let cell = &record[place];
            let number = cell.parse::<f32>().ok().filter(|number| number.is_finite());
            to.push(number.ok_or_else(|| TableError::Cell {
                path: self.path.into(),
                line: record.position().map_or(0, csv::Position::line),
                column: self.header[place].to_owned(),
                cell: cell.to_owned(),
            })?);
        }
        Ok(())
    }
}

/// An error of the reader as one of ours.
fn unreadable(path: &Path, error: csv::Error) -> Error {
    let path = PathBuf::from(path);
    let line = error.position().map_or(0, csv::Position::line);
    match *error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len: expected, len: got, .. } => {
            TableError::Cells { path, line, got, expected }.into()
        }
        csv::ErrorKind::Utf8 { .. } => TableError::NotUtf8 { path, line }.into(),
        _ => TableError::Read { path, source: error.into() }.into(),
    }
}
