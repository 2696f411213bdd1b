//! MXNet's key-value store, and the servers that hold its values.
//!
//! Workers push gradients and pull values. The values are on servers, which are ranks of the same
//! world: the last ones ([`candelabrum_dist::World::servers`]). docs/kvstore.md says when a server is
//! better than an all-reduce.
//!
//! | idea | where |
//! |---|---|
//! | push, pull and what belongs to them | [`KvStore`], [`StoreConfig`] |
//! | training through a store | [`KvStore::servers`] |
//! | a server | [`Server`], [`ServerStats`] |
//! | keys and values | [`Key`], [`PushValues`], [`RowSparse`] |
//! | an embedding with its table on servers | [`SparseEmbedding`] |
//! | compression of pushes | [`Compression`] |
//!
//! The code below the store, from the worker to the server:
//!
//! | idea | file |
//! |---|---|
//! | the order of a worker's requests, and their answers | `client.rs` |
//! | which server holds what | `server_parts.rs` |
//! | which ranks are workers | `roles.rs` |
//! | the bytes of a message | `wire.rs`, `codec/` |
//! | messages between ranks, or inside of one process | `link.rs` |
//! | the order in which a server serves | `server.rs` |
//! | values, rounds and optimizers of one server | `shard/` |

#![forbid(unsafe_code)]

mod client;
mod codec;
mod config;
mod embedding;
mod error;
mod key;
mod keys;
mod link;
mod roles;
mod server;
mod server_parts;
mod shard;
mod stats;
mod store;
mod training;
mod values;
mod wire;

pub use codec::Compression;
pub use config::{StoreConfig, StoreKind};
pub use embedding::{Prefetch, SparseEmbedding};
pub use error::{Error, Result};
pub use key::Key;
pub use server::Server;
pub use server_parts::BIG_ARRAY_BOUND;
pub use shard::RowInit;
pub use stats::{ServerStats, Staleness};
pub use store::{KvStore, PendingPull, PullRows};
pub use values::{PushValues, RowSparse};
