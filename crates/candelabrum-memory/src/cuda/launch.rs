//! The launch of a kernel on borrowed memory.
//!
//! A launch is a safe function although a kernel can do anything. A kernel runs on the GPU and
//! reaches only the GPU's memory. One that leaves the memory of its arguments spoils numbers there,
//! or ends the device's context, after which every call is an error. It cannot touch memory that
//! belongs to Rust values on the host.

use std::sync::Arc;

use cudarc::driver::{CudaStream, LaunchConfig, PushKernelArg, sys};

use super::compiler::{KernelSource, function};
use super::region::{Region, bind};
use super::{cuda_error, recent};
use crate::kernels::{BLOCK, SCALARS};
use crate::{Error, Result};

/// Numbers that one block adds: `SHARE` in sums.cu.
pub(super) const SHARE: usize = 8192;

/// Blocks of a kernel whose threads take several numbers each. More blocks than the largest GPUs
/// run at a time would not be faster.
const MOST_BLOCKS: usize = 4096;

/// The sets of scalars in one launch: `SETS` in formula.cu.
pub(super) const SETS: usize = 16;

/// The sets of scalars of one launch.
pub(super) type ScalarSets = [[f64; SCALARS]; SETS];

/// The runs in one launch: `RUNS` in rounding.cu.
pub(super) const RUNS: usize = 64;

/// `struct Runs` of rounding.cu: addresses of the runs and of their results, lengths, first blocks.
pub(super) type RoundingRuns = [[u64; RUNS]; 4];

/// The blocks of a launch, and the count that the kernel gets as its last argument.
#[derive(Clone, Copy, Debug)]
pub struct LaunchGrid {
    blocks: usize,
    count: usize,
}

impl LaunchGrid {
    /// Threads for `count` numbers. Each thread takes every n-th number, where n is the number of
    /// threads.
    pub fn for_each(count: usize) -> Self {
        Self { blocks: count.div_ceil(BLOCK).min(MOST_BLOCKS), count }
    }

    /// Threads for packs of `width` of the `count` numbers. Each thread takes every n-th pack.
    pub fn for_packs(count: usize, width: usize) -> Self {
        Self { count, ..Self::for_each(count.div_ceil(width)) }
    }

    /// The number of blocks.
    pub fn blocks(self) -> usize {
        self.blocks
    }

    /// One block for every `share` numbers of `count`.
    pub fn by_share(count: usize, share: usize) -> Self {
        Self { blocks: count.div_ceil(share), count }
    }

    /// This number of blocks, which is the count too.
    pub(super) fn blocks_of(count: usize) -> Self {
        Self { blocks: count, count }
    }

    /// One block.
    pub fn one_block(count: usize) -> Self {
        Self { blocks: 1, count }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum KernelArg<'a> {
    /// The address of memory.
    Memory(Region<'a>),
    /// The address 0, for memory that the kernel does not use.
    Nothing,
    /// A `float`.
    F32(f32),
    /// A `double`.
    F64(f64),
    /// An `unsigned long long`.
    U64(u64),
    /// A `ScalarSets` of formula.cu.
    Sets(&'a ScalarSets),
    /// A `RoundingRuns` of rounding.cu.
    Runs(&'a RoundingRuns),
}

/// Memory that the kernel may not use.
impl<'a, T: Into<KernelArg<'a>>> From<Option<T>> for KernelArg<'a> {
    fn from(memory: Option<T>) -> Self {
        memory.map_or(Self::Nothing, T::into)
    }
}

impl From<usize> for KernelArg<'_> {
    fn from(number: usize) -> Self {
        Self::U64(number as u64)
    }
}

impl From<u64> for KernelArg<'_> {
    fn from(number: u64) -> Self {
        Self::U64(number)
    }
}

impl From<f32> for KernelArg<'_> {
    fn from(number: f32) -> Self {
        Self::F32(number)
    }
}

impl From<f64> for KernelArg<'_> {
    fn from(number: f64) -> Self {
        Self::F64(number)
    }
}

/// Enqueues kernel `name` of `source` on `stream`. Without any block nothing is enqueued.
///
/// The kernels of this module read and write only memory of their arguments, in the types and
/// lengths that their callers pass. Each kernel's text states them.
pub(super) fn launch(
    stream: &Arc<CudaStream>,
    source: KernelSource,
    name: &'static str,
    grid: LaunchGrid,
    args: &[KernelArg<'_>],
) -> Result<()> {
    if grid.blocks == 0 {
        return Ok(());
    }
    bind(stream)?;
    let function = function(stream, source, name)?;
    let mut builder = stream.launch_builder(&function);
    let addresses: Vec<sys::CUdeviceptr> = args
        .iter()
        .map(|arg| if let KernelArg::Memory(region) = arg { region.at() } else { 0 })
        .collect();
    for (arg, address) in args.iter().zip(&addresses) {
        match arg {
            KernelArg::Memory(_) | KernelArg::Nothing => builder.arg(address),
            KernelArg::F32(number) => builder.arg(number),
            KernelArg::F64(number) => builder.arg(number),
            KernelArg::U64(number) => builder.arg(number),
            KernelArg::Sets(sets) => builder.arg(*sets),
            KernelArg::Runs(runs) => builder.arg(*runs),
        };
    }
    let count = grid.count as u64;
    builder.arg(&count);
    let config = LaunchConfig {
        grid_dim: (u32::try_from(grid.blocks).unwrap_or(u32::MAX), 1, 1),
        block_dim: (BLOCK as u32, 1, 1),
        shared_mem_bytes: 0,
    };
    recent::note(name, Some(grid.blocks));
    // SAFETY: invariants (borrow) and (one stream) of `cuda`. The kernel keeps to its arguments, as
    // the comment above says.
    let launched = unsafe { builder.launch(config) };
    launched.map(drop).map_err(|error| {
        let (file, blocks) = (source.name, grid.blocks);
        let at = format!("{name} of {file}.cu for {}, {blocks} blocks of {BLOCK}", source.number);
        match cuda_error("cuLaunchKernel", error) {
            Error::Cuda { call, message } => {
                Error::Cuda { call, message: format!("{at}: {message}") }
            }
            other => other,
        }
    })
}
