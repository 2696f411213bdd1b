//! Initial values of parameters, drawn from a seeded generator.

use candle_core::{DType, Device, Result, Shape, Tensor};
use rand::Rng;
use rand_distr::{Distribution, Normal, Uniform};

/// The distribution of a parameter's initial values.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Init {
    /// The same value for every element.
    Const(f64),
    /// Uniform in `[low, high)`.
    Uniform {
        /// Inclusive lower end.
        low: f64,
        /// Exclusive upper end.
        high: f64,
    },
    /// Normal with mean zero.
    Normal {
        /// Standard deviation.
        std: f64,
    },
}

impl Init {
    /// All zeros.
    pub const ZEROS: Self = Self::Const(0.0);

    /// SINGA's default for layers: `N(0, sqrt(2 / (fan_in + fan_out)))` (Glorot and Bengio, AISTATS
    /// 2010).
    pub fn glorot_normal(fan_in: usize, fan_out: usize) -> Self {
        Self::Normal { std: (2.0 / (fan_in + fan_out) as f64).sqrt() }
    }

    /// `N(0, sqrt(2 / fan))`, for layers before a ReLU (He et al., ICCV 2015): PyTorch's
    /// `kaiming_normal_`. `fan` is the number of inputs of each output, or the number of outputs of
    /// each input. torchvision's ResNet uses a convolution's outputs, `out_channels · KH · KW`.
    pub fn he_normal(fan: usize) -> Self {
        Self::Normal { std: (2.0 / fan as f64).sqrt() }
    }

    /// A tensor of `shape` drawn from `rng`.
    ///
    /// # Errors
    /// A meaningless distribution (a negative deviation, an empty interval), or candle's own error.
    pub fn tensor(
        self,
        shape: &Shape,
        dtype: DType,
        device: &Device,
        rng: &mut impl Rng,
    ) -> Result<Tensor> {
        let count = shape.elem_count();
        let values: Vec<f64> = match self {
            Self::Const(value) => vec![value; count],
            Self::Uniform { low, high } => Uniform::new(low, high)
                .map_err(candle_core::Error::wrap)?
                .sample_iter(rng)
                .take(count)
                .collect(),
            // rand_distr would accept a negative deviation as its absolute value.
            Self::Normal { std } if std < 0.0 => {
                candle_core::bail!("a standard deviation of {std} is negative")
            }
            Self::Normal { std } => Normal::new(0.0, std)
                .map_err(candle_core::Error::wrap)?
                .sample_iter(rng)
                .take(count)
                .collect(),
        };
        Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed;

    #[test]
    fn values_follow_the_distribution_and_the_seed() -> Result<()> {
        let draw = |init: Init, seed: u64| -> Result<Vec<f32>> {
            let mut rng = seed::rng(seed);
            init.tensor(&(100, 100).into(), DType::F32, &Device::Cpu, &mut rng)?
                .flatten_all()?
                .to_vec1()
        };
        let normal = draw(Init::glorot_normal(30, 20), 1)?;
        let mean = normal.iter().sum::<f32>() / 1e4;
        let std = (normal.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 1e4).sqrt();
        assert!(mean.abs() < 0.01, "mean {mean}");
        assert!((std - 0.2).abs() < 0.01, "std {std}");
        assert_eq!(normal, draw(Init::glorot_normal(30, 20), 1)?);
        assert_ne!(normal, draw(Init::glorot_normal(30, 20), 2)?);
        let uniform = draw(Init::Uniform { low: -1.0, high: 2.0 }, 1)?;
        assert!(uniform.iter().all(|x| (-1.0..2.0).contains(x)));
        Ok(())
    }

    #[test]
    fn a_negative_deviation_is_refused() {
        let mut rng = seed::rng(0);
        let shape = Shape::from(3);
        assert!(
            Init::Normal { std: -1.0 }.tensor(&shape, DType::F32, &Device::Cpu, &mut rng).is_err()
        );
    }
}
