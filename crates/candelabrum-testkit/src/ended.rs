//! What has become of a program, and what a test asserts about it.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// A program that has ended.
#[derive(Clone, Debug)]
pub struct EndedProgram {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// The signal that ended the program.
    pub signal: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
    /// Standard output, then standard error.
    pub text: String,
    /// From the start to the end.
    pub took: Duration,
}

impl EndedProgram {
    pub(crate) fn new(status: ExitStatus, out: &[u8], err: &[u8], took: Duration) -> Self {
        let [out, err] = [out, err].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let text = [&*out, &*err].concat();
        Self { code: status.code(), signal: status.signal(), out, err, text, took }
    }

    /// Whether the program ended with code 0.
    pub fn succeeded(&self) -> bool {
        self.code == Some(0)
    }

    /// The program must have succeeded.
    ///
    /// # Panics
    /// If it has not.
    #[track_caller]
    pub fn success(self) -> Self {
        self.expect(0)
    }

    /// The program must have ended with this code.
    ///
    /// # Panics
    /// If it has not.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "signal {:?}: {}", self.signal, self.text);
        self
    }

    /// The errors must contain all these parts.
    ///
    /// # Panics
    /// If a part is missing.
    #[track_caller]
    pub fn says(self, parts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        for part in parts {
            let part = part.as_ref();
            assert!(self.err.contains(part), "`{part}` is missing: {}", self.text);
        }
        self
    }

    /// The program must have failed in order: a code other than 0, one line that begins with `error:` and contains
    /// all these parts, no panic.
    ///
    /// # Panics
    /// If it has not.
    #[track_caller]
    pub fn fails(self, parts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let err = &self.err;
        assert!(!self.succeeded(), "it succeeded: {}", self.text);
        let lines: Vec<&str> = err.lines().filter(|line| !line.trim().is_empty()).collect();
        assert_eq!(lines.len(), 1, "one line was expected: {err}");
        assert!(lines[0].starts_with("error: ") && !err.contains("panicked"), "{err}");
        self.says(parts)
    }

    /// The lines of standard output, sorted: ranks write in any order.
    pub fn lines(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.out.lines().collect();
        lines.sort_unstable();
        lines
    }
}
