//! Pushes and pulls of some rows of a table.

use std::fmt;

use super::known_key::PulledPart;
use super::kv_store::{KvStore, StoreState};
use crate::server_parts::ServerPart;
use crate::values::RowSparse;
use crate::wire::{MessageHeader, MessageKind, WireMessage};
use crate::{Error, Key, Result};

impl KvStore {
    /// Pushes rows of a table, for instance the gradient of an embedding, and returns at once. Rows may
    /// be in any order. A row that is there twice counts as the sum. A push without rows counts as a
    /// push of its round in dist_sync.
    ///
    /// # Errors
    /// An unknown key, one that is no table, a row that the table does not have, values of another
    /// length, NaN or infinity, an earlier request that a server has refused, or a failure of another
    /// rank.
    pub fn push_rows(&self, key: impl Into<Key>, rows: &RowSparse, priority: i32) -> Result<()> {
        self.recorded(self.start_push_rows(key.into(), rows, priority))
    }

    fn start_push_rows(&self, key: Key, rows: &RowSparse, priority: i32) -> Result<()> {
        let rank = self.0.rank;
        let mut state = self.0.state.lock();
        let StoreState { client, keys, .. } = &mut *state;
        client.check()?;
        let (number, place) = keys.find(&key)?;
        self.check_form(&key, place, true, "a push of rows")?;
        let dim = place.dim();
        if rows.values.len() != rows.rows.len() * dim {
            let (rows, got) = (rows.rows.len(), rows.values.len());
            return Err(Error::RowValues { rank, key, rows, dim, got });
        }
        self.check_rows(&key, place, &rows.rows)?;
        self.check_finite(&key, &rows.values)?;
        for (part, version) in place.parts.iter().zip(&place.versions) {
            let ticket = client.ticket();
            let own: Vec<usize> = (0..rows.rows.len())
                .filter(|index| part.range.contains(&(rows.rows[*index] as usize)))
                .collect();
            let len = own.len() * (4 + 4 * dim);
            let header = MessageHeader {
                ticket,
                key: number,
                version: *version,
                elements: own.len() as u64,
                receipt: u32::from(client.confirms(len)),
                ..MessageHeader::new(MessageKind::PushRows)
            };
            let mut message = self.0.memory.message(header, len);
            let (positions, values) = message.data_mut().split_at_mut(4 * own.len());
            for (index, (position, row)) in
                own.iter().zip(positions.chunks_exact_mut(4).zip(values.chunks_exact_mut(4 * dim)))
            {
                let local = rows.rows[*index] - part.range.start as u32;
                position.copy_from_slice(&local.to_ne_bytes());
                let from = &rows.values[index * dim..(index + 1) * dim];
                row.copy_from_slice(bytemuck::cast_slice(from));
            }
            client.request(part.server, priority, message, false)?;
        }
        Ok(())
    }

    /// Pulls the given rows of a table: only these travel. Returns at once.
    ///
    /// # Errors
    /// An unknown key, one that is no table, a row that the table does not have, an earlier request
    /// that a server has refused, or a failure of another rank.
    pub fn row_sparse_pull(
        &self,
        key: impl Into<Key>,
        rows: &[u32],
        priority: i32,
    ) -> Result<PullRows> {
        self.recorded(self.start_pull_rows(key.into(), rows, priority))
    }

    fn start_pull_rows(&self, key: Key, rows: &[u32], priority: i32) -> Result<PullRows> {
        let mut state = self.0.state.lock();
        let StoreState { client, keys, .. } = &mut *state;
        client.check()?;
        let (number, place) = keys.find(&key)?;
        self.check_form(&key, place, true, "row_sparse_pull")?;
        self.check_rows(&key, place, rows)?;
        let mut rows = rows.to_vec();
        rows.sort_unstable();
        rows.dedup();
        let mut tickets = Vec::new();
        for (part, ServerPart { server, range }) in place.parts.iter().enumerate() {
            let start = rows.partition_point(|row| (*row as usize) < range.start);
            let end = rows.partition_point(|row| (*row as usize) < range.end);
            if start == end {
                continue;
            }
            let ticket = client.ticket();
            let elements = (end - start) as u64;
            let header = MessageHeader {
                ticket,
                key: number,
                elements,
                ..MessageHeader::new(MessageKind::PullRows)
            };
            let mut message = WireMessage::new(header, "", 4 * (end - start));
            for (to, row) in message.data_mut().chunks_exact_mut(4).zip(&rows[start..end]) {
                to.copy_from_slice(&(row - range.start as u32).to_ne_bytes());
            }
            client.request(*server, priority, message, true)?;
            tickets.push(PulledPart { part, server: *server, ticket, range: start..end });
        }
        let dim = place.dim();
        Ok(PullRows { store: self.clone(), number, key, rows, dim, tickets })
    }
}

/// Rows that have been asked for. Dropping it gives them up, and nothing else.
#[must_use = "the rows arrive when they are waited for"]
pub struct PullRows {
    store: KvStore,
    number: u32,
    key: Key,
    rows: Vec<u32>,
    dim: usize,
    tickets: Vec<PulledPart>,
}

impl PullRows {
    /// Waits for the rows, which ascend and are there once each.
    ///
    /// # Errors
    /// Those of [`PendingPull::wait`](crate::PendingPull::wait).
    pub fn wait(mut self) -> Result<RowSparse> {
        let rows = std::mem::take(&mut self.rows);
        let mut values = vec![0.0; rows.len() * self.dim];
        let during = || format!("row_sparse_pull of `{}`", self.key);
        self.store.collect((self.number, &self.tickets), (self.dim, &mut values), during)?;
        Ok(RowSparse { rows, values })
    }
}

impl Drop for PullRows {
    fn drop(&mut self) {
        self.store.forget(&self.tickets);
    }
}

impl fmt::Debug for PullRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PullRows({} rows of `{}`)", self.rows.len(), self.key)
    }
}
