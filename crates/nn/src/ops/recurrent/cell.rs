//! The cell of a recurrent layer.

use candle_core::{Result, Tensor};

use crate::ops::float::Float;

/// One step of one sequence. All slices have `H` elements, those of gates `GATES` times as many.
pub(in crate::ops) trait Cell: Send + Sync + 'static {
    const NAME: &'static str;
    const GATES: usize;
    /// Whether there is a second state beside `h`. Without it `c` is empty.
    const HAS_CELL_STATE: bool;
    /// Whether `da` and `db` differ. If they do not, `db` is empty.
    const SPLIT: bool;
    /// The kernels of a step and of its backward in gpu/recurrent.cu.
    const GPU_KERNELS: [&'static str; 2];

    /// `gates` contains `a` before the call and the gates after it. `h` and `c` are inputs of the
    /// next step.
    fn forward<T: Float>(gates: &mut [T], b: &[T], extra: &mut [T], h: &mut [T], c: &mut [T]);

    /// `dh` and `dc` are passed to the previous step, `dh` without the part through `b`.
    fn backward<T: Float>(step: StepBackward<'_, T>);

    /// The step of all sequences by candle's own operations. Computes `h` and `c` after the step
    /// from `h` and `c` before it, (N, H), and from `a` and `b`, (N, GATES H). A cell without a
    /// second state returns `c` unchanged.
    fn composite(a: &Tensor, b: &Tensor, h: &Tensor, c: &Tensor) -> Result<(Tensor, Tensor)>;
}

/// The arguments of [`Cell::backward`].
pub(in crate::ops) struct StepBackward<'a, T> {
    pub(in crate::ops) gates: &'a [T],
    pub(in crate::ops) extra: &'a [T],
    pub(in crate::ops) h_prev: &'a [T],
    pub(in crate::ops) dh: &'a mut [T],
    pub(in crate::ops) dc: &'a mut [T],
    pub(in crate::ops) da: &'a mut [T],
    pub(in crate::ops) db: &'a mut [T],
}
