//! A key's state that was read from a file, before it takes the place of the state that is there.

use candelabrum_optim::Optimizer;

pub(super) struct StoredValue {
    /// The key's number.
    pub(super) number: u32,
    pub(super) version: u64,
    /// Elements of a dense value, or those of the rows that the file has.
    pub(super) values: Vec<f32>,
    pub(super) rows: Option<Vec<u32>>,
    /// With the state that was read.
    pub(super) optimizer: Option<Box<dyn Optimizer>>,
}
