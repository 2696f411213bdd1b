//! The tables on the terminal: the speed of each point, and the parts of its time.

use std::fmt;

use super::report::{BASELINE, Report, Row};
use crate::figures::{Spread, or_dash};
use crate::host;
use crate::split::Part;

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (settings, machine) = (self.settings, self.machine);
        let cores = machine.cores;
        writeln!(
            f,
            "\ntraining, batch {} and {} compute thread per rank, {} rounds",
            settings.batch_size, settings.threads_per_rank, settings.rounds
        )?;
        writeln!(f, "{}, {cores} cores, commit {}\n", machine.cpu, machine.commit)?;
        speeds(f, &self.points)?;
        splits(f, &self.points)?;
        writeln!(
            f,
            "\nimages/s: of all ranks together, median [min-max]. speed-up: to 1 worker with \
             {BASELINE}, same model and backend,\nmedian of the ratios within a round; efficiency: \
             speed-up divided by workers. Times, KB sent and KB received\n(payload): rank 0's mean \
             step, median over the rounds. other: what no part accounts for."
        )?;
        if self.points.iter().any(|row| row.speed_up.is_none()) {
            writeln!(f, "-: 1 worker with {BASELINE} was not measured, so there is no speed-up.")?;
        }
        if self.points.iter().any(|row| row.oversubscribed) {
            writeln!(f, "*: more ranks than this machine's {cores} cores, which they share.")?;
        }
        let shares = self.samples.iter().filter_map(|sample| sample.others_cpu_share);
        if let Some(remark) = host::remark_if_busy(shares) {
            writeln!(f, "{remark}")?;
        }
        Ok(())
    }
}

/// Model, backend, strategy, workers.
fn name(row: &Row) -> String {
    let point = &row.point;
    let mark = if row.oversubscribed { "*" } else { " " };
    format!(
        "{:<5} {:<7} {:<15} {:>6}{mark}",
        point.model,
        point.backend.name(),
        point.strategy,
        point.workers
    )
}

fn heading() -> String {
    format!("{:<5} {:<7} {:<15} {:>6} ", "model", "backend", "strategy", "ranks")
}

fn speeds(f: &mut fmt::Formatter<'_>, rows: &[Row]) -> fmt::Result {
    writeln!(
        f,
        "{} {:>24} {:>8} {:>10} {:>9} {:>11}",
        heading(),
        "images/s [min-max]",
        "speed-up",
        "efficiency",
        "KB sent",
        "KB received"
    )?;
    for row in rows {
        let Spread { median, min, max } = row.images_per_second;
        let speed = format!("{median:.0} [{min:.0}-{max:.0}]");
        writeln!(
            f,
            "{} {speed:>24} {:>8} {:>10} {:>9.1} {:>11.1}",
            name(row),
            or_dash(row.speed_up, 2),
            or_dash(row.efficiency, 2),
            row.bytes_sent_per_step / 1000.0,
            row.bytes_received_per_step / 1000.0
        )?;
    }
    Ok(())
}

fn splits(f: &mut fmt::Formatter<'_>, rows: &[Row]) -> fmt::Result {
    write!(f, "\n{} {:>8}", heading(), "step ms")?;
    let short = |part: Part| if part == Part::Exposed { "exposed" } else { part.label() };
    for part in Part::ALL {
        write!(f, " {:>10}", short(part))?;
    }
    writeln!(f)?;
    for row in rows {
        write!(f, "{} {:>8.2}", name(row), 1000.0 * row.step_seconds.total.median)?;
        for part in Part::ALL {
            write!(f, " {:>10.2}", 1000.0 * row.step_seconds.get(part).median)?;
        }
        writeln!(f)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::bench_scaling::fixture;

    #[test]
    fn the_tables_name_points_marks_and_what_is_missing() {
        let mut fixture = fixture::of(&["fp32", "fp16"], &[1, 4]);
        fixture.add(0, "fp32", 4, 300.0);
        let text = fixture.report().to_string();
        assert!(text.contains("fp32                 4*"), "{text}");
        assert!(text.contains("exposed") && text.contains("no speed-up"), "{text}");
        fixture.add(0, "fp32", 1, 100.0);
        let text = fixture.report().to_string();
        assert!(text.contains("3.00       0.75"), "{text}");
        assert!(!text.contains("no speed-up"), "{text}");
    }
}
