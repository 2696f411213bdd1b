//! The plan of the measurement: every contender with every number of ranks at every size.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Error, Result, ensure};
use serde::Serialize;

use super::Args;
use super::contender::Contender;
use crate::bench::once;
use crate::host;

/// The size of one rank's numbers in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Size(pub(super) usize);

const UNITS: [(&str, usize); 5] =
    [("KiB", 1 << 10), ("MiB", 1 << 20), ("KB", 1000), ("MB", 1_000_000), ("B", 1)];

impl Size {
    /// The number of f32 elements.
    pub(super) fn elements(self) -> usize {
        self.0 / size_of::<f32>()
    }
}

impl FromStr for Size {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
        let (number, unit) = unit.context("a size is a number and B, KB, KiB, MB or MiB")?;
        let number: f64 = number.trim().parse().context("a size begins with a number")?;
        let bytes = (number * unit as f64).round();
        ensure!((4.0..=2e9).contains(&bytes), "a size is from 4B to 2000MB");
        Ok(Self(bytes as usize))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |unit: usize| self.0 >= unit && (10 * self.0).is_multiple_of(unit);
        let shown = ["MB", "MiB", "KB", "KiB"].iter().find_map(|name| {
            let (_, unit) = UNITS.iter().find(|(unit, _)| unit == name)?;
            whole(*unit).then(|| format!("{} {name}", self.0 as f64 / *unit as f64))
        });
        f.pad(&shown.unwrap_or_else(|| format!("{} B", self.0)))
    }
}

/// The whole plan.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Plan {
    pub(super) ranks: Vec<usize>,
    pub(super) sizes: Vec<Size>,
    pub(super) contenders: Vec<Contender>,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
    /// The size of the last cache in bytes. Larger data must come from memory.
    pub(super) cache: usize,
}

const SIZES: [&str; 10] =
    ["4KB", "16KB", "64KB", "256KB", "1MB", "1.7MB", "4MB", "16MB", "25MiB", "100MB"];
const QUICK: [&str; 4] = ["4KB", "64KB", "1.7MB", "25MiB"];

impl Plan {
    /// The requested items, each once.
    pub(super) fn new(args: &Args) -> Result<Self> {
        let rounds = args.rounds.unwrap_or(if args.quick { 3 } else { 7 });
        let seconds = args.seconds.unwrap_or(if args.quick { 0.03 } else { 0.1 });
        ensure!(args.ranks.iter().all(|&n| (2..=64).contains(&n)), "--ranks are from 2 to 64");
        ensure!(rounds > 0, "--rounds starts at 1");
        ensure!(seconds > 0.0 && seconds < 1e6, "--seconds is a number above 0");
        let usual: &[&str] = if args.quick { &QUICK } else { &SIZES };
        let mut sizes = once(&args.sizes);
        if sizes.is_empty() {
            sizes = usual.iter().map(|size| size.parse()).collect::<Result<_>>()?;
        }
        sizes.sort_unstable();
        let (mut ranks, mut contenders) = (once(&args.ranks), once(&args.contenders));
        if args.link.is_some() {
            ranks = vec![2];
            contenders.retain(|who| who.is_between_hosts());
        }
        Ok(Self { ranks, sizes, contenders, rounds, seconds, cache: host::last_cache() })
    }

    /// The contenders that are measured at each size, in one round.
    pub(super) fn turns(&self, ranks: usize) -> impl Iterator<Item = (Size, Contender)> {
        let of = move |&size: &Size| {
            let who = self.contenders.iter().copied();
            who.filter(move |&who| self.takes_part(who, ranks, size)).map(move |who| (size, who))
        };
        self.sizes.iter().flat_map(of)
    }

    /// The limit of the memory matters only for numbers that do not fit in the cache.
    pub(super) fn takes_part(&self, contender: Contender, ranks: usize, size: Size) -> bool {
        contender != Contender::Memory || ranks * size.0 > self.cache
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

    fn plan(line: &[&str]) -> Result<Plan> {
        Plan::new(&Cli::parse_from([&["x"], line].concat()).args)
    }

    #[test]
    fn a_size_reads_as_it_is_shown() {
        for (text, bytes) in [
            ("4 KB", 4000),
            ("1.7 MB", 1_700_000),
            ("25 MiB", 25 << 20),
            ("4 KiB", 4096),
            ("12 B", 12),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, text));
        }
        for wrong in ["4", "KB", "x MB", "1B", "9999MB", "-4KB"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn by_default_ten_sizes_and_two_numbers_of_ranks_are_measured() {
        let plan = plan(&[]).unwrap();
        assert_eq!((plan.sizes.len(), plan.ranks), (10, vec![2, 4]));
        assert_eq!((plan.rounds, plan.contenders.len()), (7, 6));
    }

    #[test]
    fn what_is_asked_for_goes_before_quick() {
        let plan = plan(&["--quick", "--sizes", "1MB,4KB", "--rounds", "2"]).unwrap();
        assert_eq!((plan.sizes, plan.rounds), (vec![Size(4000), Size(1_000_000)], 2));
    }

    #[test]
    fn the_memory_is_measured_where_nothing_fits_the_cache() {
        let mut plan = plan(&["--sizes", "1MB,16MB"]).unwrap();
        plan.cache = 32_000_000;
        let memory = |ranks| plan.turns(ranks).filter(|&(_, who)| who == Contender::Memory).count();
        assert_eq!((memory(2), memory(4)), (0, 1));
    }

    #[test]
    fn nothing_of_nothing_is_refused_in_one_line() {
        for wrong in [["--rounds", "0"], ["--ranks", "1"], ["--seconds", "0"]] {
            let message = plan(&wrong).unwrap_err().to_string();
            assert!(message.starts_with(wrong[0]) && !message.contains('\n'), "{message}");
        }
    }
}
