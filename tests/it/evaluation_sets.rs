//! Several evaluation sets: the names of their measures in reports, lines, logs and hooks, and ranks that differ.

use candelabrum::prelude::*;
use candelabrum::train::{EpochReport, EvaluationSets};

use crate::line::{self, Line, SAMPLES, data};
use crate::ranks::on_ranks;

type Points = TensorDataset<(Tensor, Tensor)>;

fn trainer(world: &World) -> Trainer<Line> {
    line::trainer(world, 0.05)
}

/// The last points, whose number no number of ranks divides.
fn last() -> Subset<Points> {
    Subset::from_samples(data(), (SAMPLES as u32 - 7..SAMPLES as u32).collect::<Vec<_>>()).unwrap()
}

/// The main set and two others, of different types.
fn sets() -> EvaluationSets<(Tensor, Tensor)> {
    EvaluationSets::new(&Subset::first(data(), 20)).and("test", &last()).and("all", &data())
}

fn config(epochs: usize, ranks: usize) -> FitConfig {
    FitConfig { epochs, batch_size: 12 / ranks, ..FitConfig::default() }
}

/// The values of the evaluations, without the times.
fn measured(report: &EpochReport) -> Vec<(&str, f64)> {
    let of_sets = report.measures.iter().filter(|(name, _)| !name.starts_with("train/"));
    of_sets.map(|(name, value)| (&**name, *value)).collect()
}

#[test]
fn each_set_has_measures_of_its_own_and_the_main_one_keeps_its_names() {
    for ranks in [1, 2, 3] {
        on_ranks(ranks, |world| {
            let (mut trainer, mut plain) = (trainer(world), trainer(world));
            let mut printed = Vec::new();
            let reports = trainer.fit(&data(), sets(), &config(2, ranks), &mut printed).unwrap();
            let main = Subset::first(data(), 20);
            let alone = plain.fit(&data(), &main, &config(2, ranks), &mut Vec::new()).unwrap();
            let report = reports.last().unwrap();
            // The main set is as it is alone.
            assert_eq!(report.eval_loss, alone[1].eval_loss);
            let (all, test) = (
                trainer.evaluate(&data(), 12 / ranks).unwrap(),
                trainer.evaluate(&last(), 12 / ranks).unwrap(),
            );
            let of = |metrics: &Metrics| ["mae", "mse"].map(|name| metrics.measure(name).unwrap());
            let ([all_mae, all_mse], [test_mae, test_mse]) = (of(&all), of(&test));
            let expected = [
                ("all/loss", all.mean_loss()),
                ("all/mae", all_mae),
                ("all/mse", all_mse),
                ("evaluation/loss", alone[1].eval_loss.unwrap()),
                ("evaluation/mae", alone[1].measures["evaluation/mae"]),
                ("evaluation/mse", alone[1].measures["evaluation/mse"]),
                ("test/loss", test.mean_loss()),
                ("test/mae", test_mae),
                ("test/mse", test_mse),
            ];
            let mut expected = expected.to_vec();
            expected.sort_by_key(|(name, _)| *name);
            assert_eq!(measured(report), expected);
            let printed = String::from_utf8(printed).unwrap();
            let lines: Vec<&str> = printed.lines().collect();
            if world.rank() == 0 {
                assert_eq!(lines.len(), 2 * 5, "{printed}");
                assert!(lines[2].starts_with("Evaluation loss = "), "{printed}");
                assert!(lines[3].starts_with("all loss = ") && lines[3].contains(", all mae = "));
                assert!(lines[4].starts_with("test loss = "), "{printed}");
            } else {
                assert!(lines.is_empty());
            }
        });
    }
}

#[test]
fn hooks_follow_the_measures_of_any_set_and_the_log_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let [saved, log] = ["saved", "log"].map(|name| dir.path().join(name));
    let run = |epochs| {
        let mut trainer = trainer(&World::single());
        let checkpoints = Some((saved.clone(), CheckpointConfig::default()));
        let mut best = BestModel::new(Monitor::new("test/mse", Direction::Minimize));
        let fit = Fit::new(FitConfig { checkpoints, ..config(epochs, 1) })
            .hook(&mut best)
            // The loss falls and never rises.
            .hook(EarlyStopping::new(Monitor::new("all/loss", Direction::Maximize), 2))
            .hook(LogFiles::new(&log, Default::default()).may_continue(true));
        let reports = trainer.fit_with(fit, &data(), sets()).unwrap();
        (reports, best.best())
    };
    let (first, _) = run(2);
    let (rest, best) = run(9);
    assert_eq!((first.len(), rest.len()), (2, 1), "three evaluations, two of them not better");
    assert_eq!(best, Some(rest[0].measures["test/mse"]));
    let noted = std::fs::read_to_string(saved.join("best.json")).unwrap();
    assert!(noted.contains("\"measure\":\"test/mse\""), "{noted}");
    let lines = std::fs::read_to_string(log.join("metrics.jsonl")).unwrap();
    let evaluations: Vec<serde_json::Value> = lines
        .lines()
        .filter(|line| line.contains("\"evaluation\""))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(evaluations.len(), 3, "{lines}");
    let values = &evaluations[2]["values"];
    assert_eq!(values["test/mse"], rest[0].measures["test/mse"]);
    assert_eq!(values["loss"], rest[0].eval_loss.unwrap());
    // A set that nobody has given.
    let stop = EarlyStopping::new(Monitor::new("other/loss", Direction::Minimize), 2);
    let fit = Fit::new(config(1, 1)).hook(stop);
    let error = trainer(&World::single()).fit_with(fit, &data(), sets()).unwrap_err().to_string();
    assert!(error.contains("no evaluation has measured `other/loss`"), "{error}");
}

#[test]
fn all_sets_see_the_average_of_the_weights_and_each_rank_may_have_parts_of_them() {
    for ranks in [1, 2, 3] {
        on_ranks(ranks, |world| {
            let part = Subset::new(last(), world.rank(), ranks, Remainder::Keep).unwrap();
            let sets = EvaluationSets::new(&data()).and("whole", &last()).and("parts", &part);
            let mut trainer = trainer(world);
            let ema = WeightAverage::ema(0.9).stays_at_end(true);
            let fit = Fit::new(config(1, ranks)).hook(ema);
            let reports = trainer.fit_with(fit, &data(), sets).unwrap();
            let of = |name: &str| reports[0].measures[name];
            let average = trainer.evaluate(&last(), 12 / ranks).unwrap().mean_loss();
            assert_eq!(of("whole/loss"), average);
            assert!((of("parts/loss") - average).abs() < 1e-6 && of("parts/mse") > 0.0);
        });
    }
}

#[test]
fn ranks_with_other_sets_are_refused_by_name() {
    let plain = || EvaluationSets::new(&data());
    let refused = |others: &(dyn Fn() -> EvaluationSets<(Tensor, Tensor)> + Sync), what: &str| {
        let errors = on_ranks(2, |world| {
            let sets = if world.rank() == 1 { others() } else { plain().and("test", &last()) };
            let fit = Fit::new(config(1, 2));
            trainer(world).fit_with(fit, &data(), sets).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|error| error.contains(what)), "{errors:?}");
    };
    let names = "the further evaluation sets differs between ranks: rank 0 has `test`";
    refused(&plain, names);
    refused(&|| plain().and("tests", &last()), names);
    refused(&|| plain().and("test", &last()).and("all", &data()), names);
    refused(&|| plain().and("test", &data()), "the evaluation set `test` differs between ranks");
    let main = || EvaluationSets::new(&last()).and("test", &last());
    refused(&main, "the test data differs between ranks");
}
