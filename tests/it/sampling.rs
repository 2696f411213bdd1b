//! The samples that a run trains on: windows, the length of an epoch, and parts of which each rank has one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use candelabrum::candle;
use candelabrum::prelude::*;
use candelabrum::train::Error;
use candelabrum_testkit::ranks::RanksOf;

use crate::options::args;
use crate::ranks::world_of_rank;

/// The rows for training: two shards of different sizes.
const ROWS: usize = 26;
const SHARDS: [usize; 2] = [10, 16];
/// The samples of a batch of all ranks.
const GLOBAL: usize = 6;
/// It divides neither the rows nor the batches.
const EPOCH: usize = 20;
const EPOCHS: usize = 3;

/// A row is (its number, a feature); its class is the parity of the number.
#[derive(Clone, Debug)]
struct Rows;

impl Dataset for Rows {
    type Batch = Batch;

    fn len(&self) -> usize {
        ROWS
    }

    fn read(&self, samples: &[u32], _: &Pass) -> candelabrum::datasets::Result<Batch> {
        let row = |&row: &u32| [row as f32, (row as f32 * 0.7).sin()];
        let xs: Vec<f32> = samples.iter().flat_map(row).collect();
        let ys: Vec<u32> = samples.iter().map(|row| row % 2).collect();
        let count = samples.len();
        let xs = Tensor::from_vec(xs, (count, 2), &Device::Cpu)?;
        Ok(Batch { xs, ys: Tensor::from_vec(ys, count, &Device::Cpu)? })
    }

    fn fingerprint(&self) -> candelabrum::datasets::Result<String> {
        Ok("rows".to_owned())
    }

    fn shards(&self) -> Vec<usize> {
        SHARDS.to_vec()
    }
}

/// A linear classifier that notes the rows of its batches in training.
struct Net {
    out: Linear,
    params: Params,
    seen: Rc<RefCell<Vec<Vec<u32>>>>,
}

impl Model for Net {
    fn forward(&self, xs: &Tensor) -> candle::Result<Tensor> {
        if self.params.is_training() {
            let rows = xs.narrow(1, 0, 1)?.flatten_all()?.to_vec1::<f32>()?;
            self.seen.borrow_mut().push(rows.into_iter().map(|row| row as u32).collect());
        }
        self.out.forward(&xs.narrow(1, 1, 1)?.contiguous()?)
    }
}

fn trainer(world: &World) -> Trainer<Net> {
    let params = Params::new(3);
    let out = Linear::new(&params.root().pp("out"), 2);
    let model = Net { out, params: params.clone(), seen: Rc::default() };
    let mut trainer =
        Trainer::new(model, DistOpt::new(Sgd::new(0.1).momentum(0.9), &params, world).unwrap());
    trainer.compile((1, 2)).unwrap();
    trainer.model().seen.borrow_mut().clear();
    trainer
}

fn config(batch_size: usize, sampling: Sampling) -> FitConfig {
    FitConfig { epochs: EPOCHS, batch_size, seed: 5, sampling, ..FitConfig::default() }
}

const WINDOW: Sampling = Sampling { shuffle: Shuffle::Window(4), epoch_size: Some(EPOCH) };
const WITHIN: Sampling = Sampling { shuffle: Shuffle::WithinShards, epoch_size: None };

fn train(trainer: &mut Trainer<Net>, data: &Subset<Rows>, config: &FitConfig) -> Vec<Vec<u32>> {
    trainer.fit_with(Fit::new(config.clone()), data, None::<&Subset<Rows>>).unwrap();
    trainer.model().seen.take()
}

