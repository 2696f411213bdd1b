//! Models of `candle_nn`, rebuilt for each step on the parameters of a store.

use candle_core::{DType, Device, Result, Shape, Tensor, bail};
use candle_nn::VarBuilder;
use candle_nn::var_builder::SimpleBackend;

use crate::{Buffer, Params};

impl Params {
    /// A `VarBuilder` for one step, whose tensors are [`Param::identity`](crate::Param::identity)
    /// of the parameters, and the variables of the buffers. A `candle_nn` model built on it reports each gradient as soon as it is
    /// known, so the gradient can be sent while the backward pass continues. Layers of `candle_nn`
    /// are cheap to build: build the model at the start of every step.
    ///
    /// ```
    /// use candelabrum_nn::Params;
    /// use candle_core::{DType, Device, Module, Tensor};
    /// use candle_nn::{VarBuilder, VarMap, linear};
    ///
    /// let varmap = VarMap::new();
    /// linear(3, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    /// let params = Params::from_varmap(&varmap)?;
    /// let model = linear(3, 2, params.var_builder())?;
    /// let output = model.forward(&Tensor::ones((1, 3), DType::F32, &Device::Cpu)?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn var_builder(&self) -> VarBuilder<'static> {
        let (dtype, device) = (self.dtype(), self.device().clone());
        VarBuilder::from_backend(Box::new(OfStep(self.clone())), dtype, device)
    }
}

struct OfStep(Params);

impl SimpleBackend for OfStep {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: candle_nn::Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        if tensor.shape() != &shape {
            bail!("`{name}` is {:?}, the model asks for {shape:?}", tensor.shape())
        }
        Ok(tensor)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, _: &Device) -> Result<Tensor> {
        // A layer writes into its buffer, so it gets the variable itself.
        let tensor = match self.buffer(name) {
            Some(buffer) => buffer.var().as_tensor().clone(),
            None => {
                let param = self.0.get(name).map_err(candle_core::Error::wrap)?;
                param.identity().map_err(candle_core::Error::wrap)?
            }
        };
        if tensor.dtype() != dtype {
            bail!("`{name}` is {:?}, the model asks for {dtype:?}", tensor.dtype())
        }
        Ok(tensor)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.get(name).is_ok() || self.buffer(name).is_some()
    }
}

impl OfStep {
    fn buffer(&self, name: &str) -> Option<Buffer> {
        self.0.buffers().into_iter().find(|buffer| buffer.name() == name)
    }
}
