//! Sums over the rows of a matrix on a GPU, in a fixed order.

use candelabrum_memory::cuda::{Arg, CudaSpan, CudaSpanMut, Gpu, Grid, Kernels};
use candelabrum_memory::{Flat, SpanMut};
use candle_core::Result;

const KERNELS: Kernels = Kernels { name: "columns", text: include_str!("columns.cu") };

/// `ROWS` in columns.cu.
const ROWS: usize = 256;

/// `sums[c] = sum_r values[r, c]`.
pub(super) fn sum_rows(gpu: &Gpu, mut sums: CudaSpanMut<'_>, values: CudaSpan<'_>) -> Result<()> {
    let columns = sums.len();
    if columns == 0 {
        return Ok(());
    }
    let mut rows = values.len() / columns;
    if rows == 0 {
        return Ok(SpanMut::Cuda(sums).fill(0.0)?);
    }
    // Each round replaces up to ROWS rows by their sum.
    let mut partial: Option<Flat> = None;
    loop {
        let groups = rows.div_ceil(ROWS);
        let source = match &partial {
            None => values,
            Some(flat) => flat.span()?.cuda()?,
        };
        let grid = Grid::for_each(groups * columns);
        let sizes: [Arg<'_>; 2] = [rows.into(), columns.into()];
        if groups == 1 {
            let args = [(&mut sums).into(), source.into(), sizes[0], sizes[1]];
            return Ok(gpu.launch(KERNELS, "sum_groups", grid, &args)?);
        }
        let mut next = gpu.numbers(groups * columns)?;
        {
            let mut target = next.span_mut()?.cuda()?;
            let args = [(&mut target).into(), source.into(), sizes[0], sizes[1]];
            gpu.launch(KERNELS, "sum_groups", grid, &args)?;
        }
        (partial, rows) = (Some(next), groups);
    }
}
