//! The refusal of candle's operations whose gradient is wrong.
//!
//! Nothing else tells a user, as the loss still falls. In candle 0.11 they are:
//!
//! - `max_pool2d`: for a window of k elements its gradient is 1/k of the true one.
//! - `conv1d` of several samples on the CPU: that of the kernel is wrong, because candle reads the
//!   transposed gradient as if it were not transposed. Without padding that of the input is wrong, too. A
//!   convolution of the data themselves, or by a frozen kernel, is not found, because the graph does not contain
//!   them.
//!
//! candle does not say which operation has made a tensor. But it tells the inputs of each
//! ([`Tensor::sorted_nodes`]), and their numbers. A result that has the shape and, bit for bit, the numbers
//! that the operation gives for its inputs is one: no other operation of candle has them in one step.
//! Only a max-pooling of whole rows, or of windows that are all constant, leaves a doubt, and is let through. The
//! fused operations of this crate are not mistaken for one, because the input of their results in candle's graph
//! is a token. An operation of the user's own may be. [`trust_gradient`] names its result.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};

use candle_core::{DType, Result, Tensor, TensorId};

use crate::Error;

/// The number of results that are remembered. Only those of the first steps are looked for.
const TRUSTED: usize = 1024;

thread_local! {
    static LAST_TRUSTED: RefCell<VecDeque<TensorId>> = const { RefCell::new(VecDeque::new()) };
}

/// Says that the gradient of an operation of one's own is right, though its result has the numbers of an operation
/// of candle whose gradient is wrong: a `CustomOp1` that computes a max-pooling, for instance. `result` is what the
/// operation has just given, on the thread that calls the optimizer.
pub fn trust_gradient(result: &Tensor) {
    LAST_TRUSTED.with_borrow_mut(|last| {
        if last.len() == TRUSTED {
            last.pop_front();
        }
        last.push_back(result.id());
    });
}

/// Returns an error if the gradient of `loss` would go through an operation that spoils it.
pub(crate) fn refuse(loss: &Tensor) -> Result<()> {
    let nodes = loss.sorted_nodes();
    let is_trusted = |node: &Tensor| LAST_TRUSTED.with_borrow(|last| last.contains(&node.id()));
    let of_rank = |rank| nodes.iter().copied().filter(move |node| node.rank() == rank);
    let (images, rows): (Vec<_>, Vec<_>) = (of_rank(4).collect(), of_rank(3).collect());
    for pooled in &images {
        // The walk to the input is long, so it is done only where an input of this shape exists.
        if images.iter().any(|input| !windows(input, pooled).is_empty()) && !is_trusted(pooled) {
            refuse_max_pool(pooled)?;
        }
    }
    for row in rows.iter().filter(|row| row.device().is_cpu() && row.dims()[0] > 1) {
        if rows.iter().any(|kernel| kernel.dims()[0] == row.dims()[1]) && !is_trusted(row) {
            refuse_conv1d(row)?;
        }
    }
    Ok(())
}

fn refuse_max_pool(pooled: &Tensor) -> Result<()> {
    let below = pooled.sorted_nodes();
    let (Some(input), false) = (below.get(1), pooled.is_variable()) else { return Ok(()) };
    let input = input.detach();
    let windows = windows(&input, pooled);
    // The maximum of whole rows or columns may also be that of `max_keepdim`, whose gradient is right.
    if let &[_, _, height, width] = input.dims() {
        let mut whole = windows.iter().filter(|&&w| w == (height, 1) || w == (1, width));
        if whole.any(|&window| same(input.max_pool2d(window), pooled)) {
            return Ok(());
        }
    }
    for window in likely(windows, &input, pooled)? {
        if !same(input.max_pool2d(window), pooled) || same(input.avg_pool2d(window), pooled) {
            continue;
        }
        let (h, w) = window;
        let config = if h == w {
            format!("candelabrum::nn::ops::Pool2dConfig::square({h})")
        } else {
            format!(
                "candelabrum::nn::ops::Pool2dConfig {{ kernel: ({h}, {w}), stride: ({h}, {w}), padding: (0, 0) }}"
            )
        };
        return Err(Error::WrongGradient {
            operation: "max_pool2d",
            shape: input.shape().clone(),
            how: format!("for its window {window:?} it is 1/{} of the true one", h * w),
            instead: format!(
                "`candelabrum::nn::ops::max_pool2d(&xs, {config})` or the layer `MaxPool2d`"
            ),
        }
        .into());
    }
    Ok(())
}

