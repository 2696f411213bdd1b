#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod augment;
mod auto;
mod batches;
mod cache;
pub mod download;
mod environment;
mod error;
pub mod idx;
mod image_dataset;
pub mod mnist;
mod mnist_files;
mod partition;
mod prefetch;
mod rng;
mod sampler;
mod scaling;
mod source;
pub mod synthetic;
mod whole_file;

pub use augment::Augmentation;
pub use auto::{DatasetKind, Loaded, Located, Request, locate, locate_with};
pub use batches::{Batch, BatchOptions, Batches};
pub use cache::cache_dir;
pub use environment::Environment;
pub use error::{Error, Result};
pub use image_dataset::ImageDataset;
pub use mnist::Mnist;
pub use partition::{Partition, Remainder, partition};
pub use sampler::{DistributedSampler, EpochOrder, SamplerConfig};
pub use scaling::Scaling;
pub use source::Source;
#[doc(hidden)]
pub use whole_file::write_whole;
