//! `metrics.jsonl`: one JSON object per line. The readers of this crate read this file, so it is the
//! truth of a log.

use std::io::Write;
use std::path::Path;

use crate::file::LogFile;
use crate::{Event, EventSink, Result};

/// The file's name in the directory of a log.
pub const JSON_LINES_FILE: &str = "metrics.jsonl";

/// Writes each event as a line of JSON.
#[derive(Debug)]
pub struct JsonLines(LogFile);

impl JsonLines {
    /// A new file in this directory.
    ///
    /// # Errors
    /// If there is one already, or if it cannot be written.
    pub fn create(dir: &Path) -> Result<Self> {
        LogFile::create(&dir.join(JSON_LINES_FILE)).map(Self)
    }

    /// Continues the file in this directory, or makes a new one. Returns the length of the file, which
    /// is 0 for a new one, and how many bytes of an incomplete last line were cut off.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn append(dir: &Path) -> Result<(Self, u64, u64)> {
        let (file, length, torn) = LogFile::append(&dir.join(JSON_LINES_FILE))?;
        Ok((Self(file), length, torn))
    }
}

impl EventSink for JsonLines {
    fn name(&self) -> String {
        self.0.name()
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        let written = serde_json::to_writer(&mut self.0, event).map_err(Into::into);
        written.and_then(|()| self.0.write_all(b"\n")).map_err(|error| self.0.failed(error))
    }

    fn flush(&mut self) -> Result<()> {
        self.0.flush_checked()
    }
}
