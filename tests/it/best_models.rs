//! The best checkpoints of a run: the K best ones stay, whatever follows, fails or is started again.

use std::fs;
use std::path::Path;

use candelabrum::prelude::*;
use candelabrum::train::Result;
use candelabrum::train::checkpoint::Ranked;
use candelabrum::train::hooks::{Action, Run};

use crate::line::{self, Line, SAMPLES, data};
use crate::options::args;
use crate::ranks::on_ranks;

/// The steps of an epoch on one rank.
const EPOCH: u64 = 12;

/// So slow that the error falls from epoch to epoch.
fn trainer(world: &World) -> Trainer<Line> {
    line::trainer(world, 0.001)
}

/// The newest checkpoint alone stays beside the best ones.
fn config(dir: &Path, epochs: usize, resume: Resume) -> FitConfig {
    let checkpoints = CheckpointConfig { keep: 1, resume, ..CheckpointConfig::default() };
    let checkpoints = Some((dir.to_owned(), checkpoints));
    FitConfig { epochs, batch_size: 8, checkpoints, ..FitConfig::default() }
}

/// The `most` best models by an error that falls: the last ones if smaller is better, the first ones otherwise.
fn best(goal: Direction, most: usize) -> BestModel {
    BestModel::new(Monitor::new("mae", goal)).keep(most)
}

fn best_of(most: usize) -> BestModel {
    best(Direction::Minimize, most)
}

fn run(config: FitConfig, hook: impl Hook) {
    let fit = Fit::new(config).hook(hook);
    trainer(&World::single()).fit_with(fit, &data(), Some(&data())).unwrap();
}

/// The epochs of the checkpoints in a directory.
fn epochs(dir: &Path) -> Vec<u64> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let step = |name: std::ffi::OsString| name.to_str()?.strip_prefix("step-")?.parse().ok();
    let mut steps: Vec<u64> = names.filter_map(step).collect();
    steps.sort_unstable();
    steps.into_iter().map(|step| step / EPOCH).collect()
}

/// The epochs of the best checkpoints in a file, the best one first.
fn noted(dir: &Path, file: &str) -> Vec<u64> {
    let best: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.join(file)).unwrap()).unwrap();
    let next = best["next"].as_array().cloned().unwrap_or_default();
    let all = [best].into_iter().chain(next);
    all.map(|one| one["step"].as_u64().unwrap() / EPOCH).collect()
}

fn of_epochs(kept: &[Ranked]) -> Vec<u64> {
    kept.iter().map(|one| one.step / EPOCH).collect()
}

#[test]
fn the_k_best_checkpoints_stay_and_a_run_that_continues_goes_on_with_the_list() {
    for pieces in [&[6][..], &[1, 2, 3, 6]] {
        let dir = tempfile::tempdir().unwrap();
        let (mut falling, mut rising) =
            (best(Direction::Minimize, 3), best(Direction::Maximize, 2));
        for &epochs in pieces {
            (falling, rising) = (best(Direction::Minimize, 3), best(Direction::Maximize, 2));
            let fit = Fit::new(config(dir.path(), epochs, Resume::Auto))
                .hook(&mut falling)
                .hook(&mut rising);
            trainer(&World::single()).fit_with(fit, &data(), Some(&data())).unwrap();
        }
        assert_eq!(of_epochs(falling.kept()), [6, 5, 4]);
        assert_eq!(of_epochs(rising.kept()), [1, 2]);
        assert_eq!(epochs(dir.path()), [1, 2, 4, 5, 6]);
        assert_eq!(noted(dir.path(), "best.json"), [6, 5, 4]);
        assert_eq!(noted(dir.path(), "best-mae.json"), [1, 2]);
        let best = load_best(dir.path(), None, trainer(&World::single()).opt().params()).unwrap();
        assert_eq!(best.ranked().collect::<Vec<_>>(), falling.kept());
        assert_eq!(falling.best(), Some(best.value));
        // Fewer, and more.
        for (most, epochs, expected) in [(1, 7, vec![7]), (4, 9, vec![9, 8, 7])] {
            run(config(dir.path(), epochs, Resume::Auto), best_of(most));
            assert_eq!(noted(dir.path(), "best.json"), expected);
        }
    }
}

#[test]
fn ranks_keep_the_same_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    for last in [2, 4] {
        let kept = on_ranks(2, |world| {
            let mut best = best(Direction::Maximize, 2);
            let config = FitConfig { batch_size: 4, ..config(dir.path(), last, Resume::Auto) };
            let fit = Fit::new(config).hook(&mut best);
            trainer(world).fit_with(fit, &data(), Some(&data())).unwrap();
            best.kept().to_vec()
        });
        assert_eq!(of_epochs(&kept[0]), [1, 2]);
        assert_eq!(kept[0], kept[1]);
    }
    assert_eq!(epochs(dir.path()), [1, 2, 4]);
}

