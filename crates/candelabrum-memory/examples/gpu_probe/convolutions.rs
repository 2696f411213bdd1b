//! Convolutions by cuDNN: its three products with results at every place of memory, against f64.
//!
//! The log says which algorithm cuDNN advised, and the memory that it needs.

use anyhow::Result;
use candelabrum_memory::{Convolution, ElementType};
use candle_core::cuda_backend::set_gemm_reduced_precision_f32;
use serde_json::json;

use crate::numbers::{Numbers, bound, distance, drawn};
use crate::probe::{Probe, say};

/// What is computed of the other two of input, weight and result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Product {
    Forward,
    ToInput,
    ToWeight,
}

pub(crate) const PRODUCTS: [Product; 3] = [Product::Forward, Product::ToInput, Product::ToWeight];

/// A convolution without dilation.
const fn sizes(
    [batch, in_channels, out_channels]: [usize; 3],
    [side, kernel, stride, padding]: [usize; 4],
) -> Convolution {
    let out = (side + 2 * padding - kernel) / stride + 1;
    Convolution {
        batch,
        in_channels,
        out_channels,
        groups: 1,
        in_size: (side, side),
        out_size: (out, out),
        kernel: (kernel, kernel),
        stride: (stride, stride),
        padding: (padding, padding),
        dilation: (1, 1),
    }
}

/// Of the network for digits, and of residual networks.
const SIZES: [Convolution; 4] = [
    sizes([4, 1, 20], [28, 5, 1, 0]),
    sizes([4, 20, 50], [12, 5, 1, 0]),
    sizes([2, 64, 64], [8, 3, 1, 1]),
    sizes([2, 64, 128], [8, 3, 2, 1]),
];

/// The three products of all sizes, with results `offset` bytes after the beginning of their memory.
pub(crate) fn all(probe: &Probe, element: ElementType, tf32: bool, offset: usize) -> Result<bool> {
    set_gemm_reduced_precision_f32(tf32);
    let mut good = true;
    for sizes in SIZES {
        for product in PRODUCTS {
            let values = operands(element, &sizes);
            let expected = reference(&sizes, product, &values);
            let mut out = Numbers::unset(probe, element, expected.len(), offset)?;
            run(probe, element, &sizes, product, &values, &mut out)?;
            let (got, is_kept) = out.values()?;
            let (apart, largest) = distance(&got, &expected);
            let is_right = apart <= bound(element, tf32) && is_kept;
            let (channels, side) = ((sizes.in_channels, sizes.out_channels), sizes.in_size.0);
            say(&json!({
                "product": format!("{product:?}"), "channels": channels, "side": side,
                "kernel": sizes.kernel.0, "stride": sizes.stride.0, "offset": offset,
                "distance": apart, "largest": largest, "around_it_kept": is_kept,
                "right": is_right,
            }));
            good &= is_right;
        }
    }
    Ok(good)
}

/// One product of one size.
pub(crate) fn once(probe: &Probe, element: ElementType, product: Product) -> Result<Vec<f32>> {
    let sizes = &SIZES[2];
    let values = operands(element, sizes);
    let len = values[product as usize].len();
    let mut out = Numbers::unset(probe, element, len, 0)?;
    run(probe, element, sizes, product, &values, &mut out)?;
    Ok(out.values()?.0)
}

/// The result, the input and the weight: in the order of [`Product`].
fn operands(element: ElementType, sizes: &Convolution) -> [Vec<f32>; 3] {
    let lengths = [sizes.output_len(), sizes.input_len(), sizes.weight_len()];
    [1, 2, 3].map(|seed| drawn(element, lengths[seed as usize - 1], seed))
}

fn run(
    probe: &Probe,
    element: ElementType,
    sizes: &Convolution,
    product: Product,
    values: &[Vec<f32>; 3],
    out: &mut Numbers,
) -> Result<()> {
    let [ys, xs, weight] = values.each_ref().map(|values| Numbers::new(probe, element, values));
    let (ys, xs, weight) = (ys?, xs?, weight?);
    let gpu = &probe.gpu;
    match product {
        Product::Forward => gpu.convolve(sizes, out.write()?, xs.read()?, weight.read()?)?,
        Product::ToInput => {
            gpu.convolve_back_to_input(sizes, out.write()?, weight.read()?, ys.read()?)?;
        }
        Product::ToWeight => {
            gpu.convolve_back_to_weight(sizes, out.write()?, xs.read()?, ys.read()?)?;
        }
    }
    Ok(())
}

/// The product in f64.
fn reference(sizes: &Convolution, product: Product, [ys, xs, weight]: &[Vec<f32>; 3]) -> Vec<f64> {
    let Convolution { batch, in_channels, out_channels, kernel, .. } = *sizes;
    let (side, out_side) = (sizes.in_size.0, sizes.out_size.0);
    let lengths = [ys.len(), xs.len(), weight.len()];
    let mut result = vec![0.0; lengths[product as usize]];
    // A position of the input under element `k` of the window of position `at` of the result.
    let under = |at: usize, k: usize| {
        (at * sizes.stride.0 + k).checked_sub(sizes.padding.0).filter(|&position| position < side)
    };
    for image in 0..batch {
        for (out, channel) in (0..out_channels).flat_map(|o| (0..in_channels).map(move |c| (o, c)))
        {
            for (row, column) in (0..out_side).flat_map(|r| (0..out_side).map(move |c| (r, c))) {
                let y = ((image * out_channels + out) * out_side + row) * out_side + column;
                for (k, l) in (0..kernel.0).flat_map(|k| (0..kernel.1).map(move |l| (k, l))) {
                    let (Some(i), Some(j)) = (under(row, k), under(column, l)) else { continue };
                    let x = ((image * in_channels + channel) * side + i) * side + j;
                    let w = ((out * in_channels + channel) * kernel.0 + k) * kernel.1 + l;
                    let [dy, dx, dw] = [ys[y], xs[x], weight[w]].map(f64::from);
                    match product {
                        Product::Forward => result[y] += dx * dw,
                        Product::ToInput => result[x] += dy * dw,
                        Product::ToWeight => result[w] += dx * dy,
                    }
                }
            }
        }
    }
    result
}
