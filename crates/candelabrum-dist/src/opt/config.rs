//! Settings of a distributed optimizer.

use std::fmt;
use std::str::FromStr;

use candelabrum_optim::Clip;
use serde::{Deserialize, Serialize};

use super::LossScale;
use crate::bucketing::BucketSizing;
use crate::buffers::BufferSync;
use crate::comm::ElementType;
use crate::strategy::StrategyConfig;
use crate::{Error, Result};

/// Settings of a [`crate::DistOpt`], the same on every rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistOptConfig {
    /// Size of the first bucket in bytes. It is small, because most of the backward pass is still
    /// to come after it.
    pub first_bucket_bytes: usize,
    /// Size of the other buckets in bytes.
    pub bucket_bytes: usize,
    /// SINGA's `threshold` in elements. If it is set, it determines the buckets instead of the two
    /// sizes above: a larger parameter has a bucket of its own, and other parameters fill a bucket
    /// until it has more than this many elements.
    pub threshold: Option<usize>,
    /// Whether buckets leave during the backward pass. The results are the same, bit for bit. Without
    /// overlap a step is easier to measure, and candle's own operations may use a parameter in some
    /// steps and not in others.
    pub overlap: bool,
    /// Whether the next forward pass may begin before the new values of other ranks have arrived
    /// ([`Shard::Optimizer`]): the first access to a parameter ([`Param::tensor`](candelabrum_nn::Param::tensor)) waits
    /// for its values. Megatron-LM's `overlap_param_gather`.
    ///
    /// Set it for a model that takes the tensors of its parameters anew in each pass, as the layers of this crate do. Until
    /// a parameter is accessed, an operation on a tensor of it that was kept from an earlier step is an error. Parameters
    /// that were given to the store ([`Params::from_varmap`](candelabrum_nn::Params::from_varmap)) are kept by their
    /// model, and with one of them this setting has no effect.
    pub overlap_forward: bool,
    /// Whether a parameter may have no gradient in a step. Its gradient is then zero, so this loss never
    /// trains it, but weight decay and momentum still move it. If the gradient is missing by mistake, the
    /// parameter stays untrained without a word: read the error that proposes this setting first.
    pub allow_unused: bool,
    /// The treatment of buffers, for instance the running statistics of a batch normalisation, when
    /// [`DistOpt::average_parameters`](crate::DistOpt) makes one model of the ranks' models.
    pub buffers: BufferSync,
    /// Whether a rank may run out of batches before other ranks, and then call
    /// [`DistOpt::join`](crate::DistOpt::join). The ranks then exchange
    /// what their batches count, 16 bytes per step. It cannot be combined with a synchronized batch
    /// normalisation ([`DistOpt::check_uneven`](crate::DistOpt::check_uneven)).
    pub uneven: bool,
    /// The reaction to an average that is too large for its element type although every gradient is
    /// finite.
    pub on_overflow: OnOverflow,
    /// The limit to which the averaged gradient is clipped before every update; `None` clips
    /// nothing. The norm is the norm of the whole model's averaged gradient, so it is the same on
    /// every rank. If ranks average parameters instead (partialUpdate), each rank clips its own
    /// gradient.
    pub clip_gradients: Option<Clip>,
    /// The factor of the loss in the backward pass, for parameters in f16.
    pub loss_scale: LossScale,
    /// What each rank keeps only a shard of. The ranks' models are the same as without it, bit for bit, where the
    /// backend adds in rank order (all but NCCL).
    pub shard: Shard,
    /// The settings of strategies.
    pub strategy: StrategyConfig,
}

