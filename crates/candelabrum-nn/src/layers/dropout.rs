//! Dropout (Srivastava et al., JMLR 2014), seeded.

use candle_core::{Module, Result, Tensor};

use crate::{Scope, ops};

/// In training, sets each element to zero with probability `p` and scales the rest by
/// `1 / (1 - p)`. In evaluation, the identity. The masks depend on the run's seed, the layer's
/// path, the count of calls and the noise stream. The distributed optimizer gives each rank its own
/// stream. Ranks that compute one replica together (tensor parallelism) must drop the same units,
/// so they need a common stream: [`crate::Params::set_noise_stream`].
#[derive(Clone, Debug)]
pub struct Dropout {
    scope: Scope,
    p: f32,
}

impl Dropout {
    /// Drops each element with probability `p`, with `0 <= p < 1`.
    pub fn new(scope: &Scope, p: f32) -> Self {
        Self { scope: scope.clone(), p }
    }

    /// Whether the layer drops anything now: in training.
    pub(crate) fn is_active(&self) -> bool {
        self.scope.is_training()
    }
}

impl Module for Dropout {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.scope.trace(&format!("Dropout {}", self.p), xs);
        if !self.scope.is_training() {
            return Ok(xs.clone());
        }
        ops::dropout(xs, self.p, self.scope.noise_seed())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::Params;

    #[test]
    fn drops_in_training_only() -> Result<()> {
        let params = Params::new(0);
        let dropout = Dropout::new(&params.root().pp("drop"), 0.5);
        let ones = Tensor::ones(1000, DType::F32, &Device::Cpu)?;
        let dropped = dropout.forward(&ones)?.to_vec1::<f32>()?;
        let kept = dropped.iter().filter(|&&x| x == 2.0).count();
        assert!((400..600).contains(&kept), "{kept} of 1000 kept");
        params.eval();
        assert_eq!(dropout.forward(&ones)?.to_vec1::<f32>()?, vec![1.0; 1000]);
        Ok(())
    }
}
