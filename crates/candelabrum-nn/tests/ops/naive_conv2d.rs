//! conv2d compared with its definition, written as seven loops.

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{Conv2dConfig, conv2d};
use candelabrum_testkit::assert_close;
use candle_core::{Device, Result, Tensor, Var};
use proptest::prelude::*;

use crate::random;

fn naive(
    xs: &Tensor,
    weight: &Tensor,
    bias: &Tensor,
    config: Conv2dConfig,
    relu: bool,
) -> Result<Tensor> {
    let (n, c, h, w) = xs.dims4()?;
    let (o, c_group, kh, kw) = weight.dims4()?;
    let Conv2dConfig { stride, padding, dilation, groups } = config;
    let oh = (h + 2 * padding.0 - dilation.0 * (kh - 1) - 1) / stride.0 + 1;
    let ow = (w + 2 * padding.1 - dilation.1 * (kw - 1) - 1) / stride.1 + 1;
    let x = xs.flatten_all()?.to_vec1::<f64>()?;
    let k = weight.flatten_all()?.to_vec1::<f64>()?;
    let b = bias.to_vec1::<f64>()?;
    let mut y = Vec::new();
    for (n, o) in (0..n).flat_map(|n| (0..o).map(move |o| (n, o))) {
        let first_channel = o / (weight.dim(0)? / groups) * c_group;
        for (oy, ox) in (0..oh).flat_map(|oy| (0..ow).map(move |ox| (oy, ox))) {
            let mut sum = b[o];
            for (i, ky, kx) in (0..c_group * kh * kw).map(|i| (i / kh / kw, i / kw % kh, i % kw)) {
                let iy = (oy * stride.0 + ky * dilation.0).checked_sub(padding.0);
                let ix = (ox * stride.1 + kx * dilation.1).checked_sub(padding.1);
                if let (Some(iy), Some(ix)) = (iy, ix)
                    && iy < h
                    && ix < w
                {
                    sum += x[((n * c + first_channel + i) * h + iy) * w + ix]
                        * k[((o * c_group + i) * kh + ky) * kw + kx];
                }
            }
            y.push(if relu { sum.max(0.0) } else { sum });
        }
    }
    Tensor::from_vec(y, (n, o, oh, ow), &Device::Cpu)
}

/// The result and the gradients of input, weight and bias for `dys`.
fn step(
    [xs, weight, bias]: [&Tensor; 3],
    config: Conv2dConfig,
    activation: Option<Activation>,
    dys: &Tensor,
) -> Result<[Tensor; 4]> {
    let [xs, weight, bias] = [xs, weight, bias].map(Var::from_tensor);
    let [xs, weight, bias] = [xs?, weight?, bias?];
    let ys = conv2d(&xs, &weight, Some(&bias), config, activation)?;
    let mut grads = (&ys * dys)?.sum_all()?.backward()?;
    let [dxs, dw, db] = [&xs, &weight, &bias].map(|var| grads.remove(var).expect("a gradient"));
    Ok([ys.detach(), dxs, dw, db])
}

