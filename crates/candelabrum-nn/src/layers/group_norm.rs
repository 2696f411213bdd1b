//! Group normalisation (Wu and He, arXiv:1803.08494) and instance normalisation (Ulyanov et al., arXiv:1607.08022).

use candle_core::{Module, Result, Tensor, bail};
use once_cell::sync::OnceCell;

use super::{check_features, sizes};
use crate::ops;
use crate::{Init, Param, Scope};

/// `(N, C, ..) -> (N, C, ..)`: each group of channels of each sample gets mean 0 and variance 1, then `weight`
/// multiplies each channel and `bias` is added.
///
/// The result for a sample does not depend on the others of its batch, so it is the same in training and in
/// evaluation, and for any number of replicas. The first input determines the number of channels. `weight` starts
/// at one, `bias` at zero.
#[derive(Debug)]
pub struct GroupNorm {
    scope: Scope,
    groups: usize,
    affine: bool,
    eps: f64,
    state: OnceCell<Affine>,
}

/// `(N, C, H, W) -> (N, C, H, W)`: each channel of each image gets mean 0 and variance 1. As in PyTorch there is
/// no weight and no bias unless [`affine`](Self::affine) asks for them, and there are no running statistics.
#[derive(Debug)]
pub struct InstanceNorm2d {
    scope: Scope,
    affine: bool,
    eps: f64,
    state: OnceCell<Affine>,
}

/// The number of channels, with weight and bias.
#[derive(Debug)]
struct Affine {
    channels: usize,
    parameters: Option<(Param, Param)>,
}

impl GroupNorm {
    /// PyTorch's defaults: eps 1e-5, weight and bias. `groups` divides the channels.
    pub fn new(scope: &Scope, groups: usize) -> Self {
        Self { scope: scope.clone(), groups, affine: true, eps: 1e-5, state: OnceCell::new() }
    }

    builder! { layer:
        /// The constant added to the variance.
        eps(eps: f64) => layer.eps = eps;
        /// Makes a layer without weight and bias.
        no_affine() => layer.affine = false;
    }
}

impl InstanceNorm2d {
    /// PyTorch's defaults: eps 1e-5, neither weight nor bias.
    pub fn new(scope: &Scope) -> Self {
        Self { scope: scope.clone(), affine: false, eps: 1e-5, state: OnceCell::new() }
    }

    builder! { layer:
        /// The constant added to the variance.
        eps(eps: f64) => layer.eps = eps;
        /// Makes a layer with weight and bias.
        affine() => layer.affine = true;
    }
}

impl Affine {
    fn new(scope: &Scope, channels: usize, wanted: bool) -> Result<Self> {
        let create = || -> Result<(Param, Param)> {
            let weight = scope.param("weight", channels, Init::Const(1.0))?;
            Ok((weight, scope.param("bias", channels, Init::ZEROS)?))
        };
        Ok(Self { channels, parameters: wanted.then(create).transpose()? })
    }

    fn normalise(&self, scope: &Scope, xs: &Tensor, groups: usize, eps: f64) -> Result<Tensor> {
        check_features(scope, "channels", self.channels, xs.dim(1)?)?;
        let (weight, bias) = match &self.parameters {
            Some((weight, bias)) => (Some(weight.tensor()), Some(bias.tensor())),
            None => (None, None),
        };
        ops::group_norm(xs, groups, weight, bias, eps)
    }
}

impl Module for GroupNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (path, groups) = (self.scope.path(), self.groups);
        let &[_, channels, ..] = xs.dims() else {
            bail!("layer `{path}`: input of shape {:?}, expected (N, C, ..)", xs.shape())
        };
        if groups == 0 || !channels.is_multiple_of(groups) {
            bail!("layer `{path}`: {channels} channels do not divide into {groups} groups")
        }
        let state =
            self.state.get_or_try_init(|| Affine::new(&self.scope, channels, self.affine))?;
        let ys = state.normalise(&self.scope, xs, groups, self.eps)?;
        self.scope.trace(&format!("GroupNorm {groups}"), &ys);
        Ok(ys)
    }
}

impl Module for InstanceNorm2d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let [_, channels, height, width] = sizes(&self.scope, xs, "(N, C, H, W)")?;
        if height * width < 2 {
            bail!(
                "layer `{}`: more than one pixel per channel is needed, the input is {:?}",
                self.scope.path(),
                xs.shape()
            )
        }
        let state =
            self.state.get_or_try_init(|| Affine::new(&self.scope, channels, self.affine))?;
        let ys = state.normalise(&self.scope, xs, channels, self.eps)?;
        self.scope.trace("InstanceNorm2d", &ys);
        Ok(ys)
    }
}