/// The program of each rank. `SAMPLING_CASE` names what it does.
#[test]
fn rank_main() {
    let Some(world) = world_of_rank() else { return };
    let (rank, ranks) = (world.rank(), world.world_size());
    let case = std::env::var("SAMPLING_CASE").unwrap();
    let mut trainer = trainer(&world);
    let whole = || Subset::first(Rows, ROWS);
    let part = |index| Subset::new(Rows, index, ranks, Remainder::Keep).unwrap();
    let say = |batches: Vec<Vec<u32>>| {
        (0..).zip(batches).for_each(|(step, rows): (usize, _)| println!("step {step} {rows:?}"));
    };
    let refused = |trainer: &mut Trainer<Net>, data, sampling| {
        let fit = Fit::new(config(2, sampling));
        let error = trainer.fit_with(fit, &data, None::<&Subset<Rows>>).unwrap_err();
        println!("refused: {error}");
    };
    match &*case {
        "window" => say(train(&mut trainer, &whole(), &config(GLOBAL / ranks, WINDOW))),
        "within" => say(train(&mut trainer, &whole(), &config(GLOBAL / ranks, WITHIN))),
        "parts" => {
            // 26 rows are 9, 9 and 8.
            say(train(&mut trainer, &part(rank), &config(2, Sampling::default())));
            let of = |metrics: Metrics| (metrics.mean_loss(), metrics.accuracy());
            // Batches of 4: the smallest part has one less than the others.
            let of_parts = of(trainer.evaluate(&part(rank), 4).unwrap());
            let of_whole = of(trainer.evaluate(&whole(), 4).unwrap());
            assert!((of_parts.0 - of_whole.0).abs() < 1e-6, "{of_parts:?} {of_whole:?}");
            assert!((of_parts.1 - of_whole.1).abs() < 1e-9, "{of_parts:?} {of_whole:?}");
        }
        "part_epochs" => say(train(&mut trainer, &part(rank), &config(2, WINDOW))),
        "same_part" => refused(&mut trainer, part(0), WINDOW),
        "part_and_whole" => {
            let data = if rank == 1 { whole() } else { part(rank) };
            refused(&mut trainer, data, WINDOW);
        }
        "sampling" => {
            refused(&mut trainer, whole(), if rank == 1 { WITHIN } else { WINDOW });
        }
        other => panic!("no case {other}"),
    }
    println!("digest {}", trainer.parameters_sha256().unwrap()[rank]);
}

/// The rows of each step on each rank, and the digest of the parameters.
fn run(case: &str, ranks: usize) -> (Vec<Vec<Vec<u32>>>, String) {
    let outputs = RanksOf::new(rank_main).env("SAMPLING_CASE", case).run_all_good(ranks);
    let mut digest = String::new();
    let of_rank = outputs.iter().map(|output| {
        let mut steps = Vec::new();
        for line in output.out.lines() {
            if let Some(at) = line.find("step ") {
                let rows = line[at + 5..].split_once(' ').unwrap().1;
                steps.push(serde_json::from_str(rows).unwrap());
            } else if let Some((_, of)) = line.split_once("digest ") {
                of.clone_into(&mut digest);
            }
        }
        steps
    });
    let of_ranks = of_rank.collect();
    (of_ranks, digest)
}

/// The global batches, from those of the ranks.
fn together(of_ranks: &[Vec<Vec<u32>>]) -> Vec<Vec<u32>> {
    (0..of_ranks[0].len())
        .map(|step| of_ranks.iter().flat_map(|steps| steps[step].clone()).collect())
        .collect()
}

#[test]
fn windows_and_short_epochs_have_the_same_global_batches_on_any_number_of_ranks() {
    for (case, sampling) in [("window", WINDOW), ("within", WITHIN)] {
        let sampler = DistributedSampler::new(SamplerConfig {
            len: ROWS,
            global_rank: 0,
            world_size: 1,
            batch_size: GLOBAL,
            seed: 5,
            shuffle: true,
            remainder: Remainder::Drop,
        });
        let sampler = sampling.apply(sampler.unwrap()).unwrap();
        let order = |epoch| sampler.epoch_of_shards(epoch, &SHARDS).unwrap();
        let expected: Vec<Vec<u32>> =
            (0..EPOCHS).flat_map(|epoch| order(epoch).batches().collect::<Vec<_>>()).collect();
        let (alone, digest) = run(case, 1);
        assert_eq!(together(&alone), expected, "{case}");
        assert!(!digest.is_empty());
        for ranks in [2, 3] {
            assert_eq!(together(&run(case, ranks).0), expected, "{case} on {ranks} ranks");
        }
    }
}

