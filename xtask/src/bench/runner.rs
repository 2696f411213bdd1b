//! Players that take turns: only one of a block runs at a time, A B C, A B C, so that other load on
//! the machine affects all of them.
//!
//! Between its samples a player is stopped (SIGSTOP), because threads that spin while they wait for
//! work would disturb the player that is being measured.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::block::{ContenderTrial, TurnBlock};
use super::host::CpuTime;
use super::launch::Player;
use super::process::PlayerProcess;

use super::sample::{ResultRow, Sample, SampleFailure, SettingValues, figures};
use crate::interrupt::{Interrupted, SignalWatch};

/// The common settings of all blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnSchedule {
    /// Samples of every trial.
    pub(crate) rounds: usize,
    /// Players are started so often, each time for a part of the rounds. Two starts of one program
    /// differ by a percent or two, since its memory lies elsewhere.
    pub(crate) starts: usize,
    /// Measured seconds of a sample.
    pub(crate) seconds: f64,
    /// The time that a player may take to get ready, and for each sample besides its seconds.
    pub(crate) deadline: Duration,
    /// A leg ends after [`LEAST_ROUNDS`] of a start if it has taken so many times its seconds.
    pub(crate) patience: f64,
}

const LEAST_ROUNDS: usize = 5;

/// A player. After a failure it gets no more requests.
#[derive(Default)]
struct PlayerState {
    live: Option<PlayerProcess>,
    facts: SettingValues,
    failure: Option<SampleFailure>,
}

impl TurnSchedule {
    /// Measures a block, and adds its rows to `rows`, also after an interrupt. A player that fails
    /// does not keep the others from going on. `tell` hears of each start and each sample.
    pub(crate) fn measure(
        &self,
        block: &TurnBlock,
        rows: &mut Vec<ResultRow>,
        watch: &SignalWatch,
        tell: &mut dyn FnMut(&ContenderTrial),
    ) -> Result<()> {
        let first = rows.len();
        rows.extend(block.trials().map(|trial| trial.row.clone()));
        let mut rounds = 0..0;
        for start in 0..self.starts {
            rounds = rounds.end..self.rounds * (start + 1) / self.starts;
            let mut turns = self.start(block, watch, tell)?;
            let mut rest = &mut rows[first..];
            for leg in &block.legs {
                let rows = rest.split_off_mut(..leg.len()).unwrap_or_default();
                let limit = self.patience * self.seconds * (rounds.len() * leg.len()) as f64;
                let begun = Instant::now();
                let is_due = |round: &usize| {
                    round - rounds.start < LEAST_ROUNDS || begun.elapsed().as_secs_f64() < limit
                };
                let measured: Result<()> =
                    rounds.clone().take_while(is_due).try_for_each(|round| {
                        leg.iter().zip(&mut *rows).try_for_each(|(trial, row)| {
                            tell(trial);
                            let turn = &mut turns[trial.player];
                            row.samples.extend(self.sample(turn, trial, round, watch)?);
                            Ok(())
                        })
                    });
                for (trial, row) in leg.iter().zip(&mut *rows) {
                    let turn = &turns[trial.player];
                    row.facts.extend(turn.facts.clone());
                    row.failure = row.failure.take().or(turn.failure.clone());
                    row.summarise();
                }
                measured?;
            }
            // They have given all their samples, so that a failure no longer matters.
            for turn in &mut turns {
                turn.ask(watch, |live| live.finish(watch))?;
            }
        }
        Ok(())
    }

    /// Starts every player of a block and waits until it is warm.
    fn start(
        &self,
        block: &TurnBlock,
        watch: &SignalWatch,
        tell: &mut dyn FnMut(&ContenderTrial),
    ) -> Result<Vec<PlayerState>> {
        let start = |(index, player): (usize, &Player)| {
            let mut turn = PlayerState::default();
            let first = block.trials().find(|trial| trial.player == index);
            first.into_iter().for_each(&mut *tell);
            let deadline = self.deadline + Duration::from_secs_f64(self.seconds);
            let commands = player.commands();
            turn.live =
                turn.note(commands.and_then(|them| PlayerProcess::start(them, deadline)))?;
            let facts = turn.ask(watch, |live| {
                if player.is_serial() {
                    live.keep_on_one_core();
                }
                let facts = live.ready(watch)?;
                for (name, value) in &player.expects {
                    let said = facts.get(name).unwrap_or(&Value::Null);
                    ensure!(said == value, "asked for {name} {value}, it has {said}");
                }
                Ok(facts)
            });
            turn.facts = facts?.unwrap_or_default();
            Ok(turn)
        };
        block.players.iter().enumerate().map(start).collect()
    }

