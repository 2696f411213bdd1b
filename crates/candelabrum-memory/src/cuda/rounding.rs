//! The rounding of many runs of f32 numbers to tensors of f16 or bf16, or their copies to tensors of f32, in one launch
//! for 64 of them.

use candle_core::{CudaStorage, Layout};

use super::CudaSpan;
use super::compiler::KernelSource;
use super::launch::{KernelArg, LaunchGrid, RUNS, RoundingRuns, launch};
use super::tensor::{elements, number_type};
use crate::Result;

/// Numbers that one block rounds: `PIECE` in rounding.cu.
const PIECE: usize = 1024;

/// Sets the elements of each contiguous f32, f16 or bf16 tensor to the values beside it, rounded to nearest,
/// ties to even. The storages are borrowed as for [`span_mut`](super::span_mut).
///
/// # Errors
/// A tensor of another type or length, or that is not contiguous.
pub fn round_all(rounded: &[(CudaSpan<'_>, &CudaStorage, &Layout)]) -> Result<()> {
    let [(first, storage, _), rest @ ..] = rounded else { return Ok(()) };
    let (stream, number) = (first.region().stream(), number_type(storage));
    let is_alike = |(values, storage, _): &(CudaSpan<'_>, &CudaStorage, &Layout)| {
        values.region().stream() == stream && number_type(storage) == number
    };
    if !rest.iter().all(is_alike) {
        return rounded.chunks(1).try_for_each(round_all);
    }
    let text = [include_str!("kernels/rounding.cu"), ""];
    let source = KernelSource { name: "rounding", number, text };
    for rounded in rounded.chunks(RUNS) {
        let mut runs: RoundingRuns = [[0; RUNS], [0; RUNS], [0; RUNS], [u64::MAX; RUNS]];
        let mut blocks = 0;
        for (place, (values, storage, layout)) in rounded.iter().enumerate() {
            let to = elements(storage, layout, number, values.len())?;
            let run = [values.address(), to.at(), values.len() as u64, blocks as u64];
            for (column, number) in runs.iter_mut().zip(run) {
                column[place] = number;
            }
            blocks += values.len().div_ceil(PIECE);
        }
        launch(
            stream,
            source,
            "round_all",
            LaunchGrid::blocks_of(blocks),
            &[KernelArg::Runs(&runs)],
        )?;
    }
    Ok(())
}
