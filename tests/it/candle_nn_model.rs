//! A model of `candle_nn` with batch normalisation on 1, 2 and 3 ranks: its running statistics are
//! buffers, which all ranks share, and no optimizer touches.

use std::env;
use std::path::Path;

use candelabrum::candle::{ModuleT, Result, Var};
use candelabrum::dist::{BufferSync, Error};
use candelabrum::nn::FromModuleT;
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::RanksOf;
use candelabrum_testkit::{assert_close, integers, uniform};
use candle_nn::{BatchNorm, Conv2d, Dropout, Linear, VarBuilder, VarMap};

use crate::ranks::{on_processes, world_of_rank};

/// As a candle program has it.
struct Net {
    conv: Conv2d,
    norm: BatchNorm,
    dropout: Dropout,
    out: Linear,
}

impl Net {
    fn new(vb: &VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            conv: candle_nn::conv2d(1, 4, 3, Default::default(), vb.pp("conv"))?,
            norm: candle_nn::batch_norm(4, 1e-5, vb.pp("norm"))?,
            dropout: Dropout::new(0.1),
            out: candle_nn::linear(4 * 6 * 6, 3, vb.pp("out"))?,
        })
    }
}

impl ModuleT for Net {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        let ys = self.norm.forward_t(&self.conv.forward(xs)?, train)?.relu()?.flatten_from(1)?;
        self.out.forward(&self.dropout.forward_t(&ys, train)?)
    }
}

fn net() -> (Params, FromModuleT<Net>) {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    let net = Net::new(&vb).unwrap();
    let params = Params::from_varmap(&varmap).unwrap();
    (params.clone(), FromModuleT::new(net, &params))
}

/// Images whose mean is not 0, with a class each.
fn samples(count: usize, seed: u64) -> TensorDataset<Batch> {
    let xs = uniform((count, 1, 8, 8), seed, -1.0, 3.0, DType::F32).unwrap();
    TensorDataset::labelled(xs, integers(count, seed + 1, 3).unwrap()).unwrap()
}

/// The bits of the parameters and of the buffers, as text for other ranks.
fn state(params: &Params) -> String {
    let list = params.list();
    let values = list.iter().map(|param| param.var().as_detached_tensor());
    let values = values.chain(params.buffers().into_iter().map(|buffer| buffer.value()));
    let bits = |value: Tensor| value.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let bits = values.flat_map(bits).map(|value| format!("{:08x}", value.to_bits()));
    bits.collect::<Vec<_>>().join(" ")
}

fn statistics(params: &Params) -> Vec<Vec<f32>> {
    params.buffers().iter().map(|buffer| buffer.value().to_vec1().unwrap()).collect()
}

#[track_caller]
fn assert_same_on_all_ranks(world: &World, params: &Params) {
    let own = state(params);
    let states = world.comm().all_gather_text(&own).unwrap();
    assert!(states.iter().all(|other| *other == own), "the ranks' models differ");
}

#[test]
fn training_main() {
    let Some(world) = world_of_rank() else { return };
    let directory = env::var("CHECKPOINTS").unwrap();
    let (train, test) = (samples(48, 1), samples(20, 5));
    let config = |epochs| FitConfig {
        epochs,
        batch_size: 12 / world.world_size(),
        checkpoints: Some((Path::new(&directory).to_owned(), CheckpointConfig::default())),
        ..FitConfig::default()
    };
    let start = |(params, model): (Params, FromModuleT<Net>)| {
        let opt = DistOpt::new(AdamW::new(0.01).weight_decay(0.1), &params, &world).unwrap();
        Trainer::new(model, opt)
    };
    let (params, model) = net();
    let mut trainer = start((params.clone(), model));
    trainer.fit(&train, &test, &config(3), &mut std::io::sink()).unwrap();
    assert_same_on_all_ranks(&world, &params);
    let moved = statistics(&params);
    assert!(moved.iter().flatten().all(|value| *value != 0.0 && *value != 1.0), "{moved:?}");

    // All ranks together evaluate as one rank does.
    let together = trainer.evaluate(&test, 4).unwrap();
    let alone = params.in_mode(false, || trainer.model().forward(&test.tensors()[0])).unwrap();
    let right = alone.argmax(1).unwrap().eq(&test.tensors()[1]).unwrap();
    let right = right.to_dtype(DType::F32).unwrap().mean_all().unwrap().to_scalar::<f32>().unwrap();
    assert!((together.accuracy() - f64::from(right)).abs() < 1e-6, "{right}");

    // A run that has ended continues with its statistics.
    let (again, model) = net();
    let mut trainer = start((again.clone(), model));
    trainer.fit(&train, &test, &config(3), &mut std::io::sink()).unwrap();
    assert_eq!(state(&again), state(&params));

    // The file of a checkpoint, in another program.
    let (loaded, _model) = net();
    let newest = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let newest = newest.filter(|path| path.join("checkpoint.json").exists()).max().unwrap();
    let file = newest.join("parameters.safetensors");
    loaded.load_weights(file, &NameMap::new()).unwrap().complete().unwrap();
    assert_eq!(state(&loaded), state(&params));
}

