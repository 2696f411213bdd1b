//! Checks the quotes of a table (RFC 4180), and that it is a text, while it is read.
//!
//! A quote that is not closed takes all following rows, up to the next quote, into its cell. If this is
//! the last cell of its row, the row has the right number of cells, and no reader of tables notices that
//! rows are missing. So this reader of bytes follows the quotes itself. It also finds the zeros at the end
//! of a file whose rest has not arrived, which would become a part of the last class.

use std::io::{self, Read};

/// Gives the bytes of a table on, and finds the first byte that is in a wrong place.
#[derive(Debug)]
pub(crate) struct Quotes<R> {
    from: R,
    delimiter: u8,
    place: CellPlace,
    /// The line that is read, counted from 1, and whether a line feed belongs to the line end before it.
    line: u64,
    after_return: bool,
    /// The line of the quote that was opened last.
    opened: u64,
    wrong: Option<QuoteError>,
    /// Whether all bytes have been read.
    ended: bool,
}

/// What is wrong with a quote or another byte, and on which line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuoteError {
    /// It opens a cell and is never closed.
    Open(u64),
    /// It closes a cell, and other text follows.
    Inside(u64),
    /// A byte is zero.
    Zero(u64),
}

impl QuoteError {
    /// The line, and what is wrong there and what to do.
    pub(crate) fn in_words(self) -> (u64, &'static str) {
        match self {
            Self::Open(line) => {
                (line, "the quote of a cell is not closed: close it, or double a quote in a cell")
            }
            Self::Inside(line) => (
                line,
                "text follows the quote that closes a cell: double a quote in a cell, or close the \
                 quote of a cell before",
            ),
            Self::Zero(line) => (
                line,
                "a zero byte: the rest of the file has not arrived, or it is no UTF-8; fetch it \
                 again or convert it",
            ),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CellPlace {
    /// At the start of the file, after some bytes of a byte order mark.
    Mark(u8),
    Start,
    Plain,
    Quoted,
    /// After a quote in a quoted cell: it closes the cell, or another one follows.
    Quote,
    /// After a quote that has closed a cell, and blanks.
    Closed,
}

impl<R> Quotes<R> {
    pub(crate) fn new(from: R, delimiter: u8) -> Self {
        let (place, line, opened) = (CellPlace::Mark(0), 1, 1);
        let (after_return, wrong, ended) = (false, None, false);
        Self { from, delimiter, place, line, after_return, opened, wrong, ended }
    }

    /// The first wrong byte so far. To be called when all has been read, or the table was wrong.
    pub(crate) fn wrong(&self) -> Option<QuoteError> {
        let is_open = self.ended && self.place == CellPlace::Quoted;
        self.wrong.or(is_open.then_some(QuoteError::Open(self.opened)))
    }

    fn see(&mut self, byte: u8) {
        const MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
        if byte == 0 {
            self.wrong.get_or_insert(QuoteError::Zero(self.line));
        }
        let is_line_feed = byte == b'\n' && !self.after_return;
        self.line += u64::from(byte == b'\r' || is_line_feed);
        self.after_return = byte == b'\r';
        let ends_cell = byte == self.delimiter || matches!(byte, b'\n' | b'\r');
        self.place = match self.place {
            CellPlace::Mark(known) if MARK.get(usize::from(known)) == Some(&byte) => {
                CellPlace::Mark(known + 1)
            }
            CellPlace::Quoted if byte == b'"' => CellPlace::Quote,
            CellPlace::Quoted => CellPlace::Quoted,
            CellPlace::Quote if byte == b'"' => CellPlace::Quoted,
            _ if ends_cell => CellPlace::Start,
            CellPlace::Start | CellPlace::Mark(_) if byte == b'"' => {
                self.opened = self.line;
                CellPlace::Quoted
            }
            CellPlace::Start | CellPlace::Mark(_) | CellPlace::Plain => CellPlace::Plain,
            CellPlace::Quote | CellPlace::Closed if matches!(byte, b' ' | b'\t') => {
                CellPlace::Closed
            }
            CellPlace::Quote | CellPlace::Closed => {
                self.wrong.get_or_insert(QuoteError::Inside(self.line));
                CellPlace::Plain
            }
        };
    }
}

impl<R: Read> Read for Quotes<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(to)?;
        self.ended = read == 0 && !to.is_empty();
        to[..read].iter().for_each(|&byte| self.see(byte));
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_quote_is_found_on_its_line_and_a_right_one_is_not() {
        let wrong = |text: &str| {
            let mut quotes = Quotes::new(text.as_bytes(), b',');
            io::copy(&mut quotes, &mut io::sink()).unwrap();
            quotes.wrong()
        };
        for right in [
            "a,b\n1,\"x\"\n",
            "\u{feff}\"a\",b\r\n\"x\r\ny\" ,\"\"\r\n",
            "5\" pipe,a\"\n",
            "\"say \"\"a\"\"\",\"\"\"\"\n",
            "a, \"b\n",
        ] {
            assert_eq!(wrong(right), None, "{right:?}");
        }
        assert_eq!(wrong("a,b\n1,\"x\n2,y\n"), Some(QuoteError::Open(2)));
        assert_eq!(wrong("a\r\n\r\n\"x\ry\n"), Some(QuoteError::Open(3)));
        assert_eq!(wrong("\u{feff}\"a,b\n"), Some(QuoteError::Open(1)));
        assert_eq!(wrong("a,b\n1,\"x\n2,\"y\"\n"), Some(QuoteError::Inside(3)));
        assert_eq!(wrong("a,b\n1,\"x\" y\n"), Some(QuoteError::Inside(2)));
        assert_eq!(wrong("a,b\n1,\"x\0\0"), Some(QuoteError::Zero(2)));
    }
}