/// Compares a convolution of a batch with those of its images.
fn check_images(
    (batch, groups, in_per_group, out_per_group): (usize, usize, usize, usize),
    kernel: (usize, usize),
    (height, width): (usize, usize),
    config: Conv2dConfig,
    activation: Option<Activation>,
    seed: u64,
) -> Result<()> {
    let xs = random((batch, groups * in_per_group, height, width), seed)?;
    let weight = random((groups * out_per_group, in_per_group, kernel.0, kernel.1), seed + 1)?;
    let bias = random(groups * out_per_group, seed + 2)?;
    let shape = conv2d(&xs, &weight, None, config, None)?.shape().clone();
    let dys = random(shape, seed + 3)?;
    let whole = step([&xs, &weight, &bias], config, activation, &dys)?;
    let image = |n: usize| {
        step([&xs.narrow(0, n, 1)?, &weight, &bias], config, activation, &dys.narrow(0, n, 1)?)
    };
    let images = (0..batch).map(image).collect::<Result<Vec<[Tensor; 4]>>>()?;
    for (part, whole) in whole.iter().enumerate() {
        let parts: Vec<&Tensor> = images.iter().map(|image| &image[part]).collect();
        let expected = match part {
            0 | 1 => Tensor::cat(&parts, 0)?,
            _ => Tensor::stack(&parts, 0)?.sum(0)?,
        };
        assert_close(whole, &expected, 1e-11, 1e-11);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A product contains many small images side by side, but one image alone.
    #[test]
    fn a_batch_is_its_images(
        (batch, groups, in_per_group, out_per_group) in (8usize..40, 1usize..3, 1usize..20, 1usize..5),
        kernel in (1usize..4, 1usize..4),
        (height, width) in (1usize..6, 1usize..6),
        stride in (1usize..3, 1usize..3),
        padding in (0usize..3, 0usize..3),
        dilation in (1usize..3, 1usize..3),
        activation in prop_oneof![
            Just(None), Just(Some(Activation::Relu)), Just(Some(Activation::Gelu))
        ],
        seed in 0u64..1000,
    ) {
        prop_assume!(dilation.0 * (kernel.0 - 1) < height + 2 * padding.0);
        prop_assume!(dilation.1 * (kernel.1 - 1) < width + 2 * padding.1);
        let config = Conv2dConfig { stride, padding, dilation, groups };
        let channels = (batch, groups, in_per_group, out_per_group);
        check_images(channels, kernel, (height, width), config, activation, seed).unwrap();
    }

    /// A 1 × 1 kernel reads whole planes of small images.
    #[test]
    fn a_batch_is_its_images_for_one_pixel_kernels(
        channels in (8usize..40, 1usize..3, 1usize..20, 1usize..20),
        size in (1usize..8, 1usize..8),
        relu: bool,
        seed in 0u64..1000,
    ) {
        let config = Conv2dConfig { groups: channels.1, ..Conv2dConfig::default() };
        let activation = relu.then_some(Activation::Relu);
        check_images(channels, (1, 1), size, config, activation, seed).unwrap();
    }

    #[test]
    fn conv2d_is_the_direct_sum(
        (batch, groups, in_per_group, out_per_group) in (prop_oneof![1usize..4, 8usize..20], 1usize..4, 1usize..4, 1usize..4),
        kernel in (1usize..5, 1usize..5),
        extra in (0usize..8, 0usize..8),
        stride in (1usize..4, 1usize..4),
        padding in (0usize..4, 0usize..4),
        dilation in (1usize..4, 1usize..4),
        relu: bool,
        seed in 0u64..1000,
    ) {
        // At least as large as the window without its padding, plus `extra`.
        let size = |kernel: usize, dilation: usize, padding: usize, extra: usize| {
            (dilation * (kernel - 1) + 1).saturating_sub(2 * padding).max(1) + extra
        };
        let height = size(kernel.0, dilation.0, padding.0, extra.0);
        let width = size(kernel.1, dilation.1, padding.1, extra.1);
        let xs = random((batch, groups * in_per_group, height, width), seed).unwrap();
        let weight = random((groups * out_per_group, in_per_group, kernel.0, kernel.1), seed + 1);
        let weight = weight.unwrap();
        let bias = random(groups * out_per_group, seed + 2).unwrap();
        let config = Conv2dConfig { stride, padding, dilation, groups };
        let activation = relu.then_some(Activation::Relu);
        let expected = naive(&xs, &weight, &bias, config, relu).unwrap();
        let actual = conv2d(&xs, &weight, Some(&bias), config, activation).unwrap();
        assert_close(&actual, &expected, 1e-12, 1e-12);
    }

    #[test]
    fn convolutions_by_tiles_are_the_direct_sum(
        batch in 1usize..6,
        (inputs, outputs) in (16usize..40, 16usize..40),
        (height, width) in (3usize..16, 3usize..24),
        padding in (0usize..3, 0usize..3),
        relu: bool,
        seed in 0u64..1000,
    ) {
        let xs = random((batch, inputs, height, width), seed).unwrap();
        let weight = random((outputs, inputs, 3, 3), seed + 1).unwrap();
        let bias = random(outputs, seed + 2).unwrap();
        let config = Conv2dConfig { padding, ..Conv2dConfig::default() };
        let activation = relu.then_some(Activation::Relu);
        let expected = naive(&xs, &weight, &bias, config, relu).unwrap();
        let actual = conv2d(&xs, &weight, Some(&bias), config, activation).unwrap();
        assert_close(&actual, &expected, 1e-11, 1e-11);
    }
}