#[test]
fn who_goes_back_has_the_best_ones_that_are_left() {
    let dir = tempfile::tempdir().unwrap();
    let every = |mut config: FitConfig, every| {
        let (_, checkpoints) = config.checkpoints.as_mut().unwrap();
        (checkpoints.keep, checkpoints.every) = (9, every);
        config
    };
    run(every(config(dir.path(), 5, Resume::Auto), Some(EPOCH)), best_of(2));
    assert_eq!(noted(dir.path(), "best.json"), [5, 4]);
    // Of the best ones after epoch 3, one has been removed.
    fs::remove_dir_all(dir.path().join("step-00000024")).unwrap();
    let back = Resume::From(dir.path().join("step-00000036"));
    let mut best = best_of(2);
    run(every(config(dir.path(), 3, back), None), &mut best);
    assert_eq!(of_epochs(best.kept()), [3]);
    assert_eq!(noted(dir.path(), "best.json"), [3]);
    run(config(dir.path(), 4, Resume::Auto), best_of(2));
    assert_eq!(noted(dir.path(), "best.json"), [4, 3]);
    // In another directory there is none of them.
    let other = tempfile::tempdir().unwrap();
    let mut best = best_of(2);
    let from = Resume::From(dir.path().join("step-00000048"));
    run(config(other.path(), 5, from), &mut best);
    assert_eq!((of_epochs(best.kept()), noted(other.path(), "best.json")), (vec![5], vec![5]));
}

/// Makes the checkpoint of an epoch impossible: a file has the name of the directory.
struct InTheWay<'a> {
    dir: &'a Path,
    epoch: u64,
}

impl Hook for InTheWay<'_> {
    fn name(&self) -> &str {
        "in_the_way"
    }

    fn on_evaluate(&mut self, run: &mut Run<'_, '_>, _: &Metrics) -> Result<Action> {
        let away = self.dir.with_extension("away");
        if run.position.step == self.epoch * EPOCH {
            fs::rename(self.dir, &away).unwrap();
            fs::write(self.dir, "").unwrap();
        } else if away.exists() {
            fs::remove_file(self.dir).unwrap();
            fs::rename(&away, self.dir).unwrap();
        }
        Ok(Action::NOTHING)
    }
}

#[test]
fn a_checkpoint_that_was_not_written_is_none_of_the_best() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("checkpoints");
    let (mut falling, mut rising) = (best_of(2), best(Direction::Maximize, 2));
    let fit = Fit::new(config(&place, 4, Resume::Auto))
        .hook(InTheWay { dir: &place, epoch: 2 })
        .hook(&mut falling)
        .hook(&mut rising);
    let reports = trainer(&World::single()).fit_with(fit, &data(), Some(&data())).unwrap();
    let notes = reports.iter().flat_map(|report| &report.notes);
    assert_eq!(notes.filter(|note| note.contains("was not written")).count(), 1);
    assert_eq!((of_epochs(falling.kept()), of_epochs(rising.kept())), (vec![4, 3], vec![1, 3]));
    assert_eq!(noted(&place, "best.json"), [4, 3]);
    assert_eq!(noted(&place, "best-mae.json"), [1, 3]);
    assert_eq!(epochs(&place), [1, 3, 4]);
}

#[test]
fn a_program_keeps_as_many_as_its_option_says() {
    let keep_best = |options| args(options).unwrap().checkpoints.keep_best;
    assert_eq!(keep_best(""), None);
    assert_eq!(keep_best("--keep-best"), Some(1));
    assert_eq!(keep_best("--keep-best --epochs 3"), Some(1));
    assert_eq!((keep_best("--keep-best 3"), keep_best("--keep-best=4")), (Some(3), Some(4)));
    for wrong in ["--keep-best 0", "--keep-best many"] {
        assert!(args(wrong).is_err(), "{wrong}");
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let options = format!(
        "--epochs 4 --batch-size 8 --keep-best 2 --checkpoint-keep 1 --checkpoint-dir {}",
        dir.display()
    );
    let args = args(&options).unwrap();
    args.check().unwrap();
    let fit = args.fit_on(&World::single(), "points", SAMPLES).unwrap();
    trainer(&World::single()).fit_with(fit, &data(), Some(&data())).unwrap();
    assert_eq!((noted(dir, "best.json"), epochs(dir)), (vec![4, 3], vec![3, 4]));
    let none = Fit::new(config(dir, 9, Resume::Auto)).hook(best_of(0));
    let refused = trainer(&World::single()).fit_with(none, &data(), Some(&data())).unwrap_err();
    assert!(refused.to_string().contains("(--keep-best) is 0: it must be at least 1"), "{refused}");
}

#[test]
fn a_run_whose_last_checkpoint_cannot_be_written_has_the_best_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("checkpoints");
    let mut best = best_of(1);
    let fit = Fit::new(config(&place, 2, Resume::Auto))
        .hook(InTheWay { dir: &place, epoch: 2 })
        .hook(&mut best);
    trainer(&World::single()).fit_with(fit, &data(), Some(&data())).unwrap_err();
    assert_eq!(
        (of_epochs(best.kept()), noted(&place.with_extension("away"), "best.json")),
        (vec![1], vec![1])
    );
}
