//! What all ranks decide together after a step.
//!
//! A signal, or a hook that looks at this rank's loss, asks on one rank only. So the ranks exchange what they
//! were asked for. They do so only if something can ask.

use candelabrum_dist::{Group, ReduceOp};

use super::config::Interrupt;
use crate::Result;
use crate::hooks::Action;

/// What the hooks of this rank ask for.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// Why the training ends, and the number of the hook that says so.
    stop: Option<(String, usize)>,
    /// Why this call ends.
    pause: Option<String>,
    save: bool,
    /// The hooks for which the model is the best so far, and the values by which it is.
    best: Vec<(usize, f64)>,
}

impl Asked {
    /// Adds what hook number `hook` asks for. The first reason counts.
    pub(super) fn add(&mut self, hook: usize, action: Action) {
        let Action { stop, pause, save, best } = action;
        self.stop = self.stop.take().or(stop.map(|why| (why, hook)));
        self.pause = self.pause.take().or(pause);
        self.save |= save || best.is_some();
        self.best.extend(best.map(|value| (hook, value)));
    }

    /// Asks for a checkpoint.
    pub(super) fn save(&mut self) {
        self.save = true;
    }
}

/// What happens after a step, the same on all ranks.
#[derive(Debug, Default)]
pub(super) struct Decision {
    /// Why the training ends.
    pub(super) stop: Option<String>,
    /// Whether it ends for good, and by which hook, if this rank knows it.
    pub(super) ended_by: Option<Option<usize>>,
    pub(super) save: bool,
    pub(super) best: Vec<(usize, f64)>,
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
    pub(super) fn after_step(&self, asked: Asked) -> Result<Decision> {
        let mut signal = self.interrupt.requested().unwrap_or(0);
        let mut decision = Decision::from(asked);
        if self.exchanges {
            // A pause is 1, an end 2.
            let stops = i64::from(decision.stop.is_some()) + i64::from(decision.ended_by.is_some());
            let mut flags = [stops, i64::from(decision.save), i64::from(signal)];
            self.group.all_reduce(&mut flags, ReduceOp::Max)?;
            decision.save = flags[1] != 0;
            if flags[0] > stops {
                decision.stop = Some("another rank asked for it".to_owned());
                decision.ended_by = (flags[0] == 2).then_some(None);
            }
            signal = i32::try_from(flags[2]).unwrap_or(0);
            self.interrupt.request(signal);
        }
        if signal != 0 && decision.ended_by.is_none() {
            decision.stop = Some(interrupted_by(signal));
        }
        Ok(decision)
    }
}

impl From<Asked> for Decision {
    fn from(Asked { stop, pause, save, best }: Asked) -> Self {
        let ended_by = stop.as_ref().map(|(_, hook)| Some(*hook));
        Self { stop: stop.map(|(why, _)| why).or(pause), ended_by, save, best }
    }
}
