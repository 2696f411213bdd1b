//! The lines between this program and the one that started it.

use std::io;

use anyhow::Context;
use serde::Serialize;

/// The request for a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) elements: usize,
    pub(crate) seconds: f64,
}

/// The answers.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    Ready {
        backend: &'static str,
        ranks: usize,
    },
    Sample {
        /// Of one operation: the median of the batches.
        seconds: f64,
        /// The number of batches, and the number of operations in each.
        batches: usize,
        operations: usize,
        /// Whether the sum of known numbers was right, before the timing.
        correct: bool,
    },
    Done {},
}

/// The next request; `None` at the end.
pub(crate) fn next_request() -> anyhow::Result<Option<Request>> {
    let mut line = String::new();
    if io::stdin().read_line(&mut line)? == 0 {
        return Ok(None);
    }
    parse(&line).map(Some)
}

fn parse(line: &str) -> anyhow::Result<Request> {
    let request = || {
        let (elements, seconds) = line.trim().strip_prefix("go ")?.split_once(' ')?;
        let seconds: f64 = seconds.parse().ok().filter(|s| (0.0..1e6).contains(s))?;
        Some(Request { elements: elements.parse().ok()?, seconds })
    };
    request().with_context(|| format!("asked for `{line}`, expected `go ELEMENTS SECONDS`"))
}

pub(crate) fn say(event: &Event) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(event)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_how_much_and_how_long() -> anyhow::Result<()> {
        assert_eq!(parse("go 1000 0.25\n")?, Request { elements: 1000, seconds: 0.25 });
        for wrong in ["go", "go 10", "stop 10 1", "go 10 -1", "go 10 NaN", "go x 1"] {
            assert!(parse(wrong).unwrap_err().to_string().contains(wrong));
        }
        Ok(())
    }
}
