//! The values of this package are those of candle-nn.

use candelabrum_compat as ours;
use candelabrum_testkit::uniform;
use candle_core::{DType, Device, Module, Result, Tensor};

fn noise(shape: &[usize], seed: u64) -> Tensor {
    uniform(shape, seed, -2.0, 2.0, DType::F32).unwrap()
}

#[track_caller]
fn assert_same(ours: Result<Tensor>, candles: Result<Tensor>) {
    let (ours, candles) = (ours.unwrap(), candles.unwrap());
    assert_eq!(ours.dims(), candles.dims());
    let apart = (ours - candles).unwrap().abs().unwrap().max_all().unwrap();
    let apart = apart.to_scalar::<f32>().unwrap();
    assert!(apart < 1e-5, "{apart}");
}

#[test]
fn functions() {
    let (xs, weight, bias) = (noise(&[2, 3, 4, 6], 1), noise(&[6], 2), noise(&[6], 3));
    assert_same(ours::ops::softmax_last_dim(&xs), candle_nn::ops::softmax_last_dim(&xs));
    assert_same(ours::ops::softmax(&xs, 3), candle_nn::ops::softmax(&xs, 3));
    assert_same(ours::ops::softmax(&xs, 1), candle_nn::ops::softmax(&xs, 1));
    assert_same(ours::ops::log_softmax(&xs, 3), candle_nn::ops::log_softmax(&xs, 3));
    assert_same(ours::ops::silu(&xs), candle_nn::ops::silu(&xs));
    assert_same(ours::ops::sigmoid(&xs), candle_nn::ops::sigmoid(&xs));
    assert_same(
        ours::ops::rms_norm(&xs, &weight, 1e-5),
        candle_nn::ops::rms_norm(&xs, &weight, 1e-5),
    );
    assert_same(
        ours::ops::layer_norm(&xs, &weight, &bias, 1e-5),
        candle_nn::ops::layer_norm(&xs, &weight, &bias, 1e-5),
    );
    let angles = noise(&[4, 3], 4);
    let (cos, sin) = (angles.cos().unwrap(), angles.sin().unwrap());
    type Rotation = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;
    let rotations: [(Rotation, Rotation); 3] = [
        (ours::rotary_emb::rope, candle_nn::rotary_emb::rope),
        (ours::rotary_emb::rope_i, candle_nn::rotary_emb::rope_i),
        (ours::rotary_emb::rope_thd, candle_nn::rotary_emb::rope_thd),
    ];
    let (cos4, sin4) = (cos.narrow(0, 0, 3).unwrap(), sin.narrow(0, 0, 3).unwrap());
    for ((rope, candles), by_steps_first) in rotations.into_iter().zip([false, false, true]) {
        let (cos, sin) = if by_steps_first { (&cos4, &sin4) } else { (&cos, &sin) };
        assert_same(rope(&xs, cos, sin), candles(&xs, cos, sin));
    }
}

#[test]
fn losses() {
    let (logits, classes) = (noise(&[3, 5], 5), Tensor::new(&[2_u32, 0, 4], &Device::Cpu).unwrap());
    assert_same(
        ours::loss::cross_entropy(&logits, &classes),
        candle_nn::loss::cross_entropy(&logits, &classes),
    );
    let answers = logits.ge(0.5).unwrap().to_dtype(DType::F32).unwrap();
    assert_same(
        ours::loss::binary_cross_entropy_with_logit(&logits, &answers),
        candle_nn::loss::binary_cross_entropy_with_logit(&logits, &answers),
    );
    // candle's loss of a logit of 200 is infinite.
    let large = Tensor::new(&[200_f32], &Device::Cpu).unwrap();
    let wrong = Tensor::new(&[0_f32], &Device::Cpu).unwrap();
    let loss = ours::loss::binary_cross_entropy_with_logit(&large, &wrong).unwrap();
    assert_eq!(loss.to_scalar::<f32>().unwrap(), 200.0);
}

