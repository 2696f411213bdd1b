//! The benchmarks, a declaration each.

pub(crate) mod allreduce;
pub(crate) mod checkpoint;
pub(crate) mod ddp;
pub(crate) mod overlap;
pub(crate) mod scaling;
pub(crate) mod step;

mod network;
mod parts;
mod profile;
mod training;
#[cfg(test)]
mod version1;
