//! What all ranks decide together after a step, and before each batch of an evaluation.
//!
//! A signal, or a hook that looks at this rank's loss, asks on one rank only. So the ranks exchange what they
//! were asked for. They do so only if something can ask.
//!
//! **Invariant** Ranks that do not take their steps together (workers of a store without rounds) exchange where they
//! meet anyway: at the end of an epoch's steps, in an evaluation, and before a checkpoint. A rank that a signal
//! ends exchanges at once, which is its next meeting with the others. All continue from rank 0's position.

use candelabrum_dist::launch::interrupted_by;
use candelabrum_dist::{Group, ReduceOp};

use super::config::Interrupt;
use crate::Result;
use crate::checkpoint::Position;
use crate::hooks::Action;

/// What happens after a step, the same on all ranks.
#[derive(Debug, Default)]
pub(super) struct Decision {
    /// Why the training ends.
    pub(super) stop: Option<String>,
    pub(super) save: bool,
    pub(super) best: Option<f64>,
}

/// How ranks decide.
#[derive(Debug)]
pub(super) struct Control {
    group: Group,
    interrupt: Interrupt,
    /// Whether the ranks exchange what they were asked for after each step.
    exchanges: bool,
    in_step: bool,
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
        Self { group: group.clone(), interrupt: interrupt.clone(), exchanges, in_step }
    }

    /// Decides after a step, which may be the `last` one of its epoch. A training that a hook ends is complete,
    /// although a signal has come.
    pub(super) fn after_step(&self, asked: Action, last: bool) -> Result<Decision> {
        let mut signal = self.interrupt.requested().unwrap_or(0);
        let mut decision = Decision::from(asked);
        let meets = last || decision.save || signal != 0;
        // In an evaluation that a signal has cut, the ranks have exchanged.
        let meets = meets && self.interrupt.is_watched() && self.interrupt.ended().is_none();
        if self.exchanges || (!self.in_step && meets) {
            let flags = self.exchange(decision.stop.is_some(), decision.save, signal)?;
            decision.save = flags.save;
            if flags.stop && decision.stop.is_none() {
                decision.stop = Some("another rank asked for it".to_owned());
            }
            signal = flags.signal;
        }
        if signal != 0 && decision.stop.is_none() {
            self.interrupt.end(signal);
            decision.stop = Some(interrupted_by(signal));
        }
        Ok(decision)
    }

    /// Whether an evaluation goes on with its next batch. If not, a signal has ended the training.
    pub(super) fn goes_on(&self) -> Result<bool> {
        if !self.interrupt.is_watched() {
            return Ok(true);
        }
        let signal = self.interrupt.requested().unwrap_or(0);
        let Asked { signal, .. } = self.exchange(false, false, signal)?;
        if signal != 0 {
            self.interrupt.end(signal);
        }
        Ok(signal == 0)
    }

    /// The position at which a training that ends after a step is saved.
    pub(super) fn last_position(&self, own: Position) -> Result<Position> {
        if self.in_step || self.group.world_size() == 1 || self.interrupt.ended().is_none() {
            return Ok(own);
        }
        let Position { epoch, step_in_epoch, step } = own;
        let mut numbers = [epoch as i64, step_in_epoch as i64, step as i64];
        self.group.broadcast(&mut numbers, 0)?;
        let [epoch, step_in_epoch, step] = numbers;
        let (epoch, step_in_epoch, step) = (epoch as usize, step_in_epoch as usize, step as u64);
        Ok(Position { epoch, step_in_epoch, step })
    }

    /// What any rank was asked for.
    fn exchange(&self, stop: bool, save: bool, signal: i32) -> Result<Asked> {
        let mut flags = [i64::from(stop), i64::from(save), i64::from(signal)];
        if self.group.world_size() > 1 {
            self.group.all_reduce(&mut flags, ReduceOp::Max)?;
        }
        let signal = i32::try_from(flags[2]).unwrap_or(0);
        if signal != 0 {
            self.interrupt.request(signal);
        }
        Ok(Asked { stop: flags[0] != 0, save: flags[1] != 0, signal })
    }
}

/// What ranks were asked for.
struct Asked {
    stop: bool,
    save: bool,
    /// 0 if there was none.
    signal: i32,
}

impl From<Action> for Decision {
    fn from(Action { stop, save, best }: Action) -> Self {
        Self { stop, save: save || best.is_some(), best }
    }
}

#[cfg(test)]
mod tests {
    use candelabrum_dist::World;

    use super::*;

    #[test]
    fn a_signal_ends_a_training_once_unless_a_hook_has_ended_it() -> Result<()> {
        let interrupt = Interrupt::watched();
        let control = Control::new(&World::single().group(), &interrupt, true, true);
        assert!(control.goes_on()? && control.after_step(Action::NOTHING, true)?.stop.is_none());
        for signal in [2, 15, 1] {
            interrupt.request(signal);
        }
        let stop = Some("enough".to_owned());
        let decision =
            control.after_step(Action { stop: stop.clone(), ..Action::NOTHING }, false)?;
        assert_eq!((decision.stop, interrupt.ended()), (stop, None));
        let decision = control.after_step(Action::NOTHING, false)?;
        assert_eq!(decision.stop.as_deref(), Some("interrupted by SIGINT"));
        assert_eq!((interrupt.requested(), interrupt.ended()), (Some(2), Some(2)));
        assert!(!control.goes_on()?);
        Ok(())
    }

    #[test]
    fn a_training_that_nobody_may_interrupt_goes_on() -> Result<()> {
        let interrupt = Interrupt::default();
        let control = Control::new(&World::single().group(), &interrupt, false, true);
        interrupt.request(15);
        assert!(control.goes_on()? && control.after_step(Action::NOTHING, false)?.stop.is_none());
        assert_eq!(interrupt.requested(), None);
        Ok(())
    }
}