/// Those of `windows` by which pooling one channel of one image of `input` has the numbers of `pooled`. Hundreds of
/// windows have the shape of a sum over rows, and each pooling of the whole input costs as much as a layer.
fn likely(
    windows: Vec<(usize, usize)>,
    input: &Tensor,
    pooled: &Tensor,
) -> Result<Vec<(usize, usize)>> {
    if windows.is_empty() || pooled.elem_count() == 0 {
        return Ok(Vec::new());
    }
    let of_one = |images: &Tensor| images.narrow(0, 0, 1)?.narrow(1, 0, 1);
    let (input, pooled) = (of_one(input)?, of_one(pooled)?);
    let fits = |&window: &(usize, usize)| same(input.max_pool2d(window), &pooled);
    Ok(windows.into_iter().filter(fits).collect())
}

/// The windows, with strides of their size, by which pooling `input` has the shape of `pooled`. candle
/// differentiates no other ones.
fn windows(input: &Tensor, pooled: &Tensor) -> Vec<(usize, usize)> {
    let (&[n, c, height, width], &[m, d, rows, columns]) = (input.dims(), pooled.dims()) else {
        return Vec::new();
    };
    if (n, c) != (m, d) || (height, width) == (rows, columns) {
        return Vec::new();
    }
    let sizes = |from: usize, to: usize| (1..=from).filter(move |size| from / size == to);
    sizes(height, rows).flat_map(|h| sizes(width, columns).map(move |w| (h, w))).collect()
}

fn refuse_conv1d(row: &Tensor) -> Result<()> {
    if row.is_variable() {
        return Ok(());
    }
    let below = row.sorted_nodes();
    let Some(&kernel) = below.get(1) else { return Ok(()) };
    if kernel.rank() != 3 {
        return Ok(());
    }
    // The input comes behind the kernel and all that is below the kernel.
    let known: HashSet<_> = kernel.sorted_nodes().iter().map(|node| node.id()).collect();
    let Some(input) = below[1..].iter().find(|node| !known.contains(&node.id())) else {
        return Ok(());
    };
    let (sample, filter) = (input.detach().narrow(0, 0, 1)?, kernel.detach().narrow(0, 0, 1)?);
    let result = row.narrow(0, 0, 1)?.narrow(1, 0, 1)?;
    let is_made_by = |&(padding, stride, dilation): &(usize, usize, usize)| {
        close(sample.conv1d(&filter, padding, stride, dilation, 1), &result)
    };
    if !convolutions(input, kernel, row).iter().any(is_made_by) {
        return Ok(());
    }
    Err(Error::WrongGradient {
        operation: "conv1d",
        shape: input.shape().clone(),
        how: "on the CPU, that of its kernel is another one for several samples, and that of its \
              input without padding"
            .to_owned(),
        instead: "`candelabrum::nn::ops::conv1d`, or the layer `Conv1d`".to_owned(),
    }
    .into())
}

/// The usual paddings, strides and dilations of a convolution of rows that give `result` its shape.
fn convolutions(input: &Tensor, kernel: &Tensor, result: &Tensor) -> Vec<(usize, usize, usize)> {
    const STRIDES: usize = 16;
    let dims = (input.dims(), kernel.dims(), result.dims());
    let (&[n, c, length], &[out, d, k], &[m, p, positions]) = dims else { return Vec::new() };
    if (n, c, out) != (m, d, p) {
        return Vec::new();
    }
    let dilations = (1..=8).chain((4..16).map(|power| 1 << power)).take_while(|&d| d <= length);
    let mut found = Vec::new();
    for dilation in dilations {
        let window = dilation * k.saturating_sub(1) + 1;
        for stride in 1..=STRIDES {
            let fits = |&padding: &usize| {
                let rest = (length + 2 * padding).checked_sub(window);
                rest.is_some_and(|rest| rest / stride + 1 == positions)
            };
            found.extend((0..=window).filter(fits).map(|padding| (padding, stride, dilation)));
        }
    }
    found
}

