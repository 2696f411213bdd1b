//! The arguments of a batch normalisation, and its checks.

use std::sync::Arc;

use candle_core::{Result, Shape, Tensor, bail};

use super::BatchNorm2dOp;
use super::config::{BatchNormConfig, NAME, RunningStatistics};
use crate::autograd::fused;
use crate::kernels::channel_line::Rectifier;
use crate::kernels::channel_planes::ChannelPlanes;
use crate::ops::activations;
use crate::ops::add::add;
use crate::{Activation, StatisticsExchange};

/// The parameters, statistics and configuration of a batch normalisation.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchNorm<'a> {
    /// The factor of each channel, (C). `None` for 1.
    pub weight: Option<&'a Tensor>,
    /// The summand of each channel, (C). `None` for 0.
    pub bias: Option<&'a Tensor>,
    /// In training, they move towards the statistics of the batch. In evaluation, they are used instead.
    pub running: Option<&'a RunningStatistics>,
    /// With it, training uses the statistics of the batches of all replicas, as [`sync_batch_norm2d`] does.
    pub exchange: Option<&'a Arc<dyn StatisticsExchange>>,
    /// Momentum, epsilon, activation, and whether this is training.
    pub config: BatchNormConfig,
}

/// Normalises each channel, scales it by `weight` and adds `bias`.
///
/// In training, `running` (if given) moves towards the statistics of the batch:
/// `running = (1 - momentum) running + momentum batch`, with the unbiased variance. In evaluation,
/// the channels are normalised by `running`.
///
/// # Shapes
///
/// `xs` (N, C, H, W) or (N, C), `weight` and `bias` (C) -> the shape of `xs`.
///
/// # Errors
///
/// If shapes or dtypes do not fit together, the dtype is no float, `eps` is negative, a
/// channel has fewer than two values in training, or `running` is missing in evaluation.
pub fn batch_norm2d(
    xs: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    running: Option<&RunningStatistics>,
    config: BatchNormConfig,
) -> Result<Tensor> {
    normalise(xs, BatchNorm { weight, bias, running, exchange: None, config }, None)
}

/// [`batch_norm2d`] by the statistics of the batches of all replicas, in training: PyTorch's
/// `SyncBatchNorm`. The batches of the replicas may differ in size and may be empty.
///
/// Forward and backward are one exchange each. The backward exchanges only if the input needs a
/// gradient. It computes the gradient of the sum of all replicas' losses by this replica's input,
/// and this replica's share of the gradients by `weight` and `bias`. A single replica gets the bits
/// of [`batch_norm2d`].
///
/// # Errors
///
/// Those of [`batch_norm2d`], where the limit of two values per channel holds for all batches
/// together, and those of the exchange.
pub fn sync_batch_norm2d(
    xs: &Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    running: Option<&RunningStatistics>,
    config: BatchNormConfig,
    exchange: &Arc<dyn StatisticsExchange>,
) -> Result<Tensor> {
    normalise(xs, BatchNorm { weight, bias, running, exchange: Some(exchange), config }, None)
}

/// `activation(norm(xs) + residual)`, the end of a residual branch: [`batch_norm2d`], or
/// [`sync_batch_norm2d`], whose result is added to `residual` before the activation. On a GPU these are two
/// operations, [`batch_norm2d`] and [`add`](crate::ops::add()).
///
/// # Shapes
///
/// `xs` (N, C, H, W) or (N, C), `residual` of the same shape -> the same shape.
///
/// # Cost
///
/// The normalised values are neither stored in the forward nor is their gradient in the backward.
///
/// # Errors
///
/// Those of [`batch_norm2d`], and a residual of another shape.
pub fn batch_norm2d_add(xs: &Tensor, norm: BatchNorm<'_>, residual: &Tensor) -> Result<Tensor> {
    if residual.dims() != xs.dims() {
        let (xs, residual) = (xs.shape(), residual.shape());
        bail!("{NAME}: residual of shape {residual:?} for an input of shape {xs:?}");
    }
    if !xs.device().is_cpu() {
        let config = BatchNormConfig { activation: None, ..norm.config };
        let ys = normalise(xs, BatchNorm { config, ..norm }, None)?;
        return add(&ys, residual, norm.config.activation);
    }
    normalise(xs, norm, Some(residual))
}

