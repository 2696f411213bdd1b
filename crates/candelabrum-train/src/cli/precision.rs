//! The precision of a training.

use candelabrum_dist::LossScale;
use candelabrum_nn::Params;
use candelabrum_nn::ops::{ProductPrecision, bf16_instructions, set_product_precision};
use candle_core::{DType, Device};
use clap::ValueEnum;

use crate::{Error, Result};

/// The type of parameters and activations, or that of the factors of products alone. Updates,
/// gradients between ranks and the loss are f32 in every precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Precision {
    /// 32 bits
    #[default]
    F32,
    /// 16 bits with the exponents of f32. On the CPU only the factors of products
    Bf16,
    /// 16 bits with short exponents, and a dynamic loss scale
    F16,
    /// 32 bits, and on a GPU products whose factors are rounded to TF32 (19 bits)
    Tf32,
}

impl Precision {
    /// The type of parameters and activations on a device.
    pub fn dtype(self, device: &Device) -> DType {
        match self {
            Self::F32 | Self::Tf32 => DType::F32,
            Self::Bf16 if device.is_cpu() => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// How f32 numbers are multiplied.
    pub fn products(self) -> ProductPrecision {
        match self {
            Self::F32 | Self::F16 => ProductPrecision::F32,
            Self::Bf16 => ProductPrecision::Bf16,
            Self::Tf32 => ProductPrecision::Tf32,
        }
    }

    /// Refuses a precision that the device does not have. [`run`](super::run) does so before the program.
    ///
    /// # Errors
    /// TF32 on the CPU.
    pub fn check(self, device: &Device) -> Result<()> {
        if self == Self::Tf32 && device.is_cpu() {
            let range = "f32 or bf16 on the CPU: TF32 needs a GPU (--device cuda)";
            return Err(Error::option("--precision", &"tf32", range));
        }
        Ok(())
    }

    /// An empty store for a training in this precision. Sets the precision of products, too, which counts
    /// for the whole process: see [`set_product_precision`].
    pub fn params(self, seed: u64, device: &Device) -> Params {
        set_product_precision(self.products());
        Params::on(seed, self.dtype(device), device)
    }

    /// The precision in words: that of parameters and activations, and that of products where it differs.
    pub fn describe(self, device: &Device) -> String {
        let dtype = self.dtype(device).as_str();
        match (self.products(), bf16_instructions()) {
            (ProductPrecision::Bf16, Some(instructions)) if device.is_cpu() => {
                format!("{dtype} with products in bf16 ({instructions})")
            }
            (ProductPrecision::Bf16, None) if device.is_cpu() => {
                format!("{dtype} with products in bf16 (computed in f32, so not faster)")
            }
            (ProductPrecision::Tf32, _) if device.is_cuda() => {
                format!("{dtype} with products in tf32")
            }
            _ => dtype.to_owned(),
        }
    }

    /// The factor of the loss, for [`DistOptConfig`](candelabrum_dist::DistOptConfig). Only the
    /// exponents of f16 need one.
    pub fn loss_scale(self) -> LossScale {
        match self {
            Self::F16 => LossScale::DYNAMIC,
            Self::F32 | Self::Bf16 | Self::Tf32 => LossScale::Off,
        }
    }
}
