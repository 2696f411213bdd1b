//! What all ranks decide together after a step, and before each batch of an evaluation.
//!
//! A signal, a limit of time, or a hook that looks at this rank's loss, asks on one rank only. So the ranks exchange
//! what they were asked for. They do so only if something can ask.
//!
//! **Invariant** Ranks that do not take their steps together (workers of a store without rounds) exchange where they
//! meet anyway: at the end of an epoch's steps, in an evaluation, and before a checkpoint. A rank that a signal
//! ends exchanges at once, which is its next meeting with the others. All continue from rank 0's position.

use std::time::{Duration, Instant};

use candelabrum_dist::launch::interrupted_by;
use candelabrum_dist::{Group, ReduceOp};

use super::config::Interrupt;
use crate::Result;
use crate::checkpoint::Position;
use crate::hooks::Action;

/// What the hooks of this rank ask for.
#[derive(Clone, Debug, Default)]
pub(super) struct HookRequests {
    /// Why the training ends, and the number of the hook that says so.
    stop: Option<(String, usize)>,
    /// Why this call ends.
    pause: Option<String>,
    save: bool,
    /// The hooks for which the model is the best so far, and the values by which it is.
    best: Vec<(usize, f64)>,
}

impl HookRequests {
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

    /// The training is not complete yet.
    pub(super) fn go_on(&mut self) {
        (self.stop, self.pause) = (None, None);
    }
}

/// What happens after a step, the same on all ranks.
#[derive(Debug, Default)]
pub(super) struct Decision {
    pub(super) stop: Option<StopCause>,
    pub(super) save: bool,
    pub(super) best: Vec<(usize, f64)>,
}

/// Why this call of `fit` ends before its last epoch.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StopCause {
    /// A run that is started again goes on.
    Pause(String),
    /// The run has ended for good, by the hook of this number, if this rank knows it.
    End { reason: String, hook: Option<usize> },
}

impl StopCause {
    pub(super) fn into_reason(self) -> String {
        match self {
            Self::Pause(reason) | Self::End { reason, .. } => reason,
        }
    }

    /// In the exchange of flags the stronger one counts.
    fn flag(stop: Option<&Self>) -> i64 {
        match stop {
            None => 0,
            Some(Self::Pause(_)) => 1,
            Some(Self::End { .. }) => 2,
        }
    }
}

/// How ranks decide.
#[derive(Debug)]
pub(super) struct Control {
    group: Group,
    interrupt: Interrupt,
    /// Whether the ranks exchange what they were asked for after each step.
    exchanges: bool,
    in_step: bool,
    /// The beginning of the call, and the time that it has.
    time: Option<(Instant, Duration)>,
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
        let (group, interrupt) = (group.clone(), interrupt.clone());
        Self { group, interrupt, exchanges, in_step, time: None }
    }

    /// The call has this time from `start` on, if there is one. Rank 0's clock decides.
    pub(super) fn limited(mut self, start: Instant, max_time: Option<Duration>) -> Self {
        self.exchanges |= max_time.is_some() && self.group.world_size() > 1 && self.in_step;
        self.time = max_time.map(|max| (start, max));
        self
    }

    /// Why the call ends, if its time is over and this rank decides.
    fn end_of_time(&self) -> Option<StopCause> {
        let (start, max) = self.time.filter(|_| self.group.rank() == 0)?;
        let is_over = start.elapsed() >= max;
        is_over.then(|| StopCause::Pause(format!("its time of {max:?} is over")))
    }

    /// Decides after a step, which may be the `last` one of its epoch. A training that a hook ends for good is
    /// complete, although a signal has come.
    pub(super) fn after_step(&self, asked: HookRequests, last: bool) -> Result<Decision> {
        let mut signal = self.interrupt.requested().unwrap_or(0);
        let mut decision = Decision::from(asked);
        // Others that do not take their steps with rank 0 hear of its clock where they meet.
        if self.in_step || self.group.world_size() == 1 || last || decision.save {
            decision.stop = decision.stop.or_else(|| self.end_of_time());
        }
        let meets = last || decision.save || signal != 0;
        // In an evaluation that a signal has cut, the ranks have exchanged.
        let looks = self.interrupt.is_watched() || self.time.is_some();
        let meets = meets && looks && self.interrupt.ended().is_none();
        if self.exchanges || (!self.in_step && meets) {
            let stops = StopCause::flag(decision.stop.as_ref());
            let flags = self.exchange(stops, decision.save, signal)?;
            decision.save = flags.save;
            if flags.stops > stops {
                let reason = "another rank asked for it".to_owned();
                decision.stop = Some(match flags.stops {
                    1 => StopCause::Pause(reason),
                    _ => StopCause::End { reason, hook: None },
                });
            }
            signal = flags.signal;
        }
        if signal != 0 && !matches!(decision.stop, Some(StopCause::End { .. })) {
            self.interrupt.end(signal);
            decision.stop = Some(StopCause::Pause(interrupted_by(signal)));
        }
        Ok(decision)
    }

    /// Whether an evaluation, in which this rank may have `failed`, goes on with its next batch. If not, a signal has ended
    /// the training, or a rank has failed.
    pub(super) fn goes_on(&self, failed: bool) -> Result<bool> {
        if !self.interrupt.is_watched() {
            return Ok(!failed);
        }
        let signal = self.interrupt.requested().unwrap_or(0);
        let RequestedEnd { stops, signal, .. } = self.exchange(i64::from(failed), false, signal)?;
        if signal != 0 && stops == 0 {
            self.interrupt.end(signal);
        }
        Ok(signal == 0 && stops == 0)
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
    fn exchange(&self, stops: i64, save: bool, signal: i32) -> Result<RequestedEnd> {
        let mut flags = [stops, i64::from(save), i64::from(signal)];
        if self.group.world_size() > 1 {
            self.group.all_reduce(&mut flags, ReduceOp::Max)?;
        }
        let signal = i32::try_from(flags[2]).unwrap_or(0);
        if signal != 0 {
            self.interrupt.request(signal);
        }
        Ok(RequestedEnd { stops: flags[0], save: flags[1] != 0, signal })
    }
}

