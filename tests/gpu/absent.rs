//! A program that was built for GPUs says why it has none, and computes on the CPU or ends.

use candelabrum::dist::launch::DeviceChoice;
use candelabrum::prelude::*;
use candelabrum_testkit::ranks::{RanksOf, is_rank};

/// The first variable hides the GPUs of a real driver. Of the others, one hides that of the software GPU, and one CUDA's
/// libraries: on a machine with a driver the library is found nevertheless, but no GPU is visible.
#[test]
fn without_a_gpu_auto_is_the_cpu_and_cuda_is_an_error() {
    if !is_rank() {
        let alone = RanksOf::new(without_a_gpu_auto_is_the_cpu_and_cuda_is_an_error);
        let alone = alone.env("CUDA_VISIBLE_DEVICES", "");
        alone.clone().env("SOFTGPU_COUNT", 0).run_all_good(1);
        alone.env("LD_LIBRARY_PATH", "").run_all_good(1);
        return;
    }
    let world = World::on(DeviceChoice::Auto).unwrap();
    assert!(world.device().is_cpu());
    assert_eq!((world.device_name().as_str(), world.backend()), ("cpu", "single"));
    let why = world.why_no_gpu().unwrap();
    assert!(why.starts_with("no GPU: "), "{why}");
    assert_eq!(World::on(DeviceChoice::Cpu).unwrap().why_no_gpu(), None);
    for choice in ["cuda", "cuda:1"] {
        let error = World::on(choice.parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains(choice) && error.contains("GPU"), "{error}");
    }
}
