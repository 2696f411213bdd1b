//! Hosts that each have a copy of all shares (PyTorch's HSDP) train as the same hosts without shares: the same bits, and
//! on each rank a part of the memory. A checkpoint has every share once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use candelabrum::dist::{Group, LossScale};
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::{Backend, RanksOf};
use candelabrum_testkit::uniform;
use tempfile::TempDir;

use crate::shares::{Mlp, Training, WIDTH, bits};
use crate::ranks::{on_ranks, world_of_rank};

/// The hosts of four ranks: two neighbours on each, or two that are not.
const HOSTS: [[usize; 4]; 2] = [[0, 0, 1, 1], [0, 1, 0, 1]];

#[test]
fn rank_compares() {
    let Some(world) = world_of_rank() else { return };
    for hosts in HOSTS {
        let ranks = world.comm().hierarchical(&hosts).unwrap();
        compare(&ranks, &ranks.replica().unwrap());
    }
}

fn compare(ranks: &Group, replica: &Group) {
    let adamw = || AdamW::new(1e-3).weight_decay(0.1).into();
    let clip = DistOptConfig { clip_gradients: Some(Clip::Norm(0.1)), ..DistOptConfig::default() };
    // Buckets that are lent.
    let small = DistOptConfig { first_bucket_bytes: 1 << 10, ..clip.clone() };
    let no_clip = DistOptConfig { clip_gradients: None, ..small.clone() };
    let no_overlap = DistOptConfig { overlap: false, ..small.clone() };
    let scale = LossScale::Dynamic { initial: 1024.0, interval: 2 };
    let few = Training {
        ranks,
        dtype: DType::F32,
        recipe: adamw(),
        option: DistOption::Fp32,
        config: small.clone(),
        accumulate: 1,
        steps: 5,
        bad: &[],
        overflows: false,
    };
    let each = [
        Training { recipe: adamw(), config: small.clone(), steps: 20, ..few },
        Training { recipe: adamw(), config: clip, ..few },
        Training { recipe: adamw(), config: no_overlap, ..few },
        Training { recipe: adamw(), config: small.clone(), accumulate: 3, ..few },
        Training { recipe: Lamb::new(1e-2).into(), config: small.clone(), ..few },
        Training { recipe: adamw(), config: small.clone(), option: DistOption::Fp16, ..few },
        Training { recipe: adamw(), config: small.clone(), option: DistOption::Bf16, ..few },
        Training { recipe: adamw(), config: small.clone(), option: DistOption::SparseTopK, ..few },
        Training { recipe: adamw(), config: small.clone(), dtype: DType::BF16, ..few },
        Training {
            recipe: adamw(),
            config: DistOptConfig { loss_scale: scale, ..small.clone() },
            dtype: DType::F16,
            ..few
        },
        // Updates that are undone.
        Training { recipe: adamw(), config: no_clip, bad: &[1, 3], ..few },
        Training { recipe: adamw(), config: small, bad: &[0, 2], ..few },
    ];
    for (number, training) in each.iter().enumerate() {
        let whole = training.run(Shard::Nothing);
        for shard in [Shard::Optimizer, Shard::Gradients, Shard::Parameters] {
            // What it chooses depends on the buckets, which blocks divide.
            if training.option == DistOption::SparseTopK && shard == Shard::Parameters {
                continue;
            }
            let shared = training.run(shard);
            let case = format!("training {number}, {shard}");
            assert!(shared.bits == whole.bits, "{case}: other bits");
            assert_eq!(shared.ends, whole.ends, "{case}");
            // The ranks of a host have everything once.
            let all = replica.all_gather(&[shared.bytes as i64]).unwrap();
            assert_eq!(all.iter().sum::<i64>(), whole.bytes as i64, "{case}");
            // A cut is at a place of norms, and Lamb's are between parameters.
            let (half, cut) = (whole.bytes / 2, 8 * WIDTH * WIDTH);
            assert!(
                shared.bytes.abs_diff(half) <= cut,
                "{case}: {} of {}",
                shared.bytes,
                whole.bytes
            );
            if shard == Shard::Parameters {
                let most = whole.of_parameters / 2 + cut;
                assert!(shared.of_parameters <= most, "{case}: {} of {most}", shared.of_parameters);
            }
            if number == 0 {
                println!("{shard}: {} bytes sent, {} without", shared.sent, whole.sent);
            }
        }
    }
}

