//! The report in a terminal: a table per configuration.

use std::fmt;

use super::contender::Contender;
use super::plan::Config;
use super::report::{Agreement, Report, Row, agreement};
use crate::figures::{Spread, or_dash};
use crate::host;

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, plan, .. } = self;
        let (rounds, seconds) = (plan.rounds, plan.seconds);
        writeln!(f, "\ntraining step, {rounds} rounds of {seconds} s")?;
        writeln!(f, "{}, {} cores, candle {}", machine.cpu, machine.cores, machine.candle)?;
        if let Some(version) = &self.pytorch {
            writeln!(f, "{version}")?;
        }
        let mut verdicts = Vec::new();
        for config in plan.configs() {
            let rows: Vec<&Row<'_>> = self.rows.iter().filter(|row| row.config == config).collect();
            if !rows.is_empty() {
                table(f, config, &rows)?;
                verdicts.push((config, agreement(&rows)));
            }
        }
        writeln!(f, "\n×: median of the ratios within a round. cores: processor time over time.")?;
        losses(f, &verdicts)?;
        for row in self.rows.iter().filter(|row| !row.is_bounded()) {
            let (who, which) = (row.contender.name(), name(row.config));
            writeln!(f, "WARNING: {who} used more threads than it was given: {which}")?;
        }
        let samples = self.rows.iter().flat_map(|row| row.samples);
        let shares = samples.filter_map(|sample| sample.others_cpu_share);
        if let Some(remark) = host::remark_if_busy(shares) {
            writeln!(f, "{remark}")?;
        }
        Ok(())
    }
}

fn name(config: Config) -> String {
    let Config { network, batch_size, threads } = config;
    let plural = if threads == 1 { "" } else { "s" };
    format!("{}, batch {batch_size}, {threads} thread{plural}", network.name())
}

fn table(f: &mut fmt::Formatter<'_>, config: Config, rows: &[&Row<'_>]) -> fmt::Result {
    let speed = format!("{}/s [min-max]", config.network.unit());
    let loss = format!("loss {}", config.network.loss_check().step);
    writeln!(f, "\n{}", name(config))?;
    writeln!(
        f,
        "{:<22}{speed:>24}{:>10}{:>10}{:>14}{:>9}{:>7}{loss:>10}",
        "", "ms/step", "× candle", "× best torch", "peak MB", "cores"
    )?;
    rows.iter().try_for_each(|row| line(f, row))
}

fn line(f: &mut fmt::Formatter<'_>, row: &Row<'_>) -> fmt::Result {
    write!(f, "{:<22}", row.contender.name())?;
    if let Some(Spread { median, min, max }) = row.examples_per_second {
        let speed = format!("{median:.0} [{min:.0}-{max:.0}]");
        writeln!(
            f,
            "{speed:>24}{:>10}{:>10}{:>14}{:>9}{:>7}{:>10}",
            or_dash(row.step_seconds.map(|seconds| 1000.0 * seconds), 2),
            or_dash(row.ratio_to_candle, 2),
            or_dash(row.ratio_to_best_pytorch, 2),
            or_dash(row.peak_rss_mb, 0),
            or_dash(row.cores_used, 2),
            or_dash(row.compared_loss(), 5),
        )?;
    }
    match (row.failure, row.samples.len()) {
        (None, 0) => writeln!(f, "  not reached"),
        (None, _) => Ok(()),
        (Some(failure), 0) => writeln!(f, "  failed: {}", failure.reason),
        (Some(failure), count) => {
            writeln!(f, "{:<22}  failed after {count} sample(s): {}", "", failure.reason)
        }
    }
}

/// The agreement of the contenders' training, from the losses.
fn losses(f: &mut fmt::Formatter<'_>, verdicts: &[(Config, Agreement)]) -> fmt::Result {
    let named = |wanted: Agreement| -> Vec<String> {
        let hits = verdicts.iter().filter(|(_, verdict)| *verdict == wanted);
        hits.map(|(config, _)| name(*config)).collect()
    };
    writeln!(f, "loss N: of the Nth warm-up step, the same step for all.")?;
    let wrong = named(Agreement::None);
    if !wrong.is_empty() {
        writeln!(
            f,
            "WARNING: the losses differ, these contenders do not train the same way: {}",
            wrong.join("; ")
        )?;
    }
    let candles = named(Agreement::ButCandle);
    if !candles.is_empty() {
        writeln!(f, "{}'s loss differs: {}.", Contender::Candle.name(), candles.join("; "))?;
        writeln!(
            f,
            "Its max-pool passes back a quarter of the gradient (1/k² for a k×k pool), so the \
             layers before it learn more slowly."
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_step::fixture::{config, outcome};
    use crate::bench_step::plan::Plan;
    use crate::bench_step::trial::Outcome;
    use crate::host::Host;
    use crate::live::Failure;

    fn shown(outcomes: &[Outcome]) -> String {
        let plan = Plan {
            networks: vec![outcomes[0].config.network],
            batch_sizes: vec![64],
            threads: vec![1],
            contenders: outcomes.iter().map(|outcome| outcome.contender).collect(),
            rounds: 2,
            seconds: 1.0,
        };
        Report::new(&Host::look(), &plan, outcomes).to_string()
    }

    fn failure(reason: &str) -> Option<Failure> {
        Some(Failure { reason: reason.into(), stderr: vec![reason.into()] })
    }

    #[test]
    fn a_failed_contender_says_why_in_its_row() {
        let ours = outcome(config(64, 1), Contender::Ours, &[400.0, 410.0], 2.0);
        let mut candle = outcome(config(64, 1), Contender::Candle, &[100.0], 2.0);
        candle.failure = failure("signal: 9 (SIGKILL)");
        let mut compiled = outcome(config(64, 1), Contender::PyTorchCompile, &[], 2.0);
        (compiled.ready, compiled.failure) = (None, failure("no C++ compiler"));
        let text = shown(&[ours, candle, compiled]);
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
        assert!(line("ours").contains("4.00"), "{text}");
        assert!(line("candle").contains("100 [100-100]"), "{text}");
        assert!(text.contains("failed after 1 sample(s): signal: 9 (SIGKILL)"), "{text}");
        assert!(line("pytorch-compile").ends_with("failed: no C++ compiler"), "{text}");
        assert!(!text.contains("WARNING"), "{text}");
    }

    #[test]
    fn who_takes_more_threads_than_given_is_told_of() {
        let mut candle = outcome(config(64, 1), Contender::Candle, &[100.0], 2.0);
        assert!(!shown(&[candle.clone()]).contains("WARNING"));
        candle.samples[0].measured.cpu_seconds *= 1.9;
        let text = shown(&[candle]);
        let warning = "candle used more threads than it was given: cnn, batch 64, 1 thread";
        assert!(text.contains(warning), "{text}");
    }

    #[test]
    fn losses_that_differ_are_remarked_upon() {
        let with = |candle: f64, torch: f64| {
            let of = |who, loss| outcome(config(64, 1), who, &[1.0], loss);
            let outcomes = [
                of(Contender::Ours, 2.0),
                of(Contender::Candle, candle),
                of(Contender::PyTorch, torch),
            ];
            shown(&outcomes)
        };
        assert!(with(2.1, 2.0).contains("candle's loss differs: cnn, batch 64, 1 thread."));
        assert!(with(2.0, 2.1).contains("WARNING"));
        assert!(!with(2.0, 2.0).contains("differ"));
    }
}
