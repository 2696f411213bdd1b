//! What the samples say: medians, paired ratios, and the table.

use std::fmt;

use anyhow::{Context, Result};
use serde::Serialize;

use super::Args;
use super::contender::{Contender, Network};
use super::sample::Sample;
use crate::figures::{Spread, median, or_dash, paired_ratio};
use crate::host::{self, Host};

/// Everything that goes into bench_step.json.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) machine: Host,
    pub(super) pytorch: Option<String>,
    pub(super) threads: usize,
    pub(super) batch_size: usize,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
    pub(super) rows: Vec<Row>,
    pub(super) samples: Vec<Sample>,
}

/// One contender on one network, over all rounds.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) network: Network,
    pub(super) contender: Contender,
    pub(super) images_per_second: Spread,
    pub(super) peak_rss_mb: Option<f64>,
    pub(super) warm_up_loss: f64,
    /// Median over the rounds of this contender's speed to candle's of the same round.
    pub(super) ratio_to_candle: Option<f64>,
    /// The same, to the PyTorch contender with the highest median.
    pub(super) ratio_to_best_pytorch: Option<f64>,
}

impl Report {
    pub(super) fn new(args: &Args, samples: Vec<Sample>) -> Result<Self> {
        let mut rows = Vec::new();
        for &network in &args.networks {
            rows.extend(rows_of(network, &args.contenders, &samples)?);
        }
        Ok(Self {
            machine: Host::look(),
            pytorch: samples.iter().find_map(|sample| sample.measured.version.clone()),
            threads: args.threads,
            batch_size: args.batch_size,
            rounds: args.rounds,
            seconds: args.seconds,
            rows,
            samples,
        })
    }
}

