//! The contenders of one configuration, measured in turns.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::contender::Contender;
use super::plan::Config;
use crate::interrupt::{Interrupted, Watch};
use crate::live::{Failure, Live};
use crate::training::{Done, Measured, Ready};
use crate::turns::Player;

/// The results of one contender in one configuration.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) config: Config,
    pub(super) contender: Contender,
    pub(super) ready: Option<Ready>,
    pub(super) samples: Vec<Sample>,
    pub(super) peak_rss_mb: Option<f64>,
    pub(super) failure: Option<Failure>,
}

/// A measurement and its circumstances.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sample {
    pub(super) round: usize,
    #[serde(flatten)]
    pub(super) measured: Measured,
    /// The share of the machine's cores that other programs used meanwhile.
    pub(super) others_cpu_share: Option<f64>,
}

impl Outcome {
    pub(super) fn new(config: Config, contender: Contender) -> Self {
        Self {
            config,
            contender,
            ready: None,
            samples: Vec::new(),
            peak_rss_mb: None,
            failure: None,
        }
    }
}

/// A contender in its configuration, and its processes while they live.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) outcome: Outcome,
    player: Player,
}

impl Trial {
    pub(super) fn new(config: Config, contender: Contender) -> Self {
        Self { outcome: Outcome::new(config, contender), player: Player::default() }
    }

    /// Whether the contender can be asked for a sample.
    pub(super) fn is_live(&self) -> bool {
        self.player.is_live()
    }

    /// Starts the contender and waits until it is warm.
    pub(super) fn start(
        &mut self,
        start: impl FnOnce() -> Result<Live>,
        watch: &Watch,
    ) -> Result<(), Interrupted> {
        self.outcome.ready = self.player.start(start, watch)?;
        self.note_failure();
        Ok(())
    }

    /// Takes one sample, if the contender lives.
    pub(super) fn sample(
        &mut self,
        round: usize,
        seconds: f64,
        watch: &Watch,
    ) -> Result<(), Interrupted> {
        let sample = self.player.sample(&format!("go {seconds}"), watch)?;
        self.outcome.samples.extend(sample.map(|(measured, others_cpu_share)| Sample {
            round,
            measured,
            others_cpu_share,
        }));
        self.note_failure();
        Ok(())
    }

    /// Lets the contender end.
    pub(super) fn finish(&mut self, watch: &Watch) -> Result<(), Interrupted> {
        let done: Option<Done> = self.player.finish(watch)?;
        self.outcome.peak_rss_mb = done.and_then(|done| done.peak_rss_mb);
        self.note_failure();
        Ok(())
    }

    fn note_failure(&mut self) {
        self.outcome.failure = self.player.failure().cloned();
    }
}

/// The common settings of all configurations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) rounds: usize,
    pub(super) seconds: f64,
    pub(super) deadline: Duration,
}

/// Measures the contenders of a configuration. All of them are started and then measured in turns,
/// so that other load on the machine affects all of them. `step` is called for each start and
/// sample.
pub(super) fn measure(
    trials: &mut [Trial],
    rules: &Rules,
    start: impl Fn(&Outcome) -> Result<Live>,
    watch: &Watch,
    mut step: impl FnMut(&Outcome),
) -> Result<(), Interrupted> {
    for trial in &mut *trials {
        step(&trial.outcome);
        let outcome = trial.outcome.clone();
        trial.start(|| start(&outcome), watch)?;
    }
    for round in 0..rules.rounds {
        for trial in &mut *trials {
            step(&trial.outcome);
            trial.sample(round, rules.seconds, watch)?;
        }
        if !trials.iter().any(Trial::is_live) {
            break;
        }
    }
    trials.iter_mut().try_for_each(|trial| trial.finish(watch))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::network::Network;

    const RULES: Rules = Rules { rounds: 3, seconds: 0.1, deadline: Duration::from_secs(20) };

    /// Contenders that are shell scripts: one that answers, one that ends after its first sample,
    /// and one that does not start.
    fn start(outcome: &Outcome) -> Result<Live> {
        let ready = r#"echo '{"event":"ready","warm_up_losses":[2.5]}'"#;
        let sample = r#"echo '{"event":"sample","steps":3,"seconds":1,"cpu_seconds":1,"loss":2}'"#;
        let done = r#"echo '{"event":"done","peak_rss_mb":null}'"#;
        let script = match outcome.contender {
            Contender::Ours => format!("{ready}; while read line; do {sample}; done; {done}"),
            Contender::Candle => format!("{ready}; read line; {sample}; read line; exit 5"),
            _ => "echo no compiler >&2; exit 1".into(),
        };
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]);
        Live::start(vec![shell], RULES.deadline)
    }

    #[test]
    fn one_that_fails_does_not_keep_the_others_from_going_on() {
        let config = Config { network: Network::Mlp, batch_size: 8, threads: 1 };
        let contenders = [Contender::PyTorchCompile, Contender::Candle, Contender::Ours];
        let mut trials = contenders.map(|contender| Trial::new(config, contender));
        let mut steps = 0;
        measure(&mut trials, &RULES, start, &Watch::quiet(), |_| steps += 1).unwrap();
        let [compiled, candle, ours] = trials.map(|trial| trial.outcome);

        assert_eq!(ours.samples.len(), 3);
        assert_eq!(ours.samples.iter().map(|s| s.round).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(ours.failure, None);
        assert_eq!(candle.samples.len(), 1);
        assert_eq!(candle.failure.unwrap().reason, "exit status: 5");
        assert_eq!((compiled.samples.len(), compiled.ready), (0, None));
        assert_eq!(compiled.failure.unwrap().reason, "no compiler (exit status: 1)");
        assert_eq!(steps, 3 + 3 * 3);
    }

    #[test]
    fn what_cannot_be_started_is_a_failure_of_its_row() {
        let config = Config { network: Network::Mlp, batch_size: 8, threads: 1 };
        let mut trials = [Trial::new(config, Contender::Ours)];
        let none = |_: &Outcome| Live::start(vec![Command::new("no-such-program")], RULES.deadline);
        measure(&mut trials, &RULES, none, &Watch::quiet(), |_| {}).unwrap();
        let failure = trials[0].outcome.failure.clone().unwrap();
        assert!(failure.reason.starts_with("cannot start it"), "{failure:?}");
    }
}
