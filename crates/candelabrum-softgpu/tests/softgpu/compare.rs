//! The same operation on both devices.

use candle_core::{DType, Device, Result, Tensor};

/// The software GPU, with candle's default stream.
pub(crate) fn gpu() -> Device {
    Device::new_cuda(0).expect("the software GPU: run these tests by `cargo xtask gpu-test`")
}

/// Panics unless both tensors have the same shape and type, and all elements are close: their
/// difference is at most `tolerance` times (1 + the size of the CPU's element).
pub(crate) fn assert_close(name: &str, cpu: &Tensor, gpu: &Tensor, tolerance: f64) {
    assert_eq!((cpu.dims(), cpu.dtype()), (gpu.dims(), gpu.dtype()), "{name}");
    let numbers = |t: &Tensor| -> Result<Vec<f64>> {
        t.to_device(&Device::Cpu)?.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
    };
    let (a, b) = (numbers(cpu).expect("numbers"), numbers(gpu).expect("numbers"));
    for (i, (x, y)) in a.iter().zip(&b).enumerate() {
        let difference = (x - y).abs() / (1.0 + x.abs());
        // A NaN is not within the tolerance.
        assert!(difference <= tolerance, "{name}: element {i} is {x} on the CPU, {y} on the GPU");
    }
}

/// Calls the function for both devices and compares.
pub(crate) fn both(
    name: &str,
    tolerance: f64,
    gpu: &Device,
    f: impl Fn(&Device) -> Result<Tensor>,
) {
    let on = |device: &Device| f(device).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_close(name, &on(&Device::Cpu), &on(gpu), tolerance);
}

/// Numbers between -1 and 1 that are the same on every device.
pub(crate) fn numbers(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    let all: Vec<f32> =
        (0..count).map(|i| ((i * 7919 + 13) % 2003) as f32 / 1001.5 - 1.0).collect();
    Tensor::from_vec(all, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
}
