//! A benchmark from its command line to its files: the one way that all of them go.
//!
//! A benchmark declares what it measures ([`Bench::plan`]), which rows are compared, its tables and
//! its picture. This file builds, measures, prints, writes, and compares with other runs.

use std::cmp::Ordering;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::compare::{Change, changes};
use super::host::Host;
use super::picture::{Band, Picture};
use super::plan::Block;
use super::programs::{Programs, Wanted};
use super::report::{BenchReport, Output};
use super::runner::{Event, Schedule};
use super::sample::{Metric, Row, Values};
use super::screen::Screen;
use super::table::Column;
use crate::interrupt::Watch;

/// A declared benchmark. Its own options are the settings in its file.
pub(crate) trait Bench: Serialize {
    /// The command, and the folder of the results in `target`.
    const NAME: &'static str;
    /// The name of the files.
    const FILE: &'static str;
    const METRIC: Metric;
    const DEFAULTS: Defaults;
    /// What it measures, and which direction is better.
    const TITLE: &'static str;
    /// Lines below the tables and the picture that explain their words.
    const LEGEND: &'static [&'static str] = &[];

    /// Refuses impossible options, before anything is built.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The programs that take part besides our players.
    fn wanted(&self) -> Wanted {
        Wanted::default()
    }

    /// Everything that is measured, in the order of the tables.
    fn plan(&self, setup: &mut Setup) -> Result<Vec<Block>>;

    /// Compares the rows of a leg, whose rounds are over, with each other.
    fn derive(&self, rows: &mut [Row]);

    /// The columns of each table in which these rows stand.
    fn tables(&self, rows: &[Row]) -> Vec<Vec<Column>>;

    /// Further lines, about these results.
    fn notes(&self, _: &BenchReport) -> Vec<String> {
        Vec::new()
    }

    /// The charts of the picture.
    fn bands(&self, report: &BenchReport) -> Vec<Band>;
}

/// The command line of a benchmark.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Cli<B: clap::Args> {
    #[command(flatten)]
    pub(crate) bench: B,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// The name of a choice on the command line.
pub(crate) fn choice_name(choice: &impl clap::ValueEnum) -> String {
    choice.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The options' values where the user gives none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    /// In seconds.
    pub(crate) deadline: u64,
}

/// A comparison with another commit, whose differences are small, takes many short samples.
const AGAINST: Defaults = Defaults { rounds: 151, seconds: 0.1, deadline: 600 };
const STARTS_AGAINST: usize = 3;

/// The options that all benchmarks have.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Common {
    /// Samples of every contender [default: 3 to 7, by benchmark; 151 with --against]
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<usize>,
    /// Measured seconds of a sample, at least one step [default: 0.1 to 3, by benchmark; 0.1 with
    /// --against]
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    /// Seconds that a contender may take to get ready, and for each sample [default: 120 to 600, by
    /// benchmark]
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
    /// Folder of the JSON, CSV and SVG files [default: a folder of the benchmark's name in target]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

/// Everything that a plan can need.
pub(crate) struct Setup {
    pub(crate) machine: Host,
    pub(crate) schedule: Schedule,
    pub(crate) programs: Programs,
    pub(crate) output: Output,
    pub(crate) watch: Watch,
    /// Settings that the benchmark finds itself, for the file.
    pub(crate) found: Values,
}

impl Common {
    /// The schedule, or the reason in one line why it is impossible.
    pub(crate) fn schedule(&self, defaults: Defaults) -> Result<Schedule> {
        let against = self.against.is_some();
        let defaults = if against { AGAINST } else { defaults };
        let rounds = self.rounds.unwrap_or(defaults.rounds);
        let seconds = self.seconds.unwrap_or(defaults.seconds);
        ensure!(rounds > 0, "--rounds starts at 1");
        ensure!(seconds > 0.0 && seconds < 1e6, "--seconds is a number above 0");
        let compares = against || self.compare.is_some();
        ensure!(compares || !self.fail_if_slower, "--fail-if-slower needs --compare or --against");
        let starts = if against { STARTS_AGAINST.min(rounds) } else { 1 };
        let deadline = Duration::from_secs(self.deadline.unwrap_or(defaults.deadline).max(1));
        // Slow steps exceed the seconds of a sample, and get fewer rounds.
        let patience = if against { 3.0 } else { f64::INFINITY };
        Ok(Schedule { rounds, starts, seconds, deadline, patience })
    }
}