    fn sample(
        &self,
        turn: &mut PlayerState,
        trial: &ContenderTrial,
        round: usize,
        watch: &SignalWatch,
    ) -> Result<Option<Sample>> {
        let mut request = trial.request.clone();
        if !request.contains_key("steps") {
            request.entry("seconds").or_insert(self.seconds.into());
        }
        turn.ask(watch, |live| {
            let before = CpuTime::now(&live.family);
            let figures = figures(&live.sample(&request, watch)?);
            let others_cpu_share = CpuTime::others_share(before, CpuTime::now(&live.family));
            Ok(Sample { round, others_cpu_share, figures })
        })
    }
}

impl PlayerState {
    /// Asks the player, if it has not failed.
    fn ask<T>(
        &mut self,
        watch: &SignalWatch,
        question: impl FnOnce(&mut PlayerProcess) -> Result<T>,
    ) -> Result<Option<T>> {
        watch.check()?;
        let Some(live) = &mut self.live else { return Ok(None) };
        let answer = question(live);
        self.note(answer)
    }

    /// The answer, if there is one. A failure is kept as the reason why there will be no other.
    fn note<T>(&mut self, answer: Result<T>) -> Result<Option<T>> {
        let error = match answer {
            Ok(answer) => return Ok(Some(answer)),
            Err(error) if error.is::<Interrupted>() => return Err(error),
            Err(error) => error,
        };
        self.live = None;
        let told = |error| SampleFailure { reason: format!("{error:#}"), stderr: Vec::new() };
        self.failure = Some(error.downcast().unwrap_or_else(told));
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use serde_json::json;

    use super::*;

    const READY: &str = r#"echo '{"event":"ready","ranks":1}'"#;
    const SAMPLE: &str = r#"echo '{"event":"sample","steps":3,"correct":true,"way":"on"}'"#;
    const DONE: &str = r#"echo '{"event":"done","peak_rss_mb":7.5}'"#;

    /// The rows, and the number of turns.
    fn measure(starts: usize, scripts: &[(&str, String)]) -> (Vec<ResultRow>, usize) {
        let mut block = TurnBlock::new("block");
        let trial = |(name, script): &(&str, String)| {
            let player = block.index(Player::new(Path::new("sh")).args(["-c", script]));
            ContenderTrial {
                row: ResultRow::new(SettingValues::new(), name),
                player,
                request: SettingValues::new(),
            }
        };
        block.legs = vec![scripts.iter().map(trial).collect()];
        let deadline = Duration::from_secs(20);
        let patience = f64::INFINITY;
        let schedule = TurnSchedule { rounds: 3, starts, seconds: 0.1, deadline, patience };
        let (mut rows, mut turns) = (Vec::new(), 0);
        schedule.measure(&block, &mut rows, &SignalWatch::quiet(), &mut |_| turns += 1).unwrap();
        (rows, turns)
    }

    #[test]
    fn a_player_that_fails_does_not_keep_the_others_from_going_on() {
        let (rows, turns) = measure(
            1,
            &[
                ("good", format!("{READY}; while read line; do {SAMPLE}; done; {DONE}")),
                ("dies", format!("{READY}; read line; {SAMPLE}; read line; exit 5")),
                ("never", "echo no compiler >&2; exit 1".into()),
                ("alone", r#"echo '{"event":"ready","ranks":2}'; read line"#.into()),
            ],
        );
        let reason = |row: &ResultRow| row.failure.as_ref().map(|failure| failure.reason.clone());
        let samples: Vec<usize> = rows.iter().map(|row| row.samples.len()).collect();
        assert_eq!(samples, [3, 1, 0, 0]);
        assert_eq!(rows[0].samples.iter().map(|s| s.round).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((rows[0].median("steps"), rows[0].median("correct")), (Some(3.0), Some(1.0)));
        assert_eq!((reason(&rows[0]), &rows[0].facts["ranks"]), (None, &json!(1)));
        assert_eq!(reason(&rows[1]).unwrap(), "exit status: 5");
        assert_eq!(reason(&rows[2]).unwrap(), "no compiler (exit status: 1)");
        assert_eq!(reason(&rows[3]).unwrap(), "asked for ranks 1, it has 2");
        assert_eq!(turns, 4 + 3 * 4);
    }

    #[test]
    fn the_rounds_are_divided_among_the_starts() {
        let (rows, turns) =
            measure(2, &[("good", format!("{READY}; while read line; do {SAMPLE}; done; {DONE}"))]);
        assert_eq!(rows[0].samples.iter().map(|s| s.round).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(turns, 2 + 3);
    }

    #[test]
    fn a_program_that_is_not_there_is_a_failure_of_its_row() {
        let mut turn = PlayerState::default();
        let live = PlayerProcess::start(vec![Command::new("no-such-program")], Duration::ZERO);
        assert!(turn.note(live).unwrap().is_none());
        assert!(turn.failure.unwrap().reason.starts_with("cannot start it"));
    }
}
