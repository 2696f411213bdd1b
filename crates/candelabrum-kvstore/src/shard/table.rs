//! A table of rows, or one server's rows of it: MXNet's `row_sparse` value.
//!
//! A row exists from its first use on. Until then it costs no memory, and its first values depend on
//! the seed, the key and the row's number alone, not on the number of servers. An update changes the
//! rows that were pushed, and no other row (MXNet's `lazy_update`).
//!
//! Rows in a message are numbers within the server's part: k positions as u32, then k rows of f32.

use std::ops::Range;

use candelabrum_memory::{ElementType, FlatTensor};
use candelabrum_nn::seed;
use candelabrum_optim::Optimizer;
use rand_distr::{Distribution, Normal};

use super::dense::divide;
use super::means::UpdateInputs;
use super::settings::{KeyInit, RowInit};
use crate::Result;
use crate::wire::{MessageHeader, MessageMemory, WireMessage, numbers};

pub(super) struct RowTable {
    part: Range<usize>,
    pub(super) dim: usize,
    init: RowInit,
    /// The seed of this table's rows.
    seed: u64,
    pub(super) values: FlatTensor,
    /// One bit per row: whether it has its first values.
    exists: Vec<u64>,
    pub(super) optimizer: Option<Box<dyn Optimizer>>,
}

impl RowTable {
    pub(super) fn new(of: &KeyInit, init: &RowInit) -> Result<Self> {
        let dim = of.dims.iter().skip(1).product::<usize>();
        let rows = of.part.len();
        let seed = match init {
            RowInit::Zeros => 0,
            RowInit::Normal { seed, .. } => seed::derive(*seed, &of.key.to_string()),
        };
        Ok(Self {
            part: of.part.clone(),
            dim,
            init: *init,
            seed,
            values: of.zeros()?,
            exists: vec![0; rows.div_ceil(64)],
            optimizer: None,
        })
    }

    fn positions(&self, message: &WireMessage, rows: usize) -> std::result::Result<(), String> {
        let len = self.part.len();
        let positions = numbers::<u32>(&message.data()[..4 * rows]);
        match positions.iter().find(|position| **position as usize >= len) {
            Some(position) => Err(format!("row {position} of {len}")),
            None => Ok(()),
        }
    }

    pub(super) fn check_push(&self, message: &WireMessage) -> std::result::Result<(), String> {
        let rows = message.header().elements as usize;
        let len = message.data().len();
        if rows.checked_mul(4 + 4 * self.dim) != Some(len) {
            return Err(format!("{len} bytes for {rows} rows of {} elements", self.dim));
        }
        self.positions(message, rows)
    }

    pub(super) fn check_pull(&self, message: &WireMessage) -> std::result::Result<(), String> {
        let (rows, len) = (message.header().elements as usize, message.data().len());
        // The answer is longer than the request, so repetitions are no way to make it endless.
        if rows.checked_mul(4) != Some(len) || rows > self.part.len() {
            return Err(format!("{len} bytes for {rows} rows"));
        }
        self.positions(message, rows)
    }

    /// Adds the pushed rows in the order of the pushes, and updates each row by its sum.
    pub(super) fn update(
        &mut self,
        pushes: &[(usize, WireMessage)],
        means: UpdateInputs<'_>,
    ) -> Result<()> {
        let dim = self.dim;
        if self.optimizer.is_none() {
            self.optimizer = means.optimizer(self.values.len())?;
        }
        let mut all: Vec<(u32, &[u8])> = Vec::new();
        for (_, message) in pushes {
            let (positions, rows) = message.data().split_at(4 * message.header().elements as usize);
            all.extend(numbers::<u32>(positions).iter().copied().zip(rows.chunks(4 * dim)));
        }
        // The order of equal rows, which is that of the pushes, stays.
        all.sort_by_key(|(row, _)| *row);
        let mut sum = vec![0.0; dim];
        let divide_by = means.settings.map_or(1.0, |settings| settings.divide_by);
        let mut updater = means.updater;
        for same in all.chunk_by(|a, b| a.0 == b.0) {
            let row = same[0].0 as usize;
            sum.fill(0.0);
            for (_, values) in same {
                for (sum, value) in sum.iter_mut().zip(numbers::<f32>(values).iter()) {
                    *sum += value;
                }
            }
            self.create(row);
            let place = row * dim..(row + 1) * dim;
            let values = &mut self.values.as_mut_slice::<f32>()?[place.clone()];
            match (&mut self.optimizer, &mut updater) {
                (Some(optimizer), _) => {
                    divide(&mut sum, divide_by);
                    optimizer.update_range(0, place, values, &sum)?;
                }
                (None, Some(updater)) => updater(means.key, &sum, values),
                (None, None) => values.copy_from_slice(&sum),
            }
        }
        if let Some(optimizer) = &mut self.optimizer {
            optimizer.step();
        }
        Ok(())
    }

    pub(super) fn forget_optimizer(&mut self) {
        self.optimizer = None;
    }

    /// The answer to a pull of rows.
    pub(super) fn answer(
        &mut self,
        memory: &MessageMemory,
        header: MessageHeader,
        wanted: &WireMessage,
    ) -> WireMessage {
        let positions = numbers::<u32>(wanted.data());
        positions.iter().for_each(|row| self.create(*row as usize));
        let row_len = 4 * self.dim;
        let elements = (positions.len() * self.dim) as u64;
        let mut message =
            memory.message(MessageHeader { elements, ..header }, positions.len() * row_len);
        let values = self.values.bytes();
        for (to, row) in message.data_mut().chunks_mut(row_len.max(1)).zip(positions.iter()) {
            to.copy_from_slice(&values[*row as usize * row_len..][..row_len]);
        }
        message
    }

    /// The number of rows that exist.
    pub(super) fn count(&self) -> u64 {
        self.exists.iter().map(|rows| u64::from(rows.count_ones())).sum()
    }

    /// The rows that exist.
    pub(super) fn existing(&self) -> Vec<u32> {
        let mut rows = Vec::new();
        for (word, bits) in self.exists.iter().enumerate() {
            let mut bits = *bits;
            while bits != 0 {
                rows.push(64 * word as u32 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        rows
    }

    /// Marks a row as existing, without first values.
    pub(super) fn mark(&mut self, row: usize) -> bool {
        let bit = 1 << (row % 64);
        let is_new = self.exists[row / 64] & bit == 0;
        self.exists[row / 64] |= bit;
        is_new
    }

    /// Forgets all rows.
    pub(super) fn clear(&mut self) {
        self.exists.fill(0);
        self.values = FlatTensor::zeros(ElementType::F32, self.values.len());
    }

    /// Gives a row its first values at its first use.
    fn create(&mut self, row: usize) {
        if !self.mark(row) {
            return;
        }
        let RowInit::Normal { std, .. } = self.init else { return };
        let Ok(normal) = Normal::new(0.0, std) else { return };
        let mut rng = seed::rng(seed::nth(self.seed, (self.part.start + row) as u64));
        if let Ok(values) = self.values.as_mut_slice::<f32>() {
            for value in &mut values[row * self.dim..(row + 1) * self.dim] {
                *value = normal.sample(&mut rng);
            }
        }
    }
}
