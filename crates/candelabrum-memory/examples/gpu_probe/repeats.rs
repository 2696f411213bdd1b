//! The same work many times: whether the bits of its results are the same.

use anyhow::Result;
use cudarc::cublaslt::CudaBlasLT;
use serde_json::json;

use crate::numbers::Numbers;
use crate::probe::{Probe, TYPES, say};
use crate::products::Factors;
use crate::{convolutions, epilogues};

/// Runs each kind of work 50 times, and compares the bits.
pub(crate) fn same_bits(probe: &Probe) -> Result<bool> {
    let (blas, mut good) = (CudaBlasLT::new(probe.stream.clone())?, true);
    for (name, element) in TYPES {
        let size = (64, 2048, 96);
        let factors = Factors::new(probe, element, size)?;
        let product = |_| {
            let mut out = Numbers::unset(probe, element, size.0 * size.2, 0)?;
            let [a, b] = factors.matrices()?;
            probe.gpu.matmul(out.write()?, false, a, b)?;
            Ok(out.values()?.0)
        };
        good &= repeat(&format!("product {name}"), product)?;
        let linear = |_| epilogues::linear(probe, &blas, element);
        good &= repeat(&format!("product with bias {name}"), linear)?;
        for product in convolutions::PRODUCTS {
            let work = |_| convolutions::once(probe, element, product);
            good &= repeat(&format!("convolution {name}, {product:?}"), work)?;
        }
    }
    Ok(good)
}

fn repeat(name: &str, work: impl Fn(usize) -> Result<Vec<f32>>) -> Result<bool> {
    let bits = |run| work(run).map(|values| values.into_iter().map(f32::to_bits).collect());
    let first: Vec<u32> = bits(0)?;
    let mut others = 0;
    for run in 1..50 {
        others += usize::from(bits(run)? != first);
    }
    say(&json!({"work": name, "runs": 50, "with_other_bits": others}));
    Ok(others == 0)
}