/// What each rank keeps only a shard of, so that the ranks together have it once.
///
/// # Hosts
///
/// Over a [hierarchical](crate::Communicator::hierarchical) group whose hosts have equally many ranks, the ranks of
/// *each host* together have it once (PyTorch's hybrid sharding, HSDP). A rank keeps the shard that belongs to its
/// place on its host, and the ranks of the same place on other hosts keep copies. Only averages of a rank's own shard
/// travel between hosts: new values, and the values that blocks fetch, come from ranks of the same host. The ranks'
/// models are those of the same group without shards, bit for bit. With one rank on each host every rank keeps all.
///
/// If hosts have different numbers of ranks, and over NCCL, the shards are those of all ranks, and the models are those
/// of a group that knows no hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Shard {
    /// Nothing is sharded: every rank has all.
    #[default]
    None,
    /// The state of the optimizer (ZeRO-1). A rank gets the averaged gradients of its shard, updates these
    /// elements, and sends their new values to the other ranks. That moves as many bytes as the all-reduce. With
    /// [`DistOptConfig::overlap_forward`] the new values arrive while the next forward pass begins, where the exchange
    /// takes no time from the threads that compute, as between hosts.
    ///
    /// The sizes of buckets are [`DistOptConfig::bucket_bytes`] for every strategy, SINGA's methods included, and the
    /// order of the buckets is that of the parameters' creation, the last one first.
    Optimizer,
    /// The state and the averaged gradients (ZeRO-2). A bucket has memory from its first gradient until its
    /// averages have arrived, so four buckets are in memory at a time. Buckets are at most a sixteenth of the model, or
    /// have room for the parameters of two thirds of the model. Where four of them would need more than half of the
    /// memory of all, as in small models and in those of a few large parameters, this is [`Self::Optimizer`]. A parameter
    /// that is larger than a bucket has memory for its gradient from the first part of it until its averages have
    /// arrived. In the first step of a model with operations of candle all buckets have memory.
    ///
    /// Gradients that are [accumulated](crate::DistOpt::accumulate) stay whole on their rank until the step sends
    /// them, because a sum over micro-batches before the exchange has other bits than one after it. A step is not
    /// recorded as CUDA graphs, which write to the same memory at every replay.
    Gradients,
    /// The state, the averaged gradients, and the parameters (ZeRO-3) of the
    /// [blocks](candelabrum_nn::layers::Blocks) of a model. A rank has the values of a block only while it computes the
    /// block, in the forward pass and in the backward pass, and asks for those of the next block meanwhile. Whether blocks
    /// are computed again is another choice ([`Recompute`](candelabrum_nn::Recompute)). Parameters outside of blocks stay
    /// whole. Those of blocks that are frozen at the first step are divided, too, in their own type; on a GPU they stay
    /// whole.
    ///
    /// A rank may read a parameter at any time: it gets the values of the other ranks by messages, which their programs
    /// need not expect. All ranks must change a parameter together. A rank whose optimizer is dropped reads no values any
    /// more: [`gather_parameters`](crate::DistOpt::gather_parameters) makes the model whole before. A loss may use such a
    /// parameter outside of its block by [`Param::tensor`](candelabrum_nn::Param), not by `var`: its values then stay until
    /// they change. An operation on a tensor that is kept longer is an error. Drop the optimizer before the
    /// [`World`](crate::World), which at its end takes part in no step any more, and waits until no rank reads values of
    /// this one.
    Parameters,
}

/// The reaction to an overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum OnOverflow {
    /// The step returns an error that names the parameter.
    #[default]
    Error,
    /// Every rank leaves the step out and counts it.
    Skip,
}

impl Default for DistOptConfig {
    /// The sizes of PyTorch's DDP (1 MiB, then 25 MiB), with overlap of the backward pass, rank 0's buffers, an error on
    /// overflow, no clipping and no loss scaling.
    fn default() -> Self {
        Self {
            first_bucket_bytes: 1 << 20,
            bucket_bytes: 25 << 20,
            threshold: None,
            overlap: true,
            overlap_forward: false,
            allow_unused: false,
            buffers: BufferSync::default(),
            uneven: false,
            on_overflow: OnOverflow::Error,
            clip_gradients: None,
            loss_scale: LossScale::Off,
            shard: Shard::None,
            strategy: StrategyConfig::default(),
        }
    }
}

impl DistOptConfig {
    /// SINGA's default `threshold`, in elements.
    pub const SINGA_THRESHOLD: usize = 2_097_152;

    /// Returns an error for a setting out of range.
    ///
    /// # Errors
    /// [`Error::Setting`], or the error of the optimizers for `clip_gradients`.
    pub fn check(&self) -> Result<()> {
        if self.threshold == Some(0) {
            let (setting, value) = ("threshold", "0".to_owned());
            return Err(Error::Setting { setting, value, range: "at least 1 (element)" });
        }
        self.loss_scale.check()?;
        self.clip_gradients.map_or(Ok(()), |clip| Ok(clip.check()?))
    }

    pub(crate) fn sizing(&self) -> BucketSizing {
        let elements = |bytes: usize| (bytes / ElementType::F32.size()).max(1);
        let (first, cap) = (elements(self.first_bucket_bytes), elements(self.bucket_bytes));
        self.threshold.map_or(BucketSizing::Caps { first, cap }, BucketSizing::Threshold)
    }

    /// The sizing of SINGA's methods.
    pub(crate) fn singa_sizing(&self) -> BucketSizing {
        BucketSizing::Threshold(self.threshold.unwrap_or(Self::SINGA_THRESHOLD))
    }
}

impl Shard {
    /// Whether buckets have memory only while they are on their way.
    pub(crate) fn lends(self) -> bool {
        matches!(self, Self::Gradients | Self::Parameters)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Optimizer => "optimizer",
            Self::Gradients => "gradients",
            Self::Parameters => "parameters",
        })
    }
}

impl FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "none" | "nothing" => Ok(Self::None),
            "optimizer" => Ok(Self::Optimizer),
            "gradients" => Ok(Self::Gradients),
            "parameters" => Ok(Self::Parameters),
            other => Err(Error::Setting {
                setting: "shard",
                value: other.to_owned(),
                range: "none, optimizer, gradients or parameters",
            }),
        }
    }
}

impl fmt::Display for OnOverflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Skip => "skip",
        })
    }
}

impl FromStr for OnOverflow {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "error" => Ok(Self::Error),
            "skip" => Ok(Self::Skip),
            other => Err(Error::Setting {
                setting: "on-overflow",
                value: other.to_owned(),
                range: "error or skip",
            }),
        }
    }
}
