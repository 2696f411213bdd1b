//! Ranks that keep only their shard of the parameters of blocks: who may read what and when, what is refused, and what a
//! checkpoint has.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use candelabrum::candle;
use candelabrum::dist::{Mesh, parameters_sha256};
use candelabrum::nn::layers::Blocks;
use candelabrum::nn::{Init, Recompute};
use candelabrum::prelude::*;
use candelabrum::train::checkpoint::load_best_average;
use candelabrum_testkit::ranks::RanksOf;
use candelabrum_testkit::uniform;

use crate::ranks::{on_processes, on_ranks, world_of_rank};
use crate::shards::bits;

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
    let Some(world) = world_of_rank() else { return };
    let (whole, _, _opt) = trained(&world, Shard::None);
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
    let ended = RanksOf::new(rank_reads_alone).run_all_good(3);
    assert!(ended[0].text.contains("rank 0 has read all"), "{}", ended[0].text);
}

#[test]
fn a_rank_that_ends_early_is_waited_for_by_nobody() {
    let Some(world) =
        on_processes(RanksOf::new(a_rank_that_ends_early_is_waited_for_by_nobody), &[2])
    else {
        return;
    };
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
fn after_the_optimizer_is_dropped_only_gathered_values_can_be_read() {
    let whole = on_ranks(2, |world| bits(&trained(world, Shard::None).0));
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
        assert!(error.contains("`blocks.0."), "{error}");
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
fn blocks_that_keep_their_results_give_their_parameters_back_between_the_passes() {
    const BLOCKS: usize = 4;
    /// By step: the bytes of parameters between the passes, and after the step. Then the parameters.
    fn steps(world: &World, shard: Shard, is_fused: bool) -> (Vec<[usize; 2]>, Vec<u32>) {
        let params = Params::new(7);
        let scope = params.root();
        let block = |number: usize| {
            let scope = scope.pp("blocks").pp(number);
            // An operation of candle reads the scale at the end of the block.
            let scale = (!is_fused).then(|| scope.param("scale", WIDTH, Init::Const(0.5)).unwrap());
            (Linear::new(&scope, WIDTH), scale)
        };
        let blocks = Blocks::new(&scope, (0..BLOCKS).map(block));
        let loss = || {
            let ys = blocks.forward_by(&inputs(), move |(layer, scale), xs| {
                let ys = ReLU.forward(&layer.forward(xs)?)?;
                scale.as_ref().map_or(Ok(ys.clone()), |scale| ys.broadcast_mul(scale.tensor()))
            });
            (ys.unwrap().sqr().unwrap().mean_all().unwrap() / 2.0).unwrap()
        };
        loss();
        let mut opt = DistOpt::with_config(AdamW::new(0.1), &params, world, config(shard)).unwrap();
        let bytes = |opt: &mut DistOpt| opt.memory().unwrap().parameters;
        let mut step = || {
            let losses = [loss(), loss()];
            let between = bytes(&mut opt);
            if is_fused {
                // A pass that belongs to no step.
                losses[0].backward().unwrap();
            }
            opt.accumulate(&losses[0]).unwrap();
            opt.backward_and_update(&losses[1]).unwrap();
            [between, bytes(&mut opt)]
        };
        let bytes = (0..3).map(|_| step()).collect();
        opt.gather_parameters().unwrap();
        (bytes, bits(&params))
    }
    for is_fused in [true, false] {
        let ranks = on_ranks(2, |world| {
            let (_, whole) = steps(world, Shard::None, is_fused);
            let (bytes, sharded) = steps(world, Shard::Parameters, is_fused);
            assert!(whole == sharded, "{is_fused}");
            bytes
        });
        let vectors = if is_fused { 1 } else { 2 };
        let block = (WIDTH + vectors) * WIDTH * size_of::<f32>();
        let all: usize = ranks.iter().map(|bytes| bytes[0][1]).sum();
        assert_eq!(all, BLOCKS * block, "{ranks:?}");
        for bytes in &ranks {
            let [[first, own], others @ ..] = &bytes[..] else { panic!("{bytes:?}") };
            assert_eq!(*first, BLOCKS * block + own);
            // The last block has its parameters until its backward pass.
            assert!(others.iter().all(|others| *others == [own + block, *own]), "{bytes:?}");
        }
    }
}

/// Blocks below adapters: what is frozen has the type of the parameters, and what is trained f32.
#[test]
fn frozen_parameters_of_blocks_are_divided_in_their_type() {
    const BLOCKS: usize = 3;
    fn run(world: &World, shard: Shard, dtype: DType) -> (Vec<usize>, Vec<u32>) {
        let params = Params::on(7, dtype, &Device::Cpu);
        let scope = params.root();
        let block = |number: usize| {
            let scope = scope.pp("blocks").pp(number);
            let layer = Linear::new(&scope, WIDTH);
            (layer, scope.param("scale", WIDTH, Init::Const(0.5)).unwrap())
        };
        let blocks = Blocks::new(&scope, (0..BLOCKS).map(block));
        let inputs = inputs().to_dtype(dtype).unwrap();
        let loss = || {
            let ys = blocks.forward_by(&inputs, |(layer, scale), xs| {
                layer.forward(xs)?.broadcast_mul(&scale.identity()?)
            });
            ys.unwrap().to_dtype(DType::F32).unwrap().sqr().unwrap().mean_all().unwrap()
        };
        loss();
        params.freeze(|name| !name.ends_with("scale"));
        let mut opt = DistOpt::with_config(Sgd::new(0.1), &params, world, config(shard)).unwrap();
        let mut bytes = Vec::new();
        for _ in 0..3 {
            opt.backward_and_update(&loss()).unwrap();
            bytes.push(opt.memory().unwrap().parameters);
        }
        // Any rank may read any of them.
        let read = bits(&params);
        opt.gather_parameters().unwrap();
        assert_eq!(read, bits(&params));
        (bytes, read)
    }
    for (dtype, size) in [(DType::F32, 4), (DType::BF16, 2)] {
        let ranks = on_ranks(2, |world| {
            let (_, whole) = run(world, Shard::None, dtype);
            let (bytes, sharded) = run(world, Shard::Parameters, dtype);
            assert!(whole == sharded, "{dtype:?}");
            bytes
        });
        let (frozen, trained) = (BLOCKS * (WIDTH + 1) * WIDTH, BLOCKS * WIDTH);
        for step in 0..3 {
            let all: usize = ranks.iter().map(|bytes| bytes[step]).sum();
            assert_eq!(all, frozen * size + trained * 4, "{dtype:?} {step}: {ranks:?}");
        }
    }
}

#[test]
fn a_model_without_blocks_is_refused_on_every_rank() {
    let errors = on_ranks(2, |world| {
        let params = Params::new(7);
        let line = Linear::new(&params.root().pp("line"), 1);
        line.forward(&inputs()).unwrap();
        let config = config(Shard::Parameters);
        let mut opt = DistOpt::with_config(Sgd::new(0.1), &params, world, config).unwrap();
        let loss = line.forward(&inputs()).unwrap().sqr().unwrap().mean_all().unwrap();
        opt.backward_and_update(&loss).unwrap_err().to_string()
    });
    for error in errors {
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
fn a_checkpoint_of_shards_is_one_of_all_parameters_for_whoever_reads_it() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [whole, shared] = dirs.each_ref().map(tempfile::TempDir::path);
    let expected = run(whole, Shard::None, 2, 4);
    assert_eq!(run(shared, Shard::Parameters, 2, 2), run(&whole.join("half"), Shard::None, 2, 2));
    let step = std::fs::read_dir(shared).unwrap().map(|entry| entry.unwrap().path());
    let step = step.filter(|path| path.is_dir()).max().unwrap();
    for file in ["parameters-shard-0", "parameters-shard-1", "hook-ema-shard-1"] {
        assert!(step.join(format!("{file}.safetensors")).exists(), "{file}");
    }
    // The run goes on with shards.
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
    // A rank alone goes on from the shards of two.
    run(shared, Shard::None, 1, 5);
}

/// The L2 norm of all parameters, which reads them outside of their blocks.
fn norm(params: &Params) -> Tensor {
    let squares = params.list().into_iter().map(|param| param.tensor().sqr()?.sum_all());
    let squares: Vec<Tensor> = squares.collect::<candle::Result<_>>().unwrap();
    Tensor::stack(&squares, 0).unwrap().sum_all().unwrap()
}

#[test]
fn a_penalty_or_a_look_at_weights_before_the_first_step_leaves_no_block_whole() {
    let train = |shard: Shard, looks: fn(usize) -> bool, penalized: std::ops::Range<usize>| {
        on_ranks(2, |world| {
            let params = Params::new(7);
            params.set_recompute(Recompute::All);
            let net = Net::new(&params);
            net.compile_with(&params, &inputs()).unwrap();
            // Operations of candle use parameters in some steps only.
            let config = DistOptConfig { overlap: penalized.start == 0, ..config(shard) };
            let mut opt = DistOpt::with_config(AdamW::new(0.1), &params, world, config).unwrap();
            if looks(world.rank()) {
                norm(&params);
            }
            for step in 0..4 {
                let mut loss = net.forward(&inputs()).unwrap().sqr().unwrap().mean_all().unwrap();
                if penalized.contains(&step) {
                    loss = (loss + (norm(&params) * 1e-2).unwrap()).unwrap();
                }
                opt.backward_and_update(&loss).unwrap();
            }
            let shared = params.list().iter().filter(|param| param.is_sharded()).count();
            let memory = opt.memory().unwrap().parameters;
            (bits(&params), shared, memory)
        })
    };
    let looks: [fn(usize) -> bool; 3] = [|_| false, |_| true, |rank| rank == 0];
    for penalized in [0..0, 0..4, 2..3] {
        let whole = train(Shard::None, looks[0], penalized.clone());
        let mut memory = None;
        for looks in looks {
            let shared = train(Shard::Parameters, looks, penalized.clone());
            for ((bits, count, bytes), (expected, ..)) in shared.iter().zip(&whole) {
                assert!(bits == expected, "{penalized:?}: other bits");
                assert_eq!(*count, 4, "{penalized:?}: weights and biases of two blocks");
                // Nothing stays after an update.
                assert_eq!(*memory.get_or_insert(*bytes), *bytes, "{penalized:?}");
            }
        }
    }
}

#[test]
fn blocks_that_own_nothing_are_refused_with_their_parameters() {
    on_ranks(2, |world| {
        let params = Params::new(7);
        params.set_recompute(Recompute::All);
        let scope = params.root();
        let line = Arc::new(Linear::new(&scope.pp("line"), WIDTH));
        let layer = |line: &Arc<Linear>, xs: &Tensor| line.forward(xs)?.relu();
        let blocks = Blocks::new(&scope, [line.clone(), line]);
        let forward = || blocks.forward_by(&inputs(), layer).unwrap();
        forward();
        let config = config(Shard::Parameters);
        let mut opt = DistOpt::with_config(Sgd::new(0.1), &params, world, config).unwrap();
        let error = opt.backward_and_update(&forward().mean_all().unwrap()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("line.weight") && error.contains("several blocks"), "{error}");
    });
}

#[test]
fn rank_reads_after_the_end() {
    let Some(world) = world_of_rank() else { return };
    let (params, net, opt) = trained(&world, Shard::Parameters);
    drop(opt);
    let weight = params.get("blocks.0.weight").unwrap();
    for _ in 0..3 {
        let values = weight.tensor().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(values.iter().all(|value| value.is_nan()));
        // Each block by itself, which cannot wait.
        net.blocks.iter().fold(inputs(), |xs, block| block.forward(&xs).unwrap());
    }
    assert!(params.save_weights("/dev/null").is_err() && parameters_sha256(&params).is_err());
    assert!(weight.set(&Tensor::zeros((6, 6), DType::F32, &Device::Cpu).unwrap()).is_err());
}

#[test]
fn values_that_nobody_can_fetch_are_nan_and_standard_error_says_so_once() {
    for ended in RanksOf::new(rank_reads_after_the_end).run_all_good(2) {
        let said = |name: &str| {
            let lines = ended.text.lines().filter(|line| line.contains("have not come"));
            lines.filter(|line| line.contains(name) && line.contains("gather_parameters")).count()
        };
        for name in ["`blocks.0.weight`", "`blocks.0.bias`", "`blocks.1.weight`"] {
            assert_eq!(said(name), 1, "{name}: {}", ended.text);
        }
    }
}

/// What rank 0 gets from a step for which rank 1, whose world is dropped before its optimizer, does not come.
fn step_without_the_other(shard: Shard, hosts: Option<&[usize]>) -> String {
    let worlds = World::threads(2).unwrap();
    thread::scope(|scope| {
        let rank = |world: World| {
            scope.spawn(move || {
                let params = Params::new(7);
                params.set_recompute(Recompute::All);
                let net = Net::new(&params);
                net.compile_with(&params, &inputs()).unwrap();
                let group = match hosts {
                    Some(hosts) => world.comm().hierarchical(&Mesh::new(hosts.to_vec())).unwrap(),
                    None => world.group(),
                };
                let opt = DistOpt::with_config(AdamW::new(0.1), &params, group, config(shard));
                let mut opt = opt.unwrap();
                let loss = || net.forward(&inputs()).unwrap().sqr().unwrap().mean_all().unwrap();
                opt.backward_and_update(&loss()).unwrap();
                let is_root = world.is_root();
                if !is_root {
                    drop(world);
                    return String::new();
                }
                opt.backward_and_update(&loss()).unwrap_err().to_string()
            })
        };
        let ranks: Vec<_> = worlds.into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_world_that_is_dropped_before_its_optimizer_is_waited_for_by_nobody() {
    for shard in [Shard::None, Shard::Optimizer, Shard::Parameters] {
        for hosts in [None, Some(&[0, 0][..]), Some(&[0, 1][..])] {
            let error = step_without_the_other(shard, hosts);
            assert!(error.contains("rank 1 has finished"), "{shard} {hosts:?}: {error}");
        }
    }
}

#[test]
fn a_parameter_that_one_rank_changes_alone_is_a_disagreement_at_once() {
    for changing in [0, 1] {
        let errors = on_ranks(2, |world| {
            let (params, net, mut opt) = trained(world, Shard::Parameters);
            let bias = params.get("blocks.0.bias").unwrap();
            let zeros = Tensor::zeros(WIDTH, DType::F32, &Device::Cpu).unwrap();
            let changed = if world.rank() == changing { bias.set(&zeros) } else { Ok(()) };
            changed.map_err(|error| error.to_string())?;
            let loss = net.forward(&inputs()).and_then(|ys| ys.sqr()?.mean_all());
            let loss = loss.map_err(|error| error.to_string())?;
            opt.backward_and_update(&loss).map_err(|error| error.to_string())
        });
        let errors: Vec<String> = errors.into_iter().map(Result::unwrap_err).collect();
        assert!(errors[changing].contains("change of `blocks.0.bias`"), "{changing}: {errors:?}");
        for error in errors {
            assert!(error.contains("same calls in the same order"), "{changing}: {error}");
        }
    }
}

/// The bits of a parameter as its values are now.
fn values_of(params: &Params) -> candelabrum::nn::Result<Vec<u32>> {
    let weight = params.get("blocks.1.weight")?;
    let bits = |flat: candelabrum::memory::FlatTensor| flat.to_vec::<f32>();
    let values = weight.with_values(|values| values.to_flat().and_then(bits))?;
    Ok(values.into_iter().map(f32::to_bits).collect())
}

#[test]
fn a_thread_that_reads_while_its_rank_trains_sees_the_values_between_two_steps() {
    let seen = on_ranks(2, |world| {
        let (params, net, mut opt) = trained(world, Shard::Parameters);
        let is_over = AtomicBool::new(false);
        let mut known = vec![values_of(&params).unwrap()];
        let read = thread::scope(|scope| {
            let reader = world.is_root().then(|| {
                scope.spawn(|| {
                    let mut read = Vec::new();
                    while !is_over.load(Ordering::Relaxed) {
                        let values = values_of(&params).map_err(|error| error.to_string());
                        if read.last() != Some(&values) {
                            read.push(values);
                        }
                    }
                    read
                })
            });
            for _ in 0..200 {
                let loss = net.forward(&inputs()).unwrap().sqr().unwrap().mean_all().unwrap();
                opt.backward_and_update(&loss).unwrap();
                known.push(values_of(&params).unwrap());
            }
            is_over.store(true, Ordering::Relaxed);
            reader.map(|reader| reader.join().unwrap())
        });
        let read = read.unwrap_or_default();
        for values in &read {
            let values = values.as_ref().expect("no error");
            assert!(known.contains(values), "values of no step");
        }
        read.len()
    });
    assert!(seen[0] > 1, "the reader has seen no change");
}
