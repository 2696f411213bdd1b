//! Artificial samples for tests.

use super::{Measured, Network, Plan, Ready, Results, Sample, Way};
use crate::split::{Part, Split};

pub(super) fn plan() -> Plan {
    Plan { network: Network::Mlp, batch_size: 8, rounds: 2, seconds: 1.0 }
}

/// Rounds of steps without overlap and with it. The backward and the exchange always take the same
/// time, and all other time of a step is exposed.
pub(super) fn results(steps: &[(f64, f64)], backward: f64, exchange: f64) -> Results {
    let mut results = Results {
        ready: Some(Ready { backend: "mpi".into(), ranks: 2, gradient_bytes: 4_000_000 }),
        rate: Some(1000.0),
        samples: Vec::new(),
    };
    for (round, &(off, on)) in steps.iter().enumerate() {
        for (way, seconds) in [(Way::Off, off), (Way::On, on), (Way::Exchange, exchange)] {
            let part = |part| match part {
                Part::Total => seconds,
                Part::Backward => backward,
                Part::Exposed => seconds - backward,
                _ => 0.0,
            };
            let trains = way != Way::Exchange;
            let split = Split::try_from_parts(|name| Some(part(name)));
            let measured = Measured {
                times: 3,
                seconds,
                step_seconds: split.filter(|_| trains),
                communication_seconds: trains.then_some(exchange),
            };
            results.samples.push(Sample { round, way, measured, others_cpu_share: Some(0.01) });
        }
    }
    results
}
