//! Sums over the rows of a matrix on a GPU, in a fixed order.

use candelabrum_memory::ElementType;
use candelabrum_memory::cuda::{CudaNumbers, CudaNumbersMut, Gpu, Kernels, LaunchGrid, Scratch};
use candle_core::Result;

use super::launch::launch;

const KERNELS: Kernels = Kernels { name: "columns", text: include_str!("columns.cu") };

/// `ROWS` in columns.cu.
const ROWS: usize = 256;

/// `COLUMNS` in columns.cu.
const COLUMNS: usize = 32;

/// `sums[c] = sum_r values[r, c]`. Sums are added in f32 and rounded to the type of `sums`.
pub(in crate::ops) fn sum_rows(
    gpu: &Gpu,
    mut sums: CudaNumbersMut<'_>,
    values: CudaNumbers<'_>,
) -> Result<()> {
    let columns = sums.len();
    if columns == 0 {
        return Ok(());
    }
    let mut rows = values.len() / columns;
    if rows == 0 {
        return Ok(sums.clear()?);
    }
    // Each round replaces up to ROWS rows by their sum.
    let mut partial: Option<Scratch> = None;
    loop {
        let groups = rows.div_ceil(ROWS);
        let source = match &partial {
            None => values,
            Some(sums) => sums.span().into(),
        };
        let number = source.element_type();
        let grid = LaunchGrid::by_share(groups * columns.div_ceil(COLUMNS), 1);
        if groups == 1 && sums.element_type() == ElementType::F32 {
            return launch!(gpu, number, KERNELS, "sum_groups", grid; &mut sums, source, rows, columns);
        }
        let mut next = gpu.scratch(groups * columns)?;
        launch!(gpu, number, KERNELS, "sum_groups", grid; &mut next.span_mut(), source, rows, columns)?;
        if groups == 1 {
            return Ok(sums.round_from(next.span())?);
        }
        (partial, rows) = (Some(next), groups);
    }
}
