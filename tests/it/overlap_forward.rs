//! New values that may arrive while the next forward pass begins: only where the user says so, nobody reads old ones, and a
//! rank that dies before it has sent its part makes every read an error, also after the last step.

use std::path::Path;
use std::thread;

use candelabrum::candle;
use candelabrum::dist::parameters_sha256;
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::{Backend, RanksOf};
use candelabrum_testkit::uniform;
use candle_nn::{VarBuilder, VarMap};

use crate::ranks::world_of_rank;
use crate::shards::{Dying, Mlp, WIDTH, bits};

fn config(shard: Shard, overlap_forward: bool) -> DistOptConfig {
    let first_bucket_bytes = 1 << 10;
    DistOptConfig { shard, overlap_forward, first_bucket_bytes, ..DistOptConfig::default() }
}

/// An input of a step, another one on each rank.
fn rows(world: &World, step: usize) -> Tensor {
    let seed = (step * 8 + world.rank()) as u64;
    uniform((2, WIDTH), seed, -1.0, 1.0, DType::F32).unwrap()
}

/// A penalty on all weights, which reads each parameter outside of the model.
fn penalty(params: &Params) -> Tensor {
    let squares = params.list().into_iter().map(|param| param.tensor().sqr()?.sum_all());
    let squares: Vec<Tensor> = squares.collect::<candle::Result<_>>().unwrap();
    (Tensor::stack(&squares, 0).unwrap().sum_all().unwrap() * 1e-3).unwrap()
}

/// A training of layers of candle-nn, which keep their tensors, with a loss that reads the parameters, too.
fn train_given(world: &World, config: DistOptConfig) -> Vec<u32> {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    let hidden = candle_nn::linear(WIDTH, WIDTH, vb.pp("hidden")).unwrap();
    let out = candle_nn::linear(WIDTH, 3, vb.pp("out")).unwrap();
    let params = Params::from_varmap(&map).unwrap();
    for (seed, param) in params.list().iter().enumerate() {
        let shape = param.shape().clone();
        param.set(&uniform(shape, seed as u64, -0.1, 0.1, DType::F32).unwrap()).unwrap();
    }
    let mut opt = DistOpt::with_config(Sgd::new(0.1), &params, world, config).unwrap();
    for step in 0..4 {
        let ys = hidden.forward(&rows(world, step)).unwrap().tanh().unwrap();
        let loss = out.forward(&ys).unwrap().sqr().unwrap().mean_all().unwrap();
        opt.backward_and_update(&(loss + penalty(&params)).unwrap()).unwrap();
    }
    bits(&params)
}

/// A training of layers of this library and of one tensor that the program keeps: a weight that is used twice.
fn train_kept(world: &World, config: DistOptConfig) -> candle::Result<Vec<u32>> {
    let params = Params::new(7);
    let model = Mlp::new(&params, &[WIDTH, WIDTH, 5]);
    model.compile_with(&params, &rows(world, 0)).unwrap();
    let kept = params.get("l1.weight").unwrap().tensor().clone();
    let mut opt = DistOpt::with_config(Sgd::new(0.1), &params, world, config).unwrap();
    for step in 0..4 {
        let xs = rows(world, step).matmul(&kept.t()?)?;
        let loss = (model.forward(&xs)?.sqr()?.mean_all()? + penalty(&params))?;
        opt.backward_and_update(&loss)?;
    }
    Ok(bits(&params))
}

#[test]
fn rank_keeps_tensors() {
    let Some(world) = world_of_rank() else { return };
    let given = train_given(&world, config(Shard::None, false));
    let kept = train_kept(&world, config(Shard::None, false)).unwrap();
    for overlaps in [false, true] {
        let shared = train_given(&world, config(Shard::Optimizer, overlaps));
        assert!(shared == given, "overlap_forward {overlaps}: other bits");
    }
    assert!(train_kept(&world, config(Shard::Optimizer, false)).unwrap() == kept, "other bits");
    // The promise is broken: no old value is read. A rank that has updated all of the weight has its new values, and hears
    // of the other rank's error.
    let error = train_kept(&world, config(Shard::Optimizer, true)).unwrap_err();
    println!("a kept tensor: {error}");
}

