//! Pushes and pulls of dense values.

use std::fmt;

use candle_core::{Device, Tensor};

use super::known_key::PulledPart;
use super::kv_store::{KvStore, StoreState};
use crate::codec::Compression;
use crate::server_parts::ServerPart;
use crate::values::PushValues;
use crate::wire::{MessageHeader, MessageKind, WireMessage};
use crate::{Error, Key, Result};

impl KvStore {
    /// Initialises a key and pulls its value: the first worker's value, on every worker.
    ///
    /// # Errors
    /// Those of [`Self::init`] and [`Self::pull`].
    pub fn broadcast(&self, key: impl Into<Key>, value: &Tensor) -> Result<Tensor> {
        let key = key.into();
        self.init(&key, value)?;
        self.pull(&key, 0)?.wait()
    }

    /// Pushes a value, and returns at once. Keys with a higher `priority` leave first. The pushes and
    /// pulls of one key keep their order. A push that has not left yet leaves during later calls of the
    /// store; [`Self::flush`] waits for it. A worker that is 32 pushes of a key ahead of the slowest one
    /// keeps the next ones itself, so a program that pushes without a pull should flush now and then.
    ///
    /// The store's optimizer or updater updates the stored value: in dist_sync by the sum of one push
    /// of each worker, otherwise by this push. Without either, the sum or the push becomes the value.
    ///
    /// # Errors
    /// An unknown key, another shape, NaN or infinity, a value out of the compression's range, a key that
    /// is a table, an earlier request that a server has refused, or a failure of another rank.
    pub fn push<'a>(
        &self,
        key: impl Into<Key>,
        values: impl Into<PushValues<'a>>,
        priority: i32,
    ) -> Result<()> {
        let compression = self.0.state.lock().compression;
        let key = key.into();
        self.recorded(
            self.start_push(MessageKind::Push, &key, values.into(), priority, compression)
                .map(drop),
        )
    }

    /// Pulls a value. Returns at once; [`PendingPull::wait`] returns the value after all earlier pushes of
    /// this worker to this key.
    ///
    /// # Errors
    /// An unknown key, a key that is a table, an earlier request that a server has refused, or a
    /// failure of another rank.
    pub fn pull(&self, key: impl Into<Key>, priority: i32) -> Result<PendingPull> {
        self.recorded(self.start_pull(key.into(), priority))
    }

    fn start_pull(&self, key: Key, priority: i32) -> Result<PendingPull> {
        let mut state = self.0.state.lock();
        let StoreState { client, keys, .. } = &mut *state;
        client.check()?;
        let (number, place) = keys.find(&key)?;
        self.check_form(&key, place, false, "pull")?;
        let mut tickets = Vec::new();
        for (part, ServerPart { server, range }) in place.parts.iter().enumerate() {
            let ticket = client.ticket();
            let message = WireMessage::text(
                MessageHeader { ticket, key: number, ..MessageHeader::new(MessageKind::Pull) },
                "",
            );
            client.request(*server, priority, message, true)?;
            tickets.push(PulledPart { part, server: *server, ticket, range: range.clone() });
        }
        Ok(PendingPull { store: self.clone(), number, dims: place.dims.clone(), key, tickets })
    }

    /// Pushes a value and pulls the updated one, in one message to the server and one back. MXNet's
    /// `pushpull`.
    ///
    /// # Errors
    /// Those of [`Self::push`].
    pub fn pushpull<'a>(
        &self,
        key: impl Into<Key>,
        values: impl Into<PushValues<'a>>,
        priority: i32,
    ) -> Result<PendingPull> {
        let compression = self.0.state.lock().compression;
        self.pushpull_with(key, values, priority, compression)
    }

    /// [`Self::pushpull`] with this compression for this push.
    ///
    /// # Errors
    /// Those of [`Self::push`], and a compression without meaning.
    pub fn pushpull_with<'a>(
        &self,
        key: impl Into<Key>,
        values: impl Into<PushValues<'a>>,
        priority: i32,
        compression: Compression,
    ) -> Result<PendingPull> {
        compression.check()?;
        let key = key.into();
        let pushed =
            self.start_push(MessageKind::PushPull, &key, values.into(), priority, compression);
        let (number, dims, tickets) = self.recorded(pushed)?;
        Ok(PendingPull { store: self.clone(), number, dims, key, tickets })
    }

    fn start_push(
        &self,
        op: MessageKind,
        key: &Key,
        values: PushValues<'_>,
        priority: i32,
        compression: Compression,
    ) -> Result<(u32, Vec<usize>, Vec<PulledPart>)> {
        let rank = self.0.rank;
        let mut state = self.0.state.lock();
        let StoreState { client, keys, .. } = &mut *state;
        client.check()?;
        let (number, place) = keys.find_mut(key)?;
        self.check_form(key, place, false, "push")?;
        if let PushValues::Sum([]) = values {
            return Err(Error::NoValues { rank, key: key.clone() });
        }
        if let Some(got) = values.other_dims(&place.dims) {
            let (key, expected) = (key.clone(), place.dims.clone());
            return Err(Error::Shape { rank, key, expected, got });
        }
        self.check_type(key, values)?;
        let elements = values.elements()?;
        let mut own = Vec::new();
        if compression.keeps_residual() || !place.residual.is_empty() {
            self.check_finite(key, &elements)?;
            own = elements.to_vec();
            own.iter_mut().zip(&place.residual).for_each(|(x, rest)| *x += rest);
            self.check_finite(key, &own)?;
        }
        // Nothing leaves before all parts are encoded: an error must not leave half a push on servers.
        let mut messages = Vec::new();
        for (ServerPart { range, .. }, version) in place.parts.iter().zip(&place.versions) {
            let receipt = u32::from(client.confirms(size_of::<f32>() * range.len()));
            let (ticket, version) = (client.ticket(), *version);
            let header =
                MessageHeader { ticket, key: number, version, receipt, ..MessageHeader::new(op) };
            let encoded = if own.is_empty() {
                compression.encode_all(&self.0.memory, header, &elements[range.clone()])
            } else {
                compression.encode(&self.0.memory, header, &mut own[range.clone()])
            };
            messages.push(encoded.map_err(|position| {
                let position = range.start + position;
                let value = *own.get(position).unwrap_or(&elements[position]);
                self.not_representable(key, position, value, compression)
            })?);
        }
        let mut tickets = Vec::new();
        for (part, (message, ServerPart { server, range })) in
            messages.into_iter().zip(&place.parts).enumerate()
        {
            let (server, ticket) = (*server, message.header().ticket);
            client.request(server, priority, message, op == MessageKind::PushPull)?;
            tickets.push(PulledPart { part, server, ticket, range: range.clone() });
        }
        if compression.keeps_residual() {
            place.residual = own;
        } else {
            place.residual.clear();
        }
        Ok((number, place.dims.clone(), tickets))
    }
}