/// What ranks were asked for.
struct RequestedEnd {
    /// That of [`StopCause::flag`].
    stops: i64,
    save: bool,
    /// 0 if there was none.
    signal: i32,
}

impl From<HookRequests> for Decision {
    fn from(HookRequests { stop, pause, save, best }: HookRequests) -> Self {
        let stop = stop.map(|(reason, hook)| StopCause::End { reason, hook: Some(hook) });
        Self { stop: stop.or(pause.map(StopCause::Pause)), save, best }
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
        let nothing = HookRequests::default;
        assert!(control.goes_on(false)? && control.after_step(nothing(), true)?.stop.is_none());
        assert!(!control.goes_on(true)?);
        for signal in [2, 15, 1] {
            interrupt.request(signal);
        }
        let reason = "enough".to_owned();
        let mut asked = nothing();
        asked.add(3, Action { stop: Some(reason.clone()), ..Action::NOTHING });
        let decision = control.after_step(asked, false)?;
        assert_eq!(decision.stop, Some(StopCause::End { reason: reason.clone(), hook: Some(3) }));
        assert_eq!(interrupt.ended(), None);
        // A pause is no end.
        let mut asked = nothing();
        asked.add(0, Action { pause: Some(reason), ..Action::NOTHING });
        let decision = control.after_step(asked, false)?;
        assert_eq!(decision.stop, Some(StopCause::Pause("interrupted by SIGINT".to_owned())));
        assert_eq!((interrupt.requested(), interrupt.ended()), (Some(2), Some(2)));
        assert!(!control.goes_on(false)?);
        Ok(())
    }

    #[test]
    fn a_call_whose_time_is_over_pauses_unless_a_hook_has_ended_the_run() -> Result<()> {
        let control = |max| {
            let group = World::single().group();
            Control::new(&group, &Interrupt::default(), false, true).limited(Instant::now(), max)
        };
        let stop = |max, asked| Ok::<_, crate::Error>(control(max).after_step(asked, false)?.stop);
        assert_eq!(stop(None, HookRequests::default())?, None);
        assert_eq!(stop(Some(Duration::MAX), HookRequests::default())?, None);
        let over = StopCause::Pause("its time of 0ns is over".to_owned());
        assert_eq!(stop(Some(Duration::ZERO), HookRequests::default())?, Some(over));
        let mut asked = HookRequests::default();
        asked.add(0, Action { stop: Some("enough".to_owned()), ..Action::NOTHING });
        let ended = StopCause::End { reason: "enough".to_owned(), hook: Some(0) };
        assert_eq!(stop(Some(Duration::ZERO), asked)?, Some(ended));
        Ok(())
    }

    #[test]
    fn a_training_that_nobody_may_interrupt_goes_on() -> Result<()> {
        let interrupt = Interrupt::default();
        let control = Control::new(&World::single().group(), &interrupt, false, true);
        interrupt.request(15);
        assert!(control.goes_on(false)? && !control.goes_on(true)?);
        assert!(control.after_step(HookRequests::default(), false)?.stop.is_none());
        assert_eq!(interrupt.requested(), None);
        Ok(())
    }
}