#[test]
fn each_rank_trains_on_its_own_part_in_the_steps_of_the_smallest() {
    let (of_ranks, _) = run("parts", 3);
    let parts = [0..9, 9..18, 18..26];
    for (steps, part) in of_ranks.iter().zip(&parts) {
        assert_eq!(steps.len(), 4 * EPOCHS, "8 rows of each part in an epoch, in batches of 2");
        let mut counts = BTreeMap::<u32, usize>::new();
        steps.iter().flatten().for_each(|row| *counts.entry(*row).or_default() += 1);
        assert!(counts.keys().all(|row| part.contains(row)), "{counts:?} of {part:?}");
        // An epoch goes on where the one before has ended, so no row comes twice more than another.
        assert_eq!(counts.len(), part.len());
        assert!(counts.values().all(|count| (2..=3).contains(count)), "{counts:?}");
    }
    // An epoch of 20 rows is 10 of each of two parts.
    let (of_ranks, _) = run("part_epochs", 2);
    assert!(of_ranks.iter().all(|steps| steps.len() == 5 * EPOCHS), "{of_ranks:?}");
}

#[test]
fn data_that_are_divided_in_another_way_are_refused_on_every_rank() {
    for (case, expected) in [
        ("same_part", "ranks 0 and 1 have the same part of the training data"),
        ("part_and_whole", "the training data differs between ranks"),
        ("sampling", "the sampling differs between ranks"),
    ] {
        for output in RanksOf::new(rank_main).env("SAMPLING_CASE", case).run_all_good(2) {
            assert!(output.text.contains(&format!("refused: {expected}")), "{}", output.text);
        }
    }
    let fit = |data: &Subset<Rows>, config: FitConfig| {
        let end = trainer(&World::single()).fit_with(Fit::new(config), data, None::<&Subset<Rows>>);
        end.unwrap_err()
    };
    let half = Subset::new(Rows, 0, 2, Remainder::Keep).unwrap();
    let error = fit(&half, config(2, WINDOW));
    assert!(matches!(error, Error::AlreadyPartitioned { shared_by: 2, ranks: 1 }), "{error}");
    let dir = tempfile::tempdir().unwrap();
    let with = |epochs, sampling| FitConfig {
        checkpoints: Some((dir.path().into(), CheckpointConfig::default())),
        epochs,
        ..config(GLOBAL, sampling)
    };
    train(&mut trainer(&World::single()), &Subset::first(Rows, ROWS), &with(1, WINDOW));
    let error = fit(&Subset::first(Rows, ROWS), with(2, WITHIN)).to_string();
    assert!(error.contains("the sampling"), "{error}");
    let none = Sampling { epoch_size: Some(0), ..WINDOW };
    let error = fit(&Subset::first(Rows, ROWS), config(2, none)).to_string();
    assert!(error.contains("an epoch of 0 samples"), "{error}");
}

#[test]
fn the_options_of_a_program_are_the_sampling_of_its_run() {
    let args = |options: &str| args(&format!("--seed 5 --batch-size 6 {options}"));
    let data = Subset::first(Rows, ROWS);
    for (options, sampling) in [
        ("", Sampling::default()),
        ("--shuffle-window 4 --epoch-size 20", WINDOW),
        ("--epoch-size 60", Sampling { epoch_size: Some(60), ..Sampling::default() }),
    ] {
        let args = args(&format!("{options} --epochs {EPOCHS}")).unwrap();
        let mut trainer = trainer(&World::single());
        let fit = args.fit_on(&World::single(), "rows", ROWS).unwrap();
        trainer.fit_with(fit, &data, None::<&Subset<Rows>>).unwrap();
        let seen = trainer.model().seen.take();
        assert_eq!(seen, train(&mut self::trainer(&World::single()), &data, &config(6, sampling)));
        let sampler = args.sampler(&World::single(), ROWS).unwrap();
        let size = sampling.epoch_size.unwrap_or(ROWS);
        assert_eq!((sampler.steps(), sampler.dropped_per_epoch()), (size / 6, size % 6));
    }
    assert!(args("--epoch-size 0").is_err() && args("--shuffle-window 0").is_err());
    let few = args("--epoch-size 5").unwrap().fit_on(&World::single(), "rows", ROWS).unwrap_err();
    assert!(few.to_string().contains("--batch-size 6 is larger than a rank's share"), "{few}");
}
