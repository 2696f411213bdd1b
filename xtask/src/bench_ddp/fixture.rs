//! Artificial outcomes for tests: the CNN, two workers, batch 64.

use super::contender::Contender;
use super::{Outcome, Plan, Sample};
use crate::network::Network;
use crate::training::{Measured, Ready};

pub(super) fn plan() -> Plan {
    Plan {
        network: Network::Cnn,
        batch_size: 64,
        workers: 2,
        threads_per_worker: 1,
        contenders: Contender::ALL.to_vec(),
        rounds: 3,
        seconds: 1.0,
    }
}

/// A contender with these steps per second, round by round, and a constant loss.
pub(super) fn outcome(contender: Contender, speeds: &[f64], loss: f64) -> Outcome {
    let mut outcome = Outcome::new(contender);
    outcome.ready = Some(Ready { warm_up_losses: vec![loss; 14], version: None });
    for (round, speed) in speeds.iter().enumerate() {
        let measured = Measured { steps: 1, seconds: 1.0 / speed, cpu_seconds: 0.0, loss };
        outcome.samples.push(Sample { round, measured, others_cpu_share: Some(0.01) });
    }
    outcome
}
