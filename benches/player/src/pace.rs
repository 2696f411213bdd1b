//! Repetitions of an operation: equally many on every rank, although each rank has its own clock.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use candelabrum::dist::World;
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::serve::Seconds;

/// The number of repetitions.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Repeat {
    /// About as many as fill this time, at least one.
    Seconds(Seconds),
    Steps(NonZeroU32),
}

/// Processor time of this process so far.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Repetitions, and the time from the start of the first one to the end of the last rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) steps: u32,
    pub(crate) time: Duration,
}

impl Timing {
    pub(crate) fn step_seconds(&self) -> f64 {
        self.time.as_secs_f64() / f64::from(self.steps)
    }

    pub(crate) fn fields(&self) -> Value {
        let (seconds, step_seconds) = (self.time.as_secs_f64(), self.step_seconds());
        json!({"steps": self.steps, "seconds": seconds, "step_seconds": step_seconds})
    }
}

/// The ranks that repeat an operation together, and the time of one repetition.
#[derive(Debug)]
pub(crate) struct RankPace {
    pub(crate) world: World,
    step_seconds: f64,
}

impl RankPace {
    /// The first request for a time gets one repetition, because the time of one is not known.
    pub(crate) fn new(world: &World) -> Self {
        Self { world: world.clone(), step_seconds: f64::INFINITY }
    }

    /// Runs `work` with the number of repetitions on all ranks. Rank 0 finds the number that fills
    /// a time by its previous measurement.
    pub(crate) fn run<T>(
        &mut self,
        request: Repeat,
        work: impl FnOnce(u32) -> anyhow::Result<T>,
    ) -> anyhow::Result<(Timing, T)> {
        let mut steps = [match request {
            Repeat::Seconds(Seconds(time)) => (time / self.step_seconds).ceil().clamp(1.0, 1e6),
            Repeat::Steps(steps) => f64::from(steps.get()),
        }];
        let comm = self.world.comm();
        comm.broadcast(&mut steps, 0)?;
        comm.barrier()?;
        let start = Instant::now();
        let result = work(steps[0] as u32)?;
        comm.barrier()?;
        let timed = Timing { steps: steps[0] as u32, time: start.elapsed() };
        self.step_seconds = timed.step_seconds();
        Ok((timed, result))
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    #[test]
    fn the_second_request_for_a_time_fills_it() -> anyhow::Result<()> {
        let mut pace = RankPace::new(&World::single());
        let mut steps = |request: &str| -> anyhow::Result<u32> {
            let work = |steps| {
                sleep(steps * Duration::from_millis(5));
                Ok(())
            };
            Ok(pace.run(serde_json::from_str(request)?, work)?.0.steps)
        };
        assert_eq!(steps(r#"{"seconds":0.1}"#)?, 1);
        assert!((2..=20).contains(&steps(r#"{"seconds":0.1}"#)?));
        assert_eq!((steps(r#"{"steps":3}"#)?, steps(r#"{"seconds":0}"#)?), (3, 1));
        assert!(steps(r#"{"steps":0}"#).is_err());
        Ok(())
    }
}
