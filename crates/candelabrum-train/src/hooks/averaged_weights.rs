//! The averages of a model's weights: how they move, and how they change places with the weights.
//!
//! The average of an f16 or bf16 parameter is that of its master in f32. It lies where the parameter lies. Only
//! trainable parameters have one. Buffers, such as the running statistics of a batch normalisation, have none: an
//! evaluation of the average uses those of the training, as PyTorch's `AveragedModel` does by default.

use std::collections::BTreeMap;

use candelabrum_dist::ReduceOp;
use candelabrum_memory::chunks::{Splittable, by_chunks};
use candelabrum_memory::{ElementType, FlatTensor, Location, Span, SpanMut};
use candelabrum_nn::Param;

use super::hook::{NamedVector, Run};
use crate::checkpoint::OwnPart;
use crate::{Error, Result};

/// The averages of all trainable parameters of a run.
#[derive(Debug, Default)]
pub(super) struct AveragedWeights {
    entries: Vec<AveragedParam>,
    /// What a checkpoint had, until the parameters are known.
    restored: Option<BTreeMap<String, Vec<f32>>>,
    /// Whether ranks may have different averages.
    differ: bool,
    /// Whether the model has the averages, and `entries` the weights.
    are_in_model: bool,
}

#[derive(Debug)]
struct AveragedParam {
    /// The names of the model and of the parameter.
    name: String,
    param: Param,
    /// The place of the first value, if this rank keeps only its shard of the parameter, and so of the average.
    shard: Option<usize>,
    /// Whether it goes into a checkpoint: another host may save a copy of the shard.
    is_saved: bool,
    values: FlatTensor,
}

impl AveragedWeights {
    /// The parts of the averages that this rank needs of a checkpoint.
    pub(super) fn own_parts(&mut self, run: &mut Run<'_, '_>) -> Result<BTreeMap<String, OwnPart>> {
        self.bind(run)?;
        let part = |entry: &AveragedParam| {
            let start = entry.shard.unwrap_or_default();
            let elements = start..start + entry.values.len();
            (entry.name.clone(), OwnPart { dims: entry.param.dims().to_vec(), elements })
        };
        Ok(self.entries.iter().map(part).collect())
    }

    /// Takes what a checkpoint had of these parts.
    pub(super) fn restore(&mut self, vectors: BTreeMap<String, Vec<f32>>) {
        self.restored = Some(vectors);
    }

    /// Continues with what [`restore`](Self::restore) has taken.
    ///
    /// # Errors
    /// [`Error::HookState`] if the vectors are not those of the models, and a device's error.
    pub(super) fn take_restored(&mut self, hook: &str, run: &mut Run<'_, '_>) -> Result<()> {
        let Some(mut vectors) = self.restored.take() else { return Ok(()) };
        let refuse = |what| Error::HookState { hook: hook.to_owned(), what };
        if self.entries.is_empty() {
            self.bind(run)?;
        }
        for entry in &mut self.entries {
            let missing = || refuse(format!("it has no average of `{}`", entry.name));
            let values = vectors.remove(&entry.name).ok_or_else(missing)?;
            let (saved, here) = (values.len(), entry.values.len());
            if saved != here {
                let name = &entry.name;
                return Err(refuse(format!("`{name}` has {saved} elements there and {here} here")));
            }
            memory(entry.values.span_mut().and_then(|mut to| to.copy_from((&values).into())))?;
        }
        match vectors.keys().next() {
            Some(name) => Err(refuse(format!("it has `{name}`, which is not trained here"))),
            None => Ok(()),
        }
    }

    /// Makes room for the averages, once the models have their parameters.
    fn bind(&mut self, run: &mut Run<'_, '_>) -> Result<()> {
        self.entries.clear();
        shard_parameters(run)?;
        for (model, optimizer) in &*run.optimizers {
            for param in optimizer.params().trainable() {
                let name = match *model {
                    "" => param.name().to_owned(),
                    model => format!("{model}/{}", param.name()),
                };
                let location = Location::from_device(param.device());
                let (start, len) = param.with_own_values(|start, own| Ok((start, own.len())))?;
                let shard = param.is_sharded().then_some(start);
                let values = memory(FlatTensor::zeros_on(&location, ElementType::F32, len))?;
                let is_saved = shard.is_none() || optimizer.saves_shards();
                self.entries.push(AveragedParam { name, param, shard, is_saved, values });
            }
        }
        Ok(())
    }

    /// Moves all averages towards the weights by this shard of the way.
    pub(super) fn move_by(&mut self, fraction: f64, run: &mut Run<'_, '_>) -> Result<()> {
        if self.entries.is_empty() {
            self.bind(run)?;
        }
        shard_parameters(run)?;
        self.differ |= run.optimizers.iter().any(|(_, optimizer)| optimizer.may_differ());
        for AveragedParam { param, values, .. } in &mut self.entries {
            param.with_own_values(|_, weights| moved(values.span_mut()?, weights, fraction))?;
        }
        Ok(())
    }

