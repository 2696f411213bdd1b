//! A benchmark from the user's choices to its file: the one way that all of them go.

use std::cmp::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::block::{ContenderTrial, TurnBlock};
use super::compare::{Comparison, changes};
use super::context::BenchSetup;
use super::experiment::Experiment;
use super::figures::counted;
use super::hooks;
use super::host::Machine;
use super::network::{Networks, ask};
use super::options::CommonOptions;
use super::plan::{Choices, ExperimentPlan};
use super::programs::Programs;
use super::report::{BenchReport, folder};
use super::runner::TurnSchedule;
use super::sample::{ResultRow, SettingValues, values};
use super::table::{self, TableColumn};
use crate::interrupt::SignalWatch;

/// Runs a benchmark. After an interrupt, the results so far are kept.
#[expect(clippy::print_stdout, reason = "a benchmark's results are what it prints")]
pub(crate) fn run(
    experiment: &Experiment,
    choices: &Choices,
    common: &CommonOptions,
) -> Result<()> {
    let schedule = common.schedule(experiment)?;
    let plan = ExperimentPlan::new(experiment, choices);
    plan.check()?;
    let columns = experiment.columns()?;
    let earlier = common.compare.as_deref();
    let earlier = earlier.map(|path| BenchReport::read(path, &experiment.name)).transpose()?;
    let machine = Machine::look();
    let folder = folder(common.out.as_deref())?;
    let watch = SignalWatch::start()?;
    let programs = Programs::find(plan.needed(), common.against.as_deref())?;
    let networks = Networks::read(&programs.player)?;
    let strategies = ask(&programs.player, "strategies")?;
    let strategies = strategies.lines().map(str::to_owned).collect();
    let (hosts, found) = (None, SettingValues::new());
    let mut setup = BenchSetup {
        machine,
        schedule,
        programs,
        networks,
        strategies,
        hosts,
        folder,
        watch,
        found,
    };
    let mut blocks = plan.blocks(&mut setup)?;
    let other = setup.programs.other.as_ref();
    let suffix = other.map(|other| format!("@{}", other.commit));
    if let Some((other, suffix)) = other.zip(suffix.as_ref()) {
        blocks = blocks.into_iter().map(|block| block.with_twins(suffix, &other.program)).collect();
    }
    let trials: usize = blocks.iter().map(|block| block.trials().count()).sum();
    ensure!(trials > 0, "no contender is left to measure");

    let (rounds, seconds) = (schedule.rounds, schedule.seconds);
    println!("\n{}", experiment.title);
    let host = &setup.machine;
    println!("{}, {} cores, candle {}", host.cpu, host.cores, host.candle);
    println!("{rounds} rounds of {seconds} s");
    let mut settings = setup.found.clone();
    let chosen = plan.choices.settings.iter();
    settings.extend(chosen.map(|(name, texts)| (name.clone(), json!(texts))));
    settings.extend(values([("rounds", json!(rounds)), ("seconds", json!(seconds))]));
    let mut report = BenchReport::new(&experiment.name, setup.machine.clone(), settings);
    let measured = measure(experiment, &columns, &blocks, &setup, &mut report);

    report.notes = notes(experiment, &setup.networks, &report);
    println!();
    report.notes.iter().for_each(|note| println!("{note}"));
    println!("\nwrote {}", report.write(&setup.folder)?.display());
    let samples: usize = report.rows.iter().map(|row| row.samples.len()).sum();
    measured.with_context(|| format!("kept {samples} of {} samples", trials * rounds))?;
    ensure!(samples > 0, "no contender could be measured");
    let is_right = |row: &ResultRow| row.values("correct").iter().all(|&value| value == 1.0);
    ensure!(
        report.rows.iter().all(is_right),
        "a contender's result was wrong: see `correct` in the samples"
    );

    let mut slower = 0;
    if let Some(earlier) = earlier {
        let Machine { date, commit, cpu, .. } = &earlier.machine;
        println!("\nUndisturbed speed since {date} ({commit}):");
        if *cpu != report.machine.cpu {
            println!("The machines differ: {cpu} then.");
        }
        slower += tell(&changes(&report.rows, &earlier.rows, "", experiment.metric()));
    }
    if let Some(suffix) = suffix {
        println!("\nThis work tree's undisturbed speed to that of {}:", &suffix[1..]);
        slower += tell(&changes(&report.rows, &report.rows, &suffix, experiment.metric()));
    }
    ensure!(slower == 0 || !common.fail_if_slower, "{slower} became slower");
    Ok(())
}

/// Measures all blocks, and shows and keeps the rows of each when its rounds are over.
#[expect(clippy::print_stdout, reason = "a benchmark's results are what it prints")]
fn measure(
    experiment: &Experiment,
    columns: &[TableColumn<'_>],
    blocks: &[TurnBlock],
    setup: &BenchSetup,
    report: &mut BenchReport,
) -> Result<()> {
    let TurnSchedule { rounds, starts, .. } = setup.schedule;
    let turns = |block: &TurnBlock| block.players.len() * starts + block.trials().count() * rounds;
    let progress = BenchProgress::new(blocks.iter().map(turns).sum());
    let mut measured = Ok(());
    for block in blocks {
        let first = report.rows.len();
        let turn = &mut |trial: &ContenderTrial| progress.turn(trial);
        measured = setup.schedule.measure(block, &mut report.rows, &setup.watch, turn);
        let rows = &mut report.rows[first..];
        let mut rest = &mut *rows;
        for leg in &block.legs {
            let leg = rest.split_off_mut(..leg.len()).unwrap_or_default();
            derive(experiment, &setup.networks, leg);
        }
        let unit = rows.first().map(|row| setup.networks.unit(row)).unwrap_or_default();
        let mut text = format!("\n{}\n", block.title);
        text += &table::of_rows(columns, rows, &unit);
        text.extend(rows.iter().filter_map(failure));
        progress.0.suspend(|| print!("{text}"));
        report.write(&setup.folder)?;
        if measured.is_err() {
            break;
        }
    }
    progress.0.finish_and_clear();
    measured
}

/// On a terminal a bar. In a log a line now and then.
struct BenchProgress(ProgressBar);

impl BenchProgress {
    /// A bar of so many starts and samples.
    fn new(turns: usize) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}, {eta} left: {msg}");
        let bar = ProgressBar::new(turns as u64);
        bar.enable_steady_tick(Duration::from_secs(1));
        Self(bar.with_style(style.expect("the template is correct")))
    }

    /// A player of this trial has its turn.
    fn turn(&self, trial: &ContenderTrial) {
        self.0.inc(1);
        self.0.set_message(trial.row.describe());
    }
}

