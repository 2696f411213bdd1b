//! Ranks that keep only their share of the parameters of blocks: who may read what and when, what is refused, and what a
//! checkpoint has.

use std::path::Path;

use candelabrum::candle;
use candelabrum::dist::parameters_sha256;
use candelabrum::nn::Recompute;
use candelabrum::nn::layers::Blocks;
use candelabrum::prelude::*;
use candelabrum::train::checkpoint::load_best_average;
use candelabrum_testkit::ranks::{RanksOf, is_rank};
use candelabrum_testkit::uniform;

use crate::shares::bits;
use crate::threads::on_ranks;

const WIDTH: usize = 6;

/// Two blocks and a last layer.
struct Net {
    blocks: Blocks<Linear>,
    last: Linear,
}

impl Net {
    fn new(params: &Params) -> Self {
        let scope = params.root();
        let block = |number: usize| Linear::new(&scope.pp("blocks").pp(number), WIDTH);
        Self {
            blocks: Blocks::new(&scope, (0..2).map(block)),
            last: Linear::new(&scope.pp("last"), 1),
        }
    }
}

impl Model for Net {
    fn forward(&self, xs: &Tensor) -> candle::Result<Tensor> {
        let ys = self.blocks.forward_by(xs, |layer, xs| layer.forward(xs)?.relu())?;
        self.last.forward(&ys)
    }

    fn loss(&self, output: &Tensor, ys: &Tensor) -> candle::Result<Tensor> {
        (output - ys)?.sqr()?.mean_all()
    }
}

fn inputs() -> Tensor {
    uniform((4, WIDTH), 3, -1.0, 1.0, DType::F32).unwrap()
}

fn config(shard: Shard) -> DistOptConfig {
    DistOptConfig { shard, ..DistOptConfig::default() }
}

/// A network that has taken a step on all ranks, and its optimizer.
fn trained(world: &World, shard: Shard) -> (Params, Net, DistOpt) {
    let params = Params::new(7);
    params.set_recompute(Recompute::All);
    let net = Net::new(&params);
    net.compile_with(&params, &inputs()).unwrap();
    let mut opt = DistOpt::with_config(AdamW::new(0.1), &params, world, config(shard)).unwrap();
    let loss = net.forward(&inputs()).unwrap().sqr().unwrap().mean_all().unwrap();
    opt.backward_and_update(&loss).unwrap();
    (params, net, opt)
}

#[test]
fn rank_reads_alone() {
    if !is_rank() {
        return;
    }
    let world = World::from_env().unwrap();
    let (whole, _, _opt) = trained(&world, Shard::Nothing);
    let (params, net, opt) = trained(&world, Shard::Parameters);
    if !world.is_root() {
        // The program of this rank is over, and its values are still there for the other one.
        return;
    }
    let scores = net.forward(&inputs()).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!(scores.iter().all(|score| score.is_finite()));
    let file = tempfile::NamedTempFile::new().unwrap();
    params.save_weights(file.path()).unwrap();
    let copy = Params::new(1);
    Net::new(&copy).compile_with(&copy, &inputs()).unwrap();
    let loaded = copy.load_weights(file.path(), &NameMap::new()).unwrap();
    loaded.complete().unwrap();
    assert_eq!(bits(&copy), bits(&whole));
    drop(opt);
    println!("rank 0 has read all");
}

#[test]
fn one_rank_may_read_parameters_alone_also_when_the_others_have_ended() {
    let ended = RanksOf::of(rank_reads_alone).run_all_good(3);
    assert!(ended[0].text.contains("rank 0 has read all"), "{}", ended[0].text);
}

#[test]
fn rank_fails_alone() {
    if !is_rank() {
        return;
    }
    let world = World::from_env().unwrap();
    let (_params, net, mut opt) = trained(&world, Shard::Parameters);
    if world.rank() == 1 {
        // A program that ends with an error of its own, while the others are in their next step.
        drop(opt);
        println!("rank 1 ends");
        return;
    }
    let loss = net.forward(&inputs()).unwrap().sqr().unwrap().mean_all().unwrap();
    let error = opt.backward_and_update(&loss).unwrap_err().to_string();
    assert!(error.contains("rank 1"), "{error}");
}

#[test]
fn a_rank_that_ends_early_is_waited_for_by_nobody() {
    RanksOf::of(rank_fails_alone).run_all_good(2);
}

#[test]
fn after_the_optimizer_is_dropped_only_gathered_values_can_be_read() {
    let whole = on_ranks(2, |world| bits(&trained(world, Shard::Nothing).0));
    let gathered = on_ranks(2, |world| {
        let (params, net, mut opt) = trained(world, Shard::Parameters);
        opt.gather_parameters().unwrap();
        drop(opt);
        net.forward(&inputs()).unwrap();
        bits(&params)
    });
    assert_eq!(gathered, whole);
    on_ranks(2, |world| {
        let (_params, net, opt) = trained(world, Shard::Parameters);
        drop(opt);
        let error = net.forward(&inputs()).unwrap_err().to_string();
        assert!(error.contains("gather_parameters"), "{error}");
    });
    // A step divides them again.
    on_ranks(2, |world| {
        let (params, net, mut opt) = trained(world, Shard::Parameters);
        let shared = opt.memory().unwrap().parameters;
        opt.gather_parameters().unwrap();
        assert!(opt.memory().unwrap().parameters > shared);
        let loss = net.forward(&inputs()).unwrap().sqr().unwrap().mean_all().unwrap();
        opt.backward_and_update(&loss).unwrap();
        assert_eq!(opt.memory().unwrap().parameters, shared);
        bits(&params)
    });
}

