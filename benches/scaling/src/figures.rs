//! What a strategy's steps have cost, and which strategies there are.
//!
//! TO BE REPLACED once the library counts this itself: `StepFigures`, [`of`] and [`residual_norm`]
//! become `candelabrum::dist::StepFigures`, `DistOpt::figures` and `DistOpt::residual_norm`. Until
//! then the communicator's counters are all there is; the other parts of a step read zero.

use std::ops::Sub;
use std::time::Duration;

use candelabrum::dist::check_dist_option;
use candelabrum::prelude::*;

/// What the steps of one strategy have cost this rank; subtract two to get what lies between.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StepFigures {
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) backward: Duration,
    pub(crate) compress: Duration,
    pub(crate) communication: Duration,
    pub(crate) exposed: Duration,
    pub(crate) decompress: Duration,
    pub(crate) update: Duration,
}

impl Sub for StepFigures {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            bytes_sent: self.bytes_sent - earlier.bytes_sent,
            bytes_received: self.bytes_received - earlier.bytes_received,
            backward: self.backward - earlier.backward,
            compress: self.compress - earlier.compress,
            communication: self.communication - earlier.communication,
            exposed: self.exposed - earlier.exposed,
            decompress: self.decompress - earlier.decompress,
            update: self.update - earlier.update,
        }
    }
}

/// What the steps with `option` have cost since the optimizer was made.
pub(crate) fn of(opt: &DistOpt, _option: DistOption) -> StepFigures {
    let stats = opt.world().comm().stats();
    StepFigures {
        bytes_sent: stats.bytes_sent,
        bytes_received: stats.bytes_received,
        communication: stats.busy,
        exposed: stats.exposed,
        ..StepFigures::default()
    }
}

/// The length of what sparse exchanges have held back so far.
pub(crate) fn residual_norm(_opt: &DistOpt) -> f64 {
    0.0
}

/// Every strategy that this version can carry out.
pub(crate) fn strategies() -> impl Iterator<Item = DistOption> {
    DistOption::ALL.into_iter().filter(|&option| check_dist_option(option).is_ok())
}
