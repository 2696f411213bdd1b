//! Shards: large files of many samples, for data that do not fit into memory.
//!
//! The index of a shard has the offset of each sample, 8 bytes for each. It comes from the headers
//! alone, or from a file beside the shard. A sample is one read at its offset. So memory holds the index
//! and the batches under way, whatever the size of the data.

mod contents;
mod dataset;
mod files;
mod folder;
mod format;
mod image_record;
mod index;
mod options;
mod record;
mod record_io;
mod shards;
mod sidecar;
mod tar_name;
mod tar_shard;
mod tf_record;
mod writer;

pub use self::{
    dataset::RecordDataset, folder::shards_in, format::ShardFormat, image_record::ImageRecord,
    options::ShardOptions, record::Record, shards::Shards, writer::RecordWriter,
};
