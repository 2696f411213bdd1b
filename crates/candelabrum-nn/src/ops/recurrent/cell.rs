//! The cell of a recurrent layer.

use candle_core::{Result, Tensor};

use crate::kernels::float::Float;

/// One step of one sequence. All slices have `H` elements, those of `gates`, `b` and `da` `GATES` times as
/// many.
pub(crate) trait RecurrentCell: Send + Sync + 'static {
    const NAME: &'static str;
    const GATES: usize;
    /// Whether there is a second state beside `h`. Without it `c` is empty.
    const HAS_CELL_STATE: bool;
    /// Whether the cell does more with `b` than add it to `a`, in the last gate. Then `da` and `db` differ
    /// there, and the cell adds the bias of `a`. Otherwise `db` and this bias are empty.
    const SPLIT: bool;
    /// Whether the cell keeps a number more per unit for the backward. Otherwise `extra` is empty.
    const HAS_EXTRA: bool;
    /// The kernels of a step and of its backward in recurrent.cu. Without them a GPU computes the composite.
    const GPU_KERNELS: Option<[&'static str; 2]>;

    fn forward<T: Float>(step: CellStep<'_, T>);

    /// `dh` and `dc` are passed to the previous step, `dh` without the part through `b`.
    fn backward<T: Float>(step: StepBackward<'_, T>);

    /// The step of all sequences by candle's own operations. Computes `h` and `c` after the step
    /// from `h` and `c` before it, (N, H), and from `a` and `b`, (N, GATES H). A cell without a
    /// second state returns `c` unchanged.
    fn composite(a: &Tensor, b: &Tensor, h: &Tensor, c: &Tensor) -> Result<(Tensor, Tensor)>;
}

/// The arguments of [`RecurrentCell::forward`].
pub(crate) struct CellStep<'a, T> {
    /// `a` before the call, and the gates after it.
    pub(crate) gates: &'a mut [T],
    /// With the biases of `a` and `b`, but for `bias`.
    pub(crate) b: &'a [T],
    /// The bias of `a` for the last gate.
    pub(crate) bias: &'a [T],
    pub(crate) extra: &'a mut [T],
    /// Before the step, and then after it.
    pub(crate) h: &'a mut [T],
    /// Before the step, and then after it.
    pub(crate) c: &'a mut [T],
}

/// The arguments of [`RecurrentCell::backward`].
pub(crate) struct StepBackward<'a, T> {
    pub(crate) gates: &'a [T],
    pub(crate) extra: &'a [T],
    pub(crate) h_prev: &'a [T],
    pub(crate) dh: &'a mut [T],
    pub(crate) dc: &'a mut [T],
    pub(crate) da: &'a mut [T],
    /// Of the last gate.
    pub(crate) db: &'a mut [T],
}
