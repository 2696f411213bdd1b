//! torchvision's residual networks in candle.

use candle_core::{D, Module, Result, Tensor};
use candle_nn::{Func, VarBuilder, func, linear};

use super::conv_norm::conv_norm;

/// The kernels of a block's convolutions.
const BASIC: &[usize] = &[3, 3];
const BOTTLENECK: &[usize] = &[1, 3, 1];

pub(crate) fn resnet18(vb: &VarBuilder<'_>, classes: usize) -> Result<Func<'static>> {
    network(vb, 7, [2, 2, 2, 2], BASIC, classes)
}

/// Its stem has a kernel of 3x3 and keeps the size.
pub(crate) fn resnet18_small(vb: &VarBuilder<'_>, classes: usize) -> Result<Func<'static>> {
    network(vb, 3, [2, 2, 2, 2], BASIC, classes)
}

pub(crate) fn resnet50(vb: &VarBuilder<'_>, classes: usize) -> Result<Func<'static>> {
    network(vb, 7, [3, 4, 6, 3], BOTTLENECK, classes)
}

/// A network with the size of its stem's kernel and the number of blocks in each stage.
fn network(
    vb: &VarBuilder<'_>,
    stem: usize,
    counts: [usize; 4],
    kernels: &[usize],
    classes: usize,
) -> Result<Func<'static>> {
    let is_small = stem == 3;
    let stride = if is_small { 1 } else { 2 };
    let stem = conv_norm([3, 64, stem], stride, 1, [vb.pp("conv1"), vb.pp("bn1")])?;
    let mut blocks = Vec::new();
    let mut inputs = 64;
    for (stage, count) in counts.into_iter().enumerate() {
        for index in 0..count {
            // Every stage but the first halves the size of its images.
            let stride = if stage > 0 && index == 0 { 2 } else { 1 };
            let vb = vb.pp(format!("layer{}.{index}", stage + 1));
            blocks.push(block(&mut inputs, 64 << stage, stride, kernels, &vb)?);
        }
    }
    let fc = linear(inputs, classes, vb.pp("fc"))?;
    Ok(func(move |xs| {
        let ys = stem.forward(xs)?.relu()?;
        let ys = if is_small { ys } else { max_pool(&max_pool(&ys, 2)?, 3)? };
        let ys = blocks.iter().try_fold(ys, |ys, block| block.forward(&ys))?;
        fc.forward(&ys.mean(D::Minus1)?.mean(D::Minus1)?)
    }))
}

/// A block for so many inputs, which become its outputs. The last of three convolutions has four times
/// the channels of the others.
fn block(
    inputs: &mut usize,
    channels: usize,
    stride: usize,
    kernels: &[usize],
    vb: &VarBuilder<'_>,
) -> Result<Func<'static>> {
    let outputs = if kernels.len() == 3 { 4 * channels } else { channels };
    let shortcut = match stride != 1 || *inputs != outputs {
        false => func(|xs| Ok(xs.clone())),
        true => {
            let vb = vb.pp("downsample");
            conv_norm([*inputs, outputs, 1], stride, 1, [vb.pp(0), vb.pp(1)])?
        }
    };
    let first_wide = kernels.iter().position(|&kernel| kernel == 3);
    let mut layers = Vec::new();
    for (index, &kernel) in kernels.iter().enumerate() {
        let own = if index + 1 == kernels.len() { outputs } else { channels };
        let names = ["conv", "bn"].map(|name| vb.pp(format!("{name}{}", index + 1)));
        let stride = if Some(index) == first_wide { stride } else { 1 };
        layers.push(conv_norm([*inputs, own, kernel], stride, 1, names)?);
        *inputs = own;
    }
    Ok(func(move |xs| {
        let [rest @ .., last] = &layers[..] else { return Ok(xs.clone()) };
        let ys = rest.iter().try_fold(xs.clone(), |ys, layer| layer.forward(&ys)?.relu())?;
        (last.forward(&ys)? + shortcut.forward(xs)?)?.relu()
    }))
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
