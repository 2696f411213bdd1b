//! The errors of stores and servers. Each one names the key, and the rank on which it happened.

use std::io;
use std::path::PathBuf;

use candelabrum_dist::Error as DistError;
use candelabrum_optim::Error as OptimError;

use crate::Key;

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of key-value stores. Ranks in them are numbers in the world.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A type of store that does not exist.
    #[error("there is no key-value store `{name}`; there are local, dist_sync and dist_async")]
    Kind {
        /// The name.
        name: String,
    },
    /// Ranks that cannot be divided into workers and servers.
    #[error("{what}")]
    Roles {
        /// What is wrong, and what to do.
        what: String,
    },
    /// A key that was not initialised.
    #[error("rank {rank}: the key `{key}` was not initialised; {known}")]
    UnknownKey {
        /// The rank.
        rank: usize,
        /// The key.
        key: Key,
        /// The keys that were, as many as fit a message.
        known: String,
    },
    /// A key that was initialised before.
    #[error("rank {rank}: the key `{key}` was already initialised")]
    KeyTwice {
        /// The rank.
        rank: usize,
        /// The key.
        key: Key,
    },
    /// Numbers and strings as keys of one store.
    #[error("rank {rank}: the key `{key}` is a {kind}, but the first key of this store was not")]
    KeyKinds {
        /// The rank.
        rank: usize,
        /// The key.
        key: Key,
        /// `number` or `string`.
        kind: &'static str,
    },
    /// A value of another shape than the key's.
    #[error("rank {rank}: the key `{key}` has the shape {expected:?}, a value has {got:?}")]
    Shape {
        /// The rank.
        rank: usize,
        /// The key.
        key: Key,
        /// The shape that was initialised.
        expected: Vec<usize>,
        /// The shape of the value.
        got: Vec<usize>,
    },
    /// A push of an empty list of values.
    #[error("rank {rank}: an empty list of values was pushed to the key `{key}`")]
    NoValues {
        /// The rank.
        rank: usize,
        /// The key.
        key: Key,
    },
    /// Rows whose values are too few or too many.
    #[error(
        "rank {rank}: {rows} row(s) of {dim} elements were pushed to the key `{key}` with {got} values"
    )]
    RowValues {
        /// The rank.
        rank: usize,
        /// The key.
        key: Key,
        /// The number of rows.
        rows: usize,
        /// The elements of a row of this table.
        dim: usize,
        /// The number of values.
        got: usize,
    },
    /// A tensor of a type that a store does not have.
    #[error("rank {rank}: a value of the key `{key}` is {got}: a store has f32, f16 and bf16")]
    ElementType {
        /// The rank.
        rank: usize,
        /// The key.
        key: Key,
        /// The type of the tensor.
        got: String,
    },
    /// NaN or infinity in a value.
    #[error("rank {rank}: the value of the key `{key}` is {value} at position {position}")]
    NotFinite {
        /// The rank that pushes it.
        rank: usize,
        /// The key.
        key: Key,
        /// The position of the first such element.
        position: usize,
        /// The element.
        value: f32,
    },
    /// A value that the compression cannot represent.
    #[error(
        "rank {rank}: the value of the key `{key}` is {value} at position {position}, too large for {compression}"
    )]
    OutOfRange {
        /// The rank that pushes it.
        rank: usize,
        /// The key.
        key: Key,
        /// The position of the first such element.
        position: usize,
        /// The element.
        value: f32,
        /// The compression.
        compression: String,
    },
    /// An operation that does not fit the key's kind: a dense value or a row-sparse table.
    #[error("rank {rank}: {what} of the key `{key}`, which is {kind}")]
    Form {
        /// The rank.
        rank: usize,
        /// The operation.
        what: &'static str,
        /// The key.
        key: Key,
        /// The kind of the key's value, and the operation for this kind.
        kind: &'static str,
    },
    /// A row that a table does not have.
    #[error("rank {rank}: the key `{key}` has {rows} rows, and none with the number {row}")]
    Row {
        /// The rank.
        rank: usize,
        /// The key.
        key: Key,
        /// The number of the missing row.
        row: i64,
        /// The number of rows.
        rows: usize,
    },
    /// A server without memory for its part of a value.
    #[error("there is no memory for the {elements} elements of `{key}` that one server holds")]
    Room {
        /// The key.
        key: Key,
        /// The elements of the server's part.
        elements: usize,
    },
    /// A setting out of its range, or in a store that cannot have it.
    #[error("{setting} is {value}: {range}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// The allowed values.
        range: &'static str,
    },
    /// Workers that were started with different settings or models.
    #[error("{what} differs between ranks: rank {first} has {expected}, rank {rank} has {got}")]
    Inconsistent {
        /// The first thing that differs.
        what: String,
        /// The first of the two ranks.
        first: usize,
        /// Its value.
        expected: String,
        /// The other rank.
        rank: usize,
        /// Its value.
        got: String,
    },
    /// A round that cannot be completed, because a worker has left.
    #[error(
        "rank {left} has left{why}, so the round of `{key}` for which rank {rank} waits cannot be completed: do all workers push each key equally often?"
    )]
    WorkerLeft {
        /// The worker that left.
        left: usize,
        /// After which error it left, or nothing.
        why: String,
        /// The rank that waits.
        rank: usize,
        /// The key.
        key: Key,
    },
    /// A worker waited longer than the deadline for the pushes of others.
    #[error(
        "rank {rank} waited {seconds} s for `{key}`, which rank(s) {missing} did not push; deadlines are set with CANDELABRUM_TIMEOUT (seconds)"
    )]
    Late {
        /// The rank that waited.
        rank: usize,
        /// The key.
        key: Key,
        /// The ranks without a push.
        missing: String,
        /// The time it waited.
        seconds: u64,
    },
    /// A call that all workers make together, and that others did not make within the deadline.
    #[error(
        "rank {rank} waited {seconds} s in {during}, which rank(s) {missing} did not call; deadlines are set with CANDELABRUM_TIMEOUT (seconds)"
    )]
    Alone {
        /// The rank that waited.
        rank: usize,
        /// The call.
        during: String,
        /// The ranks that did not make it.
        missing: String,
        /// The time it waited.
        seconds: u64,
    },
    /// A call that all workers make together, and that a worker did not make before it left.
    #[error(
        "rank {left} has left{why}, without {during}, in which rank {rank} waits: all workers call it"
    )]
    LeftWithout {
        /// The worker that left.
        left: usize,
        /// After which error it left, or nothing.
        why: String,
        /// The call.
        during: String,
        /// The rank that waits.
        rank: usize,
    },
    /// A server has refused a request. The message names key and rank.
    #[error("server {server}: {message}")]
    Refused {
        /// The server's rank.
        server: usize,
        /// Its error.
        message: String,
    },
    /// A server did not answer within the deadline.
    #[error(
        "rank {rank} waited {seconds} s in {during} for the server, rank {server}; deadlines are set with CANDELABRUM_TIMEOUT (seconds)"
    )]
    Silent {
        /// The rank that waited.
        rank: usize,
        /// The server.
        server: usize,
        /// What this rank was doing.
        during: String,
        /// The time it waited.
        seconds: u64,
    },
    /// A message that cannot be decoded.
    #[error("a message of rank {from} cannot be read: {what}")]
    Message {
        /// The sender.
        from: usize,
        /// What is wrong with it.
        what: String,
    },
    /// A file of a server's state that cannot be used.
    #[error("{}: {what}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Parameters that the loss does not depend on.
    #[error("no gradient reached {names}: {why}")]
    NoGradient {
        /// The names of the parameters.
        names: String,
        /// The possible causes with their remedies, the most certain one first.
        why: String,
    },
    /// A loss that is NaN or infinite.
    #[error("rank {rank}: the loss is not finite")]
    Loss {
        /// The rank.
        rank: usize,
    },
    /// An error of the communication.
    #[error(transparent)]
    Dist(#[from] DistError),
    /// An error of the optimizer.
    #[error(transparent)]
    Optim(#[from] OptimError),
    /// An error of memory.
    #[error(transparent)]
    Memory(#[from] candelabrum_memory::Error),
}

impl Error {
    /// Whether it only reports the failure of another rank, which names the cause itself.
    pub fn is_echo(&self) -> bool {
        match self {
            Self::Dist(error) => error.is_echo(),
            _ => false,
        }
    }
}

impl From<candle_core::Error> for Error {
    fn from(source: candle_core::Error) -> Self {
        candelabrum_dist::carried::<Self>(&source)
            .cloned()
            .unwrap_or_else(|| Self::Dist(source.into()))
    }
}

/// For candle operations that use a store. `Error::from` converts the candle error back.
impl From<Error> for candle_core::Error {
    fn from(error: Error) -> Self {
        // candle's `Wrapped` loses the type. `Io` keeps it, and displays the error's own message.
        Self::Io(io::Error::other(error)).bt()
    }
}
