//! An optimizer's formula as a kernel: the update of many parameters on a GPU in one launch.
//!
//! The kernel gets the addresses of the parameters from a table on the GPU. They are the same in
//! every step as a rule, so the table stays there and is written again only if it differs. The
//! scalars, which can change at every step, are arguments of the launch. So a step copies nothing to
//! the GPU.

use std::iter;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};

use super::compiler::KernelSource;
use super::launch::{KernelArg, LaunchGrid, SETS, SHARE, ScalarSets, launch};
use super::memory::allocate_unset;
use super::region::Region;
use super::{CudaSpan, CudaSpanMut, Formula, SCALARS};
use crate::{ElementType, Result};

/// Elements that one block updates: `PIECE` in formula.cu.
const PIECE: usize = 1024;

/// The kernels before the text of a formula.
const KERNELS: &str = concat!(include_str!("kernels/sums.cu"), include_str!("kernels/formula.cu"));

/// An update of several parameters by one formula, in one launch (in three with sums).
#[derive(Debug)]
pub struct JointUpdate<'a> {
    formula: Formula,
    table: &'a mut UpdateTable,
    stream: &'a Arc<CudaStream>,
    params: Vec<FormulaParam>,
    shares: usize,
    /// The different sets of scalars.
    sets: Vec<[f64; SCALARS]>,
}

impl<'a> JointUpdate<'a> {
    /// An update of no parameters so far, on the device of `grad`. A caller that repeats an update in
    /// every step passes the same table.
    pub fn new(formula: Formula, grad: CudaSpan<'a>, table: &'a mut UpdateTable) -> Self {
        let stream = grad.region().stream();
        Self { formula, table, stream, params: Vec::new(), shares: 0, sets: Vec::new() }
    }

    /// Whether a parameter with this formula, these scalars and this gradient can be added.
    pub fn takes(&self, formula: Formula, scalars: &[f64; SCALARS], grad: CudaSpan<'_>) -> bool {
        let Formula { name, needs_sums, .. } = self.formula;
        (formula.name, formula.needs_sums) == (name, needs_sums)
            && grad.region().stream() == self.stream
            && (self.sets.len() < SETS || self.set(scalars).is_some())
    }

    /// Adds a parameter, its gradient and its state vectors. [`Self::takes`] must be true of it.
    ///
    /// # Panics
    /// With vectors of different lengths, or more than three state vectors.
    pub fn push(
        &mut self,
        mut value: CudaSpanMut<'a>,
        grad: CudaSpan<'a>,
        mut state: Vec<CudaSpanMut<'a>>,
        scalars: [f64; SCALARS],
    ) {
        let len = value.len();
        assert!(state.iter().map(CudaSpanMut::len).all(|other| other == len) && grad.len() == len);
        let set = self.set(&scalars).unwrap_or(self.sets.len());
        if set == self.sets.len() {
            self.sets.push(scalars);
        }
        let mut addresses = [0; 3];
        for (address, vector) in addresses[..state.len()].iter_mut().zip(&mut state) {
            *address = vector.region().at();
        }
        let ([a, b, c], first) = (addresses, self.shares);
        self.shares += len.div_ceil(SHARE);
        let [len, first, set] = [len, first, set].map(|number| number as u64);
        self.params.push([value.region().at(), grad.region().at(), a, b, c, len, first, set]);
    }

    /// The number of a set of scalars, by its bits.
    fn set(&self, scalars: &[f64; SCALARS]) -> Option<usize> {
        let bits = |set: &[f64; SCALARS]| set.map(f64::to_bits);
        self.sets.iter().position(|set| bits(set) == bits(scalars))
    }

    /// Enqueues the update.
    ///
    /// # Errors
    /// A text that does not compile, and the driver's errors.
    pub fn run(self) -> Result<()> {
        let Self { formula, table, stream, params, shares, sets } = self;
        if shares == 0 {
            return Ok(());
        }
        let count = params.len();
        let table = table.with(stream, params, shares)?;
        let [params, owners, partials, totals] =
            [&table.params, &table.owners, &table.partials, &table.sums]
                .map(|memory| KernelArg::Memory(Region::new(memory)));
        let mut scalars: ScalarSets = [[0.0; SCALARS]; SETS];
        scalars[..sets.len()].copy_from_slice(&sets);
        let scalars = KernelArg::Sets(&scalars);
        let text = [KERNELS, formula.text];
        let source = KernelSource { name: formula.name, number: ElementType::F32, text };
        let mut sums = KernelArg::Nothing;
        if formula.needs_sums {
            sums = totals;
            let args = [partials, params, owners, scalars];
            launch(stream, source, "partial_sums", LaunchGrid::blocks_of(shares), &args)?;
            launch(
                stream,
                source,
                "add_sums",
                LaunchGrid::blocks_of(count),
                &[sums, partials, params],
            )?;
        }
        let pieces = LaunchGrid::blocks_of(shares * (SHARE / PIECE));
        launch(stream, source, "update_all", pieces, &[params, owners, sums, scalars])
    }
}

/// A parameter in the table, `struct Param` of formula.cu: the addresses of the value, the gradient
/// and three state vectors, the length, the first share, the set of scalars.
type FormulaParam = [u64; 8];

/// The table of an update that is repeated, and memory for its sums.
#[derive(Debug, Default)]
pub struct UpdateTable {
    params: Vec<FormulaParam>,
    /// The same on the GPU. `None` before the first update.
    on_gpu: Option<TableOnGpu>,
}

#[derive(Debug)]
struct TableOnGpu {
    params: CudaSlice<u8>,
    /// By share: the number of its parameter, as a u32.
    owners: CudaSlice<u8>,
    /// By share and by parameter: two sums, as f64.
    partials: CudaSlice<u8>,
    sums: CudaSlice<u8>,
}

impl UpdateTable {
    /// Makes this the table of `params`, and waits for the device if it was another one.
    fn with(
        &mut self,
        stream: &Arc<CudaStream>,
        params: Vec<FormulaParam>,
        shares: usize,
    ) -> Result<&TableOnGpu> {
        if self.params != params {
            self.on_gpu = None;
            self.params = params;
        }
        match &mut self.on_gpu {
            Some(table) => Ok(table),
            none => Ok(none.insert(TableOnGpu::new(stream, &self.params, shares)?)),
        }
    }
}

impl TableOnGpu {
    fn new(stream: &Arc<CudaStream>, params: &[FormulaParam], shares: usize) -> Result<Self> {
        let mut owners: Vec<u32> = Vec::with_capacity(shares);
        for (number, &[.., len, _, _]) in params.iter().enumerate() {
            owners.extend(iter::repeat_n(number as u32, (len as usize).div_ceil(SHARE)));
        }
        let upload = |bytes: &[u8]| -> Result<_> {
            let memory = allocate_unset(stream, bytes.len())?;
            Region::new(&memory).range(0..bytes.len()).upload(bytes)?;
            Ok(memory)
        };
        let sums = |count: usize| allocate_unset(stream, count * 2 * size_of::<f64>());
        Ok(Self {
            params: upload(bytemuck::cast_slice(params))?,
            owners: upload(bytemuck::cast_slice(&owners))?,
            partials: sums(shares)?,
            sums: sums(params.len())?,
        })
    }
}
