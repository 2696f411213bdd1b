//! The sum of a residual connection, `act(x + y)`, in one pass (He et al., CVPR 2016,
//! arXiv:1512.03385).

use candle_core::{Result, Tensor, bail};

use super::activations;
use super::elementwise::{activate, activation_backward};
use super::float::Float;
use super::fused::{self, Backward, Fused, OnGpu, Reads};
use super::gpu::activations::Sum;
use super::parallel::in_blocks;
use super::pool::Pooled;
use crate::Activation;

const NAME: &str = "add";

/// `activation(xs + ys)`, element by element.
///
/// # Errors
///
/// If the shapes differ (there is no broadcasting), or the dtypes differ or are no floats.
pub fn add(xs: &Tensor, ys: &Tensor, activation: Option<Activation>) -> Result<Tensor> {
    if xs.dims() != ys.dims() {
        bail!("{NAME}: shapes {:?} and {:?} differ", xs.shape(), ys.shape());
    }
    let late = activation.filter(|activation| activation.needs_input());
    let activation = activation.filter(|activation| !activation.needs_input());
    let op = Add { activation, sum: Sum(activation) };
    let sums = fused::run(op, xs.shape(), &[Some(xs), Some(ys)])?;
    activations::apply(sums, late)
}

struct Add {
    activation: Option<Activation>,
    sum: Sum,
}

impl Fused for Add {
    const NAME: &'static str = NAME;

    fn reads(&self) -> Reads {
        Reads::NOTHING.and_output(self.activation.is_some())
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], sums: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, ys] = inputs else { unreachable!("two inputs") };
        in_blocks(sums, |start, sums| {
            let inputs = xs[start..].iter().zip(&ys[start..]);
            for (sum, (&x, &y)) in sums.iter_mut().zip(inputs) {
                *sum = x + y;
            }
            activate(sums, self.activation);
        });
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, pass: Backward<'_, T>) -> Result<()> {
        let Backward { ys, dys, mut grads, .. } = pass;
        if let Some(activation) = self.activation {
            in_blocks(dys, |start, dys| {
                activation_backward(dys, &ys[start..][..dys.len()], activation);
            });
        }
        for gradient in [grads.take(0), grads.take(1)].into_iter().flatten() {
            in_blocks(gradient, |start, part| part.copy_from_slice(&dys[start..][..part.len()]));
        }
        Ok(())
    }

    fn on_gpu(&self) -> Option<&dyn OnGpu> {
        Some(&self.sum)
    }

    fn composite(&self, inputs: &[Option<Tensor>]) -> Result<Tensor> {
        let [Some(xs), Some(ys)] = inputs else { unreachable!("two inputs") };
        activations::composite(&(xs + ys)?, self.activation)
    }
}
