//! A kernel that writes to a wild address on one rank. From then on every call of that process is an
//! error of the driver, on the software GPU with `SOFTGPU_STICKY`.

use std::time::Duration;

use candelabrum::memory::cuda::{Gpu, KernelArg, Kernels, LaunchGrid};
use candelabrum::nn::layers::Linear;
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::{RanksOf, is_rank};
use candelabrum_testkit::uniform;

use crate::device::gpu;
use crate::ranks::world;

const KERNELS: Kernels = Kernels {
    name: "wild",
    text: r#"extern "C" __global__ void wild(unsigned long long address, unsigned long long count) {
    *(volatile float *)address = (float)count;
}"#,
};

/// The rank and the step of the wild kernel.
const FAILS: (usize, u64) = (1, 3);

#[test]
fn training_main() {
    if !is_rank() {
        return;
    }
    let world = world();
    let params = Params::on(3, DType::F32, world.device());
    let layer = Linear::new(&params.root().pp("out"), 3);
    let xs = uniform((4, 6), 1, -1.0, 1.0, DType::F32).unwrap().to_device(world.device()).unwrap();
    let loss = || layer.forward(&xs)?.sqr()?.mean_all();
    loss().unwrap(); // creates the parameters
    let mut opt = DistOpt::new(Sgd::new(0.05), &params, &world).unwrap();
    for step in 0..10 {
        if (world.rank(), step) == FAILS {
            let gpu = Gpu::from_device(world.device()).unwrap();
            gpu.launch(KERNELS, "wild", LaunchGrid::one_block(1), &[KernelArg::U64(64)]).unwrap();
        }
        let result = loss().map_err(Into::into).and_then(|loss| opt.backward_and_update(&loss));
        if let Err(error) = result {
            assert_eq!(step, FAILS.1, "{error}");
            eprintln!("step {step} failed: {error}");
            // As `main` of a program that returns the error.
            drop((opt, layer, params, xs, world));
            std::process::exit(1);
        }
    }
}

#[test]
fn a_device_that_has_failed_is_an_error_of_all_ranks() {
    if gpu().is_none() {
        return;
    }
    // The deadline of an operation is later than the end of the test.
    let mut ranks = RanksOf::test("failed_device::training_main")
        .env("CANDELABRUM_DEVICE", "cuda:0")
        .env("CANDELABRUM_TIMEOUT", 600)
        .env("SOFTGPU_STICKY", 1)
        .limit(Duration::from_secs(60));
    for rank in 0..2 {
        ranks = ranks.env_of(rank, "NCCL_HOSTID", format!("host-{rank}"));
    }
    let outputs = ranks.run(2);
    for output in &outputs {
        assert_eq!(output.code, Some(1), "{outputs:#?}");
        assert!(output.text.contains("step 3 failed: "), "{outputs:#?}");
    }
    assert!(outputs[1].text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{outputs:#?}");
    assert!(outputs[0].text.contains("rank 1"), "{outputs:#?}");
}