#[test]
fn a_tensor_that_a_model_keeps_never_has_old_values() {
    let ended = RanksOf::new(rank_keeps_tensors).over(Backend::Tcp).run_all_good(2);
    assert!(ended.iter().any(|rank| rank.text.contains("a kept tensor: dtype")), "{ended:#?}");
}

/// A training whose last step is the third.
fn trained(
    world: &World,
    dtype: DType,
    config: DistOptConfig,
    phase: Option<String>,
) -> (Params, Mlp, DistOpt, candelabrum::dist::Result<()>) {
    let params = Params::on(1, dtype, &Device::Cpu);
    let model = Mlp::new(&params, &[WIDTH, WIDTH, WIDTH, 5]);
    let xs = |step| rows(world, step).to_dtype(dtype).unwrap();
    model.compile_with(&params, &xs(0)).unwrap();
    let dying = Dying { phase, ..Dying::new(AdamW::new(1e-2)) };
    let mut opt = DistOpt::with_config(dying, &params, world, config).unwrap();
    let mut end = Ok(());
    for step in 0..3 {
        let ys = model.forward(&xs(step)).unwrap().to_dtype(DType::F32).unwrap();
        end = end.and(opt.backward_and_update(&ys.sqr().unwrap().mean_all().unwrap()));
    }
    (params, model, opt, end)
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1().unwrap()
}

/// The outputs of a model without its last layer's activation, which would make 0 of NaN.
fn predict(model: &Mlp, xs: &Tensor) -> candle::Result<Vec<f32>> {
    let ys = model.blocks.forward_by(xs, |layer, xs| layer.forward(xs)?.tanh())?;
    Ok(floats(&model.last.forward(&ys)?))
}

/// Says whether a read was an error. What is no error must be right.
fn judge<T: PartialEq, E: std::fmt::Display>(what: &str, read: Result<T, E>, expected: &T) {
    match read {
        Ok(read) => {
            assert!(read == *expected, "{what} is wrong and no error");
            println!("{what}: right");
        }
        Err(error) => println!("{what}: an error: {error}"),
    }
}

#[test]
fn rank_outlives_another() {
    let Some(world) = world_of_rank() else { return };
    let of = |name: &str| std::env::var(name).unwrap();
    let (shard, overlaps): (Shard, bool) =
        (of("ENDS_SHARD").parse().unwrap(), of("ENDS_OVERLAPS").parse().unwrap());
    let dtype = if of("ENDS_DTYPE") == "bf16" { DType::BF16 } else { DType::F32 };
    let phase = std::env::var("ENDS_PHASE").ok();
    let (whole, plain, mut plain_opt, end) =
        trained(&world, dtype, config(Shard::None, false), None);
    end.unwrap();
    let (expected, digest) = (bits(&whole), parameters_sha256(&whole).unwrap());
    let xs = rows(&world, 9).to_dtype(dtype).unwrap();
    let outputs = predict(&plain, &xs).unwrap();
    plain_opt.average_parameters().unwrap();

    let (params, model, mut opt, end) =
        trained(&world, dtype, config(shard, overlaps), phase.clone());
    if phase.is_some() {
        std::process::abort(); // after the last step
    }
    println!("the last step: {}", end.map_or_else(|error| error.to_string(), |()| "taken".into()));
    let file = tempfile::NamedTempFile::new().unwrap();
    let saved = |path: &Path| {
        let copy = Params::on(2, dtype, &Device::Cpu);
        let net = Mlp::new(&copy, &[WIDTH, WIDTH, WIDTH, 5]);
        net.compile_with(&copy, &xs).unwrap();
        copy.load_weights(path, &NameMap::new()).unwrap().complete().unwrap();
        bits(&copy)
    };
    for _ in 0..2 {
        let save = params.save_weights(file.path()).map(|()| saved(file.path()));
        judge("save_weights", save, &expected);
        judge("the digest", parameters_sha256(&params), &digest);
        match predict(&model, &xs) {
            Ok(predicted) if predicted.iter().all(|output| output.is_nan()) => {}
            predicted => judge("a prediction", predicted, &outputs),
        }
    }
    for (param, whole) in params.list().iter().zip(whole.list()) {
        let values = |param: &candelabrum::nn::Param| param.with_values(|values| values.to_flat());
        let values = |param| values(param).map(|flat| flat.to_vec::<f32>().unwrap());
        judge(param.name(), values(param), &values(&whole).unwrap());
        let (read, whole) = (floats(param.tensor()), floats(whole.tensor()));
        assert!(read == whole || read.iter().all(|value| value.is_nan()), "{}", param.name());
    }
    let gathered = opt.gather_parameters().map(|()| bits(&params));
    judge("gather_parameters", gathered, &expected);
    let step =
        opt.backward_and_update(&params.list()[0].tensor().sqr().unwrap().mean_all().unwrap());
    println!("the next step: {}", step.unwrap_err());
}

