//! A model and its training step.

use candle_core::{Module, ModuleT, Result, Shape, Tensor};

use crate::autograd::fused::widen;
use crate::{DistOption, LossWeight, Params, Summary, ops, weighted};

/// The rest of a training step after the loss: the gradients, their exchange and the update.
///
/// The distributed optimizer implements this trait, so a model does not depend on its crate.
pub trait BackwardAndUpdate {
    /// The error of a step.
    type Error: From<candle_core::Error>;

    /// Computes the gradients of `loss` (a scalar), exchanges them by `dist_option` and updates
    /// every parameter. `spars` is the share (`sparseTopK`) or the magnitude (`sparseThreshold`)
    /// that a sparse strategy sends. Other strategies ignore it.
    ///
    /// # Errors
    /// Any failure that would make the step differ between ranks. No parameter has changed then,
    /// unless the strategy averages parameters after every rank's own update.
    fn backward_and_update_with(
        &mut self,
        loss: &Tensor,
        dist_option: DistOption,
        spars: f32,
    ) -> std::result::Result<(), Self::Error>;
}

/// A model: the forward pass, and a training step that can be overridden.
///
/// ```
/// use candelabrum_nn::{Activation, Model, Params, Scope, layers::Linear};
/// use candle_core::{Module, Result, Tensor};
///
/// struct Mlp { hidden: Linear, out: Linear }
///
/// impl Mlp {
///     fn new(scope: &Scope) -> Self {
///         Self {
///             hidden: Linear::new(&scope.pp("hidden"), 32).activation(Activation::Relu),
///             out: Linear::new(&scope.pp("out"), 10),
///         }
///     }
/// }
///
/// impl Model for Mlp {
///     fn forward(&self, xs: &Tensor) -> Result<Tensor> {
///         self.out.forward(&self.hidden.forward(&xs.flatten_from(1)?)?)
///     }
/// }
///
/// let params = Params::new(0);
/// let model = Mlp::new(&params.root());
/// let summary = model.compile(&params, (1, 1, 28, 28))?;
/// assert_eq!(summary.parameter_count(), 784 * 32 + 32 + 32 * 10 + 10);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub trait Model {
    /// The output for a batch `xs`, whose first dimension is the batch.
    ///
    /// # Errors
    /// candle's own, mostly shapes that do not fit together.
    fn forward(&self, xs: &Tensor) -> Result<Tensor>;

    /// The scalar that training minimises. The default is the mean softmax cross-entropy of
    /// `output` `(.., classes)` against `targets`, class indices `(..)` or one-hot `(.., classes)`: the
    /// mean over the images `(N,)` of a batch, or over all tokens `(N, T)` of its sequences. The loss of
    /// an output in f16 or bf16 is in f32, because 16 bits are too few for its scaled value.
    ///
    /// # Errors
    /// Shapes that do not fit together, or a class index out of range. On a GPU, such an index gives
    /// a loss of NaN instead.
    fn loss(&self, output: &Tensor, targets: &Tensor) -> Result<Tensor> {
        ops::softmax_cross_entropy(&widen(output)?, &widen(targets)?)
    }

    /// The output for a batch, and its loss. A model overrides it if it has its loss without the output that
    /// [`forward`](Self::forward) returns, for instance a language model that computes the last layer and the
    /// loss together. Then it returns whatever output is useful.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward) and [`loss`](Self::loss).
    fn output_and_loss(&self, xs: &Tensor, ys: &Tensor) -> Result<(Tensor, Tensor)> {
        let output = self.forward(xs)?;
        let loss = self.loss(&output, ys)?;
        Ok((output, loss))
    }

    /// How much of a batch with these targets the loss counts, in any unit that is the same on all ranks.
    ///
    /// `None`, the default, leaves it to the loss: a cross entropy of this crate counts its rows (samples, or
    /// tokens) that are not ignored, and a loss to which [`weighted`] gave a weight has this one. Any other loss
    /// counts the samples of its batch.
    ///
    /// Override it for a loss that counts something else. Or override it so that ranks can exchange the
    /// weights while the forward pass computes: the weight of the loss itself is known only afterwards.
    ///
    /// # Errors
    /// Targets that cannot be counted.
    fn loss_weight(&self, targets: &Tensor) -> Result<Option<f64>> {
        let _ = targets;
        Ok(None)
    }

    /// [`output_and_loss`](Self::output_and_loss), where the loss carries its [weight](LossWeight). Steps and
    /// evaluations call it.
    ///
    /// # Errors
    /// Those of [`output_and_loss`](Self::output_and_loss) and of [`loss_weight`](Self::loss_weight), and a
    /// weight that is negative or not finite.
    fn output_and_weighted_loss(&self, xs: &Tensor, ys: &Tensor) -> Result<(Tensor, Tensor)> {
        let (output, loss) = self.output_and_loss(xs, ys)?;
        match self.loss_weight(ys)? {
            Some(weight) => drop(weighted(&loss, weight)?),
            None if LossWeight::from_loss(&loss).is_none() => {
                LossWeight::fixed(xs.dims().first().copied().unwrap_or(1)).give_to(&loss);
            }
            None => {}
        }
        Ok((output, loss))
    }

    /// One step on one batch: forward, loss, backward, exchange, update. Returns the output and the
    /// loss, both detached from the graph. The returned loss carries its [weight](LossWeight). A `Box<dyn Model>` has this step, too, whatever the model in it
    /// overrides it by: such a model overrides [`output_and_loss`](Self::output_and_loss).
    ///
    /// # Errors
    /// Those of the forward pass and of [`BackwardAndUpdate::backward_and_update_with`].
    fn train_one_batch<U: BackwardAndUpdate>(
        &self,
        opt: &mut U,
        xs: &Tensor,
        ys: &Tensor,
        dist_option: DistOption,
        spars: f32,
    ) -> std::result::Result<(Tensor, Tensor), U::Error>
    where
        Self: Sized,
    {
        let (output, loss) = {
            let _span = tracing::debug_span!(target: "candelabrum::step", "forward").entered();
            self.output_and_weighted_loss(xs, ys)?
        };
        let weight = LossWeight::from_loss(&loss);
        opt.backward_and_update_with(&loss, dist_option, spars)?;
        let loss = loss.detach();
        if let Some(weight) = weight {
            weight.give_to(&loss);
        }
        Ok((output.detach(), loss))
    }

    /// Runs the model once on zeros of shape `input` (the batch first), so that every layer creates
    /// its parameters, and returns the table of layers. The zeros have the parameters' element
    /// type. For a model that takes token indices, see [`compile_with`](Self::compile_with).
    ///
    /// # Errors
    /// Those of the forward pass.
    fn compile(&self, params: &Params, input: impl Into<Shape>) -> Result<Summary>
    where
        Self: Sized,
    {
        let input = Tensor::zeros(input, params.dtype(), params.device())?;
        self.compile_with(params, &input)
    }

    /// [`compile`](Self::compile) on the tensor `input`, of any values and element type.
    ///
    /// # Errors
    /// Those of the forward pass.
    fn compile_with(&self, params: &Params, input: &Tensor) -> Result<Summary> {
        params.start_trace();
        let output = params.in_mode(false, || self.forward(input));
        let layers = params.take_trace();
        output?;
        Ok(Summary::new(input.dims(), layers, params))
    }
}