/// Runs a benchmark. After an interrupt, the results so far are kept.
#[expect(clippy::print_stdout, reason = "a benchmark's results are what it prints")]
pub(crate) fn run<B: Bench + clap::Args>(cli: &Cli<B>) -> Result<()> {
    let Cli { bench, common } = cli;
    let schedule = common.schedule(B::DEFAULTS)?;
    bench.check()?;
    let earlier =
        common.compare.as_deref().map(|path| BenchReport::read(path, B::NAME)).transpose()?;
    let machine = Host::look();
    let output = Output::new(common.out.as_deref(), B::NAME)?;
    let watch = Watch::start()?;
    let programs = Programs::find(bench.wanted(), common.against.as_deref())?;
    let found = Values::new();
    let mut setup = Setup { machine, schedule, programs, output, watch, found };
    let mut blocks = bench.plan(&mut setup)?;
    let Setup { machine, programs, output, watch, found, .. } = setup;
    let suffix = programs.other.as_ref().map(|other| format!("@{}", other.commit));
    if let (Some(other), Some(suffix)) = (&programs.other, &suffix) {
        blocks = blocks.into_iter().map(|block| block.with_twins(suffix, &other.program)).collect();
    }
    let trials: usize = blocks.iter().map(|block| block.trials().count()).sum();
    ensure!(trials > 0, "no contender is left to measure");

    let Schedule { rounds, starts, seconds, .. } = schedule;
    let players: usize = blocks.iter().map(|block| block.players.len()).sum();
    println!("\n{}", B::TITLE);
    println!("{}, {} cores, candle {}", machine.cpu, machine.cores, machine.candle);
    println!("{rounds} rounds of {seconds} s");
    let mut settings: Values = serde_json::from_value(serde_json::to_value(bench)?)?;
    settings.extend(found);
    settings.extend([("rounds".into(), rounds.into()), ("seconds".into(), seconds.into())]);
    let mut report = BenchReport::new(B::NAME, machine, settings);
    let mut screen = Screen::new(players * starts + trials * rounds);
    let mut measured = Ok(());
    for block in &blocks {
        screen.begin(block);
        measured = schedule.measure(block, &mut report.rows, &watch, &mut |event| match event {
            Event::Turn(trial) => screen.turn(trial),
            Event::Finished(rows) => {
                bench.derive(rows);
                screen.print(rows, &bench.tables(rows));
            }
        });
        if measured.is_err() {
            break;
        }
        write::<B>(bench, &report, &output)?;
    }
    screen.end();

    annotate(bench, &mut report);
    println!();
    report.notes.iter().for_each(|note| println!("{note}"));
    let paths = write::<B>(bench, &report, &output)?;
    println!(
        "\nwrote {}",
        paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    );
    let samples: usize = report.rows.iter().map(|row| row.samples.len()).sum();
    measured.with_context(|| format!("kept {samples} of {} samples", trials * rounds))?;
    ensure!(samples > 0, "no contender could be measured");
    let correct =
        report.rows.iter().all(|row| row.values("correct").iter().all(|&value| value == 1.0));
    ensure!(correct, "a contender's result was wrong: see `correct` in the samples");

    let mut slower = 0;
    if let Some(earlier) = earlier {
        println!(
            "\nUndisturbed speed since {} ({}):",
            earlier.machine.date, earlier.machine.commit
        );
        if earlier.machine.cpu != report.machine.cpu {
            println!("The machines differ: {} then.", earlier.machine.cpu);
        }
        slower += tell(&changes(&report.rows, &earlier.rows, "", B::METRIC));
    }
    if let Some(suffix) = suffix {
        println!("\nThis work tree's undisturbed speed to that of {}:", &suffix[1..]);
        slower += tell(&changes(&report.rows, &report.rows, &suffix, B::METRIC));
    }
    ensure!(slower == 0 || !common.fail_if_slower, "{slower} became slower");
    Ok(())
}