#[test]
fn what_has_no_blocks_or_keeps_them_is_refused_on_every_rank() {
    let refused = |recompute, has_blocks| {
        on_ranks(2, |world| {
            let params = Params::new(7);
            params.set_recompute(recompute);
            let (net, line) = (Net::new(&params), Linear::new(&params.root().pp("line"), 1));
            let forward =
                || if has_blocks { net.forward(&inputs()) } else { line.forward(&inputs()) };
            forward().unwrap();
            let config = config(Shard::Parameters);
            let mut opt = DistOpt::with_config(Sgd::new(0.1), &params, world, config).unwrap();
            let loss = forward().unwrap().sqr().unwrap().mean_all().unwrap();
            opt.backward_and_update(&loss).unwrap_err().to_string()
        })
    };
    for error in refused(Recompute::None, true).iter().chain(&refused(Recompute::Half, true)) {
        assert!(error.contains("--recompute all"), "{error}");
    }
    for error in refused(Recompute::All, false) {
        assert!(error.contains("without blocks"), "{error}");
    }
}

/// The digest of the parameters after a run with checkpoints, which ends with the averages' evaluation.
fn run(dir: &Path, shard: Shard, ranks: usize, epochs: usize) -> Vec<String> {
    on_ranks(ranks, |world| {
        let params = Params::new(7);
        params.set_recompute(Recompute::All);
        let opt = DistOpt::with_config(AdamW::new(0.01), &params, world, config(shard)).unwrap();
        let mut trainer = Trainer::new(Net::new(&params), opt).with_score(RegressionErrors);
        trainer.compile((1, WIDTH)).unwrap();
        let xs = uniform((24, WIDTH), 1, -1.0, 1.0, DType::F32).unwrap();
        let data = TensorDataset::pair(xs.clone(), xs.narrow(1, 0, 1).unwrap()).unwrap();
        let checkpoints = Some((dir.to_owned(), CheckpointConfig::default()));
        let config = FitConfig {
            epochs,
            batch_size: 12 / world.world_size(),
            checkpoints,
            ..FitConfig::default()
        };
        let fit =
            Fit::new(config).hook(WeightAverage::ema(0.5)).hook(BestModel::new(Monitor::loss()));
        trainer.fit_with(fit, &data, Some(&data)).unwrap();
        parameters_sha256(&params).unwrap()
    })
}

#[test]
fn a_checkpoint_of_shares_is_one_of_all_parameters_for_whoever_reads_it() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [whole, shared] = dirs.each_ref().map(tempfile::TempDir::path);
    let expected = run(whole, Shard::Nothing, 2, 4);
    assert_eq!(
        run(shared, Shard::Parameters, 2, 2),
        run(&whole.join("half"), Shard::Nothing, 2, 2)
    );
    let step = std::fs::read_dir(shared).unwrap().map(|entry| entry.unwrap().path());
    let step = step.filter(|path| path.is_dir()).max().unwrap();
    for file in ["parameters-shard-0", "parameters-shard-1", "hook-ema-shard-1"] {
        assert!(step.join(format!("{file}.safetensors")).exists(), "{file}");
    }
    // The run goes on with shares.
    assert_eq!(run(shared, Shard::Parameters, 2, 4), expected);
    let file = |dir: &Path, name: &str| dir.join(name);
    for dir in [whole, shared] {
        export_best(dir, None, file(dir, "best.safetensors")).unwrap();
        export_best_average(dir, None, "ema", file(dir, "average.safetensors")).unwrap();
    }
    for name in ["best.safetensors", "average.safetensors"] {
        let [whole, shared] = [whole, shared].map(|dir| {
            let tensors = candle::safetensors::load(file(dir, name), &Device::Cpu).unwrap();
            let mut tensors: Vec<_> = tensors
                .into_iter()
                .map(|(name, values)| {
                    let shape = values.dims().to_vec();
                    (name, shape, values.flatten_all().unwrap().to_vec1::<f32>().unwrap())
                })
                .collect();
            tensors.sort_by(|a, b| a.0.cmp(&b.0));
            tensors
        });
        assert_eq!(whole, shared, "{name}");
    }
    let params = Params::new(1);
    Net::new(&params).compile_with(&params, &inputs()).unwrap();
    load_best_average(shared, None, "ema", &params).unwrap();
    // A rank alone goes on from the shares of two.
    run(shared, Shard::Nothing, 1, 5);
}
