//! The sum of a residual connection, `act(x + y)`, in one pass (He et al., CVPR 2016,
//! arXiv:1512.03385).

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

use super::activations;
use super::elementwise::{activate, activation_backward};
use super::float::Float;
use super::fused::{self, Backward, Fused, Pooled, Reads};
use super::parallel::worth_threads;
use crate::Activation;

const NAME: &str = "add";

/// What is worked on while it is in the cache.
const CHUNK: usize = 4096;

/// `activation(xs + ys)`, element by element.
///
/// # Errors
///
/// If the shapes differ (nothing is broadcast), or the dtypes, or they are neither f32 nor f64.
pub fn add(xs: &Tensor, ys: &Tensor, activation: Option<Activation>) -> Result<Tensor> {
    if xs.dims() != ys.dims() {
        bail!("{NAME}: shapes {:?} and {:?} differ", xs.shape(), ys.shape());
    }
    let late = activation.filter(|activation| activation.needs_input());
    let activation = activation.filter(|activation| !activation.needs_input());
    let sums = fused::run(Add { activation }, xs.shape(), &[Some(xs), Some(ys)])?;
    activations::apply(sums, late)
}

struct Add {
    activation: Option<Activation>,
}

impl Fused for Add {
    const NAME: &'static str = NAME;

    fn reads(&self) -> Reads {
        Reads::NOTHING.and_output(self.activation.is_some())
    }

    fn forward<T: Float>(&self, inputs: &[&[T]], sums: &mut [T]) -> Result<Pooled<T>> {
        let &[xs, ys] = inputs else { unreachable!("two inputs") };
        let run = |((sums, xs), ys): ((&mut [T], &[T]), &[T])| {
            for ((sum, &x), &y) in sums.iter_mut().zip(xs).zip(ys) {
                *sum = x + y;
            }
            activate(sums, self.activation);
        };
        if worth_threads(sums.len()) {
            let sums = sums.par_chunks_mut(CHUNK);
            sums.zip(xs.par_chunks(CHUNK)).zip(ys.par_chunks(CHUNK)).for_each(run);
        } else {
            let sums = sums.chunks_mut(CHUNK);
            sums.zip(xs.chunks(CHUNK)).zip(ys.chunks(CHUNK)).for_each(run);
        }
        Ok(Pooled::none())
    }

    fn backward<T: Float>(&self, mut pass: Backward<'_, T>) -> Result<()> {
        let mut grads = [pass.grads.take(0), pass.grads.take(1)].into_iter().flatten();
        let Some(first) = grads.next() else { return Ok(()) };
        let second = grads.next();
        let (dys, sums) = (&*pass.dys, pass.ys);
        let threads = worth_threads(dys.len());
        let activated = |first: &mut [T], dys: &[T], start: usize| {
            first.copy_from_slice(dys);
            if let Some(activation) = self.activation {
                activation_backward(first, &sums[start..][..first.len()], activation);
            }
        };
        let one = |(number, (first, dys)): (usize, (&mut [T], &[T]))| {
            activated(first, dys, number * CHUNK);
        };
        let both = |number: usize, (first, dys): (&mut [T], &[T]), second: &mut [T]| {
            activated(first, dys, number * CHUNK);
            second.copy_from_slice(first);
        };
        if threads {
            let pairs = first.par_chunks_mut(CHUNK).zip(dys.par_chunks(CHUNK));
            match second {
                None => pairs.enumerate().for_each(one),
                Some(second) => pairs
                    .zip(second.par_chunks_mut(CHUNK))
                    .enumerate()
                    .for_each(|(number, (pair, second))| both(number, pair, second)),
            }
        } else {
            let pairs = first.chunks_mut(CHUNK).zip(dys.chunks(CHUNK));
            match second {
                None => pairs.enumerate().for_each(one),
                Some(second) => pairs
                    .zip(second.chunks_mut(CHUNK))
                    .enumerate()
                    .for_each(|(number, (pair, second))| both(number, pair, second)),
            }
        }
        Ok(())
    }
}