#[test]
fn what_a_dead_rank_has_not_sent_is_an_error_of_every_read_or_nan() {
    let all = [
        // Where the peer dies in its last step, before it sends the new values; whether the step waits for them.
        (Shard::Optimizer, "f32", true, "gathers"),
        (Shard::Optimizer, "f32", false, "gathers"),
        (Shard::Gradients, "bf16", false, "gathers"),
        (Shard::Gradients, "f32", true, "gathers"),
        // After its last step.
        (Shard::Optimizer, "bf16", false, "end"),
        (Shard::Parameters, "f32", false, "end"),
    ];
    for (shard, dtype, overlaps, phase) in all {
        let ranks = RanksOf::new(rank_outlives_another).over(Backend::Tcp);
        let ranks = ranks.env("ENDS_SHARD", shard).env("ENDS_DTYPE", dtype);
        let ranks = ranks.env("ENDS_OVERLAPS", overlaps).env_of(1, "ENDS_PHASE", phase);
        let ended = ranks.run(2).swap_remove(0);
        let (text, of) = (&ended.text, format!("{shard}, {dtype}, {overlaps}, {phase}"));
        assert!(ended.succeeded(), "{of}: {text}");
        assert!(text.contains("the next step: "), "{of}: {text}");
        let has = |line: &str| text.contains(line);
        match (shard, overlaps) {
            (Shard::Parameters, _) => {
                assert!(has("save_weights: an error: rank 1"), "{of}: {text}");
                assert!(has("the digest: an error: rank 1"), "{of}: {text}");
            }
            (_, true) => {
                assert!(has("the last step: taken"), "{of}: {text}");
                assert!(has("save_weights: an error: rank 1"), "{of}: {text}");
                assert!(has("the digest: an error: rank 1"), "{of}: {text}");
                // Once for each parameter whose values have not come.
                let said = text.matches("have not come").count();
                assert!((1..=8).contains(&said), "{of}: {said} times: {text}");
            }
            (_, false) if phase == "gathers" => {
                assert!(has("the last step: rank 1"), "{of}: {text}");
                // Half of the values are new.
                assert!(has("save_weights: an error: rank 1"), "{of}: {text}");
                assert!(has("the digest: an error: rank 1"), "{of}: {text}");
            }
            // The values in bf16 are here, their masters are not.
            _ => assert!(has("the digest: an error: rank 1"), "{of}: {text}"),
        }
    }
}

/// What a worker makes of its parameters, which a server updates at once. A second worker would change the values.
fn on_worker<R: Send>(work: impl Fn(&World, KvStore) -> R + Sync) -> Vec<R> {
    let work = |world: &World| {
        if world.is_server() {
            // A worker that leaves too early is its error, too.
            drop(Server::new().run(world));
            return None;
        }
        Some(work(world, KvStore::create("dist_async", world).unwrap()))
    };
    let worlds = World::threads(2).unwrap();
    thread::scope(|scope| {
        let work = &work;
        let rank = |world: World| scope.spawn(move || work(&world.with_servers(1).unwrap()));
        let ranks: Vec<_> = worlds.into_iter().map(rank).collect();
        ranks.into_iter().filter_map(|rank| rank.join().unwrap()).collect()
    })
}

