//! The keys and values of the tokens so far, so that a next token needs its own ones only.

use candle_core::{Result, Tensor, bail};

/// The keys and values of one sequence in all layers of a decoder.
#[derive(Debug)]
pub struct Cache {
    capacity: usize,
    layers: Vec<LayerCache>,
}

/// The keys and values of one layer: `(1, capacity, columns)`, of which the first `len` rows are written.
#[derive(Debug)]
pub(crate) struct LayerCache {
    capacity: usize,
    len: usize,
    keys_and_values: Option<(Tensor, Tensor)>,
}

impl Cache {
    /// An empty cache for at most `capacity` tokens.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity, layers: Vec::new() }
    }

    /// The number of tokens so far.
    pub fn len(&self) -> usize {
        self.layers.last().map_or(0, |layer| layer.len)
    }

    /// Whether there are no tokens yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The caches of `count` layers.
    pub(crate) fn layers(&mut self, count: usize) -> Result<&mut [LayerCache]> {
        if self.layers.is_empty() {
            let empty = || LayerCache { capacity: self.capacity, len: 0, keys_and_values: None };
            self.layers = std::iter::repeat_with(empty).take(count).collect();
        }
        if self.layers.len() != count {
            bail!("a cache of {} layers for a model of {count}", self.layers.len())
        }
        Ok(&mut self.layers)
    }
}

impl LayerCache {
    /// Adds the rows `k` and `v` (1, T, columns), and gives all rows so far.
    pub(crate) fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let (batch, length, columns) = k.dims3()?;
        if batch != 1 {
            bail!("a cache holds one sequence, not {batch}")
        }
        if self.len + length > self.capacity {
            bail!("a cache of {} tokens for {}", self.capacity, self.len + length)
        }
        if self.keys_and_values.is_none() {
            let empty = || Tensor::zeros((1, self.capacity, columns), k.dtype(), k.device());
            self.keys_and_values = Some((empty()?, empty()?));
        }
        let Some((keys, values)) = &self.keys_and_values else { bail!("an empty cache") };
        keys.slice_set(&k.detach().contiguous()?, 1, self.len)?;
        values.slice_set(&v.detach().contiguous()?, 1, self.len)?;
        self.len += length;
        Ok((keys.narrow(1, 0, self.len)?, values.narrow(1, 0, self.len)?))
    }
}
