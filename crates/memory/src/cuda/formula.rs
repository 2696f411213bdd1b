//! An optimizer's formula as a kernel: the update of one parameter on a GPU.

use super::compiler::Source;
use super::launch::{Arg, Grid, launch};
use super::memory::allocate;
use super::region::Region;
use super::{CudaSpan, CudaSpanMut};
use crate::Result;

/// `SHARE` in formula.cu.
const SHARE: usize = 8192;

/// The number of scalars that a formula gets.
pub const SCALARS: usize = 8;

/// The text of an optimizer's formula in CUDA C++.
#[derive(Clone, Copy, Debug)]
pub struct Formula {
    /// The name, different for each text.
    pub name: &'static str,
    /// The functions `sums` and `update` that kernels/formula.cu describes.
    pub text: &'static str,
    /// Whether `update` needs the sums over all elements.
    pub needs_sums: bool,
}

impl Formula {
    /// Updates the value of one parameter and its state vectors. All have one length.
    ///
    /// # Errors
    /// A text that does not compile, and the driver's errors.
    ///
    /// # Panics
    /// With vectors of different lengths.
    pub fn update(
        &self,
        mut value: CudaSpanMut<'_>,
        grad: CudaSpan<'_>,
        mut state: Vec<CudaSpanMut<'_>>,
        scalars: [f64; SCALARS],
    ) -> Result<()> {
        let len = value.len();
        assert!(state.iter().map(CudaSpanMut::len).all(|other| other == len) && grad.len() == len);
        let source =
            Source { name: self.name, text: [include_str!("kernels/formula.cu"), self.text] };
        let stream = grad.region().stream();
        let (value, grad) = (Arg::Memory(value.region()), Arg::Memory(grad.region()));
        let mut vectors = state.iter_mut().map(|vector| Arg::Memory(vector.region()));
        let vectors = [(); 3].map(|()| vectors.next().unwrap_or(Arg::Nothing));
        let scalars = scalars.map(Arg::F64);
        let mut sums = Arg::Nothing;
        let memory;
        if self.needs_sums {
            memory = allocate(stream, 2 * size_of::<f64>())?;
            sums = Arg::Memory(Region::of(&memory));
            let grid = Grid::by_share(len, SHARE);
            let blocks = grid.blocks();
            let partials = allocate(stream, 2 * blocks * size_of::<f64>())?;
            let partials = Arg::Memory(Region::of(&partials));
            let args = [&[partials, value, grad], &vectors[..], &scalars[..]].concat();
            launch(stream, source, "partial_sums", grid, &args)?;
            launch(stream, source, "add_sums", Grid::one_block(blocks), &[sums, partials])?;
        }
        let args = [&[value, grad], &vectors[..], &[sums], &scalars[..]].concat();
        launch(stream, source, "update_all", Grid::for_each(len), &args)
    }
}
