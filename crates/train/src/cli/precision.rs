//! The precision of a training.

use candelabrum_dist::LossScale;
use candle_core::DType;
use clap::ValueEnum;

/// The type of parameters and activations. Updates, gradients between ranks and the loss are f32 in
/// every precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// 32 bits
    #[default]
    F32,
    /// 16 bits with the exponents of f32
    Bf16,
    /// 16 bits with short exponents, and a dynamic loss scale
    F16,
}

impl Precision {
    /// The type, for [`Params::on`](candelabrum_nn::Params::on).
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// The factor of the loss, for [`DistOptConfig`](candelabrum_dist::DistOptConfig). Only the
    /// exponents of f16 need one.
    pub fn loss_scale(self) -> LossScale {
        match self {
            Self::F16 => LossScale::DYNAMIC,
            Self::F32 | Self::Bf16 => LossScale::Off,
        }
    }
}
