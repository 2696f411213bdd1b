#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod augment;
mod auto;
mod batch;
mod batches;
mod cache;
mod classes;
mod collate;
mod dataset;
mod digest;
pub mod download;
mod environment;
mod error;
mod folder;
mod folder_files;
pub mod idx;
mod image_batches;
mod image_dataset;
mod image_pipeline;
mod jpeg;
mod loader;
pub mod mnist;
mod mnist_files;
mod order;
mod part;
mod partition;
mod pass;
mod quotes;
mod random_resized_crop;
mod readers;
mod records;
mod rng;
mod sampler;
mod samples;
mod scaling;
mod source;
mod stack;
mod standardization;
pub mod synthetic;
mod table;
mod tensors;
mod text;
mod vocabulary;
mod whole_file;
mod written;

pub use augment::Augmentation;
pub use auto::{DatasetKind, Loaded, Located, Request, locate, locate_with};
pub use batch::Batch;
pub use batches::{Batches, LoaderPosition};
pub use cache::cache_dir;
pub use collate::Collated;
pub use dataset::Dataset;
pub use environment::Environment;
pub use error::{
    Error, IdxError, PictureError, Result, ShardError, TableError, TensorsError, TextError,
};
pub use folder::{FolderOptions, ImageFolder};
pub use image_batches::BatchOptions;
pub use image_dataset::ImageDataset;
pub use image_pipeline::{ImagePipeline, Resize};
pub use loader::{Loader, LoaderOptions};
pub use mnist::Mnist;
pub use order::Shuffle;
pub use part::Part;
pub use partition::{Partition, Remainder, partition};
pub use pass::{Pass, SampleRng};
pub use random_resized_crop::RandomResizedCrop;
pub use records::{
    Record, RecordDataset, RecordWriter, ShardFormat, ShardOptions, Shards, shards_in,
};
pub use sampler::{DistributedSampler, EpochOrder, SamplerConfig};
pub use samples::FnDataset;
pub use scaling::Scaling;
pub use source::Source;
pub use stack::Stack;
pub use standardization::Standardization;
pub use table::{CsvConfig, CsvTable, CsvTargets, TableSplit};
pub use tensors::{FromTensors, TensorDataset};
pub use text::{TextDataset, TokenWidth};
pub use vocabulary::Vocabulary;
#[doc(hidden)]
pub use whole_file::write_whole;