#[test]
fn all_ranks_end_with_the_same_model_and_statistics() {
    for ranks in [1, 2, 3] {
        let directory = tempfile::tempdir().unwrap();
        let ranks_of = RanksOf::new(training_main).env("CHECKPOINTS", directory.path().display());
        ranks_of.run_all_good(ranks);
    }
}

/// Bare loops, each rank on its own batches, with each treatment of the statistics.
#[test]
fn statistics_are_shared_as_the_setting_says_and_survive_a_failed_step() {
    let Some(world) = on_processes(
        RanksOf::new(statistics_are_shared_as_the_setting_says_and_survive_a_failed_step),
        &[1, 2, 3],
    ) else {
        return;
    };
    for buffers in [BufferSync::Broadcast, BufferSync::Average, BufferSync::Local] {
        let (params, model) = net();
        let config = DistOptConfig { buffers, ..DistOptConfig::default() };
        let sgd = Sgd::new(0.05).weight_decay(0.5);
        let mut opt = DistOpt::with_config(sgd, &params, &world, config).unwrap();
        let step = |opt: &mut DistOpt, seed: u64, factor: f64| {
            let data = samples(8, seed * 10 + world.rank() as u64);
            let ys = model.forward(&data.tensors()[0]).unwrap();
            let loss = (model.loss(&ys, &data.tensors()[1]).unwrap() * factor).unwrap();
            opt.backward_and_update(&loss)
        };
        for seed in 0..4 {
            step(&mut opt, seed, 1.0).unwrap();
        }
        let own = statistics(&params);

        // A step that fails on one rank leaves no trace of its batch on any.
        let bad = if world.rank() == world.world_size() - 1 { f64::NAN } else { 1.0 };
        let before = state(&params);
        step(&mut opt, 4, bad).unwrap_err();
        assert_eq!(state(&params), before);

        let flat: Vec<f32> = own.concat();
        let all = world.comm().all_gather(&flat).unwrap();
        let ranks: Vec<&[f32]> = all.chunks(flat.len()).collect();
        assert!(
            ranks.iter().skip(1).all(|rank| *rank != ranks[0]),
            "each rank has its own batches"
        );
        opt.average_parameters().unwrap();
        let now = statistics(&params).concat();
        match buffers {
            BufferSync::Broadcast => assert_eq!(now, ranks[0]),
            BufferSync::Average => {
                let mean =
                    |i: usize| ranks.iter().map(|rank| rank[i]).sum::<f32>() / ranks.len() as f32;
                assert!(now.iter().enumerate().all(|(i, value)| (value - mean(i)).abs() < 1e-5));
            }
            _ => assert_eq!(now, flat),
        }
        if buffers != BufferSync::Local {
            assert_same_on_all_ranks(&world, &params);
        }
        step(&mut opt, 5, 1.0).unwrap();
    }
}

