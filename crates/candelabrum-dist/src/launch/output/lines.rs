//! The lines of a stream of bytes.
//!
//! Processes write pieces of lines, very long lines, and bytes that are no text. Only whole lines
//! leave this file, so the lines of several processes can be shown in turn. Its memory is limited,
//! whatever a process writes.

use std::time::{Duration, Instant};

/// A line that is longer than this many bytes is shown as several lines.
pub(super) const LONGEST: usize = 64 * 1024;

/// A program that writes over its line again and again, as a progress bar does, is shown at most
/// once in this time.
const REWRITE: Duration = Duration::from_secs(1);

/// The beginning of a line whose end has not come yet.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    partial: Vec<u8>,
    /// The last byte was a carriage return: the line ends if a newline follows, and is written over
    /// otherwise.
    returned: bool,
    /// When a line that was written over has been given.
    rewritten: Option<Instant>,
}

impl LineSplitter {
    /// Adds bytes and gives every line that they complete, without its end.
    pub(super) fn push(&mut self, mut bytes: &[u8], now: Instant, mut give: impl FnMut(&[u8])) {
        while let Some(&first) = bytes.first() {
            if self.returned {
                self.returned = false;
                if first != b'\n' && first != b'\r' {
                    self.written_over(now, &mut give);
                }
            }
            let until = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let (text, rest) = bytes.split_at(until.unwrap_or(bytes.len()));
            self.append(text, &mut give);
            match rest.split_first() {
                Some((b'\n', rest)) => {
                    give(&self.partial);
                    self.partial.clear();
                    bytes = rest;
                }
                Some((_, rest)) => {
                    self.returned = true;
                    bytes = rest;
                }
                None => bytes = rest,
            }
        }
    }

    /// Gives the last line if it has no end.
    pub(super) fn finish(&mut self, mut give: impl FnMut(&[u8])) {
        if !self.partial.is_empty() {
            give(&self.partial);
        }
        *self = Self::default();
    }

    fn append(&mut self, mut text: &[u8], give: &mut impl FnMut(&[u8])) {
        while self.partial.len() + text.len() > LONGEST {
            let (fits, rest) = text.split_at(LONGEST - self.partial.len());
            self.partial.extend_from_slice(fits);
            give(&self.partial);
            self.partial.clear();
            text = rest;
        }
        self.partial.extend_from_slice(text);
    }

    fn written_over(&mut self, now: Instant, give: &mut impl FnMut(&[u8])) {
        let is_due = self.rewritten.is_none_or(|before| now.duration_since(before) >= REWRITE);
        if is_due && !self.partial.is_empty() {
            self.rewritten = Some(now);
            give(&self.partial);
        }
        self.partial.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The lines of pieces that come at the same time.
    fn lines(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut lines, mut all, now) = (LineSplitter::default(), Vec::new(), Instant::now());
        for piece in pieces {
            lines.push(piece, now, |line| all.push(line.to_vec()));
        }
        lines.finish(|line| all.push(line.to_vec()));
        all
    }

    #[test]
    fn pieces_become_whole_lines_and_the_last_line_needs_no_end() {
        assert_eq!(lines(&[b"a", b"b\nc", b"\n\nd"]), [&b"ab"[..], b"c", b"", b"d"]);
        assert_eq!(lines(&[b"a\r\nb\r", b"\nc\r\r\n"]), [b"a", b"b", b"c"]);
        assert_eq!(lines(&[b"\xff\xfe\n\0"]), [&b"\xff\xfe"[..], b"\0"]);
        assert!(lines(&[b"", b""]).is_empty());
    }

    #[test]
    fn a_progress_bar_is_shown_once_a_second_and_at_its_end() {
        let bar = b" 1%\r 2%\r 3%\r100%\r\ndone\n";
        assert_eq!(lines(&[bar]), [&b" 1%"[..], b"100%", b"done"]);
        let (mut lines, mut all, start) = (LineSplitter::default(), Vec::new(), Instant::now());
        for tenths in 0..25 {
            let now = start + Duration::from_millis(100 * tenths);
            lines.push(format!("\r{tenths}").as_bytes(), now, |line| all.push(line.to_vec()));
        }
        assert_eq!(all, [&b"0"[..], b"10", b"20"]);
    }

    #[test]
    fn a_line_without_an_end_costs_limited_memory() {
        let (mut lines, mut longest, mut sum) = (LineSplitter::default(), 0, 0);
        let piece = vec![b'x'; 100_000];
        for _ in 0..50 {
            lines.push(&piece, Instant::now(), |line| {
                longest = longest.max(line.len());
                sum += line.len();
            });
            assert!(lines.partial.capacity() <= 2 * LONGEST, "{}", lines.partial.capacity());
        }
        lines.finish(|line| sum += line.len());
        assert_eq!((longest, sum), (LONGEST, 50 * piece.len()));
    }

    proptest! {
        #[test]
        fn where_the_pieces_are_cut_does_not_matter(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..200),
            size in 1_usize..7,
        ) {
            let pieces: Vec<&[u8]> = text.chunks(size).collect();
            prop_assert_eq!(lines(&pieces), lines(&[&text]));
            // Without carriage returns they are the lines of the text.
            let text: Vec<u8> = text.into_iter().filter(|&byte| byte != b'\r').collect();
            let mut expected: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
            if expected.last().is_some_and(|last| last.is_empty()) {
                expected.pop();
            }
            prop_assert_eq!(lines(&[&text]), expected);
        }
    }
}
