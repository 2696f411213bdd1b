//! The optimizer updates a whole unit by one launch. The software GPU prints launches, and the tests
//! count them. A GPU prints none, and the tests are left out.

use candelabrum::dist::DistOptConfig;
use candelabrum::nn::layers::Linear;
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::{RanksOf, is_rank};
use candelabrum_testkit::uniform;

use crate::device::gpu;

const STEPS: usize = 4;

/// Trains a model with one unit of six parameters.
fn train(optimizer: impl Optimizer + 'static, dtype: DType) {
    candelabrum::train::set_threads(1).unwrap();
    let world = World::from_env().unwrap();
    let params = Params::on(3, dtype, world.device());
    let layers = [5, 300, 2].map(|out| Linear::new(&params.root().pp(format!("fc{out}")), out));
    let config = DistOptConfig {
        first_bucket_bytes: 1 << 20,
        bucket_bytes: 1 << 20,
        ..DistOptConfig::default()
    };
    let xs = uniform(&[4, 40], 1, -1.0, 1.0, DType::F32).unwrap();
    let xs = xs.to_device(world.device()).unwrap().to_dtype(dtype).unwrap();
    let loss = || {
        let ys = layers.iter().try_fold(xs.clone(), |xs, layer| layer.forward(&xs)).unwrap();
        ys.sqr().unwrap().mean_all().unwrap().to_dtype(DType::F32).unwrap()
    };
    loss(); // creates the parameters
    assert_eq!(params.len(), 6);
    let mut opt = DistOpt::with_config(optimizer, &params, &world, config).unwrap();
    for _ in 0..STEPS {
        opt.backward_and_update(&loss()).unwrap();
    }
}

/// Runs a test of this file as a process, and returns how often it launches each of these kernels;
/// `None` without the software GPU.
fn launches<const N: usize>(test: &str, kernels: [&str; N]) -> Option<[usize; N]> {
    gpu()?;
    let rank = RanksOf::test(&format!("launches::{test}"))
        .env("CANDELABRUM_DEVICE", "cuda:0")
        .env("SOFTGPU_TRACE", 1);
    let text = rank.run_all_good(1).remove(0).text;
    let count = |kernel: &str| text.matches(&format!("softgpu: launch {kernel} ")).count();
    // The gradient of the loss needs some kernel in any case.
    text.contains("softgpu: launch ").then(|| kernels.map(count))
}

#[test]
fn adam_main() {
    if is_rank() {
        train(Adam::new(0.01).group(ParamGroup::below_dims(2).lr_scale(2.0)), DType::F32);
    }
}

#[test]
fn a_unit_is_updated_by_one_launch() {
    if let Some(counts) = launches("adam_main", ["update_all", "partial_sums"]) {
        assert_eq!(counts, [STEPS, 0]);
    }
}

#[test]
fn lamb_main() {
    if is_rank() {
        train(Lamb::new(0.01), DType::F32);
    }
}

#[test]
fn a_unit_is_updated_by_three_launches_where_the_formula_has_sums() {
    if let Some(counts) = launches("lamb_main", ["partial_sums", "add_sums", "update_all"]) {
        assert_eq!(counts, [STEPS; 3]);
    }
}

#[test]
fn half_main() {
    if is_rank() {
        train(Sgd::new(0.01).momentum(0.9), DType::BF16);
    }
}

#[test]
fn masters_are_updated_by_one_launch_and_rounded_by_one() {
    if let Some(counts) = launches("half_main", ["update_all", "round_all"]) {
        assert_eq!(counts, [STEPS; 2]);
    }
}

#[test]
fn gradients_of_half_precision_are_written_to_their_places_in_f32() {
    // cuBLASLt adds the bias of a layer, and its gradient is summed once per layer and pass. candle
    // computes the loss, whose gradient is the only one that is not in a kernel's own memory.
    if let Some(counts) = launches("half_main", ["sum_groups", "activate", "widen"]) {
        assert_eq!(counts, [3 * STEPS, 0, 0]);
    }
}
