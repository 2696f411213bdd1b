//! The first values of keys.

use candle_core::Tensor;

use super::known_key::KnownKey;
use super::kv_store::{KvStore, StoreState};
use crate::server_parts::{self, ServerPart};
use crate::shard::{KeyInit, RowInit};
use crate::values::PushValues;
use crate::wire::{MessageHeader, MessageKind, WireMessage};
use crate::{Error, Key, Result};

impl KvStore {
    /// Gives a key its first value: that of the first worker. All workers call it together, with
    /// values of one shape.
    ///
    /// # Errors
    /// A key that was initialised, a key of another kind, NaN or infinity, workers with different keys
    /// or shapes, a failure of another rank, or a passed deadline.
    pub fn init(&self, key: impl Into<Key>, value: &Tensor) -> Result<()> {
        self.init_all([(key.into(), value.clone())])
    }

    /// [`Self::init`] of several keys, which costs one answer's time in all.
    ///
    /// # Errors
    /// Those of [`Self::init`].
    pub fn init_all(&self, values: impl IntoIterator<Item = (Key, Tensor)>) -> Result<()> {
        let mut tickets = Vec::new();
        let started = self.start_inits(values, &mut tickets);
        self.recorded(self.wait_for_inits(started, &tickets))
    }

    fn start_inits(
        &self,
        values: impl IntoIterator<Item = (Key, Tensor)>,
        tickets: &mut Vec<(usize, u64)>,
    ) -> Result<()> {
        for (key, value) in values {
            self.check_type(&key, PushValues::Tensor(&value))?;
            let elements = PushValues::Tensor(&value).elements()?;
            self.check_finite(&key, &elements)?;
            self.start_init(&key, value.dims(), None, &elements, tickets)?;
        }
        Ok(())
    }

    /// Makes a key a table of `rows` rows of `dim` elements, distributed over the servers by rows. The
    /// servers make the first values, so no worker ever has the whole table. All workers call it
    /// together.
    ///
    /// # Errors
    /// Those of [`Self::init`], a table without elements or with more than `u32::MAX` rows, and a
    /// deviation without meaning.
    pub fn init_rows(
        &self,
        key: impl Into<Key>,
        rows: usize,
        dim: usize,
        init: RowInit,
    ) -> Result<()> {
        let refuse = |setting, value: String, range| Err(Error::Setting { setting, value, range });
        let bytes =
            rows.checked_mul(dim).and_then(|elements| elements.checked_mul(size_of::<f32>()));
        if rows == 0 || dim == 0 || u32::try_from(rows).is_err() || bytes.is_none() {
            let value = format!("{rows} × {dim}");
            let range = "it has elements, rows fit into u32, and all bytes into usize";
            return refuse("the size of a table", value, range);
        }
        if let RowInit::Normal { std, .. } = init
            && !(std.is_finite() && std >= 0.0)
        {
            let range = "it is finite and at least 0";
            return refuse("the deviation of a table's first values", std.to_string(), range);
        }
        let mut tickets = Vec::new();
        let started = self.start_init(&key.into(), &[rows, dim], Some(init), &[], &mut tickets);
        self.recorded(self.wait_for_inits(started, &tickets))
    }

    fn start_init(
        &self,
        key: &Key,
        dims: &[usize],
        rows: Option<RowInit>,
        elements: &[f32],
        tickets: &mut Vec<(usize, u64)>,
    ) -> Result<()> {
        let mut state = self.0.state.lock();
        let StoreState { client, keys, .. } = &mut *state;
        client.check()?;
        let servers = client.link().servers();
        let len = dims.iter().product();
        let bound = self.0.config.big_array_bound;
        let parts = match rows {
            Some(_) => server_parts::even(dims[0], servers),
            None => server_parts::dense(key, keys.len() as u32, len, bound, servers),
        };
        let versions = vec![0; parts.len()];
        let is_table = rows.is_some();
        let place = KnownKey {
            dims: dims.to_vec(),
            parts: parts.clone(),
            is_table,
            versions,
            residual: Vec::new(),
        };
        let number = keys.insert(key, place)?;
        for ServerPart { server, range } in parts {
            let ticket = client.ticket();
            let sends = self.rank() == 0 && !is_table;
            let values = if sends { &elements[range.clone()] } else { &[] };
            let header = MessageHeader {
                ticket,
                key: number,
                elements: values.len() as u64,
                receipt: u32::from(client.confirms(size_of_val(values))),
                ..MessageHeader::new(MessageKind::Init)
            };
            let init = KeyInit { key: key.clone(), dims: dims.to_vec(), part: range, rows };
            let mut message = WireMessage::json(header, &init, size_of_val(values));
            message.data_mut().copy_from_slice(bytemuck::cast_slice(values));
            client.request(server, i32::MAX, message, true)?;
            tickets.push((server, ticket));
        }
        Ok(())
    }

    fn wait_for_inits(&self, started: Result<()>, tickets: &[(usize, u64)]) -> Result<()> {
        let waited = started.and_then(|()| {
            let mut tickets = tickets.iter();
            tickets.try_for_each(|asked| self.answer(*asked, || "init".to_owned()).map(drop))
        });
        waited.inspect_err(|_| self.ignore(tickets.iter().map(|(_, ticket)| *ticket)))
    }
}
