//! The error type of this crate.
//!
//! Every message is a fragment of one line that names the file (or the option), the cause and, if
//! there is one, the remedy. Users see it at the end of a failed start.

use std::{io, path::PathBuf};

mod tensors;

pub use self::tensors::TensorsError;

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error between a file and a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation on a file or directory.
    #[error("{}: cannot {operation}: {source}", path.display())]
    Io {
        /// The operation, as a verb: `open`, `read`, `create`.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The path of a data file is a directory or a device.
    #[error("{}: a directory or another thing that is no file; an IDX file is expected here", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The file has no bytes.
    #[error("{}: the file is empty, fetch it again", path.display())]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },
    /// The first four bytes are not those of the expected kind of IDX file.
    #[error("{}: magic number {found:#010x}, expected {expected:#010x} for {what}: not such a file", path.display())]
    WrongMagic {
        /// The file.
        path: PathBuf,
        /// The number in the file.
        found: u32,
        /// The expected number.
        expected: u32,
        /// The kind of file in words.
        what: &'static str,
    },
    /// A dimension in the header is zero.
    #[error("{}: the header gives dimensions {dims:?}, none may be zero", path.display())]
    ZeroDimension {
        /// The file.
        path: PathBuf,
        /// The dimensions, outermost first.
        dims: Vec<u32>,
    },
    /// The header claims more data than the reader accepts.
    #[error(
        "{}: the header claims {dims:?} = {claimed} bytes, the limit is {limit}",
        path.display()
    )]
    OverLimit {
        /// The file.
        path: PathBuf,
        /// The dimensions, outermost first.
        dims: Vec<u32>,
        /// The number of bytes that these dimensions need.
        claimed: u128,
        /// The maximum number of bytes.
        limit: u64,
    },
    /// The header claims more data than the file can hold.
    #[error(
        "{}: the header claims {dims:?} = {claimed} bytes, a file of {file_bytes} bytes cannot hold \
         that: the header is corrupt or the file was cut short",
        path.display()
    )]
    ImplausibleSize {
        /// The file.
        path: PathBuf,
        /// The dimensions, outermost first.
        dims: Vec<u32>,
        /// The number of bytes that these dimensions need.
        claimed: u128,
        /// The size of the file on the disk.
        file_bytes: u64,
    },
    /// The file ends before its data.
    #[error("{}: {got} bytes where {expected} are needed: the file was cut short, fetch it again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The number of bytes needed, header included, uncompressed.
        expected: u64,
        /// The number of bytes found.
        got: u64,
    },
    /// The file continues after its data.
    #[error("{}: bytes follow after the {expected} that the header announces: the file is corrupt", path.display())]
    TrailingBytes {
        /// The file.
        path: PathBuf,
        /// The number of bytes announced, header included, uncompressed.
        expected: u64,
    },
    /// The gzip data is damaged or ends early.
    #[error("{}: damaged or truncated gzip stream ({source}), fetch the file again", path.display())]
    DamagedGzip {
        /// The file.
        path: PathBuf,
        /// The decoder's error.
        source: io::Error,
    },
    /// A directory lacks some of the four files of MNIST.
    #[error(
        "{}: not an MNIST directory: {} not found (the four files are train-images-idx3-ubyte, \
         train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, plain or .gz)",
        dir.display(),
        missing.join(", ")
    )]
    FilesMissing {
        /// The directory.
        dir: PathBuf,
        /// The names of the missing files, without `.gz`.
        missing: Vec<String>,
    },
    /// Images and labels do not belong together.
    #[error(
        "{} holds {image_count} images but {} holds {label_count} labels: they do not belong together",
        images.display(),
        labels.display()
    )]
    CountMismatch {
        /// The file of images.
        images: PathBuf,
        /// The number of images.
        image_count: usize,
        /// The file of labels.
        labels: PathBuf,
        /// The number of labels.
        label_count: usize,
    },
    /// A label that is not the number of a class.
    #[error("{}: label {label} at index {index}, labels must be below {classes}", path.display())]
    LabelOutOfRange {
        /// The file of labels.
        path: PathBuf,
        /// The label's index, counted from 0.
        index: usize,
        /// The label's value.
        label: u8,
        /// The number of classes.
        classes: usize,
    },
    /// The images do not have the dataset's size.
    #[error(
        "{}: images of {rows} x {columns} pixels, this dataset has {} x {}",
        path.display(), expected[0], expected[1]
    )]
    ImageSize {
        /// The file of images.
        path: PathBuf,
        /// The number of rows of pixels.
        rows: usize,
        /// The number of columns of pixels.
        columns: usize,
        /// The expected rows and columns.
        expected: [usize; 2],
    },
    /// The arguments of [`ImageDataset::new`](crate::ImageDataset::new) do not fit together.
    #[error(
        "a dataset of {labels} images of shape {shape:?} needs {expected} bytes of pixels, got {got}"
    )]
    PixelCount {
        /// The number of labels, which is the number of images.
        labels: usize,
        /// Channels, height, width.
        shape: [usize; 3],
        /// The number of bytes needed.
        expected: u128,
        /// The number of bytes given.
        got: usize,
    },
    /// A label given to [`ImageDataset::new`](crate::ImageDataset::new) is not the number of a
    /// class.
    #[error("label {label} at index {index}, labels must be below {classes}")]
    Label {
        /// The label's index, counted from 0.
        index: usize,
        /// The label's value.
        label: u32,
        /// The number of classes.
        classes: usize,
    },
    /// No mirror had a good copy of a file.
    #[error(
        "{file}: could not be downloaded: {}; fetch it by hand and name its folder with --data-dir",
        failures.join("; ")
    )]
    Download {
        /// The name of the file.
        file: String,
        /// One line for every mirror: its address and its failure.
        failures: Vec<String>,
    },
    /// A downloaded file has changed since its download.
    #[error("{}: wrong checksum: sha-256 {found}, expected {expected}: delete the file", path.display())]
    WrongChecksum {
        /// The file.
        path: PathBuf,
        /// The digest of its uncompressed content.
        found: String,
        /// The expected digest.
        expected: String,
    },
    /// There is no known directory for downloads.
    #[error("no cache directory: set CANDELABRUM_CACHE, XDG_CACHE_HOME or HOME")]
    NoCacheDirectory,
    /// MNIST was requested but not found.
    #[error("mnist not found: {}; name its folder with --data-dir or set MNIST_DIR", tried.join("; "))]
    NotFound {
        /// The places that were searched, with the result of each.
        tried: Vec<String>,
    },
    /// A word that is not the name of a dataset.
    #[error("{name:?} is no dataset: choose auto, mnist or synthetic")]
    UnknownDataset {
        /// The word.
        name: String,
    },
    /// A text that does not describe a [`Source`](crate::Source).
    #[error(
        "{text:?} is no data source: expected `mnist:DIRECTORY` or `synthetic:seed=S,train=N,test=M`"
    )]
    UnknownSource {
        /// The text.
        text: String,
    },
    /// A path that cannot be sent to other ranks as text.
    #[error("{}: the path is not valid UTF-8, rename the directory", path.display())]
    PathNotText {
        /// The path.
        path: PathBuf,
    },
    /// The world has no ranks.
    #[error("a world of 0 ranks: world_size must be at least 1")]
    EmptyWorld,
    /// The rank does not belong to the world.
    #[error(
        "global rank {global_rank} in a world of {world_size}: ranks count from 0 and end below world_size"
    )]
    RankOutOfRange {
        /// The rank.
        global_rank: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// There are fewer samples than ranks.
    #[error(
        "{len} samples over {world_size} ranks leave a rank without any: use at most {len} workers"
    )]
    EmptyShare {
        /// The number of samples.
        len: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// The dataset has no samples.
    #[error("the dataset is empty")]
    EmptyDataset,
    /// There are more samples than 32-bit indices.
    #[error("{len} samples are more than the {} that an index can name", u32::MAX)]
    TooManySamples {
        /// The number of samples.
        len: usize,
    },
    /// The batch size is 0.
    #[error("--batch-size 0: a batch needs at least 1 sample")]
    ZeroBatchSize,
    /// A rank's share is smaller than one batch.
    #[error(
        "--batch-size {batch_size} is larger than a rank's share of {share} samples: rank {global_rank} \
         of {world_size} cannot fill one batch, use --batch-size {share} or less, or fewer workers"
    )]
    BatchTooLarge {
        /// The number of samples in a batch of one rank.
        batch_size: usize,
        /// The number of samples of each rank.
        share: usize,
        /// The rank that reports the error.
        global_rank: usize,
        /// The number of ranks.
        world_size: usize,
    },
    /// The scaling is for another number of channels.
    #[error(
        "the scaling has {means} means and {stds} standard deviations, the images have {channels} channel(s): \
         give one of each for every channel"
    )]
    ScalingChannels {
        /// The number of means given.
        means: usize,
        /// The number of standard deviations given.
        stds: usize,
        /// The number of channels of an image.
        channels: usize,
    },
    /// The scaling has numbers with which pixels cannot be computed.
    #[error(
        "scaling by the means {mean:?} and the standard deviations {std:?}: all must be finite, and \
         deviations above 0"
    )]
    ScalingValues {
        /// The means.
        mean: Vec<f32>,
        /// The standard deviations.
        std: Vec<f32>,
    },
    /// The sampler was made for a dataset of another length.
    #[error(
        "the sampler counts {sampler} samples, the dataset has {dataset}: make one for the other"
    )]
    SamplerLength {
        /// The number of samples of the sampler.
        sampler: usize,
        /// The number of samples in the dataset.
        dataset: usize,
    },
    /// The lengths of shards do not add up.
    #[error(
        "the shards have {shards} samples together, the dataset has {sampler}: count them again"
    )]
    ShardLengths {
        /// The number of samples in all shards.
        shards: usize,
        /// The number of samples that the sampler or the dataset has.
        sampler: usize,
    },
    /// The size of an epoch is 0.
    #[error("an epoch of 0 samples: the epoch size must be at least 1")]
    EmptyEpoch,
    /// A sample that the dataset does not have.
    #[error("sample {sample} of a dataset of {len}: samples count from 0")]
    NoSuchSample {
        /// The number of the sample.
        sample: usize,
        /// The number of samples in the dataset.
        len: usize,
    },
    /// A batch could not be read.
    #[error("epoch {epoch}, step {step} (samples {samples}): {source}")]
    Batch {
        /// The epoch, counted from 0.
        epoch: usize,
        /// The step in the epoch, counted from 0.
        step: usize,
        /// The numbers of the first samples of the batch.
        samples: String,
        /// What was wrong.
        source: Box<Error>,
    },
    /// A sample could not be made.
    #[error("sample {sample}: {source}")]
    Sample {
        /// The number of the sample in the dataset.
        sample: usize,
        /// What was wrong.
        source: Box<Error>,
    },
    /// An error of a user's own function.
    #[error("{0}")]
    Custom(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The thread that prepares batches could not be started.
    #[error("cannot start the thread that prepares batches: {source}")]
    LoaderThread {
        /// The operating system's error.
        source: io::Error,
    },
    /// The thread that prepares batches panicked.
    #[error("the thread that prepares batches panicked: {message}")]
    LoaderPanicked {
        /// The panic's message.
        message: String,
    },
    /// Tensors in memory, or samples of a batch, do not belong together.
    #[error(transparent)]
    Tensors(#[from] TensorsError),
    /// candle could not make a tensor of a batch.
    #[error("cannot make a tensor: {0}")]
    Tensor(#[from] candle_core::Error),
}

impl Error {
    /// An error of a user's own function: anything that is an error, or a text.
    pub fn custom(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Custom(error.into())
    }

    /// For `map_err`: wraps an I/O error with the operation and the path.
    pub(crate) fn io(
        operation: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { operation, path, source }
    }
}
