//! The lines between this program and the one that started it. Rank 0 speaks for all ranks.

use std::io;

use anyhow::Context;
use candelabrum::dist::World;
use serde::Serialize;

/// The kind of a requested sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Training, the exchange after backward.
    Off,
    /// Training with overlap.
    On,
    /// The exchange alone.
    Exchange,
}

/// The repetitions of one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    pub(crate) count: usize,
    /// Of one repetition.
    pub(crate) seconds: f64,
}

/// The answers.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    Ready {
        backend: &'static str,
        ranks: usize,
        gradient_bytes: usize,
    },
    Sample {
        times: usize,
        /// Of one step or exchange, from the first rank's start to the last rank's end.
        seconds: f64,
        /// The parts of a step's time on rank 0.
        step_seconds: Option<Parts>,
        /// Of a step: the time in which collectives were running on rank 0.
        communication_seconds: Option<f64>,
    },
    Done {},
}

/// The parts of the mean step's time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Parts {
    pub(crate) total: f64,
    pub(crate) forward: f64,
    pub(crate) backward: f64,
    pub(crate) compress: f64,
    pub(crate) exposed_communication: f64,
    pub(crate) decompress: f64,
    pub(crate) update: f64,
    /// The rest of the time, which no part contains.
    pub(crate) other: f64,
}

/// The request to rank 0, on every rank. `None` at the end.
pub(crate) fn next(world: &World) -> anyhow::Result<Option<(Ask, f64)>> {
    let mut words = [-1.0, 0.0];
    if world.is_root() {
        let mut line = String::new();
        if io::stdin().read_line(&mut line)? > 0 {
            let (ask, seconds) = parse(&line)?;
            words = [f64::from(ask as u8), seconds];
        }
    }
    world.comm().broadcast(&mut words, 0)?;
    let asks = [Ask::Off, Ask::On, Ask::Exchange];
    Ok(asks.into_iter().find(|&ask| f64::from(ask as u8) == words[0]).map(|ask| (ask, words[1])))
}

fn parse(line: &str) -> anyhow::Result<(Ask, f64)> {
    let request = || {
        let (ask, seconds) = line.trim().strip_prefix("go ")?.split_once(' ')?;
        let ask = match ask {
            "off" => Ask::Off,
            "on" => Ask::On,
            "exchange" => Ask::Exchange,
            _ => return None,
        };
        Some((ask, seconds.parse().ok().filter(|s| (0.0..1e6).contains(s))?))
    };
    request().with_context(|| format!("asked for `{line}`, expected `go off|on|exchange SECONDS`"))
}

pub(crate) fn say(world: &World, event: &Event) -> anyhow::Result<()> {
    if world.is_root() {
        println!("{}", serde_json::to_string(event)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_what_and_how_long() -> anyhow::Result<()> {
        assert_eq!(parse("go on 0.5\n")?, (Ask::On, 0.5));
        assert_eq!(parse("go exchange 2")?, (Ask::Exchange, 2.0));
        for wrong in ["go", "go 1", "go off", "go off -1", "go maybe 1", "on 1"] {
            assert!(parse(wrong).unwrap_err().to_string().contains(wrong));
        }
        Ok(())
    }
}
