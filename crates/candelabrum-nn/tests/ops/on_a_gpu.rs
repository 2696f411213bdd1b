//! What the comparisons of `composites` do not show: labels and indices that are not checked on a
//! GPU, and results with the same bits as on the CPU. Without a GPU these tests say that they
//! were left out.

use candelabrum_nn::LossWeight;
use candelabrum_nn::ops::{
    AttentionConfig, CrossEntropyConfig, Rotary, attention, cross_attention, dropout, embedding,
    last_step, layer_norm, log_softmax, rms_norm, softmax, softmax_cross_entropy,
    softmax_cross_entropy_with, with_composites,
};
use candelabrum_testkit::{assert_close, integers};
use candle_core::{DType, Device, Result, Tensor, Var};

use crate::behaviour::message;
use crate::composites::gpu;
use crate::random;

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
        let weight = LossWeight::from_loss(&loss).expect("a cross entropy has a weight");
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

#[test]
fn the_last_step_of_no_sequence() -> Result<()> {
    let Some(gpu) = gpu_or_say() else { return Ok(()) };
    let nothing = Tensor::zeros((0, 3, 2), DType::F32, &gpu)?;
    assert_eq!(last_step(&nothing)?.dims(), [0, 2]);
    Ok(())
}

/// The elements as a tensor that begins one number after the begin of its memory.
fn shifted(xs: &Tensor) -> Result<Tensor> {
    let values = xs.flatten_all()?;
    let all = Tensor::cat(&[&Tensor::zeros(1, xs.dtype(), xs.device())?, &values], 0)?;
    all.narrow(0, 1, values.elem_count())?.reshape(xs.shape())
}

#[test]
fn attention_reads_operands_at_any_address() -> Result<()> {
    let Some(gpu) = gpu_or_say() else { return Ok(()) };
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for rotary in [None, Some(Rotary::default())] {
            let config = AttentionConfig { causal: true, rotary, ..AttentionConfig::new(2) };
            let qkv = random((2, 70, 48), 1)?.to_dtype(dtype)?.to_device(&gpu)?;
            let mask = random((70, 70), 2)?.to_dtype(dtype)?.to_device(&gpu)?;
            let run = |qkv: &Tensor, mask: &Tensor| {
                let ys = attention(qkv, Some(mask), config)?.to_dtype(DType::F32)?;
                bits(&ys)
            };
            let expected = run(&qkv, &mask)?;
            assert!(run(&shifted(&qkv)?, &shifted(&mask)?)? == expected, "{dtype:?} {rotary:?}");
        }
    }
    Ok(())
}

#[test]
fn attention_of_parts_of_a_tensor_is_that_of_the_whole() -> Result<()> {
    let Some(gpu) = gpu_or_say() else { return Ok(()) };
    let qkv = random((2, 67, 24), 1)?.to_dtype(DType::F32)?.to_device(&gpu)?;
    let config = AttentionConfig { kv_heads: 1, ..AttentionConfig::new(4) };
    let [q, k, v] = [(0, 16), (16, 4), (20, 4)].map(|(first, len)| qkv.narrow(2, first, len));
    let parts = cross_attention(&q?, &k?, &v?, None, config)?;
    assert!(bits(&parts)? == bits(&attention(&qkv, None, config)?)?);
    Ok(())
}

#[test]
fn a_query_that_sees_no_key_gives_zeros_and_nan_is_not_hidden() -> Result<()> {
    let Some(gpu) = gpu_or_say() else { return Ok(()) };
    let low = f32::NEG_INFINITY;
    // Query 1 sees no key, and nobody sees key 2.
    let mask = Tensor::new(&[[0.0, 0.0, low], [low; 3], [0.0, low, low]], &gpu)?;
    for causal in [false, true] {
        let config = AttentionConfig { causal, ..AttentionConfig::new(1) };
        let qkv = random((1, 3, 6), 1)?.to_dtype(DType::F32)?.to_device(&gpu)?;
        let qkv = Var::from_tensor(&qkv)?;
        let ys = attention(&qkv, Some(&mask), config)?;
        assert_eq!(ys.get(0)?.get(1)?.to_vec1::<f32>()?, [0.0; 2]);
        let grads = ys.sum_all()?.backward()?;
        let gradient = grads.get(&qkv).expect("a gradient").get(0)?.to_vec2::<f32>()?;
        assert!(gradient.iter().flatten().all(|g| g.is_finite()), "{gradient:?}");
        assert_eq!(gradient[1][..2], [0.0; 2], "the query that sees nothing");
        assert_eq!(gradient[2][2..], [0.0; 4], "the key that nobody sees, and its value");
        assert_ne!(gradient[0][4..], [0.0; 2], "a value that is seen");
    }
    let config = AttentionConfig { causal: true, ..AttentionConfig::new(2) };
    let large = (random((1, 70, 12), 1)?.to_dtype(DType::F32)? * 1e4)?.to_device(&gpu)?;
    let values = |xs: &Tensor| attention(xs, None, config)?.flatten_all()?.to_vec1::<f32>();
    assert!(values(&large)?.iter().all(|y| y.is_finite()));
    assert!(values(&(&large * f64::NAN)?)?.iter().all(|y| y.is_nan()));
    // A query that is no number spoils its own result, and no other one.
    let mut rows = random((1, 70, 12), 1)?.to_dtype(DType::F32)?.get(0)?.to_vec2::<f32>()?;
    rows[66][0] = f32::NAN; // the first head
    let ys = attention(&Tensor::new(rows, &gpu)?.unsqueeze(0)?, None, config)?;
    for (row, ys) in ys.get(0)?.to_vec2::<f32>()?.iter().enumerate() {
        let is_nan: Vec<bool> = ys.iter().map(|y| y.is_nan()).collect();
        assert_eq!(is_nan, [row == 66, row == 66, false, false], "row {row}");
    }
    Ok(())
}
