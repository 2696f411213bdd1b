//! The one-cycle policy: the rate rises to a maximum, then falls to almost nothing.
//!
//! Smith and Topin 2017, arXiv 1708.07120. The phases and their ends are those of PyTorch's
//! `OneCycleLR`. PyTorch can also lower the momentum while the rate rises. This is not implemented
//! here.

use std::f64::consts::PI;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::error::AllowedRange;

/// Settings of the one-cycle policy.
///
/// In the first `start_share` of the steps, the rate rises from `max_lr / div_factor` to `max_lr`.
/// Then it falls to `max_lr / div_factor / final_div_factor`. With `three_phase`, it falls to the
/// first rate in as many steps as it rose, and to the last rate in the remaining steps. After
/// `steps` steps the rate stays at the last one. PyTorch returns an error there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OneCycle {
    /// The highest rate.
    pub max_lr: f64,
    /// The number of steps of the cycle.
    pub steps: u64,
    /// The share of the steps in which the rate rises (`pct_start`).
    pub start_share: f64,
    /// The curve of the rate within a phase.
    pub anneal: Anneal,
    /// The highest rate divided by the first.
    pub div_factor: f64,
    /// The first rate divided by the last.
    pub final_div_factor: f64,
    /// Whether the fall has two phases.
    pub three_phase: bool,
}

/// The curve from one rate to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Anneal {
    /// Along half a cosine wave.
    #[default]
    Cos,
    /// Along a line.
    Linear,
}

impl OneCycle {
    /// PyTorch's defaults: the rate rises in 30 % of the steps from 1/25 of the maximum, and falls
    /// to 1/250000 of it, by cosine, in two phases.
    pub fn new(max_lr: f64, steps: u64) -> Self {
        Self {
            max_lr,
            steps,
            start_share: 0.3,
            anneal: Anneal::Cos,
            div_factor: 25.0,
            final_div_factor: 1e4,
            three_phase: false,
        }
    }

    pub(crate) fn at(&self, step: u64) -> f64 {
        let first = self.max_lr / self.div_factor;
        let last = first / self.final_div_factor;
        let end = self.steps as f64 - 1.0;
        let up = self.start_share * self.steps as f64 - 1.0;
        // The last step of each phase, and the rates at its ends.
        let phases = if self.three_phase {
            let down = 2.0 * self.start_share * self.steps as f64 - 2.0;
            [(up, first, self.max_lr), (down, self.max_lr, first), (end, first, last)]
        } else {
            // The last phase twice: the first of the two never ends before the cycle does.
            [(up, first, self.max_lr), (end, self.max_lr, last), (end, self.max_lr, last)]
        };
        let t = (step as f64).min(end);
        let mut begin = 0.0;
        for (end, from, to) in phases {
            if t <= end {
                let length = end - begin;
                let share = if length > 0.0 { (t - begin) / length } else { 1.0 };
                return self.anneal.between(from, to, share);
            }
            begin = end;
        }
        last
    }

    pub(crate) fn check(&self, owner: &'static str, name: &str) -> Result<()> {
        let settings = [
            ("max_lr", self.max_lr, AllowedRange::NotNegative),
            ("steps", self.steps as f64, AllowedRange::Positive),
            ("start_share", self.start_share, AllowedRange::UpToOne),
            ("div_factor", self.div_factor, AllowedRange::Positive),
            ("final_div_factor", self.final_div_factor, AllowedRange::Positive),
        ];
        settings.into_iter().try_for_each(|(setting, value, range)| {
            range.check(owner, format_args!("{setting} of the schedule {name}"), value)
        })
    }
}

impl Anneal {
    fn between(self, from: f64, to: f64, share: f64) -> f64 {
        match self {
            Self::Cos => to + (from - to) / 2.0 * (1.0 + (PI * share).cos()),
            Self::Linear => from + (to - from) * share,
        }
    }
}

impl fmt::Display for OneCycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max_lr, steps, start_share, anneal, div_factor, final_div_factor, three_phase } =
            self;
        let phases = if *three_phase { 3 } else { 2 };
        write!(
            f,
            "one_cycle({max_lr} in {steps}, up in {start_share}, {anneal:?}, /{div_factor}, \
             /{final_div_factor}, {phases} phases)"
        )
    }
}
