//! The report in a terminal: a table per number of ranks.

use std::fmt;

use super::contender::Contender;
use super::report::{Point, Report};
use crate::figures::or_dash;
use crate::host;

const LABEL: usize = 10;
const TIME: usize = 13;
const RATIO: usize = 18;

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { machine, plan, .. } = self;
        writeln!(f, "\nall-reduce: sum of f32, in place, {} rounds", plan.rounds)?;
        writeln!(f, "{}, {} cores", machine.cpu, machine.cores)?;
        for (name, version) in self.versions {
            writeln!(f, "{name}: {}", version.trim())?;
        }
        for &ranks in &plan.ranks {
            self.table(f, ranks)?;
        }
        writeln!(f, "\n×: median of the ratios of times within a round; above 1, ours is faster.")?;
        writeln!(
            f,
            "of memory: the time in which as many threads change their numbers in place, each on \
             its own, to ours; where all ranks' numbers exceed the last cache ({} MB).",
            plan.cache / 1_000_000
        )?;
        if let Some(most) = plan.ranks.iter().find(|&&ranks| ranks > machine.cores) {
            writeln!(f, "{most} ranks are more than this machine's cores.")?;
        }
        let shares = self.samples.iter().filter_map(|sample| sample.others_cpu_share);
        if let Some(remark) = host::remark_if_busy(shares) {
            writeln!(f, "{remark}")?;
        }
        Ok(())
    }
}

impl Report<'_> {
    fn table(&self, f: &mut fmt::Formatter<'_>, ranks: usize) -> fmt::Result {
        let timed = self.plan.contenders.iter().filter(|&&who| who != Contender::Memory);
        let timed: Vec<Contender> = timed.copied().collect();
        writeln!(f, "\n{ranks} ranks, microseconds")?;
        write!(f, "{:<LABEL$}", "")?;
        for who in &timed {
            write!(f, "{:>TIME$}", who.name())?;
        }
        writeln!(f, "{:>RATIO$}{:>12}{:>11}", "local × peer", "mpi × C", "of memory")?;
        for point in self.points.iter().filter(|point| point.ranks == ranks) {
            line(f, point, &timed)?;
        }
        for dropout in self.dropouts.iter().filter(|dropout| dropout.ranks == ranks) {
            writeln!(f, "{} failed: {}", dropout.contender.name(), dropout.failure.reason)?;
        }
        Ok(())
    }
}

fn line(f: &mut fmt::Formatter<'_>, point: &Point, timed: &[Contender]) -> fmt::Result {
    write!(f, "{:<LABEL$}", point.size)?;
    for who in timed {
        let time = point.seconds.get(who.name()).map(|spread| 1e6 * spread.median);
        write!(f, "{:>TIME$}", microseconds(time))?;
    }
    let peer = match (point.local_to_best_peer, point.best_peer) {
        (Some(ratio), Some(peer)) => format!("{ratio:.2} ({})", peer.name()),
        _ => "-".into(),
    };
    let share = point.share_of_memory_speed.map(|share| format!("{:.0}%", 100.0 * share));
    let share = share.unwrap_or_else(|| "-".into());
    writeln!(f, "{peer:>RATIO$}{:>12}{share:>11}", or_dash(point.mpi_to_c, 2))
}

/// About three digits.
fn microseconds(time: Option<f64>) -> String {
    or_dash(time, if time.is_some_and(|time| time < 100.0) { 1 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_allreduce::fixture::Fixture;

    #[test]
    fn a_line_has_times_ratios_and_the_share_of_the_memorys_speed() {
        let mut fixture = Fixture::new(&["4KB", "100MB"]);
        for (who, seconds) in
            [(Contender::Local, 1e-6), (Contender::Mpi, 4e-6), (Contender::MpiC, 3e-6)]
        {
            fixture.add(0, who, seconds);
        }
        fixture.add_at(1, 0, Contender::Local, 40e-3);
        fixture.add_at(1, 0, Contender::Memory, 20e-3);
        fixture.drop_out(Contender::Gloo, "no network");
        let text = fixture.report().to_string();
        let line = |start: &str| -> Vec<&str> {
            text.lines().find(|line| line.starts_with(start)).unwrap().split_whitespace().collect()
        };
        assert_eq!(
            line("4 KB"),
            ["4", "KB", "1.0", "4.0", "3.0", "-", "3.00", "(mpi-c)", "0.75", "-"]
        );
        assert_eq!(line("100 MB"), ["100", "MB", "40000", "-", "-", "-", "-", "-", "50%"]);
        assert!(text.contains("gloo failed: no network"), "{text}");
    }
}
