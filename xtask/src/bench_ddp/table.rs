//! The report in a terminal.

use std::fmt;

use super::report::{Report, Row};
use crate::figures::{Spread, or_dash};
use crate::host;

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, plan, .. } = self;
        let (rounds, seconds, batch) = (plan.rounds, plan.seconds, plan.batch_size);
        writeln!(
            f,
            "\n{}, batch {batch} and one thread per worker, {rounds} rounds of {seconds} s",
            plan.network.label()
        )?;
        writeln!(f, "{}, {} cores, candle {}", machine.cpu, machine.cores, machine.candle)?;
        if let Some(version) = &self.pytorch {
            writeln!(f, "{version}")?;
        }
        let speed = format!("{}/s [min-max]", plan.network.unit());
        writeln!(
            f,
            "\n{:<44}{:>7}{speed:>24}{:>10}{:>10}{:>12}{:>9}",
            "", "workers", "ms/step", "× alone", "× best DDP", "peak MB"
        )?;
        self.rows.iter().try_for_each(|row| line(f, row))?;
        writeln!(f, "\n×: median of the ratios within a round; alone: one worker of the library.")?;
        if !self.losses_agree() {
            writeln!(f, "WARNING: the losses differ, these contenders do not train the same way")?;
        }
        if plan.workers > machine.cores {
            writeln!(f, "{} workers are more than this machine's cores.", plan.workers)?;
        }
        let samples = self.rows.iter().flat_map(|row| row.samples);
        let shares = samples.filter_map(|sample| sample.others_cpu_share);
        if let Some(remark) = host::remark_if_busy(shares) {
            writeln!(f, "{remark}")?;
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, row: &Row<'_>) -> fmt::Result {
    write!(f, "{:<44}{:>7}", row.contender.label(), row.workers)?;
    if let Some(Spread { median, min, max }) = row.examples_per_second {
        let speed = format!("{median:.0} [{min:.0}-{max:.0}]");
        write!(
            f,
            "{speed:>24}{:>10}{:>10}{:>12}{:>9}",
            or_dash(row.step_seconds.map(|seconds| 1000.0 * seconds), 2),
            or_dash(row.times_one_worker, 2),
            or_dash(row.times_best_ddp, 2),
            or_dash(row.peak_rss_mb, 0),
        )?;
    }
    match (row.failure, row.samples.len()) {
        (None, 0) => writeln!(f, "  not reached"),
        (None, _) => writeln!(f),
        (Some(failure), _) => writeln!(f, "  failed: {}", failure.reason),
    }
}

#[cfg(test)]
mod tests {
    use super::super::contender::Contender;
    use super::*;
    use crate::bench_ddp::fixture::{outcome, plan};
    use crate::host::Host;
    use crate::live::Failure;

    #[test]
    fn rows_have_figures_or_say_why_not() {
        let (machine, plan) = (Host::look(), plan());
        let mut failed = outcome(Contender::OursMpi, &[], 2.0);
        failed.failure = Some(Failure { reason: "no route".into(), stderr: Vec::new() });
        let outcomes = [
            outcome(Contender::OursAlone, &[100.0], 2.0),
            outcome(Contender::OursLocal, &[97.0], 2.0),
            failed,
        ];
        let text = Report::new(&machine, &plan, &outcomes).to_string();
        let rows: Vec<&str> = text.lines().filter(|l| l.starts_with("Candelabrum")).collect();
        assert!(rows[1].contains("12416 [12416-12416]") && rows[1].contains("1.94"), "{text}");
        assert!(rows[2].ends_with("failed: no route"), "{text}");
        assert!(!text.contains("WARNING"), "{text}");
    }
}
