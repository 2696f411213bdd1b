//! Reads a log, also while it grows: each call takes up what was added since the last one.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::{Error, Event, JSON_LINES_FILE, Result, RunHistory};

/// The longest line that is read, in bytes. Real events have some hundred.
const LONGEST_LINE: usize = 16 << 20;

/// The most broken lines that are kept with their reasons. Further ones are counted only.
const MOST_BROKEN: usize = 20;

/// A log, read up to some point.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    file: BufReader<File>,
    /// Device and inode.
    identity: (u64, u64),
    /// The number of bytes in complete lines that were read, and of these lines.
    read: u64,
    lines: u64,
    /// The beginning of a line whose end is not written yet, and its length, which goes on where the line
    /// is too long to keep.
    partial: Vec<u8>,
    partial_length: usize,
    broken: Vec<Broken>,
    broken_count: u64,
    run: RunHistory,
}

/// A complete line of a log that is no event. It was left out of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The line's number, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
}

/// An incomplete line at the end of a log. If the run is over, a crash or a full disk has cut it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncompleteLine {
    /// The line's number, from 1.
    pub line: u64,
    /// Its length in bytes.
    pub bytes: usize,
}

impl LogReader {
    /// Opens the log in a directory. [`poll`](Self::poll) reads it.
    ///
    /// # Errors
    /// If there is no such directory, no log in it, or if the log cannot be read.
    pub fn open(dir: &Path) -> Result<Self> {
        match fs::metadata(dir) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(Error::NoDirectory { dir: dir.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::NoDirectory { dir: dir.to_owned() });
            }
            Err(source) => return Err(Error::Read { path: dir.to_owned(), source }),
        }
        let path = dir.join(JSON_LINES_FILE);
        match open(&path) {
            Ok((file, identity)) => Ok(Self {
                path,
                file,
                identity,
                read: 0,
                lines: 0,
                partial: Vec::new(),
                partial_length: 0,
                broken: Vec::new(),
                broken_count: 0,
                run: RunHistory::default(),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(Error::NoLog { dir: dir.to_owned(), file: JSON_LINES_FILE })
            }
            Err(source) => Err(Error::Read { path, source }),
        }
    }

    /// The run, as far as it was read.
    pub fn run(&self) -> &RunHistory {
        &self.run
    }

    /// The incomplete line at the end, if there is one.
    pub fn torn(&self) -> Option<IncompleteLine> {
        let bytes = self.partial_length;
        (bytes > 0).then_some(IncompleteLine { line: self.lines + 1, bytes })
    }

    /// The first complete lines that are no events. A disk that was full, an editor or a later version
    /// may have made them.
    pub fn broken(&self) -> &[Broken] {
        &self.broken
    }

    /// The number of all complete lines that are no events.
    pub fn broken_count(&self) -> u64 {
        self.broken_count
    }

    /// Reads what was added since the last call, and says whether there was anything. If the log was
    /// replaced by another one, it reads that one from its beginning. Lines that are no events are left
    /// out: see [`broken`](Self::broken).
    ///
    /// # Errors
    /// If the file cannot be read, or if it has lines and none is an event.
    pub fn poll(&mut self) -> Result<bool> {
        let mut found = self.follow().map_err(|source| self.unreadable(source))?;
        loop {
            let bytes = match self.file.fill_buf() {
                Ok(bytes) => bytes,
                Err(source) => return Err(self.unreadable(source)),
            };
            if bytes.is_empty() {
                return self.has_events().map(|()| found);
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let part = &bytes[..end.unwrap_or(bytes.len())];
            let taken = end.map_or(bytes.len(), |at| at + 1);
            self.partial_length += part.len();
            let is_too_long = self.partial_length > LONGEST_LINE;
            // A line that lies in the buffer as a whole is not copied.
            if !is_too_long && (end.is_none() || !self.partial.is_empty()) {
                self.partial.extend_from_slice(part);
            }
            let line = if self.partial.is_empty() { part } else { &self.partial };
            let event = end.map(|_| match is_too_long {
                true => Err(format!("it is longer than {LONGEST_LINE} bytes")),
                false => parse(line),
            });
            self.file.consume(taken);
            if let Some(event) = event {
                self.line(event);
                found = true;
            }
        }
    }

    /// Takes up a complete line.
    fn line(&mut self, event: std::result::Result<Event, String>) {
        self.read += self.partial_length as u64 + 1;
        self.lines += 1;
        self.forget_partial();
        match event {
            Ok(event) => self.run.event(event),
            Err(reason) => {
                self.broken_count += 1;
                if self.broken.len() < MOST_BROKEN {
                    self.broken.push(Broken { line: self.lines, reason });
                }
            }
        }
    }

    /// Refuses a file that has nothing to do with a run.
    fn has_events(&self) -> Result<()> {
        match self.broken.first() {
            Some(Broken { line, reason }) if self.run.events == 0 => {
                Err(Error::NoEvent { path: self.path.clone(), line: *line, reason: reason.clone() })
            }
            _ => Ok(()),
        }
    }

    fn forget_partial(&mut self) {
        self.partial.clear();
        self.partial_length = 0;
    }

    fn unreadable(&self, source: io::Error) -> Error {
        Error::Read { path: self.path.clone(), source }
    }

    /// Goes to the end of the last complete line, or to the beginning if the path now has another file,
    /// or a shorter one. Says whether it begins again.
    fn follow(&mut self) -> io::Result<bool> {
        let now = fs::metadata(&self.path)?;
        if (now.dev(), now.ino()) == self.identity && now.len() >= self.read {
            if self.partial_length > 0 {
                // A run that goes on may have cut this line off and written another one.
                self.forget_partial();
                self.file.seek(SeekFrom::Start(self.read))?;
            }
            return Ok(false);
        }
        (self.file, self.identity) = open(&self.path)?;
        (self.read, self.lines) = (0, 0);
        self.forget_partial();
        self.broken.clear();
        self.broken_count = 0;
        self.run = RunHistory::default();
        Ok(true)
    }
}

/// The file, with its device and inode.
fn open(path: &Path) -> io::Result<(BufReader<File>, (u64, u64))> {
    // To open a pipe would wait for its writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let file = File::open(path)?;
    let found = file.metadata()?;
    Ok((BufReader::with_capacity(1 << 18, file), (found.dev(), found.ino())))
}

fn parse(line: &[u8]) -> std::result::Result<Event, String> {
    serde_json::from_slice(line).map_err(|error| {
        // The line is given by the caller, and is not the `line 1` of this message.
        let text = error.to_string();
        text.split(" at line 1 ").next().unwrap_or(&text).to_owned()
    })
}
