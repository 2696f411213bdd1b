//! torchvision's `resnet18` in candle.

use candle_core::{D, Module, Result, Tensor};
use candle_nn::{Conv2dConfig, Func, VarBuilder, batch_norm, conv2d_no_bias, func, linear};

pub(super) fn resnet18(vb: &VarBuilder<'_>) -> Result<Func<'static>> {
    let stem = conv_norm([3, 64, 7], 2, vb, ["conv1", "bn1"])?;
    let mut blocks = Vec::new();
    let mut inputs = 64;
    for (stage, channels) in [(1, 64), (2, 128), (3, 256), (4, 512)] {
        for index in 0..2 {
            blocks.push(block(inputs, channels, &vb.pp(format!("layer{stage}.{index}")))?);
            inputs = channels;
        }
    }
    let fc = linear(512, 10, vb.pp("fc"))?;
    Ok(func(move |xs| {
        let ys = stem.forward(xs)?.relu()?; // (N, 64, H/2, W/2)
        let ys = max_pool(&max_pool(&ys, 2)?, 3)?; // (N, 64, H/4, W/4)
        let ys = blocks.iter().try_fold(ys, |ys, block| block.forward(&ys))?;
        fc.forward(&ys.mean(D::Minus1)?.mean(D::Minus1)?)
    }))
}

/// A block halves the size of the images if it doubles the channels.
fn block(inputs: usize, channels: usize, vb: &VarBuilder<'_>) -> Result<Func<'static>> {
    let stride = channels / inputs;
    let first = conv_norm([inputs, channels, 3], stride, vb, ["conv1", "bn1"])?;
    let second = conv_norm([channels, channels, 3], 1, vb, ["conv2", "bn2"])?;
    let shortcut = match stride {
        1 => func(|xs| Ok(xs.clone())),
        _ => conv_norm([inputs, channels, 1], stride, &vb.pp("downsample"), ["0", "1"])?,
    };
    Ok(func(move |xs| {
        let ys = second.forward(&first.forward(xs)?.relu()?)?;
        (ys + shortcut.forward(xs)?)?.relu()
    }))
}

/// A convolution with its inputs, outputs and kernel, and its normalisation. The padding keeps the
/// size at stride 1.
fn conv_norm(
    [inputs, outputs, kernel]: [usize; 3],
    stride: usize,
    vb: &VarBuilder<'_>,
    names: [&str; 2],
) -> Result<Func<'static>> {
    let config = Conv2dConfig { padding: kernel / 2, stride, ..Default::default() };
    let conv = conv2d_no_bias(inputs, outputs, kernel, config, vb.pp(names[0]))?;
    let norm = batch_norm(outputs, 1e-5, vb.pp(names[1]))?;
    Ok(func(move |xs| norm.forward_train(&conv.forward(xs)?)))
}

/// One direction of the 3x3 max-pool with stride 2 and padding 1.
///
/// candle's own max-pool has no padding, and no gradient for overlapping windows. So this takes the
/// maximum of the even places, the odd places, and the even places shifted by one window. All
/// inputs are at least 0, so the padding can be zeros.
fn max_pool(xs: &Tensor, dim: usize) -> Result<Tensor> {
    let half = xs.dim(dim)? / 2;
    let padded = xs.pad_with_zeros(dim, 1, 1)?;
    let mut pairs = padded.dims().to_vec(); // (.., half + 1, 2, ..)
    pairs.splice(dim..=dim, [half + 1, 2]);
    let pairs = padded.reshape(pairs)?;
    let even = pairs.narrow(dim + 1, 0, 1)?.squeeze(dim + 1)?;
    let odd = pairs.narrow(dim + 1, 1, 1)?.squeeze(dim + 1)?;
    let middle = even.narrow(dim, 0, half)?.maximum(&odd.narrow(dim, 0, half)?)?;
    middle.maximum(&even.narrow(dim, 1, half)?)
}

#[cfg(test)]
mod tests {
    use candelabrum::nn::layers::MaxPool2d;
    use candle_core::{Device, Var};

    use super::*;

    #[test]
    fn the_pooling_is_the_maximum_of_three_by_three() -> Result<()> {
        let values: Vec<f32> = (0..36_u32).map(|i| (i * 7 % 37) as f32).collect();
        let xs = Var::from_tensor(&Tensor::from_vec(values, (1, 1, 6, 6), &Device::Cpu)?)?;
        let ys = max_pool(&max_pool(&xs, 2)?, 3)?;
        let expected = MaxPool2d::new(3).stride(2).padding(1).forward(&xs)?;
        let vec = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        assert_eq!(vec(&ys)?, vec(&expected)?);
        // Every window returns one unit of gradient.
        let grads = ys.sum_all()?.backward()?;
        let sum = grads.get(&xs).expect("it is differentiable").sum_all()?;
        assert_eq!(sum.to_scalar::<f32>()?, 9.0);
        Ok(())
    }
}