#[test]
fn copies_on_hosts_change_no_bit() {
    for backend in [Backend::Local, Backend::Tcp] {
        RanksOf::of(rank_compares).over(backend).run_all_good(4);
    }
    if cfg!(feature = "mpi") {
        let ended = RanksOf::of(rank_compares).run_under_mpiexec(4);
        ended.into_iter().for_each(|ended| assert!(ended.succeeded(), "{ended:#?}"));
    }
}

#[test]
fn rank_measures() {
    let Some(world) = world_of_rank() else { return };
    let uneven = world.comm().hierarchical(&[0, 0, 0, 1]).unwrap();
    assert!(uneven.replica().is_none(), "one rank alone has no copy of all shares");
    assert!(world.comm().replica().is_none(), "a world is not divided into hosts");
    for (ranks, parts) in [(world.comm().hierarchical(&[0, 0, 1, 1]).unwrap(), 2), (uneven, 4)] {
        let params = Params::new(1);
        let model = Mlp::new(&params, &[WIDTH, WIDTH, WIDTH, 5]);
        let xs = Tensor::ones((1, WIDTH), DType::F32, &Device::Cpu).unwrap();
        model.compile_with(&params, &xs).unwrap();
        let config = DistOptConfig { shard: Shard::Optimizer, ..DistOptConfig::default() };
        let mut opt = DistOpt::with_config(AdamW::new(1e-3), &params, ranks, config).unwrap();
        let before = opt.traffic();
        let loss = model.forward(&xs).unwrap().sqr().unwrap().mean_all().unwrap();
        opt.backward_and_update(&loss).unwrap();
        // Waits for new values that are still on their way.
        opt.optimizer_bytes().unwrap();
        let moved = opt.traffic() - before;
        // Before the step the ranks have compared digests.
        let (figures, other) = (opt.figures(DistOption::Fp32), 1 << 10);
        assert!(figures.bytes_sent.abs_diff(moved.bytes_sent) < other, "{figures:?}, {moved:?}");
        assert!(figures.bytes_received.abs_diff(moved.bytes_received) < other, "{figures:?}");
        let elements: usize = params.list().iter().map(|param| param.var().elem_count()).sum();
        let (all, share) = (8 * elements, opt.optimizer_bytes().unwrap());
        // Cuts are at places of norms.
        assert!(
            share.abs_diff(all / parts) <= 8 * WIDTH * WIDTH,
            "{share} of {all}, {parts} parts"
        );
        // All gradients leave, the part of them between hosts, and the new values of the share.
        let (whole, own) = (4 * elements as u64, share as u64 / 2);
        let between = if parts == 2 { own } else { 0 };
        let other = 2 << 10;
        assert!(moved.bytes_sent.abs_diff(whole + between + own) < other, "{moved:?}");
        assert!(moved.bytes_received.abs_diff(whole + between) < other, "{moved:?}");
    }
}

#[test]
fn a_share_is_the_part_of_a_host_and_hosts_exchange_it_alone() {
    RanksOf::of(rank_measures).run_all_good(4);
}

/// The rows of a step of all ranks.
const GLOBAL: usize = 8;
const STEPS: u64 = 6;