#[test]
fn no_optimizer_moves_the_statistics() {
    let (params, model) = net();
    let names = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let list: Vec<String> = params.list().iter().map(|param| param.name().to_owned()).collect();
    let trained =
        ["conv.bias", "conv.weight", "norm.bias", "norm.weight", "out.bias", "out.weight"];
    assert_eq!(list, names(trained.to_vec()));
    let list: Vec<String> =
        params.buffers().iter().map(|buffer| buffer.name().to_owned()).collect();
    assert_eq!(list, names(vec!["norm.running_mean", "norm.running_var"]));

    let mut opt =
        DistOpt::new(AdamW::new(0.1).weight_decay(0.9), &params, &World::single()).unwrap();
    let (xs, ys) = (samples(8, 3).tensors()[0].clone(), samples(8, 3).tensors()[1].clone());
    let features = params.get("conv.weight").unwrap().var().as_tensor().clone();
    let bias = params.get("conv.bias").unwrap().var().as_tensor().reshape((1, 4, 1, 1)).unwrap();
    let features = xs.conv2d(&features, 0, 1, 1, 1).unwrap().broadcast_add(&bias).unwrap();
    let mean = features.detach().mean((0, 2, 3)).unwrap();
    let loss = model.loss(&model.forward(&xs).unwrap(), &ys).unwrap();
    opt.backward_and_update(&loss).unwrap();
    assert_close(&params.buffers()[0].value(), &(mean * 0.1).unwrap(), 1e-5, 1e-6);
}

/// A model that is built again in each step trains as one that is kept, and writes the same statistics.
#[test]
fn a_model_of_each_step_has_the_statistics_of_the_store() {
    let (params, _kept) = net();
    let mut opt = DistOpt::new(Sgd::new(0.1), &params, &World::single()).unwrap();
    for seed in 0..2 {
        let model = FromModuleT::new(Net::new(&params.var_builder()).unwrap(), &params);
        let before = statistics(&params);
        let data = samples(8, seed);
        let loss = model.forward(&data.tensors()[0]).unwrap();
        opt.backward_and_update(&model.loss(&loss, &data.tensors()[1]).unwrap()).unwrap();
        assert_ne!(statistics(&params), before);
    }
}

#[test]
fn one_variable_under_two_names_is_refused_when_it_is_given() {
    let var = Var::ones(2, DType::F32, &Device::Cpu).unwrap();
    let of = |names: [&str; 2]| Params::from_vars(names.map(|name| (name, var.clone())));
    let twice = of(["embed.weight", "head.weight"]).unwrap_err().to_string();
    for part in
        ["`embed.weight` and `head.weight` are one variable", "under one name", "same tensor"]
    {
        assert!(twice.contains(part), "{twice}");
    }
    let params = of(["one", "one"]).unwrap_err().to_string();
    assert!(params.contains("two parameters or buffers are called `one`"), "{params}");
    let varmap = VarMap::new();
    let data = || varmap.data().lock().unwrap();
    for name in ["b.running_mean", "a.weight"] {
        data().insert(name.to_owned(), var.clone());
    }
    assert!(Params::from_varmap(&varmap).unwrap_err().to_string().contains("are one variable"));
    data().remove("b.running_mean");
    let params = Params::from_varmap(&varmap).unwrap();
    let integers = Var::ones(2, DType::U32, &Device::Cpu).unwrap();
    let error = params.add_buffer("count", integers).unwrap_err().to_string();
    assert!(error.contains("`count` is U32"), "{error}");

    // The remedy: one variable whose tensor is used twice.
    let mut opt = DistOpt::new(Sgd::new(0.5), &params, &World::single()).unwrap();
    let weight = params.get("a.weight").unwrap();
    let loss = (weight.tensor() + (weight.tensor() * 3.0).unwrap()).unwrap().sum_all().unwrap();
    opt.backward_and_update(&loss).unwrap();
    assert_eq!(var.to_vec1::<f32>().unwrap(), [-1.0, -1.0]);
}

#[test]
fn another_order_of_the_variables_is_named_with_its_remedy() {
    let Some(world) =
        on_processes(RanksOf::new(another_order_of_the_variables_is_named_with_its_remedy), &[3])
    else {
        return;
    };
    let var = || Var::ones(2, DType::F32, &Device::Cpu).unwrap();
    let mut vars = vec![("a", var()), ("b", var()), ("c", var())];
    if world.rank() == 1 {
        vars.swap(1, 2);
    }
    let new = |vars: Vec<(&'static str, Var)>| {
        DistOpt::new(Sgd::new(0.1), &Params::from_vars(vars).unwrap(), &world)
    };
    let error = new(vars.clone()).unwrap_err();
    assert!(matches!(error, Error::Order { .. }), "{error}");
    let parts = ["rank 0 has `b` where rank(s) 1 have `c`", "sort them by name", "from_varmap"];
    parts.iter().for_each(|part| assert!(error.to_string().contains(part), "{error}"));
    // The remedy.
    vars.sort_by(|a, b| a.0.cmp(b.0));
    new(vars).unwrap();
}
