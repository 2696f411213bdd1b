//! The time of a training step by operation: forward and backward of every fused operation.
//!
//! ```
//! use candelabrum_nn::ops::{profile, relu};
//! use candle_core::{Device, Tensor};
//!
//! profile::start();
//! relu(&Tensor::new(&[-1f32, 1.], &Device::Cpu)?)?;
//! let rows = profile::stop();
//! assert_eq!((rows[0].name, rows[0].calls), ("relu", 1));
//! # Ok::<(), candle_core::Error>(())
//! ```

use std::cell::RefCell;
use std::time::{Duration, Instant};

/// The cost of all calls of one operation with one shape of result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The operation: `conv2d`.
    pub name: &'static str,
    /// The shape of its result.
    pub output: Vec<usize>,
    /// The number of forwards.
    pub calls: u64,
    /// Time of all forwards.
    pub forward: Duration,
    /// Time of all backwards.
    pub backward: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Forward,
    Backward,
}

thread_local! {
    static ROWS: RefCell<Option<Vec<Row>>> = const { RefCell::new(None) };
}

/// Starts to measure the operations that this thread calls.
pub fn start() {
    ROWS.set(Some(Vec::new()));
}

/// Stops measuring. Returns the measurements since [`start`], in the order of the first calls.
pub fn stop() -> Vec<Row> {
    ROWS.take().unwrap_or_default()
}

/// Runs `work` in its own span, and adds its time to the profile if one is being measured.
pub(super) fn timed<R>(
    phase: Phase,
    name: &'static str,
    output: &[usize],
    work: impl FnOnce() -> R,
) -> R {
    let span = tracing::trace_span!(target: "candelabrum::op", "op", name, ?phase, ?output);
    let _span = span.entered();
    if ROWS.with_borrow(Option::is_none) {
        return work();
    }
    let start = Instant::now();
    let result = work();
    let elapsed = start.elapsed();
    ROWS.with_borrow_mut(|rows| {
        let Some(rows) = rows else { return };
        let same = |row: &Row| row.name == name && row.output == output;
        let index = rows.iter().position(same).unwrap_or_else(|| {
            let (output, zero) = (output.to_vec(), Duration::ZERO);
            rows.push(Row { name, output, calls: 0, forward: zero, backward: zero });
            rows.len() - 1
        });
        match phase {
            Phase::Forward => {
                rows[index].calls += 1;
                rows[index].forward += elapsed;
            }
            Phase::Backward => rows[index].backward += elapsed,
        }
    });
    result
}
