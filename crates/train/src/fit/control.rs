//! What all ranks decide together after a step.
//!
//! A signal, or a hook that looks at this rank's loss, asks on one rank only. So the ranks exchange what they
//! were asked for. They do so only if something can ask.

use candelabrum_dist::{Group, ReduceOp};

use super::config::Interrupt;
use crate::Result;
use crate::hooks::Action;

/// What happens after a step, the same on all ranks.
#[derive(Debug, Default)]
pub(super) struct Decision {
    /// Why the training ends.
    pub(super) stop: Option<String>,
    pub(super) save: bool,
    pub(super) best: Option<f64>,
}

/// The reason of an end by a signal.
pub(crate) fn interrupted_by(signal: i32) -> String {
    let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
    format!("interrupted by {name}")
}

/// How ranks decide.
#[derive(Debug)]
pub(super) struct Control {
    group: Group,
    interrupt: Interrupt,
    /// Whether the ranks have to exchange what they were asked for.
    exchanges: bool,
}

impl Control {
    /// `hooks_act` says whether a hook may ask for something after a step, `in_step` whether all ranks take their
    /// steps together.
    pub(super) fn new(
        group: &Group,
        interrupt: &Interrupt,
        hooks_act: bool,
        in_step: bool,
    ) -> Self {
        let exchanges = group.world_size() > 1 && in_step && (hooks_act || interrupt.is_watched());
        Self { group: group.clone(), interrupt: interrupt.clone(), exchanges }
    }

    /// Decides after a step. Ranks that do not take their steps together decide alone: a launcher gives a signal
    /// to all of them.
    pub(super) fn after_step(&self, asked: Action) -> Result<Decision> {
        let mut signal = self.interrupt.requested().unwrap_or(0);
        let mut decision = Decision::from(asked);
        if self.exchanges {
            let stops = i64::from(decision.stop.is_some());
            let mut flags = [stops, i64::from(decision.save), i64::from(signal)];
            self.group.all_reduce(&mut flags, ReduceOp::Max)?;
            decision.save = flags[1] != 0;
            if flags[0] != 0 && decision.stop.is_none() {
                decision.stop = Some("another rank asked for it".to_owned());
            }
            signal = i32::try_from(flags[2]).unwrap_or(0);
            self.interrupt.request(signal);
        }
        if signal != 0 {
            decision.stop = Some(interrupted_by(signal));
        }
        Ok(decision)
    }
}

impl From<Action> for Decision {
    fn from(Action { stop, save, best }: Action) -> Self {
        Self { stop, save: save || best.is_some(), best }
    }
}
