//! conv2d compared with its definition, written as seven loops.

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{Conv2dConfig, conv2d};
use candelabrum_testkit::assert_close;
use candle_core::{Device, Result, Tensor};
use proptest::prelude::*;

use crate::random;
use crate::table::Cases;

fn naive(xs: &Tensor, weight: &Tensor, bias: &Tensor, config: Conv2dConfig) -> Result<Tensor> {
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
            y.push(sum);
        }
    }
    Tensor::from_vec(y, (n, o, oh, ow), &Device::Cpu)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any options on a few small images or many, on which products work together. 1 × 1 kernels read whole planes.
    /// Of many channels, 3 × 3 kernels are computed by tiles.
    #[test]
    fn conv2d_is_the_direct_sum(
        (batch, groups, in_per_group, out_per_group, kernel) in prop_oneof![
            (1usize..4, 1usize..4, 1usize..4, 1usize..4, (1usize..5, 1usize..5)),
            (8usize..40, 1usize..3, 1usize..20, 1usize..5, (1usize..4, 1usize..4)),
            (8usize..40, 1usize..3, 1usize..20, 1usize..20, Just((1, 1))),
            (1usize..6, Just(1), 16usize..40, 16usize..40, Just((3, 3))),
        ],
        extra in (0usize..8, 0usize..8),
        stride in prop_oneof![Just((1, 1)), (1usize..4, 1usize..4)],
        padding in (0usize..4, 0usize..4),
        dilation in prop_oneof![Just((1, 1)), (1usize..4, 1usize..4)],
        activation in prop_oneof![
            Just(None), Just(Some(Activation::Relu)), Just(Some(Activation::Gelu))
        ],
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
        let inputs = [xs, weight.unwrap(), random(groups * out_per_group, seed + 2).unwrap()];
        let config = Conv2dConfig { stride, padding, dilation, groups };
        let [xs, weight, bias] = &inputs;
        let actual = conv2d(xs, weight, Some(bias), config, None).unwrap();
        assert_close(&actual, &naive(xs, weight, bias, config).unwrap(), 1e-11, 1e-11);
        let mut cases = Cases::new("conv2d", &[], &[]);
        let case = cases.add_with((config, activation), &inputs, move |t| {
            conv2d(&t[0], &t[1], t.get(2), config, activation)
        });
        if activation == Some(Activation::Relu) {
            case.rough();
        }
        cases.check_drawn().unwrap();
    }
}
