//! Average pooling to a size of the result, whatever the size of the images, with PyTorch's windows.
//!
//! Of `O` windows of a side of `H` pixels, window `o` begins at `floor(o H / O)` and ends before
//! `ceil((o + 1) H / O)`. Windows overlap where `O` does not divide `H`, and repeat where `O` is larger.

use std::ops::Range;

use candle_core::{Result, Tensor, bail};

use crate::autograd::fused::{self, Backward, FusedOp};
use crate::kernels::float::Float;
use crate::kernels::parallel::{in_parts, worth_threads};
use crate::kernels::scratch::Pooled;
use crate::ops::sizes::sizes;

const NAME: &str = "adaptive_avg_pool2d";

/// The mean of every window, so many that the result has the size `out`, as (height, width).
///
/// # Shapes
///
/// `xs` (N, C, H, W) -> (N, C, OH, OW) with `out` = (OH, OW). If this is the size of the images, the result is
/// `xs` itself.
///
/// # Errors
///
/// If `out` or the images are empty, or the dtype is no float.
pub fn adaptive_avg_pool2d(xs: &Tensor, out: (usize, usize)) -> Result<Tensor> {
    let [batch, channels, height, width] = sizes(NAME, "input", xs.shape(), "(N, C, H, W)")?;
    if [height, width, out.0, out.1].contains(&0) {
        bail!("{NAME}: empty images, input {:?}, result of {out:?}", xs.shape());
    }
    if (height, width) == out {
        return Ok(xs.clone());
    }
    let op = AdaptiveAvgOperation {
        rows: PooledSide { size: height, out: out.0 },
        columns: PooledSide { size: width, out: out.1 },
    };
    fused::run(op, (batch, channels, out.0, out.1), &[Some(xs)])
}

struct AdaptiveAvgOperation {
    rows: PooledSide,
    columns: PooledSide,
}

/// The windows along the height or along the width.
#[derive(Clone, Copy)]
struct PooledSide {
    size: usize,
    out: usize,
}

impl PooledSide {
    fn window(self, o: usize) -> Range<usize> {
        o * self.size / self.out..((o + 1) * self.size).div_ceil(self.out)
    }

    /// (out, size): the share of each pixel in each window.
    fn shares(self, like: &Tensor) -> Result<Tensor> {
        let mut shares = vec![0.0; self.out * self.size];
        for (o, row) in shares.chunks_exact_mut(self.size).enumerate() {
            let window = self.window(o);
            let share = 1.0 / window.len() as f64;
            row[window].fill(share);
        }
        Tensor::from_vec(shares, (self.out, self.size), like.device())?.to_dtype(like.dtype())
    }
}

impl AdaptiveAvgOperation {
    /// The numbers of elements of a channel of an image, before and after.
    fn planes(&self) -> (usize, usize) {
        (self.rows.size * self.columns.size, self.rows.out * self.columns.out)
    }

    /// Calls `f` with the number of each window, its rows and columns, and the number of its pixels.
    fn windows<T: Float>(&self, mut f: impl FnMut(usize, Range<usize>, Range<usize>, T)) {
        for number in 0..self.rows.out * self.columns.out {
            let rows = self.rows.window(number / self.columns.out);
            let columns = self.columns.window(number % self.columns.out);
            let count = T::from_f64((rows.len() * columns.len()) as f64);
            f(number, rows, columns, count);
        }
    }
}

impl FusedOp for AdaptiveAvgOperation {
    const NAME: &'static str = NAME;

    fn forward<T: Float>(&self, inputs: &[&[T]], ys: &mut [T]) -> Result<Pooled<T>> {
        let (xs, (in_plane, out_plane)) = (inputs[0], self.planes());
        in_parts(worth_threads(xs.len()), (xs, in_plane), (ys, out_plane), |_, x, y| {
            self.windows(|number, rows, columns, count| {
                let mut sum = T::zero();
                for row in rows {
                    x[row * self.columns.size..][columns.clone()].iter().for_each(|&x| sum += x);
                }
                y[number] = sum / count;
            });
        });
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let Some(dxs) = pass.grads.take(0) else { return Ok(()) };
        let (dys, (in_plane, out_plane)) = (&*pass.dys, self.planes());
        in_parts(worth_threads(dxs.len()), (dys, out_plane), (dxs, in_plane), |_, dy, dx| {
            dx.fill(T::zero());
            self.windows(|number, rows, columns, count| {
                let share = dy[number] / count;
                for row in rows {
                    let dx = &mut dx[row * self.columns.size..][columns.clone()];
                    dx.iter_mut().for_each(|dx| *dx += share);
                }
            });
        });
        Ok(())
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs)] = inputs else { unreachable!("one input") };
        let x = fused::widen(xs)?.reshape(((), self.columns.size))?; // (N C H, W)
        let x = x.matmul(&self.columns.shares(&x)?.t()?)?;
        let x = x.reshape(((), self.rows.size, self.columns.out))?.transpose(1, 2)?; // (N C, OW, H)
        let x = x.contiguous()?.reshape(((), self.rows.size))?;
        let ys = x.matmul(&self.rows.shares(&x)?.t()?)?; // (N C OW, OH)
        let ys = ys.reshape(((), self.columns.out, self.rows.out))?.transpose(1, 2)?;
        ys.contiguous()?.to_dtype(xs.dtype())
    }
}
