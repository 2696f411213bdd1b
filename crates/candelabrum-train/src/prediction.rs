//! The outputs of a model for all of a dataset, in the order of the data, on every rank.
//!
//! The ranks take the batches of the data in turn, as in an evaluation: of `N` ranks, rank `r` has batch `s·N + r` at
//! step `s`. So each forward pass has the samples that it would have on one rank, and the outputs have the same bits.

use candelabrum_datasets::{Collated, Dataset, LoaderOptions};
use candelabrum_dist::{Error as DistError, Group, check_consistency};
use candle_core::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::agreement::agree;
use crate::evaluation::DataPass;
use crate::{Error, Result};

/// What one sample's output is: the same for all samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OutputRow {
    dtype: String,
    dims: Vec<usize>,
}

/// The outputs of `forward` for all of `data`, or for all parts of which each rank has one, in the order of the ranks.
/// The result is on the CPU. All ranks call it together.
pub(crate) fn run<D: Dataset + Clone>(
    group: &Group,
    data: &D,
    batch_size: usize,
    loading: &LoaderOptions,
    forward: impl FnMut(&D::Batch) -> Result<Tensor>,
) -> Result<Tensor> {
    let _span = tracing::debug_span!(target: "candelabrum::run", "predict").entered();
    let samples = match data.shared_by() {
        1 => data.len().to_string(),
        parts => format!("those of one of {parts} parts"),
    };
    let facts = [("the samples to predict", samples), ("the batch size", batch_size.to_string())];
    check_consistency(&**group, &facts.map(|(name, value)| (name.to_owned(), value)))?;
    // A rank that has failed does not let the others wait.
    let pass = agree(group, DataPass::over(group, data, batch_size, loading))?;
    let own = agree(group, outputs(&pass, forward))?;
    let row = common_row(group, agree(group, row_of(&own))?.as_ref())?;
    let (dtype, size) = row.type_and_size()?;
    let lens = pass.parts.unwrap_or_else(|| vec![data.len()]);
    let samples = lens.iter().sum::<usize>();
    let mut all = vec![0; samples * size];
    // The places of the ranks' parts, which follow each other, or that of the steps.
    let (mut places, mut rest) = (Vec::new(), &mut all[..]);
    for len in &lens {
        let (place, tail) = rest.split_at_mut(len * size);
        places.push(place);
        rest = tail;
    }
    // Each output is dropped when it has its place among all.
    for output in own {
        for (rank, rows) in group.all_gather_v(&bytes(output)?)?.into_iter().enumerate() {
            let place = &mut places[rank.min(lens.len() - 1)];
            let cut = std::mem::take(place).split_at_mut_checked(rows.len());
            let (to, tail) = cut.ok_or_else(|| protocol("more outputs than samples"))?;
            to.copy_from_slice(&rows);
            *place = tail;
        }
    }
    if places.iter().any(|place| !place.is_empty()) {
        return Err(protocol("fewer outputs than samples"));
    }
    let shape = [&[samples], &row.dims[..]].concat();
    Ok(Tensor::from_raw_buffer(&all, dtype, &shape, &Device::Cpu)?)
}

/// This rank's output of each step, on the CPU. `None` where it has no samples.
fn outputs<D: Dataset>(
    pass: &DataPass<D>,
    mut forward: impl FnMut(&D::Batch) -> Result<Tensor>,
) -> Result<Vec<Option<Tensor>>> {
    let output_of = |batch: Result<Option<D::Batch>>| {
        let Some(batch) = batch? else { return Ok(None) };
        let output = forward(&batch)?.detach().to_device(&Device::Cpu)?;
        let (samples, dims) = (batch.len(), output.dims());
        if dims.first() != Some(&samples) {
            let why = format!("the output of {samples} samples has the shape {dims:?}");
            return Err(Error::Outputs { why });
        }
        Ok(Some(output))
    };
    pass.batches()?.map(output_of).collect()
}

/// What the rows of this rank's outputs are. `None` if it has none.
fn row_of(outputs: &[Option<Tensor>]) -> Result<Option<OutputRow>> {
    let mut rows = outputs.iter().flatten().map(|output| OutputRow {
        dtype: output.dtype().as_str().to_owned(),
        dims: output.dims()[1..].to_vec(),
    });
    let Some(first) = rows.next() else { return Ok(None) };
    match rows.find(|row| *row != first) {
        Some(other) => Err(Error::rows_differ(&first, &other)),
        None => Ok(Some(first)),
    }
}

/// What the rows of all ranks are. All ranks come to the same result.
fn common_row(group: &Group, own: Option<&OutputRow>) -> Result<OutputRow> {
    let own = serde_json::to_string(&own).unwrap_or_default();
    let texts = if group.world_size() == 1 { vec![own] } else { group.all_gather_text(&own)? };
    let mut first = None;
    for text in texts {
        let row: Option<OutputRow> = serde_json::from_str(&text)
            .map_err(|error| protocol(&format!("a rank sent an unreadable shape: {error}")))?;
        let Some(row) = row else { continue };
        let first = first.get_or_insert_with(|| row.clone());
        if *first != row {
            return Err(Error::rows_differ(first, &row));
        }
    }
    first.ok_or_else(|| protocol("no rank has a sample"))
}

fn protocol(what: &str) -> Error {
    DistError::Protocol { what: what.to_owned() }.into()
}

/// The numbers of an output. They travel as bytes, because outputs may have types that collectives have not.
fn bytes(output: Option<Tensor>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(output) = output {
        output.write_bytes(&mut bytes)?;
    }
    Ok(bytes)
}

impl OutputRow {
    /// The type of its numbers, and its bytes.
    fn type_and_size(&self) -> Result<(DType, usize)> {
        let Self { dtype, dims } = self;
        let dtype: DType = dtype.parse().map_err(|_| protocol(&format!("no type `{dtype}`")))?;
        match dims.iter().product::<usize>() * dtype.size_in_bytes() {
            0 => {
                let what = "which has no numbers";
                let why = format!("the output of a sample has the shape {dims:?}, {what}");
                Err(Error::Outputs { why })
            }
            size => Ok((dtype, size)),
        }
    }
}

impl Error {
    fn rows_differ(first: &OutputRow, other: &OutputRow) -> Self {
        let show = |OutputRow { dtype, dims }: &OutputRow| format!("{dims:?} of {dtype}");
        let (first, other) = (show(first), show(other));
        Self::Outputs { why: format!("the output of one sample is {first}, of another {other}") }
    }
}