/// So a model may be chosen when the program runs, as a `Box<dyn Model>`.
impl<M: Model + ?Sized> Model for Box<M> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        (**self).forward(xs)
    }

    fn loss(&self, output: &Tensor, targets: &Tensor) -> Result<Tensor> {
        (**self).loss(output, targets)
    }

    fn output_and_loss(&self, xs: &Tensor, ys: &Tensor) -> Result<(Tensor, Tensor)> {
        (**self).output_and_loss(xs, ys)
    }

    fn loss_weight(&self, targets: &Tensor) -> Result<Option<f64>> {
        (**self).loss_weight(targets)
    }
}

/// Any candle [`Module`], for instance a `candle_nn` model, as a [`Model`].
///
/// Some layers of `candle_nn` cannot be trained as they are: docs/porting.md lists them, and what to take
/// instead.
#[derive(Clone, Debug)]
pub struct FromModule<M>(pub M);

impl<M: Module> Model for FromModule<M> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

/// Any candle [`ModuleT`], a module that computes something else in training than in evaluation, as a
/// [`Model`]: a network with `candle_nn`'s `BatchNorm` or `Dropout`. It trains while its [`Params`] are in
/// [training mode](Params::train).
///
/// ```
/// use candelabrum_nn::{FromModuleT, Model, Params};
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap, batch_norm};
///
/// let varmap = VarMap::new();
/// let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// let norm = batch_norm(1, 1e-5, vb.pp("norm"))?;
/// let params = Params::from_varmap(&varmap)?;
/// let model = FromModuleT::new(norm, &params);
///
/// let xs = Tensor::new(&[[1f32], [3.0]], &Device::Cpu)?;
/// let mean = || params.buffers()[0].value().to_vec1::<f32>();
/// params.in_mode(false, || model.forward(&xs))?;
/// assert_eq!(mean()?, [0.0]);
/// params.in_mode(true, || model.forward(&xs))?;
/// assert_eq!(mean()?, [0.2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct FromModuleT<M> {
    module: M,
    params: Params,
}

impl<M: ModuleT> FromModuleT<M> {
    /// `module`, in the mode of `params`.
    pub fn new(module: M, params: &Params) -> Self {
        Self { module, params: params.clone() }
    }
}

impl<M: ModuleT> Model for FromModuleT<M> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.module.forward_t(xs, self.params.is_training())
    }
}
