//! What is checked of a value before it leaves.

use candelabrum_memory::first_bad;

use super::known_key::KnownKey;
use super::kv_store::KvStore;
use crate::codec::Compression;
use crate::values::PushValues;
use crate::{Error, Key, Result};

impl KvStore {
    pub(super) fn check_form(
        &self,
        key: &Key,
        place: &KnownKey,
        table: bool,
        what: &'static str,
    ) -> Result<()> {
        if place.is_table == table {
            return Ok(());
        }
        let kind = match place.is_table {
            true => "a table of rows: use push_rows and row_sparse_pull",
            false => "dense: use push and pull",
        };
        Err(Error::Form { rank: self.0.rank, what, key: key.clone(), kind })
    }

    pub(super) fn check_type(&self, key: &Key, values: PushValues<'_>) -> Result<()> {
        let Some(dtype) = values.other_type() else { return Ok(()) };
        let (rank, key, got) = (self.0.rank, key.clone(), format!("{dtype:?}"));
        Err(Error::ElementType { rank, key, got })
    }

    pub(super) fn check_rows(&self, key: &Key, place: &KnownKey, rows: &[u32]) -> Result<()> {
        let all = place.dims[0];
        match rows.iter().find(|row| **row as usize >= all) {
            None => Ok(()),
            Some(&row) => {
                let (rank, key, row) = (self.0.rank, key.clone(), row.into());
                Err(Error::Row { rank, key, row, rows: all })
            }
        }
    }

    pub(super) fn check_finite(&self, key: &Key, values: &[f32]) -> Result<()> {
        match first_bad(values) {
            None => Ok(()),
            Some(position) => {
                let (rank, key) = (self.0.rank, key.clone());
                Err(Error::NotFinite { rank, key, position, value: values[position] })
            }
        }
    }

    /// The error for a value that a compression cannot represent.
    pub(super) fn not_representable(
        &self,
        key: &Key,
        position: usize,
        value: f32,
        compression: Compression,
    ) -> Error {
        let (rank, key) = (self.0.rank, key.clone());
        if !value.is_finite() {
            return Error::NotFinite { rank, key, position, value };
        }
        Error::OutOfRange { rank, key, position, value, compression: format!("{compression:?}") }
    }
}
