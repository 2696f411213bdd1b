//! What all options share: how their values are read, their defaults, and how one that does not fit is rejected.
//!
//! A struct of options derives `clap::Args`, also where a program without a command line writes the struct itself: so
//! the name, the help and the default of an option have one place.

use std::fmt::Display;
use std::time::Duration;

use clap::{Args, Command};

use crate::Error;

/// The options of a command line that gives none.
///
/// # Panics
/// If an option has no default.
pub(crate) fn defaults<A: Args>() -> A {
    let command = A::augment_args(Command::new("defaults").no_binary_name(true));
    let given = command.try_get_matches_from([""; 0]);
    given.and_then(|given| A::from_arg_matches(&given)).expect("every option has a default")
}

/// An option, whether it is given in vain, its value, and what the option must be.
pub(crate) type Conflict<'a> = (&'static str, bool, &'a dyn Display, &'a str);

/// Rejects the first option that is given in vain.
pub(crate) fn reject(options: &[Conflict<'_>]) -> crate::Result<()> {
    match options.iter().find(|(_, is_given, ..)| *is_given) {
        Some(&(option, _, value, range)) => Err(Error::option(option, value, range)),
        None => Ok(()),
    }
}

pub(crate) fn parse_positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(_) => Err("it must be a whole number of at least 1".to_owned()),
    }
}

pub(crate) fn parse_steps(text: &str) -> Result<u64, String> {
    parse_positive(text).map(|steps| steps as u64)
}

pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "it must be a number of seconds".to_owned())
}

/// A duration of numbers with units, such as `1h30m`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let says = || "it must be a duration of at least 1s, such as 90s, 30m, 2h or 1h30m".to_owned();
    let (mut rest, mut total) = (text, 0_u64);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(says)?;
        let number: u64 = rest[..end].parse().map_err(|_| says())?;
        let mut after = rest[end..].chars();
        let seconds = match after.next() {
            Some('s') => 1,
            Some('m') => 60,
            Some('h') => 3600,
            Some('d') => 86_400,
            _ => return Err(says()),
        };
        let part = number.checked_mul(seconds);
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(says)?;
        rest = after.as_str();
    }
    if total == 0 { Err(says()) } else { Ok(Duration::from_secs(total)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_numbers_with_units() {
        let seconds = |text| parse_duration(text).ok().map(|duration| duration.as_secs());
        let right = [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("1d", 86_400)];
        for (text, expected) in right {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
        let wrong = ["", "90", "0s", "h", "1.5h", "-1s", "1h30", "2 h", "3w", "3µ"];
        for text in wrong.into_iter().chain(["99999999999999999999s", "18446744073709551615h"]) {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
