//! The key-value store, as a worker sees it.
//!
//! | idea | file |
//! |---|---|
//! | the store, its settings, and what all requests share | `kv_store.rs` |
//! | the first values of keys | `init.rs` |
//! | pushes and pulls of dense values | `dense.rs` |
//! | pushes and pulls of rows | `rows.rs` |
//! | the servers' state in files | `states.rs` |
//! | what is checked of a value before it leaves | `checks.rs` |
//! | what a worker knows of a key | `place.rs` |

mod checks;
mod dense;
mod init;
mod known_key;
mod kv_store;
mod rows;
mod states;

pub use self::dense::PendingPull;
pub use self::kv_store::KvStore;
pub use self::rows::PullRows;
