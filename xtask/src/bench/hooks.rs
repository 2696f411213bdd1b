//! What single benchmarks need besides their tables: files that are written before, and comparisons of another form.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::bindings::Bindings;
use super::context::{BenchSetup, TRAINING};
use super::experiment::Experiment;
use super::figures::Spread;
use super::launch::Player;
use super::process::PlayerProcess;
use super::sample::{ResultRow, Sample, SettingValues, values};
use crate::setup::models;
use crate::shell::run;

/// Completes the values of a block before its players are made.
pub(crate) fn prepare(
    experiment: &Experiment,
    scope: &mut Bindings,
    setup: &mut BenchSetup,
) -> Result<()> {
    match &*experiment.name {
        "zoo" => write_batches(scope, setup),
        "finetune" => find_model(scope, setup),
        "overlap" => set_rate(scope, setup),
        _ => Ok(()),
    }
}

/// Adds comparisons to the rows of a leg.
pub(crate) fn derive(experiment: &Experiment, rows: &mut [ResultRow]) {
    match &*experiment.name {
        "scaling" => add_efficiency(rows),
        "overlap" => add_hidden_share(rows),
        _ => {}
    }
}

/// The networks of texts, of digits and of small images train on data of their own: the player writes the batches to a
/// file, which all contenders read. Large images are drawn patterns.
fn write_batches(scope: &mut Bindings, setup: &BenchSetup) -> Result<()> {
    let (network, own) = (scope.text("network"), scope.text("zoo_data"));
    let all = Some(PathBuf::from(scope.text("data"))).filter(|_| scope.has("data"));
    if let Some(all) = &all {
        ensure!(all.is_dir(), "--data: there is no folder {}", all.display());
    }
    let folder = all.map(|all| all.join(&own)).filter(|folder| !own.is_empty() && folder.is_dir());
    let has_synthetic = !own.is_empty() && scope.text("unit") == "images";
    let adamw = scope.has("zoo_adamw");
    scope.set("adamw_option", if adamw { "--adamw" } else { "" });
    scope.set("adamw", adamw);
    scope.set("lr", scope.number("zoo_lr"));
    scope.set("data", if folder.is_some() { &*own } else { "synthetic images" });
    scope.set("problem", "");
    if folder.is_none() && !has_synthetic {
        scope.set("data", "drawn patterns");
        return Ok(());
    }
    let file = setup.folder.join(format!("{network}.safetensors"));
    scope.set("problem", file.display().to_string());
    let rounds = setup.schedule.rounds as f64;
    let steps = scope.number("warm_up_steps") + rounds * scope.number("steps");
    let words =
        "problem --network {network} --batch-size {batch_size} --seed {seed} --out {problem}";
    let mut player = Player::new(&setup.programs.player)
        .args(scope.words(words)?.unwrap_or_default())
        .args(["--steps".to_owned(), steps.to_string()]);
    if let Some(folder) = folder {
        player = player.args(["--data-dir".to_owned(), folder.display().to_string()]);
    }
    player.commands()?.iter_mut().try_for_each(run)
}

/// Finds the language model, and writes that of a file as a folder in f32, once for all lengths.
fn find_model(scope: &mut Bindings, setup: &mut BenchSetup) -> Result<()> {
    let default = || Some(models::folder()?.join("smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"));
    let model = Some(PathBuf::from(scope.text("model"))).filter(|_| scope.has("model"));
    let model = model.or_else(default).unwrap_or_default();
    let shown = model.display().to_string();
    ensure!(model.exists(), "--model: no `{shown}` here (cargo xtask setup --models)");
    scope.set("file", "");
    scope.set("folder", &*shown);
    if model.is_file() {
        let folder = setup.folder.join("f32").display().to_string();
        if !setup.found.contains_key("model") {
            let player = Player::new(&setup.programs.player).args(["widen", &shown, &folder]);
            player.commands()?.iter_mut().try_for_each(run)?;
        }
        scope.set("file", shown);
        scope.set("folder", folder);
    }
    let name = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    setup.found.insert("model".into(), name.clone().into());
    scope.set("model", name);
    Ok(())
}

