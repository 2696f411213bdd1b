//! Convolutions of images and sequences, and transposed ones.

use candelabrum_nn::Activation;
use candelabrum_nn::ops::{self, Conv1dConfig, Conv2dConfig, ConvTranspose2dConfig};
use candle_core::Result;

use super::case::{Arguments, Cases, Operation};
use super::elementwise::{activations, relu};

const INPUTS: [&str; 3] = ["xs", "weight", "bias"];
const GELU: Option<Activation> = Some(Activation::Gelu);
const PLAIN: Conv2dConfig =
    Conv2dConfig { stride: (1, 1), padding: (0, 0), dilation: (1, 1), groups: 1 };
const PADDED: Conv2dConfig = Conv2dConfig { padding: (1, 1), ..PLAIN };

fn conv2d_with(config: Conv2dConfig, activation: Option<Activation>) -> impl Operation {
    move |t: &Arguments| ops::conv2d(&t[0], &t[1], t.get(2), config, activation)
}

#[test]
fn conv2d() -> Result<()> {
    let mut cases = Cases::new("conv2d", &INPUTS, &[]);
    cases.golden("conv2d", |case| {
        let [sy, sx, py, px, dy, dx, groups, flag] = case.config()?;
        let (stride, padding, dilation) = ((sy, sx), (py, px), (dy, dx));
        Ok(conv2d_with(Conv2dConfig { stride, padding, dilation, groups }, relu(flag)))
    })?;
    for (xs, weight, config) in [
        ([2, 3, 5, 7], [4, 3, 3, 2], PLAIN),
        ([1, 1, 3, 3], [1, 1, 3, 3], PLAIN),
        ([3, 2, 4, 3], [5, 2, 1, 1], PLAIN),
        ([2, 2, 7, 6], [3, 2, 3, 3], Conv2dConfig { stride: (2, 3), ..PLAIN }),
        ([2, 2, 8, 5], [3, 2, 3, 3], Conv2dConfig { stride: (3, 1), padding: (1, 2), ..PLAIN }),
        ([2, 1, 8, 5], [2, 1, 2, 3], Conv2dConfig { stride: (3, 2), dilation: (2, 1), ..PADDED }),
        ([2, 2, 4, 5], [3, 2, 3, 5], Conv2dConfig { padding: (2, 3), ..PLAIN }),
        ([2, 2, 7, 8], [3, 2, 3, 2], Conv2dConfig { dilation: (2, 3), ..PLAIN }),
        // Some windows, and some elements of the kernel, meet only the padding.
        ([1, 2, 2, 3], [2, 2, 2, 2], Conv2dConfig { padding: (4, 3), stride: (1, 2), ..PLAIN }),
        ([9, 4, 1, 1], [3, 4, 3, 3], PADDED),
        ([2, 6, 4, 5], [3, 2, 3, 2], Conv2dConfig { groups: 3, padding: (1, 0), ..PLAIN }),
        ([2, 4, 5, 4], [8, 1, 2, 2], Conv2dConfig { groups: 4, stride: (2, 1), ..PLAIN }),
        ([9, 4, 3, 3], [6, 2, 1, 1], Conv2dConfig { groups: 2, ..PLAIN }),
        ([0, 2, 4, 4], [3, 2, 3, 3], PLAIN),
    ] {
        for activation in activations() {
            let f = conv2d_with(config, activation);
            let case = cases.add((config, activation), &[&xs, &weight, &weight[..1]], f);
            case.optional(&[&[2]]);
        }
    }
    cases.check_part()
}

/// Images, weights and options that each algorithm divides over threads.
pub(super) const LARGE: [([usize; 4], [usize; 4], Conv2dConfig); 9] = [
    ([7, 20, 13, 12], [40, 20, 3, 3], PADDED),
    ([1, 20, 33, 40], [40, 20, 3, 3], PADDED),
    ([9, 20, 13, 12], [30, 20, 3, 3], Conv2dConfig { stride: (2, 2), ..PADDED }),
    ([9, 20, 13, 12], [20, 1, 3, 3], Conv2dConfig { groups: 20, ..PADDED }),
    ([9, 20, 13, 12], [40, 20, 1, 1], PLAIN),
    ([9, 3, 30, 30], [24, 3, 5, 5], PLAIN),
    ([40, 64, 4, 4], [70, 64, 3, 3], PADDED),
    ([9, 130, 7, 7], [150, 130, 1, 1], PLAIN),
    ([29, 20, 12, 12], [50, 20, 5, 5], PLAIN),
];

#[test]
fn conv2d_by_each_algorithm() -> Result<()> {
    let mut cases = Cases::new("conv2d", &INPUTS, &[]);
    for (xs, weight, config) in LARGE {
        cases.add(config, &[&xs, &weight, &weight[..1]], conv2d_with(config, GELU));
    }
    // Several blocks of tiles, tiles over the edge, many small images.
    for (xs, weight, padding) in [
        ([1, 16, 29, 31], [17, 16, 3, 3], (0, 0)),
        ([2, 33, 6, 9], [18, 33, 3, 3], (1, 1)),
        ([3, 17, 3, 2], [50, 17, 3, 3], (2, 1)),
        ([70, 16, 4, 4], [16, 16, 3, 3], (1, 2)),
        ([0, 16, 4, 4], [16, 16, 3, 3], (1, 1)),
    ] {
        let f = conv2d_with(Conv2dConfig { padding, ..PLAIN }, GELU);
        // The composite's sums over channels are too long for 16 bits.
        cases.add(padding, &[&xs, &weight, &weight[..1]], f).small().not_in_16_bits();
    }
    cases.check()
}

