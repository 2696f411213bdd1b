//! The lines between this program and the benchmark that started it.
//!
//! Rank 0 prints a line when all ranks are ready, one for each request, and one at the end of its
//! input. Only rank 0 reads requests. Every line is a flat JSON object. The printed lines have an
//! `event`: `ready`, `sample` or `done`. A field is left out if its value is not known.

use std::io::{self, BufRead, Write};

use anyhow::Context;
use candelabrum::dist::World;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A program that answers requests. All ranks call each method at the same time, servers of a key-value
/// store too.
pub(crate) trait RequestHandler {
    type Request: DeserializeOwned;

    /// The fields of the first line, besides the ranks and their backend.
    fn ready(&self) -> Value {
        json!({})
    }

    fn sample(&mut self, request: Self::Request) -> anyhow::Result<Value>;
}

/// A requested time: from 0 to below a million seconds.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "f64")]
pub(crate) struct Seconds(pub(crate) f64);

impl TryFrom<f64> for Seconds {
    type Error = &'static str;

    fn try_from(seconds: f64) -> Result<Self, Self::Error> {
        let is_allowed = (0.0..1e6).contains(&seconds);
        is_allowed.then_some(Self(seconds)).ok_or("seconds are from 0 to below 1e6")
    }
}

/// Answers the requests of standard input on standard output.
pub(crate) fn serve(player: &mut impl RequestHandler, world: &World) -> anyhow::Result<()> {
    serve_lines(player, world, io::stdin().lock(), io::stdout())
}

fn serve_lines(
    player: &mut impl RequestHandler,
    world: &World,
    mut input: impl BufRead,
    mut output: impl Write,
) -> anyhow::Result<()> {
    let mut say = |event: &str, mut fields: Value| {
        fields["event"] = event.into();
        if world.is_root() { writeln!(output, "{fields}") } else { Ok(()) }
    };
    let everyone = world.everyone();
    let mut ready = player.ready();
    ready["ranks"] = everyone.world_size().into();
    ready["backend"] = everyone.backend().into();
    say("ready", ready)?;
    loop {
        let mut line = String::new();
        if world.is_root() {
            input.read_line(&mut line)?;
        }
        // All ranks parse the same text, so all of them refuse the same requests.
        let line = everyone.broadcast_text(&line, 0)?;
        if line.is_empty() {
            return Ok(say("done", json!({}))?);
        }
        let line = line.trim_end();
        let request = serde_json::from_str(line).with_context(|| format!("asked for `{line}`"))?;
        say("sample", player.sample(request)?)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Twice;

    impl RequestHandler for Twice {
        type Request = Seconds;

        fn sample(&mut self, Seconds(seconds): Seconds) -> anyhow::Result<Value> {
            Ok(json!({"seconds": 2.0 * seconds}))
        }
    }

    fn serve(input: &str) -> (String, anyhow::Result<()>) {
        let mut output = Vec::new();
        let served = serve_lines(&mut Twice, &World::single(), input.as_bytes(), &mut output);
        (String::from_utf8(output).expect("it is text"), served)
    }

    #[test]
    fn every_line_is_a_sample_between_ready_and_done() {
        let (output, served) = serve("0\n0.25");
        let ready = json!({"event": "ready", "ranks": 1, "backend": "single"});
        let samples = [0.0, 0.5].map(|seconds| json!({"event": "sample", "seconds": seconds}));
        let expected = format!("{ready}\n{}\n{}\n{{\"event\":\"done\"}}\n", samples[0], samples[1]);
        assert_eq!((output, served.is_ok()), (expected, true));
    }

    #[test]
    fn another_line_is_an_error_that_shows_it() {
        for line in ["", "go 1", "{}", "-1", "1e6", "NaN", "1 1"] {
            let (output, served) = serve(&format!("{line}\n1\n"));
            let message = served.expect_err("it is refused").to_string();
            assert_eq!((message, output.lines().count()), (format!("asked for `{line}`"), 1));
        }
    }
}