/// The line about a row that has fewer samples than it should.
fn failure(row: &ResultRow) -> Option<String> {
    let failure = row.failure.as_ref()?;
    let after = match row.samples.len() {
        0 => String::new(),
        count => format!(" after {}", counted(count, "sample")),
    };
    Some(format!("{} failed{after}: {}\n", row.contender, failure.reason))
}

/// Completes the figures of a leg's rows, and compares the rows with each other.
pub(crate) fn derive(experiment: &Experiment, networks: &Networks, rows: &mut [ResultRow]) {
    for row in &mut *rows {
        row.complete(networks.compared_loss(row));
    }
    experiment.compare(rows);
    hooks::derive(experiment, rows);
}

/// Prints the changes, and returns how many are for the worse.
#[expect(clippy::print_stdout, reason = "a benchmark's results are what it prints")]
fn tell(changes: &[Comparison]) -> usize {
    let count = |speed| changes.iter().filter(|change| change.speed() == speed).count();
    let (slower, faster) = (count(Ordering::Less), count(Ordering::Greater));
    changes.iter().for_each(|change| println!("  {change}"));
    println!("{slower} slower, {faster} faster, {} the same", changes.len() - slower - faster);
    slower
}

/// What the reader of the figures must know.
fn notes(experiment: &Experiment, networks: &Networks, report: &BenchReport) -> Vec<String> {
    let (mut notes, rows) = (experiment.legend.clone(), &report.rows);
    let is_bf16 = report.plan.get("precision").is_some_and(|texts| *texts == json!(["bf16"]));
    notes.extend(networks.loss_notes(rows, experiment, if is_bf16 { 0.02 } else { 0.0 }));
    // A small difference of the clocks is allowed.
    let exceeds = |row: &&ResultRow| {
        row.number("threads") > 0
            && row.median("cores_used") > Some(1.05 * row.number("threads") as f64)
    };
    notes.extend(
        rows.iter().filter(exceeds).map(|row| {
            format!("WARNING: it used more threads than it was given: {}", row.describe())
        }),
    );
    let mut said: Vec<String> = ["version", "dataset"]
        .iter()
        .flat_map(|name| rows.iter().filter_map(|row| row.fact(name)))
        .map(|text| text.trim().to_owned())
        .collect();
    said.sort();
    said.dedup();
    notes.extend(said);
    let (ranks, cores) =
        (|row: &ResultRow| row.number("ranks").max(row.number("workers")), report.machine.cores);
    let most = rows.iter().map(ranks).max().filter(|&most| most > cores);
    notes.extend(
        most.map(|most| format!("{most} ranks are more than this machine's {cores} cores.")),
    );
    let shares =
        rows.iter().flat_map(|row| &row.samples).filter_map(|sample| sample.others_cpu_share);
    let percent = 100.0 * shares.fold(0.0, f64::max);
    if percent > 5.0 {
        notes.push(format!(
            "The machine was not idle: other programs used up to {percent:.0}% of its cores."
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::experiment::find;
    use super::*;
    use crate::checkout::repo_root;

    /// The rows that were compared with each other.
    fn legs(rows: &mut [ResultRow]) -> impl Iterator<Item = &mut [ResultRow]> {
        let place = |row: &ResultRow| {
            ["network", "threads", "backend", "size"].map(|name| row.point.get(name).cloned())
        };
        rows.chunk_by_mut(move |a, b| place(a) == place(b))
    }

    /// Reports of version 2, which the commands before `bench` wrote.
    #[test]
    fn the_comparisons_of_earlier_reports_are_found_again() {
        for (file, name, words) in [
            ("bench_step", "step", "peak MB|× torch|cores|loss"),
            ("ddp", "ddp", "ddp-bucket-view|× best DDP|× alone"),
            ("scaling", "scaling", "sparseTopK|efficiency|exposed|KB received"),
            ("allreduce", "allreduce", "mpi-c|1.70 MB|× peer"),
            ("overlap", "overlap", "exchange|hidden|busy|backward"),
        ] {
            let experiment = find(name).unwrap();
            let path = repo_root().join(format!("xtask/fixtures/{file}.json"));
            let mut report = BenchReport::read(&path, name).unwrap();
            let kept: Vec<_> = report.rows.iter().map(|row| row.ratios.clone()).collect();
            let mut text = String::new();
            for rows in legs(&mut report.rows) {
                rows.iter_mut().for_each(|row| row.ratios.clear());
                derive(experiment, &Networks::default(), rows);
                text += &table::of_rows(&experiment.columns().unwrap(), rows, "images");
            }
            let found: Vec<_> = report.rows.iter().map(|row| row.ratios.clone()).collect();
            assert_eq!(found, kept, "{file}");
            for word in words.split('|') {
                assert!(text.contains(word), "{word}: {text}");
            }
        }
    }
}