#[test]
fn layers() {
    let xs = noise(&[2, 4, 6, 5], 6);
    let (weight, bias) = (noise(&[8, 2, 3, 3], 7), Some(noise(&[8], 8)));
    let config =
        ours::Conv2dConfig { padding: 1, stride: 2, groups: 2, ..ours::Conv2dConfig::default() };
    assert_same(
        ours::Conv2d::new(weight.clone(), bias.clone(), config).forward(&xs),
        candle_nn::Conv2d::new(weight, bias, config).forward(&xs),
    );
    let (weight, bias) = (noise(&[8, 4, 3], 9), None);
    let config = ours::Conv1dConfig { dilation: 2, ..ours::Conv1dConfig::default() };
    let lines = xs.flatten_from(2).unwrap();
    assert_same(
        ours::Conv1d::new(weight.clone(), bias.clone(), config).forward(&lines),
        candle_nn::Conv1d::new(weight, bias, config).forward(&lines),
    );
    let (weight, bias) = (noise(&[4], 10), noise(&[4], 11));
    assert_same(
        ours::GroupNorm::new(weight.clone(), bias.clone(), 4, 2, 1e-5).unwrap().forward(&xs),
        candle_nn::GroupNorm::new(weight, bias, 4, 2, 1e-5).unwrap().forward(&xs),
    );
    let (weight, bias) = (noise(&[7, 5], 12), Some(noise(&[7], 13)));
    assert_same(
        ours::Linear::new(weight.clone(), bias.clone()).forward(&xs),
        candle_nn::Linear::new(weight.clone(), bias).forward(&xs),
    );
    let rows = Tensor::new(&[[1_u32, 0], [6, 3]], &Device::Cpu).unwrap();
    assert_same(
        ours::Embedding::new(weight.clone(), 5).forward(&rows),
        candle_nn::Embedding::new(weight, 5).forward(&rows),
    );
}

#[test]
fn bad_input_is_an_error() {
    let xs = noise(&[2, 4, 6], 14);
    assert!(ours::GroupNorm::new(noise(&[4], 1), noise(&[4], 2), 4, 3, 1e-5).is_err());
    let norm = ours::GroupNorm::new(noise(&[6], 1), noise(&[6], 2), 6, 2, 1e-5).unwrap();
    let error = norm.forward(&xs).unwrap_err().to_string();
    assert!(error.contains("GroupNorm of 6 channels on an input of 4"), "{error}");
    assert!(norm.forward(&noise(&[2, 6], 3)).is_err());
    let error = ours::ops::softmax(&xs, 3).unwrap_err().to_string();
    assert!(error.contains("softmax"), "{error}");
    let angles = noise(&[2, 3], 4);
    assert!(ours::rotary_emb::rope(&xs.unsqueeze(0).unwrap(), &angles, &angles).is_err());
    assert!(ours::loss::cross_entropy(&xs, &angles).is_err());
}

/// candle's own layer gives other numbers here (0.11.1, on the CPU).
#[test]
fn a_linear_layer_of_a_transposed_input_is_that_of_its_copy() {
    let layer = ours::Linear::new(noise(&[7, 5], 1), None);
    let transposed = noise(&[4, 5, 6], 2).t().unwrap();
    let copy = transposed.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let copy = Tensor::from_vec(copy, (24, 5), &Device::Cpu).unwrap();
    let expected = layer.forward(&copy).unwrap().reshape((4, 6, 7));
    assert_same(layer.forward(&transposed), expected);
}

/// Shapes and types that candle's layers take beside the usual ones.
#[test]
fn layers_take_what_candles_take() {
    let xs = noise(&[2, 3, 5], 1);
    let (weight, bias) = (noise(&[4, 5], 2), Some(noise(&[1, 4], 3)));
    assert_same(
        ours::Linear::new(weight.clone(), bias.clone()).forward(&xs),
        candle_nn::Linear::new(weight, bias).forward(&xs),
    );
    let (one, row) = (noise(&[1], 4), noise(&[1, 1, 5], 5));
    for weight in [&one, &row] {
        assert_same(
            ours::LayerNorm::new_no_bias(weight.clone(), 1e-5).forward(&xs),
            candle_nn::LayerNorm::new_no_bias(weight.clone(), 1e-5).forward(&xs),
        );
        assert_same(
            ours::LayerNorm::rms_norm(weight.clone(), 1e-5).forward(&xs),
            candle_nn::LayerNorm::rms_norm(weight.clone(), 1e-5).forward(&xs),
        );
    }
    let half = |tensor: &Tensor| tensor.to_dtype(DType::BF16).unwrap();
    let rows = Tensor::new(&[[1_u32, 0], [2, 2]], &Device::Cpu).unwrap();
    let table = half(&noise(&[3, 5], 6));
    let got = ours::Embedding::new(table.clone(), 5).forward(&rows).unwrap();
    assert_eq!(got.dtype(), DType::BF16);
    let wide = |tensor: Tensor| tensor.to_dtype(DType::F32);
    let candles = candle_nn::Embedding::new(table, 5).forward(&rows).unwrap();
    assert_same(wide(got), wide(candles));
    let (logits, answers) = (half(&noise(&[4], 7)), half(&noise(&[4], 8).abs().unwrap()));
    let loss = ours::loss::binary_cross_entropy_with_logit(&logits, &answers).unwrap();
    assert_eq!(loss.dtype(), DType::BF16);
}
