//! Arithmetic on slices, which knows no graph: what operations are computed with on the CPU.
//!
//! | idea | file |
//! |---|---|
//! | f32 and f64, with the functions that kernels need | `float.rs`, `math.rs` |
//! | products of matrices | `matmul.rs`, `gemm/`, `mat_mut.rs`, `product_precision.rs` |
//! | passes over whole slices, and memory that is requested before | `elementwise.rs`, `prefetch/` |
//! | sums | `moments.rs`, `column_sums.rs` |
//! | other orders of the same numbers | `transpose/`, `strided.rs` |
//! | channels of a batch of images, shaped (N, C, H, W) | `channel_planes.rs`, `channel_line.rs` |
//! | the normalisation of a row, or of a group of channels | `row_scale.rs` |
//! | work for several threads | `parallel.rs` |
//! | a switch of a thread | `thread_switch.rs` |
//! | memory that is used again, and results | `scratch.rs`, `unspecified.rs` |
//!
//! # What every kernel promises
//!
//! - The result does not depend on the number of threads: parts of the work do not depend on it either, and
//!   partial sums are added in a fixed order.
//! - It is generic over [`Float`](float::Float): f32 is the fast type, f64 serves checks of gradients.
//! - It reads and writes slices that the caller owns and whose lengths the caller has checked. Scratch memory
//!   comes from [`scratch`], so a step allocates nothing after the first ones.
//! - A loop over numbers runs inside of [`simd`](candelabrum_memory::simd::simd), with the widest vectors that
//!   the processor has.
//!
//! Arguments that are images have the shape (N, C, H, W): images, channels, rows, columns. A matrix is (rows ×
//! columns), one row after the other. Block sizes are constants beside the loop that they belong to, with the
//! cache or the registers for which they were chosen; `gemm/tile.rs` derives the size of a register tile.

pub(crate) mod channel_line;
pub(crate) mod channel_planes;
pub(crate) mod column_sums;
pub(crate) mod elementwise;
pub(crate) mod float;
pub(crate) mod gemm;
pub(crate) mod mat_mut;
pub(crate) mod math;
pub(crate) mod matmul;
pub(crate) mod moments;
pub(crate) mod parallel;
mod prefetch;
pub(crate) mod product_precision;
pub(crate) mod row_scale;
pub(crate) mod scratch;
pub(crate) mod strided;
pub(crate) mod thread_switch;
pub(crate) mod transpose;
pub(crate) mod unspecified;