/// The steps of a training through a store, which read a kept tensor if one is `kept`.
fn train_through(
    world: &World,
    opt: &mut DistOpt,
    model: &Mlp,
    kept: Option<&Tensor>,
    steps: usize,
) -> candle::Result<()> {
    for step in 0..steps {
        // Before the model accesses the parameter.
        let first = kept.map(|kept| kept.sqr()?.mean_all()).transpose()?;
        let mut loss = model.forward(&rows(world, step))?.sqr()?.mean_all()?;
        if let Some(first) = first {
            loss = (loss + first)?;
        }
        opt.backward_and_update_with(&loss, DistOption::Fp32, 0.0)?;
    }
    Ok(())
}

fn store_opt(store: &KvStore, params: &Params, overlap_forward: bool) -> DistOpt {
    let config = DistOptConfig { overlap_forward, ..DistOptConfig::default() };
    DistOpt::with_servers(Sgd::new(0.1), params, store.servers(), config).unwrap()
}

#[test]
fn a_kept_tensor_of_a_model_that_trains_through_a_store_has_no_old_values() {
    let train = |overlaps: bool, keeps: bool| {
        on_worker(|world, store| {
            let params = Params::new(7);
            let model = Mlp::new(&params, &[WIDTH, WIDTH, 5]);
            model.compile_with(&params, &rows(world, 0)).unwrap();
            let kept = params.get("l1.weight").unwrap().tensor().clone();
            let mut opt = store_opt(&store, &params, overlaps);
            // A tensor of the parameter that is taken anew in each step gives the same losses.
            let trained = match keeps {
                true => train_through(world, &mut opt, &model, Some(&kept), 4),
                false => (0..4).try_for_each(|step| {
                    let fresh = params.get("l1.weight").unwrap().tensor().clone();
                    let loss = model.forward(&rows(world, step))?.sqr()?.mean_all()?;
                    let loss = (loss + fresh.sqr()?.mean_all()?)?;
                    Ok(opt.backward_and_update_with(&loss, DistOption::Fp32, 0.0)?)
                }),
            };
            trained.map(|()| bits(&params)).map_err(|error| error.to_string())
        })
    };
    let expected = train(false, false);
    assert!(expected.iter().all(Result::is_ok), "{:?}", expected[0].as_ref().err());
    assert!(train(false, true) == expected, "a kept tensor has old values");
    assert!(train(true, false) == expected, "overlap_forward changes the bits");
    assert!(train(true, true).iter().all(Result::is_err), "a broken promise is silent");
}

#[test]
fn workers_that_train_at_once_have_the_same_values_after_an_average() {
    let worlds = World::threads(3).unwrap();
    let work = |world: &World| {
        if world.is_server() {
            Server::new().run(world).unwrap();
            return;
        }
        let store = KvStore::create("dist_async", world).unwrap();
        let params = Params::new(7);
        let model = Mlp::new(&params, &[WIDTH, WIDTH, 5]);
        model.compile_with(&params, &rows(world, 0)).unwrap();
        let mut opt = store_opt(&store, &params, true);
        for round in 0..40 {
            // The last values may still be on their way.
            train_through(world, &mut opt, &model, None, 1 + (round + world.rank()) % 3).unwrap();
            opt.average_parameters().unwrap();
            let digests = world.comm().all_gather_text(&parameters_sha256(&params).unwrap());
            let digests = digests.unwrap();
            assert_eq!(digests[0], digests[1], "{round}");
        }
    };
    thread::scope(|scope| {
        let work = &work;
        let rank = |world: World| scope.spawn(move || work(&world.with_servers(1).unwrap()));
        let ranks: Vec<_> = worlds.into_iter().map(rank).collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    });
}
