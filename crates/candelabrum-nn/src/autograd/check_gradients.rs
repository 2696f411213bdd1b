//! A check of a model's gradients against the slope of its loss.
//!
//! Some operations of candle have no backward pass or a wrong one, and not all of them show in the graph: a
//! convolution of rows on the data, or a softmax beside another way to the same parameter. The loss itself
//! tells: for a small step `v` of a parameter, `(L(w + v) - L(w - v)) / 2` is the product of the gradient
//! with `v`.

use candle_core::{DType, Result, Tensor};
use rand::Rng;

use super::wrong_gradients;
use crate::{Error, Param, Params, seed};

/// The steps in each parameter, relative to its values. Where the slopes of both differ, the loss bends too
/// much between them, or rounding hides it, and nothing is concluded.
const STEPS: [f64; 2] = [1e-2, 5e-3];

/// The directions that are tried. In some the slope is too small by chance.
const DIRECTIONS: u64 = 6;

/// The relative difference that is no rounding error.
const TOLERANCE: f64 = 0.05;

/// Compares the gradient of each parameter that is not frozen with the slope of the loss in random directions.
/// Call it once, before the training of a new model, with a batch and a loss of the usual kind. It evaluates
/// `loss` about 24 times for each parameter. `loss` must depend on nothing but the parameters: it may use
/// dropout of this crate, and not that of `candle_nn`. Parameters and buffers are as before afterwards.
///
/// A parameter that has less influence on the loss than rounding is not judged.
///
/// ```
/// use candelabrum_nn::{Params, check_gradients};
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_nn::{VarBuilder, VarMap, linear};
///
/// let varmap = VarMap::new();
/// let model = linear(3, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
/// let params = Params::from_varmap(&varmap)?;
/// let xs = Tensor::new(&[[1f32, 2., 3.]], &Device::Cpu)?;
///
/// check_gradients(&params, || model.forward(&xs)?.sqr()?.mean_all())?;
/// let rounded = check_gradients(&params, || {
///     let ys = model.forward(&xs)?;
///     (ys.detach() * ys)?.mean_all() // half of the gradient is missing
/// });
/// assert!(rounded.unwrap_err().to_string().contains("`weight`"));
/// # Ok::<(), candle_core::Error>(())
/// ```
///
/// # Errors
/// [`Error::Gradients`], which names the parameters and what to look for. [`Error::WrongGradient`] where the
/// operation is known. A loss that is not the same twice, a parameter that is neither f32 nor f64, and the
/// errors of `loss`.
pub fn check_gradients(params: &Params, loss: impl Fn() -> Result<Tensor>) -> crate::Result<()> {
    let draws = params.noise_draws();
    let again = || {
        params.set_noise_draws(draws);
        loss()
    };
    // Those of now, which may be others than those after the last step.
    let buffers = params.buffers().into_iter().map(|buffer| Ok((buffer.value().copy()?, buffer)));
    let buffers: Vec<_> = buffers.collect::<Result<_>>()?;
    let result = compare(&params.trainable(), &again);
    buffers.iter().try_for_each(|(value, buffer)| buffer.set(value))?;
    params.set_noise_draws(draws);
    let differing = result?;
    if differing.is_empty() {
        return Ok(());
    }
    Err(Error::Gradients { names: differing.join(", ") })
}

/// The parameters whose gradient is not the slope of the loss, with the ratio.
fn compare(params: &[Param], loss: &impl Fn() -> Result<Tensor>) -> crate::Result<Vec<String>> {
    let graph = loss()?;
    wrong_gradients::refuse(&graph)?;
    let value = scalar(&graph)?;
    if scalar(&loss()?)? != value {
        return Err(Error::LossDiffers);
    }
    let gradients = graph.backward()?;
    drop(graph);
    let mut differing = Vec::new();
    for (number, param) in params.iter().enumerate() {
        let dtype = param.dtype();
        if !matches!(dtype, DType::F32 | DType::F64) {
            return Err(Error::Tensor(candle_core::Error::UnsupportedDTypeForOp(
                dtype,
                "check_gradients",
            )));
        }
        let old = param.var().as_detached_tensor().copy()?;
        let gradient = match gradients.get(param.var()) {
            Some(gradient) => gradient.detach(),
            None => old.zeros_like()?,
        };
        let result = (0..DIRECTIONS)
            .map(|direction| {
                let seed = seed::nth(number as u64, direction);
                ratio(param, &old, &gradient, (value, seed), loss)
            })
            .find_map(Result::transpose);
        param.set(&old)?;
        if let Some(ratio) = result.transpose()? {
            let name = param.name();
            differing.push(format!("`{name}` ({ratio:.2} times the slope in one direction)"));
        }
    }
    Ok(differing)
}

