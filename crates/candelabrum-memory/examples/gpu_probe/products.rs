//! Matrix products by cuBLAS: at every place of memory, in every type, and in TF32.

use anyhow::Result;
use candelabrum_memory::ElementType;
use candelabrum_memory::cuda::Matrix;
use candle_core::cuda_backend::set_gemm_reduced_precision_f32;
use serde_json::json;

use crate::numbers::{Numbers, bound, distance, drawn};
use crate::probe::{Probe, say};

/// Rows, inner size and columns.
const SIZES: [(usize, usize, usize); 3] = [(64, 64, 64), (33, 100, 24), (64, 800, 10)];

/// `a b` in f64.
pub(crate) fn reference(
    a: &[f32],
    b: &[f32],
    (rows, inner, columns): (usize, usize, usize),
) -> Vec<f64> {
    let mut out = vec![0.0; rows * columns];
    for (a, out) in a.chunks_exact(inner).zip(out.chunks_exact_mut(columns)) {
        for (a, b) in a.iter().zip(b.chunks_exact(columns)) {
            for (b, out) in b.iter().zip(out.iter_mut()) {
                *out += f64::from(*a) * f64::from(*b);
            }
        }
    }
    out
}

/// The factors of a product on the GPU, and on the host.
pub(crate) struct Factors {
    pub(crate) a: Numbers,
    pub(crate) b: Numbers,
    pub(crate) host: [Vec<f32>; 2],
    pub(crate) size: (usize, usize, usize),
}

impl Factors {
    pub(crate) fn new(
        probe: &Probe,
        element: ElementType,
        size: (usize, usize, usize),
    ) -> Result<Self> {
        let (rows, inner, columns) = size;
        let host = [drawn(element, rows * inner, 1), drawn(element, inner * columns, 2)];
        let [a, b] = host.each_ref().map(|values| Numbers::new(probe, element, values));
        Ok(Self { a: a?, b: b?, host, size })
    }

    pub(crate) fn matrices(&self) -> Result<[Matrix<'_>; 2]> {
        let (rows, inner, columns) = self.size;
        let a = Matrix { values: self.a.read()?, size: (rows, inner), transposed: false };
        let b = Matrix { values: self.b.read()?, size: (inner, columns), transposed: false };
        Ok([a, b])
    }
}

/// Products whose results begin at different places.
pub(crate) fn places(probe: &Probe, element: ElementType) -> Result<bool> {
    let mut good = true;
    for size in SIZES {
        let factors = Factors::new(probe, element, size)?;
        let [a, b] = factors.matrices()?;
        let expected = reference(&factors.host[0], &factors.host[1], size);
        let mut first = None;
        for offset in [0, 16, 8, 4] {
            let mut out = Numbers::unset(probe, element, expected.len(), offset)?;
            probe.gpu.matmul(out.write()?, false, a, b)?;
            let (got, is_kept) = out.values()?;
            let (apart, largest) = distance(&got, &expected);
            let bits: Vec<u32> = got.into_iter().map(f32::to_bits).collect();
            let is_same = *first.get_or_insert_with(|| bits.clone()) == bits;
            let is_right = apart <= bound(element, false) && is_kept;
            say(&json!({
                "size": size, "offset": offset, "distance": apart, "largest": largest,
                "around_it_kept": is_kept, "bits_of_offset_0": is_same, "right": is_right,
            }));
            good &= is_right;
        }
    }
    Ok(good)
}

/// What candle's switch for TF32 changes.
pub(crate) fn tf32(probe: &Probe) -> Result<bool> {
    let size = (512, 512, 512);
    let factors = Factors::new(probe, ElementType::F32, size)?;
    let expected = reference(&factors.host[0], &factors.host[1], size);
    let mut found = [0.0; 2];
    for (at, on) in [false, true].into_iter().enumerate() {
        set_gemm_reduced_precision_f32(on);
        let mut out = Numbers::unset(probe, ElementType::F32, expected.len(), 0)?;
        let [a, b] = factors.matrices()?;
        probe.gpu.matmul(out.write()?, false, a, b)?;
        let (apart, largest) = distance(&out.values()?.0, &expected);
        say(&json!({"tf32": on, "distance": apart, "largest": largest}));
        found[at] = apart;
    }
    Ok(found[0] <= bound(ElementType::F32, false) && found[1] <= bound(ElementType::F32, true))
}
