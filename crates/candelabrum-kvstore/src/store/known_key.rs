//! What a worker knows of a key.

use std::ops::Range;

use crate::keys::KeyTable;
use crate::server_parts::ServerPart;

/// What a worker knows of a key.
#[derive(Debug)]
pub(super) struct KnownKey {
    pub(super) dims: Vec<usize>,
    pub(super) parts: Vec<ServerPart>,
    /// Whether it is a table of rows.
    pub(super) is_table: bool,
    /// By part: the version of the value that this worker pulled last.
    pub(super) versions: Vec<u64>,
    /// What compression has not sent yet.
    pub(super) residual: Vec<f32>,
}

impl KnownKey {
    /// Elements of a row.
    pub(super) fn dim(&self) -> usize {
        self.dims.iter().skip(1).product()
    }
}

/// A part of a value that a pull has asked for.
pub(super) struct PulledPart {
    /// The number of the part.
    pub(super) part: usize,
    pub(super) server: usize,
    pub(super) ticket: u64,
    /// Its elements of the pulled value, or its rows among the pulled ones.
    pub(super) range: Range<usize>,
}

impl KeyTable<KnownKey> {
    /// Notes the version of a part that this worker has pulled.
    pub(super) fn record_version(&mut self, number: u32, part: usize, version: u64) {
        if let Some(place) = self.entry_mut(number).versions.get_mut(part) {
            *place = version;
        }
    }
}
