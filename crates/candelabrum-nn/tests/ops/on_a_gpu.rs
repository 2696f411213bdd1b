//! What the comparisons of `composites` do not show: labels and indices that are not checked on a
//! GPU, and results with the same bits as on the CPU. Without a GPU these tests say that they
//! were left out.

use candelabrum_nn::LossWeight;
use candelabrum_nn::ops::{
    CrossEntropyConfig, dropout, embedding, layer_norm, log_softmax, rms_norm, softmax,
    softmax_cross_entropy, softmax_cross_entropy_with, with_composites,
};
use candelabrum_testkit::{assert_close, integers};
use candle_core::{DType, Device, Result, Tensor, Var};

use crate::behaviour::message;
use crate::random;
use crate::table::gpu;

/// The first GPU. Says so if there is none. With `REQUIRE_GPUS` that is a failure.
#[expect(clippy::print_stdout, reason = "says that the test checked nothing")]
fn gpu_or_say() -> Option<Device> {
    let gpu = gpu();
    if gpu.is_none() {
        println!("left out: no GPU here, or a build without the feature `cuda`");
    }
    gpu
}

fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    let values = tensor.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.into_iter().map(f32::to_bits).collect())
}

/// Runs `f` with kernels and with composites.
fn both(f: impl Fn() -> Result<()>) -> Result<()> {
    f()?;
    with_composites(f)
}

#[test]
fn a_class_out_of_range_makes_the_loss_nan() -> Result<()> {
    let Some(gpu) = gpu_or_say() else { return Ok(()) };
    let logits = random((3, 4), 1)?.to_dtype(DType::F32)?.to_device(&gpu)?;
    both(|| {
        for label in [-1i64, 4, i64::MAX, i64::MIN] {
            let labels = Tensor::new(&[0, label, 3], &gpu)?;
            let loss = softmax_cross_entropy(&logits, &labels)?;
            assert!(loss.to_scalar::<f32>()?.is_nan(), "label {label}");
            // An ignored row may have any label.
            let config = CrossEntropyConfig { ignore_index: Some(label), ..Default::default() };
            let loss = softmax_cross_entropy_with(&logits, &labels, config)?;
            assert!(loss.to_scalar::<f32>()?.is_finite(), "label {label}");
        }
        let labels = Tensor::new(&[0u32, u32::MAX, 3], &gpu)?;
        assert!(softmax_cross_entropy(&logits, &labels)?.to_scalar::<f32>()?.is_nan());
        Ok(())
    })
}

#[test]
fn the_loss_of_ignored_rows_only_is_zero() -> Result<()> {
    let Some(gpu) = gpu_or_say() else { return Ok(()) };
    let logits = random((2, 4), 1)?.to_dtype(DType::F32)?.to_device(&gpu)?;
    let labels = Tensor::new(&[7u8, 7], &gpu)?;
    let config = CrossEntropyConfig { ignore_index: Some(7), label_smoothing: 0.1 };
    both(|| {
        let loss = softmax_cross_entropy_with(&logits, &labels, config)?;
        assert_eq!(loss.to_scalar::<f32>()?, 0.0);
        let weight = LossWeight::of(&loss).expect("a cross entropy has a weight");
        assert_eq!((weight.value()?, weight.varies()), (0.0, true));
        Ok(())
    })
}

#[test]
fn an_index_out_of_range_gives_a_row_of_nan_and_changes_no_gradient() -> Result<()> {
    let Some(gpu) = gpu_or_say() else { return Ok(()) };
    let table = random((3, 2), 1)?.to_dtype(DType::F32)?.to_device(&gpu)?;
    let table = Var::from_tensor(&table)?;
    for bad in [3i64, -1, i64::MAX, i64::MIN] {
        let indices = Tensor::new(&[1, bad, 0], &gpu)?;
        both(|| {
            let rows = embedding(&table, &indices, None)?.to_vec2::<f32>()?;
            assert!(rows[1].iter().all(|x| x.is_nan()), "index {bad}");
            let expected = table.to_vec2::<f32>()?;
            assert_eq!([&rows[0], &rows[2]], [&expected[1], &expected[0]], "index {bad}");
            Ok(())
        })?;
        let grads = embedding(&table, &indices, None)?.sum_all()?.backward()?;
        let grad = grads.get(&table).expect("the table has a gradient").to_vec2::<f32>()?;
        assert_eq!(grad, [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]], "index {bad}");
    }
    Ok(())
}

#[test]
fn labels_and_indices_on_the_cpu_are_checked_for_a_gpu() -> Result<()> {
    let Some(gpu) = gpu_or_say() else { return Ok(()) };
    let table = random((3, 2), 1)?.to_dtype(DType::F32)?;
    let on_gpu = table.to_device(&gpu)?;
    let good = Tensor::new(&[2u32, 0, 1], &Device::Cpu)?;
    assert_eq!(bits(&embedding(&on_gpu, &good, None)?)?, bits(&embedding(&table, &good, None)?)?);
    let labels = Tensor::new(&[1u32, 0, 1], &Device::Cpu)?;
    let loss = softmax_cross_entropy(&on_gpu, &labels)?.to_scalar::<f32>()?;
    assert!((loss - softmax_cross_entropy(&table, &labels)?.to_scalar::<f32>()?).abs() < 1e-6);
    let error = message(embedding(&on_gpu, &Tensor::new(&[0u32, 3], &Device::Cpu)?, None));
    assert_eq!(error, "embedding: index 3 at 1, but there are 3 rows");
    let error = message(softmax_cross_entropy(&on_gpu, &good));
    assert_eq!(error, "softmax_cross_entropy: class 2 in row 0, but there are 2 classes");
    Ok(())
}

