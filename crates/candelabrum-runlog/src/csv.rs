//! `metrics.csv`: one value per row, `step,epoch,kind,name,value`.
//!
//! The long form needs no columns known in advance, and a spreadsheet or a data frame turns it into any
//! other form. A row of kind `resume` says from which step on the rows above no longer count.

use std::io;
use std::path::Path;

use crate::event::Figures;
use crate::file::LogFile;
use crate::number::word;
use crate::{Event, EventKind, EventSink, Result};

/// The file's name in the directory of a log.
pub const CSV_FILE: &str = "metrics.csv";

/// Writes each value of an event as a row.
#[derive(Debug)]
pub struct Csv(csv::Writer<LogFile>);

impl Csv {
    /// A new file in this directory.
    ///
    /// # Errors
    /// If there is one already, or if it cannot be written.
    pub fn create(dir: &Path) -> Result<Self> {
        LogFile::create(&dir.join(CSV_FILE)).and_then(Self::with_header)
    }

    /// Continues the file in this directory, or makes a new one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn append(dir: &Path) -> Result<Self> {
        match LogFile::append(&dir.join(CSV_FILE))? {
            (file, 0, _) => Self::with_header(file),
            (file, ..) => Ok(Self(csv::Writer::from_writer(file))),
        }
    }

    fn with_header(file: LogFile) -> Result<Self> {
        let mut csv = Self(csv::Writer::from_writer(file));
        csv.row(["step", "epoch", "kind", "name", "value"])?;
        Ok(csv)
    }

    fn row(&mut self, fields: [&str; 5]) -> Result<()> {
        self.0.write_record(fields).map_err(|error| self.0.get_ref().failed(error.into()))
    }

    /// A row per value. A checkpoint has no epoch.
    fn rows(&mut self, Figures { step, epoch, kind, values }: Figures<'_>) -> Result<()> {
        let (step, epoch) = (step.to_string(), epoch.map_or(String::new(), |e| e.to_string()));
        values.into_iter().try_for_each(|(name, value)| {
            let text = word(value).map_or_else(|| format!("{value:?}"), str::to_owned);
            self.row([&step, &epoch, kind, name, &text])
        })
    }
}

impl EventSink for Csv {
    fn name(&self) -> String {
        self.0.get_ref().name()
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        if let EventKind::Resume(resume) = &event.kind {
            let (step, epoch) = (resume.step, Some(resume.epoch));
            let values = vec![("step", step as f64)];
            return self.rows(Figures { step, epoch, kind: "resume", values });
        }
        event.kind.figures().map_or(Ok(()), |figures| self.rows(figures))
    }

    fn flush(&mut self) -> Result<()> {
        let flushed: io::Result<()> = self.0.flush();
        let file = self.0.get_ref();
        flushed.map_err(|error| file.failed(error))?;
        file.check()
    }
}
