//! The report in a terminal.

use std::fmt;

use super::report::{Report, Step};
use crate::host;
use crate::split::Part;

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{}", self.heading())?;
        writeln!(f, "{}, {} cores", self.machine.cpu, self.machine.cores)?;
        write!(f, "\n{:<14}{:>22}", "milliseconds", "step [min-max]")?;
        for part in Part::ALL {
            let name = if part == Part::Exposed { "exposed" } else { part.label() };
            write!(f, "{name:>12}")?;
        }
        writeln!(f, "{:>12}", "busy comm.")?;
        for (name, step) in [("overlap off", &self.off), ("overlap on", &self.on)] {
            match step {
                Some(step) => line(f, name, step)?,
                None => writeln!(f, "{name:<14}  not reached")?,
            }
        }
        let ms = |seconds: f64| 1000.0 * seconds;
        if let Some(alone) = self.exchange_seconds {
            let (least, most) = (ms(alone.min), ms(alone.max));
            writeln!(
                f,
                "\nan exchange alone takes {:.1} ms [{least:.1}-{most:.1}]",
                ms(alone.median)
            )?;
        }
        if let (Some(hideable), Some(share)) = (self.hideable_seconds, self.hidden_share) {
            let percent = [share.median, share.min, share.max].map(|share| 100.0 * share);
            writeln!(
                f,
                "of {:.1} ms that fit behind backward, overlap hides {:.0}% [{:.0}-{:.0}]",
                ms(hideable),
                percent[0],
                percent[1],
                percent[2]
            )?;
        }
        writeln!(f, "\nBoth hosts are this machine: compute and the network share its cores.")?;
        let shares = self.samples.iter().filter_map(|sample| sample.others_cpu_share);
        if let Some(remark) = host::remark_if_busy(shares) {
            writeln!(f, "{remark}")?;
        }
        Ok(())
    }
}

impl Report<'_> {
    /// A line about the measurement.
    pub(super) fn heading(&self) -> String {
        let plan = self.plan;
        let mut line = format!("{}, batch {} per rank", plan.network.label(), plan.batch_size);
        if let (Some(ranks), Some(rate)) = (self.ranks, self.wire_megabits_per_second) {
            let megabytes = ranks.gradient_bytes as f64 / 1e6;
            line += &format!(", {megabytes:.1} MB of gradients, two hosts, {rate:.0} Mbit/s");
        }
        line + &format!("; {} rounds of {} s", plan.rounds, plan.seconds)
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, step: &Step) -> fmt::Result {
    let ms = |seconds: f64| 1000.0 * seconds;
    let [median, min, max] = [step.total.median, step.total.min, step.total.max].map(ms);
    write!(f, "{name:<14}{:>22}", format!("{median:.1} [{min:.1}-{max:.1}]"))?;
    for part in Part::ALL {
        write!(f, "{:>12.1}", ms(*step.parts.get(part)))?;
    }
    writeln!(f, "{:>12.1}", ms(step.communication))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench_overlap::fixture::{plan, results};
    use crate::host::Host;

    #[test]
    fn both_ways_and_the_share_are_told() {
        let (machine, plan) = (Host::look(), plan());
        let results = results(&[(1.0, 0.73)], 0.3, 0.4);
        let text = Report::new(&machine, &plan, &results).to_string();
        for part in [
            "MLP 784-1024-1024-10, batch 8 per rank, 4.0 MB of gradients, two hosts, 1000 Mbit/s; 2 rounds of 1 s",
            "1000.0 [1000.0-1000.0]",
            "an exchange alone takes 400.0 ms",
            "of 300.0 ms that fit behind backward, overlap hides 90%",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
