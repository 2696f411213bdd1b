//! What stands before each line of a rank: its number, in the rank's colour on a terminal, and the
//! time of day if asked for.

use std::io::{Write, stderr, stdout};
use std::sync::Arc;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use candelabrum_dist::launch::{Prefix, Stream};
use jiff::ZonedDateTime;

use super::args::PrefixKind;

/// The colours of ranks, in turn. Red is left to errors.
const COLOURS: [AnsiColor; 10] = [
    AnsiColor::Cyan,
    AnsiColor::Green,
    AnsiColor::Yellow,
    AnsiColor::Magenta,
    AnsiColor::Blue,
    AnsiColor::BrightCyan,
    AnsiColor::BrightGreen,
    AnsiColor::BrightYellow,
    AnsiColor::BrightMagenta,
    AnsiColor::BrightBlue,
];

/// The writer of prefixes. Each stream has colours if it is a terminal, unless NO_COLOR is set.
pub(super) fn prefix(kind: PrefixKind) -> Option<Prefix> {
    let out = AutoStream::choice(&stdout()) != ColorChoice::Never;
    let err = AutoStream::choice(&stderr()) != ColorChoice::Never;
    let clock = match kind {
        PrefixKind::None => return None,
        PrefixKind::Rank => false,
        PrefixKind::RankTime => true,
    };
    Some(Arc::new(move |rank, stream, line: &mut Vec<u8>| {
        let has_colours = match stream {
            Stream::Out => out,
            Stream::Err => err,
        };
        let time = if clock { now() } else { String::new() };
        write(rank, &time, has_colours, line);
    }))
}

/// The time of day with a space before it.
fn now() -> String {
    ZonedDateTime::now().strftime(" %H:%M:%S%.3f").to_string()
}

fn write(rank: usize, time: &str, has_colours: bool, line: &mut Vec<u8>) {
    let style = match has_colours {
        true => Style::new().fg_color(Some(COLOURS[rank % COLOURS.len()].into())),
        false => Style::new(),
    };
    // A `Vec` takes everything.
    drop(write!(line, "{style}[{rank}{time}]{style:#} "));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(rank: usize, time: &str, has_colours: bool) -> String {
        let mut line = Vec::new();
        write(rank, time, has_colours, &mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn the_rank_is_in_its_colour_and_the_line_is_not() {
        assert_eq!(written(3, "", false), "[3] ");
        assert_eq!(written(3, " 12:00:00.000", false), "[3 12:00:00.000] ");
        let coloured = written(1, "", true);
        assert!(
            coloured.starts_with("\x1b[32m[1]") && coloured.ends_with("\x1b[0m "),
            "{coloured:?}"
        );
        assert_ne!(written(0, "", true)[..5], coloured[..5]);
        assert_eq!(written(0, "", true)[..5], written(COLOURS.len(), "", true)[..5]);
    }

    #[test]
    fn the_time_is_a_time_of_day() {
        let time = now();
        assert_eq!((time.len(), time.matches(':').count()), (" 12:00:00.000".len(), 2), "{time}");
    }
}
