//! A file of the log: buffered, and continued after a crash.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// A file of lines that the run writes.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    out: BufWriter<File>,
    /// Device and inode.
    identity: (u64, u64),
}

impl LogFile {
    /// A new file. An existing one is an error.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => Self::new(path, file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(Error::Exists { path: path.to_owned() })
            }
            Err(source) => Err(Error::Write { path: path.to_owned(), source }),
        }
    }

    /// The existing file, without the incomplete line at its end that a crash may have left, or a new
    /// one. Returns the length of the file, and of that line, in bytes.
    pub(crate) fn append(path: &Path) -> Result<(Self, u64, u64)> {
        let fail = |source| Error::Write { path: path.to_owned(), source };
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).create(true).truncate(false).open(path);
        let mut file = opened.map_err(fail)?;
        let length = file.metadata().map_err(fail)?.len();
        let kept = end_of_lines(&mut file, length).map_err(fail)?;
        file.set_len(kept).map_err(fail)?;
        file.seek(SeekFrom::End(0)).map_err(fail)?;
        Ok((Self::new(path, file)?, kept, length - kept))
    }

    fn new(path: &Path, file: File) -> Result<Self> {
        let path = path.to_owned();
        match file.metadata() {
            Ok(of) => Ok(Self { path, identity: (of.dev(), of.ino()), out: BufWriter::new(file) }),
            Err(source) => Err(Error::Write { path, source }),
        }
    }

    /// The name of the file's sink in messages.
    pub(crate) fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// The error of a write that failed.
    pub(crate) fn failed(&self, source: io::Error) -> Error {
        Error::Write { path: self.path.clone(), source }
    }

    /// Writes what is still in memory, for [`EventSink::flush`](crate::EventSink::flush).
    pub(crate) fn flush_checked(&mut self) -> Result<()> {
        self.flush().map_err(|error| self.failed(error))?;
        self.check()
    }

    /// Whether the file is still at its path. The system lets a run write for ever to a file that was
    /// removed.
    pub(crate) fn check(&self) -> Result<()> {
        match fs::metadata(&self.path) {
            Ok(now) if (now.dev(), now.ino()) == self.identity => Ok(()),
            _ => Err(Error::Removed { path: self.path.clone() }),
        }
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The offset after the last newline.
fn end_of_lines(file: &mut File, length: u64) -> io::Result<u64> {
    let (mut end, mut bytes) = (length, Vec::new());
    while end > 0 {
        let start = end.saturating_sub(64 * 1024);
        file.seek(SeekFrom::Start(start))?;
        bytes.clear();
        file.take(end - start).read_to_end(&mut bytes)?;
        if let Some(at) = bytes.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_incomplete_last_line_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let long = "x".repeat(100_000);
        for (text, kept) in [
            ("", 0),
            ("a\nb\n", 4),
            ("a\nb", 2),
            ("torn", 0),
            (&*format!("a\n{long}"), 2),
            (&*format!("{long}\nb"), 100_001),
        ] {
            fs::write(&path, text).unwrap();
            let (mut file, length, torn) = LogFile::append(&path).unwrap();
            assert_eq!((length, torn), (kept, text.len() as u64 - kept));
            file.write_all(b"next\n").unwrap();
            file.flush().unwrap();
            let expected = format!("{}next\n", &text[..kept as usize]);
            assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        }
    }

    #[test]
    fn a_new_file_replaces_none_and_a_removed_one_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let file = LogFile::create(&path).unwrap();
        assert!(matches!(LogFile::create(&path), Err(Error::Exists { .. })));
        file.check().unwrap();
        fs::remove_file(&path).unwrap();
        assert!(matches!(file.check(), Err(Error::Removed { .. })));
        fs::write(&path, "").unwrap();
        assert!(matches!(file.check(), Err(Error::Removed { .. })));
        let nowhere = LogFile::create(&folder.path().join("no/lines")).unwrap_err();
        assert!(matches!(nowhere, Error::Write { .. }) && nowhere.to_string().contains("no/lines"));
    }
}
