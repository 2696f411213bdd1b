//! A contender in training: its warm-up, and the samples that the caller requests.
//!
//! The caller writes `go SECONDS` lines and reads one JSON line for each. At the end of the input
//! the contender prints its peak memory and ends. With several ranks, the root speaks for all.

use std::fs;
use std::io::BufRead;
use std::time::{Duration, Instant};

use anyhow::Context;
use candelabrum::dist::World;
use candle_core::Tensor;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::Train;

/// The answers, one line each.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The contender is warm. From now on it accepts requests for samples.
    Ready {
        /// The loss of each warm-up step. Every contender takes these steps on the same batches.
        warm_up_losses: Vec<f32>,
    },
    /// One sample.
    Sample {
        steps: usize,
        seconds: f64,
        /// Of all threads of this process.
        cpu_seconds: f64,
        /// Of the last step. A faster contender has taken more steps by then.
        loss: f32,
    },
    /// The end.
    Done {
        /// The peak memory of this process. `None` if the system does not report it.
        peak_rss_mb: Option<f64>,
    },
}

/// A contender and its batches.
pub(crate) struct Run {
    contender: Box<dyn Train>,
    batches: Vec<(Tensor, Tensor)>,
    world: World,
    taken: usize,
    /// Seconds of a step, as measured so far.
    step_seconds: f64,
}

impl Run {
    pub(crate) fn new(
        contender: Box<dyn Train>,
        batches: Vec<(Tensor, Tensor)>,
        world: World,
    ) -> Self {
        Self { contender, batches, world, taken: 0, step_seconds: 0.0 }
    }

    pub(crate) fn contender(&self) -> &dyn Train {
        &*self.contender
    }

    /// Returns the loss before the update.
    pub(crate) fn step(&mut self) -> anyhow::Result<Tensor> {
        let (xs, ys) = &self.batches[self.taken % self.batches.len()];
        self.taken += 1;
        self.contender.step(xs, ys)
    }

    /// Takes some steps and returns their losses.
    pub(crate) fn warm_up(&mut self, steps: usize) -> anyhow::Result<Vec<f32>> {
        let mut losses = Vec::with_capacity(steps);
        for _ in 0..steps {
            let start = Instant::now();
            losses.push(self.step()?.to_scalar()?);
            self.step_seconds = start.elapsed().as_secs_f64();
        }
        Ok(losses)
    }

    /// Trains for some seconds, at least one step. Returns the steps, the time and the last loss.
    pub(crate) fn train(&mut self, seconds: f64) -> anyhow::Result<(usize, Duration, Tensor)> {
        if self.world.world_size() > 1 {
            return self.train_together(seconds);
        }
        let limit = Duration::from_secs_f64(seconds);
        let start = Instant::now();
        let mut steps = 0;
        loop {
            let loss = self.step()?;
            steps += 1;
            if start.elapsed() >= limit {
                loss.to_scalar::<f32>()?; // waits for a GPU
                return Ok((steps, start.elapsed(), loss));
            }
        }
    }

    /// [`Self::train`] for several ranks, which must take the same number of steps. The root
    /// chooses the number that fills the time, by its measurements so far. The time is that of the
    /// last rank.
    fn train_together(&mut self, seconds: f64) -> anyhow::Result<(usize, Duration, Tensor)> {
        let mut steps = [(seconds / self.step_seconds.max(1e-9)).ceil().clamp(1.0, 1e6)];
        self.world.comm().broadcast(&mut steps, 0)?;
        let steps = steps[0] as usize;
        self.world.comm().barrier()?;
        let start = Instant::now();
        for _ in 1..steps {
            self.step()?;
        }
        let loss = self.step()?;
        loss.to_scalar::<f32>()?; // waits for a GPU
        self.world.comm().barrier()?;
        let elapsed = start.elapsed();
        self.step_seconds = elapsed.as_secs_f64() / steps as f64;
        Ok((steps, elapsed, loss))
    }

    fn sample(&mut self, seconds: f64) -> anyhow::Result<Event> {
        let cpu = cpu_time();
        let (steps, elapsed, loss) = self.train(seconds)?;
        Ok(Event::Sample {
            steps,
            seconds: elapsed.as_secs_f64(),
            cpu_seconds: (cpu_time() - cpu).as_secs_f64(),
            loss: loss.to_scalar()?,
        })
    }

    /// Warms up, answers every line of `input`, and prints the last line.
    pub(crate) fn serve(
        &mut self,
        warm_up: usize,
        input: impl BufRead,
        mut say: impl FnMut(&Event) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let is_root = self.world.is_root();
        let mut say = |event: &Event| if is_root { say(event) } else { Ok(()) };
        say(&Event::Ready { warm_up_losses: self.warm_up(warm_up)? })?;
        let mut lines = input.lines();
        loop {
            let line = if is_root { lines.next().transpose()? } else { None };
            let asked = line.map(|line| seconds_asked(&line)).transpose()?;
            let Some(seconds) = self.share(asked)? else { break };
            say(&self.sample(seconds)?)?;
        }
        say(&Event::Done { peak_rss_mb: peak_rss_mb() })
    }

    /// The request to the root, on every rank. `None` at the end.
    fn share(&self, seconds: Option<f64>) -> anyhow::Result<Option<f64>> {
        let mut word = [seconds.unwrap_or(-1.0)];
        self.world.comm().broadcast(&mut word, 0)?;
        Ok(Some(word[0]).filter(|&seconds| seconds >= 0.0))
    }
}

fn seconds_asked(line: &str) -> anyhow::Result<f64> {
    let seconds = line.strip_prefix("go ").and_then(|seconds| seconds.trim().parse().ok());
    seconds
        .filter(|seconds: &f64| (0.0..1e6).contains(seconds))
        .with_context(|| format!("asked for `{line}`, expected `go SECONDS`"))
}

/// Processor time of this process so far.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

fn peak_rss_mb() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// Its loss is the number of its step.
    struct Counter(f32);

    impl Train for Counter {
        fn step(&mut self, _: &Tensor, _: &Tensor) -> anyhow::Result<Tensor> {
            self.0 += 1.0;
            Ok(Tensor::new(self.0, &Device::Cpu)?)
        }
    }

    fn serve(input: &str) -> (Vec<Event>, anyhow::Result<()>) {
        let zero = Tensor::new(0_u32, &Device::Cpu).unwrap();
        let batches = vec![(zero.clone(), zero)];
        let mut run = Run::new(Box::new(Counter(0.0)), batches, World::single());
        let mut events = Vec::new();
        let result = run.serve(3, input.as_bytes(), |event| {
            events.push(event.clone());
            Ok(())
        });
        (events, result)
    }

    #[test]
    fn every_line_is_a_sample_between_ready_and_done() {
        let (events, result) = serve("go 0\ngo 0.000\n");
        result.unwrap();
        assert_eq!(events[0], Event::Ready { warm_up_losses: vec![1.0, 2.0, 3.0] });
        for (event, last) in events[1..3].iter().zip([4.0, 5.0]) {
            assert!(matches!(event, Event::Sample { steps: 1, loss, .. } if *loss == last));
        }
        assert!(matches!(events[3], Event::Done { .. }));
        assert_eq!(events.len(), 4);
    }

    #[test]
    fn another_line_is_an_error() {
        for line in ["stop", "go", "go x", "go -1", "go NaN"] {
            let message = serve(line).1.unwrap_err().to_string();
            assert!(message.contains(line), "{message}");
        }
    }
}