#[test]
fn the_gradient_of_a_table_has_the_cpus_bits() -> Result<()> {
    let Some(gpu) = gpu_or_say() else { return Ok(()) };
    // A tile of the sort has 2048 positions.
    for positions in [1, 2, 3, 100, 2048, 2049, 5000, 9000] {
        let rows = 37;
        let indices = integers(positions, 2, rows)?.to_dtype(DType::U32)?;
        for padding in [None, Some(5)] {
            let gradient = |device: &Device| {
                let table = random((rows as usize, 3), 1)?.to_dtype(DType::F32)?;
                let table = Var::from_tensor(&table.to_device(device)?)?;
                let dys = random((positions, 3), 3)?.to_dtype(DType::F32)?.to_device(device)?;
                let ys = embedding(&table, &indices.to_device(device)?, padding)?;
                let grads = (ys * dys)?.sum_all()?.backward()?;
                bits(grads.get(&table).expect("the table has a gradient"))
            };
            assert!(gradient(&gpu)? == gradient(&Device::Cpu)?, "{positions} positions");
        }
    }
    Ok(())
}

#[test]
fn dropout_has_the_cpus_bits() -> Result<()> {
    let Some(gpu) = gpu_or_say() else { return Ok(()) };
    let xs = random(70_001, 1)?.to_dtype(DType::F32)?;
    for (p, seed) in [(0.3, 42), (0.9, u64::MAX)] {
        let on_cpu = bits(&dropout(&xs, p, seed)?)?;
        assert!(bits(&dropout(&xs.to_device(&gpu)?, p, seed)?)? == on_cpu, "p {p}");
    }
    Ok(())
}

/// The result of `f` and the gradient of its input for a random gradient of the result, on the CPU
/// and on a GPU.
fn on_both(
    gpu: &Device,
    xs: &Tensor,
    f: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<[[Tensor; 2]; 2]> {
    let pass = |device: &Device| {
        let xs = Var::from_tensor(&xs.to_dtype(DType::F32)?.to_device(device)?)?;
        let ys = f(&xs)?;
        let dys = random(ys.shape(), 9)?.to_dtype(DType::F32)?.to_device(device)?;
        let grads = (&ys * dys)?.sum_all()?.backward()?;
        let dxs = grads.get(&xs).expect("the input has a gradient").to_device(&Device::Cpu)?;
        Ok::<_, candle_core::Error>([ys.detach().to_device(&Device::Cpu)?, dxs])
    };
    Ok([pass(&Device::Cpu)?, pass(gpu)?])
}

#[test]
fn norms_of_odd_rows_are_the_cpus() -> Result<()> {
    let Some(gpu) = gpu_or_say() else { return Ok(()) };
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    // With a large mean, the deviations would have three digits left if the mean were one number.
    let rows = [
        [nan, 0.0, 1.0],
        [inf, 0.0, 1.0],
        [3.0; 3],
        [-1e30, 0.0, 1.0],
        [12345.6789, 12345.7, 12345.6],
    ];
    let rows = Tensor::new(&rows, &Device::Cpu)?;
    let wide = random((2, 5000), 1)?.affine(0.1, 1e4)?;
    for (xs, len) in [(rows, 3), (wide, 5000)] {
        let layer = |xs: &Tensor| layer_norm(xs, &[len], None, None, 1e-5);
        let rms = |xs: &Tensor| rms_norm(xs, &[len], None, 1e-5);
        for f in [&layer as &dyn Fn(&Tensor) -> Result<Tensor>, &rms] {
            let [cpu, on_gpu] = on_both(&gpu, &xs, f)?;
            for (on_gpu, cpu) in on_gpu.iter().zip(&cpu) {
                assert_close(on_gpu, cpu, 1e-6, 1e-6);
            }
        }
    }
    Ok(())
}

#[test]
fn softmax_of_long_rows_is_the_cpus() -> Result<()> {
    let Some(gpu) = gpu_or_say() else { return Ok(()) };
    for classes in [255, 256, 257, 10_000] {
        let xs = random((3, classes), 1)?.affine(8.0, 100.0)?;
        let labels = Tensor::new(&[0u32, classes as u32 - 1, 17], &Device::Cpu)?;
        let config = CrossEntropyConfig { label_smoothing: 0.2, ignore_index: Some(17) };
        let loss =
            |xs: &Tensor| softmax_cross_entropy_with(xs, &labels.to_device(xs.device())?, config);
        for f in [&softmax as &dyn Fn(&Tensor) -> Result<Tensor>, &log_softmax, &loss] {
            let [cpu, on_gpu] = on_both(&gpu, &xs, f)?;
            for (on_gpu, cpu) in on_gpu.iter().zip(&cpu) {
                assert_close(on_gpu, cpu, 1e-6, 1e-5);
            }
        }
    }
    Ok(())
}
