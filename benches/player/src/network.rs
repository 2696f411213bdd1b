//! A network with its initial values.

use std::num::NonZeroUsize;
use std::rc::Rc;

use candelabrum::nn::{Model, Params, Summary};
use candle_core::{Result, Tensor};

use crate::hash::{MORE_PARAMETERS, NOISE, uniform};
use crate::networks::{LossFn, ModelRecipe, Network};
use crate::sizes::NetworkSizes;

/// A network with its initial values.
pub(crate) struct BuiltNetwork {
    pub(crate) model: Rc<dyn Model>,
    pub(crate) loss: LossFn,
    pub(crate) summary: Summary,
}

/// The network, which infers the sizes of its layers from a batch of inputs. Dropout is 0, because the masks of other
/// libraries are others. `gpt` has so many `blocks`.
pub(crate) fn build(
    network: &Network,
    blocks: NonZeroUsize,
    sizes: NetworkSizes,
    params: &Params,
    xs: &Tensor,
) -> anyhow::Result<BuiltNetwork> {
    let recipe = ModelRecipe { root: &params.root(), sizes, blocks: blocks.get() };
    let (model, loss) = (network.model)(&recipe);
    let summary = model.compile_with(params, xs)?;
    initialise(params)?;
    Ok(BuiltNetwork { model, loss, summary })
}

/// Sets every parameter to its initial value: uniform in ±1/√fan-in. A normalisation keeps its 1 and
/// 0. The stream of the hash follows the parameter's index in the list, which has PyTorch's order.
fn initialise(params: &Params) -> Result<()> {
    let streams = (0..NOISE).chain(MORE_PARAMETERS..);
    for (stream, param) in streams.zip(params.list()) {
        let Some(fan_in) = fan_in(params, param.name(), param.var().dims())? else { continue };
        let bound = (fan_in as f64).powf(-0.5) as f32;
        let value = |i| (2.0 * uniform(stream, i) - 1.0) * bound;
        let values: Vec<f32> = (0..param.var().elem_count()).map(value).collect();
        let values = Tensor::from_vec(values, param.var().shape(), params.device())?;
        param.set(&values.to_dtype(param.var().dtype())?)?;
    }
    Ok(())
}

/// The inputs of an output of a parameter's layer. Those of a recurrent layer are its hidden state, that of an embedding
/// is one token, and those of a transformer's tables are the numbers of a row, because the table of the tokens is also the
/// weight of the last layer.
fn fan_in(params: &Params, name: &str, shape: &[usize]) -> Result<Option<usize>> {
    let (module, own) = name.rsplit_once('.').unwrap_or(("", name));
    if !own.starts_with("weight") && !own.starts_with("bias") {
        return Ok(shape.last().copied());
    }
    if module.ends_with("embedding") {
        return Ok(Some(1));
    }
    if let Ok(hidden) = params.get(&format!("{module}.weight_hh")) {
        return Ok(Some(hidden.var().dims()[1]));
    }
    Ok(match params.get(&format!("{module}.weight"))?.var().dims() {
        [_] => None,
        weight => Some(weight[1..].iter().product()),
    })
}