#[test]
fn conv1d() -> Result<()> {
    let with = |config, activation| {
        move |t: &Arguments| ops::conv1d(&t[0], &t[1], t.get(2), config, activation)
    };
    let mut cases = Cases::new("conv1d", &INPUTS, &[]);
    cases.golden("conv1d", |case| {
        let [stride, padding, dilation, groups, flag] = case.config()?;
        Ok(with(Conv1dConfig { stride, padding, dilation, groups }, relu(flag)))
    })?;
    let plain = Conv1dConfig::default();
    for (xs, weight, config) in [
        ([2, 3, 7], [4, 3, 3], plain),
        ([9, 2, 5], [3, 2, 2], plain),
        ([1, 1, 1], [2, 1, 3], Conv1dConfig { padding: 1, ..plain }),
        ([2, 4, 11], [6, 2, 3], Conv1dConfig { stride: 2, padding: 2, dilation: 3, groups: 2 }),
        ([2, 3, 6], [6, 1, 2], Conv1dConfig { groups: 3, ..plain }),
        ([0, 2, 5], [3, 2, 2], plain),
        ([9, 20, 130], [24, 20, 5], plain),
    ] {
        for activation in activations() {
            let f = with(config, activation);
            let case = cases.add((config, activation), &[&xs, &weight, &weight[..1]], f);
            case.optional(&[&[2]]);
        }
    }
    cases.check()
}

#[test]
fn conv_transpose2d() -> Result<()> {
    let with = |config, activation| {
        move |t: &Arguments| ops::conv_transpose2d(&t[0], &t[1], t.get(2), config, activation)
    };
    let mut cases = Cases::new("conv_transpose2d", &INPUTS, &[]);
    cases.golden("conv_transpose2d", |case| {
        let [sy, sx, py, px, oy, ox, dy, dx, groups, flag] = case.config()?;
        let (stride, padding) = ((sy, sx), (py, px));
        let (output_padding, dilation) = ((oy, ox), (dy, dx));
        let config = ConvTranspose2dConfig { stride, padding, output_padding, dilation, groups };
        Ok(with(config, relu(flag)))
    })?;
    let plain = ConvTranspose2dConfig::default();
    let padded = ConvTranspose2dConfig { padding: (1, 1), ..plain };
    let strided = ConvTranspose2dConfig { stride: (2, 3), ..padded };
    // On the way back they are convolutions by each of the algorithms.
    for (xs, weight, config) in [
        ([2, 3, 4, 5], [3, 2, 3, 2], plain),
        ([1, 1, 1, 1], [1, 1, 3, 3], plain),
        ([3, 2, 4, 3], [2, 5, 1, 1], plain),
        (
            [2, 2, 4, 3],
            [2, 3, 3, 3],
            ConvTranspose2dConfig { stride: (2, 3), output_padding: (1, 2), ..plain },
        ),
        ([2, 2, 3, 4], [2, 3, 3, 4], ConvTranspose2dConfig { padding: (2, 3), ..plain }),
        ([2, 2, 3, 2], [2, 3, 3, 2], ConvTranspose2dConfig { dilation: (2, 3), ..plain }),
        // The corners of the kernel meet only what is cut off.
        ([9, 4, 1, 1], [4, 3, 3, 3], padded),
        ([2, 6, 3, 4], [6, 1, 3, 2], ConvTranspose2dConfig { groups: 3, padding: (1, 0), ..plain }),
        ([2, 4, 3, 4], [4, 1, 3, 3], ConvTranspose2dConfig { groups: 4, stride: (2, 1), ..plain }),
        ([9, 4, 3, 3], [4, 3, 1, 1], ConvTranspose2dConfig { groups: 2, ..plain }),
        ([9, 3, 3, 2], [3, 4, 2, 3], plain),
        ([0, 2, 3, 4], [2, 3, 2, 2], plain),
    ] {
        for activation in activations() {
            let shapes: [&[usize]; 3] = [&xs, &weight, &[weight[1] * config.groups]];
            let case = cases.add((config, activation), &shapes, with(config, activation));
            case.optional(&[&[2]]);
            // In 16 bits the composite rounds the sum before the activation, which may change a sign.
            if matches!(activation, Some(Activation::Relu | Activation::Relu6)) {
                case.not_in_16_bits();
            }
        }
    }
    let twice = ConvTranspose2dConfig { stride: (2, 2), ..padded };
    // By tiles, by products that read the image, and by products of interleaved images.
    for (xs, weight, config) in [
        ([2, 18, 6, 9], [18, 33, 3, 3], padded),
        ([2, 7, 13, 9], [7, 9, 3, 3], strided),
        ([29, 3, 4, 7], [3, 7, 4, 5], padded),
        ([7, 6, 21, 20], [6, 5, 4, 4], twice),
        ([40, 16, 5, 4], [16, 5, 4, 4], twice),
        ([7, 18, 21, 20], [18, 19, 3, 3], twice),
    ] {
        cases.add(config, &[&xs, &weight, &weight[1..2]], with(config, GELU)).not_in_16_bits();
    }
    cases.check()
}