/// The rows of one network, in the contenders' order.
fn rows_of(network: Network, contenders: &[Contender], samples: &[Sample]) -> Result<Vec<Row>> {
    let of = |contender| -> Vec<&Sample> {
        let fits = |sample: &&Sample| sample.contender == contender && sample.network == network;
        samples.iter().filter(fits).collect()
    };
    let speeds = |contender| -> Vec<f64> {
        of(contender).iter().map(|sample| sample.measured.images_per_second).collect()
    };
    let median_speed = |contender: &Contender| median(speeds(*contender)).unwrap_or(0.0);
    let present = contenders.iter().copied().filter(|&contender| !of(contender).is_empty());
    let best_pytorch = present
        .clone()
        .filter(Contender::is_pytorch)
        .max_by(|a, b| median_speed(a).total_cmp(&median_speed(b)));

    let row = |contender| {
        let own = of(contender);
        let rss = own.iter().filter_map(|sample| sample.measured.peak_rss_mb).collect();
        Ok(Row {
            network,
            contender,
            images_per_second: Spread::of(speeds(contender))
                .context("a contender has no sample")?,
            peak_rss_mb: median(rss),
            warm_up_loss: own.first().context("a contender has no sample")?.measured.warm_up_loss,
            ratio_to_candle: paired_ratio(&speeds(contender), &speeds(Contender::Candle)),
            ratio_to_best_pytorch: best_pytorch
                .and_then(|best| paired_ratio(&speeds(contender), &speeds(best))),
        })
    };
    present.map(row).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { threads, batch_size, rounds, seconds, machine, .. } = self;
        writeln!(
            f,
            "\ntraining step, batch {batch_size}, {threads} thread(s), {rounds} rounds of {seconds} s"
        )?;
        writeln!(f, "{}, {} cores, candle {}", machine.cpu, machine.cores, machine.candle)?;
        if let Some(version) = &self.pytorch {
            writeln!(f, "{version}")?;
        }
        writeln!(
            f,
            "\n{:<4} {:<22} {:>24} {:>9} {:>9} {:>13} {:>10}",
            "net",
            "contender",
            "images/s [min-max]",
            "RSS MB",
            "x candle",
            "x best torch",
            "loss 14"
        )?;
        for row in &self.rows {
            row.fmt(f)?;
        }
        writeln!(
            f,
            "\nx: median of the ratios within a round. loss 14: of the 14th step, the same for all."
        )?;
        if losses_differ(&self.rows, |row| row.contender != Contender::Candle) {
            writeln!(f, "WARNING: the losses differ: these contenders do not train the same way!")?;
        } else if losses_differ(&self.rows, |_| true) {
            writeln!(
                f,
                "candle's loss differs: its max-pool passes back a quarter of the gradient (1/k² \
                 for a k×k pool),\nso the layers before it learn more slowly."
            )?;
        }
        let shares = self.samples.iter().filter_map(|sample| sample.others_cpu_share);
        if let Some(remark) = host::remark_if_busy(shares) {
            writeln!(f, "{remark}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spread { median, min, max } = self.images_per_second;
        let speed = format!("{median:.0} [{min:.0}-{max:.0}]");
        writeln!(
            f,
            "{:<4} {:<22} {speed:>24} {:>9} {:>9} {:>13} {:>10.6}",
            self.network.name(),
            self.contender.name(),
            or_dash(self.peak_rss_mb, 0),
            or_dash(self.ratio_to_candle, 2),
            or_dash(self.ratio_to_best_pytorch, 2),
            self.warm_up_loss,
        )
    }
}

/// Whether two of these contenders had another loss in the same step of the same network.
fn losses_differ(rows: &[Row], counts: impl Fn(&Row) -> bool) -> bool {
    let differs =
        |a: &Row, b: &Row| a.network == b.network && (a.warm_up_loss - b.warm_up_loss).abs() > 1e-4;
    let rows: Vec<&Row> = rows.iter().filter(|row| counts(row)).collect();
    rows.iter().any(|a| rows.iter().any(|b| differs(a, b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_step::sample::Measured;

    fn sample(contender: Contender, round: usize, images_per_second: f64, loss: f64) -> Sample {
        let measured = Measured {
            images_per_second,
            steps: 1,
            warm_up_loss: loss,
            final_loss: loss,
            peak_rss_mb: Some(10.0),
            threads: 1,
            version: None,
        };
        Sample { round, network: Network::Cnn, contender, measured, others_cpu_share: None }
    }

    #[test]
    fn rows_compare_with_candle_and_the_best_pytorch() {
        use Contender::{Candle, Ours, PyTorch, PyTorchChannelsLast};
        let order = [Ours, Candle, PyTorch, PyTorchChannelsLast];
        let speeds = [600.0, 100.0, 200.0, 300.0];
        let samples: Vec<_> = (0..3)
            .flat_map(|round| order.iter().zip(speeds).map(move |(&c, s)| sample(c, round, s, 2.0)))
            .collect();
        let rows = rows_of(Network::Cnn, &order, &samples).unwrap();
        assert_eq!(rows[0].ratio_to_candle, Some(6.0));
        assert_eq!(rows[0].ratio_to_best_pytorch, Some(2.0));
        assert_eq!(rows[1].ratio_to_candle, Some(1.0));
        assert!(!losses_differ(&rows, |_| true));
    }

    #[test]
    fn without_pytorch_there_is_no_ratio_to_it() {
        let order = [Contender::Ours, Contender::Candle];
        let samples =
            [sample(Contender::Ours, 0, 2.0, 2.1), sample(Contender::Candle, 0, 1.0, 2.2)];
        let rows = rows_of(Network::Cnn, &order, &samples).unwrap();
        assert_eq!(rows[0].ratio_to_best_pytorch, None);
        assert!(rows[0].to_string().contains(" - "));
    }

    #[test]
    fn only_candle_may_have_another_loss() {
        let order = [Contender::Ours, Contender::Candle, Contender::PyTorch];
        let rows = |losses: [f64; 3]| {
            let samples: Vec<_> =
                order.iter().zip(losses).map(|(&c, loss)| sample(c, 0, 1.0, loss)).collect();
            rows_of(Network::Cnn, &order, &samples).unwrap()
        };
        let but_candle = |row: &Row| row.contender != Contender::Candle;
        assert!(!losses_differ(&rows([2.0, 2.1, 2.00005]), but_candle));
        assert!(losses_differ(&rows([2.0, 2.1, 2.0]), |_| true));
        assert!(losses_differ(&rows([2.0, 2.1, 2.1]), but_candle));
    }
}