    /// Makes one average of the ranks' averages, where they may differ. All ranks call it together.
    pub(super) fn unite(&mut self, run: &Run<'_, '_>) -> Result<()> {
        if !std::mem::take(&mut self.differ) {
            return Ok(());
        }
        let Some(optimizer) = run.optimizer() else { return Ok(()) };
        for AveragedParam { values, .. } in &mut self.entries {
            let mut numbers = vec![0.0_f32; values.len()];
            memory(values.span().and_then(|from| from.copy_to_slice(&mut numbers)))?;
            optimizer.group().all_reduce(&mut numbers, ReduceOp::Mean)?;
            memory(values.span_mut().and_then(|mut to| to.copy_from((&numbers).into())))?;
        }
        Ok(())
    }

    /// Whether the model has the averages at present.
    pub(super) fn are_in_model(&self) -> bool {
        self.are_in_model
    }

    /// Lets the averages and the weights change places. All ranks call it together.
    pub(super) fn swap(&mut self, run: &mut Run<'_, '_>) -> Result<()> {
        shard_parameters(run)?;
        for AveragedParam { param, values, .. } in &mut self.entries {
            memory(param.update_own(|weights| swapped(weights, values))?)?;
        }
        self.are_in_model = !self.are_in_model;
        Ok(())
    }

    /// The averages by their names.
    pub(super) fn vectors(&self) -> Result<Vec<NamedVector<'_>>> {
        let mut vectors = Vec::with_capacity(self.entries.len());
        for AveragedParam { name, param, shard, values, .. } in
            self.entries.iter().filter(|e| e.is_saved)
        {
            let (name, dims, shard) = (name.clone(), param.dims().to_vec(), *shard);
            vectors.push(NamedVector { name, dims, values: memory(values.span())?, shard });
        }
        Ok(vectors)
    }
}

/// Divides parameters again that another hook may have gathered, because their averages are divided.
fn shard_parameters(run: &mut Run<'_, '_>) -> Result<()> {
    let mut optimizers = run.optimizers.iter_mut();
    Ok(optimizers.try_for_each(|(_, optimizer)| optimizer.shard_parameters())?)
}

fn memory<T>(result: candelabrum_memory::Result<T>) -> Result<T> {
    Ok(result.map_err(candelabrum_dist::Error::from)?)
}

fn swapped(mut weights: SpanMut<'_>, values: &mut FlatTensor) -> candelabrum_memory::Result<()> {
    let kept = weights.as_span().to_flat()?;
    weights.copy_from(values.span()?)?;
    values.span_mut()?.copy_from(kept.span()?)
}

/// `average + shard · (weights - average)`, or the same from the other end if the shard is above a half: PyTorch's
/// `lerp`, so that a shard of 1 gives the weights. The host and a GPU compute the same bits.
fn moved(average: SpanMut<'_>, weights: Span<'_>, fraction: f64) -> candelabrum_memory::Result<()> {
    let (take, keep) = (fraction as f32, (1.0 - fraction) as f32);
    match (average, weights) {
        (SpanMut::Host(average), Span::Host(weights)) => {
            by_chunks(
                AverageAndWeights { average, weights },
                #[inline(always)]
                |AverageAndWeights { average, weights }| {
                    for (a, &w) in average.iter_mut().zip(weights) {
                        *a =
                            if fraction > 0.5 { keep * (*a - w) + w } else { take * (w - *a) + *a };
                    }
                    [0.0; 2]
                },
            );
            Ok(())
        }
        (mut average, weights) if fraction > 0.5 => {
            let mut negative = weights.to_flat()?;
            negative.span_mut()?.scale(-1.0)?;
            average.add(negative.span()?)?;
            average.scale(keep)?;
            average.add(weights)
        }
        (mut average, weights) => {
            let mut way = average.as_span().to_flat()?;
            way.span_mut()?.scale(-1.0)?;
            way.span_mut()?.add(weights)?;
            way.span_mut()?.scale(take)?;
            average.add(way.span()?)
        }
    }
}

/// A run of averages with its weights.
struct AverageAndWeights<'a> {
    average: &'a mut [f32],
    weights: &'a [f32],
}

impl Splittable for AverageAndWeights<'_> {
    fn elements(&self) -> usize {
        self.weights.len()
    }

    fn split(self, at: usize) -> (Self, Self) {
        let (average, average_rest) = self.average.split_at_mut(at);
        let (weights, weights_rest) = self.weights.split_at(at);
        (Self { average, weights }, Self { average: average_rest, weights: weights_rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_average_moves_by_its_share_and_by_a_whole_one_exactly() {
        let weights = [1e12_f32, -0.5, 1e-30, 3.0];
        for (fraction, expected) in
            [(1.0, weights), (0.0, [1.0; 4]), (0.25, [2.5e11, 0.625, 0.75, 1.5])]
        {
            let mut average = [1.0_f32; 4];
            moved((&mut average).into(), (&weights).into(), fraction).unwrap();
            assert_eq!(average, expected, "{fraction}");
        }
    }
}
