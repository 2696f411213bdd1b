//! Artificial outcomes for tests.

use super::contender::Contender;
use super::plan::Config;
use super::trial::{Outcome, Sample};
use crate::network::Network;
use crate::training::{Measured, Ready};

/// A configuration with the CNN.
pub(super) fn config(batch_size: usize, threads: usize) -> Config {
    Config { network: Network::Cnn, batch_size, threads }
}

/// A contender with these examples per second, round by round, and a constant loss.
pub(super) fn outcome(config: Config, who: Contender, speeds: &[f64], loss: f64) -> Outcome {
    let mut outcome = Outcome::new(config, who);
    outcome.ready = Some(Ready { warm_up_losses: vec![loss; 14], version: None });
    outcome.peak_rss_mb = Some(10.0);
    for (round, speed) in speeds.iter().enumerate() {
        let seconds = config.batch_size as f64 / speed;
        let measured = Measured { steps: 1, seconds, cpu_seconds: seconds, loss };
        outcome.samples.push(Sample { round, measured, others_cpu_share: Some(0.01) });
    }
    outcome
}
