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

const CASE: &str = "LAUNCHES_CASE";

/// Trainings, and how often each launches these kernels.
const CASES: [(&str, &[(&str, usize)]); 3] = [
    ("adam", &[("update_all", STEPS), ("partial_sums", 0)]),
    // The formula has sums.
    ("lamb", &[("partial_sums", STEPS), ("add_sums", STEPS), ("update_all", STEPS)]),
    // The masters are rounded by one launch. cuBLASLt adds the bias of a layer, and its gradient is summed once per
    // layer and pass. The gradients are written to their places in f32: candle computes the loss, whose gradient is the
    // only one that is not in a kernel's own memory.
    (
        "half",
        &[
            ("update_all", STEPS),
            ("round_all", STEPS),
            ("sum_groups", 3 * STEPS),
            ("activate", 0),
            ("widen", 0),
        ],
    ),
];

#[test]
fn a_unit_is_updated_by_few_launches() {
    if is_rank() {
        return match std::env::var(CASE).unwrap().as_str() {
            "adam" => {
                train(Adam::new(0.01).group(ParamGroup::below_dims(2).lr_scale(2.0)), DType::F32);
            }
            "lamb" => train(Lamb::new(0.01), DType::F32),
            _ => train(Sgd::new(0.01).momentum(0.9), DType::BF16),
        };
    }
    for (case, kernels) in CASES.iter().filter(|_| gpu().is_some()) {
        let rank = RanksOf::new(a_unit_is_updated_by_few_launches).env(CASE, case);
        let rank = rank.env("CANDELABRUM_DEVICE", "cuda:0").env("SOFTGPU_TRACE", 1);
        let text = rank.run_all_good(1).remove(0).text;
        // The gradient of the loss needs some kernel in any case, but a real GPU prints none.
        for (kernel, launches) in kernels.iter().filter(|_| text.contains("softgpu: launch ")) {
            let count = text.matches(&format!("softgpu: launch {kernel} ")).count();
            assert_eq!(count, *launches, "{case}: {kernel}");
        }
    }
}
