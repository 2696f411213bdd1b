//! The plan of the measurement: every network with every batch size and number of threads.

use anyhow::{Result, ensure};
use serde::Serialize;

use super::Args;
use super::contender::Contender;
use crate::bench::once;
use crate::network::Network;

/// The configuration in which contenders are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Config {
    pub(super) network: Network,
    pub(super) batch_size: usize,
    pub(super) threads: usize,
}

/// The whole plan, in the order of the tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Plan {
    pub(super) networks: Vec<Network>,
    pub(super) batch_sizes: Vec<usize>,
    pub(super) threads: Vec<usize>,
    pub(super) contenders: Vec<Contender>,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
}

impl Plan {
    /// The requested items, each once. The default numbers of threads are limited by the cores.
    pub(super) fn new(args: &Args, cores: usize) -> Result<Self> {
        ensure!(args.batch_size.iter().all(|&size| size > 0), "--batch-size starts at 1");
        ensure!(args.threads.iter().all(|&count| count > 0), "--threads starts at 1");
        ensure!(args.rounds > 0, "--rounds starts at 1");
        let possible = args.seconds > 0.0 && args.seconds < 1e6;
        ensure!(possible, "--seconds is a number above 0");
        let mut threads = once(&args.threads);
        if threads.is_empty() {
            threads = [1, 2].into_iter().filter(|&count| count == 1 || count <= cores).collect();
        }
        Ok(Self {
            networks: once(&args.network),
            batch_sizes: once(&args.batch_size),
            threads,
            contenders: once(&args.contenders),
            rounds: args.rounds,
            seconds: args.seconds,
        })
    }

    pub(super) fn configs(&self) -> Vec<Config> {
        let mut configs = Vec::new();
        for &network in &self.networks {
            for &batch_size in &self.batch_sizes {
                for &threads in &self.threads {
                    configs.push(Config { network, batch_size, threads });
                }
            }
        }
        configs
    }

    /// The contenders that can train this network.
    pub(super) fn contenders_of(&self, network: Network) -> Vec<Contender> {
        let can = |contender: &Contender| contender.can_train(network);
        self.contenders.iter().copied().filter(can).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn plan(line: &[&str], cores: usize) -> Result<Plan> {
        Plan::new(&Cli::parse_from([&["x"], line].concat()).args, cores)
    }

    #[test]
    fn by_default_everything_is_measured() {
        let plan = plan(&[], 2).unwrap();
        assert_eq!(plan.configs().len(), 4 * 2 * 2);
        assert_eq!(plan.contenders.len(), 5);
        assert_eq!(plan.rounds, 5);
        assert_eq!(plan.configs()[1], Config { threads: 2, ..plan.configs()[0] });
    }

    #[test]
    fn one_core_has_one_thread_unless_more_are_asked_for() {
        assert_eq!(plan(&[], 1).unwrap().threads, [1]);
        assert_eq!(plan(&["--threads", "4,1,4"], 1).unwrap().threads, [4, 1]);
    }

    #[test]
    fn lists_are_separated_by_commas() {
        let line = ["--network", "gru,cnn", "--batch-size", "8", "--contenders", "ours,candle"];
        let plan = plan(&line, 2).unwrap();
        assert_eq!(plan.networks, [Network::Gru, Network::Cnn]);
        assert_eq!(plan.batch_sizes, [8]);
        assert_eq!(plan.contenders, [Contender::Ours, Contender::Candle]);
    }

    #[test]
    fn a_memory_layout_of_images_needs_convolutions() {
        let plan = plan(&[], 2).unwrap();
        for &network in &plan.networks {
            let images = matches!(network, Network::Cnn | Network::Resnet18);
            let contenders = plan.contenders_of(network);
            assert_eq!(contenders.contains(&Contender::PyTorchChannelsLast), images);
        }
    }

    #[test]
    fn nothing_of_nothing_is_refused_in_one_line() {
        for wrong in
            [["--rounds", "0"], ["--batch-size", "0"], ["--threads", "0"], ["--seconds", "0"]]
        {
            let message = plan(&wrong, 2).unwrap_err().to_string();
            assert!(message.starts_with(wrong[0]) && !message.contains('\n'), "{message}");
        }
        assert!(plan(&["--seconds", "NaN"], 2).is_err());
    }
}