/// Prints the changes, and returns how many are for the worse.
#[expect(clippy::print_stdout, reason = "a benchmark's results are what it prints")]
fn tell(changes: &[Change]) -> usize {
    let count = |speed| changes.iter().filter(|change| change.speed() == speed).count();
    let (slower, faster) = (count(Ordering::Less), count(Ordering::Greater));
    changes.iter().for_each(|change| println!("  {change}"));
    println!("{slower} slower, {faster} faster, {} the same", changes.len() - slower - faster);
    slower
}

/// Completes the notes of a report.
pub(crate) fn annotate<B: Bench>(bench: &B, report: &mut BenchReport) {
    report.notes = B::LEGEND.iter().map(|&line| line.to_owned()).collect();
    let found = [bench.notes(report), versions(&report.rows)].into_iter().flatten();
    let found = found.chain(crowded(report)).chain(busy(&report.rows));
    report.notes.extend(found.collect::<Vec<_>>());
}

/// The picture of a report with its notes.
pub(crate) fn picture<B: Bench>(bench: &B, report: &BenchReport) -> Picture {
    let whiskers = "Medians of the samples. Whiskers: the least and the greatest sample.";
    let notes = [whiskers].into_iter().chain(report.notes.iter().map(String::as_str));
    Picture {
        title: B::TITLE.to_owned(),
        subtitle: report.circumstances(),
        bands: bench.bands(report),
        notes: notes.flat_map(|note| textwrap::wrap(note, 130)).map(Into::into).collect(),
    }
}

fn write<B: Bench>(bench: &B, report: &BenchReport, output: &Output) -> Result<[PathBuf; 3]> {
    let json = output.json(&format!("{}.json", B::FILE), report)?;
    let csv = output.write(&format!("{}.csv", B::FILE), &report.csv())?;
    let svg = output.write(&format!("{}.svg", B::FILE), &picture(bench, report).svg())?;
    Ok([json, csv, svg])
}

/// The versions of other libraries, each once.
fn versions(rows: &[Row]) -> Vec<String> {
    let mut versions: Vec<String> =
        rows.iter().filter_map(|row| Some(row.fact("version")?.trim().to_owned())).collect();
    versions.sort();
    versions.dedup();
    versions
}

/// The line about ranks that share cores.
fn crowded(report: &BenchReport) -> Option<String> {
    let ranks = |row: &Row| row.number("ranks").max(row.number("workers"));
    let (most, cores) = (report.rows.iter().map(ranks).max()?, report.machine.cores);
    (most > cores).then(|| format!("{most} ranks are more than this machine's {cores} cores."))
}

/// The line about other programs that used the machine. `None` if it was almost idle.
fn busy(rows: &[Row]) -> Option<String> {
    let shares =
        rows.iter().flat_map(|row| &row.samples).filter_map(|sample| sample.others_cpu_share);
    let percent = 100.0 * shares.fold(0.0, f64::max);
    (percent > 5.0).then(|| {
        format!("The machine was not idle: other programs used up to {percent:.0}% of its cores.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: Defaults = Defaults { rounds: 5, seconds: 1.0, deadline: 600 };

    #[test]
    fn impossible_settings_are_refused_in_one_line() {
        let refused = |common: Common| common.schedule(DEFAULTS).unwrap_err().to_string();
        let common = Common::default;
        assert!(refused(Common { rounds: Some(0), ..common() }).starts_with("--rounds"));
        for seconds in [0.0, -1.0, f64::NAN, 1e7] {
            assert!(
                refused(Common { seconds: Some(seconds), ..common() }).starts_with("--seconds")
            );
        }
        assert!(refused(Common { fail_if_slower: true, ..common() }).contains("--compare"));
    }

    #[test]
    fn a_comparison_with_a_commit_has_more_rounds_and_starts() {
        let schedule = |against: Option<&str>, rounds| {
            let against = against.map(str::to_owned);
            Common { against, rounds, ..Common::default() }.schedule(DEFAULTS).unwrap()
        };
        let counts = |schedule: Schedule| (schedule.rounds, schedule.starts);
        assert_eq!(counts(schedule(None, None)), (5, 1));
        assert_eq!(counts(schedule(Some("HEAD"), None)), (151, 3));
        assert_eq!(counts(schedule(Some("HEAD"), Some(2))), (2, 2));
    }
}