/// Trains `steps` steps of a run on `count` ranks, from its newest checkpoint. Four ranks are on two hosts. Returns the
/// bits of the parameters and of their average at the end.
fn fit(count: usize, shard: Shard, dir: &Path, steps: u64) -> Vec<u32> {
    let of_ranks = on_ranks(count, |world| {
        let params = Params::new(5);
        let model = Mlp::new(&params, &[WIDTH, WIDTH, WIDTH, 5]);
        let rows = uniform((48, WIDTH), 1, -1.0, 1.0, DType::F32).unwrap();
        let targets: Vec<i64> = (0..48).map(|row| row % 5).collect();
        let targets = Tensor::new(targets, &Device::Cpu).unwrap();
        let data = TensorDataset::pair(rows, targets).unwrap();
        let config =
            DistOptConfig { shard, first_bucket_bytes: 1 << 10, ..DistOptConfig::default() };
        let ranks = match count {
            4 => world.comm().hierarchical(&HOSTS[1]).unwrap(),
            _ => world.group(),
        };
        model
            .compile_with(&params, &Tensor::zeros((1, WIDTH), DType::F32, &Device::Cpu).unwrap())
            .unwrap();
        let opt = DistOpt::with_config(AdamW::new(1e-3), &params, ranks, config).unwrap();
        let mut trainer = Trainer::new(model, opt);
        let checkpoints = Some((dir.to_owned(), CheckpointConfig::default()));
        let config = FitConfig {
            epochs: 2,
            max_steps: Some(steps),
            batch_size: GLOBAL / count,
            checkpoints,
            ..FitConfig::default()
        };
        let average = WeightAverage::ema(0.7).stays_at_end(true);
        trainer.fit_with(Fit::new(config).hook(average), &data, None::<&TensorDataset<_>>).unwrap();
        bits(&params)
    });
    assert!(of_ranks.iter().all(|bits| *bits == of_ranks[0]), "ranks differ");
    of_ranks.into_iter().next().unwrap()
}

/// The elements of the tensors in the files of the newest checkpoint, by the starts of the files' names.
fn saved(dir: &Path) -> BTreeMap<String, usize> {
    let newest = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let newest = newest.filter(|path| path.join("checkpoint.json").exists()).max().unwrap();
    let mut saved = BTreeMap::new();
    for file in fs::read_dir(newest).unwrap().map(|file| file.unwrap().path()) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let Some(name) = name.strip_suffix(".safetensors") else { continue };
        let tensors = candelabrum::candle::safetensors::load(&file, &Device::Cpu).unwrap();
        let elements = tensors.values().map(Tensor::elem_count).sum::<usize>();
        let kind = name.split("-shard-").next().unwrap().to_owned();
        *saved.entry(kind).or_default() += elements;
    }
    saved
}

#[test]
fn a_checkpoint_of_hosts_has_each_share_once_and_any_ranks_continue_it() {
    let whole = tempfile::tempdir().unwrap();
    fit(4, Shard::Nothing, whole.path(), STEPS);
    for shard in [Shard::Optimizer, Shard::Gradients, Shard::Parameters] {
        let dir = tempfile::tempdir().unwrap();
        fit(4, shard, dir.path(), STEPS);
        assert_eq!(saved(dir.path()), saved(whole.path()), "{shard}");
        for (count, next) in [(1, Shard::Nothing), (2, shard), (4, shard), (4, Shard::Nothing)] {
            let [from, other] = [dir.path(), whole.path()].map(copy);
            let continued = fit(count, next, from.path(), STEPS + 3);
            let expected = fit(count, Shard::Nothing, other.path(), STEPS + 3);
            assert!(continued == expected, "{shard} on 4 ranks, {next} on {count}: other bits");
        }
        // The other way.
        let from = copy(whole.path());
        fit(1, Shard::Nothing, from.path(), STEPS + 1);
        let other = copy(from.path());
        let continued = fit(4, shard, from.path(), STEPS + 4);
        let expected = fit(4, Shard::Nothing, other.path(), STEPS + 4);
        assert!(continued == expected, "{shard} from one rank: other bits");
    }
}

/// A copy of the checkpoints in a directory.
fn copy(dir: &Path) -> TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        if !entry.is_dir() {
            continue;
        }
        let place = to.path().join(entry.file_name().unwrap());
        fs::create_dir(&place).unwrap();
        for file in fs::read_dir(entry).unwrap().map(|file| file.unwrap().path()) {
            fs::copy(&file, place.join(file.file_name().unwrap())).unwrap();
        }
    }
    to
}
