//! The options that all benchmarks have, and their schedule.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::experiment::Experiment;
use super::runner::TurnSchedule;

/// A comparison with another commit, whose differences are small, takes many short samples.
const ROUNDS_AGAINST: usize = 151;
const SECONDS_AGAINST: f64 = 0.1;
const DEADLINE_AGAINST: u64 = 600;
const STARTS_AGAINST: usize = 3;

/// The options that all benchmarks have.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CommonOptions {
    /// Contenders [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAME,NAME..")]
    pub(crate) contenders: Vec<String>,
    /// Samples of every contender [default: 3 to 10, by benchmark; 151 with --against]
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<usize>,
    /// Measured seconds of a sample, at least one step [default: 0.1 to 20, by benchmark; 0.1 with --against]
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    /// Seconds that a contender may take to get ready, and for each sample [default: 120 to 900, by benchmark]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) deadline: Option<u64>,
    /// Say what became slower or faster since an earlier run, by its JSON file
    #[arg(long, value_name = "OLD.json")]
    pub(crate) compare: Option<PathBuf>,
    /// Build this commit too, and let its contenders take turns with ours; others do not take part
    #[arg(long, value_name = "COMMIT")]
    pub(crate) against: Option<String>,
    /// End with an error if --compare or --against finds something slower
    #[arg(long)]
    pub(crate) fail_if_slower: bool,
    /// Folder of the JSON file [default: bench in target]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

impl CommonOptions {
    /// The schedule, or the reason in one line why it is impossible.
    pub(crate) fn schedule(&self, experiment: &Experiment) -> Result<TurnSchedule> {
        let against = self.against.is_some();
        let (rounds, seconds, deadline) = match against {
            true => (ROUNDS_AGAINST, SECONDS_AGAINST, DEADLINE_AGAINST),
            false => (experiment.rounds, experiment.seconds, experiment.deadline),
        };
        let rounds = self.rounds.unwrap_or(rounds);
        let seconds = self.seconds.unwrap_or(seconds);
        ensure!(rounds > 0, "--rounds starts at 1");
        ensure!(seconds > 0.0 && seconds < 1e6, "--seconds is a number above 0");
        let compares = against || self.compare.is_some();
        ensure!(compares || !self.fail_if_slower, "--fail-if-slower needs --compare or --against");
        let starts = if against { STARTS_AGAINST.min(rounds) } else { 1 };
        let deadline = Duration::from_secs(self.deadline.unwrap_or(deadline).max(1));
        // Slow steps exceed the seconds of a sample, and get fewer rounds.
        let patience = if against { 3.0 } else { f64::INFINITY };
        Ok(TurnSchedule { rounds, starts, seconds, deadline, patience })
    }
}

#[cfg(test)]
mod tests {
    use super::super::experiment::find;
    use super::*;

    #[test]
    fn impossible_schedules_are_refused_in_one_line() {
        let refused =
            |common: CommonOptions| common.schedule(find("ddp").unwrap()).unwrap_err().to_string();
        let common = CommonOptions::default;
        assert!(refused(CommonOptions { rounds: Some(0), ..common() }).starts_with("--rounds"));
        for seconds in [0.0, -1.0, f64::NAN, 1e7] {
            let common = CommonOptions { seconds: Some(seconds), ..common() };
            assert!(refused(common).starts_with("--seconds"));
        }
        assert!(refused(CommonOptions { fail_if_slower: true, ..common() }).contains("--compare"));
    }

    #[test]
    fn a_comparison_with_a_commit_has_more_rounds_and_starts() {
        let counts = |against: Option<&str>, rounds| {
            let against = against.map(str::to_owned);
            let common = CommonOptions { against, rounds, ..CommonOptions::default() };
            let schedule = common.schedule(find("ddp").unwrap()).unwrap();
            (schedule.rounds, schedule.starts)
        };
        assert_eq!(counts(None, None), (7, 1));
        assert_eq!(counts(Some("HEAD"), None), (151, 3));
        assert_eq!(counts(Some("HEAD"), Some(2)), (2, 2));
    }
}
