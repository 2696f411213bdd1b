//! The launch of a kernel on borrowed memory.

use std::sync::Arc;

use cudarc::driver::{CudaStream, LaunchConfig, PushKernelArg, sys};

use super::compiler::{Source, function};
use super::cuda_error;
use super::region::{Region, bind};
use crate::Result;

/// Threads per block.
pub(super) const BLOCK: usize = 256;

/// Blocks of a kernel whose threads take several numbers each. More blocks than the largest GPUs
/// run at a time would not be faster.
const MOST_BLOCKS: usize = 4096;

/// The blocks of a launch, and the count that the kernel gets as its last argument.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    blocks: usize,
    count: usize,
}

impl Grid {
    /// Threads for `count` numbers. Each thread takes every n-th number, where n is the number of
    /// threads.
    pub(super) fn for_each(count: usize) -> Self {
        Self { blocks: count.div_ceil(BLOCK).min(MOST_BLOCKS), count }
    }

    pub(super) fn blocks(self) -> usize {
        self.blocks
    }

    /// One block for every `share` numbers of `count`.
    pub(super) fn by_share(count: usize, share: usize) -> Self {
        Self { blocks: count.div_ceil(share), count }
    }

    /// One block.
    pub(super) fn one_block(count: usize) -> Self {
        Self { blocks: 1, count }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg<'a> {
    /// The address of memory.
    Memory(Region<'a>),
    /// The address 0, for memory that the kernel does not use.
    Nothing,
    F32(f32),
    F64(f64),
    U64(u64),
}

/// Enqueues kernel `name` of `source` on `stream`. Without any block nothing is enqueued.
///
/// The kernels of this module read and write only memory of their arguments, in the types and
/// lengths that their callers pass. Each kernel's text states them.
pub(super) fn launch(
    stream: &Arc<CudaStream>,
    source: Source,
    name: &'static str,
    grid: Grid,
    args: &[Arg<'_>],
) -> Result<()> {
    if grid.blocks == 0 {
        return Ok(());
    }
    bind(stream)?;
    let function = function(stream, source, name)?;
    let mut builder = stream.launch_builder(&function);
    let addresses: Vec<sys::CUdeviceptr> = args
        .iter()
        .map(|arg| if let Arg::Memory(region) = arg { region.at() } else { 0 })
        .collect();
    for (arg, address) in args.iter().zip(&addresses) {
        match arg {
            Arg::Memory(_) | Arg::Nothing => builder.arg(address),
            Arg::F32(number) => builder.arg(number),
            Arg::F64(number) => builder.arg(number),
            Arg::U64(number) => builder.arg(number),
        };
    }
    let count = grid.count as u64;
    builder.arg(&count);
    let config = LaunchConfig {
        grid_dim: (u32::try_from(grid.blocks).unwrap_or(u32::MAX), 1, 1),
        block_dim: (BLOCK as u32, 1, 1),
        shared_mem_bytes: 0,
    };
    // SAFETY: invariants (borrow) and (one stream) of `cuda`. The kernel keeps to its arguments, as
    // the comment above says.
    let launched = unsafe { builder.launch(config) };
    launched.map_err(|error| cuda_error("cuLaunchKernel", error))?;
    Ok(())
}