/// The gradient's slope in a random direction relative to that of the loss, if they certainly differ.
fn ratio(
    param: &Param,
    old: &Tensor,
    gradient: &Tensor,
    (value, seed): (f64, u64),
    loss: &impl Fn() -> Result<Tensor>,
) -> Result<Option<f64>> {
    let size = old.sqr()?.mean_all()?.to_dtype(DType::F64)?.to_scalar::<f64>()?.sqrt().max(0.1);
    let mut rng = seed::rng(seed);
    let signs = (0..old.elem_count()).map(|_| if rng.random::<bool>() { size } else { -size });
    let direction = Tensor::from_iter(signs, &candle_core::Device::Cpu)?.reshape(old.shape())?;
    let direction = direction.to_device(old.device())?.to_dtype(old.dtype())?;
    let claimed = scalar(&(gradient * &direction)?.sum_all()?)?;
    let at = |step: f64| {
        param.set(&(old + (&direction * step)?)?)?;
        scalar(&loss()?)
    };
    let slope = |step: f64| -> Result<f64> { Ok((at(step)? - at(-step)?) / (2.0 * step)) };
    let [wide, narrow] = STEPS.map(slope);
    let (wide, narrow) = (wide?, narrow?);
    // What rounding of the loss makes of a slope.
    let epsilon = if old.dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let noise = 16.0 * epsilon * value.abs() / STEPS[1];
    let least = TOLERANCE * wide.abs().max(claimed.abs()) + noise;
    let is_certain = (wide - narrow).abs() < 0.25 * least.max((wide - claimed).abs());
    let differs = (wide - claimed).abs() > least && (narrow - claimed).abs() > least;
    Ok((is_certain && differs).then(|| claimed / wide))
}

fn scalar(loss: &Tensor) -> Result<f64> {
    loss.to_dtype(DType::F64)?.to_scalar::<f64>()
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Module};

    use super::*;
    use crate::layers::{BatchNorm2d, Dropout, Linear};

    #[test]
    fn layers_pass_and_are_as_before() -> crate::Result<()> {
        let params = Params::new(0);
        let root = params.root();
        let (one, two) = (Linear::new(&root.pp("one"), 5), Linear::new(&root.pp("two"), 2));
        let (norm, dropout) = (BatchNorm2d::new(&root.pp("norm")), Dropout::new(&root, 0.5));
        let xs = Tensor::from_iter((0..24).map(|i| (i * 7 % 11) as f32 - 4.0), &Device::Cpu)?;
        let xs = xs.reshape((6, 4))?;
        let loss = |factor: f64| {
            let hidden = norm.forward(&one.forward(&xs)?)?;
            let kept = (hidden.detach() * factor)? + (&hidden * (1.0 - factor))?;
            two.forward(&dropout.forward(&kept?)?)?.sqr()?.mean_all()
        };
        // It leaves statistics that no step has made permanent.
        loss(0.0)?;
        let state = || -> Result<Vec<Tensor>> {
            let buffers = params.buffers().into_iter().map(|buffer| buffer.value());
            let values = params.list().into_iter().map(|param| param.var().as_detached_tensor());
            values.chain(buffers).map(|value| value.copy()).collect()
        };
        let bits = |values: Vec<Tensor>| -> Result<Vec<Vec<f32>>> {
            values.iter().map(|value| value.flatten_all()?.to_vec1()).collect()
        };
        let before = bits(state()?)?;
        check_gradients(&params, || loss(0.0))?;
        // A part of the gradient is missing before the cut.
        let error = check_gradients(&params, || loss(0.4)).unwrap_err().to_string();
        assert!(error.contains("`one.weight` (0.6"), "{error}");
        assert!(!error.contains("two."), "{error}");
        assert_eq!(bits(state()?)?, before);
        let random = || Tensor::rand(0f32, 1.0, (), &Device::Cpu);
        assert!(matches!(check_gradients(&params, random), Err(Error::LossDiffers)));
        Ok(())
    }
}