/// Whether `expected` has the numbers of `result` up to rounding.
fn close(expected: Result<Tensor>, result: &Tensor) -> bool {
    let distance = |expected: Tensor| -> Result<bool> {
        let (expected, result) =
            (expected.to_dtype(DType::F32)?, result.detach().to_dtype(DType::F32)?);
        let largest = |t: Tensor| t.abs()?.max_all()?.to_scalar::<f32>();
        let size = largest(result.clone())?;
        Ok(size > 0.0 && largest((expected - result)?)? < 1e-2 * size)
    };
    result.elem_count() > 0 && expected.and_then(distance).is_ok_and(|is_close| is_close)
}

/// Whether `expected` has the numbers of `result`. An operation that candle does not have for their type, or
/// on their device, has not made the result.
fn same(expected: Result<Tensor>, result: &Tensor) -> bool {
    let differ = |expected: Tensor| -> Result<bool> {
        let differ = expected.ne(&result.detach())?.to_dtype(DType::F32)?;
        Ok(differ.max_all()?.to_scalar::<f32>()? != 0.0)
    };
    result.elem_count() > 0 && expected.and_then(differ).is_ok_and(|differ| !differ)
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::ops::{self, Pool2dConfig};

    fn images(dims: (usize, usize, usize, usize)) -> Result<Var> {
        let (n, c, h, w) = dims;
        let values = (0..n * c * h * w).map(|i| ((i * 37 + i * i * 11) % 101) as f32 / 50.0 - 1.0);
        Var::from_tensor(&Tensor::from_iter(values, &Device::Cpu)?.reshape(dims)?)
    }

    #[test]
    fn it_is_found_wherever_it_stands() -> Result<()> {
        for dims in [(2, 3, 6, 6), (2, 3, 7, 5), (1, 1, 4, 10)] {
            for window in [(2, 2), (3, 3), (1, 2), (2, 1), (3, 1)] {
                let images = images(dims)?;
                let ys = images.relu()?.max_pool2d(window)?;
                let shared = ((images.as_tensor() * 1.0)? + images.as_tensor())?;
                let branches = [
                    ys.sqr()?,
                    ops::relu(&ys)?,
                    ops::relu(&images)?.max_pool2d(window)?.sqr()?,
                    // The input has another use that comes first in the graph.
                    (shared.sqr()?.sum_all()? + shared.max_pool2d(window)?.sum_all()?)?,
                    images.max_pool2d(window)?.max_pool2d((1, 1))?.exp()?,
                ];
                for (number, branch) in branches.iter().enumerate() {
                    let error = refuse(&branch.sum_all()?).unwrap_err().to_string();
                    let parts = [
                        format!("{window:?} it"),
                        "ops::max_pool2d".to_owned(),
                        "candelabrum::nn::ops::Pool2dConfig".to_owned(),
                    ];
                    assert!(parts.iter().all(|part| error.contains(part)), "{number}: {error}");
                }
            }
        }
        Ok(())
    }

    /// A max-pooling by 2 with the right gradient.
    struct Own;

    impl candle_core::CustomOp1 for Own {
        fn name(&self) -> &'static str {
            "own"
        }
        fn cpu_fwd(
            &self,
            storage: &candle_core::CpuStorage,
            layout: &candle_core::Layout,
        ) -> Result<(candle_core::CpuStorage, candle_core::Shape)> {
            let xs = Tensor::from_slice(storage.as_slice::<f32>()?, layout.shape(), &Device::Cpu)?;
            let ys = xs.max_pool2d(2)?;
            let numbers = candle_core::CpuStorage::F32(ys.flatten_all()?.to_vec1()?);
            Ok((numbers, ys.shape().clone()))
        }
        fn bwd(&self, xs: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
            let xs = Var::from_tensor(xs)?;
            let sum = (ops::max_pool2d(&xs, Pool2dConfig::square(2))? * gradient)?.sum_all()?;
            Ok(sum.backward()?.get(&xs).cloned())
        }
    }

    #[test]
    fn an_operation_of_ones_own_is_refused_until_it_is_trusted() -> Result<()> {
        let ys = images((2, 3, 6, 6))?.relu()?.apply_op1(Own)?;
        let error = refuse(&ys.sum_all()?).unwrap_err().to_string();
        assert!(error.contains("trust_gradient"), "{error}");
        trust_gradient(&ys);
        refuse(&ys.sum_all()?)
    }

    #[test]
    fn the_whole_of_long_rows_is_pooled_by_no_window() -> Result<()> {
        let scores = images((2, 2, 3, 256))?.exp()?;
        let sums = scores.sum_keepdim(3)?;
        let windows = windows(&scores, &sums);
        assert_eq!(windows.len(), 128);
        assert_eq!(likely(windows, &scores, &sums)?, []);
        let pooled = scores.max_pool2d((1, 3))?;
        assert_eq!(likely(vec![(1, 2), (1, 3)], &scores, &pooled)?, [(1, 3)]);
        Ok(())
    }

    #[test]
    fn no_other_operation_is_taken_for_it() -> Result<()> {
        let config = Pool2dConfig::square(2);
        for dims in [(2, 3, 6, 6), (1, 1, 7, 5), (1, 2, 1, 8)] {
            let images = images(dims)?;
            let xs = images.relu()?;
            let (n, c, h, w) = dims;
            let constant = Var::ones(dims, DType::F32, &Device::Cpu)?;
            let mut ys = vec![
                xs.sum_keepdim((2, 3))?,
                xs.max_keepdim(3)?.sqr()?,
                xs.max_keepdim(2)?.sqr()?,
                xs.narrow(3, 0, w / 2)?,
                xs.detach().max_pool2d((1, 2))?.mul(&xs.narrow(3, 0, w / 2)?)?,
                constant.avg_pool2d((1, 2))?,
                xs.avg_pool2d((1, 2))?,
                xs.flatten_from(2)?.unsqueeze(2)?,
                // As users write it by other operations, whose gradients are right.
                xs.narrow(3, 0, w / 2 * 2)?.reshape((n * c, h, w / 2, 2))?.max(3)?.unsqueeze(0)?,
            ];
            if h > 1 {
                ys.push(ops::max_pool2d(&xs, config)?.sqr()?);
                ys.push(ops::with_composites(|| ops::max_pool2d(&xs, config))?.sqr()?);
            }
            for (number, ys) in ys.iter().enumerate() {
                let result = refuse(&ys.sum_all()?);
                assert!(result.is_ok(), "{number} of {dims:?}: {result:?}");
            }
        }
        // Where no gradient goes through it, its gradient does no harm.
        let images = images((1, 1, 4, 4))?;
        let masked =
            (images.detach().max_pool2d(2)? * images.sum_all()?.to_scalar::<f32>()? as f64)?;
        refuse(&masked.sum_all()?)?;
        Ok(())
    }

    #[test]
    fn a_convolution_of_rows_is_found_where_its_gradient_is_wrong() -> Result<()> {
        let rows = |n: usize, c: usize, length: usize| images((1, n, c, length))?.squeeze(0);
        let kernel = |out: usize, c: usize, k: usize| {
            Var::from_tensor(&images((1, out, c, k))?.squeeze(0)?.detach())
        };
        let kinds = [(0, 1, 1), (0, 2, 1), (1, 1, 1), (2, 3, 1), (0, 1, 2), (2, 1, 2), (4, 2, 4)];
        for (length, k) in [(9, 2), (9, 3), (12, 1), (9, 5)] {
            for (padding, stride, dilation) in kinds {
                let window = dilation * (k - 1) + 1;
                if length + 2 * padding < window || padding > window {
                    continue;
                }
                let (xs, kernel) = (rows(2, 4, length)?, kernel(3, 4, k)?);
                let convolved = |xs: &Tensor| {
                    xs.conv1d(&kernel, padding, stride, dilation, 1)?.sqr()?.sum_all()
                };
                let error = refuse(&convolved(&xs)?).unwrap_err().to_string();
                let names = error.contains("`conv1d`") && error.contains("nn::ops::conv1d");
                assert!(names, "{k} {padding} {stride} {dilation}: {error}");
                // The gradient of one sample is right.
                refuse(&convolved(&xs.narrow(0, 0, 1)?)?)?;
            }
        }
        let (xs, kernel) = (rows(2, 4, 7)?, kernel(6, 2, 2)?);
        assert!(refuse(&xs.conv1d(&kernel, 0, 1, 1, 2)?.sum_all()?).is_err(), "groups");
        // Products of the same shapes.
        let square = rows(4, 4, 4)?;
        refuse(&square.matmul(&square.transpose(1, 2)?.sqr()?)?.sum_all()?)?;
        refuse(&xs.matmul(&xs.transpose(1, 2)?)?.sum_all()?)?;
        Ok(())
    }
}