/// A value that has been asked for. Dropping it gives the value up, and nothing else.
#[must_use = "the value arrives when it is waited for"]
pub struct PendingPull {
    store: KvStore,
    number: u32,
    key: Key,
    dims: Vec<usize>,
    tickets: Vec<PulledPart>,
}

impl PendingPull {
    /// Whether [`Self::wait`] does not block.
    ///
    /// # Errors
    /// An earlier request that a server has refused, or a failure of another rank.
    pub fn is_complete(&self) -> Result<bool> {
        let mut state = self.store.0.state.lock();
        state.client.check()?;
        Ok(self.tickets.iter().all(|asked| state.client.has_arrived(asked.ticket)))
    }

    /// Waits for the value: a tensor in f32 on the CPU.
    ///
    /// # Errors
    /// A request that a server has refused, a worker that has left a round of dist_sync, a failure of
    /// another rank, or a passed deadline.
    pub fn wait(self) -> Result<Tensor> {
        let mut values = vec![0.0; self.dims.iter().product()];
        let dims = self.dims.clone();
        self.wait_into(&mut values)?;
        Ok(Tensor::from_vec(values, dims, &Device::Cpu)?)
    }

    /// Waits for the value and copies its elements to `to`.
    ///
    /// # Errors
    /// Those of [`Self::wait`], and a `to` of another length.
    pub fn wait_into(self, to: &mut [f32]) -> Result<()> {
        let expected: usize = self.dims.iter().product();
        if to.len() != expected {
            let (rank, key) = (self.store.0.rank, self.key.clone());
            return Err(Error::Shape {
                rank,
                key,
                expected: self.dims.clone(),
                got: vec![to.len()],
            });
        }
        let during = || format!("pull of `{}`", self.key);
        self.store.collect((self.number, &self.tickets), (1, to), during)
    }
}

impl Drop for PendingPull {
    fn drop(&mut self) {
        self.store.forget(&self.tickets);
    }
}

impl fmt::Debug for PendingPull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pull(`{}` {:?})", self.key, self.dims)
    }
}