/// The operation, with a `residual` if there is one.
pub(crate) fn normalise(
    xs: &Tensor,
    norm: BatchNorm<'_>,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let op = BatchNorm2dOp::new(xs.shape(), norm, residual.is_some())?;
    // With another activation fused, the backward would have to compute the activation again.
    let late = norm.config.activation.filter(|_| op.rectifier.is_none());
    let BatchNorm { weight, bias, config, .. } = norm;
    if config.training {
        let inputs = [Some(xs), weight, bias, None, None, residual];
        return activations::apply(fused::run(op, xs.shape(), &inputs)?, late);
    }
    // Running statistics beside 16 bits are in f32. On a GPU candle cannot convert nothing.
    let widened = |tensor: &Tensor| match xs.elem_count() {
        0 => tensor.to_dtype(xs.dtype()),
        _ => fused::widen(tensor),
    };
    let [mean, variance] = norm.statistics();
    let inputs = [Some(xs), weight, bias, mean.as_ref(), variance.as_ref(), residual];
    let mut wide = [const { None }; 6];
    for (wide, input) in wide.iter_mut().zip(inputs) {
        *wide = input.map(widened).transpose()?;
    }
    let ys = fused::run(op, xs.shape(), &wide.each_ref().map(Option::as_ref))?;
    activations::apply(ys.to_dtype(xs.dtype())?, late)
}

impl BatchNorm<'_> {
    /// The running mean and variance.
    pub(super) fn statistics(&self) -> [Option<Tensor>; 2] {
        let running = self.running;
        [running.map(|running| running.mean.value()), running.map(|r| r.variance.value())]
    }
}

impl BatchNorm2dOp {
    /// The operation for inputs of a shape. It fuses the activation if this is a [`Rectifier`].
    pub(super) fn new(shape: &Shape, norm: BatchNorm<'_>, has_residual: bool) -> Result<Self> {
        let BatchNorm { weight, bias, running, exchange, config } = norm;
        let (batch, channels, plane) = match *shape.dims() {
            [batch, channels] => (batch, channels, 1),
            [batch, channels, height, width] => (batch, channels, height * width),
            _ => bail!("{NAME}: input of shape {shape:?}, expected (N, C, H, W) or (N, C)"),
        };
        if config.eps.is_nan() || config.eps < 0.0 {
            bail!("{NAME}: eps {} is not a small positive number", config.eps);
        }
        let [mean, variance] = norm.statistics();
        let named = [
            ("weight", weight),
            ("bias", bias),
            ("running mean", mean.as_ref()),
            ("running variance", variance.as_ref()),
        ];
        for (name, tensor) in named {
            if let Some(tensor) = tensor.filter(|tensor| tensor.dims() != [channels]) {
                bail!("{NAME}: {name} of shape {:?} for {channels} channels", tensor.shape());
            }
        }
        let exchange = exchange.filter(|_| config.training).cloned();
        if config.training && batch * plane < 2 && exchange.is_none() {
            bail!(
                "{NAME}: more than one value per channel is needed in training, the input is {shape:?}"
            );
        }
        if !config.training && running.is_none() {
            bail!("{NAME}: evaluation needs running statistics");
        }
        let rectifier = match config.activation {
            Some(Activation::Relu) => Some(Rectifier::Relu),
            Some(Activation::Relu6) => Some(Rectifier::Relu6),
            _ => None,
        };
        let geometry = ChannelPlanes { batch, channels, plane };
        let running = running.cloned();
        Ok(Self { geometry, running, rectifier, has_residual, config, exchange })
    }
}