/// Sets the rate of the wires: that of the user, or the one at which an exchange takes as long as backward.
fn set_rate(scope: &mut Bindings, setup: &mut BenchSetup) -> Result<()> {
    let Some(hosts) = setup.hosts.clone() else { return Ok(()) };
    if !scope.has("hosts") {
        let player = Player::new(&setup.programs.player).args(["overlap"]);
        let words = scope.words(TRAINING)?.unwrap_or_default();
        let player = player.args(words).ranks(2, "mpi").on(Some(&hosts));
        let mut process = PlayerProcess::start(player.commands()?, setup.schedule.deadline)?;
        let watch = &setup.watch;
        let number = |facts: &SettingValues, name: &str| {
            facts.get(name).and_then(Value::as_f64).with_context(|| format!("no {name} was said"))
        };
        let ready = process.ready(watch)?;
        let mut measure = |way: &str, figure: &str| {
            let request = values([("way", json!(way)), ("seconds", json!(1.0))]);
            number(&process.sample(&request, watch)?, figure)
        };
        let backward = measure("off", "backward_seconds")?;
        let first = (8e-6 * number(&ready, "gradient_bytes")? / backward).clamp(0.1, 1e6);
        hosts.set_rate(first)?;
        // An all-reduce may send more bytes than it reduces.
        let exchange = measure("exchange", "step_seconds")?;
        process.finish(watch)?;
        scope.set("hosts", (first * exchange / backward).clamp(0.1, 1e6));
    }
    hosts.set_rate(scope.number("hosts"))?;
    setup.found.insert("wire_megabits_per_second".into(), scope.number("hosts").into());
    Ok(())
}

/// The speed-up divided by the ranks.
fn add_efficiency(rows: &mut [ResultRow]) {
    for row in rows {
        let workers = row.number("workers") as f64;
        let share = row.ratios.get("speed_up").map(|s| s.map(|times| times / workers));
        row.ratios.extend(share.map(|share| ("efficiency".to_owned(), share)));
    }
}

/// The time that overlap can hide, and the share of it that overlap hides.
fn add_hidden_share(rows: &mut [ResultRow]) {
    let find = |name: &str| rows.iter().position(|row| row.contender == name);
    let (Some(off), Some(on), Some(exchange)) = (find("off"), find("on"), find("exchange")) else {
        return;
    };
    let within = |sample: &Sample| {
        let step = |row: usize| rows[row].at(sample.round, "step_seconds");
        let hideable = step(exchange)?.min(*sample.figures.get("backward_seconds")?);
        Some((hideable, (step(off)? - step(on)?) / hideable))
    };
    let (hideable, hidden): (Vec<f64>, Vec<f64>) =
        rows[off].samples.iter().filter_map(within).unzip();
    for (name, values) in [("hideable_seconds", hideable), ("hidden_share", hidden)] {
        rows[on]
            .ratios
            .extend(Spread::from_values(&values).map(|spread| (name.to_owned(), spread)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hidden_time_is_measured_by_the_time_that_can_be_hidden() {
        // Backward takes 0.3 and the exchange alone 0.4, so 0.3 can be hidden. The step saves 0.27.
        let row = |way: &str, seconds: [f64; 2]| {
            let mut row = ResultRow::measured(way, 0, "step_seconds", &seconds);
            for sample in &mut row.samples {
                sample.figures.insert("backward_seconds".into(), 0.3);
            }
            row
        };
        let mut rows =
            [row("off", [1.0, 2.0]), row("on", [0.73, 1.73]), row("exchange", [0.4, 0.4])];
        add_hidden_share(&mut rows);
        let close = |name: &str, value: f64| (rows[1].ratio(name).unwrap() - value).abs() < 1e-9;
        assert!(close("hideable_seconds", 0.3) && close("hidden_share", 0.9), "{rows:?}");
    }
}
